# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# tap.sh - what test scripts print, one line a test; to be sourced.
number=0 failures=0

report() { # status, what
	number=$((number + 1))
	if [ "$1" -eq 0 ]; then
		echo "ok $number - $2"
	else
		echo "not ok $number - $2"
		failures=$((failures + 1))
	fi
}

# The script's last command: how many there were, and whether all were well.
finish() {
	echo "1..$number"
	[ "$failures" -eq 0 ]
}
