#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/prose.py [PATH...]: lists comments and docstrings that open with a pronoun instead of the name of an actor.

"Who breaks it hangs" leaves open whether a client, a rank or a thread is meant; "A rank that breaks it hangs" does not.
In headers, comments must not open with a question or an ellipsis either: a predicate's comment says "Whether the rank ...",
not "Has it ...", and a function's comment begins with its verb.
Without a PATH (a file or a folder) all files of the repository are read. The exit status is 1 where there are any.
"""
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPENINGS = r"(Who|Whoever|Whom|Whose|What|Whatever|Such|Those)\b"
C_LIKE = re.compile(r"(/\*+|//)[\s*]*" + OPENINGS)
IN_HEADERS = re.compile(r"(/\*+|//)[\s*]*(It|Its|Have|Has|Was|Were|Is|Are|May|Nothing|They|One)\b")
DOCSTRING = re.compile(r'^\s*[rf]?"""\s*' + OPENINGS, re.M)
HASH = re.compile(r"(^|\s)#+ *" + OPENINGS, re.M)
SUFFIXES = {**dict.fromkeys((".c", ".cu", ".proto", ".def"), (C_LIKE,)), ".h": (C_LIKE, IN_HEADERS), ".py": (HASH, DOCSTRING),
            ".sh": (HASH,), ".bash": (HASH,), ".service": (HASH,), ".conf": (HASH,)}


def hash_comments_only(text: str) -> str:
    """The lines behind a comment's first one are blanked: only that one opens it."""
    lines, inside = [], False
    for line in text.split("\n"):
        is_comment = line.lstrip().startswith("#")
        lines.append("" if is_comment and inside else line)
        inside = is_comment
    return "\n".join(lines)


def find(path: Path) -> list[str]:
    patterns = SUFFIXES.get(path.suffix, (HASH,) if path.name == "Makefile" else ())
    if not patterns:
        return []
    text = path.read_text(errors="replace")
    found = []
    for pattern in patterns:
        source = hash_comments_only(text) if pattern is HASH else text
        for match in pattern.finditer(source):
            start = match.start(match.lastindex or 0)
            line = source.count("\n", 0, start) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}: {source[start:source.find(chr(10), start)].strip()[:80]}")
    return found


def main() -> None:
    listed = subprocess.run(["git", "ls-files", "--", *sys.argv[1:]], cwd=ROOT, capture_output=True, text=True, check=True)
    found = [each for name in listed.stdout.split("\n") if name and (ROOT / name).is_file() for each in find(ROOT / name)]
    print("\n".join(found) if found else "no comment opens with a pronoun or a question")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
