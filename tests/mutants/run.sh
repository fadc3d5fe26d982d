#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Breaks one rule at a time and expects that a test notices.
#   tests/mutants/run.sh [--record] [PATCH...]     without a PATCH: every patch of this folder
#
# A patch begins with "# rule: RULE; killed by: PROGRAM: TEST", what it breaks and which test is there to notice. It is applied
# to a copy of the tracked files as they are now, what it touches is made again, and PROGRAM runs. Where that does not fail,
# the rest of the suite runs until its first failure: contract, unit tests of the core and the host backend, the library's
# tests. Prints "killed NAME by PROGRAM: TEST" or "SURVIVED NAME" for each, and ends with "N killed, N survived". A patch that
# does not apply or build is an error. PROGRAM may be a script, whose tests are its "ok" lines, or zdsim, which has no tests: its
# first 2000 seeds are run. Exits 0 when all are killed. --record writes into the patches which test it was.
#
# JOBS copies are worked in at a time (default: one a core, at most 8); SUITE_TIMEOUT is seconds for a program (default 60).
set -um # each worker is a process group, so that it ends with all it started
cd "$(dirname "$0")/../.." || exit 2
cores=$(nproc)
: "${SUITE_TIMEOUT:=60}" "${JOBS:=$((cores < 8 ? cores : 8))}"
export ZEROD_TEST_DEADLINE_MS=${ZEROD_TEST_DEADLINE_MS:-3000} # what hangs has failed
unset MAKEFLAGS MAKELEVEL MFLAGS                              # each copy has a build folder of its own
export BUILD=build
record=0
[ "${1:-}" = --record ] && record=1 && shift
[ $# -gt 0 ] || set -- tests/mutants/*.patch
patches=()
for patch in "$@"; do
	path=$(realpath -e "$patch") || exit 2
	patches+=("$path")
done
total=${#patches[@]}
[[ $JOBS =~ ^[1-9][0-9]*$ ]] || { echo "JOBS=$JOBS is no number" >&2; exit 2; }
[ "$total" -lt "$JOBS" ] && JOBS=$total

scratch=$(mktemp -d) || exit 2
export ZD_DOUBLE_NCCL_RUN=${scratch##*/} # names what programs that are killed leave of NCCL's double
export GIT_CEILING_DIRECTORIES=$scratch # the copies are in no repository
workers=()
cleanup() {
	for pid in "${workers[@]}"; do kill -- "-$pid" 2>/dev/null; done
	wait
	rm -rf "$scratch" "/dev/shm/zerod-nccl-$ZD_DOUBLE_NCCL_RUN-"*
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# ---- The suite ------------------------------------------------------------------------------------------------

programs=()
for test in tests/contract/test_{pr,[!p]}*.c tests/unit/core/test_*.c tests/unit/executor/test_host*.c \
	tests/it/test_{client_*,cuda_*,scope_*,strict}.c; do
	test=${test#tests/}
	programs+=("${test%.c}")
done

make_programs() { # log, program...
	local log=$1 program targets=()
	shift
	for program; do
		[[ $program == *.sh ]] || targets+=("build/tests/$program")
	done
	# A mutant may leave something unused.
	make -s WERROR= build/bin/{zerod,zeroctl} "${targets[@]}" >"$log" 2>&1
}

# Names of tests that failed, or that ran when the program ended.
failed_tests() { # log
	awk '/^\[ +RUN +\]/ { open = $NF }
		/^\[ +(OK|SKIPPED|FAILED|ERROR) +\] [a-z]/ { open = "" }
		/^\[ +(FAILED|ERROR) +\] [a-z]/ && !seen[$NF]++ { print $NF }
		/^not ok / { sub(/^not ok [0-9]+ - /, ""); print }
		END { if (open) print open }' "$1"
}

# Says which test of the program fails, the wanted one if it is among them; 1: none does.
run_program() { # log, program, wanted test
	local log=$1 program=$2 failed
	local command=("build/tests/$program")
	case $program in
	zdsim) command+=(--seeds 2000 --max-failures 1 --shrink 0) ;;
	*.sh) command=("tests/$program") ;;
	esac
	timeout --foreground -k 5 "$SUITE_TIMEOUT" "${command[@]}" >"$log" 2>&1 </dev/null && return 1
	failed=$(failed_tests "$log")
	if grep -qxF -- "$3" <<<"$failed"; then failed=$3; fi
	read -r failed <<<"$failed"
	echo "$program${failed:+: $failed}"
}

# Says by which test the copy's fault is seen; 1: by none, 2: it cannot be made.
run_suite() { # log, named program, named test
	local log=$1 program
	if [ -e "tests/$2.c" ] || [ -f "tests/$2" ] || [ "$2" = zdsim ]; then
		make_programs "$log" "$2" || return 2
		run_program "$log" "$2" "$3" && return
	fi
	make_programs "$log" "${programs[@]}" || return 2
	for program in "${programs[@]}"; do
		[ "$program" = "$2" ] || ! run_program "$log" "$program" "" || return 0
	done
	return 1
}

# ---- One patch ------------------------------------------------------------------------------------------------

# In a copy of the tree: one line about the patch.
try_patch() { # patch, log
	local patch=$1 log=$2 name named by
	name=$(basename "$patch" .patch)
	named=$(sed -nE '1s/^# rule: .+; killed by: (.+)$/\1/p' "$patch")
	if [ -z "$named" ]; then
		echo "ERROR $name does not begin with \"# rule: RULE; killed by: PROGRAM: TEST\""
		return
	fi
	if ! git apply -C1 "$patch" >"$log" 2>&1; then
		echo "ERROR $name does not apply: $(head -n 1 "$log")"
		return
	fi
	by=$(run_suite "$log" "${named%%: *}" "${named#*: }")
	case $? in
	0)
		[ "$record" -eq 0 ] || sed -i "1s|; killed by: .*|; killed by: $by|" "$patch"
		[[ $by == "$named" || $named == "?" ]] || by+=", not by $named"
		echo "killed $name by $by"
		;;
	1) echo "SURVIVED $name" ;;
	*) echo "ERROR $name does not build: $(grep -m 1 error: "$log")" ;;
	esac
	git apply -C1 -R "$patch" 2>"$log"
}

