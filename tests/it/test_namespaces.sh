#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The namespaces of docs/containers.md: clients in user, mount, pid, ipc, network and uts namespaces of their own, with the socket's folder
# mounted at /run/zerod, beside a daemon outside; and a daemon in namespaces, beside clients outside.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}"
bin=$(realpath "$BUILD/bin") || exit 2
deadline_s=60
make_dir namespaces
chmod 755 "$dir"
inside=

# unshare ignores SIGTERM: its child is the daemon.
stop_daemon() {
	local pid=$daemon child
	child=$(children_of "$pid")
	daemon=
	kill "${child:-$pid}" && wait "$pid"
}
# A step that failed may have left both waiting. unshare's child ends with it.
cleanup() {
	kill -KILL $daemon $inside 2>/dev/null
	wait
	rm -rf "$dir"
}
trap cleanup EXIT

skip_all() { # why
	for _ in 1 2 3 4 5 6 7 8 9 10; do skipped namespaces "$1"; done
	finish
	exit
}
why=$(unshare --user --map-root-user --mount --pid --ipc --net --uts --fork --mount-proc true 2>&1) ||
	skip_all "unshare is not permitted here: ${why//$'\n'/ }"

# A tenant, beside the daemon's own socket.
tenant_uid=12345 other_uid=12346
tenant=$dir/tenants/a
mkdir "$dir/run" && mkdir -m 700 "$dir/tenants" && mkdir -m 755 "$tenant" || exit 2
cat >"$dir/zerod.conf" <<-CONF
	[devices]
	backend = host
	count = 2
	arena = 64M
	[socket tenant]
	path = $tenant/zerod.sock
	mode = 0666
	uid = $tenant_uid
	devices = 0,1
CONF
chmod 644 "$dir/zerod.conf"

start_daemon() { # command in front of the daemon's
	"$@" "$bin/zerod" --foreground --config "$dir/zerod.conf" --socket "$dir/run/zerod.sock" >>"$dir/log" 2>&1 &
	daemon=$!
	within $deadline_s grep -q 'ready after' "$dir/log"
}

# A container: the folder $1 is its /run/zerod, on a tmpfs over all of /run. The rest of the files are the machine's.
container() { # folder, command
	unshare --user --map-root-user --mount --pid --ipc --net --uts --fork --mount-proc --kill-child sh -c '
		mount --bind "$1" /mnt && mount -t tmpfs none /run && mkdir /run/zerod && mount --move /mnt /run/zerod || exit 77
		shift
		exec "$@"' sh "$@"
}

gathers() { # what hello_gather has printed
	[ "$(grep -c 'sees 0 to 127$' "$dir/out")" -eq 2 ]
}

# ---- Clients in namespaces -----------------------------------------------------------------------------------------------------------

start_daemon env
report $? "a daemon with a tenant's socket starts"

container "$dir/run" timeout $deadline_s "$bin/hello_gather" >"$dir/out" 2>&1 && gathers
report $? "a container trains at the daemon's own socket"

container "$tenant" timeout $deadline_s "$bin/hello_gather" >"$dir/out" 2>&1 && gathers
report $? "a container trains at a tenant's socket"

# The container's root is a user like others, and sees the tenant's sessions alone.
container "$tenant" "$bin/zeroctl" sessions --json >"$dir/out" 2>&1 && grep -q "\"uid\": *$tenant_uid" "$dir/out" &&
	grep -q '"process": "unknown"' "$dir/out" && grep -q 'of another pid namespace' "$dir/out" && ! grep -q '"process": "[^u]' "$dir/out" &&
	! container "$tenant" "$bin/zeroctl" drain >"$dir/out" 2>&1 && grep -q 'only administrators' "$dir/out"
report $? "the container's root is the tenant, and no administrator"

# The container has the folder, not the socket's file: a new daemon's socket appears in it.
mkfifo "$dir/go"
container "$tenant" sh -c 'timeout '$deadline_s' "$1/hello_gather" && : >"$2/first" && read -r line <"$2/go" && timeout '$deadline_s' "$1/hello_gather"' sh "$bin" "$dir" \
	>"$dir/out" 2>&1 &
inside=$!
within $deadline_s test -e "$dir/first" && stop_daemon && : >"$dir/log" && start_daemon env && echo >"$dir/go" && wait $inside &&
	[ "$(grep -c 'sees 0 to 127$' "$dir/out")" -eq 4 ]
report $? "a container that keeps running finds the next daemon"
stop_daemon

# ---- A daemon in namespaces ----------------------------------------------------------------------------------------------------------

: >"$dir/log"
start_daemon unshare --user --map-root-user --pid --ipc --fork --mount-proc --kill-child
report $? "a daemon starts in namespaces of its own"

timeout $deadline_s "$bin/hello_gather" "$dir/run/zerod.sock" >"$dir/out" 2>&1
grep -q "PERMISSION.*outside the daemon's pid namespace" "$dir/out"
report $? "its own socket refuses clients outside its pid namespace"

timeout $deadline_s "$bin/hello_gather" "$tenant/zerod.sock" >"$dir/out" 2>&1
if grep -q 'with Linux 6.5' "$dir/out"; then
	skipped "a tenant's socket serves them" "the kernel gives no pidfd of a peer"
else
	gathers
	report $? "a tenant's socket serves them"
fi

# A user without a uid in its user namespace.
if [ "$(id -u)" -ne 0 ]; then
	skipped "a tenant's socket serves a user without a uid there" "only root can be another user"
elif grep -q 'with Linux 6.5' "$dir/out"; then
	skipped "a tenant's socket serves a user without a uid there" "the kernel gives no pidfd of a peer"
else
	copy_for_others hello_gather && unshare --mount sh -c 'mount --bind "$1" /mnt && shift && exec "$@"' sh "$tenant" \
		setpriv --reuid=$other_uid --regid=$other_uid --clear-groups timeout $deadline_s "$dir/for-others/hello_gather" /mnt/zerod.sock \
		>"$dir/out" 2>&1 && gathers
	report $? "a tenant's socket serves a user without a uid there"
fi

stop_daemon
report $? "it ends on SIGTERM, as process 1"
finish
