/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_in_place.c - gathered buffers whose own part is the shard: who may write it meanwhile, who waits for
 * whom, and what the memory of the other parts does.
 */
#include "contract.h"

#include "base/mem.h"

#define MIB   (1024ull * 1024)
#define SLICE (4 * MIB) /* two granules of a GPU's memory: the smallest slices in place */
#define RANKS 3u

struct world {
	struct contract *c;
	struct contract_rank *rank; /* one with two frames */
	zerod_stream *stream, *other;
	uint8_t *seen[2];
};

static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};

static void add(struct world *w, const char *name, uint32_t flags, uint32_t slot, struct contract_unit *unit)
{
	struct zerod_unit_options options = ZEROD_INIT(options);

	options.name = name;
	options.dtype = ZEROD_FLOAT32;
	options.numel = RANKS * SLICE / sizeof(float) - 5;
	options.flags = flags;
	options.slot = slot;
	contract_unit(w->c, &options, unit);
	contract_publish_all(w->c, unit);
}

static void open_world(struct world *w, const char *arena)
{
	contract_needs(CONTRACT_ONE_SIDED);
	if (contract_on_host())
		skip(); /* gathered copies of units on the host are never in place */
	w->c = contract_open(&(struct contract_options){.world_size = RANKS, .devices = 2, .arena = arena});
	w->rank = &w->c->ranks[1];
	w->stream = contract_stream(w->rank);
	w->other = contract_stream(w->rank);
	for (int i = 0; i < 2; i++)
		w->seen[i] = zd_calloc(RANKS, SLICE);
}

static void close_world(struct world *w)
{
	for (int i = 0; i < 2; i++)
		free(w->seen[i]);
	contract_close(w->c);
}

static void *gather(struct world *w, struct contract_unit *unit, zerod_stream *stream)
{
	void *data;

	OK(w->rank->client, zerod_gather(unit->at[w->rank->number], NULL, stream, &data));
	return data;
}

static void release(struct world *w, struct contract_unit *unit, zerod_stream **stream)
{
	OK(w->rank->client, zerod_release(unit->at[w->rank->number], stream, stream != NULL, NULL, NULL));
}

/* The rank's shard is a part of what it has gathered, and is charged once. */
CONTRACT_TEST(test_own_part_is_the_shard)
{
	struct zerod_shard shard = ZEROD_INIT(shard);
	struct contract_unit unit;
	struct world w;
	uint8_t *data;

	open_world(&w, NULL);
	add(&w, "w", 0, ZEROD_NO_SLOT, &unit);
	OK(w.rank->client, zerod_shard_get(unit.at[1], &shard));
	data = gather(&w, &unit, NULL);
	contract_expect_bytes(&unit, data, 1);
	CHECK(data + SLICE != (uint8_t *)shard.data);
	CHECK(contract_buffer(w.c, 1, "w").padded_bytes == (RANKS - 1) * SLICE);
	release(&w, &unit, NULL);
	close_world(&w);
}

/* Nobody writes what the rank itself holds: neither by force, nor while it waits for the lease. */
CONTRACT_TEST(test_held_shards_are_not_written)
{
	struct zerod_wait_options waits = ZEROD_INIT(waits);
	struct contract_unit unit;
	zerod_ticket update;
	struct world w;

	open_world(&w, NULL);
	add(&w, "w", 0, ZEROD_NO_SLOT, &unit);
	waits.flags = ZEROD_WAIT_LEASES;
	(void)gather(&w, &unit, NULL);
	FAILS(w.rank->client, zerod_update_begin(&unit.at[1], 1, NULL, NULL), ZEROD_E_BUSY,
	      "unit 'w' is held on rank 1 by 'default'; the shard is a part of its gathered buffer");
	OK(w.rank->client, zerod_update_begin(&unit.at[1], 1, &waits, &update));
	AWAIT(contract_somebody_waits(w.c, "leases on version 1 of unit 'w'"));
	release(&w, &unit, NULL);
	OK(w.rank->client, zerod_wait(w.rank->client, update, NULL, NULL));
	contract_write_shard(w.rank, &unit, NULL);
	OK(w.rank->client, zerod_publish(&unit.at[1], 1, NULL, 0, NULL, NULL));
	unit.version[1]++;
	for (uint32_t i = 0; i < RANKS; i += 2)
		contract_publish(&w.c->ranks[i], &unit);
	contract_expect_version(w.rank, &unit, 2);
	close_world(&w);
}

