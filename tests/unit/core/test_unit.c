/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units: shapes and padding, descriptions that must agree, shards that come and go.
 */
#include "base/mem.h"
#include "tests/support/core_driver.h"

#define HUGE_NUMEL ((1ull << 63) - 1)

/* ---- Shapes -------------------------------------------------------------------------------------------- */

TEST(test_shards_are_padded_and_split_evenly)
{
	static const struct {
		uint32_t world, dtype;
		uint64_t numel, shard_numel, true_numel[4];
	} cases[] = {
	        {2, ZEROD_FLOAT32, 128, 64, {64, 64}},
	        {2, ZEROD_FLOAT32, 129, 128, {128, 1}},
	        {3, ZEROD_FLOAT32, 1, 64, {1, 0, 0}}, /* smaller than the world */
	        {4, ZEROD_BFLOAT16, 129, 128, {128, 1, 0, 0}},
	        {3, ZEROD_FLOAT16, 1009, 384, {384, 384, 241}}, /* a prime */
	        {1, ZEROD_INT64, 33, 64, {33}},
	        {4, ZEROD_BOOL, 1024, 256, {256, 256, 256, 256}},
	        {2, ZEROD_FLOAT8_E4M3, 511, 256, {256, 255}},
	        {2, ZEROD_INT16, 257, 256, {256, 1}},
	};
	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++) {
		struct core_driver *core = core_new(NULL);
		struct core_unit unit = {.name = "w", .dtype = cases[i].dtype, .numel = cases[i].numel};
		uint64_t bytes = cases[i].shard_numel * zerod_dtype_bytes(cases[i].dtype);
		struct core_team team = core_team_new(core, "job", cases[i].world, false);
		for (uint32_t rank = 0; rank < cases[i].world; rank++) {
			const struct zd_reply *reply = core_expect(
			        core, core_register(core, team.session[rank], team.group, &unit), 0);
			const uint8_t *shard = core_bytes(core, reply->place);
			assert_int_equal(reply->u.unit_register.shard_numel, cases[i].shard_numel);
			assert_int_equal(reply->u.unit_register.true_numel, cases[i].true_numel[rank]);
			assert_int_equal(reply->u.unit_register.padded_numel,
			                 cases[i].world * cases[i].shard_numel);
			assert_int_equal(reply->u.unit_register.version, 0);
			assert_int_equal(reply->place.bytes, bytes);
			assert_int_equal(reply->place.offset % ZD_SHARD_ALIGN_BYTES, 0);
			for (uint64_t b = 0; b < bytes; b++)
				assert_int_equal(shard[b], 0);
		}
		assert_int_equal(core_usage(core).shard_bytes, cases[i].world * bytes);
		core_end(core);
	}
}

