/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ahead.c - a rank whose CPU is far ahead of its streams, or does nothing at all: what was asked for
 * comes all the same, nobody waits for the rank's next call, and a rank that goes meanwhile takes nothing
 * along that was promised.
 */
#include "contract_reduce.h"

#include <stdio.h>

#include "base/mem.h"

#define NUMEL 1000u
#define UNITS 8u
#define SLOTS 2u
#define MIB   (1024ull * 1024)

struct forward {
	struct contract *c;
	struct contract_rank *rank;
	zerod_stream *stream;
	struct contract_gate *gate;
	struct contract_unit units[UNITS];
	void *data[UNITS];
	uint8_t *seen[UNITS];
};

static void open_forward(struct forward *f, const struct contract_options *options, uint64_t numel,
                         bool in_slots, uint32_t count, uint32_t flags)
{
	*f = (struct forward){.c = contract_open(options)};
	f->rank = &f->c->ranks[0];
	for (uint32_t i = 0; i < count; i++) {
		struct zerod_unit_options unit = ZEROD_INIT(unit);
		char name[16];

		(void)snprintf(name, sizeof(name), "h.%u", i);
		unit.name = name;
		unit.dtype = ZEROD_FLOAT32;
		unit.numel = numel;
		unit.flags = flags;
		unit.slot = in_slots ? 1 + i % SLOTS : ZEROD_NO_SLOT;
		contract_unit(f->c, &unit, &f->units[i]);
		contract_publish_all(f->c, &f->units[i]);
		f->seen[i] = zd_calloc(1, contract_padded_bytes(&f->units[i]));
	}
	f->stream = contract_stream(f->rank);
	f->gate = contract_block(f->rank, f->stream);
}

/* A layer: no call of it waits for the stream, which stands still. */
static void enqueue(struct forward *f, uint32_t i)
{
	OK(f->rank->client, zerod_gather(f->units[i].at[0], NULL, f->stream, &f->data[i]));
	contract_read(f->stream, f->seen[i], f->data[i], contract_padded_bytes(&f->units[i]));
	OK(f->rank->client, zerod_release(f->units[i].at[0], &f->stream, 1, NULL, NULL));
}

/* The stream goes on, and has seen every layer's weights. */
static void run(struct forward *f, uint32_t count)
{
	if (f->gate)
		contract_unblock(f->gate);
	contract_sync(f->rank, f->stream);
	for (uint32_t i = 0; i < count; i++)
		CHECK_BYTES(contract_bytes_are(&f->units[i], f->seen[i], 1));
}

static void close_forward(struct forward *f)
{
	for (uint32_t i = 0; i < UNITS; i++)
		free(f->seen[i]);
	contract_close(f->c);
}

/* ---- Streams that stand still -------------------------------------------------------------------------- */

/* The driver unmaps a rank's memory when all streams of the process have run, and ranks share one here. */
static bool on_gpus(void)
{
	const char *backend = getenv("ZEROD_TEST_BACKEND");

	return backend && strcmp(backend, "cuda") == 0;
}

/* The copies of most layers have not begun when the rank ends whose shards they read; on GPUs they may have.
 * The last layer is gathered behind that. */
CONTRACT_TEST(test_a_peer_ends_under_a_forward)
{
	double value = 1.0;
	struct forward f;

	contract_needs(CONTRACT_ONE_SIDED);
	open_forward(&f, NULL, NUMEL, true, UNITS, 0);
	for (uint32_t i = 0; i < UNITS - 1; i++)
		enqueue(&f, i);
	if (on_gpus()) {
		contract_unblock(f.gate);
		f.gate = NULL;
	}
	contract_leave(&f.c->ranks[1]);
	AWAIT(zerod_group_agree(f.rank->group, ZEROD_AGREE_SUM, &value, 1, WITHIN_MS(1)) ==
	      ZEROD_E_PEER_LOST);
	enqueue(&f, UNITS - 1);
	run(&f, UNITS);
	close_forward(&f);
}

/* A device has room for 24 MiB of shards, and for one copy or one frame. The memory is promised again
 * and again: a copy has one address, and in place each unit has its own. */
static void one_block_in_a_row(const char *arena, uint32_t flags)
{
	const struct contract_options options = {.devices = 1, .arena = arena};
	const uint32_t count = 3;
	struct forward f;

	open_forward(&f, &options, 8 * MIB / sizeof(float), false, count, flags);
	for (uint32_t i = 0; i < count; i++) {
		enqueue(&f, i);
		CHECK(f.data[i] == f.data[0] || flags != ZEROD_UNIT_COPIED);
	}
	run(&f, count);
	close_forward(&f);
}

CONTRACT_TEST(test_one_block_is_promised_in_a_row)
{
	contract_needs(CONTRACT_ONE_SIDED);
	one_block_in_a_row("36M", ZEROD_UNIT_COPIED);
	one_block_in_a_row("30M", 0);
}

/* ---- A thread that does nothing ------------------------------------------------------------------------ */

/* Rank 0 has begun its gathers and ended its backward, and makes no call until rank 1 is through with its own
 * step, the publishes that rank 0 waits for among it. */
CONTRACT_TEST(test_a_rank_that_makes_no_call)
{
	struct contract *c;
	struct contract_rank *silent, *other;
	struct contract_unit units[2];
	zerod_bucket *buckets[2];
	zerod_ticket gathered, ended;
	void *data;

	contract_needs(CONTRACT_ONE_SIDED);
	c = contract_open(NULL);
	silent = &c->ranks[0];
	other = &c->ranks[1];
	contract_plain_unit(c, "w", NUMEL, &units[0]);
	contract_plain_unit(c, "v", NUMEL, &units[1]);
	for (uint32_t i = 0; i < 2; i++)
		buckets[i] = contract_bucket(&c->ranks[i], 65536, 2);
	contract_backward_all(c, 3, true);
	contract_publish(silent, &units[0]);
	OK(silent->client, zerod_gather_begin(units[0].at[0], NULL, &gathered));
	for (uint32_t i = 0; i < 2; i++)
		contract_reduce(silent, buckets[0], &units[i], 1, NULL);
	OK(silent->client, zerod_backward_end(silent->group, NULL, &ended));

	contract_publish(other, &units[0]);
	contract_expect_version(other, &units[0], 1);
	for (uint32_t i = 0; i < 2; i++)
		contract_reduce(other, buckets[1], &units[i], 1, NULL);
	contract_backward_end(other);

	OK(silent->client, zerod_wait(silent->client, gathered, NULL, &data));
	contract_expect_bytes(&units[0], data, 1);
	contract_release(silent, &units[0], NULL);
	OK(silent->client, zerod_wait(silent->client, ended, NULL, NULL));
	contract_expect_step(c, (struct contract_sum[]){{&units[0], 3, 1}, {&units[1], 3, 1}}, 2);
	contract_close(c);
}
