/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_memory_queue.c - which gather gets memory, where those of two users wait: none waits for another
 * user's, users take turns, and a large gather is not passed over for ever.
 */
#include <stdio.h>

#include "tests/support/core_reduce.h"

#define SMALL    1024ull
#define MS       UINT64_C(1000000)
#define PATIENCE (1000 * MS)
#define FAVOUR   (100 * MS)

/* One rank of a user, on device 0. */
struct user {
	struct core_driver *core;
	uint64_t session, group;
};

#define QUEUE_TEST(name, budget_bytes)                                                                       \
	ENGINE_TEST(name, .ndevices = 1, .gather_budget_bytes = budget_bytes,                                \
	            .segment_align_bytes = 64 * CORE_KIB, .copies = true)

static struct user join(struct core_driver *core, uint32_t uid)
{
	struct user user = {.core = core, .session = core_open(core, uid)};
	const struct core_join args = {.world_size = 1};

	user.group = core_join_ok(core, user.session, &args);
	return user;
}

static uint64_t gather(const struct user *user, uint64_t unit)
{
	return core_gather(user->core, user->session, unit);
}

static void gather_ok(const struct user *user, uint64_t unit)
{
	core_expect(user->core, gather(user, unit), 0);
}

static void release_ok(const struct user *user, uint64_t unit)
{
	core_expect(user->core, core_release(user->core, user->session, unit), 0);
}

/* The unit has been gathered once: there is a segment for it. */
static uint64_t publish_unit(const struct user *user, const char *name, uint64_t bytes)
{
	const struct core_unit args = {.name = name, .numel = bytes / 4};
	uint64_t unit = core_register_ok(user->core, user->session, user->group, &args);

	core_expect(user->core, core_update(user->core, user->session, unit), 0);
	core_expect(user->core, core_publish(user->core, user->session, unit), 0);
	gather_ok(user, unit);
	release_ok(user, unit);
	return unit;
}

static void expect_waits_for_turn(const struct user *user, uint64_t request)
{
	core_expect_waits(user->core, request, "gathers before it that wait for room on device 0");
}

QUEUE_TEST(test_other_user_proceeds, 4 * SMALL)
{
	struct user alice = join(core, CORE_ALICE), bob = join(core, CORE_BOB);
	uint64_t held = publish_unit(&alice, "held", 2 * SMALL),
	         large = publish_unit(&alice, "large", 4 * SMALL);
	uint64_t small = publish_unit(&alice, "small", SMALL), bobs = publish_unit(&bob, "w", SMALL);
	uint64_t wait, next;

	gather_ok(&alice, held);
	wait = gather(&alice, large);
	core_expect_waits(core, wait, "4096 bytes of device 0's gather budget (2048 live)");
	/* It would fit, and Alice's first gather comes first; Bob's does not wait for it. */
	next = gather(&alice, small);
	expect_waits_for_turn(&alice, next);
	gather_ok(&bob, bobs);
	/* Also one that has waited for something else. */
	release_ok(&bob, bobs);
	core_expect(core, core_update(core, bob.session, bobs), 0);
	uint64_t later = gather(&bob, bobs);
	core_expect(core, core_publish(core, bob.session, bobs), 0);
	core_expect(core, later, 0);
	release_ok(&bob, bobs);
	release_ok(&alice, held);
	core_expect(core, wait, 0);
	assert_null(core_reply(core, next));
	core_close_all(core);
}

/* Bob's first gather comes behind all of Alice's, and is served second. */
QUEUE_TEST(test_users_take_turns, SMALL)
{
	struct user alice = join(core, CORE_ALICE), bob = join(core, CORE_BOB);
	uint64_t a[4], b[2], of_alice[4], of_bob[2];

	for (int i = 0; i < 4; i++)
		a[i] = publish_unit(&alice, (const char *[]){"a0", "a1", "a2", "a3"}[i], SMALL);
	for (int i = 0; i < 2; i++)
		b[i] = publish_unit(&bob, (const char *[]){"b0", "b1"}[i], SMALL);
	for (int i = 0; i < 4; i++)
		of_alice[i] = gather(&alice, a[i]);
	for (int i = 0; i < 2; i++)
		of_bob[i] = gather(&bob, b[i]);
	core_expect(core, of_alice[0], 0);
	for (int i = 0; i < 2; i++) {
		release_ok(&alice, a[i]);
		core_expect(core, of_bob[i], 0);
		assert_null(core_reply(core, of_alice[i + 1]));
		release_ok(&bob, b[i]);
		core_expect(core, of_alice[i + 1], 0);
		if (i == 0)
			assert_null(core_reply(core, of_bob[1]));
	}
	release_ok(&alice, a[2]);
	core_expect(core, of_alice[3], 0);
	core_close_all(core);
}

