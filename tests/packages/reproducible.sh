#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the tarball of `make dist` twice, in folders of other names and lengths and without git, and compares what `make install` puts
# down, byte by byte; user's flags drop none that the tree needs. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}" "${VERSION:?}"
tarball=$(realpath "$BUILD/zerod-$VERSION.tar.xz") || exit 2
unset MAKEFLAGS MFLAGS MAKELEVEL BUILD VERSION
trap 'rm -rf "$dir"' EXIT
dir=$(mktemp -d "${TMPDIR:-/tmp}/zerod-reproducible.XXXXXX") && cp "$tarball" "$dir/tarball" || exit 2

build() { # folder
	mkdir -p "$dir/$1" && tar -C "$dir/$1" --strip-components=1 -xf "$dir/tarball" &&
		GIT_CEILING_DIRECTORIES=/ make -C "$dir/$1" -j2 CFLAGS=-O3 install DESTDIR="$dir/$1/put" PREFIX=/usr \
			LIBDIR=/usr/lib/triplet SBINDIR=/usr/sbin SYSCONFDIR=/site/etc >"$dir/log" 2>&1 || { tail "$dir/log"; return 1; }
}
build a && build a/folder/with/a/longer/path
report $? "the tarball builds without git"
diff -r "$dir/a/put" "$dir/a/folder/with/a/longer/path/put"
report $? "two folders give the same bytes"
! grep -rqF "$dir" "$dir/a/put"
report $? "which name neither"
put=$dir/a/put
[ -x "$put/usr/sbin/zerod" ] && [ -e "$put/usr/lib/triplet/libzerod.so.0" ] && [ -e "$put/site/etc/zerod/zerod.conf" ] &&
	grep -q '^ExecStart=/usr/sbin/zerod --config /site/etc/zerod/zerod.conf$' "$put/usr/lib/systemd/system/zerod.service" &&
	[ "$(PKG_CONFIG_LIBDIR=$put/usr/lib/triplet/pkgconfig pkg-config --variable=libdir zerod)" = /usr/lib/triplet ]
report $? "SBINDIR, LIBDIR and SYSCONFDIR are where the files are, and what they name"
readelf -d "$put/usr/sbin/zerod" | grep -q BIND_NOW && readelf -lW "$put/usr/lib/triplet/libzerod.so.0" | grep -q GNU_RELRO &&
	! nm -D --defined-only "$put/usr/lib/triplet/libzerod.so.0" | grep -v ' ZEROD_0$' | grep -qv '@@ZEROD_0$' &&
	readelf --debug-dump=info "$put/usr/sbin/zerod" | grep -q 'DW_AT_producer.* -O2 .*-O3'
report $? "with CFLAGS=-O3 the other flags are kept, and links are hardened"
echo "$((number - failures)) passed, $failures failed"
[ $failures -eq 0 ]
