#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# packaging/dist.sh: $BUILD/zerod-$VERSION.tar.xz, the files of the last commit. Their time is the commit's.
set -eu
: "${BUILD:=build}" "${VERSION:?}"
git rev-parse --git-dir >/dev/null 2>&1 || { echo "make dist: this is no git checkout" >&2; exit 1; }
[ -z "$(git status --porcelain --untracked-files=no)" ] || echo "make dist: changes that are not committed are left out" >&2
mkdir -p "$BUILD"
tarball=$BUILD/zerod-$VERSION.tar.xz
git archive --format=tar --prefix="zerod-$VERSION/" HEAD >"$tarball.tar"
xz -T1 -9 <"$tarball.tar" >"$tarball.new"
rm "$tarball.tar"
mv "$tarball.new" "$tarball"
echo "$tarball"
