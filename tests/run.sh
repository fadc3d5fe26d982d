#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs test programs and scripts, each with a deadline, and ends with "N passed, N failed" (and ", N skipped").
#   tests/run.sh COMMAND...     a COMMAND is a program or script, with its arguments behind blanks; NAME=VALUE in front of it
#                               goes into its environment, and the values of ZEROD_SPIN, ZEROD_LAG and ZEROD_TEST_BACKEND, _DAEMONS,
#                               _COLLECTIVES and _PLACEMENT into what is printed
# A program counts its tests in cmocka's closing lines; a script in TAP lines ("ok 1 - ...", and "1..N" for how many there
# should be). One that says neither counts as one test. One that ends badly has failed, whatever it counted, and so has one that
# leaves files in its TMPDIR, or a path that its mkdtemp() or mkstemp() made (tests/support/temporary.c).
# WRAP goes before each command, TEST_TIMEOUT is seconds for each (default 300). Output is kept in $BUILD/logs.
# SHARE=K/N runs the Kth of each N commands only (0 <= K < N).
# JOBS commands run at a time (default 1), begun in the order given; behind each stand the seconds it took, and those of
# processors.
set -u
cd "$(dirname "$0")/.." || exit 2
: "${BUILD:=build}" "${WRAP:=}" "${TEST_TIMEOUT:=300}" "${JOBS:=1}" "${SHARE:=0/1}"
[[ $JOBS =~ ^[1-9][0-9]*$ ]] || { echo "tests/run.sh: JOBS=$JOBS is no number" >&2; exit 2; }
[[ $SHARE =~ ^([0-9]+)/([1-9][0-9]*)$ ]] || { echo "tests/run.sh: SHARE=$SHARE is not K/N" >&2; exit 2; }
first=${BASH_REMATCH[1]} each=${BASH_REMATCH[2]}
export BUILD
# An allocation that cannot be is answered with NULL, as without a sanitizer: tests ask for such.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0:allocator_may_return_null=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
# Kept between tests, whose TMPDIR is their own.
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$(realpath -m "$BUILD")/inductor}

