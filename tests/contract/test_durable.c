/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_durable.c - allocations of a durable job: what one session has written, a later one finds.
 */
#include "contract.h"

#define BYTES 5000u

static int keep(zerod_client *client, uint64_t bytes, zerod_allocation **buffer, void **data)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);

	options.job = "contract";
	options.name = "adam";
	options.bytes = bytes;
	options.flags = ZEROD_ALLOC_DURABLE;
	return zerod_alloc(client, &options, buffer, data);
}

CONTRACT_TEST(test_later_session_finds_the_bytes)
{
	contract_needs(CONTRACT_ONE_SIDED);
	static uint8_t written[BYTES], read[BYTES];
	struct contract *c = contract_open(&(struct contract_options){.flags = ZEROD_GROUP_DURABLE});
	zerod_client *first = c->ranks[0].client, *second = c->ranks[1].client;
	zerod_allocation *buffer;
	void *data;

	for (uint32_t i = 0; i < BYTES; i++)
		written[i] = (uint8_t)(i * 7 + 1);
	OK(first, keep(first, BYTES, &buffer, &data));
	contract_read(NULL, read, data, BYTES);
	for (uint32_t i = 0; i < BYTES; i++)
		CHECK(read[i] == 0);
	contract_write(NULL, data, written, BYTES);
	FAILS(second, keep(second, BYTES, &buffer, &data), ZEROD_E_EXISTS,
	      "allocation 'adam' of job 'contract' on device 0 is held by session");
	contract_leave(&c->ranks[0]);
	AWAIT(keep(second, BYTES, &buffer, &data) == 0);
	contract_read(NULL, read, data, BYTES);
	for (uint32_t i = 0; i < BYTES; i++)
		CHECK_BYTES(read[i] == written[i]);
	OK(second, zerod_free(buffer, NULL, 0));
	AWAIT(contract_device(c, 0).allocation_bytes == 0);
	OK(second, keep(second, 2 * BYTES, &buffer, &data)); /* another one */
	OK(second, zerod_free(buffer, NULL, 0));
	contract_close(c);
}

/* ---- Commits ------------------------------------------------------------------------------------------- */

#define NUMEL 1000u

struct trainer {
	struct contract *c;
	struct contract_unit unit;
	void *state; /* rank 0's, of its optimizer */
};

static void join_again(struct contract_rank *rank, void *arg)
{
	(void)arg;
	contract_replace(rank);
}

/* Another process comes in rank 0's place, and finds what is there. */
static struct zerod_group_info come_again(struct trainer *t)
{
	struct zerod_group_info info = ZEROD_INIT(info);
	struct zerod_unit_options options = ZEROD_INIT(options);
	struct contract_rank *rank = &t->c->ranks[0];
	struct zerod_shard shard = ZEROD_INIT(shard);
	zerod_allocation *buffer;

	contract_leave(rank);
	contract_finish(contract_start(rank, join_again, NULL));
	options.name = "w";
	options.dtype = ZEROD_FLOAT32;
	options.numel = NUMEL;
	OK(rank->client, contract_register(rank->group, &options, &t->unit.at[0]));
	OK(rank->client, zerod_shard_get(t->unit.at[0], &shard));
	t->unit.version[0] = shard.version;
	AWAIT(keep(rank->client, BYTES, &buffer, &t->state) == 0);
	OK(rank->client, zerod_group_get(rank->group, &info));
	return info;
}

static void fill_state(struct trainer *t, uint8_t value)
{
	uint8_t bytes[BYTES];

	memset(bytes, value, sizeof(bytes));
	contract_write(NULL, t->state, bytes, sizeof(bytes));
}

static void expect_state(struct trainer *t, uint8_t value)
{
	uint8_t bytes[BYTES];

	contract_read(NULL, bytes, t->state, sizeof(bytes));
	for (uint32_t i = 0; i < BYTES; i++)
		CHECK_BYTES(bytes[i] == value);
}

static void commit(struct contract_rank *rank, void *arg)
{
	OK(rank->client, zerod_commit(rank->group, *(uint64_t *)arg, NULL));
}

/* Rank 0's weights and its optimizer's state change together. */
static void take_step(struct trainer *t, uint64_t step, uint8_t value)
{
	struct contract_rank *rank = &t->c->ranks[0];

	OK(rank->client, zerod_update_begin(t->unit.at, 1, NULL, NULL));
	fill_state(t, value);
	contract_write_shard(rank, &t->unit, NULL);
	OK(rank->client, zerod_publish(t->unit.at, 1, NULL, 0, NULL, NULL));
	t->unit.version[0]++;
	contract_publish(&t->c->ranks[1], &t->unit);
	contract_run(t->c, commit, &step);
}

static void be_told(struct contract_rank *rank)
{
	FAILS(rank->client, zerod_backward_begin(rank->group, NULL), ZEROD_E_PEER_LOST, "rank 0");
}

/* State and weights of a commit are there after a death; a death inside an update is torn, and
 * says so, although the state's bytes are there. */
CONTRACT_TEST(test_state_is_in_the_commit)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct trainer t = {.c = contract_open(&(struct contract_options){.flags = ZEROD_GROUP_DURABLE})};
	struct contract_rank *rank = &t.c->ranks[0];
	struct zerod_group_info info;
	zerod_allocation *buffer;

	contract_plain_unit(t.c, "w", NUMEL, &t.unit);
	OK(rank->client, keep(rank->client, BYTES, &buffer, &t.state));
	take_step(&t, 1, 11);
	info = come_again(&t);
	CHECK(info.committed_step == 1 && !info.torn);
	expect_state(&t, 11);
	be_told(&t.c->ranks[1]);
	contract_expect_version(&t.c->ranks[1], &t.unit, 1);

	OK(rank->client, zerod_update_begin(t.unit.at, 1, NULL, NULL));
	fill_state(&t, 22);
	info = come_again(&t);
	CHECK(info.committed_step == 1 && info.torn);
	expect_state(&t, 22);
	FAILS(rank->client, zerod_gather(t.unit.at[0], NULL, NULL, NULL), ZEROD_E_TORN, "after step 1");
	be_told(&t.c->ranks[1]);

	take_step(&t, 2, 33);
	info = come_again(&t);
	CHECK(info.committed_step == 2 && !info.torn);
	expect_state(&t, 33);
	contract_close(t.c);
}
