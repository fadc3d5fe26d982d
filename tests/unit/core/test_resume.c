/* SPDX-License-Identifier: Apache-2.0 */
/*
 * UNITS_RESUME: ranks that go on after a restart register many units with one request, as far as each would
 * be registered at once.
 */
#include "base/mem.h"
#include "tests/support/core_durable.h"

static const struct core_view views[] = {{.name = "w", .ndim = 2, .shape = {4, 8}},
                                         {.name = "bias", .offset_numel = 32, .ndim = 1, .shape = {5}}};

/* The ids and digests that ranks have when their daemon ends. */
struct known {
	uint64_t ids[NUNITS], descriptions[NUNITS];
};

static void know(struct durable *d, struct known *known)
{
	for (uint32_t unit = 0; unit < NUNITS; unit++) {
		const struct zd_reply *reply = core_expect(d->core, send_register(d, unit, 0), 0);
		known->ids[unit] = reply->u.unit_register.unit;
		known->descriptions[unit] = reply->u.unit_register.description;
		assert_true(known->descriptions[unit] != 0);
	}
}

static uint64_t send_resume(struct durable *d, uint32_t rank, const struct known *known)
{
	struct zd_args args = {.kind = ZD_REQ_UNITS_RESUME,
	                       .u.units_resume = {.group = d->team.group,
	                                          .n_units = NUNITS,
	                                          .units = (uint64_t *)known->ids,
	                                          .n_descriptions = NUNITS,
	                                          .descriptions = (uint64_t *)known->descriptions}};
	return core_send(d->core, d->team.session[rank], &args);
}

/* Bits of the units that are resumed. */
static void expect_resumed(const Zd__UnitsResumeReply *reply, uint32_t unit, struct zd_location shard)
{
	assert_int_equal(reply->segments[unit], shard.segment);
	assert_int_equal(reply->offsets[unit], shard.offset);
}

static unsigned resume(struct durable *d, uint32_t rank, const struct known *known)
{
	const struct zd_reply *reply = core_expect(d->core, send_resume(d, rank, known), 0);
	unsigned bits = 0;
	assert_int_equal(reply->u.units_resume.n_segments, NUNITS);
	for (uint32_t unit = 0; unit < NUNITS; unit++) {
		if (reply->u.units_resume.segments[unit] == 0)
			continue;
		expect_resumed(&reply->u.units_resume, unit, d->shard[unit][rank]);
		bits |= 1u << unit;
	}
	return bits;
}

static void begin(struct durable *d, struct known *known, bool shadow)
{
	start(d, shadow);
	know(d, known);
	core_restart(d->core);
}

/* Shards, versions and places are what they were, and the next step works. */
TEST(test_all_units_at_once)
{
	struct durable d;
	struct known known;
	start(&d, false);
	know(&d, &known);
	const struct zd_reply *reply = core_expect(d.core, send_register(&d, 1, 0), 0);
	uint64_t place = reply->u.unit_register.target_offset_numel;
	core_restart(d.core);
	join_all(&d, 1, false);
	for (uint32_t rank = 0; rank < 2; rank++) {
		reply = core_expect(d.core, send_resume(&d, rank, &known), 0);
		for (uint32_t unit = 0; unit < NUNITS; unit++) {
			const Zd__UnitsResumeReply *is = &reply->u.units_resume;
			expect_resumed(is, unit, d.shard[unit][rank]);
			assert_int_equal(is->versions[unit], 1);
			assert_int_equal(is->target_offsets_numel[unit], unit == 1 ? place : 0);
		}
	}
	expect_commit(&d, 1);
	core_end(d.core);
}

