#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a build made with COVERAGE=1 and prints the line coverage of daemon/core; fails under MIN percent.
set -eu
cd "$(dirname "$0")/.."
: "${BUILD:=build/coverage}" "${MIN:=90}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
top=$PWD

# The coverage of a program that fails is worthless: one failure ends the run.
run() {
	[ -x "$1" ] || return 0
	"$@" >"$work/log" 2>&1 && return 0
	tail -n 40 "$work/log" >&2
	echo "coverage: $* failed" >&2
	exit 1
}

find "$BUILD" -name '*.gcda' -delete
for test in "$BUILD"/tests/unit/*/test_*; do
	run "$test"
done
run "$BUILD/tests/zdsim" --seeds 300
for object in "$BUILD"/obj/daemon/core/*/*.o; do
	(cd "$work" && gcov -n -s "$top" "$top/$object" 2>/dev/null)
done | awk -v min="$MIN" '
	/^File / { file = $0; gsub(/^File .|.$/, "", file) }
	/^Lines executed:/ && file ~ /daemon\/core\/[a-z_]+\/[a-z_]+\.c$/ {
		split($0, part, /[:% ]+/)
		percent = part[3]; lines = $NF
		sub(/^.*of /, "", $0); lines = $0
		if (!(file in seen)) { seen[file] = 1; total += lines; hit += lines * percent / 100
			printf "  %6.2f %% of %5d  %s\n", percent, lines, file }
		file = ""
	}
	END { rate = total ? 100 * hit / total : 0
		printf "daemon/core: %.1f %% of %d lines, at least %d wanted\n", rate, total, min
		exit rate < min }'
