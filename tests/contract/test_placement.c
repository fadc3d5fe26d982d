/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_placement.c - units that move between the ranks' devices and host memory: what stays, what follows,
 * and what is refused.
 */
#include "contract_reduce.h"

#include <stdio.h>

#include "base/mem.h"

#define NUMEL 1009u /* a prime: the last shard has padding */
#define RANKS 4u
#define MOVES 8u

struct scene {
	struct contract *c;
	struct contract_unit unit, other; /* the other one of the same size, where a test has one */
	uint32_t flags;
	int status;       /* that zerod_unit_place() returns */
	const char *text; /* in its error */
};

/* All tests but one need host memory, and ranks that gather by copies. */
static void open_scene(struct scene *s, const struct contract_options *given)
{
	struct contract_options options = given ? *given : (struct contract_options){.world_size = RANKS};

	contract_needs(CONTRACT_ONE_SIDED);
	if (!contract_on_host())
		options.config = "[devices]\nhost_arena = 64M\n";
	*s = (struct scene){.c = contract_open(&options)};
	contract_device_unit(s->c, "w", NUMEL, &s->unit);
	contract_publish_all(s->c, &s->unit);
}

static void place(struct contract_rank *rank, void *arg)
{
	const struct scene *s = arg;

	contract_expect(rank->client, zerod_unit_place(s->unit.at[rank->number], s->flags, NULL), s->status,
	                s->text, "zerod_unit_place()", __LINE__);
}

static void place_all(struct scene *s, uint32_t flags, int status, const char *text)
{
	s->flags = flags;
	s->status = status;
	s->text = text;
	contract_run(s->c, place, s);
}

static struct zerod_shard shard_of(struct contract_rank *rank, const struct contract_unit *unit)
{
	struct zerod_shard shard = ZEROD_INIT(shard);

	OK(rank->client, zerod_shard_get(unit->at[rank->number], &shard));
	return shard;
}

static uint64_t host_bytes(struct scene *s)
{
	struct zerod_device_info info = ZEROD_INIT(info);

	OK(s->c->ranks[0].client, zerod_device_get(s->c->ranks[0].client, 0, &info));
	return contract_device(s->c, info.host).shard_bytes;
}

static void expect_place(struct scene *s, uint32_t flags, uint64_t version)
{
	CHECK(host_bytes(s) == (flags ? contract_padded_bytes(&s->unit) : 0));
	for (uint32_t i = 0; i < s->c->world_size; i++) {
		struct zerod_shard shard = shard_of(&s->c->ranks[i], &s->unit);

		CHECK(shard.flags == flags && shard.version == version);
		contract_expect_version(&s->c->ranks[i], &s->unit, version);
	}
}

CONTRACT_TEST(test_down_and_up)
{
	struct scene s;

	open_scene(&s, &(struct contract_options){.world_size = RANKS, .devices = 2});
	expect_place(&s, 0, 1);
	place_all(&s, 0, 0, NULL); /* it is there */
	for (uint32_t i = 0; i < 2; i++) {
		place_all(&s, ZEROD_UNIT_ON_HOST, 0, NULL);
		expect_place(&s, ZEROD_UNIT_ON_HOST, 1 + 2 * i);
		contract_publish_all(s.c, &s.unit);
		expect_place(&s, ZEROD_UNIT_ON_HOST, 2 + 2 * i);
		place_all(&s, 0, 0, NULL);
		expect_place(&s, 0, 2 + 2 * i);
		contract_publish_all(s.c, &s.unit);
	}
	contract_close(s.c);
}

/* The bytes of gathers that were asked for before the move: also of slices that clients copy by
 * themselves. */
CONTRACT_TEST(test_gathers_from_before_the_move)
{
	struct scene s;
	zerod_ticket tickets[RANKS];
	char name[CONTRACT_NAME];
	void *data;

	open_scene(&s, NULL);
	for (uint32_t move = 0; move < MOVES; move++) {
		for (uint32_t i = 0; i < RANKS; i++)
			OK(s.c->ranks[i].client, zerod_gather_begin(s.unit.at[i], NULL, &tickets[i]));
		place_all(&s, move % 2 ? 0 : ZEROD_UNIT_ON_HOST, 0, NULL);
		(void)snprintf(name, sizeof(name), "other%u", move); /* in the memory of the former shards */
		contract_device_unit(s.c, name, NUMEL, &s.other);
		contract_publish_all(s.c, &s.other);
		for (uint32_t i = 0; i < RANKS; i++) {
			struct contract_rank *rank = &s.c->ranks[i];

			OK(rank->client, zerod_wait(rank->client, tickets[i], NULL, &data));
			contract_expect_bytes(&s.unit, data, 1);
			OK(rank->client, zerod_release(s.unit.at[i], NULL, 0, NULL, NULL));
		}
	}
	contract_close(s.c);
}

