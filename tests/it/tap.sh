# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# tap.sh - what test scripts print, one line a test, and a daemon of their own; to be sourced.
number=0 failures=0
daemon= # its pid, until the script has ended it; empty: none

report() { # status, what
	number=$((number + 1))
	if [ "$1" -eq 0 ]; then
		echo "ok $number - $2"
	else
		echo "not ok $number - $2"
		failures=$((failures + 1))
	fi
}

# Makes the folder $dir and names $socket in it. Both and the daemon end with the script.
make_dir() { # name
	dir=$(mktemp -d "${TMPDIR:-/tmp}/zerod-test-$1.XXXXXX") || exit 2
	socket=$dir/zerod.sock
	trap remove_dir EXIT
	trap 'exit 1' INT TERM HUP
}

remove_dir() {
	[ -n "$daemon" ] && kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null
	rm -rf "$dir"
}

within() { # seconds, command...: repeats the command until it succeeds
	local deadline=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -ge $deadline ] && return 1
		sleep 0.02
	done
}

# Starts a daemon at $socket, and waits until it answers.
start_daemon() { # arguments of zerod...
	"$BUILD/bin/zerod" --foreground --socket "$socket" "$@" >"$dir/zerod.log" 2>&1 &
	daemon=$!
	within 30 "$BUILD/bin/zeroctl" --socket "$socket" status
}

stop_daemon() {
	local pid=$daemon
	daemon=
	kill "$pid" && wait "$pid"
}

# The script's last command: how many there were, and whether all were well.
finish() {
	echo "1..$number"
	[ "$failures" -eq 0 ]
}
