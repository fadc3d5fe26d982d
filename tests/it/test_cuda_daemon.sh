#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The daemon on GPUs, over the driver's double: which it takes, what it refuses, what it tells.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}"
bin=$BUILD/bin
double=$(cd "$BUILD/tests/double" && pwd)
dir=$(mktemp -d) || exit 2
socket=$dir/zerod.sock
pid=
trap '[ -n "$pid" ] && kill "$pid" && wait "$pid"; rm -rf "$dir"' EXIT
zerod() { # options; the environment is the caller's
	(LD_LIBRARY_PATH=$double exec "$bin/zerod" --foreground --socket "$socket" "$@" >"$dir/log" 2>&1)
}

# Starts the daemon and waits until it listens; it ends by itself when it cannot.
start() {
	LD_LIBRARY_PATH=$double "$bin/zerod" --foreground --socket "$socket" "$@" >"$dir/log" 2>&1 &
	pid=$!
	until "$bin/zeroctl" --socket "$socket" status >"$dir/status" 2>&1; do
		kill -0 "$pid" 2>"$dir/gone" || return 1
	done
}
stop() {
	kill "$pid"
	wait "$pid"
	local rc=$?
	pid=
	return $rc
}
devices() {
	"$bin/zeroctl" --socket "$socket" devices | awk 'NR > 1 { printf "%s ", $2 }'
}
gpu() { # index
	printf 'GPU-%08x-d00b-4e00-8000-%012x' $((0x7a65726f + $1)) "$1"
}

start --backend auto --arena 64M
[ "$(devices)" = "$(gpu 0) $(gpu 1) $(gpu 2) $(gpu 3) " ]
report $? "auto takes all GPUs, by their UUIDs"
grep -q "device 3: $(gpu 3), " "$dir/log" && grep -q 'serves 4 cuda devices of 64 MiB' "$dir/log" &&
	! grep -q 'is not used' "$dir/log"
report $? "the log says which device is which GPU"
"$bin/zeroctl" --socket "$socket" devices --columns model,pci --raw --no-headings >"$dir/out"
[ "$(sed -n '1p;4p' "$dir/out")" = 'zerod\x20driver\x20double 0000:1b:00.0
zerod\x20driver\x20double 0000:1e:00.0' ]
report $? "zeroctl shows the GPUs' model and PCI addresses"
LD_LIBRARY_PATH=$double "$bin/zeroctl" --socket "$socket" self-test >"$dir/out" 2>&1 && grep -q "device 0, $(gpu 0)" "$dir/out" &&
	! "$bin/zeroctl" --socket "$socket" self-test 2>"$dir/out" && grep -q 'device: NOT_FOUND: there is no CUDA driver' "$dir/out"
report $? "a self-test uses the first, or says that its process has no driver"
stop
report $? "it ends in order"

start --backend cuda --devices 3 --arena 64M
grep -q 'count = 3 is not used: the devices are GPUs' "$dir/log" && [ "$(devices | wc -w)" -eq 4 ]
report $? "a number of emulated devices is told to be of no use"
stop
start --backend host --gpus 0,1 --nccl /lib/libother.so --arena 64M
grep -q 'gpus = 0,1 is not used: the devices are emulated' "$dir/log" &&
	grep -q 'nccl = /lib/libother.so is not used: the devices are emulated' "$dir/log"
report $? "so are a list of GPUs and NCCL's library where the devices are emulated"
stop

start --backend cuda --gpus "3 $(gpu 1)"
[ "$(devices)" = "$(gpu 3) $(gpu 1) " ] && grep -q 'serves 2 cuda devices of 3.199 GiB' "$dir/log"
report $? "a list of GPUs, and arenas of 80 % by default"
stop

zerod --backend cuda --arena 5G
[ $? -eq 2 ] && grep -q "requested an arena of 5 GiB, device 0 ($(gpu 0)) has 4 GiB" "$dir/log"
report $? "an arena larger than the GPU is refused, with both sizes"

zerod --backend cuda --arena 64M --host-arena 512T
[ $? -eq 2 ] && grep -q "host_arena: 512 TiB for each of [0-9]* NUMA nodes, and the machine has [0-9]" "$dir/log"
report $? "a host arena larger than the machine's memory is refused, with both sizes"
zerod --backend host --arena 64M --host-arena 512T
[ $? -eq 2 ] && grep -q "requested a host arena of 512 TiB, found [0-9.]* [KMGT]iB of memory" "$dir/log"
report $? "so it is where the devices are emulated"

# The group where the daemon runs, and the file of its limit. Only root may make one, and not everywhere.
group=/sys/fs/cgroup/memory/zerod-test-$$ limit=memory.limit_in_bytes
[ -d /sys/fs/cgroup/memory ] || group=/sys/fs/cgroup/zerod-test-$$ limit=memory.max
what="a host arena larger than the control group's limit is refused, with both sizes"
if mkdir "$group" && echo 512M >"$group/$limit" && (echo "$BASHPID" >"$group/cgroup.procs"); then
	(echo "$BASHPID" >"$group/cgroup.procs" && zerod --backend cuda --arena 64M --host-arena 1G)
	[ $? -eq 2 ] && grep -q "host_arena: 1 GiB for each of [0-9]* NUMA nodes, and the daemon's control group is limited to 512 MiB ($group/$limit; " "$dir/log"
	report $? "$what"
	rmdir "$group"
else
	rmdir "$group"
	skipped "$what" "no control group can be made"
fi 2>"$dir/group"

ZD_DOUBLE_COMPUTE_MODE=3 zerod --backend cuda
[ $? -eq 2 ] && grep -q 'EXCLUSIVE_PROCESS: trainers cannot use the GPU while the daemon runs' "$dir/log"
report $? "a GPU for one process is refused"

ZD_DOUBLE_VERSION=11080 zerod --backend cuda
[ $? -eq 1 ] && grep -q 'the CUDA driver is for CUDA 11.8, 12.0 or newer is needed' "$dir/log"
report $? "a driver that is too old is refused"

CUDA_VISIBLE_DEVICES=2 start --backend cuda
[ "$(devices)" = "$(gpu 2) " ]
report $? "hidden GPUs are not taken"
stop

ZD_DOUBLE_DEVICES=0 start --backend auto
grep -q 'backend host: the CUDA driver shows this process no GPU' "$dir/log" && [ "$(devices)" = "host0 " ]
report $? "auto without a GPU is host, and says why"
stop

ZD_DOUBLE_NO_PEER=0-1 start --backend cuda --gpus 0,1
grep -q "device 0 ($(gpu 0)) cannot reach the memory of device 1 ($(gpu 1)): copies pass through the host" "$dir/log"
report $? "GPUs that do not reach each other are named"
stop
finish