static void move_often(struct contract_rank *rank, void *arg)
{
	const struct scene *s = arg;

	zerod_unit *unit = s->unit.at[rank->number], *other = s->other.at[rank->number];

	for (uint32_t i = 0; i < MOVES; i++) {
		OK(rank->client, zerod_unit_place(unit, ZEROD_UNIT_ON_HOST, NULL));
		OK(rank->client, zerod_unit_place(other, 0, NULL));
		OK(rank->client, zerod_unit_place(other, ZEROD_UNIT_ON_HOST, NULL));
		OK(rank->client, zerod_unit_place(unit, 0, NULL));
	}
}

static void gather_often(struct contract_rank *rank, void *arg)
{
	struct scene *s = arg;
	zerod_stream *stream = contract_stream(rank);
	uint8_t *bytes = zd_calloc(1, contract_padded_bytes(&s->unit));
	zerod_unit *handle = s->unit.at[rank->number];
	void *data;

	for (uint32_t i = 0; i < 4 * MOVES; i++) {
		OK(rank->client, zerod_gather(handle, NULL, i % 2 ? stream : NULL, &data));
		contract_read(i % 2 ? stream : NULL, bytes, data, contract_padded_bytes(&s->unit));
		contract_sync(rank, stream);
		CHECK_BYTES(contract_bytes_are(&s->unit, bytes, 1));
		OK(rank->client, zerod_release(handle, NULL, 0, NULL, NULL));
	}
	free(bytes);
}

/* A thread of each rank gathers, another one moves the unit down and up, and another unit to where it was. */
CONTRACT_TEST(test_gathers_beside_moves)
{
	struct contract_task *tasks[RANKS];
	struct scene s;

	open_scene(&s, NULL);
	contract_device_unit(s.c, "other", NUMEL, &s.other);
	contract_publish_all(s.c, &s.other);
	for (uint32_t i = 0; i < RANKS; i++)
		tasks[i] = contract_start(&s.c->ranks[i], gather_often, &s);
	contract_run(s.c, move_often, &s);
	for (uint32_t i = 0; i < RANKS; i++)
		contract_finish(tasks[i]);
	contract_expect_version(&s.c->ranks[0], &s.unit, 1);
	contract_expect_version(&s.c->ranks[0], &s.other, 1);
	contract_close(s.c);
}

/* A rank that holds a copy goes on with it. */
CONTRACT_TEST(test_leases_stay)
{
	struct scene s;
	void *before;

	open_scene(&s, NULL);
	before = contract_gather(&s.c->ranks[1], &s.unit, NULL);
	place_all(&s, ZEROD_UNIT_ON_HOST, 0, NULL);
	CHECK(contract_gather(&s.c->ranks[1], &s.unit, "other") == before);
	contract_expect_bytes(&s.unit, before, 1);
	contract_release(&s.c->ranks[1], &s.unit, "other");
	contract_release(&s.c->ranks[1], &s.unit, NULL);
	contract_close(s.c);
}

CONTRACT_TEST(test_refusals_are_every_ranks)
{
	struct scene s;
	zerod_unit *handle;

	open_scene(&s, &(struct contract_options){.world_size = 2});
	handle = s.unit.at[1];
	FAILS(s.c->ranks[0].client, zerod_unit_place(s.unit.at[0], ZEROD_UNIT_FROZEN, NULL), ZEROD_E_INVALID,
	      "zerod_unit_place(): unknown flags 0x2");
	OK(s.c->ranks[1].client, zerod_update_begin(&handle, 1, NULL, NULL));
	place_all(&s, ZEROD_UNIT_ON_HOST, ZEROD_E_STATE, "unit 'w' is UPDATING on rank 1");
	contract_write_shard(&s.c->ranks[1], &s.unit, NULL);
	OK(s.c->ranks[1].client, zerod_publish(&handle, 1, NULL, 0, NULL, NULL));
	s.unit.version[1]++;
	contract_publish(&s.c->ranks[0], &s.unit);
	contract_backward(&s.c->ranks[0], 3, true);
	place_all(&s, ZEROD_UNIT_ON_HOST, ZEROD_E_STATE,
	          "rank 0 is between backward 1 and the end of its step");
	expect_place(&s, 0, 2);
	contract_close(s.c);
}

