#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# packaging/install.sh install|uninstall: files under $DESTDIR$PREFIX; unit files where systemd looks for a
# prefix's units. Prints each path. Starts nothing: `systemctl enable --now zerod.socket` does.
set -eu
: "${DESTDIR:=}" "${PREFIX:=/usr/local}" "${BUILD:=build}" "${VERSION:=0}"
action=$1
root=$DESTDIR$PREFIX
unitdir=$root/lib/systemd/system

put() { # mode, source, destination folder, name
	if [ "$action" = uninstall ]; then
		rm -f "$3/$4"
	else
		install -D -m "$1" "$2" "$3/$4"
	fi
	echo "$3/$4"
}

for program in zerod zeroctl zerobench; do
	put 755 "$BUILD/bin/$program" "$root/bin" $program
done
put 644 "$BUILD/lib/libzerod.a" "$root/lib" libzerod.a
put 755 "$BUILD/lib/libzerod.so.0" "$root/lib" libzerod.so.0
if [ "$action" = uninstall ]; then
	rm -f "$root/lib/libzerod.so"
else
	ln -sf libzerod.so.0 "$root/lib/libzerod.so"
fi
for header in zerod.h zerod_cuda.h zerod_host.h; do
	put 644 "include/$header" "$root/include" "$header"
done

pc=$(mktemp)
unit=$(mktemp)
trap 'rm -f "$pc" "$unit"' EXIT
sed -e "s|@PREFIX@|$PREFIX|g" -e "s|@VERSION@|$VERSION|g" packaging/zerod.pc.in >"$pc"
put 644 "$pc" "$root/lib/pkgconfig" zerod.pc
for name in zerod.service zerod.socket zerod-metrics.socket zerod-metrics@.service; do
	sed -e "s|/usr/bin/zero|$PREFIX/bin/zero|g" "packaging/systemd/$name" >"$unit"
	put 644 "$unit" "$unitdir" $name
done
put 644 packaging/sysusers.d/zerod.conf "$root/lib/sysusers.d" zerod.conf
put 644 packaging/tmpfiles.d/zerod.conf "$root/lib/tmpfiles.d" zerod.conf
put 644 packaging/zerod.conf "$root/share/doc/zerod" zerod.conf
put 644 packaging/grafana/zerod.json "$root/share/doc/zerod/grafana" zerod.json
for page in docs/*.md; do
	case ${page##*/} in architecture.md | adding-a-*.md | testing.md) continue ;; esac # of the source
	put 644 "$page" "$root/share/doc/zerod" "${page##*/}"
done
for page in packaging/man/*.[0-9]; do
	section=${page##*.}
	put 644 "$page" "$root/share/man/man$section" "${page##*/}"
done
for file in packaging/completion/*; do
	put 644 "$file" "$root/share/bash-completion/completions" "${file##*/}"
done
