/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_room.c - memory that is empty serves whoever needs it: another purpose, another job, another process.
 *
 * An arena holds a unit's two shards, one gathered copy and a little more. The copy is released and its
 * memory wanted as an allocation, which it becomes when everybody who was given it has unmapped it.
 */
#include "contract.h"

#define MIB   (1024ull * 1024)
#define NUMEL (6 * MIB / sizeof(float))

static struct contract *open_full(struct contract_unit *unit)
{
	const struct contract_options options = {.devices = 1, .arena = "16M"};
	struct contract *c;

	contract_needs(CONTRACT_ONE_SIDED); /* room for one rank's copy */
	c = contract_open(&options);
	contract_plain_unit(c, "w", NUMEL, unit);
	contract_publish_all(c, unit);
	contract_expect_version(&c->ranks[0], unit, 1);
	AWAIT(contract_device(c, 0).quarantine_bytes == 0);
	return c;
}

static struct zerod_alloc_options eight_mib(const char *job)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);

	options.job = job;
	options.bytes = 8 * MIB;
	return options;
}

CONTRACT_TEST(test_released_copies_make_room)
{
	struct zerod_alloc_options options = eight_mib("scratch");
	uint8_t byte = 7, seen = 0;
	struct contract_unit unit;
	struct contract_rank *rank;
	zerod_allocation *buffer;
	zerod_stream *stream;
	struct contract *c;
	void *data;

	c = open_full(&unit);
	rank = &c->ranks[0];
	stream = contract_stream(rank);
	for (int round = 0; round < 3; round++) {
		OK(rank->client, zerod_alloc(rank->client, &options, &buffer, &data));
		contract_write(stream, (uint8_t *)data + 8 * MIB - 1, &byte, 1);
		contract_read(stream, &seen, (uint8_t *)data + 8 * MIB - 1, 1);
		contract_sync(rank, stream);
		CHECK(seen == byte);
		/* there is no room for both */
		FAILS(rank->client, zerod_alloc(rank->client, &options, &buffer, &data), ZEROD_E_NO_MEMORY,
		      "do not fit on device 0");
		OK(rank->client, zerod_free(buffer, &stream, 1));
		contract_expect_version(rank, &unit, 1);
		AWAIT(contract_device(c, 0).quarantine_bytes == 0);
	}
	contract_close(c);
}

static void allocate(struct contract_rank *rank, void *arg)
{
	struct contract *c = rank->world;
	struct zerod_alloc_options options = eight_mib("another");
	zerod_allocation *buffer;
	void *data;

	(void)arg;
	OK(c->observers[0], zerod_alloc(c->observers[0], &options, &buffer, &data));
	OK(c->observers[0], zerod_free(buffer, NULL, 0));
}

/* The rank makes no call meanwhile. */
CONTRACT_TEST(test_another_process_is_asked_for_its_memory)
{
	struct contract_unit unit;
	struct contract *c;

	c = open_full(&unit);
	contract_finish(contract_start(&c->ranks[0], allocate, NULL));
	contract_expect_version(&c->ranks[0], &unit, 1);
	contract_close(c);
}
