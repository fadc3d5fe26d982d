#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the patches again that do not apply since code has moved: where the same lines are now, in whichever file.

    tests/mutants/remake.py     from the root; exits 1 when there are patches that a person has to make again

A hunk is placed by the lines that it changes, with as little of its context as makes the place unique. A patch whose
lines have changed, or are in several places, is named and left as it is.
"""
from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path
from typing import Optional

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
CONTEXT_LINES = 1


def applies(patch: Path) -> bool:
    return subprocess.run(["patch", "--dry-run", "-p1", "-s", "-f", "-i", patch], cwd=ROOT, capture_output=True).returncode == 0


def sources() -> dict[str, str]:
    named = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "common", "proto", "daemon", "client"], cwd=ROOT,
                           check=True, capture_output=True, text=True).stdout.split()
    return {name: (ROOT / name).read_text() for name in named if re.search(r"\.[ch]$", name) and (ROOT / name).exists()}


def hunks(text: str) -> list[list[str]]:
    found: list[list[str]] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("@@"):
            found.append([])
        elif found and line[0] in " +-" and not line.startswith(("--- ", "+++ ")):
            found[-1].append(line)
    return found


def place(hunk: list[str], files: dict[str, str]) -> Optional[tuple[str, str]]:
    """(file, its text with the hunk applied), where there is one place only."""
    changed = [i for i, line in enumerate(hunk) if line[0] in "+-"]
    for context in range(CONTEXT_LINES + 1):
        part = hunk[max(changed[0] - context, 0):changed[-1] + 1 + context]
        old = "".join(line[1:] for line in part if line[0] != "+")
        new = "".join(line[1:] for line in part if line[0] != "-")
        if old.strip() and sum(text.count(old) for text in files.values()) == 1:
            name = next(name for name, text in files.items() if old in text)
            return name, files[name].replace(old, new)
    return None


def remake(patch: Path, files: dict[str, str]) -> bool:
    text = patch.read_text()
    edited = dict(files)
    for hunk in hunks(text):
        placed = place(hunk, edited)
        if placed is None:
            return False
        edited[placed[0]] = placed[1]
    made = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    for name in sorted(name for name in files if edited[name] != files[name]):
        made += "".join(difflib.unified_diff(files[name].splitlines(keepends=True), edited[name].splitlines(keepends=True),
                                             "a/" + name, "b/" + name, n=CONTEXT_LINES))
    patch.write_text(made)
    return True


def main() -> int:
    files, left = sources(), 0
    for patch in sorted(FOLDER.glob("*.patch")):
        if applies(patch):
            continue
        made = remake(patch, files)
        print(f"{'made' if made else 'LEFT'} {patch.name}")
        left += not made
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main())
