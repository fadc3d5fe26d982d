#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs test programs and scripts, each with a deadline, and ends with "N passed, N failed".
# A program counts its tests in cmocka's closing lines; a script in TAP lines ("ok 1 - ..."). One that says neither
# counts as one test. WRAP goes before each command, TEST_TIMEOUT is seconds for each (default 300).
set -u
cd "$(dirname "$0")/.." || exit 2
: "${BUILD:=build}" "${WRAP:=}" "${TEST_TIMEOUT:=300}"
export BUILD
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
logs=$BUILD/logs
mkdir -p "$logs"
passed=0 failed=0
for cmd in "$@"; do
	read -ra words <<<"$cmd"
	name=${words[0]#"$BUILD"/tests/}
	log=$logs/$(printf %s "$name" | tr '/ ' '__').log
	start=$SECONDS
	timeout -k 10 "$TEST_TIMEOUT" $WRAP "${words[@]}" >"$log" 2>&1
	rc=$?
	p=$(sed -nE 's/^\[  PASSED  \] ([0-9]+) test.*/\1/p' "$log" | tail -n 1)
	f=$(sed -nE 's/^\[  FAILED  \] ([0-9]+) test.*/\1/p' "$log" | tail -n 1)
	if [ -z "$p$f" ]; then
		p=$(grep -cE '^ok [0-9]+' "$log")
		f=$(grep -cE '^not ok [0-9]+' "$log")
		[ $((p + f)) -eq 0 ] && [ $rc -eq 0 ] && p=1
	fi
	p=${p:-0} f=${f:-0}
	[ $rc -ne 0 ] && [ "$f" -eq 0 ] && f=1
	passed=$((passed + p)) failed=$((failed + f))
	if [ "$f" -eq 0 ]; then
		printf '  ok      %-44s %4d tests %3d s\n' "$name" "$p" $((SECONDS - start))
	else
		printf '  FAILED  %-44s %4d of %d, exit %d, log %s\n' "$name" "$f" $((p + f)) $rc "$log"
		grep -vE '^\[ +(RUN|OK) ' "$log" | tail -n 40 | sed 's/^/          /'
	fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
