#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of frameworks that tests/torch has not, in a virtual environment of its own under $BUILD, or with the
# interpreter that $FRAMEWORKS_PYTHON names. Ends with "N passed, N failed".
set -eu
cd "$(dirname "$0")/../.."
: "${BUILD:=build}" "${FRAMEWORKS_PYTHON:=}"
if [ -z "$FRAMEWORKS_PYTHON" ]; then
	tests/venv.sh frameworks
	FRAMEWORKS_PYTHON=$BUILD/venv-frameworks/bin/python
fi
PATH=$(dirname "$(command -v "$FRAMEWORKS_PYTHON")"):$PATH # the tests begin with "env python3"
PYTHONPATH=tests/torch${PYTHONPATH:+:$PYTHONPATH} exec tests/run.sh tests/frameworks/test_*.py
