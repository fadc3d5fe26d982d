#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo, end to end and small: equal to the unsharded run bit for bit, and it leaves nothing behind, however it ends."""
from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

import support

BIN = support.BUILD / "bin"
ENDLESS = ("--ranks", "2", "--steps", "1000000", "--batch", "1")


def setUpModule() -> None:
    global daemon
    daemon = support.Daemon(devices=2).for_module()


def start(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
    path = f"{environment.get('TMPDIR', '')}:{support.ROOT}/client/python"
    return subprocess.Popen([sys.executable, "-m", "zerod.demo", "--bin", BIN, *arguments], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path, **environment})


def end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """The status, and all that was printed. Returns when no rank has the pipes open any more."""
    output, errors = process.communicate(timeout=240)
    return process.returncode, output, errors


class Demo(unittest.TestCase):
    def test_gradients(self) -> None:
        """backpropagation agrees with a numerical derivative, in float64"""
        import numpy as np
        from zerod.demo.model import CONTEXT, Whole, forward_backward, make_layers

        random, layers = np.random.default_rng(1), make_layers(11)
        samples = random.integers(11, size=(5, CONTEXT)), random.integers(11, size=5)
        values = [layer.initial(1).astype(np.float64) for layer in layers]
        directions = [random.normal(size=layer.numel) for layer in layers]
        above, whole, below = (Whole(layers, [v + e * d for v, d in zip(values, directions)]) for e in (1e-6, 0, -1e-6))
        losses = [forward_backward(*samples, each) for each in (above, whole, below)]
        slope = sum(float(g @ d) for g, d in zip(whole.gradients, directions))
        self.assertAlmostEqual((losses[0] - losses[2]) / 2e-6 / slope, 1, places=6)

    def test_shared(self) -> None:
        """three ranks on two devices: equal to the unsharded run, buffers halfway, and bars with all shards of a device"""
        run = ("--socket", daemon.socket, "--ranks", "3", "--steps", "5", "--batch", "4", "--compare")
        status, output, errors = end(start(*run, "--buffers"))
        self.assertEqual((status, errors), (0, ""))
        self.assertRegex(output, r"(?s)hidden1 .*forward.*hidden3 .*forward.*\[#{8}\] 5/5 loss .*yes, bit for bit \(15 losses")
        self.assertEqual(len(re.findall(r"writes (?:before|after) +\S", output)), 2)
        self.assertEqual(re.findall(r"rank \d .*\[(P*)A", output), ["PPPPPPP", "PPPP", "PPPPPPP"])
        self.assertIn('"same_losses": true, "same_parameters": true}', end(start(*run, "--json"))[1])
        support.until(lambda: '"name"' not in support.zeroctl(daemon, "jobs", "--json"))

    def test_wrong(self) -> None:
        """texts, numbers and daemons that are wrong are named, each with its status; a text of one character is not"""
        Path(daemon.folder.name, "one byte").write_text("x")
        Path(daemon.folder.name, "blanks").write_text(" " * 500)
        os.mkfifo(f"{daemon.folder.name}/pipe")
        double = {"ZEROD_TEST_BACKEND": "cuda", "LD_LIBRARY_PATH": f"{support.BUILD}/tests/double"}
        with mock.patch.dict(os.environ, double), support.Daemon() as gpus:
            for status, words, option, value in (
                    (0, "", "--text", "blanks"), (2, "one byte: too short to train on, 1 of at least 13", "--text", "one byte"),
                    (2, "nothing: No such file", "--text", "nothing"), (2, "pipe: not a regular file", "--text", "pipe"),
                    (25, r"rank \d: CONNECT", "--socket", "no.sock"), (22, "on the CPU, .* GPUs", "--socket", gpus.socket),
                    (2, "a number from 1 to 64", "--ranks", "0"), (1, "zerod was not found in", "--bin", "")):
                value = value if value == "0" else os.path.join(daemon.folder.name, value)
                got, _, errors = end(start("--steps", "2", "--batch", "2", "--compare", option, value))
                self.assertEqual((got, bool(re.search(words, errors))), (status, True), errors)
        Path(daemon.folder.name, "zerod").write_text("#!/bin/sh\necho broken\nexit 3\n")
        Path(daemon.folder.name, "zerod").chmod(0o755)
        self.assertIn("last words:\nbroken\ndemo: zerod did not start", end(start("--bin", daemon.folder.name))[2])
        lonely = {**os.environ, "PYTHONPATH": f"{support.ROOT}/client/python", "PATH": daemon.folder.name}
        lonely["ZEROD_LIBRARY"] = str(support.BUILD / "lib" / "libzerod.so.0")
        run = [sys.executable, "-m", "zerod.demo", "--steps", "2", "--batch", "2"]
        got = subprocess.run(run, env=lonely, capture_output=True, text=True, timeout=240)
        self.assertEqual((got.returncode, got.stderr), (0, ""), "without --bin the daemon next to the library is found first")
        Path(daemon.folder.name, "numpy.py").write_text("raise ImportError('no numpy')")
        self.assertEqual(end(start(TMPDIR=daemon.folder.name)), (1, "", "demo: no numpy: pip install numpy\n"))

    def test_killed_rank(self) -> None:
        """a rank's death ends the run, is named, and leaves nothing in the daemon"""
        process = start("--socket", daemon.socket, *ENDLESS)

        def joined() -> "list[str]":
            return re.findall(r"demo\.1 (\d+) demo-", support.zeroctl(daemon, "sessions", "--raw", "--columns", "name,pid,job"))

        support.until(lambda: bool(joined()))
        os.kill(int(joined()[0]), signal.SIGKILL)
        self.assertEqual(end(process)[::2], (128 + 9, "demo: rank 1 was ended by signal 9 (Killed)\n"))
        support.until(lambda: '"name"' not in support.zeroctl(daemon, "jobs", "--json"))

    def test_ends(self) -> None:
        """a signal ends ranks, daemon and folder, which only SIGKILL leaves; TMPDIR may be too long for a socket's path"""
        long = f"{daemon.folder.name}/{'0' * 100}"
        os.mkdir(long)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
            process = start(*ENDLESS, TMPDIR=daemon.folder.name if number == signal.SIGKILL else long)
            socket = re.findall(r"zerod runs on (\S+):", process.stdout.readline())[0]
            process.send_signal(number)
            self.assertEqual(end(process), (-9 if number == signal.SIGKILL else 128 + number, "", ""))
            status = [BIN / "zeroctl", "--socket", socket, "status"]
            support.until(lambda: subprocess.run(status, capture_output=True).returncode != 0)
            self.assertEqual(Path(socket).parent.exists(), number == signal.SIGKILL)


if __name__ == "__main__":
    support.main()
