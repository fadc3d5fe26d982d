#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of zerod.torch, in a virtual environment of its own under $BUILD with a pinned torch from PyPI, or
# with the interpreter that $TORCH_PYTHON names. Ends with "N passed, N failed".
# SHARE=K/N runs the Kth of each N variants and long tests only (0 <= K < N).
set -eu
cd "$(dirname "$0")/../.."
: "${BUILD:=build}" "${TORCH_PYTHON:=}" "${SHARE:=0/1}"
if [ -z "$TORCH_PYTHON" ]; then
	tests/venv.sh torch
	TORCH_PYTHON=$BUILD/venv-torch/bin/python
fi
"$TORCH_PYTHON" -c 'import sys, torch; print("tests/torch: torch", torch.__version__, "on", sys.executable)'
PATH=$(cd "$(dirname "$(command -v "$TORCH_PYTHON")")" && pwd):$PATH # the tests begin with "env python3", and change folders
variants=()
for name in train autograd; do # with slots, and of one rank whose buffers are its shards
	variants+=("ZEROD_TORCH_OPTIONS=slots=True tests/torch/test_$name.py")
	variants+=("ZEROD_TORCH_WORLD=1 ZEROD_POISON=0 tests/torch/test_$name.py")
done
for name in edges edge_changes edge_reads edge_steps scaling; do
	variants+=("ZEROD_TEST_HOST_ARENA=64M ZEROD_TORCH_OPTIONS=offload='all' tests/torch/test_$name.py")
done
variants+=("ZEROD_TEST_HOST_ARENA=64M ZEROD_TORCH_OPTIONS=offload='all',device_budget=3000 tests/torch/test_scaling.py")
for name in gradients kept nested state; do # released buffers are not filled, so gathers are in place
	variants+=("ZEROD_POISON=0 tests/torch/test_$name.py")
done
variants+=("ZEROD_LAG=1 ZEROD_POISON=0 tests/torch/test_halves.py") # and streams lag
variants+=("ZEROD_TORCH_OPTIONS=offload='optimizer' tests/torch/test_halves.py")
tests=()
for test in tests/torch/test_*.py; do
	case $test in
	*/test_budget.py | */test_demo.py | */test_durable.py | */test_examples.py | */test_gradients.py | */test_models.py)
		variants+=("$test") # the longest ones
		;;
	*) tests+=("$test") ;;
	esac
done
for ((i = ${SHARE%/*}; i < ${#variants[@]}; i += ${SHARE#*/})); do
	tests+=("${variants[i]}")
done
# Some run a program a dozen times, each time in new processes that import torch.
SHARE=0/1 TEST_TIMEOUT=${TEST_TIMEOUT:-900} exec tests/run.sh "${tests[@]}"
