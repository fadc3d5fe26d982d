# SPDX-License-Identifier: Apache-2.0
"""Parts that this demo and zerod.torch.demo share: the text, numbers on the command line, processes that end together, bars.

They need only Python.
"""
from __future__ import annotations

import argparse
import ctypes
import shutil
import signal
import stat
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterable, Iterator, NoReturn, Optional, Sequence

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REDRAW_S = 0.1
BAR, MEMORY_BAR = 8, 40
LINE = 72  # characters of written text
MIB = 1 << 20
_prctl, _PR_SET_PDEATHSIG = ctypes.CDLL(None).prctl, 1


class Failed(Exception):
    """The run has failed. The exception has the program's exit status and the reason."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


# ---- The command line and the text ----


def number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: a number from {least} to {most} is expected")
        return int(text)

    return parse


def read_text(files: Optional[Sequence[str]], least: int) -> bytes:
    """The files' content, of `least` bytes or more. Without files: the package's sources, which exist in every installation."""
    text = b""
    try:
        for path in files or sorted(Path(__file__).parents[1].rglob("*.py")):
            if not stat.S_ISREG(Path(path).stat().st_mode):  # a pipe is rejected, not waited for
                raise Failed(2, f"{path}: not a regular file")
            text += Path(path).read_bytes()
    except OSError as failure:
        raise Failed(2, f"{failure.filename}: {failure.strerror}")
    if len(text) < least:
        raise Failed(2, f"{', '.join(files or ())}: too short to train on, {len(text)} of at least {least} bytes")
    return text


def written(codes: Iterable[int]) -> str:
    """The characters on one line of at most LINE. Each run of blanks and of characters that cannot be shown becomes one blank."""
    line = ""
    for code in codes:
        character = chr(code) if "!" <= chr(code) <= "~" else " "
        line += "" if character == " " and line[-1:] in ("", " ") else character
        if len(line) == LINE:
            break
    return line.rstrip()


# ---- Processes ----


@contextmanager
def starting() -> Iterator[None]:
    """Blocks signals while processes are started: a handler's exception would lose a process that already exists."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def started() -> None:
    """Called in the new process: the kernel ends it when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def started_rank() -> None:
    """The same for a rank. A terminal's signals are for the launcher, which ends its ranks."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL if each == signal.SIGTERM else signal.SIG_IGN)
    started()


def death(rank: int, code: int) -> tuple[int, str]:
    """The status and text of Failed for a rank whose process has ended with another exit code than 0."""
    if code > 0:
        return code, f"rank {rank} ended early with status {code}"
    return 128 - code, f"rank {rank} was ended by signal {-code} ({signal.strsignal(-code)})"


def exit_by_signal(received: int, _: object) -> NoReturn:
    """Ends the program in order. Further signals are ignored."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + received)


# ---- Bars ----


class Bar:
    """On a terminal, progress is one line that is rewritten a few times a second. Elsewhere it is a line per tenth of the run."""

    def __init__(self, title: str, steps: int, quiet: bool) -> None:
        self.title, self.steps, self.quiet = title, steps, quiet
        self.terminal = sys.stdout.isatty()
        self.shown, self.step = 0.0, 0

    def due(self, step: int) -> bool:
        """Whether to call show() for this step."""
        now = time.monotonic()
        due = now - self.shown >= REDRAW_S if self.terminal else step * 10 // self.steps > self.step * 10 // self.steps
        if self.quiet or step == self.step or not (due or step == self.steps):
            return False
        self.step, self.shown = step, now
        return True

    def show(self, text: str) -> None:
        """Draws the bar at the step of the last due(), and the text after it."""
        line = f"{self.title:<9} [{'#' * (self.step * BAR // self.steps):.<{BAR}}] " \
               f"{self.step:>{len(str(self.steps))}}/{self.steps} {text}"
        if self.terminal:  # a line that wraps could not be rewritten
            line = f"\r{line[:shutil.get_terminal_size().columns - 1]}\033[K"
        print(line, end="" if self.terminal and self.step < self.steps else "\n", flush=True)

    def interrupt(self) -> None:
        """Ends the line that would be rewritten."""
        if self.terminal and not self.quiet and 0 < self.step < self.steps:
            print(flush=True)


def memory_bar(parts: Sequence[tuple[str, int]], whole: int) -> str:
    """A bar whose length represents `whole` bytes. Each part is a letter and the byte at which it ends."""
    bar = ""
    for letter, up_to in parts:
        bar = bar.ljust(min(round(up_to / whole * MEMORY_BAR), MEMORY_BAR), letter)
    return f"[{bar:<{MEMORY_BAR}}] {parts[-1][1] / MIB:.2f} MiB, {100 * parts[-1][1] / whole:.0f} %"
