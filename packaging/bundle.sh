#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# packaging/bundle.sh FOLDER: a folder that runs where it is unpacked, on any x86-64 Linux with a glibc as new as the
# build's. Programs look for libraries in ../lib; what is not static and not libc's is copied there. share/zerod/licenses
# has the licences of these libraries and of the static ones. Without tests where $BUILD has none.
set -eu
: "${BUILD:=build/bundle-obj}" "${VERSION:=0}"
out=$1
rm -rf "$out"
mkdir -p "$out/bin" "$out/lib" "$out/include" "$out/tests" "$out/share/zerod"
cp "$BUILD"/bin/* "$out/bin/"
cp "$BUILD/lib/libzerod.a" "$out/lib/"
cp "$(pkg-config --variable=libdir libprotobuf-c)/libprotobuf-c.a" "$out/lib/" # libzerod.a needs it
cp "$BUILD/lib/libzerod.so.0" "$out/lib/"
ln -s libzerod.so.0 "$out/lib/libzerod.so"
cp include/zerod.h include/zerod_cuda.h include/zerod_host.h include/zerod_optimizer.h include/zerod_read.h "$out/include/"
cp LICENSE README.md "$out/share/zerod/"
if [ -d "$BUILD/tests" ]; then
	[ -f packaging/zerod.conf ] && cp packaging/zerod.conf "$out/share/zerod/"
	# Tests keep their names, one folder deep, so that ../lib is right for them too.
	for test in "$BUILD"/tests/*/*/test_* "$BUILD"/tests/it/test_* "$BUILD"/tests/contract/test_*; do
		[ -x "$test" ] && [ -f "$test" ] || continue
		name=$(echo "${test#"$BUILD"/tests/}" | tr / -)
		cp "$test" "$out/tests/$name"
	done
	cp "$BUILD/tests/gpu/stress" "$out/tests/gpu-stress"
	cp "$BUILD/tests/gpu/strict" "$out/tests/gpu-strict"
	cp "$BUILD/tests/gpu/kernels" "$out/tests/gpu-kernels"
	cp "$BUILD/tests/gpu/comm" "$out/tests/gpu-comm"
	mkdir -p "$out/tests/gpu" "$out/tests/several"
	cp "$BUILD"/tests/several/*.so.1 "$out/tests/several/"
	cp tests/run.sh "$out/tests/"
	cp tests/gpu/run.sh tests/gpu/bench.sh tests/gpu/examples.sh tests/gpu/shrink.sh "$out/tests/gpu/"
fi
# Of the package, or of the package of the file, where Debian's tool knows it.
add_licence() {
	package=$1
	case $1 in /*) package=$(dpkg -S "*/$(basename "$(realpath "$1")")" 2>/dev/null | head -n 1 | cut -d: -f1) ;; esac
	[ -f "/usr/share/doc/$package/copyright" ] || return 0
	mkdir -p "$out/share/zerod/licenses"
	{
		dpkg-query -W -f '${Package} ${Version}, made by Debian of its source package ${source:Package} ${source:Version}\n\n' "$package"
		cat "/usr/share/doc/$package/copyright"
	} >"$out/share/zerod/licenses/$package"
}
for program in "$out"/bin/* "$out"/tests/*; do
	[ -f "$program" ] && [ "${program%.sh}" = "$program" ] || continue
	ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// {print $3}'
done | sort -u | while read -r library; do
	case ${library##*/} in
	libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | ld-linux* | libzerod.so.*) ;;
	*)
		cp -L "$library" "$out/lib/"
		add_licence "$library"
		;;
	esac
done
for static in libuv1-dev libprotobuf-c-dev libgcrypt20-dev libgpg-error-dev libinih-dev libjansson-dev libncurses-dev zlib1g-dev; do
	add_licence "$static"
done
# Debian's files refer to it.
[ ! -f /usr/share/common-licenses/LGPL-2.1 ] || cp /usr/share/common-licenses/LGPL-2.1 "$out/share/zerod/licenses/"
strip --strip-debug "$out"/bin/* "$out"/lib/*.so.* "$out"/tests/* 2>/dev/null || true
du -sh "$out" | awk '{print "bundle: " $2 ", " $1}'
