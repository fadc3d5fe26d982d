#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The figures that zerod promises, each against a baseline of the same run. Exits 1 when one is missed.
set -u
cd "$(dirname "$0")/../.." || exit 2
: "${BUILD:=build}"
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
failed=0

bench() {
	echo "== zerobench $*"
	"$BUILD/bin/zerobench" --start "$@" | tee -a "$lines" || failed=1
	echo
}

set -o pipefail
bench --op rpc
bench --op gather -b 1M -e 64M -f 8
bench --op reduce -b 1M -e 64M -f 8
bench --op scale
echo '== bench_lifetimes'
"$BUILD/tests/bench/bench_lifetimes" | tee -a "$lines" || failed=1
echo

echo '== promised and measured'
printf '%-44s %10s  %-15s\n' figure measured promised
sed -n 's/^# target: //p' "$lines"
grep -q '^# target: .*MISSED$' "$lines" && failed=1
exit $failed
