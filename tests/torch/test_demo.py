#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python -m zerod.torch.demo, small: it learns what FSDP2 learns, leaves nothing behind, and names what is wrong."""
from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from unittest import mock

import harness
import torch
from harness import models, support

SMALL = ("--depth", "2", "--width", "32", "--length", "16", "--batch", "4", "--steps")


@unittest.skipIf("ZD_SEVERAL" in os.environ, "torch sees one GPU, and the demo gives each rank its own")
class Demo(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="zerod-test-demo.")
        self.addCleanup(folder.cleanup)
        self.base = Path(folder.name)

    def start(self, *arguments: str, launcher: tuple[str, ...] = (), **environment: str) -> "subprocess.Popen[str]":
        """The demo, whose daemon is its own."""
        path = f"{environment.pop('FIRST', '')}:{support.ROOT}/client/python"
        cleared = {"ZEROD_SOCKET": "", "ZEROD_PRIVATE": "1", "XDG_RUNTIME_DIR": str(self.base), "TMPDIR": str(self.base),
                   "ZEROD_POISON": "", "ZEROD_LAG": ""}  # torchrun leaves folders
        return subprocess.Popen([sys.executable, "-m", *launcher, "zerod.torch.demo", *arguments], text=True, cwd=self.base,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**os.environ, **cleared, "PYTHONPATH": path, **environment})

    def end(self, process: "subprocess.Popen[str]") -> tuple[int, str, str]:
        """The status and all that was printed, when neither ranks nor daemon are left."""
        output, errors = process.communicate(timeout=harness.TIMEOUT_S)
        support.until(lambda: not list(self.base.glob("zerod-*")))
        return process.returncode, output, errors

    def test_equal(self) -> None:
        """one rank and two: losses are FSDP2's, memory is what the layout decides, and a report of both"""
        for ranks in (1, 2):
            status, output, errors = self.end(self.start("--ranks", str(ranks), *SMALL, "12", "--fsdp2", "--json"))
            self.assertEqual(status, 0, errors)
            found = json.loads(output)
            ours, theirs = found["zerod"], found["fsdp2"]
            self.assertAlmostEqual(ours["loss_last"], theirs["loss_last"], places=4)
            self.assertLess(ours["loss_last"], ours["loss_first"] - 0.5)
            self.assertEqual(ours["device"], models.DEVICE)
            self.assertAlmostEqual(ours["daemon_bytes"]["shard"] / (4 * ours["parameters"]), 1, delta=0.2)  # views are aligned
            self.assertAlmostEqual(ours["kept_bytes"] / theirs["kept_bytes"], 1, delta=0.15)
            self.assertTrue(ours["writes_before"] and ours["writes_after"])

    def test_torchrun(self) -> None:
        """two ranks of torchrun, in bfloat16: progress, a text, and a bar, once"""
        launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
        status, output, errors = self.end(self.start(*SMALL, "10", "--bfloat16", "--fsdp2", launcher=launcher))
        self.assertEqual(status, 0, errors)
        for words in (r"zerod +\[#{8}\] 10/10 loss .* tokens/s", r"FSDP2 +\[#{8}\] 10/10", r"writes after +\S", r"\[SS*AA*TT*\+",
                      r"\n  zerod .* ms .* MiB\n  FSDP2 .* ms .* MiB"):
            self.assertEqual(len(re.findall(words, output)), 1, f"{words}\n{output}")

    def test_wrong(self) -> None:
        """arguments, texts and a torch that is missing are named"""
        Path(self.base, "empty").write_text("")
        Path(self.base, "none").mkdir()
        Path(self.base, "none", "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
        library = shutil.copy(os.environ["ZEROD_LIBRARY"], self.base / "none")
        started = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "1"}
        for status, words, arguments, environment in (
                (2, "'0': a number from 1 to 64", ("--ranks", "0"), {}),
                (2, "--ranks 3: torchrun has started 2", ("--ranks", "3"), started),
                (2, "empty: too short to train on, 0 of at least 17", ("--text", "empty", *SMALL, "1"), {}),
                (1, "ImportError: zerod.torch needs torch 2.4 or newer: No module", (), {"FIRST": str(self.base / "none")}),
                (1, "^demo: zeroctl was not found", (), {"PATH": "/none", "ZEROD_LIBRARY": library}),
                (25, "demo: rank 0: CONNECT.*\ndemo: rank 0 ended early with status 25", ("--ranks", "1"),
                 {"ZEROD_SOCKET": "/none"})):
            got, _, errors = self.end(self.start(*arguments, **environment))
            self.assertEqual((got, bool(re.search(words, errors))), (status, True), errors)

    def test_gpus(self) -> None:
        """more ranks than GPUs are refused"""
        from zerod.torch import demo

        with mock.patch.multiple(torch.cuda, is_available=lambda: True, device_count=lambda: 1), \
                mock.patch.object(sys, "argv", ["demo", "--ranks", "2"]), redirect_stderr(StringIO()) as told, \
                self.assertRaises(SystemExit):
            demo.parse()
        self.assertIn("2 ranks need as many GPUs, and torch sees 1", told.getvalue())

    def test_ends(self) -> None:
        """the death of a rank ends the others and is named, and a signal of the launcher ends all"""
        for number, status in ((signal.SIGKILL, 128 + 9), (signal.SIGINT, 128 + 2)):
            process = self.start("--ranks", "2", *SMALL, "1000")
            while "loss" not in process.stdout.readline():
                self.assertIsNone(process.poll())
            ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(ranks[1]) if number == signal.SIGKILL else process.pid, number)
            got, _, errors = self.end(process)
            self.assertEqual(got, status, errors)
            if number == signal.SIGKILL:
                self.assertIn("demo: rank 1 was ended by signal 9", errors)
            self.assertFalse([rank for rank in ranks if os.path.exists(f"/proc/{rank}")])


if __name__ == "__main__":
    support.main()
