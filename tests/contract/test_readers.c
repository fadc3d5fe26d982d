/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_readers.c - reads of the last commit by a client that is no rank: the bytes of one commit or an error,
 * whatever the ranks do meanwhile.
 */
#include "contract.h"

#include <poll.h>

#include <zerod_read.h>

#include "base/mem.h"

#define RANKS  4u
#define UNITS  2u
#define NUMEL  1001u /* not in equal shards */
#define BYTES  (NUMEL * sizeof(float))
#define ROUNDS 40u

struct reading {
	struct contract *c;
	zerod_client *client; /* no rank */
	struct contract_unit units[UNITS];
	zerod_allocation *buffer;
	void *data;
	struct zerod_committed commit;
	uint64_t step;  /* that the ranks make */
	uint32_t flags; /* of the waits for commits */
	uint32_t pin_ms;
	uint32_t whole, stale;
};

static void begin(struct reading *r, uint32_t flags)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);

	memset(r, 0, sizeof(*r));
	r->c = contract_open(&(struct contract_options){
	        .world_size = RANKS,
	        .devices = 2,
	        .flags = flags,
	        .config = contract_on_host() ? NULL : "[devices]\nhost_arena = 64M\n"});
	r->client = r->c->observers[0];
	contract_plain_unit(r->c, "a", NUMEL, &r->units[0]);
	contract_plain_unit(r->c, "b", NUMEL, &r->units[1]);
	options.job = "reader";
	options.bytes = BYTES;
	OK(r->client, zerod_alloc(r->client, &options, &r->buffer, &r->data));
}

static void end(struct reading *r)
{
	OK(r->client, zerod_free(r->buffer, NULL, 0));
	contract_close(r->c);
}

static int await_commit(struct reading *r, uint64_t after, uint32_t deadline_ms)
{
	struct zerod_commit_source source = ZEROD_INIT(source);

	source.job = "contract";
	source.deadline_ms = deadline_ms;
	source.flags = r->flags;
	source.pin_ms = r->pin_ms;
	r->commit.struct_size = sizeof(r->commit);
	return zerod_commit_wait(r->client, &source, after, &r->commit);
}

static int read_bytes(struct reading *r, const char *unit, uint64_t offset, uint64_t bytes)
{
	struct zerod_unit_read_options options = ZEROD_INIT(options);

	options.group = r->commit.group;
	options.step = r->commit.step;
	options.unit = unit;
	options.offset_bytes = offset;
	options.bytes = bytes;
	options.into = r->buffer;
	return zerod_unit_read(r->client, &options, NULL);
}

/* Whether the bytes that were read are of that version. */
static bool are(struct reading *r, const struct contract_unit *unit, uint64_t version)
{
	uint8_t *padded = zd_calloc(1, contract_padded_bytes(unit));
	bool same;

	contract_read(NULL, padded, r->data, BYTES);
	same = contract_bytes_are(unit, padded, version);
	free(padded);
	return same;
}

static void expect(struct reading *r, uint32_t unit, uint64_t version)
{
	OK(r->client, read_bytes(r, r->units[unit].name, 0, BYTES));
	CHECK_BYTES(are(r, &r->units[unit], version));
}

/* Columns of a matrix, whose rows are cut by the shards' ends. */
static void expect_columns(struct reading *r, uint32_t unit)
{
	struct zerod_unit_read_options options = ZEROD_INIT(options);
	enum { ROWS = 77, COLUMNS = 13, FIRST = 3, COUNT = 5 };
	float whole[NUMEL], columns[ROWS * COUNT];

	OK(r->client, read_bytes(r, r->units[unit].name, 0, BYTES));
	contract_read(NULL, (uint8_t *)whole, r->data, BYTES);
	options.group = r->commit.group;
	options.step = r->commit.step;
	options.unit = r->units[unit].name;
	options.offset_bytes = FIRST * sizeof(float);
	options.bytes = COUNT * sizeof(float);
	options.rows = ROWS;
	options.stride_bytes = COLUMNS * sizeof(float);
	options.into = r->buffer;
	OK(r->client, zerod_unit_read(r->client, &options, NULL));
	contract_read(NULL, (uint8_t *)columns, r->data, sizeof(columns));
	for (size_t i = 0; i < ROWS * COUNT; i++)
		CHECK_BYTES(columns[i] == whole[i / COUNT * COLUMNS + FIRST + i % COUNT]);
	options.rows++;
	FAILS(r->client, zerod_unit_read(r->client, &options, NULL), ZEROD_E_INVALID,
	      "78 rows of 20 bytes, 52 bytes apart");
}