worker() { # copy
	local i
	cd "$scratch/$1" || exit 2
	for ((i = 0; i < total; i++)); do
		mkdir "$scratch/taken.$i" 2>/dev/null || continue
		printf '(%d/%d) %s\n' $((i + 1)) "$total" "$(try_patch "${patches[i]}" "$scratch/$1.log")" |
			tee -a "$scratch/results"
	done
}

# ---- All of them ----------------------------------------------------------------------------------------------

count() { # word
	grep -cE "^\([0-9/]+\) $1 " "$scratch/results"
}

echo "making the suite, and running it without a patch"
mkdir "$scratch/0"
git ls-files -z | while IFS= read -r -d '' file; do [ -e "$file" ] && printf '%s\0' "$file"; done |
	xargs -0 cp --parents -t "$scratch/0" || exit 2
if ! (cd "$scratch/0" && make -s -j"$JOBS" WERROR= build/bin/{zerod,zeroctl} "${programs[@]/#/build/tests/}") >"$scratch/log" 2>&1; then
	tail -n 20 "$scratch/log" >&2
	exit 2
fi
if by=$(cd "$scratch/0" && run_suite "$scratch/log" "" ""); then
	tail -n 20 "$scratch/log" >&2
	echo "without a patch $by fails" >&2
	exit 2
fi
for ((copy = 1; copy < JOBS; copy++)); do cp -a "$scratch/0" "$scratch/$copy"; done
: >"$scratch/results"
for ((copy = 0; copy < JOBS; copy++)); do
	worker "$copy" &
	workers+=($!)
done
wait "${workers[@]}"
workers=()
killed=$(count killed) errors=$(count ERROR)
[ "$errors" -eq 0 ] || echo "$errors could not be tried"
echo "$killed killed, $(count SURVIVED) survived"
[ "$killed" -eq "$total" ]