ENGINE_TEST(test_bad_descriptions)
{
	static const char name128[] = "0123456789012345678901234567890123456789012345678901234567890123"
	                              "0123456789012345678901234567890123456789012345678901234567890123";
	static const struct core_view behind = {"behind", 60, 1, {5}};
	static const struct core_view off = {"off", HUGE_NUMEL, 1, {1}};
	static const struct core_view overflow = {"overflow", 0, 3, {1ull << 32, 1ull << 31, 2}};
	static const struct core_view wide = {"wide", 0, ZD_MAX_DIMS + 1, {1}};
	static const struct core_view unnamed = {"", 0, 1, {1}};
	static const struct core_view alike[] = {{"a", 0, 1, {1}}, {"b", 1, 1, {1}}, {"a", 2, 1, {1}}};
	static const struct {
		struct core_unit unit;
		int status;
		const char *text;
	} cases[] = {
	        {{.name = "", .numel = 1}, ZEROD_E_INVALID, "unit name"},
	        {{.name = name128, .numel = 1}, ZEROD_E_INVALID, "unit name"},
	        {{.name = "a\tb", .numel = 1}, ZEROD_E_INVALID, "unit name"},
	        {{.name = "w", .numel = 1, .dtype = 12}, ZEROD_E_INVALID, "unknown dtype 12"},
	        {{.name = "w", .numel = 0}, ZEROD_E_INVALID, "numel 0 is not in 1 .. 281474976710656"},
	        {{.name = "w", .numel = HUGE_NUMEL}, ZEROD_E_INVALID, "numel 9223372036854775807"},
	        {{.name = "w", .numel = (1ull << 48) + 1}, ZEROD_E_INVALID, "numel 281474976710657"},
	        {{.name = "w", .numel = 1ull << 62, .dtype = ZEROD_INT64}, ZEROD_E_INVALID, "numel"},
	        {{.name = "w", .numel = UINT64_MAX, .dtype = ZEROD_UINT8}, ZEROD_E_INVALID, "numel"},
	        {{.name = "w", .numel = 1, .slot = ZD_MAX_SLOTS + 1}, ZEROD_E_LIMIT, "slot 4097"},
	        {{.name = "w", .numel = 1, .nviews = ZD_MAX_VIEWS + 1}, ZEROD_E_LIMIT, "257 views"},
	        {{.name = "w", .numel = 64, .nviews = 1, .views = &behind},
	         ZEROD_E_INVALID,
	         "unit 'w': view 'behind' of 5 elements at 60 ends behind the unit's 64"},
	        {{.name = "w", .numel = 64, .nviews = 1, .views = &off}, ZEROD_E_INVALID, "view 'off'"},
	        {{.name = "w", .numel = 64, .nviews = 1, .views = &overflow},
	         ZEROD_E_INVALID,
	         "unit 'w': view 0 'overflow': the product of its shape overflows"},
	        {{.name = "w", .numel = 64, .nviews = 1, .views = &wide},
	         ZEROD_E_INVALID,
	         "unit 'w': view 'wide' has 9 dimensions; at most 8"},
	        {{.name = "w", .numel = 64, .nviews = 3, .views = alike},
	         ZEROD_E_INVALID,
	         "unit 'w': views 0 and 2 both have the name 'a'"},
	        {{.name = "w", .numel = 64, .nviews = 1, .views = &unnamed}, ZEROD_E_INVALID, "view name"},
	};
	struct core_team team = core_team_new(core, "job", 1, false);
	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++)
		core_expect_error(core, core_register(core, team.session[0], team.group, &cases[i].unit),
		                  cases[i].status, cases[i].text);
	core_expect(core,
	            core_register(core, team.session[0], team.group + 1000,
	                          &(struct core_unit){.name = "w", .numel = 1}),
	            ZEROD_E_NOT_FOUND);
	assert_int_equal(core_rows(core, ZD__TABLE__UNITS, NULL, 0), 0);
	core_register_ok(core, team.session[0], team.group,
	                 &(struct core_unit){.name = name128 + 1, .numel = 1});
}

/* Elements that are within the limit and are not any more once they are padded. */
ENGINE_TEST(test_padded_size_is_within_the_limit, .ndevices = 3, .arena_bytes = ZD_MAX_BYTES,
            .no_bytes = true)
{
	struct core_unit unit = {.name = "w", .numel = ZD_MAX_BYTES, .dtype = ZEROD_UINT8, .slot = 1};
	struct core_team team = core_team_new(core, "job", 3, false);
	core_expect_error(core, core_register(core, team.session[0], team.group, &unit), ZEROD_E_INVALID,
	                  "padded");
	unit.numel = ZD_MAX_BYTES - 1024;
	unit.copied = true;
	uint64_t id = core_team_register(&team, &unit);
	for (uint32_t rank = 0; rank < 3; rank++) {
		core_expect(core, core_update(core, team.session[rank], id), 0);
		core_expect(core, core_publish(core, team.session[rank], id), 0);
	}
	/* the shards have taken a third of each arena */
	core_expect(core, core_gather(core, team.session[0], id), ZEROD_E_NO_MEMORY);
}

