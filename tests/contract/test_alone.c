/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_alone.c - a rank that is alone with its units: it gathers its own shards, and its calls still run
 * ahead of its streams.
 */
#include "contract_reduce.h"

#define NUMEL 1000u

struct world {
	struct contract *c;
	struct contract_rank *rank;
	struct contract_unit unit;
	zerod_stream *stream, *other;
};

static void open_world(struct world *w)
{
	contract_needs(CONTRACT_ONE_SIDED);
	w->c = contract_open(&(struct contract_options){.world_size = 1});
	w->rank = &w->c->ranks[0];
	contract_plain_unit(w->c, "w", NUMEL, &w->unit);
	contract_publish_all(w->c, &w->unit);
	w->stream = contract_stream(w->rank);
	w->other = contract_stream(w->rank);
}

/* Behind the stream. */
static void publish(struct world *w, zerod_ticket *ticket)
{
	contract_write_shard(w->rank, &w->unit, w->stream);
	OK(w->rank->client, zerod_publish(w->unit.at, 1, &w->stream, 1, NULL, ticket));
	w->unit.version[0]++;
}

static void *gather(struct world *w, zerod_stream *stream)
{
	void *data;

	OK(w->rank->client, zerod_gather(w->unit.at[0], NULL, stream, &data));
	return data;
}

/* The stream that publishes stands still: gathers of the version return, by this stream and by another. */
CONTRACT_TEST(test_gather_returns_before_its_publish)
{
	uint8_t bytes[2][NUMEL * 4 + 256];
	struct contract_gate *gate;
	zerod_ticket ticket;
	struct world w;
	void *data;

	open_world(&w);
	for (uint64_t version = 2; version <= 3; version++) {
		OK(w.rank->client, zerod_update_begin(w.unit.at, 1, NULL, NULL));
		gate = contract_block(w.rank, w.stream);
		publish(&w, &ticket);
		data = gather(&w, w.stream);
		contract_read(w.stream, bytes[0], data, contract_padded_bytes(&w.unit));
		CHECK(gather(&w, w.other) == data);
		contract_read(w.other, bytes[1], data, contract_padded_bytes(&w.unit));
		AWAIT(contract_is_blocked(gate));
		contract_unblock(gate);
		contract_sync(w.rank, w.stream);
		contract_sync(w.rank, w.other);
		for (int i = 0; i < 2; i++)
			CHECK_BYTES(contract_bytes_are(&w.unit, bytes[i], version));
		OK(w.rank->client, zerod_wait(w.rank->client, ticket, NULL, NULL));
		OK(w.rank->client, zerod_release(w.unit.at[0], &w.stream, 1, NULL, NULL));
		OK(w.rank->client, zerod_release(w.unit.at[0], &w.other, 1, NULL, NULL));
	}
	contract_close(w.c);
}

static void wait_and_compare(struct contract_rank *rank, void *arg)
{
	struct world *w = arg;

	(void)rank;
	contract_expect_bytes(&w->unit, gather(w, NULL), 2);
}

/* A thread without a stream waits for the publish itself. */
CONTRACT_TEST(test_a_thread_waits_for_the_publish)
{
	struct contract_task *task;
	struct contract_gate *gate;
	zerod_ticket ticket;
	struct world w;

	open_world(&w);
	OK(w.rank->client, zerod_update_begin(w.unit.at, 1, NULL, NULL));
	gate = contract_block(w.rank, w.stream);
	publish(&w, &ticket);
	task = contract_start(w.rank, wait_and_compare, &w);
	AWAIT(contract_buffer(w.c, 0, "w").holders == 1);
	contract_unblock(gate);
	contract_finish(task);
	OK(w.rank->client, zerod_release(w.unit.at[0], NULL, 0, NULL, NULL));
	contract_close(w.c);
}

/* A consumer stands still: the update is granted, written and published on another stream behind it, and the
 * new version is gathered, without waiting for it. */
