#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# packaging/deb.sh: Debian packages of the tarball of `make dist`, in $BUILD/deb, and what lintian says about them. LINTIAN= builds alone;
# MAINTAINER='Name <address>' takes the place of the tree's, which has no mailbox.
set -eu
: "${BUILD:=build}" "${VERSION:?}" "${LINTIAN=lintian}"
out=$BUILD/deb
rm -rf "$out"
mkdir -p "$out"
cp "$BUILD/zerod-$VERSION.tar.xz" "$out/zerod_$VERSION.orig.tar.xz"
tar -C "$out" -xf "$out/zerod_$VERSION.orig.tar.xz"
cd "$out/zerod-$VERSION"
cp -r packaging/debian debian
[ -z "${MAINTAINER:-}" ] || sed -i "s/The zerod authors <[^>]*>/$MAINTAINER/" debian/control debian/changelog
# The tree's own variables are not the build's.
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u BUILD -u VERSION dpkg-buildpackage -us -uc
cd ..
# The first upload to Debian's archive closes the bug of its request; these packages are for no upload.
[ -z "$LINTIAN" ] || $LINTIAN --allow-root --fail-on error,warning --tag-display-limit 0 --suppress-tags initial-upload-closes-no-bugs ./*.changes
ls ./*.deb
