#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# zeroctl top in a terminal of 60x12: what it shows of a session, keys, sizes, a daemon that goes and comes, and the terminal afterwards.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}" "${PYTHON:=python3}"
"$PYTHON" -c 'import pyte' 2>/dev/null || [ ! -x /usr/bin/python3 ] || PYTHON=/usr/bin/python3
bin=$BUILD/bin
dir=$(mktemp -d "${TMPDIR:-/tmp}/zerod-test-top.XXXXXX") || exit 2
socket=$dir/zerod.sock
daemon=

cleanup() {
	[ -n "$daemon" ] && kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null
	rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP

"$bin/zeroctl" --socket "$socket" top 2>"$dir/err"
[ $? -eq 25 ] && grep -q 'no daemon listens' "$dir/err"
report $? "without a daemon it does not begin"

"$bin/zerod" --foreground --backend host --devices 1 --arena 64M --socket "$socket" >"$dir/zerod.log" 2>&1 &
daemon=$!
deadline=$((SECONDS + 30))
until "$bin/zeroctl" --socket "$socket" status >/dev/null 2>&1 || [ $SECONDS -ge $deadline ]; do sleep 0.02; done

"$bin/zeroctl" --socket "$socket" top >"$dir/out" 2>"$dir/err" </dev/null
[ $? -eq 2 ] && [ ! -s "$dir/out" ] && grep -q 'zeroctl watch' "$dir/err"
report $? "a pipe is refused, and watch is named"
"$bin/zeroctl" --socket "$socket" top --sort nothing 2>"$dir/err"
[ $? -eq 2 ] && grep -q 'ID,NAME,USER' "$dir/err"
report $? "an unknown column is wrong usage"
"$bin/zeroctl" --socket "$socket" top --job nothing 2>"$dir/err"
[ $? -eq 3 ]
report $? "a job that does not exist is NOT_FOUND"
kill "$daemon"
wait "$daemon"
daemon=

if "$PYTHON" -c 'import pyte' 2>/dev/null; then
	BUILD=$BUILD "$PYTHON" tests/it/top.py "$dir" >"$dir/tests"
	status=$?
	while read -r word what; do
		[ "$word" = ok ]
		report $? "$what"
	done <"$dir/tests"
	report $status "all of these were run"
else
	skipped "the terminal" "there is no pyte"
fi
finish
