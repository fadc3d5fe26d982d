/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ends.c - ranks that end normally, one after the other: those that are left gather what was published,
 * whatever their streams have come to, and a call that needs a rank that has ended says so.
 */
#include "contract_reduce.h"

#include <stdio.h>

#define NUMEL 1003u
#define WORLD 4u

struct scene {
	struct contract *c;
	struct contract_rank *rank; /* the last one */
	struct contract_unit units[2];
};

static void open_scene(struct scene *s, uint32_t world_size)
{
	s->c = contract_open(&(struct contract_options){.world_size = world_size});
	s->rank = &s->c->ranks[0];
	contract_plain_unit(s->c, "a", NUMEL, &s->units[0]);
	contract_plain_unit(s->c, "b", 3 * NUMEL, &s->units[1]);
	for (uint32_t i = 0; i < 2; i++)
		contract_publish_all(s->c, &s->units[i]);
}

/* The rank's end has reached the daemon. */
static bool has_ended(const struct scene *s, const char *text)
{
	double value = 1;

	return zerod_group_agree(s->rank->group, ZEROD_AGREE_SUM, &value, 1, WITHIN_MS(1)) ==
	               ZEROD_E_PEER_LOST &&
	       strstr(zerod_last_error(s->rank->client), text);
}

/* Each rank is the first one to gather anew, while a stream of it has yet to run past its former use. */
CONTRACT_TEST(test_the_last_of_four_reads)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct scene s;
	zerod_stream *stream;
	uint8_t *seen;
	char text[64];

	open_scene(&s, WORLD);
	stream = contract_stream(s.rank);
	seen = calloc(WORLD, contract_padded_bytes(&s.units[1]));
	for (uint32_t last = WORLD - 1; last > 0; last--) {
		uint8_t *at = seen + last * contract_padded_bytes(&s.units[1]);
		struct contract_gate *gate = contract_block(s.rank, stream);
		void *data;

		OK(s.rank->client, zerod_gather(s.units[1].at[0], NULL, stream, &data));
		contract_read(stream, at, data, contract_padded_bytes(&s.units[1]));
		OK(s.rank->client, zerod_release(s.units[1].at[0], &stream, 1, NULL, NULL));
		if (getenv("ZEROD_TEST_BACKEND")) /* GPUs unmap memory when all streams have run */
			contract_unblock(gate);
		contract_leave(&s.c->ranks[last]);
		snprintf(text, sizeof(text), "rank %u", last);
		AWAIT(has_ended(&s, text) && has_ended(&s, "ended normally"));
		for (uint32_t rank = 0; rank < last; rank++)
			contract_expect_version(&s.c->ranks[rank], &s.units[0], 1);
		if (!getenv("ZEROD_TEST_BACKEND"))
			contract_unblock(gate);
		contract_sync(s.rank, stream);
		CHECK_BYTES(contract_bytes_are(&s.units[1], at, 1));
	}
	free(seen);
	contract_close(s.c);
}

static void begin_step(struct contract_rank *rank, void *arg)
{
	(void)arg;
	(void)contract_step(rank);
}

/* Rank 1 ends when its own last step is over. Rank 0 has begun the step, and goes on with it. */
CONTRACT_TEST(test_the_last_step_of_the_slower_rank)
{
	struct scene s;

	contract_needs(CONTRACT_ONE_SIDED);
	open_scene(&s, 2);
	contract_backward_all(s.c, 3, true);
	for (uint32_t i = 0; i < 2; i++)
		contract_reduce(&s.c->ranks[i], contract_bucket(&s.c->ranks[i], 65536, 2), &s.units[0], 1,
		                NULL);
	contract_backward_end_all(s.c);
	contract_run(s.c, begin_step, NULL);
	contract_publish(&s.c->ranks[1], &s.units[0]);
	contract_step_end(&s.c->ranks[1]);
	contract_leave(&s.c->ranks[1]);
	AWAIT(contract_device(s.c, contract_device_of(&s.c->ranks[1])).bucket_bytes == 0);
	contract_expect_target(s.rank, &s.units[0], CONTRACT_ALL(s.c), 1);
	contract_publish(s.rank, &s.units[0]);
	contract_step_end(s.rank);
	contract_expect_version(s.rank, &s.units[0], 2);
	FAILS(s.rank->client, zerod_update_begin(s.units[0].at, 1, NULL, NULL), ZEROD_E_PEER_LOST,
	      "rank 1 (pid");
	contract_close(s.c);
}
