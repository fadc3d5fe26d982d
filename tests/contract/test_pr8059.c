/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pr8059.c - gathers that no plan knows of: who holds what they brought, and until when.
 *
 * Upstream, frames that a compiler skipped ran on parameters that nobody had gathered; the first repair
 * gathered them and then released everything that was available after the forward, also what the backward
 * still needed and what others held. Here every holder has a tag or a scope of its own, and nothing ends but
 * by its own holder.
 */
#include "contract.h"

#include "base/mem.h"

#define NUMEL 1000u

static const zerod_scope none = {0};

struct world {
	struct contract *c;
	struct contract_rank *rank; /* the first */
	struct contract_unit unit, other;
};

static void open_world(struct world *w, const struct contract_options *options)
{
	w->c = contract_open(options);
	w->rank = &w->c->ranks[0];
	contract_plain_unit(w->c, "w", NUMEL, &w->unit);
	contract_plain_unit(w->c, "v", NUMEL, &w->other);
	contract_publish_all(w->c, &w->unit);
	contract_publish_all(w->c, &w->other);
}

static zerod_scope begin_forward(struct world *w, zerod_scope parent)
{
	zerod_scope scope = {0};

	OK(w->rank->client, zerod_forward_begin(w->rank->group, parent, NULL, 0, &scope));
	return scope;
}

static void end_forward(struct world *w, zerod_scope scope, int grad)
{
	OK(w->rank->client, zerod_forward_end(w->rank->client, scope, grad, NULL, 0, NULL));
}

static void end_claim(struct world *w, zerod_scope scope)
{
	OK(w->rank->client, zerod_claim_end(w->rank->client, scope, NULL, 0, NULL));
}

/* A frame touches the unit and finds its bytes. Where the rank has no copy, the others gather too, and keep
 * none. */
static void *touch(struct world *w, struct contract_unit *unit, zerod_scope scope)
{
	bool anew = strcmp(contract_buffer(w->c, 0, unit->name).state, "NOT_AVAILABLE") == 0;
	struct zerod_gather_options options = ZEROD_INIT(options);
	void *data = NULL;

	options.scope = scope;
	if (anew)
		contract_others_gather(w->rank, unit, NULL);
	OK(w->rank->client, zerod_gather(unit->at[0], &options, NULL, &data));
	if (anew)
		contract_others_release(w->rank, unit, NULL);
	contract_expect_bytes(unit, data, 1);
	return data;
}

static uint64_t gathered(const struct world *w)
{
	return contract_device(w->c, 0).gathered_bytes;
}

/* ---- Tags ---------------------------------------------------------------------------------------------- */

CONTRACT_TEST(test_release_touches_no_other_tag)
{
	static const char *const tags[] = {"plan", "fallback", "user", "persistence"};
	struct world w;
	void *data;

	open_world(&w, NULL);
	data = contract_gather(w.rank, &w.unit, tags[0]);
	for (uint32_t i = 1; i < 4; i++)
		assert_ptr_equal(contract_gather(w.rank, &w.unit, tags[i]), data);
	assert_int_equal(contract_buffer(w.c, 0, "w").holders, 4);
	assert_int_equal(contract_device(w.c, 0).transfers, 1);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(gathered(&w), contract_padded_bytes(&w.unit));
		contract_expect_bytes(&w.unit, data, 1);
		contract_release(w.rank, &w.unit, tags[i]);
		FAILS(w.rank->client, zerod_release(w.unit.at[0], NULL, 0, TAGGED(tags[i]), NULL),
		      ZEROD_E_NOT_HELD, tags[i]);
	}
	assert_int_equal(gathered(&w), 0);
	contract_close(w.c);
}

/* ---- Forward and backward ------------------------------------------------------------------------------ */

CONTRACT_TEST(test_touched_in_forward_needed_in_backward)
{
	struct world w;
	zerod_scope scope;
	void *data;

	open_world(&w, NULL);
	scope = begin_forward(&w, none);
	data = touch(&w, &w.unit, scope);
	FAILS(w.rank->client, zerod_release(w.unit.at[0], NULL, 0, NULL, NULL), ZEROD_E_NOT_HELD, "'w'");
	end_forward(&w, scope, 1);
	/* Autograd kept the address. */
	assert_int_equal(gathered(&w), contract_padded_bytes(&w.unit));
	contract_expect_bytes(&w.unit, data, 1);
	assert_ptr_equal(touch(&w, &w.unit, scope), data); /* and the backward's frames gather again */
	end_claim(&w, scope);
	assert_int_equal(gathered(&w), 0);
	/* No backward: nothing to wait for. */
	scope = begin_forward(&w, none);
	(void)touch(&w, &w.unit, scope);
	end_forward(&w, scope, 0);
	assert_int_equal(gathered(&w), 0);
	contract_close(w.c);
}

