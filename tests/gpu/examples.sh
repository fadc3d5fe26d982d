#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The examples for GPUs do what their comments promise, on the GPUs that there are: $BUILD is what make built, or a bundle.
set -u
cd "$(dirname "$0")/../.." || exit 2
: "${BUILD:=build}"
dir=$(mktemp -d "${TMPDIR:-/tmp}/zerod-test-gpu.XXXXXX") || exit 2
socket=$dir/zerod.sock

"$BUILD/bin/zerod" --foreground --backend cuda --arena 1G --socket "$socket" >"$dir/zerod.log" 2>&1 &
daemon=$!
trap 'kill "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM HUP
deadline=$((SECONDS + 60))
until "$BUILD/bin/zeroctl" --socket "$socket" status >/dev/null 2>&1 || [ $SECONDS -ge $deadline ]; do sleep 0.02; done

timeout 120 "$BUILD/bin/gpu_gather" "$socket" >"$dir/out" 2>&1
status=$?
if [ $status -eq 0 ] && [ "$(grep -cE '^rank [01]: 1000000 of 1000000 numbers are right$' "$dir/out")" -eq 2 ]; then
	echo "ok 1 - gpu_gather: both ranks see the whole"
else
	cat "$dir/out" "$dir/zerod.log"
	echo "not ok 1 - gpu_gather: both ranks see the whole"
fi
echo "1..1"
