/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kept.c - a gather behind a publish whose stream is held back, while the rank still keeps a buffer of
 * the version before.
 *
 * "The newest version, at least what this rank last published" counts from the call of publish. So a kept
 * buffer of an older version answers no gather without a version, whatever keeps it and whatever call asks.
 */
#include "contract.h"

#include "base/mem.h"

#define NUMEL 1000u

struct scene {
	struct contract *c;
	struct contract_unit unit;
	zerod_client *client; /* of rank 0, which gathers */
	zerod_unit *handle;
	zerod_stream *reader;
	zerod_scope scope, context; /* {0}: none */
};

/* ---- What keeps the buffer ----------------------------------------------------------------------------- */

static void keep_persistent(struct scene *s)
{
	contract_set_persistent(s->c, &s->unit, 1);
	contract_expect_version(&s->c->ranks[0], &s->unit, 1);
}

static void keep_prefetched(struct scene *s)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	zerod_ticket ticket;

	options.flags = ZEROD_GATHER_PREFETCH;
	OK(s->client, zerod_gather_begin(s->handle, &options, &ticket));
	OK(s->client, zerod_wait(s->client, ticket, NULL, NULL));
}

static void keep_leased(struct scene *s)
{
	(void)contract_gather(&s->c->ranks[0], &s->unit, "kept");
}

static const struct keeper {
	void (*keep)(struct scene *s);
	bool leased;
} keepers[] = {{keep_persistent, false}, {keep_prefetched, false}, {keep_leased, true}};

/* ---- What asks for the newest version ------------------------------------------------------------------ */

static zerod_ticket begin(struct scene *s)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	zerod_ticket ticket;

	options.scope = s->scope;
	OK(s->client, zerod_gather_begin(s->handle, &options, &ticket));
	return ticket;
}

static void *ask_plainly(struct scene *s)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	void *data = NULL;

	options.scope = s->scope;
	OK(s->client, zerod_gather(s->handle, &options, s->reader, &data));
	return data;
}

static void *ask_corked(struct scene *s)
{
	void *data = NULL;
	zerod_ticket ticket;

	zerod_cork(s->client);
	ticket = begin(s);
	OK(s->client, zerod_uncork(s->client));
	OK(s->client, zerod_wait(s->client, ticket, s->reader, &data));
	return data;
}

static void *ask_for_many(struct scene *s)
{
	void *data[2] = {NULL, NULL};
	const zerod_ticket tickets[] = {begin(s), begin(s)};

	OK(s->client, zerod_wait_many(s->client, tickets, 2, s->reader, data));
	CHECK(data[0] == data[1]);
	return data[0];
}

static void *ask_in_a_scope(struct scene *s)
{
	OK(s->client, zerod_forward_begin(s->c->ranks[0].group, (zerod_scope){0}, NULL, 0, &s->scope));
	return ask_plainly(s);
}

static void *ask_in_a_context(struct scene *s)
{
	OK(s->client, zerod_context_begin(&s->handle, 1, NULL, &s->context));
	s->scope = s->context;
	return ask_plainly(s);
}

typedef void *ask_fn(struct scene *s);
static ask_fn *const asks[] = {ask_plainly, ask_corked, ask_for_many, ask_in_a_scope, ask_in_a_context};

/* ---- The publish --------------------------------------------------------------------------------------- */

/* The rank's CPU goes through its step at once; its stream writes when the gate is opened. */
static void publish_late(struct contract_rank *rank, struct contract_unit *unit, zerod_stream *stream)
{
	struct zerod_publish_options options = ZEROD_INIT(options);
	zerod_unit *handle = unit->at[rank->number];
	zerod_ticket begun, published;

	OK(rank->client, zerod_update_begin(&handle, 1, NULL, &begun));
	OK(rank->client, zerod_wait(rank->client, begun, stream, NULL));
	contract_write_shard(rank, unit, stream);
	options.flags = ZEROD_PUBLISH_FORCE;
	OK(rank->client, zerod_publish(&handle, 1, &stream, 1, &options, &published));
	unit->version[rank->number]++;
}

static void release_kept(struct contract_rank *rank, void *arg)
{
	AWAIT(contract_somebody_waits(rank->world, "leases on version 1"));
	contract_release(rank, arg, "kept");
}

static void expect_the_newest(const struct keeper *keeper, ask_fn *ask, uint32_t world_size)
{
	struct contract *c = contract_open(&(struct contract_options){.world_size = world_size});
	struct contract_rank *rank = &c->ranks[0];
	struct scene s = {.c = c, .client = rank->client, .reader = contract_stream(rank)};
	struct contract_gate *gates[CONTRACT_RANKS];
	struct contract_task *releases = NULL;
	uint8_t *seen;
	void *data;

	contract_plain_unit(c, "w", NUMEL, &s.unit);
	s.handle = s.unit.at[0];
	contract_publish_all(c, &s.unit);
	keeper->keep(&s);
	for (uint32_t i = 0; i < world_size; i++) {
		zerod_stream *writer = contract_stream(&c->ranks[i]);

		gates[i] = contract_block(&c->ranks[i], writer);
		publish_late(&c->ranks[i], &s.unit, writer);
	}
	if (keeper->leased)
		releases = contract_start(rank, release_kept, &s.unit);
	data = ask(&s);
	seen = zd_calloc(1, contract_padded_bytes(&s.unit));
	contract_read(s.reader, seen, data, contract_padded_bytes(&s.unit));
	for (uint32_t i = 0; i < world_size; i++)
		contract_unblock(gates[i]);
	contract_sync(rank, s.reader);
	CHECK_BYTES(contract_bytes_are(&s.unit, seen, 2));
	free(seen);
	if (releases)
		contract_finish(releases);
	contract_close(c);
}

static void expect_of_all_asks(const struct keeper *keeper)
{
	contract_needs(CONTRACT_ONE_SIDED);
	for (size_t i = 0; i < sizeof(asks) / sizeof(asks[0]); i++)
		expect_the_newest(keeper, asks[i], i == 0 ? 4 : 2);
}

CONTRACT_TEST(test_persistent)
{
	expect_of_all_asks(&keepers[0]);
}

CONTRACT_TEST(test_prefetched)
{
	expect_of_all_asks(&keepers[1]);
}

CONTRACT_TEST(test_leased_under_another_tag)
{
	expect_of_all_asks(&keepers[2]);
}