CONTRACT_TEST(test_two_forwards_one_backward)
{
	struct world w;
	zerod_scope scopes[2];

	open_world(&w, NULL);
	for (uint32_t i = 0; i < 2; i++) {
		scopes[i] = begin_forward(&w, none);
		(void)touch(&w, &w.unit, scopes[i]);
		if (i == 0)
			(void)touch(&w, &w.other, scopes[i]);
		end_forward(&w, scopes[i], 1);
	}
	assert_int_equal(contract_buffer(w.c, 0, "w").holders, 2);
	end_claim(&w, scopes[0]);
	assert_int_equal(gathered(&w), contract_padded_bytes(&w.unit)); /* the second claim holds */
	end_claim(&w, scopes[1]);
	assert_int_equal(gathered(&w), 0);
	contract_close(w.c);
}

/* ---- Abandoned forwards -------------------------------------------------------------------------------- */

CONTRACT_TEST(test_abandoned_forward_is_swept_when_no_claim_is_outstanding)
{
	struct world w;
	zerod_scope claim, lost, next;

	open_world(&w, NULL);
	claim = begin_forward(&w, none);
	(void)touch(&w, &w.unit, claim);
	end_forward(&w, claim, 1);
	lost = begin_forward(&w, none); /* an exception: it never ends */
	(void)touch(&w, &w.other, lost);
	next = begin_forward(&w, none);
	assert_int_equal(gathered(&w), contract_padded_bytes(&w.unit) + contract_padded_bytes(&w.other));
	end_forward(&w, next, 0);
	end_claim(&w, claim);
	assert_int_equal(gathered(&w), contract_padded_bytes(&w.other));
	next = begin_forward(&w, none);
	assert_int_equal(gathered(&w), 0);
	FAILS(w.rank->client, zerod_forward_end(w.rank->client, lost, 0, NULL, 0, NULL), ZEROD_E_NOT_FOUND,
	      "ended");
	end_forward(&w, next, 0);
	contract_close(w.c);
}

CONTRACT_TEST(test_scopes_end_once_and_in_turn)
{
	struct world w;
	zerod_scope outer, inner, unknown = {1000000};

	open_world(&w, NULL);
	outer = begin_forward(&w, none);
	FAILS(w.rank->client, zerod_claim_end(w.rank->client, outer, NULL, 0, NULL), ZEROD_E_STATE,
	      "has not ended");
	inner = begin_forward(&w, outer);
	FAILS(w.rank->client, zerod_forward_end(w.rank->client, outer, 1, NULL, 0, NULL), ZEROD_E_STATE,
	      "is open inside");
	end_forward(&w, inner, 0);
	end_forward(&w, outer, 1);
	FAILS(w.rank->client, zerod_forward_end(w.rank->client, outer, 1, NULL, 0, NULL), ZEROD_E_STATE,
	      "it is a claim");
	end_claim(&w, outer);
	FAILS(w.rank->client, zerod_claim_end(w.rank->client, outer, NULL, 0, NULL), ZEROD_E_NOT_FOUND,
	      "ended");
	FAILS(w.rank->client, zerod_claim_end(w.rank->client, unknown, NULL, 0, NULL), ZEROD_E_NOT_FOUND,
	      NULL);
	contract_close(w.c);
}

/* ---- User contexts ------------------------------------------------------------------------------------- */

static void begin_context(struct world *w, struct contract_unit *const *units, uint32_t count,
                          zerod_scope *context)
{
	zerod_unit *handles[2];

	for (uint32_t i = 0; i < count; i++) {
		handles[i] = units[i]->at[0];
		contract_others_gather(w->rank, units[i], NULL);
	}
	OK(w->rank->client, zerod_context_begin(handles, count, NULL, context));
	for (uint32_t i = 0; i < count; i++)
		contract_others_release(w->rank, units[i], NULL);
}

CONTRACT_TEST(test_contexts_nest_when_disjoint)
{
	struct world w;
	zerod_scope outer, inner, refused = {0};
	/* The free one first: it must be given back. */
	struct contract_unit *both[2] = {&w.other, &w.unit};
	zerod_unit *handles[2];

	open_world(&w, NULL);
	handles[0] = w.other.at[0];
	handles[1] = w.unit.at[0];
	begin_context(&w, &both[1], 1, &outer);
	FAILS(w.rank->client, zerod_context_begin(handles, 2, NULL, &refused), ZEROD_E_EXISTS,
	      "unit 'w' is in context");
	assert_int_equal(refused.id, 0);
	assert_int_equal(gathered(&w), contract_padded_bytes(&w.unit));
	begin_context(&w, &both[0], 1, &inner);
	(void)touch(&w, &w.other, inner);
	OK(w.rank->client, zerod_context_end(w.rank->client, outer, NULL, 0, NULL));
	assert_int_equal(gathered(&w), contract_padded_bytes(&w.other));
	OK(w.rank->client, zerod_context_end(w.rank->client, inner, NULL, 0, NULL));
	assert_int_equal(gathered(&w), 0);
	FAILS(w.rank->client, zerod_context_end(w.rank->client, inner, NULL, 0, NULL), ZEROD_E_NOT_FOUND,
	      NULL);
	begin_context(&w, both, 2, &outer); /* nothing was left behind */
	OK(w.rank->client, zerod_context_end(w.rank->client, outer, NULL, 0, NULL));
	contract_close(w.c);
}
