#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The units under a systemd of their own: a container of this machine's files, which nothing that happens here changes, with its own
# processes, users and network. As root, with systemd-nspawn (package systemd-container). GPUs are the driver's double. $BUILD is what
# make and make tests built. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
. tests/systemd/container.sh
: "${BUILD:=build}"
container_begin

# ---- The container -----------------------------------------------------------------------------------------------------------------

container_mount /
rm -rf "$root"/etc/systemd/system/* "$root/etc/fstab" "$root/etc/zerod" && : >"$root/etc/machine-id"
make -s install DESTDIR="$root" PREFIX=/usr BUILD="$BUILD" >"$dir/installed" && systemd-sysusers --root="$root" 2>"$dir/users" || exit 2
mkdir -p "$root/opt/zerod/late" "$root/etc/systemd/system/zerod.service.d"
install -m 755 "$BUILD"/bin/{hello_gather,gpu_gather,commits} "$root/opt/zerod" && install -m 755 "$BUILD"/tests/double/*.so* "$root/opt/zerod" || exit 2
container_boot

# ---- What is asked -----------------------------------------------------------------------------------------------------------------

property() { # name
	inside systemctl show --property "$1" --value zerod.service
}
is() { # unit, state
	[ "$(inside systemctl is-active "$1.$2")" = "$3" ]
}
said() { # text
	inside journalctl --unit zerod.service --output cat --no-pager | grep -qF -- "$1"
}
status() {
	inside timeout $deadline_s zeroctl status >"$dir/status" 2>&1
}
as_nobody() {
	inside setpriv --reuid=65534 --regid=65534 --clear-groups timeout 120 "$@"
}
configure() { # lines
	mkdir -p "$root/etc/zerod" && printf '%s\n' "$@" >"$root/etc/zerod/zerod.conf" && chmod 644 "$root/etc/zerod/zerod.conf"
}
drop_in() { # lines of [Service]
	printf '%s\n' '[Service]' "$@" >"$root/etc/systemd/system/zerod.service.d/test.conf"
	inside systemctl daemon-reload
}
restarts() { # at least
	[ "$(property NRestarts)" -ge "$1" ]
}

configure '[devices]' 'backend = host' 'count = 2' 'arena = 64M'
inside systemd-analyze verify zerod.service zerod.socket zerod-metrics.socket zerod-metrics.service >"$dir/out" 2>&1 && [ ! -s "$dir/out" ] &&
	[ "$(inside systemctl show --property TriggerLimitIntervalUSec --value zerod.socket zerod-metrics.socket | xargs)" = '0 0' ]
report $? "systemd finds nothing wrong with the units, whose sockets have no limit that other users could reach"

inside systemctl enable --now --quiet zerod.socket && is zerod socket active && is zerod service inactive && status && is zerod service active
report $? "the first client starts the service"

as_nobody zeroctl self-test >"$dir/out" 2>&1 && [ "$(as_nobody /opt/zerod/hello_gather | grep -c 'sees 0 to 127$')" -eq 2 ]
report $? "any user may train"

inside journalctl --unit zerod.service --output json --no-pager | grep -q '"ZEROD_SESSION"'
report $? "the journal has the sessions' numbers as fields"

fetch() { # method, path: the answer of the metrics' socket
	inside bash -c 'exec 3<>/dev/tcp/127.0.0.1/9465 && printf "%s %s HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n" "$1" "$2" >&3 && timeout 60 cat <&3' - "$@" \
		>"$dir/metrics" 2>"$dir/out"
}
! fetch GET /metrics && inside systemctl start zerod-metrics.socket && fetch GET /metrics && grep -q '^HTTP/1.1 200 OK' "$dir/metrics" &&
	grep -q '^zerod_gathers_total{outcome="transferred"} 4$' "$dir/metrics" && [ "$(tail -n 1 "$dir/metrics")" = '# EOF' ] &&
	fetch GET / && grep -q '^HTTP/1.1 404 ' "$dir/metrics" && [ -z "$(inside systemctl list-units --failed --plain --no-legend 'zerod-metrics*')" ]
report $? "metrics are served when their socket is started, and not before"
inside bash -c 'for i in $(seq 100); do exec {fd}<>/dev/tcp/127.0.0.1/9465 || exit 1; done
	for i in $(seq 400); do exec 3<>/dev/tcp/127.0.0.1/9465 || exit 1; done
	systemctl kill --signal KILL zerod-metrics.service; sleep infinity' 2>"$dir/out" &
silent=$!
until_true fetch GET /metrics && grep -q '^HTTP/1.1 200 OK' "$dir/metrics" && is zerod-metrics socket active
report $? "silent connections and hundreds of short ones deny nobody metrics, nor does an exporter that is killed"
kill $silent
printf '%s\n' '[Socket]' ListenStream=127.0.0.1:9465 >"$root/etc/systemd/system/other-metrics.socket"
cp "$root"/usr/lib/systemd/system/zerod-metrics.service "$root/etc/systemd/system/other-metrics.service"
inside systemctl daemon-reload
! inside systemctl start other-metrics.socket 2>"$dir/out" && inside journalctl --unit other-metrics.socket --output cat --no-pager | grep -q 'Address already in use'
report $? "a second exporter on the port is told so by systemd"
rm "$root"/etc/systemd/system/other-metrics*
inside systemctl stop zerod-metrics.socket

inside systemctl reload zerod && until_true said 'reloaded the limits'
report $? "a reload takes the limits over"

configure '[limits]' 'max_session = 3'
inside systemctl reload zerod && until_true said 'max_session: unknown key' && said 'the former limits remain' && status && is zerod service active
report $? "a reload of what makes no sense changes nothing"

# It is not served, and does not get better by itself; whoever comes starts it once.
inside systemctl restart zerod 2>"$dir/out"
[ "$(property ExecMainStatus)" -eq 2 ] && is zerod service failed && is zerod socket active
report $? "the service does not start with it, and is not started again"

turned_away=0
for _ in 1 2 3 4 5 6 7 8; do
	status
	[ $? -eq 26 ] && grep -q 'before its first answer; its log has the reason' "$dir/status" && turned_away=$((turned_away + 1))
done
inside sh -c 'for i in $(seq 60); do zeroctl status; done' >"$dir/status" 2>&1
[ $turned_away -eq 8 ] && [ "$(grep -c 'before its first answer' "$dir/status")" -eq 60 ] && is zerod socket active
report $? "clients are turned away then, however many come, and the socket stays"

configure '[devices]' 'backend = host' 'count = 2' 'arena = 64M'
status && is zerod service active
report $? "with the file mended, the next client starts the service"

inside kill -KILL "$(property MainPID)" && status && restarts 1
report $? "a daemon that is killed comes again, and who comes meanwhile is served"

# It leaves a durable job.
as_nobody /opt/zerod/commits >"$dir/commits"
keeps_job() {
	status && inside zeroctl jobs | grep -q 'commits-.* 65534 *yes'
}
keeps_job && inside kill -KILL "$(property MainPID)" && until_true restarts 2 && keeps_job && said 'restored durable jobs of the former daemon: 1'
report $? "a durable job outlives a daemon that is killed"
inside systemctl restart zerod && keeps_job && [ "$(property NFileDescriptorStore)" -eq 2 ]
report $? "and a restart"
inside systemctl stop zerod && ! keeps_job && is zerod service active
report $? "but not a stop"

drop_in WatchdogSec=1
inside systemctl restart zerod && inside kill -STOP "$(property MainPID)" && until_true restarts 1 && status
report $? "a daemon that stands still is ended, and comes again"

# More lines than its queue takes: those of sessions that are never a rank are at level debug.
configure '[daemon]' 'log_level = debug' '[devices]' 'backend = host' 'count = 2' 'arena = 64M'
inside systemctl reload zerod
pid=$(property MainPID)
journal=$(inside systemctl show --property MainPID --value systemd-journald)
inside kill -STOP "$journal" && inside sh -c 'for i in $(seq 600); do zeroctl status >/dev/null || exit 1; done' &&
	[ "$(property MainPID)" = "$pid" ]
report $? "a journal that stands still holds up nobody"
inside kill -CONT "$journal"
lines_lost() {
	status && said 'lines of the log are lost: nobody read them'
}
until_true lines_lost
report $? "what it has missed is told"

# The recipe of docs/containers.md.
printf '%s\n' '[Socket]' 'ListenSequentialPacket=/run/zerod-tenants/a/zerod.sock' 'SocketMode=0666' Service=zerod.service \
	>"$root/etc/systemd/system/zerod-a.socket"
configure '[devices]' 'backend = host' 'count = 2' 'arena = 64M' '[socket a]' 'path = /run/zerod-tenants/a/zerod.sock' 'uid = 12345'
inside systemctl daemon-reload
inside systemctl stop zerod.service zerod.socket 2>"$dir/out"
inside systemctl start zerod.socket zerod-a.socket && is zerod service inactive &&
	[ "$(as_nobody /opt/zerod/hello_gather /run/zerod-tenants/a/zerod.sock | grep -c 'sees 0 to 127$')" -eq 2 ] && said '(uid 12345) started' &&
	is zerod service active && status && inside systemctl restart zerod.service &&
	inside zeroctl --socket /run/zerod-tenants/a/zerod.sock sessions --json | grep -q '"uid": 12345'
report $? "a tenant's socket unit starts the service, whose path names the tenant"
inside systemctl stop zerod.service zerod-a.socket 2>"$dir/out"
rm "$root/etc/systemd/system/zerod-a.socket"

drop_in Environment=LD_LIBRARY_PATH=/opt/zerod/late
configure '[devices]' 'backend = cuda' 'arena = 64M'
inside systemctl restart --no-block zerod && until_true restarts 2 && said 'there is no CUDA driver'
report $? "without a driver the service is started again and again"
cp "$root"/opt/zerod/libcuda.so.1 "$root"/opt/zerod/late && until_true status && grep -q '^backend *cuda$' "$dir/status"
report $? "until there is one"

[ "$(as_nobody env LD_LIBRARY_PATH=/opt/zerod /opt/zerod/gpu_gather | grep -c ': 1000000 of 1000000 numbers are right$')" -eq 2 ]
report $? "what the unit forbids the daemon is nothing that GPUs' memory needs"

drop_in RestartSec=1
configure '[devices]' 'backend = host' 'count = 4' 'arena = 64M'
inside systemctl restart zerod
as_nobody zerobench --socket /run/zerod/zerod.sock --op step --ranks 4 --units 4 --maxbytes 64K --iters 1000000 >"$dir/trainer" 2>&1 &
trainer=$!
training() {
	inside zeroctl groups --raw --no-headings --columns state | grep -q READY
}
until_true training && inside systemctl stop zerod 2>"$dir/out" && [ "$(property Result)" = success ] && said 'draining, open sessions: 4'
report $? "a stop gives trainers their time"
wait $trainer
grep -q 'SHUTDOWN.*the daemon ended: drained by SIGTERM, deadline of 10 s passed' "$dir/trainer" && is zerod socket active && status && is zerod service active
report $? "they hear why, and the socket stays"

[ $failures -eq 0 ] || inside journalctl --unit zerod.service --unit zerod.socket --no-pager
echo "$((number - failures)) passed, $failures failed"
[ $failures -eq 0 ]
