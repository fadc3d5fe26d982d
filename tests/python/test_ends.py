#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""However a job ends that has started a daemon of its own: no process, socket or file of it is left.

A row of KINDS is (moment, acting rank, action, target). Two ranks run through all moments. The acting rank acts when it
reaches its moment: on itself, its peer, both ranks, their launcher, or the daemon. In a moment of WAITS the peer is in a
blocking call then, which zeroctl has shown.
"""
from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import support

WAITS = ("join", "gather", "barrier")
KINDS = [
    ("none", 0, "", ""),
    *[(moment, 0, "raise", "self") for moment in ("starting", "connected", "joined", "held", "updating", "backward", "step")],
    ("joined", 0, "exit 0", "self"), ("joined", 1, "exit 3", "self"), ("held", 0, "_exit 0", "self"),
    ("step", 1, "_exit 7", "self"),
    *[("held", 0, signal, "self") for signal in ("TERM", "INT", "HUP", "QUIT", "ABRT", "SEGV", "KILL")],
    *[("joined", 1, signal, "self") for signal in ("TERM", "INT", "SEGV", "KILL")],
    *[("barrier", 1, signal, "both") for signal in ("TERM", "INT", "HUP", "QUIT", "KILL")],
    *[("held", 0, signal, "launcher") for signal in ("TERM", "HUP", "KILL")], ("backward", 1, "KILL", "all"),
    *[("held", 0, signal, "daemon") for signal in ("TERM", "KILL", "ABRT")], ("barrier", 0, "KILL", "daemon"),
    ("joined", 1, "zeroctl drain", ""), ("barrier", 1, "zeroctl kill-job job", ""),
    *[("starting", 0, signal, "self") for signal in ("TERM", "INT", "KILL")],
    *[("waiting", 1, signal, "self") for signal in ("INT", "KILL")],
    ("join", 0, "KILL", "peer"), ("join", 1, "TERM", "peer"),
    *[("gather", 0, action, "peer") for action in ("INT", "KILL", "STOP KILL")], ("gather", 1, "raise", "self"),
    ("closed", 0, "KILL", "self"), ("stderr closed", 0, "", ""), ("stderr broken", 0, "", ""),
]
SIDE_BY_SIDE = 4

LAUNCHER = """
import os, subprocess, sys, time
ranks = [subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)})
         for rank in range(2)]
while None in [rank.poll() for rank in ranks]:
    if any(rank.returncode for rank in ranks):
        [rank.terminate() for rank in ranks]
    time.sleep(0.02)
sys.exit(any(rank.returncode for rank in ranks))
"""
RANK = """
import json, os, signal, socket, struct, subprocess, sys, time
moment, actor, action, target, pids, zeroctl = sys.argv[1:]
rank = int(os.environ["RANK"])
acts = rank == int(actor)
if moment == "stderr closed":
    os.close(2)