static void commit(struct contract_rank *rank, void *arg)
{
	const struct reading *r = arg;

	OK(rank->client, zerod_commit(rank->group, r->step, NULL));
}

static void publish_and_commit(struct reading *r)
{
	r->step++;
	for (uint32_t i = 0; i < UNITS; i++)
		contract_publish_all(r->c, &r->units[i]);
	contract_run(r->c, commit, r);
}

/* A rank updates its shard of one unit after the commit. */
CONTRACT_TEST(test_update_after_the_commit)
{
	contract_needs(CONTRACT_ONE_SIDED);
	for (int shadow = 0; shadow < 2; shadow++) {
		struct reading r;
		begin(&r, shadow ? ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW : 0);
		struct contract_rank *rank = &r.c->ranks[1];
		zerod_unit **written = &r.units[0].at[1];
		uint64_t shard = r.units[0].shard_numel * sizeof(float);

		publish_and_commit(&r);
		OK(r.client, await_commit(&r, 0, 0));
		CHECK(r.commit.step == 1);
		expect(&r, 0, 1);
		expect_columns(&r, 0);
		OK(rank->client, zerod_update_begin(written, 1, NULL, NULL));
		contract_write_shard(rank, &r.units[0], NULL);
		for (int published = 0; published < 2; published++) {
			if (shadow)
				expect(&r, 0, 1);
			else
				FAILS(r.client, read_bytes(&r, "a", 4, BYTES - 4), ZEROD_E_STALE_VERSION,
				      "rank 1 has updated its shard after step 1");
			OK(r.client, read_bytes(&r, "a", 0, shard));
			OK(r.client, read_bytes(&r, "a", 2 * shard, shard));
			expect(&r, 1, 1);
			if (!published)
				OK(rank->client, zerod_publish(written, 1, NULL, 0, NULL, NULL));
		}
		for (uint32_t other = 0; other < RANKS; other++) {
			if (other != 1)
				contract_publish(&r.c->ranks[other], &r.units[0]);
		}
		r.units[0].version[1] = 2;
		r.step = 2;
		contract_run(r.c, commit, &r);
		FAILS(r.client, read_bytes(&r, "b", 0, 4), ZEROD_E_STALE_VERSION,
		      "the last commit is step 2");
		OK(r.client, await_commit(&r, 1, 0));
		expect(&r, 0, 2);
		expect(&r, 1, 1);
		end(&r);
	}
}

/* The ranks update and commit meanwhile, and do not wait for the reader. */
CONTRACT_TEST(test_pinned_commit)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct reading r;
	begin(&r, 0);
	publish_and_commit(&r);
	r.flags = ZEROD_COMMIT_PIN;
	OK(r.client, await_commit(&r, 0, 0));
	for (uint32_t i = 0; i < 2; i++) {
		contract_publish(&r.c->ranks[i], &r.units[0]);
		expect(&r, 0, 1);
		expect(&r, 1, 1);
	}
	for (uint32_t i = 2; i < RANKS; i++)
		contract_publish(&r.c->ranks[i], &r.units[0]);
	r.step = 2;
	contract_run(r.c, commit, &r);
	publish_and_commit(&r);
	expect(&r, 0, 1);
	expect(&r, 1, 1);
	r.flags = 0;
	OK(r.client, await_commit(&r, 0, 0));
	expect(&r, 0, 3);
	r.commit.step = 1;
	FAILS(r.client, read_bytes(&r, "a", 0, 4), ZEROD_E_STALE_VERSION, "the last commit is step 3");
	r.flags = ZEROD_COMMIT_PIN;
	r.pin_ms = 10;
	OK(r.client, await_commit(&r, 0, 0));
	contract_publish(&r.c->ranks[0], &r.units[0]);
	int rc = 0;
	while (rc == 0)
		rc = read_bytes(&r, "a", 0, 4);
	FAILS(r.client, rc, ZEROD_E_STALE_VERSION, "the deadline of its pin has passed");
	r.flags = 0;
	FAILS(r.client, await_commit(&r, 0, 0), ZEROD_E_INVALID, "pin_ms is 10 without ZEROD_COMMIT_PIN");
	r.flags = 4;
	FAILS(r.client, await_commit(&r, 0, 0), ZEROD_E_INVALID, "zerod_commit_source: unknown flags 0x4");
	end(&r);
}

