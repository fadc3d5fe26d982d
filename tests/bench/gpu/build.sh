#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/bench/gpu/build.sh [FOLDER]: builds the measuring programs, into build/gpu unless a folder is named. Needs CUDA's
# toolkit (CUDA_HOME, or /usr/local/cuda) but no GPU; the programs need the driver, cuBLAS and at least one GPU.
set -eu
cd "$(dirname "$0")/../../.."
out=${1:-build/gpu}
cuda=${CUDA_HOME:-/usr/local/cuda}
here=tests/bench/gpu
flags="-std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -Wshadow -isystem $cuda/include"
mkdir -p "$out"
"$cuda/bin/nvcc" -O2 -arch=sm_90 -cubin -o "$out/gpu_kernels.cubin" $here/gpu_kernels.cu
for program in lifetime listed queues visible; do
	"${CC:-gcc}" $flags -o "$out/gpu_$program" $here/gpu_$program.c $here/gpu_common.c $here/gpu_nvml.c \
		$here/gpu_load.c -L"$cuda/lib64" -L"$cuda/lib64/stubs" -Wl,-rpath,"$cuda/lib64" -lcublas -lcuda -lpthread -ldl
done