if moment == "stderr broken":
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 2)
import zerod
from zerod import BackwardOptions, DType, private
private.IDLE_S = 2
with open(f"{pids}/{rank}.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(file.name, f"{pids}/{rank}")

def pid(which):
    while not os.path.exists(f"{pids}/{which}"):
        time.sleep(0.01)
    return int(open(f"{pids}/{which}").read())

def daemon():
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.connect(private.socket_path())
        return struct.unpack("iii", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]

def act():
    open(f"{pids}/acted", "w").close()
    word, _, argument = action.partition(" ")
    if word == "raise":
        raise RuntimeError("this is the end")
    if word == "exit":
        sys.exit(int(argument))
    if word == "_exit":
        os._exit(int(argument))
    if word == "zeroctl":
        return subprocess.check_output([zeroctl, "--socket", private.socket_path(), *argument.split()])
    ended = {"self": lambda: [os.getpid()], "peer": lambda: [pid(1 - rank)], "both": lambda: [pid(1 - rank), os.getpid()],
             "launcher": lambda: [os.getppid()], "all": lambda: [os.getppid(), pid(1 - rank), os.getpid()],
             "daemon": lambda: [daemon()]}[target]()
    for name in action.split():
        for each in ended:
            os.kill(each, signal.Signals["SIG" + name])

def at(name):
    if acts and moment == name:
        act()

def meets(name):
    "Acts when the peer waits in its call."
    if acts and moment == name:
        while not any(row["waits"] for row in json.loads(subprocess.run(
                [zeroctl, "--socket", private.socket_path(), "--json", "sessions"], stdout=subprocess.PIPE).stdout)["rows"]):
            time.sleep(0.01)
        act()

if moment == "waiting" and rank == 0:
    sys.exit(0)  # so that nobody starts the daemon
if moment == "waiting":
    class Time:
        monotonic = time.monotonic
        def sleep(seconds):
            act()
    private.time = Time
awaited = private._await
private._await = lambda *rest: (at("starting"), awaited(*rest))
client = zerod.Client(private=True)
at("connected")
meets("join")
group = client.join(job="job", world_size=2, rank=rank, device=rank)
at("joined")
unit = group.register("unit", DType.FLOAT32, 8)
meets("gather")
with group.updating([unit]):
    at("updating")
with unit.gathered():
    at("held")
group.backward_begin(BackwardOptions(stage=3, boundary=1))
at("backward")
group.backward_end()
group.step_begin()
at("step")
with group.updating([unit]):
    group.step_end()
meets("barrier")
group.barrier()
client.close()
at("closed")
"""


def of(folder: Path) -> list[str]:
    """The processes and sockets whose environment, command line or path has the folder."""
    name, found = str(folder).encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if name in (process / "environ").read_bytes() + (process / "cmdline").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200])
        except OSError:
            continue
    return found + [line for line in Path("/proc/net/unix").read_text().splitlines() if f"{folder}/" in line]


class Ends(unittest.TestCase):
    def test_kinds(self) -> None:
        """whatever the end of ranks, launcher or daemon: nothing is left, but for the log of a daemon that has failed"""
        self.assertGreaterEqual(len(set(KINDS)), 40)
        core = resource.getrlimit(resource.RLIMIT_CORE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_CORE, core)
        resource.setrlimit(resource.RLIMIT_CORE, (0, core[1]))
        with tempfile.TemporaryDirectory(prefix="zerod-test-ends.") as base, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            wrong = [text for text in pool.map(lambda pair: self.end(Path(base), *pair), enumerate(KINDS)) if text]
        self.assertEqual(wrong, [], "\n".join(wrong))

    @staticmethod
    def end(base: Path, number: int, kind: "tuple[str, int, str, str]") -> str:
        """Runs a job of the kind; what it has left, or that it did not reach its moment."""
        folder, pids = base / f"r{number}", base / f"p{number}"
        folder.mkdir()
        pids.mkdir()
        cleared = {name: value for name, value in os.environ.items() if name not in ("ZEROD_SOCKET", "PYTHONUNBUFFERED")}
        environment = {**cleared, "ZEROD_PRIVATE": "1", "XDG_RUNTIME_DIR": str(folder),
                       "PYTHONPATH": f"{support.ROOT}/client/python", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                       "MASTER_PORT": str(number)}
        with open(base / f"log{number}", "w+") as log:
            arguments = [*map(str, kind), str(pids), str(support.BUILD / "bin" / "zeroctl")]
            code = subprocess.run([sys.executable, "-c", LAUNCHER, RANK, *arguments], env=environment, stdout=log,
                                  stderr=log).returncode
            failed = kind[3] == "daemon"
            try:
                support.until(lambda: not of(folder) and (failed or not os.listdir(folder)))
            except TimeoutError:
                log.seek(0)
                return f"{kind} leaves {of(folder)} {os.listdir(folder)}: {log.read()[-1500:]}"
            log.seek(0)
            if not (pids / "acted").exists() if kind[2] else code:
                return f"{kind} did not come to its end: {code} {log.read()[-1500:]}"
        left = {path.name for path in folder.rglob("*") if not path.is_dir()}
        return f"{kind} leaves {left}" if left - {"zerod.log"} else ""


if __name__ == "__main__":
    support.main()
