#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/simbackend/run.sh SEEDS [FIRST]: the contract suite on the adversarial backend, once with each of so many seeds, from
# FIRST (default 1). Shows what failed and how to repeat it. Ends with "N passed, N failed", in tests over all seeds.
set -u
cd "$(dirname "$0")/../.." || exit 2
: "${BUILD:=build}" "${TEST_TIMEOUT:=120}"
export BUILD TEST_TIMEOUT
seeds=${1:?expected a number of seeds} first=${2:-1}
output=$(mktemp) || exit 2
trap 'rm -f "$output"' EXIT

programs=()
for program in "$BUILD"/tests/contract/test_*; do
	[ -f "$program" ] && [ -x "$program" ] && programs+=("$program")
done
[ ${#programs[@]} -gt 0 ] || { echo 'tests/simbackend/run.sh: no programs: make tests' >&2; exit 2; }

passed=0 failed=0
for ((seed = first; seed < first + seeds; seed++)); do
	start=$SECONDS
	settings="ZEROD_TEST_BACKEND=sim ZEROD_SIM_SEED=$seed"
	[ $((seed % 2)) -eq 0 ] || settings+=" ZEROD_LAG=$seed" # the trainers' streams lag, too
	tests/run.sh "${programs[@]/#/$settings }" >"$output"
	total=$(tail -n 1 "$output")
	[[ $total =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed ]] || exit 2
	passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
	echo "seed $seed: $total, $((SECONDS - start)) s"
	[ "${BASH_REMATCH[2]}" -eq 0 ] && continue
	grep -vE '^  ok ' "$output" | head -n -1
	sed -nE "s#^  FAILED  (contract/[a-z_0-9]+) .*#  again: BUILD=$BUILD $settings $BUILD/tests/\1#p" "$output"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
