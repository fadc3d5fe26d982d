#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# zeroctl events and zeroctl trace of a daemon that runs small jobs: order, filters, --follow and its ends; a trace's form, and what
# happens to it at an interrupt and on a full disk.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}" "${PYTHON:=python3}"
bin=$BUILD/bin
dir=$(mktemp -d "${TMPDIR:-/tmp}/zerod-test-events.XXXXXX")
socket=$dir/zerod.sock
daemon= follower= tracer= trainer=

cleanup() {
	for pid in $follower $tracer $trainer $daemon; do
		kill -KILL "$pid" 2>/dev/null && wait "$pid" 2>/dev/null
	done
	rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP

ctl() { "$bin/zeroctl" --socket "$socket" "$@"; }
start() { # daemon's options
	"$bin/zerod" --foreground --backend host --devices 2 --arena 64M --socket "$socket" "$@" >"$dir/zerod.log" 2>&1 &
	daemon=$!
	within 30 ctl status
}
stop() {
	kill "$daemon"
	wait "$daemon"
	local status=$?
	daemon=
	return $status
}
kinds() { # the kinds of the events that standard input has as JSON
	"$PYTHON" -c '
import json, sys
for line in sys.stdin:
    event = json.loads(line)
    print(event["kind"] + ("/" + event["reason"] if event["reason"] else ""), event["name"])'
}
newest() { ctl events --json | "$PYTHON" -c 'import json, sys; print(json.loads(sys.stdin.readlines()[-1])["seq"])'; }

start
report $? "a daemon starts"

"$bin/hello_gather" "$socket" >"$dir/out" && ctl events --json >"$dir/events" && kinds <"$dir/events" >"$dir/kinds"
status=$?
# Of rank 0 and 1, in whatever order they come.
sed -n 's/ weights$//p' "$dir/kinds" | grep -v '^wait' | sort | uniq -c | awk '{print $2, $1}' >"$dir/of_unit"
printf '%s\n' 'block_free/gathered 2' 'block_free/shard 2' 'block_give/gathered 2' 'block_give/shard 2' 'gather/ready 2' 'lease 2' 'publish 2' 'update 2' |
	cmp -s - "$dir/of_unit" && [ $status -eq 0 ]
report $? "two gathers are two, with their memory and leases"

"$PYTHON" - "$dir/events" <<'PY'
import json, sys
events = [json.loads(line) for line in open(sys.argv[1])]
assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
assert all(a["time_ns"] <= b["time_ns"] for a, b in zip(events, events[1:]))
assert all(e["begin_ns"] <= e["time_ns"] for e in events)
first = {}
for session in {e["session"] for e in events if e["kind"] == "gather"}:
    of = [e["kind"] for e in events if e["session"] == session and e["kind"] in
          ("session_begin", "update", "publish", "block_give", "gather", "lease", "session_end")]
    # The client may see the copy's fence, and release, before the daemon's loop has taken the copy's end.
    assert sorted(of[5:7]) == ["gather", "lease"], of
    assert of[:5] + of[7:] == ["session_begin", "block_give", "update", "publish", "block_give", "session_end"], of
waits = [e for e in events if e["kind"].startswith("wait")]
assert len([e for e in waits if e["kind"] == "wait_begin"]) == len([e for e in waits if e["kind"] == "wait_end"]) > 0
assert all(e["request"] and e["reason"] for e in waits)
given = {}
for e in events:
    place = e["segment"], e["offset"]
    if e["kind"] == "block_give":
        assert place not in given
        given[place] = e
    elif e["kind"] == "block_free":
        assert given.pop(place)["bytes"] == e["bytes"]
assert not given
PY
report $? "in order, each wait ends, and each block that is given is freed"

ctl events >"$dir/lines" &&
	grep -qE '^[0-9:.]{15} gather +hello-[0-9]+/world/weights@[01]: ready, 512 B, device 0, after .*, session [0-9]+$' "$dir/lines" &&
	grep -qE ' session end +hello-[0-9]+/hello_gather: goodbye, after .*, session [0-9]+, pid [0-9]+$' "$dir/lines"
report $? "a line says it in words"

job=$(sed -n 's/.*\(hello-[0-9]*\).*/\1/p' "$dir/lines" | head -n 1)
ctl events --job "$job" --json | grep -c "\"job\":\"$job\"" >"$dir/count" && [ "$(cat "$dir/count")" -eq "$(ctl events --job "$job" | wc -l)" ] &&
	! ctl events --job nobody 2>"$dir/err" && grep -q "no job is called 'nobody'" "$dir/err" &&
	[ "$(ctl events --since "$(newest)" | grep -cv 'session')" -eq 0 ]
report $? "one job's, or those behind a number"

# A program that gets signals is started without a subshell.
# It ends by itself, and says why, when the job that it follows has ended.
"$bin/zerobench" --socket "$socket" --op step --ranks 2 --units 4 --maxbytes 64K --iters 1000000 >"$dir/out" 2>&1 &
trainer=$!
within 30 eval 'ctl groups --raw --no-headings --columns state | grep -q READY'
job=$(ctl jobs --raw --no-headings --columns job)
"$bin/zeroctl" --socket "$socket" events --follow --job "$job" >"$dir/followed" 2>"$dir/err" &
follower=$!
within 30 grep -q ' gather ' "$dir/followed"
kill -TERM $trainer
wait $trainer
trainer=
wait $follower
status=$?
follower=
[ $status -eq 0 ] && grep -q "job '$job' has ended" "$dir/err" && [ "$(grep -c 'job end' "$dir/followed")" -eq 1 ]
report $? "--follow ends with its job"

ctl events --follow --job nobody 2>"$dir/err"
[ $? -eq 3 ]
report $? "there has to be one"

"$bin/zeroctl" --socket "$socket" events --follow >"$dir/followed" &
follower=$!
within 30 eval 'ctl status && grep -q "session begin" "$dir/followed"'
kill -INT $follower
wait $follower
status=$?
follower=
[ $status -eq 0 ]
report $? "an interrupt ends it in order"

mkfifo "$dir/pipe"
"$bin/zeroctl" --socket "$socket" events --follow >"$dir/pipe" &
follower=$!
head -n 0 <"$dir/pipe"
wait $follower
status=$?
follower=
[ $status -eq 0 ] || [ $status -eq 141 ]
report $? "so does a closed pipe, also where nothing happens"

ctl events >/dev/full 2>"$dir/err"
[ $? -eq 30 ] && grep -q 'cannot write the output' "$dir/err"
report $? "a full disk is an error"

# A trace, which an interrupt ends.
"$bin/zerobench" --socket "$socket" --op step --ranks 2 --units 4 --maxbytes 64K --iters 1000000 >"$dir/out" 2>&1 &
trainer=$!
within 30 eval 'ctl groups --raw --no-headings --columns state | grep -q READY'
"$bin/zeroctl" --socket "$socket" trace --seconds 600 -o "$dir/trace.json" 2>"$dir/err" &
tracer=$!
within 30 eval '[ "$(cat "$dir"/.trace.json.*.tmp | wc -c)" -gt 200000 ]'
kill -INT $tracer
wait $tracer
status=$?
tracer=
[ $status -eq 0 ] && grep -q 'open it with' "$dir/err" &&
	"$PYTHON" tests/it/trace.py "$dir/trace.json" gathers=20+ copies=20+ leases=20+ waits=10+ reductions=5+ flows=20+ processes=5+
report $? "a trace is valid after an interrupt, with tracks for all"

since=$(date +%s%N)
ctl trace --seconds 0.3 --output - >"$dir/trace.json" 2>"$dir/err" && [ ! -s "$dir/err" ] && ZEROD_TRACE_SINCE=$since "$PYTHON" tests/it/trace.py "$dir/trace.json"
report $? "and on standard output, with the time of day of its begin"

"$bin/zeroctl" --socket "$socket" trace --seconds 600 -o "$dir/trace.json.gz" 2>"$dir/err" &
tracer=$!
within 30 eval '[ "$(cat "$dir"/.trace.json.gz.*.tmp | wc -c)" -gt 20000 ]'
kill -INT $tracer
wait $tracer
status=$?
tracer=
[ $status -eq 0 ] && gzip -t "$dir/trace.json.gz" && "$PYTHON" tests/it/trace.py "$dir/trace.json.gz" gathers=20+ copies=20+ leases=20+ flows=20+
report $? "a file of that name is compressed, and complete after an interrupt, too"

ctl trace --seconds 600 -o /dev/full 2>"$dir/err"
[ $? -eq 30 ] && grep -q 'cannot write ./dev/full.: No space left on device' "$dir/err"
report $? "a full disk ends it, with an error"

ln -s /dev/full "$dir/full.gz"
ctl trace --seconds 600 -o "$dir/full.gz" 2>"$dir/err"
[ $? -eq 30 ] && grep -q 'full.gz.: No space left on device' "$dir/err"
report $? "also where it is compressed"
kill -TERM $trainer
wait $trainer
trainer=

status=0
for seconds in 0 -1 3601 nan ten ''; do
	ctl trace --seconds "$seconds" -o "$dir/none" 2>"$dir/err"
	[ $? -eq 2 ] && grep -q -- '--seconds: expected more than 0 and at most 3600' "$dir/err" || status=1
done
ctl trace --seconds 1 2>"$dir/err"
[ $? -eq 2 ] && [ $status -eq 0 ] && [ ! -e "$dir/none" ]
report $? "wrong usage is told, and no file is made"

ctl trace --seconds 1 -o "$dir/no/where" 2>"$dir/err"
[ $? -eq 30 ] && grep -q 'No such file' "$dir/err"
report $? "so is a file that cannot be made"

if [ "$(id -u)" -eq 0 ] && chmod 666 "$socket"; then
	copy_for_others zeroctl && as_other 65534 zeroctl --socket "$socket" events --json >"$dir/nobodys" 2>"$dir/err" &&
		[ "$(grep -c '"job":"[^"]' "$dir/nobodys")" -eq 0 ] && grep -q '"session_begin"' "$dir/nobodys"
	report $? "another user reads none of these"
else
	skipped "another user reads none of these" "only root can be another user"
fi
stop
report $? "the daemon ends in order"

printf '[daemon]\nevents = 0\n' >"$dir/zerod.conf" && chmod 644 "$dir/zerod.conf" && start --config "$dir/zerod.conf" &&
	"$bin/hello_gather" "$socket" >"$dir/out" && [ "$(ctl events --json | wc -l)" -eq 0 ] &&
	ctl trace --seconds 0.1 -o "$dir/trace.json" 2>/dev/null && "$PYTHON" tests/it/trace.py "$dir/trace.json" && stop
report $? "without events there are none"

printf '[daemon]\nevents = 16\n' >"$dir/zerod.conf" && start --config "$dir/zerod.conf" && "$bin/hello_gather" "$socket" >"$dir/out" &&
	lines=$(ctl events --json 2>"$dir/err" | wc -l) && [ "$lines" -ge 16 ] && [ "$lines" -le 21 ] && [ ! -s "$dir/err" ] &&
	ctl events --since 1 >"$dir/out" 2>"$dir/err" && grep -qE '^[0-9]+ events were overwritten before they were read$' "$dir/err" && stop
report $? "a small ring has the newest, and tells who asked for others"
finish
