#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu/run.sh [SECONDS] [FOLDER] [PATTERN]: what has to be seen on real GPUs, on however many there are: the library's kernels and their
# bandwidths, the contract suite, also with all units in host memory, the same with its ranks in two daemons and under NCCL's collectives where there are two GPUs and
# NCCL is found, the suite again on four devices, also of two daemons, where there are fewer GPUs (tests/several), and the tests
# of zerod.torch on them, strict clients' stale views, the daemon's communicators where NCCL is found, the examples, memory that goes back, and the stress: plain, with
# trainers killed, with strict trainers, and beside matrix products (WITHOUT_LOAD=1 leaves these out, where there is no cuBLAS),
# SECONDS each, 60 by default. With PATTERN (grep -E) the commands of those that match it. JOBS programs run at a time (1). FOLDER is what make built, or a bundle; without it, the bundle that this script lies in, else
# build. Needs no compiler. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 2
seconds=${1:-60}
folder=${2:-$([ -x bin/zerod ] && echo . || echo build)}
folder=$(cd "$folder" && pwd) || exit 2
stress=$folder/tests/gpu/stress
strict=$folder/tests/gpu/strict
kernels=$folder/tests/gpu/kernels
comm=$folder/tests/gpu/comm
contract=("$folder"/tests/contract/test_*)
if [ ! -x "$stress" ]; then # a bundle keeps tests in one folder
	stress=$folder/tests/gpu-stress
	strict=$folder/tests/gpu-strict
	kernels=$folder/tests/gpu-kernels
	comm=$folder/tests/gpu-comm
	contract=("$folder"/tests/contract-test_*)
fi
[ -x "$stress" ] && [ -x "${contract[0]}" ] || { echo "tests/gpu/run.sh: $folder has no tests: make tests, or make bundle" >&2; exit 2; }

if command -v nvidia-smi >/dev/null; then
	nvidia-smi --query-gpu=index,name,uuid,driver_version,compute_mode --format=csv,noheader
	nvidia-smi topo -m 2>/dev/null | sed -n '1,12p'
fi
# The path of a library as the loader finds it; nothing if it does not.
find_library() {
	local folder
	for folder in ${LD_LIBRARY_PATH//:/ }; do
		[ -e "$folder/$1" ] && { echo "$folder/$1"; return; }
	done
	ldconfig -p 2>/dev/null | awk -v name="$1" '$1 == name && /x86-64/ { print $NF; exit }'
}
visible=${CUDA_VISIBLE_DEVICES-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null)}
gpus=$(wc -w <<<"${visible//,/ }")
nccl=$(find_library libnccl.so.2)
sockets="NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo" # to NCCL, each of the suite's daemons is a node

commands=("$kernels --measure")
for test in "${contract[@]}"; do
	commands+=("ZEROD_TEST_BACKEND=cuda ZEROD_TEST_KEEP_DAEMON=1 $test")
	case $test in
	*test_alone | *test_device_uuid | *test_room | *test_structures) ;; # of other buffers, devices, room and flags
	*) commands+=("ZEROD_TEST_PLACEMENT=host ZEROD_TEST_BACKEND=cuda ZEROD_TEST_KEEP_DAEMON=1 $test") ;;
	esac
done
if [ -n "$nccl" ] && [ "$gpus" -ge 2 ]; then
	for test in "${contract[@]}"; do
		commands+=("ZEROD_TEST_BACKEND=cuda ZEROD_TEST_DAEMONS=2 ZEROD_TEST_KEEP_DAEMON=1 $sockets $test")
		commands+=("ZEROD_TEST_BACKEND=cuda ZEROD_TEST_COLLECTIVES=nccl ZEROD_TEST_KEEP_DAEMON=1 $test")
	done
fi
# The GPUs as four devices. NCCL wants a GPU for each rank of a node, so its collectives are left out.
if [ "$gpus" -lt 4 ]; then
	four="ZD_SEVERAL=4 ZD_SEVERAL_DRIVER=$(find_library libcuda.so.1)"
	four+=" LD_LIBRARY_PATH=$folder/tests/several${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
	for test in "${contract[@]}"; do
		commands+=("$four ZEROD_TEST_BACKEND=cuda ZEROD_TEST_KEEP_DAEMON=1 $test")
		[ -z "$nccl" ] || commands+=("$four ZEROD_TEST_BACKEND=cuda ZEROD_TEST_DAEMONS=2 ZEROD_TEST_KEEP_DAEMON=1 $sockets $test")
	done
	commands+=("$four $stress --seconds $seconds")
	for test in tests/torch/test_*.py; do
		commands+=("tests/gpu/torch_several.sh ${test##*/}")
	done
	for name in train autograd; do
		commands+=("ZEROD_TORCH_OPTIONS=slots=True tests/gpu/torch_several.sh test_$name.py")
	done
fi
commands+=("$strict" "$comm" tests/gpu/examples.sh tests/gpu/shrink.sh tests/gpu/torch.sh "$stress --seconds $seconds" "$stress --seconds $seconds --kill" "$stress --seconds $seconds --strict")
[ "${WITHOUT_LOAD:-0}" = 1 ] || commands+=("$stress --seconds $seconds --load gemm:8192")
if [ -n "${3-}" ]; then
	mapfile -t commands < <(printf '%s\n' "${commands[@]}" | grep -E -- "$3")
fi
BUILD=$folder TEST_TIMEOUT=$((seconds + 900)) JOBS=${JOBS:-1} tests/run.sh "${commands[@]}"
status=$?
grep -hE '^(stress|in all):' "$folder"/logs/*stress*.log
grep -hE '^# (sum|cast) of' "$folder"/logs/*kernels*.log
exit $status