ENGINE_TEST(test_targets_are_laid_out_in_order)
{
	struct core_unit unit = {.name = "a", .numel = 128};
	struct core_team team = core_team_new(core, "job", 1, false);
	uint64_t request = core_register(core, team.session[0], team.group, &unit);
	assert_int_equal(core_expect(core, request, 0)->u.unit_register.target_offset_numel, 0);
	unit = (struct core_unit){.name = "frozen", .numel = 64, .frozen = true};
	core_register_ok(core, team.session[0], team.group, &unit);
	unit = (struct core_unit){.name = "b", .numel = 64};
	request = core_register(core, team.session[0], team.group, &unit);
	assert_int_equal(core_expect(core, request, 0)->u.unit_register.target_offset_numel, 128);
}

/* ---- Descriptions agree -------------------------------------------------------------------------------- */

ENGINE_TEST(test_mismatch_names_both_ranks)
{
	static const struct core_view views[] = {{"w", 0, 2, {4, 8}}, {"b", 32, 1, {8}}};
	static const struct core_view moved[] = {{"w", 0, 2, {4, 8}}, {"b", 31, 1, {8}}};
	static const struct core_view turned[] = {{"w", 0, 2, {8, 4}}, {"b", 32, 1, {8}}};
	static const struct core_view renamed[] = {{"w", 0, 2, {4, 8}}, {"c", 32, 1, {8}}};
	static const struct core_unit first = {.name = "layer", .numel = 40, .nviews = 2, .views = views};
	static const struct {
		struct core_unit unit;
		const char *text;
	} cases[] = {
	        {{.name = "layer", .numel = 41, .nviews = 2, .views = views},
	         "unit 'layer': rank 1 registered float32, 40 elements, views w[4,8]@0 b[8]@32; rank 0 says "
	         "float32, 41 elements, views w[4,8]@0 b[8]@32"},
	        {{.name = "layer", .numel = 40, .dtype = ZEROD_FLOAT16, .nviews = 2, .views = views},
	         "rank 0 says float16, 40 elements"},
	        {{.name = "layer", .numel = 40, .nviews = 2, .views = moved}, "b[8]@31"},
	        {{.name = "layer", .numel = 40, .nviews = 2, .views = turned}, "w[8,4]@0"},
	        {{.name = "layer", .numel = 40, .nviews = 2, .views = renamed}, "c[8]@32"},
	        {{.name = "layer", .numel = 40, .nviews = 1, .views = views}, "rank 0 says"},
	        {{.name = "layer", .numel = 40, .nviews = 2, .views = views, .slot = 3}, "slot 3"},
	        {{.name = "layer", .numel = 40, .nviews = 2, .views = views, .frozen = true}, "frozen"},
	};
	struct core_team team = core_team_new(core, "job", 2, false);
	core_register_ok(core, team.session[1], team.group, &first);
	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++)
		core_expect_error(core, core_register(core, team.session[0], team.group, &cases[i].unit),
		                  ZEROD_E_MISMATCH, cases[i].text);
}

ENGINE_TEST(test_mismatch_is_forgotten_when_the_rank_goes)
{
	struct core_unit unit = {.name = "w", .numel = 128}, other = {.name = "w", .numel = 64};
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t id = core_register_ok(core, team.session[0], team.group, &unit);
	core_team_publish_rank(&team, id, 0);
	core_expect(core, core_register(core, team.session[1], team.group, &other), ZEROD_E_MISMATCH);
	core_close(core, team.session[1]);
	team.session[1] = core_open(core, CORE_ALICE);
	core_join_ok(core, team.session[1], &(struct core_join){.world_size = 2, .rank = 1, .device = 1});
	core_expect_told(core, team.session[0], team.group, "rank 1");
	core_expect_waits(core, core_gather(core, team.session[0], id), "rank 1 to register");
}

