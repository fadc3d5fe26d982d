#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# zerod.torch on this machine's GPUs, with the interpreter $TORCH_PYTHON (python3), where that has torch.
set -u
cd "$(dirname "$0")/../.." || exit 2
python=${TORCH_PYTHON:-python3}
if ! "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null; then
	echo "ok 1 - zerod.torch on GPUs # SKIP $python has no torch that sees a GPU"
	echo 1..1
	exit 0
fi
export ZEROD_TEST_BACKEND=cuda ZEROD_TORCH_DEVICE=cuda
exec "$python" tests/gpu/test_torch.py "$@"
