#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the documents: prints each link, path and function name that points nowhere; exits 1 if there is one.

In README.md, CONTRIBUTING.md and docs/ each relative link names a file or folder, and each #anchor a heading. In TRACED
each `path` exists, from the root of the repository on, and each `function()` occurs in one of the files that its
paragraph, list item or row of a table names, if it names any.
"""
import glob
import os
import re
import sys

TRACED = ("docs/architecture.md", "docs/adding-a-request.md", "docs/adding-a-transport.md", "docs/performance.md",
          "docs/adr/*.md", "docs/design/*.md")
LINK = re.compile(r"\]\(([^)\s]+)\)")  # its text may begin on another line
CODE = re.compile(r"`([^`\n]+)`")
SUFFIX = re.compile(r"\.(c|h|cu|py|sh|md|map|proto|pml|abi|bash|in|txt)$")
FUNCTION = re.compile(r"^(\w+)\(\)$")


def lines_of(page):
    """(number, line) of what is outside of code blocks."""
    fenced = False
    with open(page, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            elif not fenced:
                yield number, line.rstrip("\n")


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    made, count = set(), {}
    for _, line in lines_of(page):
        heading = re.match(r"#{1,6} +(.*?) *#*$", line)
        if not heading:
            continue
        name = re.sub(r"[^\w\- ]", "", LINK.sub("", heading[1]).lower()).replace(" ", "-")
        made.add(f"{name}-{count[name]}" if name in count else name)
        count[name] = count.get(name, 0) + 1
    return made


def check_links(page):
    """Problems with the links of one page."""
    for number, line in lines_of(page):
        for target in LINK.findall(CODE.sub("code", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if not os.path.exists(path):
                yield f"{page}:{number}: there is no {path}"
            elif anchor and anchor not in anchors(path):
                yield f"{page}:{number}: {path} has no heading #{anchor}"


def is_path(code):
    """Does the text between backticks look like a path: with a slash, or with the ending of a file."""
    return bool(re.fullmatch(r"[\w./*-]+", code)) and ("/" in code or bool(SUFFIX.search(code)))


def items_of(page):
    """(number of the first line, text) of paragraphs, list items and rows of tables."""
    first, item = 0, []
    for number, line in lines_of(page):
        if item and (not line.strip() or re.match(r" *([-*|]|[0-9]+\.) ?", line)):
            yield first, " ".join(item)
            item = []
        if line.strip():
            first = first if item else number
            item.append(line.strip())
    if item:
        yield first, " ".join(item)


def check_names(page):
    """Problems with paths and functions of one page of TRACED."""
    for number, text in items_of(page):
        codes = CODE.findall(text)
        found = {path: glob.glob(path) for path in codes if is_path(path)}
        for path in found:
            if not found[path]:
                yield f"{page}:{number}: there is no {path}"
        files = [name for names in found.values() for name in names if os.path.isfile(name)]
        words = set()
        for name in files:
            with open(name, encoding="utf-8") as file:
                words.update(re.findall(r"\w+", file.read()))
        for code in codes:
            function = FUNCTION.match(code)
            if files and function and function[1] not in words:
                yield f"{page}:{number}: {code} is not in {', '.join(sorted(files))}"


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    pages = ["README.md", "CONTRIBUTING.md", *sorted(glob.glob("docs/**/*.md", recursive=True))]
    problems = [problem for page in pages for problem in check_links(page)]
    traced = [page for pattern in TRACED for page in sorted(glob.glob(pattern))]
    problems += [problem for page in traced for problem in check_names(page)]
    for problem in problems:
        print(f"links: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