/* Its shard of before is still being read; that is no registration of today. */
ENGINE_TEST(test_mismatch_beside_a_shard_that_goes)
{
	struct core_unit other = {.name = "w", .numel = 64};
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_unit(&team, "w", 512);
	core_hold(core, ZD_CMD_COPY);
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	core_expect(core, core_release(core, team.session[0], unit), 0);
	core_do(core, team.session[1], ZD_REQ_UNIT_UNREGISTER, unit);
	core_expect(core, core_register(core, team.session[1], team.group, &other), ZEROD_E_MISMATCH);
	core_expect_error(core, core_gather(core, team.session[0], unit), ZEROD_E_MISMATCH,
	                  "rank 1 says float32, 64 elements");
	core_unhold(core, ZD_CMD_COPY);
}

ENGINE_TEST(test_registering_twice)
{
	struct core_unit unit = {.name = "w", .numel = 128};
	struct core_team team = core_team_new(core, "job", 1, false);
	/* also while the first is under way */
	core_hold(core, ZD_CMD_FILL);
	uint64_t first = core_register(core, team.session[0], team.group, &unit);
	uint64_t second = core_register(core, team.session[0], team.group, &unit);
	core_expect_waits(core, first, "unit_register: memory to be zeroed");
	core_unhold(core, ZD_CMD_FILL);
	const struct zd_reply *a = core_expect(core, first, 0), *b = core_expect(core, second, 0);
	assert_true(a->u.unit_register.unit == b->u.unit_register.unit);
	assert_int_equal(a->place.segment, b->place.segment);
	assert_int_equal(a->place.offset, b->place.offset);
	assert_int_equal(core_usage(core).shard_bytes, 512);
	unit.numel = 64;
	core_expect(core, core_register(core, team.session[0], team.group, &unit), ZEROD_E_MISMATCH);
	/* which is nobody else's matter: the rank is registered */
	core_team_publish_rank(&team, a->u.unit_register.unit, 0);
	core_expect(core, core_gather(core, team.session[0], a->u.unit_register.unit), 0);
}

/* ---- Shards come and go -------------------------------------------------------------------------------- */

ENGINE_TEST(test_fill_that_fails_leaves_nothing)
{
	struct core_unit unit = {.name = "w", .numel = 128};
	struct core_team team = core_team_new(core, "job", 1, false);
	core_hold(core, ZD_CMD_FILL);
	uint64_t first = core_register(core, team.session[0], team.group, &unit);
	uint64_t second = core_register(core, team.session[0], team.group, &unit);
	core_fail_next(core, ZD_CMD_FILL, ZEROD_E_DEVICE, "ECC error");
	core_unhold(core, ZD_CMD_FILL);
	core_expect_error(core, first, ZEROD_E_DEVICE, "ECC error");
	core_expect_error(core, second, ZEROD_E_DEVICE, "ECC error");
	assert_int_equal(core_usage(core).shard_bytes, 0);
	assert_int_equal(core_rows(core, ZD__TABLE__UNITS, NULL, 0), 0);
	core_register_ok(core, team.session[0], team.group, &unit);
}

