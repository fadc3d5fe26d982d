#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Trains charlm over four ranks through a private daemon, and compares it with the same training unsharded.
#
#     client/examples/demo.sh [BUILD] [more arguments for charlm]
#
# TEXT=FILE trains on that file, SVG=FILE draws the run into that file. Everything else lives in one temporary folder, which goes with the daemon at the end,
# whatever the end is. Exits with charlm's status.
set -eu

build=${1:-build}
[ $# -gt 0 ] && shift
for program in zerod zeroctl charlm; do
	if [ ! -x "$build/bin/$program" ]; then
		echo "demo: $build/bin/$program is missing; run make first" >&2
		exit 1
	fi
done

# The path of a socket has 107 bytes at most: a long TMPDIR would leave no room for its name.
base=${TMPDIR:-/tmp}
[ ${#base} -le 64 ] || base=/tmp
dir=$(mktemp -d "$base/zerod-demo.XXXXXX")
socket=$dir/zerod.sock
daemon=
worker=

# shellcheck disable=SC2317 # called by the trap
end() {
	local status=$?
	trap - EXIT INT TERM HUP
	if [ -n "$worker" ]; then
		kill "$worker" 2>/dev/null || true
		wait "$worker" 2>/dev/null || true
	fi
	if [ -n "$daemon" ]; then
		kill "$daemon" 2>/dev/null || true
		wait "$daemon" 2>/dev/null || true
	fi
	rm -rf "$dir"
	exit "$status"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

last_words() {
	echo "demo: the daemon's last words:" >&2
	tail -n 20 "$dir/zerod.log" >&2
}

# In a session of its own: Ctrl-C is for this script, which ends the training first and then the daemon.
setsid "$build/bin/zerod" --foreground --backend host --devices 4 --arena 256M --socket "$socket" >"$dir/zerod.log" 2>&1 &
daemon=$!
deadline=$((SECONDS + 10))
until "$build/bin/zeroctl" --socket "$socket" status >/dev/null 2>&1; do
	if ! kill -0 "$daemon" 2>/dev/null || [ $SECONDS -ge $deadline ]; then
		echo "demo: zerod did not start" >&2
		last_words
		exit 1
	fi
	sleep 0.02
done
echo "zerod runs on $socket: 4 devices of the host backend, 256 MiB each."

arguments=(--socket "$socket" --ranks 4 --compare --zeroctl "$build/bin/zeroctl")
[ -n "${TEXT:-}" ] && arguments+=(--text "$TEXT")
[ -n "${SVG:-}" ] && arguments+=(--svg "$SVG")
# In the background, so that a signal to this script ends it at once and not after the training.
"$build/bin/charlm" "${arguments[@]}" "$@" &
worker=$!
status=0
wait "$worker" || status=$?
worker=
# 0: well; 1: the comparison failed, 2: no text to train on, which charlm has said; 141: nobody reads our output.
[ $status -le 2 ] || [ $status -eq 141 ] || last_words
exit $status
