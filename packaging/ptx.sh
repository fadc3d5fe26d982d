#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# packaging/ptx.sh [--check]: makes generated/kernels.ptx beside each kernels.cu, by CUDA's nvcc ($NVCC). The files are committed, so that
# neither a build nor a machine with GPUs needs the compiler. --check writes nothing, and fails if a file differs from what nvcc makes; it
# prints a line and passes where there is no nvcc, or one of another release than RELEASE.
set -eu
cd "$(dirname "$0")/.."
: "${NVCC=}"
# The nvcc that makes the committed files. Another release writes other text: change this line together with the files.
RELEASE=V13.0.88
# The oldest PTX that has all that the kernels use, so that the oldest driver reads it; ptxas fails if the kernels need a newer one.
# Hints of a newer one are left out.
PTX_VERSION=8.0
check=0
[ "${1:-}" = --check ] && check=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -z "$NVCC" ]; then
	echo 'ptx: no nvcc (CUDA_HOME, or NVCC=)'
	exit $((!check))
fi
found=$("$NVCC" --version | sed -n 's/^Cuda compilation tools, release .*, //p')
if [ "$found" != "$RELEASE" ]; then
	echo "ptx: nvcc is $found, and RELEASE in packaging/ptx.sh is $RELEASE"
	exit $((!check))
fi

for source in client/kernels/kernels.cu tests/gpu/kernels.cu; do
	ptx=$(dirname "$source")/generated/kernels.ptx
	"$NVCC" -ptx -arch=compute_80 -fmad=false -allow-unsupported-compiler -I. -o "$work/all" "$source"
	sed -e "s/^\.version .*/.version $PTX_VERSION/" -e '/^[[:space:]]*\(\/\/.*\|\.pragma "used_bytes_mask.*\)\?$/d' "$work/all" >"$work/ptx"
	"${NVCC%nvcc}ptxas" -arch=sm_80 -o "$work/cubin" "$work/ptx"
	if [ $check = 0 ]; then
		cp "$work/ptx" "$ptx"
	elif ! cmp -s "$work/ptx" "$ptx"; then
		echo "ptx: $ptx is not made of $source: make ptx" >&2
		exit 1
	fi
done
