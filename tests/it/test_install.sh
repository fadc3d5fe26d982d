#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `make uninstall` takes away what `make install` has put down, files and folders of zerod's own, but for the configuration.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}"
make_dir install
export BUILD DESTDIR=$dir/root
left() { (cd "$DESTDIR" && find . -path '*zerod*' -print | LC_ALL=C sort); }

packaging/install.sh install >"$dir/out" 2>&1 && [ -x "$DESTDIR/usr/local/bin/zerod" ] && [ -e "$DESTDIR/usr/local/share/doc/zerod/running.md" ]
report $? "files are installed under DESTDIR"
packaging/install.sh uninstall >"$dir/out" 2>&1 && left >>"$dir/out" && [ "$(left)" = './etc/zerod
./etc/zerod/zerod.conf' ] && [ -z "$(find "$DESTDIR" ! -type d ! -name zerod.conf)" ]
report $? "all but the configuration is removed"
finish
