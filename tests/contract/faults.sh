#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The contract suite over the driver's double, with one call of the driver failing: out of memory, an invalid handle, or a device
# that is lost for good. Calls of the library may return errors, and tests may fail for it; what may not be is a crash, a hang, a
# report of a sanitizer, something that is not given back, a daemon that does not end in order, or wrong bytes where every
# call has returned 0.
#   tests/contract/faults.sh [--rounds N] [--seed S] [--programs P] [--only PROGRAM:SIDE:FUNCTION:N:RESULT]
# First each program runs once without a fault, to count its calls; then there are N rounds (default: each function of each
# side with each result once), every one another function, another side (zerod or client) or another result. Which program, and which
# of its calls, is chosen by the seed; --programs takes only so many of them. --only repeats one round, as it was printed, and
# shows what it said. Ends with TAP lines, one a round.
set -u
cd "$(dirname "$0")/../.." || exit 2
: "${BUILD:=build}" "${FAULT_TIMEOUT:=200}"
rounds=0 seed=1 nprograms=99 only=
while [ $# -gt 1 ]; do
	case $1 in
	--rounds) rounds=$2 ;;
	--seed) seed=$2 ;;
	--programs) nprograms=$2 ;;
	--only) only=$2 ;;
	*) break ;;
	esac
	shift 2
done
[ $# -eq 0 ] || { echo "tests/contract/faults.sh: cannot read '$*'" >&2; exit 2; }

RESULTS=(2 400 719) # CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_LAUNCH_FAILED
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
RANDOM=$seed

# The daemon is found in $BUILD/bin: this one has an environment of its own. A test that fails leaves its heap behind, so the
# address sanitizer counts that of the daemon alone.
mkdir -p "$scratch/bin"
real=$(realpath "$BUILD/bin/zerod") || exit 2
cat >"$scratch/bin/zerod" <<EOF
#!/bin/sh
export ZD_DOUBLE_FAIL="\$FAIL_IN_ZEROD" ASAN_OPTIONS="\$ASAN_OPTIONS:detect_leaks=1"
exec "$real" "\$@"
EOF
chmod +x "$scratch/bin/zerod"
export ASAN_OPTIONS=${ASAN_OPTIONS:-abort_on_error=0:allocator_may_return_null=1}:detect_leaks=0
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:allocator_may_return_null=1}
library=$(realpath "$BUILD/tests/double") || exit 2

# Runs a program with a fault in one side; its status. What waits for a rank that has failed gives up soon.
run_program() { # program, side, fault, log, counts
	local in_zerod='' in_client=''
	case $2 in zerod) in_zerod=$3 ;; client) in_client=$3 ;; esac
	env BUILD="$scratch" FAIL_IN_ZEROD="$in_zerod" ZD_DOUBLE_FAIL="$in_client" ${5:+ZD_DOUBLE_COUNT="$5"} \
		ZEROD_TEST_BACKEND=cuda ${3:+ZEROD_TEST_DEADLINE_MS=2000} ZD_DOUBLE_LEAKS=1 LD_LIBRARY_PATH="$library" \
		timeout -s ABRT -k 10 "$FAULT_TIMEOUT" "$BUILD/tests/contract/$1" >"$4" 2>&1 </dev/null
}

# Prints the faults found in a log and an exit status; nothing if there are none. A program with failed tests exits with their number.
complaint() { # log, status
	[ "$2" -ge 124 ] && echo "it ended with status $2"
	grep -qE '^\[=+\] [0-9]+ test\(s\) run\.' "$1" || echo 'it ended before its tests did'
	grep -m 3 -hoE 'not given back: .*|(ERROR|WARNING): [A-Za-z]+Sanitizer.*|runtime error: .*|wrong bytes.*|assertion failed: .*' \
		"$1"
	grep -m 3 -hoE 'Test failed with exception: .*|daemon fixture: (process .* did not end|.*left).*' "$1"
	# A daemon may refuse to start, with a status of its own (daemon/main/service.h); else it is told to end, with 0.
	grep -hE 'daemon fixture: the daemon (that did not start has|ended with) status' "$1" |
		grep -vE 'did not start has status [12]$'
}

