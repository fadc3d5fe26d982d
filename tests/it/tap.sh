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
		show_output
	fi
}

# Prints the output of the failed step and of the daemon, if scripts keep them in files.
show_output() {
	local file
	[ -n "${dir:-}" ] || return
	for file in "$dir"/{out,err,log,zerod.log}; do
		[ ! -s "$file" ] || { echo "# ${file##*/}:" && tail -n 20 "$file" | sed 's/^/#   /'; }
	done
}

skipped() { # what, why
	number=$((number + 1))
	echo "ok $number - $1 # SKIP $2"
}

children_of() { # pid
	local children
	read -ra children <"/proc/$1/task/$1/children"
	printf '%s\n' "${children[@]}"
}

# Copies a program to $dir/for-others, because other users cannot read a tree below a folder of mode 0700.
copy_for_others() { # program
	chmod 755 "$dir" && install -d -m 755 "$dir/for-others" && install -m 755 "$BUILD/bin/$1" "$dir/for-others"
}
as_other() { # uid, copied program, arguments...
	setpriv --reuid="$1" --regid="$1" --clear-groups timeout 120 "$dir/for-others/$2" "${@:3}"
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
