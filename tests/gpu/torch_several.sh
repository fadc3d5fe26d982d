#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu/torch_several.sh TEST: a test of tests/torch, with this machine's GPUs as four devices (tests/several), so that each
# rank has a device of its own. With the interpreter $TORCH_PYTHON (python3), where that has torch. $BUILD is what make built, or
# a bundle.
set -eu
cd "$(dirname "$0")/../.."
: "${BUILD:=build}"
python=${TORCH_PYTHON:-python3}
if ! "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null; then
	echo "ok 1 - $1 on four devices # SKIP $python has no torch that sees a GPU"
	echo 1..1
	exit 0
fi
# Torch looks for all of the driver in tests/several's library, which has it from the one of this name.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
driver=$(ldconfig -p | awk '$1 == "libcuda.so.1" && /x86-64/ { print $NF; exit }')
ln -s "$driver" "$folder/libcuda-driver.so.1"
export ZD_SEVERAL=4 ZD_SEVERAL_DRIVER=$driver ZEROD_TEST_BACKEND=cuda ZEROD_TORCH_DEVICE=cuda
build=$(realpath "$BUILD")
export LD_LIBRARY_PATH=$folder:$build/tests/several${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
"$python" "tests/torch/$1"
