/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_versions.c - who may write a shard, who may read it, and what a gather then finds: one version of
 * every shard.
 *
 * Upstream a collective orders readers and writers. One-sided gathers have versions for that: what is
 * gathered is what was published, all of one version, the newest unless another is asked for.
 */
#include "contract.h"

#include <stdio.h>

#include "base/mem.h"

#define NUMEL       1000u
#define LARGE_NUMEL (1u << 20) /* a push of some hundred microseconds */

static void begin_update(struct contract_rank *rank, struct contract_unit *unit)
{
	OK(rank->client, zerod_update_begin(&unit->at[rank->number], 1, NULL, NULL));
}

static void end_update(struct contract_rank *rank, struct contract_unit *unit, zerod_stream *stream)
{
	OK(rank->client, zerod_publish(&unit->at[rank->number], 1, &stream, stream != NULL, NULL, NULL));
	unit->version[rank->number]++;
}

/* ---- Update and read exclude each other ---------------------------------------------------------------- */

static bool is_placed(struct contract *c, uint32_t rank, const struct contract_unit *unit)
{
	struct contract_buffer buffer = contract_buffer(c, rank, unit->name);

	return strcmp(buffer.state, "INFLIGHT") == 0 || strcmp(buffer.state, "AVAILABLE") == 0;
}

/* Returns when the pushes have been given, most of which will not have ended. */
static void begin_gather(struct contract_rank *rank, struct contract_unit *unit, zerod_ticket *ticket)
{
	OK(rank->client, zerod_gather_begin(unit->at[rank->number], NULL, ticket));
	AWAIT(is_placed(rank->world, rank->number, unit));
}

/* Every push of the old version is on its way when the optimizers ask to write: bytes of one version
 * only. The copies are held meanwhile. */
CONTRACT_TEST(test_update_waits_for_pushes)
{
	struct contract *c = contract_open(&(struct contract_options){.world_size = 4, .devices = 2});
	struct zerod_unit_options copied = ZEROD_INIT(copied);
	struct contract_unit unit;

	copied.name = "w";
	copied.dtype = ZEROD_FLOAT32;
	copied.numel = LARGE_NUMEL;
	copied.flags = ZEROD_UNIT_COPIED;
	contract_unit(c, &copied, &unit);
	contract_publish_all(c, &unit);
	for (uint64_t version = 1; version < 6; version++) {
		zerod_ticket tickets[4];

		for (uint32_t i = 0; i < 4; i++)
			begin_gather(&c->ranks[i], &unit, &tickets[i]);
		for (uint32_t i = 0; i < 4; i++) {
			begin_update(&c->ranks[i], &unit);
			contract_write_shard(&c->ranks[i], &unit, NULL);
		}
		for (uint32_t i = 0; i < 4; i++) {
			void *data = NULL;

			OK(c->ranks[i].client, zerod_wait(c->ranks[i].client, tickets[i], NULL, &data));
			contract_expect_bytes(&unit, data, version);
			OK(c->ranks[i].client, zerod_release(unit.at[i], NULL, 0, NULL, NULL));
			end_update(&c->ranks[i], &unit, NULL);
		}
	}
	contract_close(c);
}

/* A gather that comes behind update_begin sees the new version, though the writer takes its time. */
CONTRACT_TEST(test_gather_behind_an_update_waits_for_it)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(NULL);
	struct contract_rank *writer = &c->ranks[1], *reader = &c->ranks[0];
	zerod_stream *stream = contract_stream(writer);
	struct contract_unit unit;
	struct contract_gate *gate;
	zerod_ticket ticket;
	void *data = NULL;

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish_all(c, &unit);
	begin_update(writer, &unit);
	gate = contract_block(writer, stream);
	contract_write_shard(writer, &unit, stream);
	OK(reader->client, zerod_gather_begin(unit.at[0], NULL, &ticket));
	AWAIT(contract_somebody_waits(c, "rank 0 to publish version 2 of unit 'w' (has 1)"));
	contract_publish(reader, &unit);
	AWAIT(contract_somebody_waits(c, "rank 1 to publish version 2 of unit 'w' (has 1)"));
	assert_int_equal(contract_device(c, 0).gathered_bytes, 0);
	contract_unblock(gate);
	end_update(writer, &unit, stream);
	OK(reader->client, zerod_wait(reader->client, ticket, NULL, &data));
	contract_expect_bytes(&unit, data, 2);
	contract_release(reader, &unit, NULL);
	contract_close(c);
}

