#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# packaging/install.sh install|uninstall: files under $DESTDIR$PREFIX; unit files where systemd looks for a
# prefix's units. Prints each path. Starts nothing: `systemctl enable --now zerod.socket` does.
set -eu
: "${DESTDIR:=}" "${PREFIX:=/usr/local}" "${BUILD:=build}" "${VERSION:=0}"
: "${SBINDIR:=$PREFIX/bin}" "${LIBDIR:=$PREFIX/lib}" "${SYSCONFDIR:=/etc}"
action=$1
root=$DESTDIR$PREFIX
libdir=$DESTDIR$LIBDIR
unitdir=$root/lib/systemd/system
config=$SYSCONFDIR/zerod/zerod.conf

put() { # mode, source, destination folder, name
	if [ "$action" = uninstall ]; then
		rm -f "$3/$4"
	else
		install -D -m "$1" "$2" "$3/$4"
	fi
	echo "$3/$4"
}
edited=$(mktemp)
trap 'rm -f "$edited"' EXIT
put_edited() { # as put, with the paths of this installation; then further sed expressions
	mode=$1 source=$2 folder=$3 name=$4
	shift 4
	sed -e "s|/usr/bin/zerod\b|$SBINDIR/zerod|g" -e "s|/etc/zerod\b|$SYSCONFDIR/zerod|g" "$@" "$source" >"$edited"
	put "$mode" "$edited" "$folder" "$name"
}

put 755 "$BUILD/bin/zerod" "$DESTDIR$SBINDIR" zerod
for program in zeroctl zerobench; do
	put 755 "$BUILD/bin/$program" "$root/bin" $program
done
put 755 packaging/after-upgrade.sh "$root/libexec/zerod" after-upgrade
put 644 "$BUILD/lib/libzerod.a" "$libdir" libzerod.a
put 755 "$BUILD/lib/libzerod.so.0" "$libdir" libzerod.so.0
if [ "$action" = uninstall ]; then
	rm -f "$libdir/libzerod.so"
else
	ln -sf libzerod.so.0 "$libdir/libzerod.so"
fi
for header in zerod.h zerod_cuda.h zerod_host.h zerod_optimizer.h zerod_read.h; do
	put 644 "include/$header" "$root/include" "$header"
done
relocatable=$LIBDIR
case $LIBDIR in "$PREFIX"/*) relocatable="\${prefix}${LIBDIR#"$PREFIX"}" ;; esac
put_edited 644 packaging/zerod.pc.in "$libdir/pkgconfig" zerod.pc \
	-e "s|@PREFIX@|$PREFIX|g" -e "s|@LIBDIR@|$relocatable|g" -e "s|@VERSION@|$VERSION|g"

# The daemon's default is /etc/zerod/zerod.conf.
option=''
[ "$SYSCONFDIR" = /etc ] || option=" --config $config"
put_edited 644 packaging/systemd/zerod.service "$unitdir" zerod.service -e "s|^ExecStart=.*/zerod$|&$option|"
put 644 packaging/systemd/zerod.socket "$unitdir" zerod.socket
put 644 packaging/systemd/zerod-metrics.socket "$unitdir" zerod-metrics.socket
put_edited 644 packaging/systemd/zerod-metrics.service "$unitdir" zerod-metrics.service -e "s|/usr/bin/zeroctl\b|$PREFIX/bin/zeroctl|g"
put 644 packaging/grafana/zerod.json "$root/share/doc/zerod/grafana" zerod.json
put 644 packaging/sysusers.d/zerod.conf "$root/lib/sysusers.d" zerod.conf
put_edited 644 packaging/tmpfiles.d/zerod.conf "$root/lib/tmpfiles.d" zerod.conf
# The administrator's file stays, in either direction.
if [ "$action" = install ] && [ ! -e "$DESTDIR$config" ]; then
	put_edited 644 packaging/zerod.conf "$DESTDIR$SYSCONFDIR/zerod" zerod.conf
fi
for page in docs/*.md; do
	case ${page##*/} in architecture.md | adding-a-*.md | testing.md) continue ;; esac # of the source
	put 644 "$page" "$root/share/doc/zerod" "${page##*/}"
done
for page in packaging/man/*.[0-9]; do
	section=${page##*.}
	put_edited 644 "$page" "$root/share/man/man$section" "${page##*/}"
done
for program in zerod zeroctl zerobench; do
	put 644 packaging/completion/$program.bash "$root/share/bash-completion/completions" $program
	put 644 packaging/completion/_$program "$root/share/zsh/site-functions" _$program
	put 644 packaging/completion/$program.fish "$root/share/fish/vendor_completions.d" $program.fish
done
# Folders of zerod's own; others are shared, or the administrator's.
if [ "$action" = uninstall ]; then
	for folder in "$root/share/doc/zerod/grafana" "$root/share/doc/zerod" "$root/libexec/zerod"; do
		[ ! -d "$folder" ] || rmdir --ignore-fail-on-non-empty "$folder"
	done
fi