# ---- Which calls there are -----------------------------------------------------------------------------------------

programs=()
for program in "$BUILD"/tests/contract/test_*; do
	[ -f "$program" ] && [ -x "$program" ] && programs+=("$(basename "$program")")
done
[ ${#programs[@]} -gt 0 ] || { echo 'tests/contract/faults.sh: no programs: make tests' >&2; exit 2; }
failed=0

shuffle() { # name of an array
	local -n array=$1
	local i j swap
	for ((i = ${#array[@]} - 1; i > 0; i--)); do
		j=$(((RANDOM * 32768 + RANDOM) % (i + 1)))
		swap=${array[i]} array[i]=${array[j]} array[j]=$swap
	done
}

declare -A calls users # by "SIDE FUNCTION PROGRAM": the most in one process; by "SIDE FUNCTION": programs
count_calls() { # program
	local who function n side
	if ! run_program "$1" none "" "$scratch/log" "$scratch/counts" || [ -n "$(complaint "$scratch/log" 0)" ]; then
		cat "$scratch/log"
		echo "tests/contract/faults.sh: $1 fails without a fault" >&2
		exit 1
	fi
	while read -r who function n; do
		[ "$function" = all ] && continue
		side=client
		[ "$who" = zerod ] && side=zerod
		[ -n "${calls[$side $function $1]:-}" ] || users[$side $function]+="$1 "
		[ "$n" -gt "${calls[$side $function $1]:-0}" ] && calls[$side $function $1]=$n
	done <"$scratch/counts"
	rm -f "$scratch/counts"
}

# One round: which call of which program, with what. Half of them early ones, which the others depend on.
choose() { # side, function, result
	local able n
	read -ra able <<<"${users[$1 $2]}"
	local program=${able[RANDOM % ${#able[@]}]}
	n=${calls[$1 $2 $program]}
	[ $((RANDOM % 2)) -eq 0 ] && [ "$n" -gt 3 ] && n=3
	echo "$program:$1:$2:$((RANDOM % n + 1)):$3"
}

# ---- Rounds ------------------------------------------------------------------------------------------------------------

run_round() { # PROGRAM:SIDE:FUNCTION:N:RESULT, number
	local program side fault why
	IFS=: read -r program side fault <<<"$1"
	run_program "$program" "$side" "$fault" "$scratch/log"
	why=$(complaint "$scratch/log" $?)
	if [ -z "$why" ]; then
		echo "ok $2 - $1"
		return
	fi
	failed=$((failed + 1))
	echo "not ok $2 - $1"
	echo "# ${why//$'\n'/$'\n'# }"
	echo "# again: tests/contract/faults.sh --only $1"
}

if [ -n "$only" ]; then
	run_round "$only" 1
	cat "$scratch/log"
	exit $((failed > 0))
fi
shuffle programs
for program in "${programs[@]:0:nprograms}"; do
	count_calls "$program"
done
mapfile -t sites < <(printf '%s\n' "${!users[@]}" | sort)
faults=()
for site in "${sites[@]}"; do
	for result in "${RESULTS[@]}"; do
		faults+=("$site $result")
	done
done
shuffle faults
[ "$rounds" -gt 0 ] || rounds=${#faults[@]}
echo "seed $seed: $rounds of ${#faults[@]} faults in ${#sites[@]} functions, $((nprograms < ${#programs[@]} ? nprograms : ${#programs[@]})) programs"
for ((i = 0; i < rounds; i++)); do
	# shellcheck disable=SC2086 # three words
	choose ${faults[i % ${#faults[@]}]} >"$scratch/choice" # no subshell: it would not advance RANDOM here
	run_round "$(cat "$scratch/choice")" $((i + 1))
done
echo "1..$rounds"
[ "$failed" -eq 0 ]
