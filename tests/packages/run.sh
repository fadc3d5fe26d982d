#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The Debian packages of `make deb` in a Debian 12 that has nothing else: the README's three commands, clients of each package, upgrades
# with and without state that survives, a downgrade, removal. As root, with debootstrap and systemd-nspawn; Debian's archive is asked
# for the base system (kept in $BUILD/packages) and for what the packages depend on. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
. tests/systemd/container.sh
. tests/packages/base.sh
: "${BUILD:=build}"
container_begin debootstrap dpkg-deb

# ---- The container -----------------------------------------------------------------------------------------------------------------

debian_base || exit 2
container_mount "$base"

# A package of another version with the same files.
repack() { # deb, version
	local old
	old=$(dpkg-deb -f "$1" Version)
	rm -rf "$dir/repacked"
	dpkg-deb -R "$1" "$dir/repacked" && sed -i "s/^Version: .*/Version: $2/; s/(= $old)/(= $2)/" "$dir/repacked/DEBIAN/control" &&
		dpkg-deb --root-owner-group -Znone -b "$dir/repacked" "$root/root/newer" >"$dir/out"
}
mkdir "$root/root/newer" "$root/opt/zerod"
for deb in "$BUILD"/deb/*.deb; do
	case $deb in *-dbgsym_*) continue ;; esac
	cp "$deb" "$root/root" && repack "$deb" 9.0.0-1 || exit 2
done
install -m 755 "$BUILD"/bin/commits "$root/opt/zerod" || exit 2
debian_apt "$root" || exit 2
# Installed below: it restarts all services whose files were replaced, as some distributions have it.
mkdir -p "$root/etc/needrestart/conf.d"
echo "\$nrconf{restart} = 'a';" >"$root/etc/needrestart/conf.d/automatic.conf"
# There is no network later on: what apt has to fetch it finds in its cache.
chroot "$root" sh -c 'apt-get -q update && apt-get -q install systemd systemd-sysv && cd /root &&
	apt-get -q install --download-only ./*.deb needrestart' >"$dir/out" 2>&1 ||
	{ cat "$dir/out"; exit 2; }
container_boot

# ---- What is asked -----------------------------------------------------------------------------------------------------------------

property() { # name
	inside systemctl show --property "$1" --value zerod.service
}
is() { # unit, state
	[ "$(inside systemctl is-active "$1.$2")" = "$3" ]
}
as_nobody() {
	inside setpriv --reuid=65534 --regid=65534 --clear-groups timeout 120 "$@"
}
at_root() { # command line, in the folder with the packages
	inside sh -c "cd /root && $1" >"$dir/out" 2>&1 || { cat "$dir/out"; return 1; }
}
upgrade() {
	at_root 'apt install ./newer/*.deb' && [ "$(inside dpkg-query -W -f '${Version}' zerod)" = 9.0.0-1 ]
}
downgrade() {
	at_root 'apt install --allow-downgrades ./*.deb' && [ "$(inside dpkg-query -W -f '${Version}' zerod)" != 9.0.0-1 ]
}
told() { # text in what apt printed
	grep -qF -- "$1" "$dir/out"
}
# Whether the daemon is the same process, which runs a program that dpkg has replaced.
same_daemon() {
	[ "$(property MainPID)" = "$pid" ] && inside readlink "/proc/$pid/exe" | grep -q 'deleted'
}
other_daemon() {
	local now
	now=$(property MainPID)
	[ "$now" -ne 0 ] && [ "$now" != "$pid" ] && [ "$(inside readlink "/proc/$now/exe")" = /usr/bin/zerod ]
}
jobs_are() { # regular expression of a line, or nothing for no job
	local jobs
	jobs=$(inside timeout $deadline_s zeroctl jobs) || return 1
	if [ -n "$1" ]; then grep -q "$1" <<<"$jobs"; else [ "$(wc -l <<<"$jobs")" -le 1 ]; fi
}
durable='commits-.* 65534 *yes'
configure() { # lines
	printf '%s\n' "$@" '[devices]' 'backend = host' 'count = 4' 'arena = 64M' >"$root/etc/zerod/zerod.conf"
}

mapfile -t commands < <(awk '/three commands/ { on = 1 } on && /^```/ { if (inner) exit; inner = 1; next }
	inner { sub(/ +#.*/, ""); print }' README.md)
