#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what the build and the tests need, where it is missing: Debian 12 and Ubuntu 24.04 by apt-get, with sudo
# when not root. Elsewhere it prints the list and goes on if nothing is missing. ONLY='make dist' asks for what that target needs.
set -eu
missing=""
need() { # test, debian package, what for
	[ "${ONLY:-$3}" = "$3" ] || return 0
	if ! eval "$1" >/dev/null 2>&1; then
		missing="$missing $2"
		printf 'zerod needs %-22s %s\n' "$2" "$3"
	fi
}
need 'command -v gcc || command -v clang' gcc 'C compiler'
need 'test -e /usr/include/stdio.h' libc6-dev 'C library headers'
need 'command -v pkg-config' pkg-config 'finds libraries'
need 'command -v protoc-c' protobuf-c-compiler 'generates the protocol code'
need 'pkg-config --exists libuv' libuv1-dev 'event loop of the daemon'
need 'pkg-config --exists libprotobuf-c' libprotobuf-c-dev 'protocol messages'
need 'pkg-config --exists libgcrypt' libgcrypt20-dev 'authenticates unique ids'
need 'pkg-config --exists inih' libinih-dev 'configuration file'
need 'pkg-config --exists jansson' libjansson-dev 'zeroctl --json'
need 'pkg-config --exists ncursesw' libncurses-dev 'zeroctl top'
need 'pkg-config --exists zlib' zlib1g-dev 'compressed traces'
need 'test -e /usr/include/uthash.h' uthash-dev 'hash tables'
need 'pkg-config --exists cmocka' libcmocka-dev 'tests'
need '"${PYTHON:-python3}" -c "import numpy" || /usr/bin/python3 -c "import numpy"' python3-numpy 'make demo, tests of the Python interface'
[ -n "${CI:-}" ] && need 'command -v g++' g++ 'tests of the headers'
[ -n "${CI:-}" ] && need 'command -v clang-format' clang-format 'make format'
[ -n "${CI:-}" ] && need '"${PYTHON:-python3}" -c "import prometheus_client" || /usr/bin/python3 -c "import prometheus_client"' python3-prometheus-client 'tests of the metrics'
[ -n "${CI:-}" ] && need '"${PYTHON:-python3}" -c "import pyte" || /usr/bin/python3 -c "import pyte"' python3-pyte 'tests of zeroctl top'
[ -n "${CI:-}" ] && need 'command -v clang-tidy' clang-tidy 'make tidy'
[ -n "${CI:-}${ABI:-}" ] && need 'command -v abidiff' abigail-tools 'make check-abi'
[ -n "${WHEEL:-}" ] && need '"${PYTHON:-python3}" -m pip --version' python3-pip 'make wheel'
[ -n "${COST:-}" ] && need 'command -v valgrind' valgrind 'make check-cost'
[ -n "${MODEL:-}" ] && need 'command -v spin' spin 'make check-model'
[ -n "${SYSTEMD:-}" ] && need 'command -v systemd-nspawn' systemd-container 'make check-systemd'
[ -n "${ONLY:-}${DEB:-}${PACKAGES:-}" ] && need 'command -v xz' xz-utils 'make dist'
if [ -n "${DEB:-}${PACKAGES:-}" ]; then
	need 'dpkg-query -W -f "\${db:Status-Status}" build-essential | grep -qx installed' build-essential 'make deb'
	need 'command -v dpkg-buildpackage' dpkg-dev 'make deb'
	need 'command -v dh' debhelper 'make deb'
	need 'command -v dh_python3' dh-python 'make deb'
	need 'command -v fakeroot' fakeroot 'make deb'
	need 'command -v lintian' lintian 'make deb'
fi
[ -n "${FRESH:-}${PACKAGES:-}" ] && need 'command -v debootstrap' debootstrap 'make check-packages, check-fresh'
if [ -n "${PACKAGES:-}" ]; then
	need 'command -v systemd-nspawn' systemd-container 'make check-packages'
fi
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
	echo "Install these (Debian's names) with your package manager, then run make again." >&2
	exit 1
fi
sudo=""
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null 2>&1 || { echo "Run as root: apt-get install$missing" >&2; exit 1; }
	sudo=sudo
fi
echo "Installing:$missing"
$sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq
# shellcheck disable=SC2086
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
