# SPDX-License-Identifier: Apache-2.0
"""The command line, and a private daemon."""
from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Iterator, Optional

# numpy has one thread in each process. The libraries read this when they are loaded.
os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")
try:
    import numpy as np
except ImportError as failure:
    sys.exit(f"demo: {failure}: pip install numpy")

from zerod import ConnectionFailed, private

from .common import SIGNALS, Failed, exit_by_signal, number, read_text, started, starting
from .model import CONTEXT, Plan
from .ranks import train_sharded, train_unsharded
from .report import Progress, figures, show

LONGEST_TMPDIR = 64  # the path of a socket can have 107 bytes
START_S = 10


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m zerod.demo",
        description="Trains a character-level language model over several processes. zerod holds its parameters and gradients.",
        epilog="Exit status: 0 after success, 1 if the compared runs differ or a program is missing, 2 for a wrong command line or text, "
        "otherwise zerod's status of the failure.")
    add = parser.add_argument
    add("--socket", metavar="PATH", help="the daemon's socket (default: a private daemon)")
    add("--bin", metavar="FOLDER", help="folder of zerod and zeroctl (default: the package's, otherwise $PATH)")
    add("--ranks", type=number(1, 64), default=4, metavar="N", help="ranks, each a process (%(default)s)")
    add("--steps", type=number(1, 1000000), default=300, metavar="N", help="steps (%(default)s)")
    add("--batch", type=number(1, 1024), default=32, metavar="N", help="samples of a rank in a step (%(default)s)")
    add("--seed", type=number(0, (1 << 64) - 1), default=1, metavar="N", help="of initial values and samples (%(default)s)")
    add("--text", action="append", metavar="FILE", help="train on this file. Can be repeated (default: this package's sources)")
    add("--compare", action="store_true", help="repeat the run unsharded in one process, and compare")
    add("--buffers", action="store_true", help="halfway, in the middle of a step, show zeroctl's list of buffers")
    add("--json", action="store_true", help="no progress, and the summary as one JSON object")
    return parser.parse_args()


def find(program: str, folder: Optional[str]) -> str:
    try:
        found = private.program(program) if folder is None else shutil.which(program, path=folder)
    except ConnectionFailed:
        found = None
    if not found:
        raise Failed(1, f"{program} was not found in {folder or '$PATH'}: --bin names its folder")
    return found


# ---- The private daemon ----


@contextmanager
def private_daemon(program: str, quiet: bool) -> Iterator[str]:
    """The socket of a daemon with four emulated devices. The daemon and its folder last as long as the `with`."""
    base = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix="zerod-demo.", dir=base if len(base) <= LONGEST_TMPDIR else "/tmp") as folder:
        path, log = f"{folder}/zerod.sock", Path(folder, "zerod.log")
        command = [program, "--foreground", "--backend", "host", "--devices", "4", "--arena", "256M", "--socket", path]
        process = None
        try:
            with starting(), open(log, "wb") as output:
                # In a separate session: Ctrl-C is for this program, which first ends the training and then the daemon.
                process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, preexec_fn=started)
            wait_until_it_listens(process, path)
            if not quiet:
                print(f"zerod runs on {path}: 4 devices of the host backend, 256 MiB each.", flush=True)
            yield path
        except Failed as failure:
            if failure.status > 2 or process.poll() is not None:
                words = log.read_text(errors="replace").splitlines()[-20:]
                print("demo: the daemon's last words:", *words, sep="\n", file=sys.stderr)
            raise
        finally:
            if process:
                process.terminate()
                process.wait()


def wait_until_it_listens(process: "subprocess.Popen[bytes]", path: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            if probe.connect_ex(path) == 0:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failed(1, "zerod did not start")
        time.sleep(0.02)


# ---- The run ----


def show_buffers(zeroctl: str, plan: Plan, progress: Progress) -> None:
    progress.interrupt()
    output = sys.stderr if progress.quiet else sys.stdout  # with --json standard output has only the summary
    print(f"\nThe daemon's buffers in the middle of step {plan.pause_step}:", file=output, flush=True)
    if subprocess.run([zeroctl, "--socket", plan.socket, "buffers"], stdout=output).returncode:
        raise Failed(1, f"{zeroctl} buffers failed")
    print(file=output, flush=True)


def run(options: argparse.Namespace) -> int:
    alphabet, tokens = np.unique(np.frombuffer(read_text(options.text, CONTEXT + 1), np.uint8), return_inverse=True)
    zeroctl = find("zeroctl", options.bin) if options.buffers else ""
    with nullcontext(options.socket) if options.socket else private_daemon(find("zerod", options.bin), options.json) as path:
        plan = Plan(tokens, alphabet, options.ranks, options.batch, options.steps, options.seed, path, f"demo-{os.getpid()}",
                    options.steps // 2 + 1 if options.buffers else 0)
        progress = Progress(plan, "sharded", options.json)
        try:
            ours = train_sharded(plan, progress.heard, partial(show_buffers, zeroctl, plan, progress))
        except Failed:
            progress.interrupt()
            raise
        same = None
        if options.compare:
            theirs = train_unsharded(plan, Progress(plan, "unsharded", options.json).heard)
            same = (ours.losses.tobytes() == theirs.losses.tobytes(),
                    all(a.tobytes() == b.tobytes() for a, b in zip(ours.values, theirs.values)))
        summary = figures(plan, ours, progress.seconds, same)
        if options.json:
            print(json.dumps(summary), flush=True)
        else:
            show(plan, ours, summary)
        return int(same is not None and not all(same))


def main() -> int:
    options = parse()
    for each in SIGNALS:
        signal.signal(each, exit_by_signal)
    try:
        return run(options)
    except Failed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return failure.status
    except BrokenPipeError:  # of the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


if __name__ == "__main__":
    sys.exit(main())
