#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/venv.sh NAME: a virtual environment $BUILD/venv-NAME with tests/NAME/requirements.txt, made anew when that has changed.
# A comment "--no-deps: PACKAGES" there names packages to install without what they require, and "size: N GB" the environment's.
# tests/venv.sh NAME VARIANT: $BUILD/venv-NAME-VARIANT with tests/NAME/requirements-VARIANT.txt in front of the packages of NAME.
set -eu
cd "$(dirname "$0")/.."
: "${BUILD:=build}" "${PYTHON:=python3}"
wanted=tests/$1/requirements${2:+-$2}.txt venv=$BUILD/venv-$1${2:+-$2}
cmp -s "$wanted" "$venv/requirements.txt" && exit
size=$(sed -n 's/^# size: //p' "$wanted")
alone=$(sed -n 's/^# --no-deps: //p' "$wanted")
echo "tests/$1: making $venv with $(grep -v '^#' "$wanted" | tr '\n' ' ')$alone: about ${size:-${2:+0.}5 GB}"
rm -rf "$venv"
"$PYTHON" -m venv "$venv"
if [ -n "${2:-}" ]; then
	realpath "$BUILD/venv-$1"/lib/python3*/site-packages >"$(echo "$venv"/lib/python3*/site-packages)/first.pth"
fi
"$venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
# shellcheck disable=SC2086 # its words
[ -z "$alone" ] || "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps $alone
cp "$wanted" "$venv/requirements.txt"