/* Only the description's owner knows its digest: any difference makes another one. */
TEST(test_a_digest_is_of_the_whole_description)
{
	static const struct core_view renamed[] = {
	        {.name = "v", .ndim = 2, .shape = {4, 8}},
	        {.name = "bias", .offset_numel = 32, .ndim = 1, .shape = {5}}};
	static const struct core_view turned[] = {
	        {.name = "w", .ndim = 2, .shape = {8, 4}},
	        {.name = "bias", .offset_numel = 32, .ndim = 1, .shape = {5}}};
	static const struct core_view moved[] = {
	        {.name = "w", .ndim = 2, .shape = {4, 8}},
	        {.name = "bias", .offset_numel = 31, .ndim = 1, .shape = {5}}};
	const struct core_unit units[] = {
	        {.name = "u", .numel = 37, .nviews = 2, .views = views},
	        {.name = "x", .numel = 37, .nviews = 2, .views = views},
	        {.name = "u", .numel = 38, .nviews = 2, .views = views},
	        {.name = "u", .numel = 37, .nviews = 1, .views = views},
	        {.name = "u", .numel = 37, .nviews = 2, .views = renamed},
	        {.name = "u", .numel = 37, .nviews = 2, .views = turned},
	        {.name = "u", .numel = 37, .nviews = 2, .views = moved},
	        {.name = "u", .numel = 37, .nviews = 2, .views = views, .slot = 1},
	        {.name = "u", .numel = 37, .nviews = 2, .views = views, .frozen = true},
	        {.name = "u", .numel = 37, .nviews = 2, .views = views, .all_reduce = true},
	        {.name = "u", .numel = 37, .nviews = 2, .views = views, .unsaved = true},
	        {.name = "u", .numel = 37, .nviews = 2, .views = views, .dtype = ZEROD_BFLOAT16},
	};
	uint64_t digests[ZD_ARRAY_LEN(units)];
	struct durable d;
	start(&d, false);
	for (size_t i = 0; i < ZD_ARRAY_LEN(units); i++) {
		uint64_t request = core_register(d.core, d.team.session[0], d.team.group, &units[i]);
		const struct zd_reply *reply = core_expect(d.core, request, 0);
		digests[i] = reply->u.unit_register.description;
		for (size_t j = 0; j < i; j++)
			assert_true(digests[j] != digests[i]);
		core_do(d.core, d.team.session[0], ZD_REQ_UNIT_UNREGISTER, reply->u.unit_register.unit);
	}
	core_end(d.core);
}

/* A unit that is not known, or is another one, is left alone; the others are resumed. */
TEST(test_other_units_are_left_out)
{
	struct durable d;
	struct known known, wrong;
	begin(&d, &known, false);
	join_all(&d, 1, false);
	wrong = known;
	wrong.descriptions[0]++;
	assert_int_equal(resume(&d, 0, &wrong), 1u << 1);
	wrong = known;
	wrong.ids[0] = known.ids[1];
	wrong.ids[1] = UINT64_MAX;
	assert_int_equal(resume(&d, 1, &wrong), 0);
	assert_int_equal(resume(&d, 0, &known), 1u << 0); /* the other one is registered already */
	wrong = known;
	wrong.ids[1] = known.ids[0];
	wrong.descriptions[1] = known.descriptions[0];
	d.shard[1][1] = d.shard[0][1];
	assert_int_equal(resume(&d, 1, &wrong), 1u << 0); /* once */
	core_end(d.core);
}

TEST(test_persistent_parts)
{
	struct durable d;
	struct known known;
	struct core_row row;
	protobuf_c_boolean persistent[NUNITS] = {false, true};
	begin(&d, &known, false);
	join_all(&d, 1, false);
	struct zd_args args = {.kind = ZD_REQ_UNITS_RESUME,
	                       .u.units_resume = {.group = d.team.group,
	                                          .n_units = NUNITS,
	                                          .units = known.ids,
	                                          .n_descriptions = NUNITS,
	                                          .descriptions = known.descriptions,
	                                          .n_persistent = NUNITS,
	                                          .persistent = persistent}};
	core_expect(d.core, core_send(d.core, d.team.session[0], &args), 0);
	assert_int_equal(resume(&d, 1, &known), 3);
	for (uint32_t unit = 0; unit < NUNITS; unit++) {
		core_expect(d.core, core_gather(d.core, d.team.session[0], known.ids[unit]), 0);
		core_expect(d.core, core_release(d.core, d.team.session[0], known.ids[unit]), 0);
		core_row(d.core, ZD__TABLE__UNITS, known.ids[unit], &row);
		assert_int_equal(row.row->unit->gathered, persistent[unit]);
	}
	core_end(d.core);
}

