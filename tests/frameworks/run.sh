#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of frameworks that tests/torch has not, with the newest versions and with older ones, in virtual environments
# of its own under $BUILD, or with the interpreter that $FRAMEWORKS_PYTHON names. Ends with "N passed, N failed".
set -eu
cd "$(dirname "$0")/../.."
: "${BUILD:=build}" "${FRAMEWORKS_PYTHON:=}"
if [ -n "$FRAMEWORKS_PYTHON" ]; then
	folders=("$(dirname "$(command -v "$FRAMEWORKS_PYTHON")")")
else
	tests/venv.sh frameworks
	tests/venv.sh frameworks older
	folders=("$(realpath "$BUILD")"/venv-frameworks{,-older}/bin)
fi
tests=()
for folder in "${folders[@]}"; do
	for test in tests/frameworks/test_*.py; do # they begin with "env python3"
		# Of torchtitan there is no older version.
		[[ $folder:$test == *-older/bin:*_torchtitan.py ]] || tests+=("PATH=$folder:$PATH $test")
	done
done
# A test trains a dozen times, each time in new processes that import the framework.
export TEST_TIMEOUT=${TEST_TIMEOUT:-1200} ZEROD_TORCH_TEST_TIMEOUT=${ZEROD_TORCH_TEST_TIMEOUT:-300}
PYTHONPATH=tests/torch${PYTHONPATH:+:$PYTHONPATH} exec tests/run.sh "${tests[@]}"