CONTRACT_TEST(test_update_is_granted_before_its_consumers_are_through)
{
	uint8_t bytes[2][NUMEL * 4 + 256];
	zerod_ticket granted, published;
	struct contract_gate *gate;
	struct world w;
	void *data;

	open_world(&w);
	gate = contract_block(w.rank, w.stream);
	data = gather(&w, w.stream);
	contract_read(w.stream, bytes[0], data, contract_padded_bytes(&w.unit));
	OK(w.rank->client, zerod_release(w.unit.at[0], &w.stream, 1, NULL, NULL));
	OK(w.rank->client, zerod_update_begin(w.unit.at, 1, NULL, &granted));
	OK(w.rank->client, zerod_wait(w.rank->client, granted, w.other, NULL));
	contract_write_shard(w.rank, &w.unit, w.other);
	OK(w.rank->client, zerod_publish(w.unit.at, 1, &w.other, 1, NULL, &published));
	w.unit.version[0]++;
	CHECK(gather(&w, w.other) == data);
	contract_read(w.other, bytes[1], data, contract_padded_bytes(&w.unit));
	OK(w.rank->client, zerod_release(w.unit.at[0], &w.other, 1, NULL, NULL));
	contract_unblock(gate);
	contract_sync(w.rank, w.stream);
	contract_sync(w.rank, w.other);
	for (uint64_t version = 1; version <= 2; version++)
		CHECK_BYTES(contract_bytes_are(&w.unit, bytes[version - 1], version));
	OK(w.rank->client, zerod_wait(w.rank->client, published, NULL, NULL));
	contract_close(w.c);
}

/* Its version never comes, and the streams that went on are told so. */
CONTRACT_TEST(test_a_publish_that_fails)
{
	struct zerod_publish_options brief = ZEROD_INIT(brief);
	struct contract_gate *gate;
	zerod_ticket ticket;
	struct world w;

	open_world(&w);
	brief.deadline_ms = 50;
	OK(w.rank->client, zerod_update_begin(w.unit.at, 1, NULL, NULL));
	gate = contract_block(w.rank, w.stream);
	OK(w.rank->client, zerod_publish(w.unit.at, 1, &w.stream, 1, &brief, &ticket));
	(void)gather(&w, w.stream);
	(void)gather(&w, w.other);
	FAILS(w.rank->client, zerod_wait(w.rank->client, ticket, NULL, NULL), ZEROD_E_DEADLINE, "streams");
	contract_unblock(gate);
	/* The publish may be answered before the device has told the streams. */
	AWAIT(zerod_stream_synchronize(w.stream) == ZEROD_E_ABORTED);
	AWAIT(zerod_stream_synchronize(w.other) == ZEROD_E_ABORTED);
	FAILS(w.rank->client, zerod_publish(w.unit.at, 1, NULL, 0, NULL, NULL), ZEROD_E_POISONED, NULL);
	for (int i = 0; i < 2; i++)
		OK(w.rank->client, zerod_release(w.unit.at[0], NULL, 0, NULL, NULL));
	OK(w.rank->client, zerod_session_reset(w.rank->client, NULL));
	contract_write_shard(w.rank, &w.unit, NULL);
	OK(w.rank->client, zerod_publish(w.unit.at, 1, NULL, 0, NULL, NULL));
	w.unit.version[0]++;
	contract_expect_version(w.rank, &w.unit, 2);
	contract_close(w.c);
}

/* ---- A whole step -------------------------------------------------------------------------------------- */

#define UNITS 4u

struct model {
	struct contract *c;
	struct contract_rank *rank;
	struct contract_unit units[UNITS];
	zerod_unit *all[UNITS];
	zerod_bucket *bucket;
	zerod_stream *stream;
	uint8_t seen[3][UNITS][NUMEL * 4 + 256]; /* in the forward, the backward, and the next forward */
};

static void open_model(struct model *m)
{
	contract_needs(CONTRACT_ONE_SIDED);
	m->c = contract_open(&(struct contract_options){.world_size = 1});
	m->rank = &m->c->ranks[0];
	for (uint32_t i = 0; i < UNITS; i++) {
		char name[] = {(char)('a' + (char)i), '\0'};

		contract_plain_unit(m->c, name, NUMEL, &m->units[i]);
		contract_publish_all(m->c, &m->units[i]);
		m->all[i] = m->units[i].at[0];
	}
	m->bucket = contract_bucket(m->rank, contract_padded_bytes(&m->units[0]), 2);
	m->stream = contract_stream(m->rank);
}

