/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buckets: slots in ring order, what a reserve waits for, entries larger than a slot, padding, staging,
 * memory and quota that run out, and ranks whose orders cross.
 */
#include <math.h>

#include "tests/support/core_reduce.h"

#define ENTRY_BYTES 1024u /* of a unit of 256 elements on two ranks */
#define ENTRY_NUMEL 256u

static void expect_slots(struct core_driver *core, uint64_t bucket, const char *first, const char *second)
{
	struct core_row row;
	core_row(core, ZD__TABLE__BUCKETS, bucket, &row);
	assert_string_equal(row.row->bucket->slots[0], first);
	assert_string_equal(row.row->bucket->slots[1], second);
}

/* ---- Creation ------------------------------------------------------------------------------------------ */

ENGINE_TEST(test_create)
{
	struct core_row row;
	struct core_team team = core_team_new(core, "job", 2, false);
	core_expect(core, core_bucket(&team, 0, 99, 0, 0), ZEROD_E_INVALID);
	core_expect_error(core, core_bucket(&team, 0, ZEROD_INT32, 0, 0), ZEROD_E_UNSUPPORTED, "int32");
	core_expect(core, core_bucket(&team, 0, ZEROD_FLOAT32, UINT64_MAX, 0), ZEROD_E_LIMIT);
	core_expect(core, core_bucket(&team, 0, ZEROD_FLOAT32, 0, 17), ZEROD_E_LIMIT);
	struct zd_args args = {.kind = ZD_REQ_BUCKET_CREATE, .u.bucket_create = {.group = 12345, .dtype = 1}};
	core_call(core, team.session[0], &args, ZEROD_E_NOT_FOUND);
	uint64_t bucket = core_bucket_ok(&team, 1, ZEROD_FLOAT16, 1000, 0);
	core_row(core, ZD__TABLE__BUCKETS, bucket, &row);
	assert_string_equal(row.job, "job");
	assert_string_equal(row.group, "world");
	assert_int_equal(row.row->bucket->rank, 1);
	assert_int_equal(row.row->bucket->slot_bytes, 1024);
	assert_int_equal(row.row->bucket->nslots, 2);
	assert_int_equal(row.row->bucket->held_bytes, 0); /* storage comes with the first entry */
	for (uint32_t i = 1; i < ZD_MAX_BUCKETS; i++)
		core_expect(core, core_bucket(&team, 1, ZEROD_FLOAT16, 0, 0), 0);
	core_expect(core, core_bucket(&team, 1, ZEROD_FLOAT16, 0, 0), ZEROD_E_LIMIT);
	core_expect(core, core_bucket_destroy(&team, 0, bucket), ZEROD_E_NOT_FOUND); /* another's */
	core_expect(core, core_bucket_destroy(&team, 1, bucket), 0);
	core_expect(core, core_bucket_destroy(&team, 1, bucket), ZEROD_E_NOT_FOUND);
}

ENGINE_TEST(test_destroy)
{
	uint64_t unit;
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, 4096, 2);
	core_reducers_units(&g, &unit, 1, ENTRY_NUMEL);
	core_reducers_begin(&g, 3, true);
	uint64_t entry = core_put(&g, 0, unit, 1.0f);
	core_expect_error(core, core_bucket_destroy(&g.team, 0, g.bucket[0]), ZEROD_E_BUSY,
	                  "1 entry is not reduced yet: unit 'a': not submitted yet");
	core_expect(core, core_submit(&g, 0, entry, NULL), 0);
	core_expect(core, core_bucket_destroy(&g.team, 0, g.bucket[0]), ZEROD_E_BUSY);
	core_reduce(&g, 1, unit, 1.0f);
	core_expect(core, core_bucket_destroy(&g.team, 0, g.bucket[0]),
	            0); /* drained: no need to end the backward */
	core_reducers_end(&g);
	core_check_step(&g, 1, 1, 1.0f);
}

/* ---- Arguments ----------------------------------------------------------------------------------------- */