static void await_second(struct contract_rank *rank, void *arg)
{
	(void)rank;
	OK(((struct reading *)arg)->client, await_commit(arg, 1, 0));
}

struct mapping {
	zerod_mapped *mapped;
	const void *data;
	uint64_t bytes;
};

static int map(struct reading *r, const char *unit, uint64_t offset, uint32_t device, struct mapping *mapping)
{
	struct zerod_unit_map_options options = ZEROD_INIT(options);

	options.group = r->commit.group;
	options.step = r->commit.step;
	options.unit = unit;
	options.offset_bytes = offset;
	options.bytes = BYTES - offset;
	options.device = device;
	return zerod_unit_map(r->client, &options, &mapping->mapped, &mapping->data, &mapping->bytes);
}

/* Maps the whole unit, in a piece of each rank, and checks its bytes. */
static void map_all(struct reading *r, const struct contract_unit *unit, uint64_t version,
                    struct mapping mappings[RANKS])
{
	uint8_t *padded = zd_calloc(1, contract_padded_bytes(unit));
	uint64_t at = 0;

	for (uint32_t i = 0; i < RANKS; i++) {
		OK(r->client, map(r, unit->name, at, contract_memory_of(&r->c->ranks[i]), &mappings[i]));
		CHECK(mappings[i].mapped && !contract_can_write(r->client, mappings[i].data));
		contract_read(NULL, padded + at, mappings[i].data, mappings[i].bytes);
		at += mappings[i].bytes;
	}
	CHECK(at == BYTES);
	CHECK_BYTES(contract_bytes_are(unit, padded, version));
	free(padded);
}

/* The reader copies nothing. A rank's update does not wait for it, and its end of the mapping says so. */
CONTRACT_TEST(test_mapped_reads)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct mapping mappings[RANKS], other;
	struct reading r;

	begin(&r, 0);
	const struct contract_rank *first = &r.c->ranks[0], *last = &r.c->ranks[RANKS - 1];
	for (uint64_t step = 1; step <= 2; step++) {
		publish_and_commit(&r);
		OK(r.client, await_commit(&r, 0, 0));
		map_all(&r, &r.units[0], 2 * step - 1, mappings);
		if (contract_memory_of(first) != contract_memory_of(last)) {
			OK(r.client, map(&r, "a", 0, contract_memory_of(last), &other));
			CHECK(!other.mapped && !other.data && other.bytes == mappings[0].bytes);
		}
		OK(r.client, map(&r, "b", 4, contract_memory_of(first), &other));
		contract_publish(&r.c->ranks[1], &r.units[0]);
		for (uint32_t i = 0; i < RANKS; i++) {
			if (i == 1)
				FAILS(r.client, zerod_unit_map_end(mappings[i].mapped), ZEROD_E_STALE_VERSION,
				      "rank 1 has updated its shard after step");
			else
				OK(r.client, zerod_unit_map_end(mappings[i].mapped));
		}
		OK(r.client, zerod_unit_map_end(other.mapped));
		for (uint32_t i = 0; i < RANKS; i++) {
			if (i != 1)
				contract_publish(&r.c->ranks[i], &r.units[0]);
		}
		contract_publish_all(r.c, &r.units[1]);
	}
	FAILS(r.client, zerod_unit_map(r.client, NULL, &other.mapped, &other.data, &other.bytes),
	      ZEROD_E_INVALID, "unit is NULL");
	FAILS(r.client, map(&r, "a", 0, 99, &other), ZEROD_E_NOT_FOUND, "no device 99");
	end(&r);
}