struct publication {
	struct contract_unit *unit;
	zerod_stream *stream;
};

static void publish_on_stream(struct contract_rank *rank, void *arg)
{
	const struct publication *publication = arg;

	end_update(rank, publication->unit, publication->stream);
}

/* publish itself waits for the streams that write. */
CONTRACT_TEST(test_publish_waits_for_its_writers)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *writer = &c->ranks[1];
	struct contract_unit unit;
	struct publication publication = {&unit, contract_stream(writer)};
	struct contract_gate *gate;
	struct contract_task *task;
	struct zerod_shard shard = ZEROD_INIT(shard);

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish(&c->ranks[0], &unit);
	begin_update(writer, &unit);
	gate = contract_block(writer, publication.stream);
	contract_write_shard(writer, &unit, publication.stream);
	task = contract_start(writer, publish_on_stream, &publication);
	AWAIT(contract_somebody_waits(c, "the caller's own streams"));
	OK(writer->client, zerod_shard_get(unit.at[1], &shard));
	assert_int_equal(shard.version, 0);
	contract_unblock(gate);
	contract_finish(task);
	contract_expect_version(&c->ranks[0], &unit, 1);
	contract_expect_version(writer, &unit, 1);
	contract_close(c);
}

CONTRACT_TEST(test_shard_is_written_between_begin_and_publish_only)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct contract_unit unit;

	contract_plain_unit(c, "w", NUMEL, &unit);
	FAILS(rank->client, zerod_publish(unit.at, 1, NULL, 0, NULL, NULL), ZEROD_E_STATE,
	      "unit 'w' is IDLE");
	begin_update(rank, &unit);
	FAILS(rank->client, zerod_update_begin(unit.at, 1, NULL, NULL), ZEROD_E_STATE,
	      "unit 'w' is UPDATING");
	contract_write_shard(rank, &unit, NULL);
	end_update(rank, &unit, NULL);
	FAILS(rank->client, zerod_publish(unit.at, 1, NULL, 0, NULL, NULL), ZEROD_E_STATE,
	      "unit 'w' is IDLE");
	contract_publish(&c->ranks[1], &unit);
	contract_expect_version(rank, &unit, 1);
	contract_close(c);
}

/* ---- Which version ------------------------------------------------------------------------------------- */

CONTRACT_TEST(test_version_no_longer_held_is_stale)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_gather_options options = ZEROD_INIT(options);
	struct contract_unit unit;
	void *data = NULL;

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish_all(c, &unit);
	contract_publish_all(c, &unit);
	options.version = 2;
	OK(rank->client, zerod_gather(unit.at[0], &options, NULL, &data));
	contract_expect_bytes(&unit, data, 2);
	contract_release(rank, &unit, NULL);
	options.version = 1;
	FAILS(rank->client, zerod_gather(unit.at[0], &options, NULL, &data), ZEROD_E_STALE_VERSION,
	      "version 1 of unit 'w' is no longer held: rank 0 has version 2");
	/* One shard of it is being written. */
	options.version = 2;
	begin_update(&c->ranks[1], &unit);
	FAILS(rank->client, zerod_gather(unit.at[0], &options, NULL, &data), ZEROD_E_STALE_VERSION,
	      "rank 1 writes over version 2");
	end_update(&c->ranks[1], &unit, NULL);
	contract_close(c);
}