/* Parts are back in their slots: of two units in one slot, one is gathered at a time. */
TEST(test_parts_in_slots)
{
	static const struct core_unit slotted[NUNITS] = {{.name = "x", .numel = 64, .slot = 3},
	                                                 {.name = "y", .numel = 64, .slot = 3}};
	struct durable d;
	struct known known;
	start(&d, false);
	for (uint32_t unit = 0; unit < NUNITS; unit++) {
		known.ids[unit] = core_team_register(&d.team, &slotted[unit]);
		uint64_t request = core_register(d.core, d.team.session[0], d.team.group, &slotted[unit]);
		known.descriptions[unit] = core_expect(d.core, request, 0)->u.unit_register.description;
		core_team_publish(&d.team, known.ids[unit]);
	}
	commit(&d, 2);
	core_restart(d.core);
	join_all(&d, 2, false);
	for (uint32_t rank = 0; rank < 2; rank++) {
		const struct zd_reply *reply = core_expect(d.core, send_resume(&d, rank, &known), 0);
		for (uint32_t unit = 0; unit < NUNITS; unit++)
			assert_int_not_equal(reply->u.units_resume.segments[unit], 0);
	}
	core_expect(d.core, core_gather(d.core, d.team.session[0], known.ids[0]), 0);
	core_expect(d.core, core_gather(d.core, d.team.session[0], known.ids[1]), ZEROD_E_SLOT_CONFLICT);
	core_end(d.core);
}

/* Ids of one group name nothing in another, nor in a group that the session has not joined. */
TEST(test_groups_of_others)
{
	struct durable d;
	struct known known;
	begin(&d, &known, false);
	join_all(&d, 1, false);
	uint64_t group = d.team.group, session = d.team.session[0];
	struct core_join other = {.group = "other", .world_size = 1, .durable = true};
	d.team.group = core_join_ok(d.core, session, &other);
	assert_int_equal(resume(&d, 0, &known), 0);
	d.team.session[0] = core_open(d.core, CORE_ALICE);
	core_expect(d.core, send_resume(&d, 0, &known), ZEROD_E_NOT_FOUND);
	d.team.group = group;
	d.team.session[0] = session;
	assert_int_equal(resume(&d, 0, &known), 3);
	core_end(d.core);
}

/* The rank's shard is being rolled back: its registration waits for that, and resuming does not wait. */
TEST(test_a_shard_that_is_rolled_back)
{
	struct durable d;
	struct known known;
	start(&d, true);
	know(&d, &known);
	publish_undone(&d, 0, 0);
	core_hold(d.core, ZD_CMD_COPY);
	core_restart(d.core);
	join_all(&d, 1, false);
	assert_int_equal(resume(&d, 0, &known), 1u << 1);
	uint64_t request = send_register(&d, 0, 0);
	core_expect_waits(d.core, request, "unit_register: rank 0's shard of unit 'a' to be restored");
	core_unhold(d.core, ZD_CMD_COPY);
	core_expect(d.core, request, 0);
	assert_int_equal(resume(&d, 1, &known), 3);
	expect_commit(&d, 1);
	core_end(d.core);
}

/* Another rank has described a unit differently: that unit is resumed by none, and gets its MISMATCH. */
TEST(test_a_mismatch_is_refused)
{
	struct durable d;
	struct known known;
	struct core_unit differs = {.name = unit_names[0], .numel = UNIT_BYTES / 4 + 1};
	begin(&d, &known, false);
	join_all(&d, 1, false);
	uint64_t request = core_register(d.core, d.team.session[1], d.team.group, &differs);
	core_expect_error(d.core, request, ZEROD_E_MISMATCH, "unit 'a': rank 0 registered");
	assert_int_equal(resume(&d, 0, &known), 1u << 1);
	assert_int_equal(resume(&d, 1, &known), 1u << 1);
	register_again(&d, 0, 0);
	register_again(&d, 0, 1); /* takes the difference back */
	expect_commit(&d, 1);
	core_end(d.core);
}