/* Room for several at once is shared out one by one. */
QUEUE_TEST(test_turns_in_one_release, 4 * SMALL)
{
	struct user alice = join(core, CORE_ALICE), bob = join(core, CORE_BOB);
	uint64_t all = publish_unit(&alice, "all", 4 * SMALL), of_alice[3], of_bob[3], a[3], b[3];

	for (int i = 0; i < 3; i++) {
		a[i] = publish_unit(&alice, (const char *[]){"a0", "a1", "a2"}[i], SMALL);
		b[i] = publish_unit(&bob, (const char *[]){"b0", "b1", "b2"}[i], SMALL);
	}
	gather_ok(&alice, all);
	for (int i = 0; i < 3; i++)
		of_alice[i] = gather(&alice, a[i]);
	for (int i = 0; i < 3; i++)
		of_bob[i] = gather(&bob, b[i]);
	release_ok(&alice, all);
	for (int i = 0; i < 2; i++) {
		core_expect(core, of_alice[i], 0);
		core_expect(core, of_bob[i], 0);
	}
	assert_null(core_reply(core, of_alice[2]));
	assert_null(core_reply(core, of_bob[2]));
	core_close_all(core);
}

/* Bob gathers a unit before he releases the other, so that there is never room for Alice's large one. */
QUEUE_TEST(test_large_gather_is_favoured, 4 * SMALL)
{
	struct user alice = join(core, CORE_ALICE), bob = join(core, CORE_BOB);
	uint64_t large = publish_unit(&alice, "large", 4 * SMALL), wait, next = 0, now = 0;
	uint64_t b[2] = {publish_unit(&bob, "b0", SMALL), publish_unit(&bob, "b1", SMALL)};
	int i = 0;

	gather_ok(&bob, b[0]);
	wait = gather(&alice, large);
	for (; now < PATIENCE; i++) {
		gather_ok(&bob, b[(i + 1) % 2]);
		release_ok(&bob, b[i % 2]);
		assert_null(core_reply(core, wait));
		core_tick(core, now += 10 * MS);
	}
	/* The next event favours it: what Bob releases is left to it. */
	gather_ok(&bob, b[(i + 1) % 2]);
	release_ok(&bob, b[i % 2]);
	i++;
	next = gather(&bob, b[(i + 1) % 2]);
	expect_waits_for_turn(&bob, next);
	release_ok(&bob, b[i % 2]);
	core_expect(core, wait, 0);
	assert_null(core_reply(core, next));
	release_ok(&alice, large);
	core_expect(core, next, 0);
	core_close_all(core);
}

/* Bob keeps one buffer for long: his other gathers wait for FAVOUR in vain, and rarely. */
QUEUE_TEST(test_favour_ends, 4 * SMALL)
{
	struct user alice = join(core, CORE_ALICE), bob = join(core, CORE_BOB);
	uint64_t large = publish_unit(&alice, "large", 4 * SMALL), kept = publish_unit(&bob, "kept", SMALL);
	uint64_t unit = publish_unit(&bob, "w", SMALL), wait, next, now = 0;

	gather_ok(&bob, kept);
	wait = gather(&alice, large);
	for (uint64_t patience = PATIENCE; patience <= 4 * PATIENCE; patience *= 2) {
		core_tick(core, now += patience - 1);
		gather_ok(&bob, unit);
		release_ok(&bob, unit);
		core_tick(core, now += 1);
		gather_ok(&bob, unit);
		release_ok(&bob, unit); /* an event that begins the favour */
		next = gather(&bob, unit);
		expect_waits_for_turn(&bob, next);
		assert_int_equal(zd_engine_next_deadline(core_engine(core)), now + FAVOUR);
		core_tick(core, now += FAVOUR - 1);
		assert_null(core_reply(core, next));
		core_tick(core, now += 1);
		core_expect(core, next, 0);
		release_ok(&bob, unit);
	}
	assert_null(core_reply(core, wait));
	release_ok(&bob, kept);
	core_expect(core, wait, 0);
	core_close_all(core);
}