ENGINE_TEST(test_unregister_is_refused_while_in_use)
{
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_unit(&team, "w", 512);
	core_expect(core, core_gather_tag(core, team.session[0], unit, "plan", 1), 0);
	core_expect(core, core_gather_tag(core, team.session[0], unit, "eager", 1), 0);
	core_expect_error(core, core_simple(core, team.session[0], ZD_REQ_UNIT_UNREGISTER, unit),
	                  ZEROD_E_BUSY, "unit 'w' is held by 'plan', 'eager'");
	core_expect(core, core_release_tag(core, team.session[0], unit, "plan", NULL, 0), 0);
	core_expect(core, core_release_tag(core, team.session[0], unit, "eager", NULL, 0), 0);
	core_expect(core, core_update(core, team.session[0], unit), 0);
	core_expect_error(core, core_simple(core, team.session[0], ZD_REQ_UNIT_UNREGISTER, unit),
	                  ZEROD_E_BUSY, "is being updated");
	core_expect(core, core_publish(core, team.session[0], unit), 0);
	(void)core_gather(core, team.session[0], unit); /* waits for rank 1 */
	core_expect_error(core, core_simple(core, team.session[0], ZD_REQ_UNIT_UNREGISTER, unit),
	                  ZEROD_E_BUSY, "unit 'w' is in use by 1 gather or reduction");
	core_team_publish_rank(&team, unit, 1);
	core_expect(core, core_release(core, team.session[0], unit), 0);
	core_do(core, team.session[0], ZD_REQ_UNIT_UNREGISTER, unit);
	core_expect(core, core_simple(core, team.session[0], ZD_REQ_UNIT_UNREGISTER, unit),
	            ZEROD_E_NOT_FOUND);
	assert_int_equal(core_usage(core).shard_bytes, 256);
	core_do(core, team.session[1], ZD_REQ_UNIT_UNREGISTER, unit);
	assert_int_equal(core_rows(core, ZD__TABLE__UNITS, NULL, 0), 0);
}

/* A shard that another rank reads is quarantined; a persistent copy of the unit ends with it. */
ENGINE_TEST(test_unregister_while_others_read)
{
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_unit(&team, "w", 512);
	core_expect(core, core_set_persistent(core, team.session[0], unit, true), 0);
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	core_expect(core, core_release(core, team.session[0], unit), 0);
	core_hold(core, ZD_CMD_COPY);
	core_expect(core, core_gather(core, team.session[1], unit), 0);
	assert_int_equal(core_usage(core).gathered_bytes, 1024);
	core_do(core, team.session[0], ZD_REQ_UNIT_UNREGISTER, unit);
	assert_int_equal(core_usage(core).gathered_bytes, 512);
	assert_int_equal(core_usage(core).shard_bytes, 256);
	assert_int_equal(core_quarantine(core, 0), 256);
	core_expect(core, core_gather(core, team.session[0], unit), ZEROD_E_NOT_FOUND);
	core_unhold(core, ZD_CMD_COPY);
	assert_int_equal(core_quarantine(core, 0), 0);
}

/* A copy that was made of a shard that is gone is not given to anybody new, whatever its version says. */
ENGINE_TEST(test_copy_of_a_shard_that_is_gone_is_not_joined)
{
	struct core_unit again = {.name = "w", .numel = 128};
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_unit(&team, "w", 512);
	const struct zd_reply *old = core_expect(core, core_gather(core, team.session[0], unit), 0);
	core_close(core, team.session[1]);
	team.session[1] = core_open(core, CORE_ALICE);
	core_join_ok(core, team.session[1], &(struct core_join){.world_size = 2, .rank = 1, .device = 1});
	uint64_t request = core_register(core, team.session[1], team.group, &again);
	const struct zd_reply *shard = core_expect(core, request, 0);
	assert_int_equal(shard->u.unit_register.version, 0);
	core_expect(core, core_update(core, team.session[1], unit), 0);
	memset(core_bytes(core, shard->place), 0x77, 256);
	core_expect(core, core_publish(core, team.session[1], unit), 0);
	core_expect_told(core, team.session[0], team.group, "rank 1");
	uint64_t gather = core_gather_tag(core, team.session[0], unit, "eager", 1);
	core_expect_waits(core, gather, "leases on version 1 of unit 'w'");
	core_team_check(&team, old, 1); /* as long as it is held */
	core_expect(core, core_release(core, team.session[0], unit), 0);
	const struct zd_reply *fresh = core_expect(core, gather, 0);
	assert_int_equal(core_bytes(core, fresh->place)[0], core_pattern(0, 1));
	assert_int_equal(core_bytes(core, fresh->place)[256], 0x77);
}