static void publish_and_place(struct contract_rank *rank, void *arg)
{
	struct scene *s = arg;
	zerod_unit *handle = s->unit.at[rank->number];
	zerod_stream *stream = contract_stream(rank);
	struct contract_gate *gate = contract_block(rank, stream);
	zerod_ticket ticket;

	OK(rank->client, zerod_update_begin(&handle, 1, NULL, NULL));
	contract_write_shard(rank, &s->unit, stream);
	OK(rank->client, zerod_publish(&handle, 1, &stream, 1, NULL, &ticket));
	s->unit.version[rank->number]++;
	contract_unblock(gate);
	place(rank, s);
}

/* The move waits for the streams of a publish with a ticket. */
CONTRACT_TEST(test_behind_a_publish)
{
	struct scene s;

	open_scene(&s, NULL);
	s.flags = ZEROD_UNIT_ON_HOST;
	contract_run(s.c, publish_and_place, &s);
	expect_place(&s, ZEROD_UNIT_ON_HOST, 2);
	contract_close(s.c);
}

/* Sums lie where their units are, in both memories and one behind the other. */
CONTRACT_TEST(test_targets_follow)
{
	struct scene s;
	struct contract_unit other;
	zerod_bucket *buckets[RANKS];

	open_scene(&s, NULL);
	contract_device_unit(s.c, "other", NUMEL + 1, &other);
	for (uint32_t i = 0; i < RANKS; i++)
		buckets[i] = contract_bucket(&s.c->ranks[i], 65536, 2);
	for (uint32_t window = 0; window < 3; window++) {
		const struct contract_sum sums[] = {{&s.unit, CONTRACT_ALL(s.c), (float)(1 + window)},
		                                    {&other, CONTRACT_ALL(s.c), 2}};

		contract_backward_all(s.c, 3, true);
		for (uint32_t i = 0; i < RANKS; i++) {
			contract_reduce(&s.c->ranks[i], buckets[i], &s.unit, (float)(1 + window), NULL);
			contract_reduce(&s.c->ranks[i], buckets[i], &other, 2, NULL);
		}
		contract_backward_end_all(s.c);
		contract_expect_step(s.c, sums, ZD_ARRAY_LEN(sums));
		place_all(&s, window % 2 ? 0 : ZEROD_UNIT_ON_HOST, 0, NULL);
	}
	contract_close(s.c);
}

static void commit(struct contract_rank *rank, void *arg)
{
	(void)arg;
	OK(rank->client, zerod_commit(rank->group, 1, NULL));
}

/* A client that takes a rank's place registers the unit as its program always does, and finds it where it
 * is. */
CONTRACT_TEST(test_a_rank_that_is_replaced)
{
	const struct contract_options options = {.world_size = 2, .flags = ZEROD_GROUP_DURABLE};
	struct zerod_unit_options again = ZEROD_INIT(again);
	struct contract_rank *rank;
	struct scene s;

	open_scene(&s, &options);
	contract_run(s.c, commit, NULL);
	place_all(&s, ZEROD_UNIT_ON_HOST, 0, NULL);
	rank = &s.c->ranks[1];
	contract_leave(rank);
	contract_replace(rank);
	again.name = "w";
	again.dtype = ZEROD_FLOAT32;
	again.numel = NUMEL;
	OK(rank->client, zerod_unit_register(rank->group, &again, &s.unit.at[1]));
	CHECK(shard_of(rank, &s.unit).flags == ZEROD_UNIT_ON_HOST);
	FAILS(s.c->ranks[0].client, zerod_unit_place(s.unit.at[0], 0, NULL), ZEROD_E_PEER_LOST, "rank 1");
	place_all(&s, 0, 0, NULL);
	expect_place(&s, 0, 1);
	contract_close(s.c);
}
