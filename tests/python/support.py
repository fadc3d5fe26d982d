# SPDX-License-Identifier: Apache-2.0
"""Common parts of the Python tests: a private daemon, ranks as threads, and TAP lines for tests/run.sh."""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unittest
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", "build"))
BUILD = BUILD if BUILD.is_absolute() else ROOT / BUILD
os.environ.setdefault("ZEROD_LIBRARY", str(BUILD / "lib" / "libzerod.so.0"))
sys.path.insert(0, str(ROOT / "client" / "python"))


class Daemon:
    """A daemon on a socket of its own, while the `with` lasts."""

    def __init__(self, devices: int = 2, arena: str = "64M", *arguments: str,
                 host_arena: str = os.environ.get("ZEROD_TEST_HOST_ARENA", "")) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="zerod-test-python.")
        self.socket = self.folder.name + "/zerod.sock"
        self.log = open(self.folder.name + "/zerod.log", "w+")
        self.command = [str(BUILD / "bin" / "zerod"), "--foreground", *self.backend(devices), "--arena", arena,
                        "--socket", self.socket, *arguments, *(["--host-arena", host_arena] if host_arena else [])]
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self.command, stdout=self.log, stderr=subprocess.STDOUT)

    def restart(self, signal: int) -> None:
        """Ends the daemon by the signal, and starts another one on the same socket."""
        self.process.send_signal(signal)
        self.process.wait(30)
        self.process = self._start()
        self.__enter__()

    @staticmethod
    def backend(devices: int) -> list[str]:
        """$ZEROD_TEST_BACKEND: host or cuda."""
        name = os.environ.get("ZEROD_TEST_BACKEND", "host")
        return ["--backend", name] + (["--devices", str(devices)] if name == "host" else [])

    def __enter__(self) -> "Daemon":
        import zerod

        deadline = time.monotonic() + 60
        while True:
            try:
                zerod.Client(self.socket).close()
                return self
            except zerod.ConnectionFailed:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.log.seek(0)
                    raise RuntimeError("the daemon does not start: " + self.log.read())
                time.sleep(0.01)

    def for_module(self) -> "Daemon":
        """Lasts through all tests of a module. Its setUpModule() calls this."""
        unittest.addModuleCleanup(self.__exit__)
        return self.__enter__()

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()
        self.folder.cleanup()


def zeroctl(daemon: Daemon, *arguments: str) -> str:
    return subprocess.run([str(BUILD / "bin" / "zeroctl"), "--socket", daemon.socket, *arguments], capture_output=True,
                          text=True, check=True).stdout


def until(holds: Callable[[], bool]) -> None:
    """Looks again and again until it holds, a minute at most."""
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("it does not hold after a minute")
        time.sleep(0.01)


_jobs = iter(range(1, 1 << 30))


def ranks(socket: str, world: int, body: Callable[..., Any], **options: Any) -> list[Any]:
    """Runs body(group) for each rank, a thread and a client each; returns what they returned, by rank.

    The first exception of a rank is raised here.
    """
    import zerod

    job = f"test{next(_jobs)}"
    results: list[Any] = [None] * world
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            with zerod.Client(socket, deadline_ms=20000) as client:
                devices = len(client.rank_devices())
                with client.join(job=job, world_size=world, rank=rank, device=rank % devices, **options) as group:
                    results[rank] = body(group)
                    group.barrier()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


class _Tap(unittest.TestResult):
    def _line(self, word: str, test: unittest.TestCase, why: str = "") -> None:
        print(f"{word} {self.testsRun} - {test.shortDescription() or test.id()}{why}", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._line("ok", test)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._line("ok", test, f" # SKIP {reason}")

    def _bad(self, test: unittest.TestCase, error: Any) -> None:
        self._line("not ok", test)
        for line in "".join(traceback.format_exception(*error)).splitlines():
            print("# " + line)

    def addFailure(self, test: unittest.TestCase, error: Any) -> None:
        super().addFailure(test, error)
        self._bad(test, error)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, error: Any) -> None:
        super().addSubTest(test, subtest, error)
        if error is not None:
            self._bad(subtest, error)

    def addError(self, test: unittest.TestCase, error: Any) -> None:
        super().addError(test, error)
        self._bad(test, error)


def main() -> None:
    """Runs the calling module's tests (those whose names contain an argument, where there are arguments)."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    tests = [test for group in suite for test in group]  # type: ignore[union-attr]
    tests = [test for test in tests if len(sys.argv) < 2 or any(word in test.id() for word in sys.argv[1:])]
    result = _Tap()
    unittest.TestSuite(tests).run(result)
    print(f"1..{len(tests) if result.testsRun else len(result.skipped)}")  # setUpModule() may skip all of them
    sys.exit(0 if result.wasSuccessful() else 1)