ENGINE_TEST(test_reserve_arguments)
{
	uint64_t unit;
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, 4096, 2);
	core_reducers_units(&g, &unit, 1, ENTRY_NUMEL);
	uint64_t frozen = core_team_register(&g.team,
	                                     &(struct core_unit){.name = "f", .numel = 8, .frozen = true});
	core_expect_error(core, core_reserve(&g.team, 0, g.bucket[0], unit), ZEROD_E_STATE,
	                  "rank 0 runs no backward");
	core_expect(core, core_skip(&g.team, 0, unit), ZEROD_E_STATE);
	core_reducers_begin(&g, 3, true);
	core_expect(core, core_reserve(&g.team, 0, g.bucket[1], unit), ZEROD_E_NOT_FOUND);
	core_expect(core, core_reserve(&g.team, 0, g.bucket[0], 999), ZEROD_E_NOT_FOUND);
	core_expect(core, core_skip(&g.team, 0, 999), ZEROD_E_NOT_FOUND);
	core_expect_error(core, core_reserve(&g.team, 0, g.bucket[0], frozen), ZEROD_E_INVALID, "frozen");
	core_expect(core, core_skip(&g.team, 0, frozen), ZEROD_E_INVALID);
	uint64_t late = core_reducers_unit(&g, "late", 8);
	core_expect_error(core, core_reserve(&g.team, 0, g.bucket[0], late), ZEROD_E_STATE,
	                  "registered after the target of backward 1");

	/* a unit of another group of the same session */
	struct core_join other = {.group = "other", .world_size = 1};
	uint64_t group = core_join_ok(core, g.team.session[0], &other);
	uint64_t foreign = core_register_ok(core, g.team.session[0], group,
	                                    &(struct core_unit){.name = "x", .numel = 8});
	core_expect_error(core, core_reserve(&g.team, 0, g.bucket[0], foreign), ZEROD_E_INVALID,
	                  "different groups");
}

ENGINE_TEST(test_commit_arguments)
{
	uint64_t unit;
	struct zd_fence fence = {ZD_TIMELINES, 1};
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, 4096, 2);
	core_reducers_units(&g, &unit, 1, ENTRY_NUMEL);
	core_reducers_begin(&g, 3, true);
	struct core_commit c = {.bucket = g.bucket[0], .entry = core_put(&g, 0, unit, 1.0f)};
	c.bucket = 999;
	core_expect(core, core_bucket_submit(&g.team, 0, &c), ZEROD_E_NOT_FOUND);
	c.bucket = g.bucket[0];
	c.entry++;
	core_expect(core, core_bucket_submit(&g.team, 0, &c), ZEROD_E_NOT_FOUND);
	c.entry--;
	c.op = 2;
	core_expect(core, core_bucket_submit(&g.team, 0, &c), ZEROD_E_INVALID);
	c.op = ZEROD_SUM;
	c.prescale = INFINITY;
	core_expect(core, core_bucket_submit(&g.team, 0, &c), ZEROD_E_INVALID);
	c.prescale = 0.0f;
	c.nfences = 1;
	c.fences = &fence;
	core_expect(core, core_bucket_submit(&g.team, 0, &c), ZEROD_E_INVALID);
	fence.timeline = 0;
	core_expect(core, core_bucket_submit(&g.team, 0, &c), 0);
	core_expect_error(core, core_bucket_submit(&g.team, 0, &c), ZEROD_E_STATE, "submitted already");
}

/* ---- Slots --------------------------------------------------------------------------------------------- */

/* The next writer of a slot waits for that slot's reduction, and nothing else does. */
ENGINE_TEST(test_ring)
{
	uint64_t units[6];
	struct zd_fence fence = {0, 1};
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, 2 * ENTRY_BYTES, 2);
	core_reducers_units(&g, units, 6, ENTRY_NUMEL);
	core_reducers_begin(&g, 3, true);
	for (uint32_t i = 0; i < 4; i++) { /* rank 1 is far ahead, by buckets of its own */
		g.bucket[1] = core_bucket_ok(&g.team, 1, ZEROD_FLOAT32, 4096, 1);
		core_reduce(&g, 1, units[i], 1.0f);
	}
	expect_slots(core, g.bucket[0], "FREE", "FREE");
	core_expect(core, core_submit(&g, 0, core_put(&g, 0, units[0], 1.0f), &fence), 0);
	uint64_t open = core_put(&g, 0, units[1], 1.0f);
	expect_slots(core, g.bucket[0], "OPEN", "FREE");
	core_expect(core, core_submit(&g, 0, core_put(&g, 0, units[2], 1.0f), &fence), 0);
	expect_slots(core, g.bucket[0], "CLOSED", "OPEN");
	core_expect(core, core_submit(&g, 0, core_put(&g, 0, units[3], 1.0f), NULL),
	            0); /* reduced, but its neighbour is not */
	assert_int_equal(core_usage(core).bucket_bytes, 2 * 2 * ENTRY_BYTES + 4 * 4096);

	uint64_t wait[2];
	wait[0] = core_reserve(&g.team, 0, g.bucket[0], units[4]);
	core_expect_waits(core, wait[0], "a slot of the bucket: unit 'a' waits for rank 0");
	expect_slots(core, g.bucket[0], "CLOSED", "CLOSED");
	wait[1] = core_reserve(&g.team, 0, g.bucket[0], units[5]);
	core_expect_waits(core, wait[1], "a slot of the bucket");
	core_expect(core, core_simple(core, g.team.session[0], ZD_REQ_UNIT_UNREGISTER, units[5]),
	            ZEROD_E_BUSY);
	core_expect(core, core_submit(&g, 0, open, NULL), 0);
	core_pass(core, g.team.session[0], 0, 1); /* both slots are drained */
	assert_int_equal(core_expect(core, wait[0], 0)->place.bytes, ENTRY_BYTES);
	core_expect(core, wait[1], 0);
	expect_slots(core, g.bucket[0], "OPEN", "FREE");
}

