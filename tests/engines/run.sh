#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of zerod.vllm, zerod.sglang, zerod.verl and zerod.trl with the real engines, in a virtual environment of its own
# under $BUILD, or with the interpreter that $ENGINES_PYTHON names. Ends with "N passed, N failed".
set -eu
cd "$(dirname "$0")/../.."
: "${BUILD:=build}" "${ENGINES_PYTHON:=}"
if [ -z "$ENGINES_PYTHON" ]; then
	tests/venv.sh engines
	ENGINES_PYTHON=$BUILD/venv-engines/bin/python
fi
PATH=$(cd "$(dirname "$(command -v "$ENGINES_PYTHON")")" && pwd):$PATH # the tests begin with "env python3"
# With the package's metadata, in which vLLM finds the plug-in.
python3 client/python/backend.py modules "$BUILD/engines-modules"
# Each engine needs a minute to start.
export TEST_TIMEOUT=${TEST_TIMEOUT:-1200} ZEROD_TORCH_TEST_TIMEOUT=${ZEROD_TORCH_TEST_TIMEOUT:-400}
PYTHONPATH=$(realpath "$BUILD/engines-modules"):$PWD/tests/engines:$PWD/tests/torch exec tests/run.sh tests/engines/test_*.py
