#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The small examples say what their comments promise, and leave nothing behind but the durable job of one of them.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}"
bin=$BUILD/bin
make_dir examples

run() { # example: its lines, sorted, go to $dir/out
	timeout 120 "$bin/$1" "$socket" >"$dir/unsorted" 2>"$dir/err"
	local status=$?
	LC_ALL=C sort "$dir/unsorted" >"$dir/out"
	cat "$dir/out" "$dir/err"
	return $status
}

says() { # line... that are all there is, in the order of sort
	diff <(printf '%s\n' "$@") "$dir/out"
}

list_jobs() { "$bin/zeroctl" --socket "$socket" jobs --json; }

start_daemon --backend host --devices 2 --arena 64M
report $? "a daemon starts"

run leases && says '3 steps of 4 layers in 2 slots: 0 addresses changed' 'a persistent copy is still there' \
	'after it: 0 bytes' 'before the last release: 4096 bytes' 'once more: NOT_HELD' 'two holders, one buffer'
report $? "leases: tags, uses, slots, persistence"

run gradients && says 'rank 0 held 4096 bytes of targets, holds 0' \
	'rank 0, step 1: weight 1.5, expert 1, norm squared 3328' 'rank 1 held 4096 bytes of targets, holds 0' \
	'rank 1, step 1: weight 1.5, expert 1, norm squared 3328'
report $? "gradients: producers, a skip, a target that goes with its step"

run hello_gather && says 'rank 0 owns elements 0 to 63 and sees 0 to 127' 'rank 1 owns elements 64 to 127 and sees 0 to 127'
report $? "hello_gather: gathers on both ranks"
run fallback && grep -q 'claim holds .* at the same place' "$dir/out" && grep -q 'after the backward: 0 bytes' "$dir/out"
report $? "fallback: the backward finds what the forward has gathered"

run strict && says 'normal, after the release: read' 'normal, before the release: read' \
	'strict, after the release: fault' 'strict, before the release: read'
report $? "strict: a stale view faults"

run commits
status=$?
job=$(sed -n 's/^to end it: zeroctl end-job //p' "$dir/out")
[ $status -eq 0 ] && grep -qx 'goes on after step 1: version 1, first element 1, last 1' "$dir/out"
report $? "commits: the last commit outlives a death inside an update"
list_jobs | grep -q "\"$job\"" && "$bin/zeroctl" --socket "$socket" end-job "$job"
report $? "its job is there until it is ended"

no_job() { list_jobs >"$dir/out" && ! grep -q '"name"' "$dir/out"; }
within 30 no_job
report $? "nothing is left in the daemon"

stop_daemon
report $? "the daemon ends in order"
LD_LIBRARY_PATH=$BUILD/tests/double start_daemon --backend cuda
report $? "a daemon with GPUs starts"

# These examples use the CPU, and the daemon's memory is on GPUs.
refuses() {
	ZEROD_SOCKET=$socket timeout 120 "$bin/$1" 2>"$dir/err"
	[ $? -ne 0 ] && grep -q "$1.* on the CPU.*GPU" "$dir/err" || { cat "$dir/err" && false; }
}
failed=0
for example in hello_gather leases gradients commits fallback strict; do
	refuses $example || failed=1
done
report $failed "who computes on the CPU says so beside GPUs"

finish