/* A reserve that is given up while its padding is being zeroed: the place is given to nobody until that is
 * over. */
ENGINE_TEST(test_given_up_during_the_fill)
{
	uint64_t units[2];
	struct zd_args args = {.kind = ZD_REQ_BUCKET_RESERVE};
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, ENTRY_BYTES, 1);
	uint64_t odd = core_reducers_unit(&g, "odd", ENTRY_NUMEL - 1);
	core_reducers_units(&g, units, 2, ENTRY_NUMEL);
	core_reducers_begin(&g, 3, true);
	core_hold(core, ZD_CMD_FILL);
	args.u.bucket_reserve.bucket = g.bucket[0];
	args.u.bucket_reserve.unit = odd;
	uint64_t late = core_send_until(core, g.team.session[0], 10, &args);
	core_expect_waits(core, late, "memory to be zeroed");
	core_tick(core, 10);
	core_expect_error(core, late, ZEROD_E_DEADLINE, "memory to be zeroed");
	uint64_t next = core_reserve(&g.team, 0, g.bucket[0], units[0]);
	core_expect_waits(core, next, "a slot of the bucket: unit 'odd'");
	core_unhold(core, ZD_CMD_FILL);
	const struct zd_reply *reply = core_expect(core, next, 0);
	core_write(core, reply->place, ZEROD_FLOAT32, 0, ENTRY_NUMEL, 1.0f);
	core_expect(core, core_submit(&g, 0, reply->u.bucket_reserve.entry, NULL), 0);
	core_reduce(&g, 1, units[0], 1.0f);
	for (uint32_t rank = 0; rank < 2; rank++) { /* the unit can be asked for again */
		core_expect(core, core_skip(&g.team, rank, odd), 0);
		core_expect(core, core_skip(&g.team, rank, units[1]), 0);
	}
	core_reducers_end(&g);
	const struct zd_reply *step[CORE_TEAM];
	core_reducers_step(&g, step);
	core_check_target(&g, 0, step[0], 128, 1.0f);
}

ENGINE_TEST(test_a_fill_fails)
{
	struct core_reducers g = core_reducers_new(core, 1, ZEROD_FLOAT32, 4096, 1);
	uint64_t unit = core_reducers_unit(&g, "w", 5);
	core_reducers_begin(&g, 3, true);
	core_fail_next(core, ZD_CMD_FILL, ZEROD_E_DEVICE, "no device");
	core_expect_error(core, core_reserve(&g.team, 0, g.bucket[0], unit), ZEROD_E_DEVICE, "no device");
	core_reduce(&g, 0, unit, 1.0f);
	core_reducers_end(&g);
	core_check_step(&g, 1, 1, 1.0f);
}

ENGINE_TEST(test_deadline_of_a_reserve)
{
	uint64_t units[2];
	struct zd_args args = {.kind = ZD_REQ_BUCKET_RESERVE};
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, ENTRY_BYTES, 1);
	core_reducers_units(&g, units, 2, ENTRY_NUMEL);
	core_reducers_begin(&g, 3, true);
	core_reduce(&g, 0, units[0], 1.0f);
	args.u.bucket_reserve.bucket = g.bucket[0];
	args.u.bucket_reserve.unit = units[1];
	uint64_t late = core_send_until(core, g.team.session[0], 5000000, &args);
	core_tick(core, 5000000);
	core_expect_error(core, late, ZEROD_E_DEADLINE,
	                  "waited 5 ms for a slot of the bucket: unit 'a' waits for rank 1");
	core_reduce(&g, 1, units[0], 1.0f);
	core_reduce(&g, 0, units[1], 1.0f);
	core_reduce(&g, 1, units[1], 1.0f);
	core_reducers_end(&g);
	core_check_step(&g, 1, 2, 1.0f);
}

