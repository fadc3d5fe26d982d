#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The library for programs outside: its exports, its headers alone as C99 and C++11, in the examples and in a C++ program.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}"
lib=$BUILD/lib
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
exported=$(nm -D --defined-only "$lib/libzerod.so.0" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }')
[ -n "$exported" ] && ! grep -qv '^zerod_' <<<"$exported"
report $? "the shared library exports nothing but zerod_*"

declared=$(grep -hv "zerod_init" include/*.h | grep -oE "\bzerod_[a-z_]+\(" | tr -d '(' | sort -u)
missing=0
for name in $declared; do
	grep -qx "$name" <<<"$exported" || { echo "# declared and not exported: $name" && missing=1; }
done
for name in $exported; do
	grep -qx "$name" <<<"$declared" || { echo "# exported and not declared: $name" && missing=1; }
done
report $missing "it exports the functions that the headers declare, and no others"

listed=$(grep -oE "\bzerod_[a-z_]+;" client/lib/libzerod.map | tr -d ';' | sort -u)
diff <(echo "$declared") <(echo "$listed")
report $? "client/lib/libzerod.map lists the functions that the headers declare, and no others"

for header in include/*.h; do
	name=${header##*/}
	echo "#include <$name>" >"$dir/alone.c"
	"${CC:-cc}" -std=c99 -pedantic -Wall -Wextra -Werror -fsyntax-only -Iinclude "$dir/alone.c"
	report $? "$name is C99 and needs no other include"
	! "${CC:-cc}" -std=c99 -Wpadded -fsyntax-only -Iinclude "$dir/alone.c" 2>&1 | grep padding
	report $? "no structure of $name has a byte that belongs to no field and would become somebody's option"
done

awk '/^struct zerod_[a-z_]+ \{$/ && $2 != "zerod_unique_id" {
	name = $2
	if (getline <= 0 || !/^\tsize_t struct_size;/) { print "# " name; failed = 1 }
} END { exit failed }' include/*.h
report $? "all structures of the headers begin with struct_size"

missing=0
for page in $(grep -ohE "\b[a-z-]+\.md" include/*.h | sort -u); do
	[ -f "docs/$page" ] || { echo "# no docs/$page" && missing=1; }
done
report $missing "the pages that the headers name are in docs/"

failed=0
for example in client/examples/*.c; do
	"${CC:-cc}" -Wall -Wextra -Werror -fsyntax-only -Iinclude "$example" || failed=1
done
report $failed "the examples compile with the headers and nothing else"

if ! command -v g++ >"$dir/which"; then
	skipped "the headers in C++" "there is no g++"
	finish
	exit
fi

for header in include/*.h; do
	name=${header##*/}
	echo "#include <$name>" >"$dir/alone.cc"
	g++ -std=c++11 -pedantic -Wall -Wextra -Werror -fsyntax-only -Iinclude "$dir/alone.cc"
	report $? "$name is C++11 and needs no other include"
done

cat >"$dir/program.cc" <<'CC'
#include <zerod.h>
#include <zerod_cuda.h>
#include <zerod_host.h>

#include <cstdio>
#include <cstring>

int main()
{
	zerod_options options = ZEROD_INIT(options);
	zerod_group_options group = ZEROD_INIT(group);
	zerod_gather_options gather = ZEROD_INIT(gather);
	zerod_client *client = nullptr;

	group.flags = ZEROD_GROUP_DURABLE | 0u;
	gather.flags = ZEROD_GATHER_PREFETCH;
	options.socket_path = "/nonexistent/zerod.sock";
	if (options.struct_size != sizeof(options) || group.world_size != 0 || gather.tag != nullptr)
		return 1;
	if (zerod_connect(&options, &client) != ZEROD_E_CONNECT || client != nullptr)
		return 2;
	if (!std::strstr(zerod_last_error(nullptr), options.socket_path))
		return 3;
	if (zerod_version() != ZEROD_VERSION_MAJOR * 1000000 + ZEROD_VERSION_MINOR * 1000 + ZEROD_VERSION_PATCH)
		return 4;
	return std::strcmp(zerod_status_name(ZEROD_E_NOT_HELD), "NOT_HELD") != 0;
}
CC
# A library that was built with a sanitizer needs its runtime in the program too.
sanitize=
symbols=$(nm -D "$lib/libzerod.so.0")
for pair in __asan_:address __tsan_:thread __ubsan_:undefined; do
	grep -q "${pair%%:*}" <<<"$symbols" && sanitize+=" -fsanitize=${pair##*:}"
done
for standard in c++11 c++20; do
	g++ -std=$standard -Wall -Wextra -pedantic -Werror $sanitize -Iinclude \
		"$dir/program.cc" -L"$lib" -l:libzerod.so.0 -Wl,-rpath,"$(cd "$lib" && pwd)" -o "$dir/program"
	report $? "zerod.h compiles and links as $standard"
	"$dir/program"
	report $? "and runs"
done
finish
