#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The examples for GPUs do what their comments promise, on the GPUs that there are: $BUILD is what make built, or a bundle. Those over
# two daemons need two GPUs, and NCCL; the daemons are to reach each other as two nodes do, by sockets.
set -u
cd "$(dirname "$0")/../.." || exit 2
: "${BUILD:=build}"
dir=$(mktemp -d "${TMPDIR:-/tmp}/zerod-test-gpu.XXXXXX") || exit 2
number=0 daemons=

stop() {
	[ -z "$daemons" ] || { kill $daemons && wait $daemons; } 2>/dev/null
	daemons=
}
trap 'stop; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM HUP

zeroctl() { # daemon, what
	"$BUILD/bin/zeroctl" --socket "$dir/$1.sock" "$2"
}

start() { # daemon, options
	local name=$1 deadline=$((SECONDS + 60))
	shift
	NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 "$BUILD/bin/zerod" --foreground --backend cuda --arena 1G --key-file "$dir/key" \
		--socket "$dir/$name.sock" "$@" \
		>"$dir/$name.log" 2>&1 &
	daemons="$daemons $!"
	until zeroctl "$name" status >/dev/null 2>&1 || [ $SECONDS -ge $deadline ]; do sleep 0.02; done
}

result() { # status, name
	number=$((number + 1))
	if [ "$1" -eq 0 ]; then
		echo "ok $number - $2"
	else
		cat "$dir/out" "$dir"/*.log
		echo "not ok $number - $2"
	fi
}

(umask 077 && head -c 32 /dev/urandom >"$dir/key")
start all
gpus=$(zeroctl all devices | grep -c GPU-)
timeout 120 "$BUILD/bin/gpu_gather" "$dir/all.sock" >"$dir/out" 2>&1 &&
	[ "$(grep -cE '^rank [01]: 1000000 of 1000000 numbers are right$' "$dir/out")" -eq 2 ]
result $? "gpu_gather: both ranks see the whole"
stop

two_nodes() { # name; the environment is the caller's
	timeout 200 "$BUILD/bin/two_nodes" "$dir/a.sock" "$dir/b.sock" >"$dir/out" 2>&1 &&
		[ "$(grep -cE ': 600018 of 600018 weights and 600018 of 600018 sums are right$' "$dir/out")" -eq 2 ]
	result $? "$1"
}

if [ "$gpus" -ge 2 ]; then
	umask 022 # a configuration that others may write is refused
	printf '[collectives]\ncheck = yes\ntimeout_s = 60\n' >"$dir/conf"
	start a --config "$dir/conf" --gpus 0
	start b --config "$dir/conf" --gpus 1
	timeout 120 "$BUILD/bin/two_nodes" "$dir/a.sock" "$dir/b.sock" >"$dir/out" 2>&1
	if grep -q 'there is no NCCL' "$dir/out"; then
		echo "# there is no NCCL: nothing over two daemons"
	else
		two_nodes "two_nodes: every number and every sum is right, on both nodes"
		COLLECTIVES=nccl two_nodes "two_nodes: the same with NCCL inside the nodes"
	fi
fi
echo "1..$number"
