# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# base.sh - a bare Debian 12, debootstrap's minbase, kept in $BUILD/packages; to be sourced, as root. DEBIAN_MIRROR names another archive.
#   debian_base          makes it if it is missing, and sets base to its folder
#   debian_apt FOLDER    a copy's apt asks the archive as this machine's does, installs without questions and without recommended packages
debian_base() {
	base=$(realpath -m "$BUILD/packages/minbase")
	[ ! -d "$base" ] || return 0
	rm -rf "$base.new" && mkdir -p "$base.new" &&
		debootstrap --variant=minbase bookworm "$base.new" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$BUILD/packages/log" 2>&1 &&
		mv "$base.new" "$base" || { tail "$BUILD/packages/log"; return 2; }
}
debian_apt() {
	export DEBIAN_FRONTEND=noninteractive LC_ALL=C
	cp /etc/resolv.conf "$1/etc/resolv.conf" &&
		{ printf '%s\n' 'APT::Get::Assume-Yes "true";' 'APT::Install-Recommends "false";' &&
			apt-config dump | grep -E '^Acquire::(https?|Check-|Force)'; } >"$1/etc/apt/apt.conf.d/test"
}
