#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Arenas grow for what is gathered, and when its ranks have gone all of it is back with the GPUs, by itself or by `zeroctl trim`,
# while the daemon runs on: nvidia-smi shows it. $BUILD is what make built, or a bundle. Skipped where there is no nvidia-smi.
set -u
cd "$(dirname "$0")/../.." || exit 2
: "${BUILD:=build}"
echo "1..1"
name="trim: memory goes back to the GPUs"
command -v nvidia-smi >/dev/null || { echo "ok 1 - $name # SKIP no nvidia-smi"; exit 0; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/zerod-test-gpu.XXXXXX") || exit 2
export ZEROD_SOCKET=$dir/zerod.sock

"$BUILD/bin/zerod" --foreground --backend cuda --arena 8G --socket "$ZEROD_SOCKET" >"$dir/zerod.log" 2>&1 &
daemon=$!
trap 'kill "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM HUP
until "$BUILD/bin/zeroctl" status >/dev/null 2>&1 || [ $SECONDS -ge 60 ]; do sleep 0.02; done

used_mib() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | sort -n | tail -n 1; }
segments_mib() {
	"$BUILD/bin/zeroctl" devices --json | sed -n 's/^ *"segment_bytes": \([0-9]*\).*/\1/p' | sort -n | tail -n 1 |
		awk '{ print int($1 / 1048576) }'
}
fail() {
	cat "$dir"/*.log
	echo "before $before MiB, with the arena $grown MiB ($arena MiB of segments), after the trim $after MiB ($left MiB of segments)"
	echo "not ok 1 - $name"
	exit 1
}

before=$(used_mib) grown=0 arena=0 after=- left=-
"$BUILD/bin/zerobench" --socket "$ZEROD_SOCKET" --nccl none -b 1G -e 1G >"$dir/bench.log" 2>&1 &
bench=$!
while kill -0 $bench 2>/dev/null; do
	now=$(segments_mib) used=$(used_mib)
	[ "$now" -gt "$arena" ] && arena=$now
	[ "$used" -gt "$grown" ] && grown=$used
done
wait $bench || fail
# The ranks' segments are empty when their processes have ended.
until "$BUILD/bin/zeroctl" trim >"$dir/trim.log" 2>&1 && left=$(segments_mib) && [ "$left" -eq 0 ]; do
	[ $SECONDS -lt 120 ] || break
	sleep 0.1
done
after=$(used_mib)
echo "before $before MiB, with the arena $grown MiB ($arena MiB of segments), after the trim $after MiB ($left MiB of segments)"
# The driver keeps a little of its own; a segment is 64 MiB at least.
[ "$arena" -ge 1024 ] && [ $((grown - before)) -ge 1024 ] && [ "$left" -eq 0 ] && [ $((after - before)) -lt 256 ] || fail
echo "ok 1 - $name"
