#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# packaging/version.sh: prints the version, which include/zerod.h alone defines; the makefile passes it on to programs, zerod.pc and
# packages. packaging/version.sh --check: fails where a file that cannot ask says another version, and where the symbols of the Debian
# package are not those of client/lib/libzerod.map.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^#define ZEROD_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' include/zerod.h | paste -sd.)
if [ "${1:-}" != --check ]; then
	echo "$version"
	exit
fi
failed=0
says() { # file, expression whose group is the version; its first match counts
	local found
	found=$(sed -nE "s/$2/\1/p;T;q" "$1")
	[ "$found" = "$version" ] && return
	echo "$1: version '$found', but include/zerod.h has $version" >&2
	failed=1
}
says client/python/zerod/__init__.py '^__version__ = "(.*)"$'
says packaging/debian/changelog '^zerod \((.*)-[^-]*\) .*'
says packaging/rpm/zerod.spec '^Version: +(.*)$'
says CHANGELOG.md '^## ([0-9.]+).*'
says README.md '^\*\*Status\*\*: version ([0-9]+\.[0-9]+\.[0-9]+)\..*'
if ! diff <(sed -n 's/^\t\t\(zerod_.*\);/\1/p' client/lib/libzerod.map | LC_ALL=C sort) \
	<(sed -n 's/^ \(zerod_.*\)@ZEROD_0 .*/\1/p' packaging/debian/libzerod0.symbols | LC_ALL=C sort) >&2; then
	echo "packaging/debian/libzerod0.symbols (>) and client/lib/libzerod.map (<) have other functions" >&2
	failed=1
fi
exit $failed
