#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu/make_kernels.sh: makes kernels_ptx.h of kernels.cu, with CUDA's nvcc (CUDA_HOME, or /usr/local/cuda). The header
# is kept beside it, so that neither a build nor a machine with GPUs needs the compiler.
set -eu
cd "$(dirname "$0")"
ptx=$(mktemp --suffix=.ptx)
trap 'rm -f "$ptx"' EXIT
"${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" -ptx -arch=compute_80 -o "$ptx" kernels.cu
{
	echo '/* SPDX-License-Identifier: Apache-2.0 */'
	echo '/* kernels_ptx.h - made of kernels.cu by make_kernels.sh: not to be edited. */'
	echo '#ifndef ZD_TESTS_GPU_KERNELS_PTX_H'
	echo '#define ZD_TESTS_GPU_KERNELS_PTX_H'
	echo
	echo '/* clang-format off */'
	echo 'static const char stress_kernels_ptx[] ='
	grep -vE '^ *(//.*)?$' "$ptx" | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/\t/\\t/g' -e 's/^/        "/' -e 's/$/\\n"/'
	echo '        ;'
	echo '/* clang-format on */'
	echo
	echo '#endif'
} >kernels_ptx.h