/* ---- Orders that cross --------------------------------------------------------------------------------- */

/* A circle of three, and a fourth rank that waits for one of them. */
ENGINE_TEST(test_circle_of_three, .ndevices = 4)
{
	uint64_t units[4], wait[4];
	struct core_reducers g = core_reducers_new(core, 4, ZEROD_FLOAT32, 2048, 1);
	core_reducers_units(&g, units, 4, 512);
	core_reducers_begin(&g, 3, true);
	for (uint32_t rank = 0; rank < 4; rank++)
		core_reduce(&g, rank, units[rank], 1.0f);
	wait[3] = core_reserve(&g.team, 3, g.bucket[3], units[0]);
	wait[0] = core_reserve(&g.team, 0, g.bucket[0], units[1]);
	wait[1] = core_reserve(&g.team, 1, g.bucket[1], units[2]);
	core_expect_waits(core, wait[1], "a slot of the bucket");
	wait[2] = core_reserve(&g.team, 2, g.bucket[2], units[0]);
	for (uint32_t rank = 0; rank < 4; rank++) /* rank 3 waits for unit d, which nobody can come to */
		core_expect(core, wait[rank], ZEROD_E_CAPACITY);
}

/* Rank 1 waits for rank 2, which waits for rank 0, which does not wait: no circle. */
ENGINE_TEST(test_a_chain_is_no_circle, .ndevices = 3)
{
	uint64_t b, c, d, wait[3];
	struct core_reducers g = core_reducers_new(core, 3, ZEROD_FLOAT32, 1536, 1);
	b = core_reducers_unit(&g, "b", 384);
	c = core_reducers_unit(&g, "c", 384);
	d = core_reducers_unit(&g, "d", 384);
	core_reducers_begin(&g, 3, true);
	core_expect(core, core_skip(&g.team, 0, b), 0);
	core_expect(core, core_skip(&g.team, 1, c), 0);
	core_reduce(&g, 1, b, 1.0f);
	core_reduce(&g, 2, c, 1.0f);
	wait[2] = core_reserve(&g.team, 2, g.bucket[2], b);
	wait[1] = core_reserve(&g.team, 1, g.bucket[1], d);
	core_expect_waits(core, wait[1], "unit 'b' waits for rank 2");
	core_expect_waits(core, wait[2], "unit 'c' waits for rank 0");
	core_reduce(&g, 0, c, 1.0f);
	core_expect(core, core_submit(&g, 2, core_expect(core, wait[2], 0)->u.bucket_reserve.entry, NULL), 0);
	core_expect(core, wait[1], 0);
}

/* An entry that is not committed keeps its own rank as well. */
ENGINE_TEST(test_waiting_for_itself)
{
	uint64_t units[2];
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, ENTRY_BYTES, 1);
	core_reducers_units(&g, units, 2, ENTRY_NUMEL);
	core_reducers_begin(&g, 3, true);
	uint64_t entry = core_put(&g, 0, units[0], 1.0f);
	core_expect_error(core, core_reserve(&g.team, 0, g.bucket[0], units[1]), ZEROD_E_CAPACITY,
	                  "rank 0 wants room for 'b' and holds 'a', which rank 0 has not reduced");
	core_expect(core, core_submit(&g, 0, entry, NULL), 0);
}

static uint64_t send(const struct core_reducers *g, uint32_t rank, const struct zd_args *args)
{
	return core_send(g->team.core, g->team.session[rank], args);
}

/* Rank 0 has complete terms of b behind a, for which rank 1 wants room. Both then wait for each other, unless
 * rank 0 has taken them: it returns them some time. */
