# SPDX-License-Identifier: Apache-2.0
"""A private daemon of a job, if the system has none.

The first process of the job on a node (LOCAL_RANK 0, or the only one) starts it, and the others wait for it. Its folder has mode
0700 and is under $XDG_RUNTIME_DIR or /tmp. Only this user can enter the folder: others can neither connect nor listen there. The
daemon ends some seconds after the job's last session, in whatever way the job has ended, and removes the folder. If the daemon
fails, its log remains there.
"""
from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Optional

from .errors import error
from .structs import Status

SYSTEM = "/run/zerod/zerod.sock"
IDLE_S = 5  # without a session
STARTED_IN_S = 60
ENDING = (Status.CONNECT, Status.DISCONNECTED, Status.SHUTDOWN)  # of a daemon that has just ended because it was idle
TRIES = 200
_started: "list[subprocess.Popen[bytes]]" = []
# $0 is the folder, which is removed after a clean end. Otherwise its log remains. A signal of the terminal is for the trainers.
_SHELL = '"$@" </dev/null >"$0/zerod.log" 2>&1 && rm -rf "$0" || rm -f "$0/zerod.sock" "$0"/*.key "$0/lock"'


def wanted() -> bool:
    """Whether a program that requests a private daemon, if none serves the system, receives one."""
    if os.environ.get("ZEROD_SOCKET"):
        return False
    return os.environ.get("ZEROD_PRIVATE") == "1" or _connects(SYSTEM) in (FileNotFoundError, NotADirectoryError, PermissionError)


def socket_path() -> str:
    """The socket of this job's private daemon, which serves. ConnectionFailed describes why it does not, and where its log is."""
    starts = os.environ.get("LOCAL_RANK", "0") == "0"
    deadline = time.monotonic() + STARTED_IN_S
    folder = _folder()
    path = str(folder / "zerod.sock")
    while True:
        if starts:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        if _is_own(folder) and not _connects(path):
            return path
        lock = _locked(folder) if starts else None
        if lock is not None:
            try:
                if _start(folder, path, lock):
                    return path
            finally:
                os.close(lock)
        if time.monotonic() > deadline:
            raise error(Status.DEADLINE, f"the job's own daemon does not serve {path} after {STARTED_IN_S} s: LOCAL_RANK 0 starts "
                        f"it, and its log is {folder}/zerod.log")
        time.sleep(0.01)


def _locked(folder: Path) -> Optional[int]:
    """A descriptor of the folder's lock, which the daemon's shell inherits: until it has removed the folder, no other process
    starts a daemon there. None: another process has the lock, or the folder was just removed."""
    with suppress(FileNotFoundError):
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(folder / "lock")):
                return lock
        os.close(lock)
    return None


def _connects(path: str) -> "Optional[type[BaseException]]":
    """None if a process listens there. Otherwise the class of the error."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as tried:
        try:
            tried.connect(path)
        except OSError as failure:
            return type(failure)
    return None


def _folder() -> Path:
    """The folder of this job. All processes of one run of torchrun have the same folder, and other programs have others."""
    run = [os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "ZEROD_JOB")]
    name = "\n".join(run if "LOCAL_RANK" in os.environ or "RANK" in os.environ else [str(os.getpid())])
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.access(base, os.W_OK) or len(base) > 60:  # a socket's path can have 107 bytes
        base = "/tmp"
    return Path(base, f"zerod-{os.getuid()}-{hashlib.sha256(name.encode()).hexdigest()[:16]}")


def _is_own(folder: Path) -> bool:
    """Whether the folder exists, for this user only: other users cannot replace it. PERMISSION: other users have access."""
    try:
        found = folder.lstat()
    except FileNotFoundError:  # not made yet, or the previous daemon has just ended and removed it
        return False
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise error(Status.PERMISSION, f"{folder} is not a folder that this user alone can enter")
    return True


def program(name: str = "zerod") -> str:
    """The path of one of zerod's programs: in the package's folder, next to $ZEROD_LIBRARY, or found by $PATH."""
    library = Path(os.environ.get("ZEROD_LIBRARY") or "lib/none").resolve()
    for path in (Path(__file__).parent / "bin" / name, library.parents[1] / "bin" / name):
        if os.access(path, os.X_OK):
            return str(path)
    found = shutil.which(name)
    if not found:
        raise error(Status.CONNECT, f"no daemon serves {SYSTEM}, and the program {name} to start one is not on $PATH")
    return found


def run_program() -> None:
    """The console scripts of a wheel that contains the programs: replaces this process by the program with the script's name."""
    name = os.path.basename(sys.argv[0])
    os.execv(program(name), [name, *sys.argv[1:]])


def _start(folder: Path, path: str, lock: int) -> bool:
    """Starts the daemon. Returns whether it serves; see _await()."""
    ranks = max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    command = [program(), "--foreground", "--config", "/dev/null", "--socket", path, "--keep-state", "none",
               "--exit-when-idle", str(IDLE_S)]
    if not os.access("/dev/nvidiactl", os.F_OK):  # emulated devices allocate memory only when it is used
        command += ["--backend", "host", "--devices", str(ranks), "--arena", str(memory // 2 // ranks)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}  # the daemon's key of ids is there
    _started.append(subprocess.Popen(["/bin/sh", "-c", _SHELL, str(folder), *command], start_new_session=True, env=environment,
                                     pass_fds=[lock]))
    if not _await(folder, path, _started[-1]):
        return False
    said = f"zerod: a daemon for this job: {path} (log: {folder}/zerod.log). It ends {IDLE_S} s after the job. `zeroctl top` shows it\n"
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed, or its reader has ended
        os.write(sys.stderr.fileno(), said.encode())  # print() would only buffer it, and the exit status would become 120
    return True


def _await(folder: Path, path: str, started: "subprocess.Popen[bytes]") -> bool:
    """Waits until the daemon that this process has started serves. False: it ended as idle before this process could connect."""
    while _connects(path):
        if started.poll() is not None:
            try:
                log = (folder / "zerod.log").read_text(errors="replace").strip().splitlines()
            except FileNotFoundError:  # removed with its folder, as after every clean end
                return False
            raise error(Status.CONNECT, "the job's own daemon did not start: " + "\n".join(log[-5:]) + f" ({folder}/zerod.log)")
        time.sleep(0.01)
    return True
