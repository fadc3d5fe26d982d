#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of frameworks that tests/torch has not, in a virtual environment of its own under $BUILD, or with the
# interpreter that $FRAMEWORKS_PYTHON names. Ends with "N passed, N failed".
set -eu
cd "$(dirname "$0")/../.."
: "${BUILD:=build}" "${PYTHON:=python3}" "${FRAMEWORKS_PYTHON:=}"
if [ -z "$FRAMEWORKS_PYTHON" ]; then
	venv=$BUILD/venv-frameworks
	FRAMEWORKS_PYTHON=$venv/bin/python
	if ! cmp -s tests/frameworks/requirements.txt "$venv/requirements.txt"; then
		echo "tests/frameworks: making $venv with $(tr '\n' ' ' <tests/frameworks/requirements.txt): about 5 GB"
		rm -rf "$venv"
		"$PYTHON" -m venv "$venv"
		"$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/frameworks/requirements.txt
		cp tests/frameworks/requirements.txt "$venv/requirements.txt"
	fi
fi
PATH=$(dirname "$(command -v "$FRAMEWORKS_PYTHON")"):$PATH # the tests begin with "env python3"
PYTHONPATH=tests/torch${PYTHONPATH:+:$PYTHONPATH} exec tests/run.sh tests/frameworks/test_*.py
