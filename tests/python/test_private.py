#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A daemon of a job's own: who starts it, who may use it, and that nothing is left of it."""
from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import support
import zerod
from zerod import private

RANK = """
import os, signal, sys, zerod
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with zerod.Client(private=True) as client, client.join(job="job", world_size=world, rank=rank, device=rank) as group:
    group.barrier()
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()
"""
RANKS = 8


class Private(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="zerod-test-private.")
        self.addCleanup(folder.cleanup)
        self.base = Path(folder.name)
        cleared = {name: "" for name in ("ZEROD_SOCKET", "LOCAL_RANK", "RANK", "MASTER_PORT")}
        self.patch(mock.patch.dict(os.environ, {**cleared, "XDG_RUNTIME_DIR": folder.name, "ZEROD_PRIVATE": "1"}))
        for name in cleared:
            del os.environ[name]

    def patch(self, patch: "mock._patch[object]") -> None:
        patch.start()
        self.addCleanup(patch.stop)

    def test_ends(self) -> None:
        """eight ranks that start together, the first one last, get one daemon; nothing is left, whatever the job's end"""
        for end in ("ended", "killed"):
            ranks = [subprocess.Popen([sys.executable, "-c", RANK, end], text=True, stderr=subprocess.PIPE,
                                      env={**os.environ, "PYTHONPATH": str(support.ROOT / "client" / "python"), "RANK": str(rank),
                                           "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS),
                                           "MASTER_PORT": end}) for rank in reversed(range(RANKS))]
            told = "".join(rank.communicate()[1] for rank in ranks)
            self.assertEqual({rank.returncode for rank in ranks}, {0 if end == "ended" else -9}, told)
            self.assertEqual(told.count("a daemon for this job"), 1, told)
            while os.listdir(self.base):
                time.sleep(0.01)

    def test_does_not_start(self) -> None:
        """the error has the daemon's last words and the path of its log, which stays; or says that there is no program"""
        script = self.base / "zerod"
        script.write_text("#!/bin/sh\necho no memory\nexit 1\n")
        script.chmod(0o755)
        with mock.patch.object(private, "program", lambda: str(script)):
            with self.assertRaisesRegex(zerod.ConnectionFailed, f"no memory.*{self.base}/zerod-.*/zerod.log"):
                zerod.Client(private=True)
        with mock.patch.dict(os.environ, {"PATH": "/nowhere", "ZEROD_LIBRARY": ""}):
            with self.assertRaisesRegex(zerod.ConnectionFailed, "the program zerod .* is not on"):
                zerod.Client(private=True)

    def test_folder(self) -> None:
        """a folder that others can enter, or a link in its place, is refused by its name"""
        folder = private._folder()
        with mock.patch.dict(os.environ, {"LOCAL_RANK": "1"}), mock.patch.multiple(private, STARTED_IN_S=0, _connects=self.fail), \
                self.assertRaises(zerod.Deadline):  # a rank that waits connects nowhere before there is one
            private.socket_path()
        folder.mkdir()
        folder.chmod(0o755)
        with self.assertRaisesRegex(zerod.PermissionDenied, str(folder)):
            zerod.Client(private=True)
        folder.rmdir()
        (self.base / "other").mkdir(0o700)
        folder.symlink_to(self.base / "other")
        with self.assertRaisesRegex(zerod.PermissionDenied, str(folder)):
            zerod.Client(private=True)

    def test_predecessor(self) -> None:
        """where a daemon ends no other one starts before its folder has gone, nor in a folder that has just gone; one that was idle
        for too long before anybody came is started again"""
        folder = private._folder()
        folder.mkdir()
        with mock.patch.object(fcntl, "flock", side_effect=lambda *_: shutil.rmtree(folder)):
            self.assertIsNone(private._locked(folder))
        script = self.base / "zerod"  # ends at once, and afterwards serves until there is a file `end`
        script.write_text(f"#!{sys.executable}\nimport os, socket, sys, time\n"
                          f"if not os.path.exists('{self.base}/first'): sys.exit(open('{self.base}/first', 'w').close())\n"
                          "serves = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
                          f"serves.bind('{private._folder()}/zerod.sock')\nserves.listen()\n"
                          f"while not os.path.exists('{self.base}/end'): time.sleep(0.01)\n")
        script.chmod(0o755)
        with mock.patch.object(private, "program", lambda: str(script)):
            path = private.socket_path()
        locked = private._locked(folder)
        (self.base / "end").touch()
        private._started.pop().wait()
        self.assertIsNone(locked)
        self.assertFalse(folder.exists(), path)

    def test_system(self) -> None:
        """a daemon of the system's is used, and its failure is told with the way to a private one; $ZEROD_SOCKET decides"""
        path = str(self.base / "system.sock")
        self.patch(mock.patch.object(private, "SYSTEM", path))
        with mock.patch.dict(os.environ, {"ZEROD_PRIVATE": ""}):
            self.assertTrue(private.wanted())
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
                bound.bind(path)
                self.assertFalse(private.wanted())  # its daemon has failed
                with self.assertRaisesRegex(zerod.ConnectionFailed, "ZEROD_PRIVATE=1"):
                    zerod.Client(private=True)
        with support.Daemon() as daemon, mock.patch.dict(os.environ, {"ZEROD_SOCKET": daemon.socket}):
            self.assertFalse(zerod.Client(private=True).is_private)

    def test_zeroctl(self) -> None:
        """zeroctl finds the daemon of this user's only job by itself, and lists those of several"""
        self.patch(mock.patch.dict(os.environ, {"RANK": "0", "MASTER_PORT": "1"}))
        with zerod.Client(private=True), mock.patch.dict(os.environ, {"MASTER_PORT": "2"}), zerod.Client(private=True):
            told = subprocess.run([str(support.BUILD / "bin" / "zeroctl"), "status"], capture_output=True, text=True)
            self.assertEqual(told.returncode, 25)
            for path in self.base.glob("zerod-*/zerod.sock"):
                self.assertIn(f"\n{path}\n", told.stderr)


if __name__ == "__main__":
    support.main()
