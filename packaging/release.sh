#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# packaging/release.sh: $BUILD/release, which has what `make dist wheel deb` (and rpm, where rpmbuild is) have made, NOTES.md with the
# version's part of CHANGELOG.md, and SHA256SUMS of all.
set -eu
: "${BUILD:=build}" "${VERSION:?}"
out=$BUILD/release
rm -rf "$out"
mkdir -p "$out"
cp "$BUILD/zerod-$VERSION.tar.xz" "$(ls -t "$BUILD/wheel/zerod-$VERSION"-*.whl | head -n 1)" "$BUILD/deb/"*"_$VERSION-"*.deb "$out"
if command -v rpmbuild >/dev/null; then
	find "$BUILD/rpm/RPMS" "$BUILD/rpm/SRPMS" -name "*-$VERSION-*.rpm" -exec cp {} "$out" \;
else
	echo "make release: no RPM packages: rpmbuild is not installed" >&2
fi
awk -v version="$VERSION" '/^## / { on = index($0 ",", "## " version ",") == 1 } on' CHANGELOG.md >"$out/NOTES.md"
[ -s "$out/NOTES.md" ] || { echo "make release: CHANGELOG.md has no part of $VERSION" >&2; exit 1; }
cd "$out"
sha256sum -- * >../SHA256SUMS
mv ../SHA256SUMS .
cat SHA256SUMS
