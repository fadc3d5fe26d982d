# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# container.sh - a systemd of its own in a container, on a copy of a folder that is thrown away at the end; to be sourced as root, after
# tests/it/tap.sh:
#   container_begin PROGRAM...     checks for root, systemd-nspawn and other programs, and runs the script again with mounts of its own
#   container_mount FOLDER         a writable copy of the folder, whose files stay as they are; sets dir (for scratch files) and root
#   container_boot                 starts systemd in it, without network
#   inside COMMAND...              runs a command in it
#   until_true COMMAND...          asks again until the command says yes; deadline_s is the limit
deadline_s=60
dir='' root='' container='' init=''

container_begin() {
	[ "${CONTAINER_BEGUN:-}" != 1 ] || return 0
	[ "$(id -u)" -eq 0 ] || { echo "$0: mounts and containers are root's" >&2; exit 2; }
	local program
	for program in systemd-nspawn nsenter unshare "$@"; do
		command -v "$program" >/dev/null || { echo "$0: there is no $program: apt-get install systemd-container util-linux" >&2; exit 2; }
	done
	CONTAINER_BEGUN=1 exec unshare --mount --propagation private "$0" # mounts end with the script
}
container_end() {
	[ -z "$init" ] || inside systemctl poweroff --force --force 2>"$dir/poweroff" || kill -KILL "$container"
	[ -z "$container" ] || wait "$container" 2>>"$dir/poweroff"
	[ -z "$root" ] || umount "$root" "$dir/files"
	rm -rf "$dir"
}
container_mount() {
	dir=$(mktemp -d "${TMPDIR:-/tmp}/zerod-container.XXXXXX") || exit 2
	trap container_end EXIT
	trap 'exit 1' INT TERM HUP
	mkdir "$dir/files" && mount -t tmpfs zerod "$dir/files" && mkdir "$dir/files/upper" "$dir/files/work" "$dir/files/root" &&
		mount -t overlay zerod -o "lowerdir=$1,upperdir=$dir/files/upper,workdir=$dir/files/work" "$dir/files/root" || exit 2
	root=$dir/files/root
}
container_boot() {
	setsid systemd-nspawn -q -D "$root" --register=no --keep-unit -M zerod-test --private-network --console=pipe /lib/systemd/systemd \
		--unit=basic.target >"$dir/console" 2>&1 </dev/null &
	container=$!
	until_true container_runs || { cat "$dir/console"; exit 2; }
}
container_runs() {
	init=$(children_of $container) # at first another process, which starts this one
	[ -n "$init" ] && inside systemctl is-system-running 2>&1 | grep -qE 'running|degraded'
}
inside() {
	nsenter -t "$init" -m -u -i -n -p -C -- "$@"
}
until_true() {
	local deadline=$((SECONDS + deadline_s))
	until "$@"; do
		[ $SECONDS -lt $deadline ] || return 1
		sleep 0.05
	done
}