static void save(struct contract_rank *rank, void *arg)
{
	const struct reading *r = arg;

	OK(rank->client, zerod_commit_save(rank->group, r->step, NULL, NULL));
}

static void save_and_train(struct contract_rank *rank, void *arg)
{
	struct reading *r = arg;
	zerod_ticket ticket;

	OK(rank->client, zerod_commit_save(rank->group, 1, NULL, &ticket));
	for (uint64_t step = 2; step <= 3; step++) {
		for (uint32_t i = 0; i < UNITS; i++)
			contract_publish(rank, &r->units[i]);
		OK(rank->client, zerod_commit(rank->group, step, NULL));
	}
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, NULL));
}

/* A commit is read from host memory until another one is there. */
CONTRACT_TEST(test_saved_commit)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct mapping mapping;
	struct reading r;

	begin(&r, 0);
	const struct contract_rank *rank = &r.c->ranks[2];
	FAILS(rank->client, zerod_commit_save(rank->group, 1, NULL, NULL), ZEROD_E_STATE,
	      "the last commit is step 0");
	publish_and_commit(&r);
	contract_run(r.c, save_and_train, &r);
	OK(rank->client, zerod_commit_save(rank->group, 1, NULL, NULL)); /* it is there */
	r.step = 3;
	r.flags = ZEROD_COMMIT_SAVED;
	OK(r.client, await_commit(&r, 0, 0));
	CHECK(r.commit.step == 1);
	expect(&r, 0, 1);
	expect(&r, 1, 1);
	OK(r.client, map(&r, "a", 4, contract_memory_of(rank), &mapping));
	CHECK(!mapping.mapped && !mapping.data && mapping.bytes == BYTES - 4);
	FAILS(r.client, await_commit(&r, 1, 1), ZEROD_E_DEADLINE, "a host copy of a step after 1");
	contract_run(r.c, save, &r);
	FAILS(r.client, read_bytes(&r, "a", 0, 4), ZEROD_E_STALE_VERSION, "the last commit is step 3");
	OK(r.client, await_commit(&r, 1, 0));
	CHECK(r.commit.step == 3);
	contract_publish_all(r.c, &r.units[1]);
	expect(&r, 1, 3);
	OK(rank->client, zerod_commit_save(rank->group, 0, NULL, NULL));
	FAILS(r.client, read_bytes(&r, "b", 0, 4), ZEROD_E_STALE_VERSION,
	      "has updated its shard after step 3");
	r.flags = ZEROD_COMMIT_SAVED | ZEROD_COMMIT_PIN;
	FAILS(r.client, await_commit(&r, 0, 0), ZEROD_E_INVALID, "pins nothing");
	end(&r);
}

/* The reader waits, and is told. */
CONTRACT_TEST(test_waits)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract_task *task;
	struct reading r;

	begin(&r, 0);
	FAILS(r.client, await_commit(&r, 0, 1), ZEROD_E_DEADLINE, "rank 0 to commit");
	publish_and_commit(&r);
	task = contract_start(&r.c->ranks[0], await_second, &r);
	AWAIT(contract_somebody_waits(r.c, "to commit"));
	publish_and_commit(&r);
	contract_finish(task);
	CHECK(r.commit.step == 2);
	end(&r);
}

static int watch(struct reading *r, uint64_t after, uint32_t deadline_ms, zerod_watch **watching)
{
	struct zerod_commit_source source = ZEROD_INIT(source);

	source.job = "contract";
	source.deadline_ms = deadline_ms;
	source.flags = r->flags;
	return zerod_commit_watch(r->client, &source, after, watching);
}

