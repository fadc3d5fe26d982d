/* SPDX-License-Identifier: Apache-2.0 */
/* test_deadlines.c - calls that end something wait no longer than they are told, and may be repeated. */
#include "contract.h"
#include "contract_reduce.h"

#define NUMEL 1000u

static const struct zerod_wait_options soon = {.struct_size = sizeof(soon), .deadline_ms = 1};
static const zerod_scope none;

/* A stream still writes the entry that is given up. */
CONTRACT_TEST(test_abandon)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	zerod_bucket *bucket = contract_bucket(rank, 1 << 20, 2);
	struct zerod_entry entry = ZEROD_INIT(entry);
	zerod_stream *stream = contract_stream(rank);
	struct contract_gate *gate;
	struct contract_unit unit;

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_backward_all(c, 3, false);
	OK(rank->client, zerod_bucket_reserve(bucket, unit.at[0], NULL, &entry));
	gate = contract_block(rank, stream);
	FAILS(rank->client, zerod_backward_abandon(rank->group, &stream, 1, &soon), ZEROD_E_DEADLINE,
	      "the caller's own streams");
	contract_unblock(gate);
	OK(rank->client, zerod_backward_abandon(rank->group, &stream, 1, NULL));
	assert_int_equal(contract_device(c, 0).bucket_bytes, 0);
	contract_close(c);
}

struct world {
	struct contract *c;
	struct contract_rank *rank;
	struct contract_unit unit;
};

static void open_world(struct world *w)
{
	w->c = contract_open(NULL);
	w->rank = &w->c->ranks[0];
	contract_plain_unit(w->c, "w", NUMEL, &w->unit);
	contract_publish_all(w->c, &w->unit);
}

/* A gather in the scope that waits for the next version. */
static zerod_ticket gather_ahead(const struct world *w, zerod_scope scope)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	zerod_ticket ticket;

	options.scope = scope;
	options.version = w->unit.version[0] + 1;
	OK(w->rank->client, zerod_gather_begin(w->unit.at[0], &options, &ticket));
	return ticket;
}

static void finish(struct world *w, zerod_ticket ticket)
{
	void *data;

	contract_publish_all(w->c, &w->unit);
	OK(w->rank->client, zerod_wait(w->rank->client, ticket, NULL, &data));
	contract_expect_bytes(&w->unit, data, w->unit.version[0]);
}

/* The scope is what it was, and so is the claim. */
CONTRACT_TEST(test_forward_and_claim)
{
	contract_needs(CONTRACT_ONE_SIDED);
	zerod_ticket ticket;
	zerod_scope scope;
	struct world w;

	open_world(&w);
	OK(w.rank->client, zerod_forward_begin(w.rank->group, none, NULL, 0, &scope));
	ticket = gather_ahead(&w, scope);
	FAILS(w.rank->client, zerod_forward_end(w.rank->client, scope, 1, NULL, 0, &soon), ZEROD_E_DEADLINE,
	      "its own gather of unit 'w'");
	finish(&w, ticket);
	OK(w.rank->client, zerod_forward_end(w.rank->client, scope, 1, NULL, 0, NULL));
	ticket = gather_ahead(&w, scope);
	FAILS(w.rank->client, zerod_claim_end(w.rank->client, scope, NULL, 0, &soon), ZEROD_E_DEADLINE,
	      "its own gather of unit 'w'");
	OK(w.rank->client, zerod_scope_abandon(w.rank->client, scope, NULL, 0)); /* which ends the gather */
	FAILS(w.rank->client, zerod_wait(w.rank->client, ticket, NULL, NULL), ZEROD_E_NOT_FOUND, "ended");
	assert_int_equal(contract_devices(w.c).gathered_bytes, 0);
	contract_close(w.c);
}

/* It still holds its version; the gather ends with the rank. */
CONTRACT_TEST(test_context)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_gather_options options = ZEROD_INIT(options);
	zerod_scope context;
	struct world w;
	void *data;

	open_world(&w);
	OK(w.rank->client, zerod_context_begin(&w.unit.at[0], 1, NULL, &context));
	(void)gather_ahead(&w, context);
	FAILS(w.rank->client, zerod_context_end(w.rank->client, context, NULL, 0, &soon), ZEROD_E_DEADLINE,
	      "its own gather of unit 'w'");
	options.scope = context;
	OK(w.rank->client, zerod_gather(w.unit.at[0], &options, NULL, &data));
	contract_expect_bytes(&w.unit, data, 1);
	contract_close(w.c);
}

static void reach(struct contract_rank *rank, void *arg)
{
	(void)arg;
	OK(rank->client, zerod_group_barrier(rank->group, NULL, NULL));
}

CONTRACT_TEST(test_the_default_may_change)
{
	contract_needs(CONTRACT_ONE_SIDED); /* elsewhere a deadline is the group's end */
	contract_needs(CONTRACT_ONE_DAEMON);
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];

	FAILS(NULL, zerod_set_deadline(NULL, 1), ZEROD_E_INVALID, "NULL");
	OK(rank->client, zerod_set_deadline(rank->client, 1));
	FAILS(rank->client, zerod_group_barrier(rank->group, NULL, NULL), ZEROD_E_DEADLINE, "rank 1");
	OK(rank->client, zerod_set_deadline(rank->client, 0));
	contract_run(c, reach, NULL);
	contract_close(c);
}
