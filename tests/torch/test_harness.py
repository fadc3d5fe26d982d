#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The harness itself: the end of a rank that takes too long."""
from __future__ import annotations

import os
import signal
import sys
import threading
import unittest
from random import Random
from typing import Any
from unittest import mock

import harness
from harness import support

RANKS = 120


def functions() -> "list[Any]":
    """Functions with frames of different sizes, which call each other."""
    made: "dict[str, Any]" = {"all": []}
    for size in range(1, 40):
        lines = "".join(f"    a{i} = 'x' * depth\n" for i in range(size))
        exec(f"def each(depth, draw):\n{lines}    return depth and all[draw(len(all))](depth - 1, draw)\n", made)
        made["all"].append(made["each"])
    return made["all"]


class Late(unittest.TestCase):
    def test_threads(self) -> None:
        """a rank whose threads all run has not ended in time: it is ended by the alarm, and the report by nothing else"""
        called = functions()

        def compute(seed: int) -> None:
            draw = Random(seed).randrange
            while True:
                called[draw(len(called))](draw(60), draw)

        def body(rank: int) -> None:
            sys.setswitchinterval(1e-6)
            for thread in range(3):
                threading.Thread(target=compute, args=(7 * rank + thread,), daemon=True).start()
            signal.setitimer(signal.ITIMER_REAL, 0.02 + rank * 1e-4)
            compute(rank)

        with mock.patch("os.write"):
            found = {harness.outcomes([harness.fork(lambda: body(rank))])[0] for rank in range(RANKS)}
        self.assertEqual(found, {(False, f"the process ended with status {int(signal.SIGALRM)}")})

    def test_no_handler(self) -> None:
        """a main thread that runs no handlers of Python"""
        def body() -> None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            signal.pause()

        with mock.patch.multiple(harness, TIMEOUT_S=1, LAST_S=0):
            [(_, text)] = harness.outcomes([harness.fork(body)])
        self.assertIn(text, [f"the process ended with status {number}" for number in (signal.SIGQUIT, signal.SIGQUIT | 0x80)])


if __name__ == "__main__":
    support.main()
