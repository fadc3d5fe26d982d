#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# zeroctl metrics of a daemon that runs small jobs: valid OpenMetrics whose counters grow as they should, the same for every user, and
# over HTTP; and the dashboard's queries.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}" "${PYTHON:=python3}"
"$PYTHON" -c 'import prometheus_client' 2>/dev/null || [ ! -x /usr/bin/python3 ] || PYTHON=/usr/bin/python3
bin=$BUILD/bin
make_dir metrics
ctl() { "$bin/zeroctl" --socket "$socket" "$@"; }
check() { "$PYTHON" tests/it/metrics.py "$@"; }
idle() { [ "$(ctl sessions --json | grep -c '"pid"')" -eq 1 ]; }

start_daemon --backend host --devices 2 --arena 64M
report $? "a daemon starts"

ctl metrics >"$dir/idle" && ctl metrics --format prometheus >"$dir/classic" && check text "$dir/idle" "$dir/classic"
status=$?
if [ $status -eq 77 ]; then
	skipped "an idle daemon's metrics are OpenMetrics, or valid in the older format" "there is no prometheus_client"
else
	report $status "an idle daemon's metrics are OpenMetrics, or valid in the older format"
fi

# Two ranks, each gathers once; the last scrape was a session of its own.
"$bin/hello_gather" "$socket" >"$dir/out" && within 30 idle && ctl metrics >"$dir/gathered" &&
	check grown "$dir/idle" "$dir/gathered" 'zerod_gathers_total{outcome="transferred"}=2' 'zerod_gathers_total{outcome="failed"}=0' \
		'zerod_gather_duration_seconds_count=2' 'zerod_requests_total{kind="gather"}=2' 'zerod_requests_total{kind="group_join"}=2' \
		'zerod_gathered_bytes_total=1024' 'zerod_request_wait_seconds_count{reason="ranks"}=1' 'zerod_sessions_lost_total=0' \
		'zerod_copied_bytes_total{device="0"}=1+' 'zerod_sessions=0' 'zerod_memory_bytes{device="0",purpose="gathered"}=0'
report $? "two gathers are two, and what they took is free"

"$bin/zerobench" --socket "$socket" --op step --ranks 2 --units 4 --maxbytes 64K --iters 1 >"$dir/out" 2>&1 && within 30 idle && ctl metrics >"$dir/trained" &&
	check grown "$dir/gathered" "$dir/trained" 'zerod_reductions_total{outcome="complete"}=2+' 'zerod_reductions_total{outcome="failed"}=0' \
		'zerod_gathers_total{outcome="transferred"}=2+' 'zerod_group_failures_total{cause="rank_lost"}=0' \
		'zerod_sessions_lost_total=0'
report $? "a training reduces, and loses nothing"

# A rank is killed while others look.
"$bin/zerobench" --socket "$socket" --op step --ranks 2 --units 4 --maxbytes 64K --iters 1000000 >"$dir/out" 2>&1 &
trainer=$!
rank_pid() { ctl sessions --raw --no-headings --columns name,pid,job | awk '$1 == "zerobench" && $3 != "-" {print $2}' | grep . | tail -n 1; }
within 30 rank_pid
pid=$(rank_pid)
job=$(ctl jobs --json | sed -n 's/.*"job": "\([^"]*\)".*/\1/p; s/.*"name": "\([^"]*\)".*/\1/p' | head -n 1)
ctl metrics >"$dir/running"
[ -n "$job" ] && [ -n "$pid" ] && ! grep -qE "\"($job|$pid|zerobench[^\"]*|root|uid|$(id -un))\"" "$dir/running"
report $? "metrics name no job, process, session or user"
if [ "$(id -u)" -eq 0 ] && chmod 666 "$socket"; then
	copy_for_others zeroctl && as_other 65534 zeroctl --socket "$socket" metrics >"$dir/nobody" 2>"$dir/err" &&
		[ "$(as_other 65534 zeroctl --socket "$socket" jobs --json | grep -c '"name"')" -eq 0 ] &&
		check same "$dir/running" "$dir/nobody"
	report $? "a user who sees no job gets the same series"
else
	skipped "a user who sees no job gets the same series" "only root can be another user"
fi
kill -KILL "$pid"
wait $trainer
within 30 idle && ctl metrics >"$dir/lost" &&
	check grown "$dir/running" "$dir/lost" 'zerod_group_failures_total{cause="rank_lost"}=1' 'zerod_sessions_lost_total=1+'
report $? "a lost rank is counted"

parsed=0
for file in gathered trained running lost; do
	check text "$dir/$file" || parsed=$?
done
[ $parsed -eq 0 ] || [ $parsed -eq 77 ]
report $? "and all of it is OpenMetrics with consistent histograms"

check dashboard packaging/grafana/zerod.json "$dir/lost"
report $? "the dashboard queries all metrics, and no other"

[ "$(ctl metrics | head -n 1)" = '# TYPE zerod_build info' ] && ctl status >/dev/null
report $? "a closed pipe hurts nobody"
ctl metrics >/dev/full 2>"$dir/err"
[ $? -eq 30 ] && grep -q 'cannot write the output' "$dir/err"
report $? "a full disk is an error"

check http "$bin/zeroctl" --socket "$socket" metrics --http
report $? "HTTP is answered"
check listener "$bin/zeroctl" --socket "$socket" metrics --http
report $? "silent connections hold no place"

stop_daemon
report $? "the daemon ends in order"
printf 'GET /metrics HTTP/1.1\r\n\r\n' | ctl metrics --http >"$dir/out" 2>"$dir/err" && grep -q '^HTTP/1.1 503 ' "$dir/out" &&
	grep -q 'no daemon listens\|systemctl start zerod' "$dir/err"
report $? "without a daemon the service is unavailable, and the log says why"
ctl metrics >"$dir/out" 2>"$dir/err"
[ $? -eq 25 ] && [ ! -s "$dir/out" ]
report $? "and zeroctl metrics prints nothing"
finish