[ ${#commands[@]} -eq 3 ] && at_root "${commands[0]}" && is zerod socket active && at_root "${commands[1]}" &&
	is zerod service active && at_root "${commands[2]}" && told SERVING
report $? "the README's three commands: packages, a running service, a client"
[ "$(inside stat -c '%U %a' /etc/zerod/zerod.conf /run/zerod | tr '\n' ' ')" = 'root 644 zerod 755 ' ] &&
	inside zerod --check-config >"$dir/out" 2>&1 &&
	[ "$(inside systemctl is-enabled zerod.service zerod.socket | tr '\n' ' ')" = 'enabled enabled ' ]
report $? "the configuration is in place, the user exists, both units are enabled"
inside test ! -e /bin/kill && at_root 'systemctl reload zerod' && reloaded() { inside journalctl --unit zerod --output cat | grep -q 'reloaded the limits'; } &&
	until_true reloaded
report $? "a reload needs no program that the base system lacks"
at_root 'apt install ./*.deb' && as_nobody zeroctl self-test && as_nobody zerobench --socket /run/zerod/zerod.sock --iters 2 --minbytes 64K --maxbytes 64K >"$dir/out" 2>&1
report $? "any user's self-test passes, and any user trains: four ranks of zerobench"
at_root 'zeroctl events >events && grep -q "session begin .*zerobench" events && zeroctl snapshot -o page.html && grep -q "^</html>$" page.html &&
	zeroctl trace --seconds 0.1 -o trace.json.gz && gzip -t trace.json.gz &&
	printf q | TERM=xterm timeout 60 script -qec "zeroctl top" top && grep -q "SERVING, up" top && zeroctl metrics | grep -q "^# EOF$"'
report $? "so do zeroctl's events, page, trace, live view and metrics"
as_nobody python3 -c '
import zerod
with zerod.Client() as client, client.join(job="python") as group:
    assert group.register("unit", zerod.DType.FLOAT32, 8).shard().true_numel == 8' >"$dir/out" 2>&1 || { cat "$dir/out"; false; }
report $? "a Python program of python3-zerod does"
triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
flags=$(PKG_CONFIG_LIBDIR=$root/usr/lib/$triplet/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root pkg-config --cflags --libs zerod) &&
	cc "$root/usr/share/doc/libzerod-dev/examples/hello_gather.c" $flags -I"$root/usr/include" -o "$root/opt/zerod/hello" -Wl,--allow-shlib-undefined &&
	readelf -d "$root/opt/zerod/hello" | grep -q 'NEEDED.*libzerod.so.0' && as_nobody /opt/zerod/hello | grep -q 'sees 0 to 127$'
report $? "an example of libzerod-dev compiles with its pkg-config file, and runs"

at_root 'apt install needrestart'
pid=$(property MainPID)
jobs_are '' && upgrade && other_daemon && is zerod socket active
report $? "an upgrade restarts a daemon that has no job"
pid=$(property MainPID)
downgrade && other_daemon
report $? "so does a downgrade"

configure
inside systemctl restart zerod && as_nobody /opt/zerod/commits >"$dir/commits" && jobs_are "$durable" && pid=$(property MainPID) && upgrade &&
	other_daemon && jobs_are "$durable" && ! told 'goes on' && grep -q '^count = 4$' "$root/etc/zerod/zerod.conf"
report $? "an upgrade restarts a daemon whose job is durable, and the job survives, as does a changed configuration"
pid=$(property MainPID)
downgrade && other_daemon && jobs_are "$durable"
report $? "so does it in a downgrade"

configure '[daemon]' 'no_such_key = 1'
pid=$(property MainPID)
upgrade && same_daemon && told 'rejects its configuration' && told 'systemctl restart zerod' && jobs_are "$durable"
report $? "with a configuration that the new version rejects the daemon goes on"
configure
downgrade && jobs_are "$durable" && inside systemctl stop zerod 2>"$dir/out" && jobs_are ''

as_nobody zerobench --socket /run/zerod/zerod.sock --op step --ranks 4 --units 4 --maxbytes 64K --iters 1000000 >"$dir/trainer" 2>&1 &
trainer=$!
until_true jobs_are ' no ' && pid=$(property MainPID) && upgrade && same_daemon && told 'not durable' && told 'systemctl restart zerod' &&
	jobs_are ' no '
report $? "with a job that is not durable the daemon goes on, and a notice names the command"
inside zeroctl kill-job "$(inside zeroctl jobs | awk 'NR == 2 { print $1 }')" >"$dir/out"
wait $trainer
downgrade

configure '[daemon]' 'keep_state = none'
inside systemctl restart zerod && as_nobody /opt/zerod/commits >"$dir/commits" && jobs_are "$durable" && pid=$(property MainPID) && upgrade &&
	same_daemon && told 'keep_state' && jobs_are "$durable"
report $? "with keep_state = none and a durable job the daemon goes on"
inside systemctl restart zerod && other_daemon && jobs_are ''
report $? "the command of the notice starts the new version"

at_root 'apt remove zerod' && is zerod service inactive && is zerod socket inactive && [ ! -e "$root/usr/bin/zerod" ] &&
	inside test ! -e /run/zerod && grep -q '^keep_state = none$' "$root/etc/zerod/zerod.conf"
report $? "removal ends service and socket, and keeps the configuration"
at_root 'cd newer && apt install ./zerod_*.deb' && is zerod socket active &&
	grep -q '^keep_state = none$' "$root/etc/zerod/zerod.conf" && inside zeroctl status | grep -q SERVING
report $? "installed again the daemon has it"
at_root 'apt purge zerod zerod-tools libzerod0 libzerod-dev python3-zerod' &&
	left=$(inside find / -xdev \( -path /root -o -path /opt/zerod -o -path /var/cache/apt -o -path /proc -o -path /sys \) -prune -o \
		-name '*zerod*' -print) && [ -z "$left" ] && inside test ! -e /run/zerod &&
	! inside systemctl cat zerod.service >"$dir/out" 2>&1 && inside getent passwd zerod >"$dir/out"
report $? "a purge leaves the user alone ${left:+(and $left)}"

[ $failures -eq 0 ] || inside journalctl --unit zerod.service --unit zerod.socket --no-pager
echo "$((number - failures)) passed, $failures failed"
[ $failures -eq 0 ]