static void wait_with_terms(struct core_driver *core, bool taken)
{
	uint64_t units[4], entry, wait[2], terms;
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, 2048, 2);
	struct zd_args args = {.kind = ZD_REQ_SET_FROZEN, .u.set_frozen.target = ZD_TARGET_NONE};
	core_reducers_units(&g, units, 4, 512);
	for (uint32_t i = 0; i < 4; i++) {
		args.u.set_frozen.unit = units[i / 2];
		core_expect(core, send(&g, i % 2, &args), 0);
	}
	core_reducers_begin(&g, 3, true);
	for (uint32_t i = 0; i < 2; i++) {
		entry = core_put(&g, 0, units[i], 1.0f);
		args = (struct zd_args){
		        .kind = ZD_REQ_BUCKET_SUBMIT,
		        .u.bucket_submit = {.bucket = g.bucket[0], .entry = entry, .terms = true}};
		core_expect(core, send(&g, 0, &args), 0);
	}
	for (uint32_t i = 1; i < 4; i++)
		core_reduce(&g, 1, units[i], 1.0f);
	args = (struct zd_args){.kind = ZD_REQ_REDUCE_WAIT,
	                        .u.reduce_wait = {.unit = units[1], .terms = true}};
	if (taken)
		core_expect(core, send(&g, 0, &args), 0);
	wait[0] = core_reserve(&g.team, 0, g.bucket[0], units[2]);
	core_expect_waits(core, wait[0], "unit 'a' waits for rank 1");
	wait[1] = core_reserve(&g.team, 1, g.bucket[1], units[0]);
	if (!taken) {
		core_expect(core, wait[0], ZEROD_E_CAPACITY);
		core_expect(core, wait[1], ZEROD_E_CAPACITY);
		return;
	}
	core_expect_waits(core, wait[1], "unit 'c' waits for rank 0");
	core_expect(core, core_return_sum(&g.team, 0, units[1], NULL), 0);
	terms = core_expect(core, wait[0], 0)->u.bucket_reserve.entry;
	core_expect(core, core_submit(&g, 0, terms, NULL), 0);
	core_expect(core, wait[1], 0);
}

ENGINE_TEST(test_circle_of_untaken_terms)
{
	wait_with_terms(core, false);
}

ENGINE_TEST(test_taken_terms_are_no_circle)
{
	wait_with_terms(core, true);
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

/* Quota for one slot of two: the bucket goes on with one. */
ENGINE_TEST(test_memory_for_fewer_slots, .uid_quota_bytes = 16 * CORE_KIB)
{
	uint64_t units[3];
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, ENTRY_BYTES, 2);
	core_reducers_units(&g, units, 3, ENTRY_NUMEL);
	core_reducers_begin(&g, 3, true); /* shards and targets: 6 KiB */
	core_reduce(&g, 0, units[0], 1.0f);
	uint64_t entry = core_put(&g, 1, units[0], 1.0f);
	zd_engine_set_quota(core_engine(core), 8 * CORE_KIB + 512);
	uint64_t wait = core_reserve(&g.team, 0, g.bucket[0], units[1]);
	core_expect_waits(core, wait, "a slot of the bucket: unit 'a' waits for rank 1");
	expect_slots(core, g.bucket[0], "CLOSED", "FREE");
	core_expect(core, core_submit(&g, 1, entry, NULL), 0);
	const struct zd_reply *reply = core_expect(core, wait, 0);
	expect_slots(core, g.bucket[0], "OPEN", "FREE"); /* the same memory again */
	core_write(core, reply->place, ZEROD_FLOAT32, 0, ENTRY_NUMEL, 1.0f);
	core_expect(core, core_submit(&g, 0, reply->u.bucket_reserve.entry, NULL), 0);
	core_reduce(&g, 1, units[1], 1.0f);
	core_reduce(&g, 0, units[2], 1.0f);
	core_reduce(&g, 1, units[2], 1.0f);
	core_reducers_end(&g);
	core_check_step(&g, 1, 3, 1.0f);
}

