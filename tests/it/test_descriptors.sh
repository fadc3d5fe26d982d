#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What the programs are started with: standard descriptors that are closed, a stderr that nobody reads; and a watch that lets
# the daemon end.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}"
bin=$BUILD/bin
dir=$(mktemp -d) || exit 2
socket=$dir/zerod.sock
pid=
trap '[ -n "$pid" ] && kill "$pid" && wait "$pid"; rm -rf "$dir"' EXIT
line=

listens() { # the daemon that was just started
	pid=$!
	until "$bin/zeroctl" --socket "$socket" status >"$dir/status" 2>&1; do
		kill -0 "$pid" 2>"$dir/gone" || return 1
	done
}
ends() {
	kill "$pid"
	wait "$pid"
	local rc=$?
	pid=
	[ $rc -eq 0 ] && [ ! -e "$socket" ]
}
daemon=("$bin/zerod" --foreground --backend host --socket "$socket" --config "$dir/zerod.conf")
umask 022 # a configuration that others may write is refused
printf '[daemon]\ndrain_timeout_s = 600\nlog_level = debug\n' >"$dir/zerod.conf"

"${daemon[@]}" 0<&- >"$dir/log" 2>&1 &
listens && ends
report $? 'a daemon without stdin'
"${daemon[@]}" 0<&- >&- 2>&- &
listens && ends
report $? 'a daemon without any of them'

"${daemon[@]}" 2>"$dir/log" &
listens
"$bin/zeroctl" --socket "$socket" watch --count 2 --interval 0.05 >&- 2>"$dir/err"
[ $? -eq 30 ] && grep -q 'cannot write the output' "$dir/err"
report $? 'a table without stdout is an error of the output'
"$bin/zeroctl" --socket "$socket" watch --json --interval 0.05 >"$dir/watch" 2>"$dir/err" &
watch=$!
until [ -s "$dir/watch" ] || ! kill -0 $watch 2>"$dir/gone"; do :; done
ends
report $? 'the daemon ends before its drain timeout, though somebody watches'
wait $watch
[ $? -eq 29 ] && grep -q 'the daemon is draining' "$dir/err" && tail -n 1 "$dir/watch" | grep -q '"DRAINING"'
report $? 'who watches is told'

mkfifo "$dir/unread"
exec 9<>"$dir/unread"
"${daemon[@]}" 2>&9 &
listens
# Two lines of some hundred bytes each, into a pipe of 64 KiB.
for ((i = 0; i < 500; i++)); do
	"$bin/zeroctl" --socket "$socket" status >"$dir/status" || break
done
[ $i -eq 500 ]
report $? 'a stderr that nobody reads stops nobody'
for ((i = 0; i < 100; i++)); do
	read -r _ <&9
done
"$bin/zeroctl" --socket "$socket" status >"$dir/status"
until [[ $line == *'lines of the log are lost'* ]]; do
	read -r line <&9
done
[[ $line =~ warning:\ [0-9]+\ lines ]]
report $? 'the log says how many lines it lost'
ends
finish