/* A favoured gather that ends by its deadline leaves nothing behind. */
QUEUE_TEST(test_favoured_gather_expires, 4 * SMALL)
{
	struct user alice = join(core, CORE_ALICE), bob = join(core, CORE_BOB);
	uint64_t large = publish_unit(&alice, "large", 4 * SMALL), kept = publish_unit(&bob, "kept", SMALL);
	uint64_t unit = publish_unit(&bob, "w", SMALL), wait, next;
	struct zd_args args = {.kind = ZD_REQ_GATHER, .u.gather = {.unit = large, .tag = (char *)CORE_TAG}};

	gather_ok(&bob, kept);
	wait = core_send_until(core, alice.session, PATIENCE + 10 * MS, &args);
	core_tick(core, PATIENCE);
	gather_ok(&bob, unit);
	release_ok(&bob, unit);
	next = gather(&bob, unit);
	expect_waits_for_turn(&bob, next);
	core_tick(core, PATIENCE + 10 * MS);
	core_expect(core, wait, ZEROD_E_DEADLINE);
	core_expect(core, next, 0);
	core_close_all(core);
}

/* ---- Staging ------------------------------------------------------------------------------------------- */

/* Two ranks of Bob, on device 0. */
static void bobs_reducers(struct core_reducers *g, struct core_driver *core)
{
	uint64_t request[2];

	*g = (struct core_reducers){.team = {.core = core, .world_size = 2, .nranks = 2},
	                            .dtype = ZEROD_FLOAT32};
	for (uint32_t rank = 0; rank < 2; rank++) {
		const struct core_join args = {.world_size = 2, .rank = rank};
		g->team.session[rank] = core_open(core, CORE_BOB);
		request[rank] = core_join(core, g->team.session[rank], &args);
	}
	for (uint32_t rank = 0; rank < 2; rank++)
		g->team.group = core_expect(core, request[rank], 0)->u.group_join.group;
	for (uint32_t rank = 0; rank < 2; rank++)
		g->bucket[rank] = core_bucket_ok(&g->team, rank, g->dtype, 32 * SMALL, 2);
}

static uint64_t staged(struct core_driver *core)
{
	return core_usage(core).staging_bytes;
}

static void reduce(struct core_reducers *g, uint64_t unit)
{
	core_reduce(g, 0, unit, 1.0f);
	core_reduce(g, 1, unit, 1.0f);
}

/* Bob's slices fit beside one that is under way, Alice's do not. They are overtaken by 16 slices, no more. */
ENGINE_TEST(test_staging_is_shared, .ndevices = 1, .staging_bytes = 2 * SMALL,
            .segment_align_bytes = 256 * CORE_KIB)
{
	struct core_reducers bob;
	uint64_t large, units[12], of_one;
	uint32_t n = 1;

	struct core_reducers alice = core_reducers_new(core, 2, ZEROD_FLOAT32, 32 * SMALL, 2);
	large = core_reducers_unit(&alice, "large", 4 * SMALL / 4);
	bobs_reducers(&bob, core);
	for (uint32_t i = 0; i < 12; i++) {
		char name[8];
		(void)snprintf(name, sizeof(name), "b%u", i);
		units[i] = core_reducers_unit(&bob, name, SMALL / 4);
	}
	core_reducers_begin(&alice, 2, true);
	core_reducers_begin(&bob, 2, true);
	core_hold(core, ZD_CMD_REDUCE);
	reduce(&bob, units[0]);
	of_one = staged(core);
	assert_int_equal(of_one, SMALL);
	reduce(&alice, large);
	assert_int_equal(staged(core), of_one);
	for (; n < 12; n++) { /* one unit is always under way */
		reduce(&bob, units[n]);
		if (staged(core) == of_one)
			break;
		core_run_one(core, ZD_CMD_REDUCE);
		core_run_one(core, ZD_CMD_REDUCE);
		assert_int_equal(staged(core), of_one);
	}
	assert_int_equal(n, 1 + 16 / 2);
	core_run_one(core, ZD_CMD_REDUCE);
	core_run_one(core, ZD_CMD_REDUCE);
	assert_int_equal(staged(core), 2 * SMALL); /* a slice of the large one */
	core_unhold(core, ZD_CMD_REDUCE);
	assert_int_equal(staged(core), 0);
	core_close_all(core);
}
