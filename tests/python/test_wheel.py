#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The wheel: made by `make wheel`'s program and by pip, without a network, and imported from where it is installed."""
from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile
from pathlib import Path

import support

PACKAGE = support.ROOT / "client" / "python"
HEADER = (support.ROOT / "include" / "zerod.h").read_text()
VERSION = ".".join(re.findall(r"^#define ZEROD_VERSION_\w+ (\d+)$", HEADER, re.MULTILINE))
INFO = f"zerod-{VERSION}.dist-info"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input"]

# Run where only the installed package can be found: the library that it loads, and its talk with a daemon.
PROGRAM = """
import sys, zerod, zerod.library
with zerod.Client(sys.argv[1]) as client, client.join(job="wheel") as group:
    unit = group.register("unit", zerod.DType.FLOAT32, 8)
    print(zerod.__file__, zerod.version(), unit.shard().true_numel)
print([line.split()[-1] for line in open("/proc/self/maps") if "libzerod" in line][0])
"""

PRIVATE = """
import zerod
with zerod.Client(private=True) as client, client.join(job="wheel") as group:
    unit = group.register("unit", zerod.DType.FLOAT32, 8)
    with group.updating([unit]):
        pass
    with unit.gathered():
        print("gathered")
"""


def run(*command: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("ZEROD_LIBRARY", "PYTHONPATH")}
    done = subprocess.run(command, env={**kept, "BUILD": str(support.BUILD), **environment}, cwd="/", text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}")
    return done.stdout


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        global daemon
        daemon = support.Daemon(devices=1).__enter__()
        cls.addClassCleanup(daemon.__exit__)

    def works(self, folder: Path) -> None:
        """The package in the folder loads the library beside it, and talks to a daemon."""
        package, library = run(sys.executable, "-c", PROGRAM, daemon.socket, PYTHONPATH=str(folder)).splitlines()
        self.assertEqual(package, f"{folder}/zerod/__init__.py 2000 8")
        self.assertEqual(library, f"{folder}/zerod/libzerod.so.0")

    def test_program(self) -> None:
        """backend.py's wheel: a tag of this platform, all modules, the same bytes each time; unpacked it works"""
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            made = [Path(run(sys.executable, str(PACKAGE / "backend.py"), "wheel", f"{folder}/{i}").strip()) for i in "ab"]
            self.assertEqual(made[0].read_bytes(), made[1].read_bytes())
            self.assertRegex(made[0].name, rf"^zerod-{re.escape(VERSION)}-py3-none-linux_\w+\.whl$")
            with zipfile.ZipFile(made[0]) as wheel:
                names = set(wheel.namelist())
                wheel.extractall(folder / "into")
            sources = {path.relative_to(PACKAGE).as_posix() for path in (PACKAGE / "zerod").rglob("*.py")}
            self.assertEqual(names - sources, {"zerod/py.typed", "zerod/libzerod.so.0", f"{INFO}/METADATA", f"{INFO}/WHEEL",
                                               f"{INFO}/entry_points.txt", f"{INFO}/RECORD"})
            self.assertLessEqual(sources, names)
            self.works(folder / "into")

    def test_pip(self) -> None:
        """pip makes the same wheel, to the byte, and what it installs from it works"""
        if importlib.util.find_spec("pip") is None:
            self.skipTest(f"{sys.executable} has no pip")
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            run(*PIP, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", f"{folder}/wheels", str(PACKAGE))
            (wheel,) = (folder / "wheels").iterdir()
            ours = Path(run(sys.executable, str(PACKAGE / "backend.py"), "wheel", f"{folder}/ours").strip())
            self.assertEqual((wheel.name, wheel.read_bytes()), (ours.name, ours.read_bytes()))
            run(*PIP, "install", "--no-index", "--no-deps", "--target", f"{folder}/into", str(wheel))
            self.works(folder / "into")

    def test_install(self) -> None:
        """install puts the same files under a prefix, in place of what an earlier one has left"""
        with tempfile.TemporaryDirectory() as prefix:
            command = (sys.executable, str(PACKAGE / "backend.py"), "install", prefix)
            folder = Path(run(*command).strip()).parent
            (folder / "zerod" / "left_over.py").write_text("")
            (folder / "zerod-0.0.9.dist-info").mkdir()
            run(*command)
            self.assertFalse((folder / "zerod" / "left_over.py").exists())
            self.assertEqual({path.name for path in folder.iterdir()}, {"zerod", INFO})
            self.works(folder)

    def test_modules(self) -> None:
        """modules leaves the library to the loader"""
        with tempfile.TemporaryDirectory() as folder:
            package = Path(run(sys.executable, str(PACKAGE / "backend.py"), "modules", folder, BUILD="/nowhere").strip())
            self.assertFalse((package / "libzerod.so.0").exists())
            self.assertNotIn("libzerod", (package.parent / INFO / "RECORD").read_text())
            self.assertIn("Tag: py3-none-any\n", (package.parent / INFO / "WHEEL").read_text())
            run(sys.executable, "-c", PROGRAM, daemon.socket, PYTHONPATH=folder, LD_LIBRARY_PATH=str(support.BUILD / "lib"))

    def test_no_library(self) -> None:
        """without a built library there is no wheel, and the text says what builds it"""
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(AssertionError, "lib/libzerod.so.0 does not exist: `make` builds it"):
                run(sys.executable, str(PACKAGE / "backend.py"), "wheel", folder, BUILD=folder)
            self.assertEqual(os.listdir(folder), [])


@unittest.skipUnless("ZEROD_WHEEL" in os.environ, "make check-wheel makes the wheel")
class Programs(unittest.TestCase):
    def test_alone(self) -> None:
        """the wheel with programs needs nothing but pip: its scripts run, and a job starts the daemon that is inside"""
        if importlib.util.find_spec("pip") is None:
            self.skipTest(f"{sys.executable} has no pip")
        wheel = support.ROOT / os.environ["ZEROD_WHEEL"]
        self.assertRegex(wheel.name, rf"^zerod-{re.escape(VERSION)}-py3-none-manylinux_2_28_\w+\.whl$")
        self.assertLess(wheel.stat().st_size, 15 << 20)
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as opened:
            licences = {name.rsplit("/", 1)[1] for name in opened.namelist() if f"{INFO}/licenses/" in name}
            libraries = {f"lib{name}-dev" for name in ("uv1", "protobuf-c", "gcrypt20", "gpg-error", "inih", "jansson", "ncurses")}
            self.assertLessEqual({"LICENSE", "LGPL-2.1", "zlib1g-dev", "ziglang"} | libraries, licences)
            run(*PIP, "install", "--no-index", "--no-deps", "--target", f"{folder}/into", str(wheel))
            alone = {"PYTHONPATH": f"{folder}/into", "PATH": f"{folder}/into/bin:/usr/bin:/bin", "BUILD": "/nowhere",
                     "ZEROD_SOCKET": "", "ZEROD_PRIVATE": "1", "XDG_RUNTIME_DIR": folder}
            for program in ("zerod", "zeroctl", "zerobench"):
                self.assertIn(VERSION, run(program, "--version", **alone))
            self.assertIn("gathered", run(sys.executable, "-c", PRIVATE, **alone))
            while any(name.startswith("zerod-") for name in os.listdir(folder)):
                time.sleep(0.01)

    def test_audit(self) -> None:
        """auditwheel finds the platform tag right: nothing newer or other is needed"""
        wheel = support.ROOT / os.environ["ZEROD_WHEEL"]
        said = run(sys.executable, "-m", "auditwheel", "show", str(wheel), PYTHONPATH=os.environ["AUDITWHEEL"])
        self.assertIn(f'platform tag: "{wheel.stem.rsplit("-", 1)[1]}"', " ".join(said.split()))


if __name__ == "__main__":
    support.main()