ENGINE_TEST(test_quota, .uid_quota_bytes = 15 * CORE_KIB)
{
	uint64_t units[4];
	/* shards: 4 times 1 KiB; targets the same; slots of 2 KiB */
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, 2 * ENTRY_BYTES, 2);
	core_reducers_units(&g, units, 4, ENTRY_NUMEL);
	core_reducers_begin(&g, 3, true);
	assert_int_equal(core_usage(core).shard_bytes + core_usage(core).target_bytes, 8 * CORE_KIB);
	core_reduce(&g, 0, units[0], 1.0f);
	core_reduce(&g, 0, units[1], 1.0f);
	core_reduce(&g, 1, units[0], 1.0f);
	core_reduce(&g, 1, units[1], 1.0f);
	core_reduce(&g, 0, units[2], 1.0f);
	core_reduce(&g, 1, units[2], 1.0f);
	core_reducers_end(&g);
	assert_true(core_usage(core).peak_bytes <= 15 * CORE_KIB);

	/* less than what one slot needs: named, and the unit may be asked for again */
	zd_engine_set_quota(core_engine(core), 9 * CORE_KIB);
	const struct zd_reply *step[CORE_TEAM];
	core_reducers_step(&g, step);
	core_reducers_step_end(&g);
	core_reducers_begin(&g, 3, true);
	core_expect_error(core, core_reserve(&g.team, 0, g.bucket[0], units[0]), ZEROD_E_QUOTA, "9216");
	core_expect(core, core_skip(&g.team, 0, units[0]), 0);
	core_expect(core, core_skip(&g.team, 1, units[0]), 0);
	core_reducers_end(&g);
}

/* Two ranks wait for room that only the other could make. */
ENGINE_TEST(test_room_that_never_comes, .uid_quota_bytes = 7 * CORE_KIB)
{
	uint64_t units[2], wait[2];
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, ENTRY_BYTES / 2, 2);
	core_reducers_units(&g, units, 2, ENTRY_NUMEL);
	core_reducers_begin(&g, 3, true); /* 4 KiB */
	core_reduce(&g, 0, units[0], 1.0f);
	core_reduce(&g, 1, units[1], 1.0f); /* 6 KiB */
	zd_engine_set_quota(core_engine(core), 6 * CORE_KIB + 512);
	wait[0] = core_reserve(&g.team, 0, g.bucket[0], units[1]);
	core_expect_waits(core, wait[0], "a slot of the bucket");
	wait[1] = core_reserve(&g.team, 1, g.bucket[1], units[0]);
	core_expect(core, wait[0], ZEROD_E_CAPACITY);
	core_expect(core, wait[1], ZEROD_E_CAPACITY);
}

/* ---- Staging ------------------------------------------------------------------------------------------- */

/* One slice of staging at a time, then as many as the bound takes; never more. */
static void staging(uint64_t bound, uint32_t at_once)
{
	struct core_driver *core = core_new(&(struct core_options){.staging_bytes = bound});
	uint64_t units[4];
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, 4 * ENTRY_BYTES, 1);
	core_reducers_units(&g, units, 4, ENTRY_NUMEL);
	core_reducers_begin(&g, 3, true);
	core_hold(core, ZD_CMD_COPY);
	for (uint32_t i = 0; i < 4; i++) {
		core_reduce(&g, 0, units[i], 1.0f);
		core_reduce(&g, 1, units[i], 1.0f);
	}
	for (uint32_t left = 8; left > 0; left--) {
		uint32_t expected = at_once * 2 < left ? at_once * 2 : left;
		assert_true(core_usage(core).staging_bytes <= (uint64_t)at_once * 2 * ENTRY_BYTES / 2);
		assert_true(core_pending(core, ZD_CMD_COPY) <= expected);
		assert_true(core_pending(core, ZD_CMD_COPY) > 0);
		core_run_one(core, ZD_CMD_COPY);
	}
	assert_int_equal(core_usage(core).staging_bytes, 0);
	core_reducers_end(&g);
	core_check_step(&g, 1, 4, 1.0f);
	core_end(core);
}

TEST(test_staging_is_bounded)
{
	staging(1, 1); /* less than one: one at a time all the same */
	staging(ENTRY_BYTES / 2, 1);
	staging(ENTRY_BYTES, 2);
	staging(16 * ENTRY_BYTES, 4);
}

ENGINE_TEST(test_no_segment_for_staging, .segment_bytes = 65536)
{
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, 72 * CORE_KIB, 1);
	uint64_t unit = core_reducers_unit(&g, "w", 18 * 1024);
	core_reducers_begin(&g, 3, true);
	core_reduce(&g, 0, unit, 1.0f);
	uint64_t entry = core_put(&g, 1, unit, 1.0f);
	core_fail_next(core, ZD_CMD_SEGMENT_CREATE, ZEROD_E_NO_MEMORY, "no pages");
	core_expect(core, core_submit(&g, 1, entry, NULL), 0);
	core_expect_error(core, core_backward_end(&g.team, 0), ZEROD_E_NO_MEMORY, "gave no segment");
	core_expect(core, core_backward_end(&g.team, 1), ZEROD_E_NO_MEMORY);
}
