#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints each tracked file that can have comments and does not name its licence near its top; exits 1 if there is one.

REUSE.toml names the holder of all files, and the licence of documents, data and generated files.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".1", ".5", ".8", ".bash", ".c", ".cpp", ".css", ".cu", ".fish", ".h", ".html", ".js", ".map", ".pml", ".proto", ".py", ".service", ".sh", ".socket",
            ".spec", ".toml", ".yml", ".xml", ".conf"}
NAMES = {"Makefile", "run", "rules", "_zerod", "_zeroctl", "_zerobench"}
LINE = re.compile(rb"SPDX-License-" rb"Identifier: Apache-2\.0")  # in two parts: reuse reads this file, too


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        print("no git checkout: licences are not checked")
        return 0
    missing = 0
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if not path.is_file() or not (path.suffix in SUFFIXES or path.name in NAMES):
            continue
        with path.open("rb") as file:
            if not LINE.search(file.read(400)):
                print(f"{name}: its licence (Apache-2.0) is not named near the top by an SPDX line")
                missing += 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