CONTRACT_TEST(test_gather_waits_for_the_slow_publisher_and_names_it)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(&(struct contract_options){.world_size = 4, .devices = 2});
	struct zerod_gather_options options = ZEROD_INIT(options);
	struct contract_rank *rank = &c->ranks[0];
	struct contract_unit unit;
	char missing[CONTRACT_TEXT];
	zerod_ticket ticket;
	void *data = NULL;

	contract_plain_unit(c, "w", 10, &unit); /* ranks 1 to 3 own nothing of it, and publish all the same */
	options.deadline_ms = 1;
	for (uint32_t version = 1; version <= 2; version++) {
		(void)snprintf(missing, sizeof(missing), "rank 3 to publish version %u of unit 'w'", version);
		for (uint32_t i = 0; i < 3; i++)
			contract_publish(&c->ranks[i], &unit);
		FAILS(rank->client, zerod_gather(unit.at[0], &options, NULL, NULL), ZEROD_E_DEADLINE,
		      missing);
		OK(rank->client, zerod_gather_begin(unit.at[0], NULL, &ticket));
		AWAIT(strstr(contract_buffer(c, 0, "w").waits_for, missing));
		contract_publish(&c->ranks[3], &unit);
		OK(rank->client, zerod_wait(rank->client, ticket, NULL, &data));
		contract_expect_bytes(&unit, data, version);
		contract_release(rank, &unit, NULL);
	}
	contract_close(c);
}

/* ---- Tickets ------------------------------------------------------------------------------------------- */

/* An update, its publish and the gather of its version are enqueued on all ranks while their streams stand
 * still; no call waits for these. */
CONTRACT_TEST(test_publish_runs_ahead_of_its_streams)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *streams[2];
	struct contract_gate *gates[2];
	struct zerod_wait_options brief = ZEROD_INIT(brief);
	struct contract_unit unit;
	zerod_ticket updates[2], publishes[2];
	uint8_t *seen;
	void *data = NULL;

	assert_int_equal(c->world_size, 2);
	brief.deadline_ms = 1;
	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish_all(c, &unit);
	seen = zd_calloc(1, contract_padded_bytes(&unit));
	for (uint32_t i = 0; i < 2; i++) {
		zerod_client *client = c->ranks[i].client;

		streams[i] = contract_stream(&c->ranks[i]);
		gates[i] = contract_block(&c->ranks[i], streams[i]);
		OK(client, zerod_update_begin(&unit.at[i], 1, NULL, &updates[i]));
		OK(client, zerod_wait(client, updates[i], streams[i], NULL));
		contract_write_shard(&c->ranks[i], &unit, streams[i]);
		OK(client, zerod_publish(&unit.at[i], 1, &streams[i], 1, NULL, &publishes[i]));
		unit.version[i]++;
	}
	OK(rank->client, zerod_gather(unit.at[0], NULL, streams[0], &data));
	contract_read(streams[0], seen, data, contract_padded_bytes(&unit));
	OK(rank->client, zerod_release(unit.at[0], &streams[0], 1, NULL, NULL));
	FAILS(rank->client, zerod_update_begin(unit.at, 1, &brief, NULL), ZEROD_E_DEADLINE,
	      "waited for the publish of unit 'w'");
	FAILS(rank->client, zerod_commit(rank->group, 1, &brief), ZEROD_E_DEADLINE,
	      "waited for the publish of unit 'w'");
	for (uint32_t i = 0; i < 2; i++)
		contract_unblock(gates[i]);
	contract_sync(rank, streams[0]);
	CHECK_BYTES(contract_bytes_are(&unit, seen, 2));
	OK(rank->client, zerod_wait(rank->client, publishes[0], NULL, NULL));
	FAILS(rank->client, zerod_wait(rank->client, publishes[0], NULL, NULL), ZEROD_E_STALE, "ticket");
	contract_publish(&c->ranks[1], &unit); /* waits for the one whose ticket nobody has waited for */
	free(seen);
	contract_close(c);
}

