#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Instructions of a daemon for a gather and its release, of 4 ranks by 4 KiB on emulated devices, as valgrind counts them: in user space,
# of all threads; of the core alone (functions of daemon/core, without those that they call elsewhere); and of the functions that differ
# from another daemon's. And how often it calls functions of its own, as the compiler has left them.
#
# gather_instructions.sh [--most CALLS] ZEROD [OTHER_ZEROD]         exit status 1: more calls than that
set -u
most=0
if [ "${1:-}" = --most ]; then
	most=$2
	shift 2
fi
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
	mv "$dir/out" "$dir/$1.$3.calls"
}

number=0
for program in "$@"; do
	count $number "$program" $few
	count $number "$program" $many
	number=$((number + 1))
done
"$PYTHON" - "$dir" $few $many $ranks "$most" "$@" <<'PY'
import re, sys
from collections import Counter
directory, few, many, ranks, most, *programs = sys.argv[1:]

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

def calls(number, count):
    """Of functions in this tree's files. callgrind names a file once, and has numbers for it from then on."""
    files, found, of, callee = {}, 0, "", ""
    for line in open(f"{directory}/{number}.{count}.calls"):
        named = re.match(r"(fl|fi|fe|cfi|cfl)=\((\d+)\)(?: (.*))?$", line)
        if named:
            name = files.setdefault(named[2], named[3])
            of = name if named[1] == "fl" else of
            callee = name if named[1] in ("fl", "cfi", "cfl") else callee
        elif line.startswith("fn="):
            callee = of
        elif line.startswith("calls="):
            found += int(line[6:].split()[0]) if re.match(r"(\./)?(daemon|common|proto)/", callee) else 0
            callee = of
    return found

gathers, cores, too_many = (int(many) - int(few)) * int(ranks), [], False
for number, program in enumerate(programs):
    a, b = load(number, few), load(number, many)
    cores.append({name: (b[1][name] - a[1][name]) / gathers for name in b[1]})
    made = (calls(number, many) - calls(number, few)) / gathers
    too_many |= 0 < int(most) < made
    print(f"{program}: {(b[0] - a[0]) / gathers:.0f} a gather, {sum(cores[-1].values()):.0f} of them in the core; {made:.0f} calls")
if len(cores) == 2:
    for name in sorted(cores[0].keys() | cores[1].keys()):
        more = cores[0].get(name, 0) - cores[1].get(name, 0)
        if abs(more) >= 1:
            print(f"{more:+8.1f} {name}")
sys.exit(too_many)
PY