/* ---- A name that is registered differently ------------------------------------------------------------- */

/* A unit that both ranks have left while its gathered copies are still being written. */
static void leave_a_unit_behind(struct core_driver *core, struct core_team *team)
{
	uint64_t unit = core_team_unit(team, "w", 512);
	core_hold(core, ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < 2; rank++) {
		core_expect(core, core_gather(core, team->session[rank], unit), 0);
		core_expect(core, core_release(core, team->session[rank], unit), 0);
	}
	for (uint32_t rank = 0; rank < 2; rank++)
		core_do(core, team->session[rank], ZD_REQ_UNIT_UNREGISTER, unit);
}

/* Nobody is left to disagree with: the new unit takes the old one's place as soon as that has gone. */
ENGINE_TEST(test_unit_that_all_have_left_may_change_its_shape)
{
	struct core_unit other = {.name = "w", .numel = 96}, third = {.name = "w", .numel = 100};
	uint64_t request[2], unit[2];
	struct core_team team = core_team_new(core, "job", 2, false);
	leave_a_unit_behind(core, &team);
	for (uint32_t rank = 0; rank < 2; rank++) {
		request[rank] = core_register(core, team.session[rank], team.group, &other);
		core_expect_waits(core, request[rank],
		                  "unit_register: the end of the work on the former unit 'w'");
	}
	core_expect_error(core, core_register(core, team.session[1], team.group, &third), ZEROD_E_MISMATCH,
	                  "rank 0 registered float32, 96 elements");
	core_unhold(core, ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < 2; rank++) {
		const struct zd_reply *reply = core_expect(core, request[rank], 0);
		unit[rank] = reply->u.unit_register.unit;
		assert_int_equal(reply->u.unit_register.padded_numel, 2 * 64);
		assert_int_equal(reply->u.unit_register.target_offset_numel, 0);
	}
	assert_int_equal(unit[0], unit[1]);
	assert_int_equal(core_rows(core, ZD__TABLE__UNITS, NULL, 0), 1);
}

/* One that waited in vain has taken nothing, the name least of all. */
ENGINE_TEST(test_registration_that_waits_for_a_former_unit_ends_early)
{
	struct zd_args args = {.kind = ZD_REQ_UNIT_REGISTER};
	struct core_team team = core_team_new(core, "job", 2, false);
	leave_a_unit_behind(core, &team);
	args.u.unit_register.group = team.group;
	args.u.unit_register.name = (char *)"w";
	args.u.unit_register.dtype = ZEROD_FLOAT32;
	args.u.unit_register.numel = 96;
	uint64_t request = core_send_until(core, team.session[0], 1, &args);
	core_tick(core, 1);
	core_expect_error(core, request, ZEROD_E_DEADLINE, "the former unit 'w'");
	assert_int_equal(core_rows(core, ZD__TABLE__UNITS, NULL, 0), 1);
	args.u.unit_register.numel = 100;
	request = core_send(core, team.session[1], &args);
	core_close(core, team.session[0]);
	core_unhold(core, ZD_CMD_COPY);
	core_expect(core, request, 0);
}

/* As it was described before, it is the same unit: what still works on its copies is in nobody's way. */
ENGINE_TEST(test_unit_that_all_have_left_is_found_again)
{
	struct core_team team = core_team_new(core, "job", 2, false);
	leave_a_unit_behind(core, &team);
	for (uint32_t rank = 0; rank < 2; rank++) {
		uint64_t request = core_register(core, team.session[rank], team.group,
		                                 &(struct core_unit){.name = "w", .numel = 128});
		core_expect_waits(core, request, "unit_register: 2 transfers that read the shard of rank");
	}
	assert_int_equal(core_rows(core, ZD__TABLE__UNITS, NULL, 0), 1);
	core_unhold(core, ZD_CMD_COPY);
}
