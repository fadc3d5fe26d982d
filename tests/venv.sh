#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/venv.sh NAME: a virtual environment $BUILD/venv-NAME with tests/NAME/requirements.txt, made anew when that has changed.
set -eu
cd "$(dirname "$0")/.."
: "${BUILD:=build}" "${PYTHON:=python3}"
wanted=tests/$1/requirements.txt venv=$BUILD/venv-$1
cmp -s "$wanted" "$venv/requirements.txt" && exit
echo "tests/$1: making $venv with $(tr '\n' ' ' <"$wanted"): about 5 GB"
rm -rf "$venv"
"$PYTHON" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
cp "$wanted" "$venv/requirements.txt"
