#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Instructions of a daemon for a gather and its release, of 4 ranks by 4 KiB on emulated devices, as valgrind counts them: in user space,
# of all threads; of the core alone (functions of daemon/core, without those that they call elsewhere); and of the functions that differ
# from another daemon's.
#
# gather_instructions.sh ZEROD [OTHER_ZEROD]
set -u
: "${BUILD:=build}" "${PYTHON:=python3}"
export ZEROD_SPIN=never # polling would count as well
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
few=200 many=1200 ranks=4

count() { # name, program, gathers of each rank
	valgrind --tool=callgrind --callgrind-out-file="$dir/out" "$2" --foreground --backend host --devices $ranks --arena 256M \
		--socket "$dir/socket" >"$dir/log" 2>&1 &
	local daemon=$!
	until "$BUILD/bin/zeroctl" --socket "$dir/socket" status >/dev/null 2>&1; do sleep 0.1; done
	"$BUILD/bin/zerobench" --socket "$dir/socket" -o gather -r $ranks -b 4K -e 4K -n "$3" -w 5 -c 0 >/dev/null || exit
	kill $daemon
	wait $daemon
	callgrind_annotate --threshold=100 "$dir/out" >"$dir/$1.$3" 2>/dev/null
}

number=0
for program in "$@"; do
	count $number "$program" $few
	count $number "$program" $many
	number=$((number + 1))
done
"$PYTHON" - "$dir" $few $many $ranks "$@" <<'PY'
import re, sys
from collections import Counter
directory, few, many, ranks, *programs = sys.argv[1:]

def load(number, count):
    all_of, core = 0, Counter()
    for line in open(f"{directory}/{number}.{count}"):
        found = re.match(r"\s*([\d,]+) \([ \d.]+%\)\s+(\S+):(\S+)", line)
        if not found:
            continue
        cost = int(found[1].replace(",", ""))
        all_of += cost
        if "daemon/core/" in found[2]:
            core[found[3].split(".")[0]] += cost
    return all_of, core

gathers, cores = (int(many) - int(few)) * int(ranks), []
for number, program in enumerate(programs):
    a, b = load(number, few), load(number, many)
    cores.append({name: (b[1][name] - a[1][name]) / gathers for name in b[1]})
    print(f"{program}: {(b[0] - a[0]) / gathers:.0f} a gather, {sum(cores[-1].values()):.0f} of them in the core")
if len(cores) == 2:
    for name in sorted(cores[0].keys() | cores[1].keys()):
        more = cores[0].get(name, 0) - cores[1].get(name, 0)
        if abs(more) >= 1:
            print(f"{more:+8.1f} {name}")
PY
