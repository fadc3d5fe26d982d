#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs client/python as the package `zerod`, with libzerod.so.0 beside it: into the environment of $PYTHON, or
# into the folder $PYTHON_PREFIX/lib/pythonX.Y/site-packages. Needs neither pip nor a network. Prints the folder.
set -eu
: "${PYTHON:=python3}" "${PYTHON_PREFIX:=}" "${BUILD:=build}"
if [ -n "$PYTHON_PREFIX" ]; then
	version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	folder=$PYTHON_PREFIX/lib/python$version/site-packages
else
	folder=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
fi
rm -rf "$folder/zerod"
(cd client/python && find zerod -name '*.py' -o -name py.typed) | while read -r file; do
	install -D -m 644 "client/python/$file" "$folder/$file"
done
install -m 755 "$BUILD/lib/libzerod.so.0" "$folder/zerod/libzerod.so.0"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' client/python/pyproject.toml)
info=$folder/zerod-$version.dist-info
rm -rf "$folder"/zerod-*.dist-info
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: zerod\nVersion: %s\n' "$version" >"$info/METADATA"
echo "$folder/zerod"
