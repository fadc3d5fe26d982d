#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The README's step: compiles inside a function as it stands there, and four ranks of it come to the right sum.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}"
: "${CC:=cc}"
lib=$BUILD/lib
dir=$(mktemp -d) || exit 2
daemon=

cleanup() {
	[ -n "$daemon" ] && kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null
	rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP

{
	cat <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <zerod.h>
#include <zerod_host.h>

#define NUMEL 1000000

static void fill(void *data, uint64_t numel)
{
	for (uint64_t i = 0; i < numel; i++)
		((float *)data)[i] = 2;
}

static int seen_wrong;

static void forward(void *weights)
{
	for (uint64_t i = 0; i < NUMEL; i++)
		seen_wrong |= ((const float *)weights)[i] != 2;
}

static float gradient[NUMEL];

static void backward(void *data)
{
	fill(data, NUMEL);
}

static void optimize(void *weights, const void *gradient, uint64_t numel)
{
	for (uint64_t i = 0; i < numel; i++)
		((float *)weights)[i] -= ((const float *)gradient)[i];
}

int main(int argc, char **argv)
{
	const uint32_t rank = (uint32_t)atoi(argv[argc - 1]);
	struct zerod_group_options job = ZEROD_INIT(job);
	struct zerod_unit_options layer = ZEROD_INIT(layer);
	struct zerod_bucket_options gradients = ZEROD_INIT(gradients);
	struct zerod_shard shard = ZEROD_INIT(shard);
	struct zerod_step_info step = ZEROD_INIT(step);
	struct zerod_target target = ZEROD_INIT(target);
	zerod_client *client;
	zerod_stream *stream;
	zerod_group *group;
	zerod_unit *unit;
	zerod_bucket *bucket;
	void *weights;
	zerod_connect(NULL, &client);
	zerod_host_stream_create(client, &stream);
	job.job = "demo", job.world_size = 4, job.rank = rank, job.device = rank;
	zerod_group_join(client, &job, &group);
	layer.name = "layer0", layer.dtype = ZEROD_FLOAT32, layer.numel = NUMEL;
	zerod_unit_register(group, &layer, &unit);
	zerod_shard_get(unit, &shard);
	zerod_update_begin(&unit, 1, NULL, NULL);
	fill(shard.data, shard.true_numel);
	zerod_publish(&unit, 1, NULL, 0, NULL, NULL);
	gradients.dtype = ZEROD_FLOAT32;
	zerod_bucket_create(group, &gradients, &bucket);
C
	awk '/^```c$/ { on = 1; next } on && /^```$/ { exit } on' README.md | grep -v '^#include' # the first
	cat <<'C'
	/* Each call's status is what the README leaves out: a failure shows in what comes out at the end. */
	for (uint64_t i = 0; i < shard.true_numel; i++)
		seen_wrong |= ((const float *)shard.data)[i] != 2 - 4 * 2;
	zerod_close(client);
	printf("wrong %d overflow %d norm %g\n", seen_wrong, step.overflow, step.norm_squared);
	return target.true_numel == 0;
}
C
} >"$dir/readme.c"

# A library that was built with a sanitizer needs its runtime in the program too.
sanitize=
symbols=$(nm -D "$lib/libzerod.so.0")
for pair in __asan_:address __tsan_:thread __ubsan_:undefined; do
	grep -q "${pair%%:*}" <<<"$symbols" && sanitize+=" -fsanitize=${pair##*:}"
done
"$CC" -std=c11 -Wall -Wextra -Wno-unused-result -Werror $sanitize -Iinclude "$dir/readme.c" \
	-L"$lib" -l:libzerod.so.0 -Wl,-rpath,"$(cd "$lib" && pwd)" -o "$dir/readme"
report $? "the README's program compiles"

export ZEROD_SOCKET=$dir/zerod.sock
"$BUILD/bin/zerod" --foreground --backend host --devices 4 --arena 64M --socket "$ZEROD_SOCKET" >"$dir/zerod.log" 2>&1 &
daemon=$!
deadline=$((SECONDS + 30))
until "$BUILD/bin/zeroctl" status >/dev/null 2>&1 || [ $SECONDS -ge $deadline ]; do sleep 0.02; done
ranks=()
for rank in 0 1 2 3; do
	timeout 60 "$dir/readme" $rank >"$dir/out.$rank" 2>&1 &
	ranks+=($!)
done
status=0
for pid in "${ranks[@]}"; do
	wait "$pid" || status=1
done
cat "$dir"/out.*
# Four ranks' gradients of 2 make 8: a norm of 64 times a million.
[ $status -eq 0 ] && [ "$(grep -cx 'wrong 0 overflow 0 norm 6.4e+07' <(cat "$dir"/out.*))" -eq 4 ]
report $? "four ranks of it run"
finish
