#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `make check` of the last commit in a Debian 12 that has git, make and the packages that packaging/deps.sh installs. FRESH_USER=root runs
# it as root, other values (default: tester) name an ordinary user without sudo. Both work below a folder of mode 0700. Ends as `make check`
# does. As root, with debootstrap.
#   tests/packages/fresh.sh              make check
#   tests/packages/fresh.sh COMMAND      another command line, in the clone
#   tests/packages/fresh.sh --possible   says whether this machine permits it, and why not
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/packages/base.sh
: "${BUILD:=build}" "${FRESH_USER:=tester}"
place=$BUILD/packages/fresh

if [ "${FRESH_BEGUN:-}" != 1 ]; then
	[ "$(id -u)" -eq 0 ] || { echo "only root may mount"; exit 1; }
	why=$(unshare --mount --pid --fork mount -t tmpfs none /mnt 2>&1) || { echo "${why//$'\n'/ }"; exit 1; }
	[ "${1:-}" != --possible ] || exit 0
	debian_base && mkdir -p "$place" || exit 2
	# Mounts, the files in them and processes end with the namespaces, and these with unshare.
	base=$base FRESH_BEGUN=1 unshare --mount --pid --fork --kill-child --propagation private "$0" "$@" &
	trap 'kill -KILL $!; wait; exit 130' INT TERM HUP
	wait $!
	exit
fi

# ---- The root ----------------------------------------------------------------------------------------------------------------------

root=$place/root
mount -t tmpfs -o mode=755 fresh "$place" && mkdir "$place/upper" "$place/work" "$root" &&
	mount -t overlay fresh -o "lowerdir=$base,upperdir=$place/upper,workdir=$place/work" "$root" &&
	mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev" &&
	mount -t tmpfs -o mode=1777 shm "$root/dev/shm" && mount -t tmpfs -o mode=1777 tmp "$root/tmp" &&
	cp /etc/hosts "$root/etc/hosts" && debian_apt "$root" || exit 2
[ -z "$(git status --porcelain --untracked-files=no)" ] || echo "make check-fresh: changes that are not committed are left out" >&2
git clone --quiet --bare --depth 1 "file://$PWD" "$root/srv/zerod.git" || exit 2
# Not chroot(): a process in one may make no user namespace.
cd "$root" && pivot_root . mnt && cd / && umount --lazy /mnt || exit 2
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
hash -r

# ---- What a user does --------------------------------------------------------------------------------------------------------------

{ apt-get -q update && apt-get -q install git make; } >/root/apt 2>&1 || { tail /root/apt; exit 2; }
[ "$FRESH_USER" = root ] || useradd --create-home --shell /bin/bash "$FRESH_USER" || exit 2
home=$(getent passwd "$FRESH_USER" | cut -d: -f6)
chmod 700 "$home" && chown -R "$FRESH_USER" /srv/zerod.git || exit 2
as_user() {
	setpriv --reuid="$FRESH_USER" --regid="$FRESH_USER" --init-groups --reset-env env ${JOBS:+JOBS="$JOBS"} "$@"
}
as_user git clone --quiet /srv/zerod.git "$home/zerod" && "$home/zerod/packaging/deps.sh" || exit 2
as_user sh -c "cd ~/zerod && ${*:-make check}"