static bool is_readable(const zerod_watch *watching)
{
	struct pollfd polled = {.fd = zerod_watch_fd(watching), .events = POLLIN};

	return poll(&polled, 1, 0) > 0;
}

/* As an event loop does it. */
static int await_watch(struct reading *r, zerod_watch *watching)
{
	int rc = ZEROD_E_BUSY;

	while (rc == ZEROD_E_BUSY) {
		AWAIT(is_readable(watching));
		rc = zerod_watch_take(watching, &r->commit);
	}
	return rc;
}

static void await_later(struct contract_rank *rank, void *arg)
{
	struct reading *r = arg;

	(void)rank;
	OK(r->client, await_commit(r, r->step + 1, 0));
}

/* Other calls of the client read the answer, or nobody does. */
CONTRACT_TEST(test_watches)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract_task *task;
	zerod_watch *first, *second, *ended;
	struct zerod_device_info info = ZEROD_INIT(info);
	struct reading r, later;

	begin(&r, 0);
	r.commit.struct_size = sizeof(r.commit);
	OK(r.client, watch(&r, 0, 1, &first));
	FAILS(r.client, await_watch(&r, first), ZEROD_E_DEADLINE, "rank 0 to commit");
	zerod_watch_end(first);
	for (int others = 0; others < 3; others++) {
		later = r;
		OK(r.client, watch(&r, r.step, 0, &first));
		OK(r.client, watch(&r, r.step, 0, &ended));
		OK(r.client, watch(&r, r.step + 1, 0, &second));
		FAILS(r.client, zerod_watch_take(first, &r.commit), ZEROD_E_BUSY, "no later commit yet");
		zerod_watch_end(ended);
		if (others == 1)
			task = contract_start(&r.c->ranks[0], await_later, &later);
		publish_and_commit(&r);
		if (others == 2)
			OK(r.client, zerod_device_get(r.client, 0, &info));
		OK(r.client, await_watch(&r, first));
		CHECK(r.commit.step == r.step);
		OK(r.client, zerod_watch_take(first, &r.commit));
		FAILS(r.client, zerod_watch_take(second, &r.commit), ZEROD_E_BUSY, "no later commit yet");
		zerod_watch_end(first);
		publish_and_commit(&r);
		OK(r.client, await_watch(&r, second));
		zerod_watch_end(second);
		if (others == 1)
			contract_finish(task);
	}
	r.flags = ZEROD_COMMIT_PIN;
	OK(r.client, watch(&r, 0, 0, &first));
	OK(r.client, await_watch(&r, first));
	zerod_watch_end(first);
	for (uint32_t i = 0; i < RANKS; i++)
		contract_publish(&r.c->ranks[i], &r.units[0]);
	expect(&r, 0, r.step);
	CHECK(zerod_watch_fd(NULL) == -1);
	zerod_watch_end(NULL);
	FAILS(NULL, zerod_watch_take(NULL, &r.commit), ZEROD_E_INVALID, "the handle is NULL");
	end(&r);
}