/* The rank's consumer stands still. The update is granted, written and published by a stream behind the
 * consumer, and the next gather is ahead of this publish. */
static void write_behind_a_viewer(uint32_t flags)
{
	zerod_ticket granted, published;
	struct contract_unit unit;
	struct contract_gate *gate;
	zerod_stream *writer;
	struct world w;
	void *data[2];

	open_world(&w, NULL);
	add(&w, "w", flags, ZEROD_NO_SLOT, &unit);
	writer = flags ? w.stream : w.other;
	gate = contract_block(w.rank, w.stream);
	data[0] = gather(&w, &unit, w.stream);
	contract_read(w.stream, w.seen[0], data[0], RANKS * SLICE);
	release(&w, &unit, &w.stream);
	OK(w.rank->client, zerod_update_begin(&unit.at[1], 1, NULL, &granted));
	OK(w.rank->client, zerod_wait(w.rank->client, granted, writer, NULL));
	contract_write_shard(w.rank, &unit, writer);
	OK(w.rank->client, zerod_publish(&unit.at[1], 1, &writer, 1, NULL, &published));
	unit.version[1]++;
	for (uint32_t i = 0; i < RANKS; i += 2)
		contract_publish(&w.c->ranks[i], &unit);
	data[1] = gather(&w, &unit, w.other);
	CHECK(!(flags & ZEROD_UNIT_PERSISTENT) || data[1] == data[0]);
	contract_read(w.other, w.seen[1], data[1], RANKS * SLICE);
	release(&w, &unit, &w.other);
	contract_unblock(gate);
	contract_sync(w.rank, w.stream);
	contract_sync(w.rank, w.other);
	for (uint64_t version = 1; version <= 2; version++)
		CHECK_BYTES(contract_bytes_are(&unit, w.seen[version - 1], version));
	OK(w.rank->client, zerod_wait(w.rank->client, published, NULL, NULL));
	close_world(&w);
}

CONTRACT_TEST(test_writers_wait_for_viewers)
{
	write_behind_a_viewer(0);
}

CONTRACT_TEST(test_a_persistent_buffer_is_refreshed_behind_its_viewers)
{
	write_behind_a_viewer(ZEROD_UNIT_PERSISTENT);
}

/* Each unit has one address in its slot, the second time too; a copy is placed beside the frames. */
CONTRACT_TEST(test_slots)
{
	static const uint32_t flags[] = {0, 0, ZEROD_UNIT_COPIED};
	struct contract_unit units[3];
	void *data[3] = {NULL};
	struct world w;

	open_world(&w, NULL);
	for (uint32_t i = 0; i < 3; i++)
		add(&w, names[i], flags[i], 1, &units[i]);
	for (uint32_t round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < 3; i++) {
			void *now = gather(&w, &units[i], NULL);

			contract_expect_bytes(&units[i], now, 1);
			CHECK(round == 0 || now == data[i]);
			data[i] = now;
			release(&w, &units[i], NULL);
		}
	}
	CHECK(data[0] != data[1]);
	close_world(&w);
}

/* Memory that is given back takes all addresses with it at which it was. */
CONTRACT_TEST(test_frames_that_retire)
{
	struct contract_unit units[8];
	uint64_t freed = 0;
	struct world w;

	open_world(&w, "256M");
	for (uint32_t i = 0; i < 8; i++)
		add(&w, names[i], 0, ZEROD_NO_SLOT, &units[i]);
	for (uint32_t round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < 8; i++)
			contract_expect_version(w.rank, &units[i], 1);
		AWAIT(contract_devices(w.c).quarantine_bytes == 0);
		OK(w.rank->client, zerod_trim(w.rank->client, contract_device_of(w.rank), 0, NULL, &freed));
		CHECK(freed >= 2 * SLICE);
	}
	close_world(&w);
}
