#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks the models with spin, each in full, and ends with "N passed, N failed".
#   tests/model/run.sh             the variants of the file `variants`: none may have an error
#   tests/model/run.sh --mutants   the lines of the file `mutations`, each with one rule broken: all must have an error
# spin's and pan's output is kept in $BUILD/model. JOBS run at a time (default 2), each with TIMEOUT seconds (default 900). A
# search that ends early, for want of time, memory or depth, has failed.
set -u
cd "$(dirname "$0")/../.." || exit 2
: "${BUILD:=build}" "${JOBS:=2}" "${TIMEOUT:=900}" "${CC:=cc}"
models=$PWD/tests/model
case ${1:-} in
'') list=$models/variants want=passes optimize=-O2 ;;
--mutants) list=$models/mutations want=caught optimize=-O0 ;; # most end at once
*) echo 'usage: tests/model/run.sh [--mutants]' >&2; exit 2 ;;
esac
command -v spin >/dev/null || { echo 'tests/model/run.sh: spin is missing; make check-model installs it' >&2; exit 2; }
out=$PWD/$BUILD/model/$want
rm -rf "$out" && mkdir -p "$out" || exit 2

# name, model, "safety", "ends" or a formula's name, switches: makes the verifier and runs it; leaves `result` in its folder.
check() {
	local name=$1 model=$2 property=$3 dir=$out/$1 begin=$SECONDS kind run rc errors states why
	shift 3
	mkdir -p "$dir" && cd "$dir" || return
	# Assertions and dead ends; that no run goes on without end; or a formula, for a scheduler that forgets nobody for ever.
	case $property in
	safety) kind=-DSAFETY run=() ;;
	ends) kind=-DNP run=(-l) ;;
	*) kind=-DNFAIR=4 run=(-a -f -N "$property") ;;
	esac
	{
		spin -a "${@/#/-D}" "$models/$model.pml" && "$CC" "$optimize" -w -DCOLLAPSE "$kind" -o pan pan.c &&
			timeout "$TIMEOUT" ./pan -m1000000 -n -w22 "${run[@]}"
	} >log 2>&1
	rc=$?
	errors=$(sed -nE 's/^State-vector .* errors: ([0-9]+)$/\1/p' log)
	states=$(sed -nE 's/^ *([0-9.e+]+) states, stored.*/\1/p' log | head -n 1)
	why=$(sed -nE 's/^pan:1: (.*) \(at depth.*/\1/p' log | head -n 1)
	if [ "$rc" -eq 124 ]; then
		why="no end within $TIMEOUT s"
	elif [ "$rc" -ne 0 ] || [ -z "$errors" ] ||
		grep -qE 'max search depth too small|out of memory|search was not completed' log; then
		[ -n "$why" ] && [ "${errors:-0}" -gt 0 ] || why="exit $rc: $(tail -n 1 log)" errors=
	fi
	printf '%s\t%s\t%s\t%s\t%s\n' "$name" "${states:-?}" "${errors:-?}" $((SECONDS - begin)) "$why" >result
	rm -f pan pan.[bcmhtp] _spin_nvr.tmp
}

# The parts of a line: name, model, property, switches. Lines of the list that are empty or begin with # say nothing.
grep -vE '^[[:space:]]*(#|$)' "$list" >"$out/list"
while read -r -a words; do
	while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
	check "${words[@]}" &
done <"$out/list"
wait

passed=0 failed=0
while read -r name _; do
	IFS=$'\t' read -r _ states errors seconds why <"$out/$name/result" || states='?' errors='?' seconds=0 why='no result'
	if [ "$want" = passes ] && [ "$errors" = 0 ]; then
		verdict=ok passed=$((passed + 1))
	elif [ "$want" = caught ] && [[ $errors =~ ^[1-9] ]]; then
		verdict=caught passed=$((passed + 1))
	else
		verdict=FAILED failed=$((failed + 1))
		[ "$want" = caught ] && [ "$errors" = 0 ] && verdict=SURVIVED
	fi
	printf '  %-8s %-34s %9s states %s errors %4d s  %.90s\n' "$verdict" "$name" "$states" "$errors" "$seconds" "$why"
	[ $verdict = FAILED ] && tail -n 5 "$out/$name/log" | sed 's/^/           /'
done <"$out/list"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