CONTRACT_TEST(test_wrong_reads)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_unit_read_options options = ZEROD_INIT(options);
	struct zerod_commit_source source = ZEROD_INIT(source);
	struct zerod_unit_info info = ZEROD_INIT(info);
	struct contract_unit late;
	struct reading r;

	begin(&r, 0);
	source.job = "contract";
	source.group = "none";
	FAILS(r.client, zerod_commit_wait(r.client, &source, 0, &r.commit), ZEROD_E_INVALID, "struct_size");
	r.commit.struct_size = sizeof(r.commit);
	FAILS(r.client, zerod_commit_wait(r.client, &source, 0, &r.commit), ZEROD_E_NOT_FOUND,
	      "no group 'none' in job 'contract'");
	contract_publish_all(r.c, &r.units[0]);
	r.step = 1;
	contract_run(r.c, commit, &r);
	contract_plain_unit(r.c, "late", 8, &late);
	OK(r.client, await_commit(&r, 0, 0));
	FAILS(r.client, read_bytes(&r, "b", 0, 4), ZEROD_E_STATE, "unit 'b' was not published before step 1");
	FAILS(r.client, read_bytes(&r, "late", 0, 4), ZEROD_E_STATE, "unit 'late' was not published");
	FAILS(r.client, read_bytes(&r, "c", 0, 4), ZEROD_E_NOT_FOUND, "has no unit 'c'");
	FAILS(r.client, read_bytes(&r, "a", 4, BYTES), ZEROD_E_INVALID, "of unit 'a', which has 4004 bytes");
	FAILS(r.client, read_bytes(&r, "a", UINT64_MAX, 4), ZEROD_E_INVALID, "of unit 'a'");
	options.group = r.commit.group;
	options.step = 2;
	options.unit = "a";
	FAILS(r.client, zerod_unit_read(r.client, &options, NULL), ZEROD_E_STATE,
	      "the last commit is step 1");
	options.step = 1;
	OK(r.client, zerod_unit_read(r.client, &options, &info));
	CHECK(info.numel == NUMEL && info.dtype == ZEROD_FLOAT32);
	options.bytes = 4;
	FAILS(r.client, zerod_unit_read(r.client, &options, NULL), ZEROD_E_INVALID, "into is NULL");
	options.into = r.buffer;
	options.into_offset_bytes = 4096;
	FAILS(r.client, zerod_unit_read(r.client, &options, NULL), ZEROD_E_INVALID, "at offset 4096");
	FAILS(r.c->ranks[0].client, zerod_unit_read(r.c->ranks[0].client, &options, NULL), ZEROD_E_INVALID,
	      "of another client");
	end(&r);
}

/* ---- Readers beside ranks that do not wait for them ---------------------------------------------------- */

static void train(struct contract_rank *rank, void *arg)
{
	struct reading *r = arg;
	bool saves = (r->flags & ZEROD_COMMIT_SAVED) != 0;
	zerod_ticket ticket = {0};

	for (uint64_t step = 1; step <= ROUNDS; step++) {
		for (uint32_t i = 0; i < UNITS; i++)
			contract_publish(rank, &r->units[i]);
		OK(rank->client, zerod_commit(rank->group, step, NULL));
		if (saves && ticket.id)
			OK(rank->client, zerod_wait(rank->client, ticket, NULL, NULL));
		if (saves)
			OK(rank->client, zerod_commit_save(rank->group, step, NULL, &ticket));
	}
	if (saves)
		OK(rank->client, zerod_wait(rank->client, ticket, NULL, NULL));
}

static void read_all(struct contract_rank *rank, void *arg)
{
	struct reading *r = arg;
	int rc = 0;

	(void)rank;
	for (r->commit.step = 0; r->commit.step < ROUNDS;) {
		OK(r->client, await_commit(r, r->commit.step, 0));
		for (uint32_t i = 0; i < UNITS; i++) {
			rc = read_bytes(r, r->units[i].name, 0, BYTES);
			if (rc)
				break;
			CHECK_BYTES(are(r, &r->units[i], r->commit.step));
		}
		CHECK(rc == 0 || rc == ZEROD_E_STALE_VERSION);
		r->whole += rc == 0;
	}
}

CONTRACT_TEST(test_no_read_is_torn)
{
	contract_needs(CONTRACT_ONE_SIDED);
	for (int i = 0; i < 5; i++) {
		struct contract_task *tasks[RANKS], *reader;
		struct reading r;
		begin(&r, i % 3 == 1 ? ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW : 0);
		r.flags = i == 2 ? ZEROD_COMMIT_PIN : i > 2 ? ZEROD_COMMIT_SAVED : 0;
		for (uint32_t rank = 0; rank < RANKS; rank++)
			tasks[rank] = contract_start(&r.c->ranks[rank], train, &r);
		reader = contract_start(&r.c->ranks[0], read_all, &r);
		for (uint32_t rank = 0; rank < RANKS; rank++)
			contract_finish(tasks[rank]);
		contract_finish(reader);
		CHECK(r.whole >= 1); /* the last commit */
		end(&r);
	}
}