/* Streams of this rank may read the shard until the wait has returned. */
CONTRACT_TEST(test_a_publish_comes_behind_the_wait_for_its_update)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct contract_unit unit;
	zerod_ticket ticket;

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish_all(c, &unit);
	OK(rank->client, zerod_update_begin(unit.at, 1, NULL, &ticket));
	FAILS(rank->client, zerod_publish(unit.at, 1, NULL, 0, NULL, NULL), ZEROD_E_STATE,
	      "unit 'w': call zerod_wait() on the ticket of its update first");
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, NULL));
	contract_write_shard(rank, &unit, NULL);
	OK(rank->client, zerod_publish(unit.at, 1, NULL, 0, NULL, NULL));
	unit.version[0]++;
	contract_publish(&c->ranks[1], &unit);
	contract_expect_version(rank, &unit, 2);
	OK(rank->client, zerod_update_begin(unit.at, 1, NULL, &ticket)); /* and nobody ever waits for it */
	contract_leave(rank);
	contract_close(c);
}

CONTRACT_TEST(test_refused_publish_with_a_ticket_leaves_the_update_open)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_source source = ZEROD_INIT(source);
	struct contract_unit unit;
	zerod_ticket ticket;

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish_all(c, &unit);
	(void)contract_gather(rank, &unit, NULL);
	begin_update(rank, &unit);
	OK(rank->client, zerod_publish(unit.at, 1, NULL, 0, NULL, &ticket));
	FAILS(rank->client, zerod_wait(rank->client, ticket, contract_stream(rank), NULL), ZEROD_E_INVALID,
	      "stream and data must be NULL for the ticket of the publish of unit 'w'");
	FAILS(rank->client, zerod_wait(rank->client, ticket, NULL, NULL), ZEROD_E_BUSY, "unit 'w' is held");
	source.unit = unit.at[0];
	FAILS(rank->client, zerod_publish_from(&source, 1, ZEROD_FLOAT32, NULL, NULL, NULL), ZEROD_E_INVALID,
	      "data is NULL"); /* not STATE: the library knows that the update is open */
	contract_release(rank, &unit, NULL);
	OK(rank->client, zerod_publish(unit.at, 1, NULL, 0, NULL, NULL));
	contract_close(c);
}

/* ---- Publish and copies that are there ----------------------------------------------------------------- */

CONTRACT_TEST(test_publish_with_leases_is_busy)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct contract_unit unit;
	void *data;

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish_all(c, &unit);
	data = contract_gather(rank, &unit, "plan");
	begin_update(rank, &unit);
	contract_write_shard(rank, &unit, NULL);
	FAILS(rank->client, zerod_publish(unit.at, 1, NULL, 0, NULL, NULL), ZEROD_E_BUSY,
	      "unit 'w' is held on rank 0 by 'plan'");
	contract_expect_bytes(&unit, data, 1);
	OK(rank->client, zerod_publish(unit.at, 1, NULL, 0, PUBLISH(ZEROD_PUBLISH_FORCE), NULL));
	contract_expect_bytes(&unit, data, 1); /* a holder's bytes stay what they were */
	contract_release(rank, &unit, "plan");
	contract_publish(&c->ranks[1], &unit);
	contract_expect_version(rank, &unit, 2);
	contract_close(c);
}