static void use(struct model *m, uint32_t i, uint32_t pass)
{
	struct zerod_release_options detached = ZEROD_INIT(detached);
	void *data;

	detached.flags = ZEROD_RELEASE_DETACHED;
	OK(m->rank->client, zerod_gather(m->all[i], NULL, m->stream, &data));
	contract_read(m->stream, m->seen[pass][i], data, contract_padded_bytes(&m->units[i]));
	OK(m->rank->client, zerod_release(m->all[i], &m->stream, 1, &detached, NULL));
}

static void reduce(struct model *m, uint32_t i, float factor)
{
	struct zerod_reserve_options reserve = ZEROD_INIT(reserve);
	struct zerod_reduce_options submit = ZEROD_INIT(submit);
	struct zerod_entry entry = ZEROD_INIT(entry);

	reserve.stream = m->stream;
	submit.flags = ZEROD_REDUCE_DETACHED;
	OK(m->rank->client, zerod_bucket_reserve(m->bucket, m->all[i], &reserve, &entry));
	contract_write_gradient(m->rank, m->stream, &entry, 0, NUMEL, factor);
	OK(m->rank->client, zerod_bucket_submit(m->bucket, entry.id, &m->stream, 1, &submit, NULL));
}

/* Forward, backward, update: everything is on the stream. */
static void enqueue_step(struct model *m, float factor, zerod_ticket *ended, zerod_ticket *published)
{
	struct zerod_backward_options detached = ZEROD_INIT(detached);
	zerod_client *client = m->rank->client;
	zerod_ticket ticket;

	for (uint32_t i = 0; i < UNITS; i++)
		use(m, i, 0);
	detached.flags = ZEROD_BACKWARD_DETACHED;
	OK(client, zerod_backward_begin(m->rank->group, &detached));
	for (uint32_t i = UNITS; i-- > 0;) {
		use(m, i, 1);
		reduce(m, i, factor);
	}
	OK(client, zerod_backward_end(m->rank->group, NULL, ended));
	OK(client, zerod_step_begin(m->rank->group, NULL, NULL, &ticket));
	OK(client, zerod_wait(client, ticket, m->stream, NULL));
	OK(client, zerod_update_begin(m->all, UNITS, NULL, &ticket));
	OK(client, zerod_wait(client, ticket, m->stream, NULL));
	for (uint32_t i = 0; i < UNITS; i++) {
		contract_write_shard(m->rank, &m->units[i], m->stream);
		m->units[i].version[0]++;
	}
	OK(client, zerod_publish(m->all, UNITS, &m->stream, 1, NULL, published));
	OK(client, zerod_step_end(m->rank->group, &m->stream, 1, NULL));
}

/* The stream stands still behind a step whose sums are known, in front of its publish: no call of the next
 * one waits for it. */
CONTRACT_TEST(test_no_call_of_a_step_waits_for_the_stream)
{
	struct contract_gate *gate;
	zerod_ticket ends[2], publishes[2];
	static struct model m[1];

	open_model(m);
	enqueue_step(m, 1, &ends[0], &publishes[0]);
	OK(m->rank->client, zerod_wait(m->rank->client, ends[0], NULL, NULL));
	contract_sync(m->rank, m->stream);
	OK(m->rank->client, zerod_wait(m->rank->client, publishes[0], NULL, NULL));
	gate = contract_block(m->rank, m->stream);
	enqueue_step(m, 2, &ends[1], &publishes[1]);
	for (uint32_t i = 0; i < UNITS; i++)
		use(m, i, 2);
	contract_unblock(gate);
	contract_sync(m->rank, m->stream);
	for (uint32_t i = 0; i < UNITS; i++) {
		for (uint32_t pass = 0; pass < 3; pass++)
			CHECK_BYTES(contract_bytes_are(&m->units[i], m->seen[pass][i], pass < 2 ? 2 : 3));
	}
	OK(m->rank->client, zerod_wait(m->rank->client, ends[1], NULL, NULL));
	OK(m->rank->client, zerod_wait(m->rank->client, publishes[1], NULL, NULL));
	contract_close(m->c);
}

int main(void)
{
	(void)setenv("ZEROD_RUN_AHEAD", "1",
	             1); /* streams are held here, and pageable memory is not copied to */
	return test_run(NULL, NULL);
}
