#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the fuzzers with clang, libFuzzer and the address and undefined-behaviour sanitizers, and runs each for SECONDS
# (default 30) from the seeds in tests/fuzz/corpus and from what earlier runs have found. An input that fails is kept in
# $BUILD/found; run the fuzzer with that file as its argument to see it again.
#   tests/fuzz/run.sh [TARGET...]    packet, sessions, config, client_packet, unpack; by default all of them
#   tests/fuzz/run.sh corpus         writes the seeds anew
set -eu
runtime=${SECONDS:-30} # nothing special in a POSIX shell; 0 where sh is bash and nobody gave it
[ "$runtime" -gt 0 ] || runtime=30
cd "$(dirname "$0")/../.."
: "${BUILD:=build/fuzz}" "${CLANG:=clang}"
common='-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer'
links_fuzzers() {
	echo 'int LLVMFuzzerTestOneInput(const char *b, unsigned long n) { return b && n && 0; }' |
		"$CLANG" -x c -fsanitize=fuzzer,address,undefined -o /dev/null - 2>/dev/null
}

if ! links_fuzzers; then
	echo 'fuzz: needs clang and its runtime libraries (Debian: clang libclang-rt-dev)'
	command -v apt-get >/dev/null 2>&1 || exit 1
	sudo=""
	[ "$(id -u)" -eq 0 ] || sudo=sudo
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends clang libclang-rt-dev >/dev/null
	links_fuzzers || { echo "fuzz: $CLANG still cannot link a fuzzer" >&2; exit 1; }
fi

# The layers come from the makefile, instrumented; the fuzzers' own few files from here. Warnings are the compilers' own.
lib=$BUILD/lib
core=$(sed -n 's/^CORE_ROOMS *:= *//p' Makefile | sed "s|[a-z][a-z]*|$lib/libzd_core_&.a|g")
daemon="$lib/libzd_main.a $lib/libzd_server.a $lib/libzd_executor.a $core $lib/libzd_proto.a $lib/libzd_driver.a $lib/libzd_base.a"
# shellcheck disable=SC2086 # a list of words
make -s --no-print-directory BUILD="$BUILD" CC="$CLANG" OPT=-O1 WERROR= SANFLAGS="$common -fsanitize=fuzzer-no-link" \
	$daemon "$lib/libzerod.a"
flags="-std=gnu11 -O1 -g -pthread -D_GNU_SOURCE -Iinclude -I. -Icommon -Idaemon -I$BUILD/gen
	$(pkg-config --cflags libuv libprotobuf-c libgcrypt inih)"
libs="$(pkg-config --libs libuv libprotobuf-c libgcrypt inih) -lm"

link() { # target, source files..., archives
	target=$1
	shift
	# shellcheck disable=SC2086 # lists of words
	"$CLANG" $flags $common -fsanitize=fuzzer "tests/fuzz/fuzz_$target.c" "$@" $libs -o "$BUILD/fuzz_$target"
}

build() {
	case $1 in
	packet) link packet tests/support/core_check*.c tests/fuzz/clients.c tests/fuzz/script.c tests/fuzz/requests.c tests/fuzz/fake_backend.c $daemon ;;
	sessions) link sessions tests/support/core_check*.c tests/fuzz/ask.c tests/fuzz/ask_group.c tests/fuzz/ask_reduce.c tests/fuzz/model.c \
		tests/fuzz/session_checks.c tests/fuzz/clients.c tests/fuzz/script.c tests/fuzz/requests.c tests/fuzz/fake_backend.c $daemon ;;
	config) link config $daemon ;;
	client_packet) link client_packet tests/fuzz/script.c tests/fuzz/replies.c "$lib/libzerod.a" ;;
	unpack) link unpack $daemon ;;
	*) echo "fuzz: no target '$1'" >&2; exit 2 ;;
	esac
}

if [ "${1:-}" = corpus ]; then
	mkdir -p tests/fuzz/corpus/packet tests/fuzz/corpus/sessions tests/fuzz/corpus/config tests/fuzz/corpus/client_packet tests/fuzz/corpus/unpack
	# shellcheck disable=SC2086
	"$CLANG" $flags $common tests/fuzz/corpus.c tests/fuzz/script.c tests/fuzz/requests.c tests/fuzz/replies.c $daemon \
		$libs -o "$BUILD/corpus"
	exec "$BUILD/corpus" tests/fuzz/corpus
fi

[ $# -gt 0 ] || set -- packet sessions config client_packet unpack
found=$BUILD/found
mkdir -p "$found"
for target; do
	build "$target"
	kept=$BUILD/kept/$target
	mkdir -p "$kept"
	log=$BUILD/fuzz_$target.log
	if ! "$BUILD/fuzz_$target" -max_total_time="$runtime" -max_len=16384 -timeout=20 -rss_limit_mb=2048 \
		-print_final_stats=1 -artifact_prefix="$found/$target-" "$kept" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
		tail -n 60 "$log"
		echo "fuzz: $target failed, log $log"
		exit 1
	fi
	runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
	echo "fuzz: $target $runs runs, no crash"
	if [ "$target" = sessions ]; then
		sed -n 's/^sessions: /fuzz: sessions: /p' "$log"
		# A generator whose requests fail reaches little. A few requests may all be those that fail on purpose.
		awk '$1 == "sessions:" && $2 >= 1000 && $4 * 2 < $2 { exit 1 }' "$log" ||
			{ echo "fuzz: less than half of the requests succeeded, log $log"; exit 1; }
	fi
done