/* In place, and not before the last lease on the old version has ended, with its streams. */
CONTRACT_TEST(test_persistent_copy_is_refreshed_when_nobody_reads_it)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *stream = contract_stream(rank);
	struct contract_unit unit;
	struct contract_gate *gate;
	zerod_ticket ticket;
	uint8_t *seen;
	void *data = NULL, *again = NULL;

	contract_plain_unit(c, "norm", NUMEL, &unit);
	contract_publish_all(c, &unit);
	seen = zd_calloc(1, contract_padded_bytes(&unit));
	contract_set_persistent(c, &unit, 1);
	contract_others_gather(rank, &unit, NULL);
	OK(rank->client, zerod_gather(unit.at[0], NULL, stream, &data));
	contract_others_release(rank, &unit, NULL);
	gate = contract_block(rank, stream);
	contract_read(stream, seen, data, contract_padded_bytes(&unit));
	begin_update(rank, &unit);
	contract_write_shard(rank, &unit, NULL);
	OK(rank->client, zerod_publish(unit.at, 1, NULL, 0, PUBLISH(ZEROD_PUBLISH_FORCE), NULL));
	contract_publish(&c->ranks[1], &unit);
	contract_others_gather(rank, &unit, NULL);
	OK(rank->client, zerod_gather_begin(unit.at[0], NULL, &ticket));
	AWAIT(contract_somebody_waits(c, "leases on version 1 of unit 'norm'"));
	/* Under the same tag, but it is not the lease of the gather that waits. */
	OK(rank->client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
	contract_unblock(gate);
	OK(rank->client,
	   zerod_wait(rank->client, ticket, NULL, &again)); /* behind what the stream had to read */
	contract_sync(rank, stream);
	CHECK_BYTES(contract_bytes_are(&unit, seen, 1));
	assert_ptr_equal(again, data);
	contract_expect_bytes(&unit, again, 2);
	contract_release(rank, &unit, NULL);
	assert_int_equal(contract_device(c, 0).gathered_bytes, contract_padded_bytes(&unit));
	free(seen);
	contract_close(c);
}

/* ---- Commit -------------------------------------------------------------------------------------------- */

static void commit_step(struct contract_rank *rank, void *arg)
{
	OK(rank->client, zerod_commit(rank->group, *(const uint64_t *)arg, NULL));
}

struct refusal {
	uint64_t step;
	int status;
	const char *text;
};

static void commit_refused(struct contract_rank *rank, void *arg)
{
	const struct refusal *refusal = arg;

	FAILS(rank->client, zerod_commit(rank->group, refusal->step, NULL), refusal->status, refusal->text);
}

CONTRACT_TEST(test_commit_is_atomic_over_ranks_and_units)
{
	struct contract *c = contract_open(NULL);
	struct contract_unit first, second;
	/* Each rank is told what its daemon knows. */
	bool one = c->daemons == 1;
	struct refusal refusal = {1, ZEROD_E_STATE,
	                          one ? "unit 'v' has version 1 on rank 0 and 0 on rank 1"
	                              : "units have other versions than rank"};
	uint64_t step = 1;

	contract_plain_unit(c, "w", NUMEL, &first);
	contract_plain_unit(c, "v", NUMEL, &second);
	contract_publish_all(c, &first);
	contract_publish(&c->ranks[0], &second);
	contract_run(c, commit_refused, &refusal); /* the same answer for all */
	begin_update(&c->ranks[1], &second);
	refusal.text = one ? "unit 'v' is UPDATING on rank 1" : NULL;
	contract_run(c, commit_refused, &refusal);
	contract_write_shard(&c->ranks[1], &second, NULL);
	end_update(&c->ranks[1], &second, NULL);
	contract_run(c, commit_step, &step);
	refusal.text = "step 1 is committed";
	contract_run(c, commit_refused, &refusal); /* twice */
	contract_close(c);
}

CONTRACT_TEST(test_commit_of_another_step_is_a_mismatch)
{
	contract_needs(CONTRACT_ONE_DAEMON);
	struct contract *c = contract_open(NULL);
	uint64_t step = 7;
	struct contract_task *task;

	task = contract_start(&c->ranks[0], commit_step, &step);
	AWAIT(contract_somebody_waits(c, "rank 1 to commit"));
	FAILS(c->ranks[1].client, zerod_commit(c->ranks[1].group, 8, NULL), ZEROD_E_MISMATCH,
	      "rank 0 commits step 7; rank 1 says 8");
	OK(c->ranks[1].client, zerod_commit(c->ranks[1].group, 7, NULL));
	contract_finish(task);
	contract_close(c);
}