[ $# -gt 0 ] || { echo 'tests/run.sh: no tests given' >&2; exit 2; }
logs=$BUILD/logs
mkdir -p "$logs" || exit 2
results=$(mktemp -d) && chmod 711 "$results" || exit 2 # tests run programs as other users, in their TMPDIR
# Names the files that killed processes leave behind from NCCL's double.
export ZD_DOUBLE_NCCL_RUN=${results##*/}
trap 'rm -rf "$results" "/dev/shm/zerod-nccl-$ZD_DOUBLE_NCCL_RUN-"*' EXIT
trap 'kill $(jobs -p) 2>/dev/null; wait; exit 130' INT TERM

cmocka_count() { # word, log: the number in cmocka's line "[  WORD  ] N test(s)", "" without one
	sed -nE "s/^\[ +$1 +\] ([0-9]+) test.*/\1/p" "$2" | tail -n 1
}

# Sets p, f and s (passed, failed, skipped) from a log and an exit status.
count() {
	local log=$1 rc=$2 planned
	p=$(cmocka_count PASSED "$log") f=$(cmocka_count FAILED "$log") s=$(cmocka_count SKIPPED "$log")
	if [ -z "$p$f" ]; then
		f=$(grep -cE '^not ok\b' "$log")
		s=$(grep -cE '^ok\b.*# [Ss][Kk][Ii][Pp]' "$log")
		p=$(($(grep -cE '^ok\b' "$log") - s))
		planned=$(sed -nE 's/^1\.\.([0-9]+).*/\1/p' "$log" | tail -n 1)
		[ -n "$planned" ] && [ $((p + f + s)) -lt "$planned" ] && f=$((planned - p - s))
		[ $((p + f + s)) -eq 0 ] && [ "$rc" -eq 0 ] && p=1
	fi
	p=${p:-0} f=${f:-0} s=${s:-0}
	[ "$rc" -ne 0 ] && [ "$f" -eq 0 ] && f=1
	return 0
}

# Prints, and removes, what is left in a folder, and of the paths that a file lists.
take_left() { # folder, file
	local path paths=()
	[ ! -e "$2" ] || mapfile -t paths <"$2"
	for path in "$1"/* "${paths[@]}"; do
		[ ! -e "$path" ] || { find "$path" && rm -rf "$path"; }
	done
}

# Runs $words with $settings, in a process of its own: says how it went, all at once, and leaves its counts in a file.
run() { # name, log, file
	local name=$1 log=$2 child rc why used left start=$SECONDS
	trap - EXIT
	child=
	trap 'kill $child 2>/dev/null; wait; exit 130' INT TERM
	mkdir -m 755 "$3.tmp"
	# A background job ignores interrupts, and so do its children; tests send them.
	# shellcheck disable=SC2086 # WRAP is a command with its arguments
	env --default-signal=INT,QUIT TMPDIR="$3.tmp" XDG_RUNTIME_DIR="$results" ZEROD_TEST_MADE="$3.made" \
		"${settings[@]}" timeout -k 10 "$TEST_TIMEOUT" $WRAP "${words[@]}" >"$log" 2>&1 </dev/null &
	child=$!
	wait $child
	rc=$?
	times >"$3.times"
	used=$(awk -F '[ms ]' 'NR == 2 { printf "%.1f", $1 * 60 + $2 + $4 * 60 + $5 }' "$3.times")
	count "$log" $rc
	rm -rf "$3.tmp"/torchinductor_* # of torch, which puts some headers there whatever TORCHINDUCTOR_CACHE_DIR is
	left=$(take_left "$3.tmp" "$3.made")
	[ -z "$left" ] || { f=$((f + 1)) && echo "left behind:"$'\n'"$left" >>"$log"; }
	echo "$p $f $s" >"$3"
	if [ "$f" -eq 0 ]; then
		printf '  ok      %-44s %4d tests %3d s %6s\n' "$name" $((p + s)) $((SECONDS - start)) "$used"
	else
		why="exit $rc"
		[ $((SECONDS - start)) -ge "$TEST_TIMEOUT" ] && why="no end within $TEST_TIMEOUT s"
		printf '  FAILED  %-44s %4d of %d, %s, log %s\n%s\n' "$name" "$f" $((p + f + s)) "$why" "$log" \
			"$(grep -vE '^\[ +(RUN|OK) ' "$log" | tail -n 40 | sed 's/^/          /')"
	fi
}

passed=0 failed=0 skipped=0 begun=0 running=0 number=0
declare -A runs # of a program, by its log
for cmd in "$@"; do
	[ $((number++ % each)) -eq "$first" ] || continue
	read -ra words <<<"$cmd"
	settings=() backend=
	while [[ ${words[0]} =~ ^[A-Z_][A-Z0-9_]*= ]]; do
		settings+=("${words[0]}")
		case ${words[0]} in
		ZEROD_TEST_BACKEND=* | ZEROD_TEST_COLLECTIVES=* | ZEROD_SPIN=*) backend+=${backend:+-}${words[0]#*=} ;;
		ZEROD_LAG=*) backend+=${backend:+-}lag ;;
		ZEROD_TEST_PLACEMENT=*) backend+=${backend:+-}on-${words[0]#*=} ;;
		ZEROD_TEST_DAEMONS=*) backend+=${backend:+-}${words[0]#*=}-daemons ;;
		esac
		words=("${words[@]:1}")
	done
	name=${words[0]#"$BUILD"/tests/}
	log=$logs/${name//\//_}${backend:+_$backend}
	runs[$log]=$((${runs[$log]:-0} + 1))
	log+=$([ "${runs[$log]}" -eq 1 ] || echo "-${runs[$log]}").log
	if [ "$running" -ge "$JOBS" ]; then
		wait -n
		running=$((running - 1))
	fi
	begun=$((begun + 1)) running=$((running + 1))
	run "$name${backend:+ ($backend)}" "$log" "$results/$begun" &
done
wait
for ((i = 1; i <= begun; i++)); do
	counts=$(cat "$results/$i" 2>/dev/null)
	[[ $counts =~ ^[0-9]+\ [0-9]+\ [0-9]+$ ]] || counts="0 1 0" # of one that was killed
	read -r p f s <<<"$counts"
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
total="$passed passed, $failed failed"
[ "$skipped" -gt 0 ] && total="$total, $skipped skipped"
echo "$total"
[ "$failed" -eq 0 ]
