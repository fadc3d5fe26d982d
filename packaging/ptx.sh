#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# packaging/ptx.sh [--check]: makes the headers with PTX of each kernels.cu, by CUDA's nvcc ($NVCC). They are kept beside the
# source, so that neither a build nor a machine with GPUs needs the compiler. --check makes nothing, and fails if one of them is
# not what it would make; it says so and passes where there is no nvcc, or another release than the one that made them.
set -eu
cd "$(dirname "$0")/.."
: "${NVCC=}"
# The oldest PTX that has all that the kernels use, so that the oldest driver reads it; ptxas says if something is newer.
PTX_VERSION=8.0
check=0
[ "${1:-}" = --check ] && check=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -z "$NVCC" ]; then
	echo 'ptx: no nvcc (CUDA_HOME, or NVCC=)'
	exit $((!check))
fi
release=$("$NVCC" --version | sed -n 's/^Cuda compilation tools, release .*, //p')

make_ptx() { # source
	"$NVCC" -ptx -arch=compute_80 -fmad=false -allow-unsupported-compiler -I. -o "$work/all.ptx" "$1"
	sed -e "s/^\.version .*/.version $PTX_VERSION/" -e '/^[[:space:]]*\(\/\/.*\)\?$/d' "$work/all.ptx" >"$work/ptx"
	"${NVCC%nvcc}ptxas" -arch=sm_80 -o "$work/cubin" "$work/ptx"
}

write_header() { # header, name
	local guard
	guard=ZD_$(echo "${1%.h}" | tr 'a-z/' 'A-Z_')_H
	echo '/* SPDX-License-Identifier: Apache-2.0 */'
	echo "/* ${1##*/} - made of kernels.cu by packaging/ptx.sh, with nvcc $release: not to be edited. */"
	echo "#ifndef $guard"
	echo "#define $guard"
	echo
	echo '/* clang-format off */'
	echo "static const char ${2}[] ="
	sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/\t/\\t/g' -e 's/^/"/' -e 's/$/\\n"/' "$work/ptx"
	echo ';'
	echo '/* clang-format on */'
	echo
	echo '#endif'
}

update() { # source, name
	local header=${1%.cu}_ptx.h
	if [ $check = 1 ] && ! grep -qF "nvcc $release:" "$header"; then
		echo "ptx: $header is not nvcc $release's: not compared"
		return
	fi
	make_ptx "$1"
	write_header "$header" "$2" >"$work/header"
	if [ $check = 0 ]; then
		cp "$work/header" "$header"
	elif ! cmp -s "$work/header" "$header"; then
		echo "ptx: $header is not made of $1: make ptx" >&2
		exit 1
	fi
}

update client/kernels/kernels.cu zc_kernels_ptx
update tests/gpu/kernels.cu stress_kernels_ptx
