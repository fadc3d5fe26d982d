/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads of the last commit by a session that is no rank: what they wait for, what waits for them, and what
 * ends meanwhile.
 */
#include "base/mem.h"
#include "core/gather/unit.h"
#include "tests/unit/core/read_rig.h"

static uint32_t below(uint32_t n)
{
	static uint64_t random;
	random = random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(random >> 33) % n;
}

READ_TEST(test_update_waits_for_copies_alone)
{
	core_hold(rig->core, ZD_CMD_COPY);
	uint64_t read = send_read(rig, 1);
	core_expect_waits(rig->core, read, "copies of unit 'w'");
	uint64_t update = core_update(rig->core, rig->team.session[1], rig->unit);
	core_expect_waits(rig->core, update, "1 transfer that reads the shard of rank 1");
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_STALE_VERSION,
	                  "rank 1 has updated its shard");
	core_close(rig->core, rig->reader); /* nothing else of the reader counts */
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, update, 0);
}

/* A shadow that holds the commit may be read while the shard is updated, and the update does not wait. */
SHADOW_TEST(test_update_beside_reads_of_the_shadow)
{
	core_team_publish(&rig->team, rig->unit);
	core_hold(rig->core, ZD_CMD_COPY);
	uint64_t read = send_read(rig, 1);
	core_team_publish(&rig->team, rig->unit);
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, read, 0);
	expect_bytes(rig, 1);
}

/* Its caller may not go on while copies write its memory. */
READ_TEST(test_no_deadline_behind_the_first_copy)
{
	const struct zd_args args = {.kind = ZD_REQ_UNIT_READ,
	                             .u.unit_read = {.group = rig->team.group,
	                                             .unit = (char *)"w",
	                                             .step = 1,
	                                             .bytes = UNIT_BYTES,
	                                             .allocation = rig->into}};
	core_hold(rig->core, ZD_CMD_COPY);
	uint64_t read = core_send_until(rig->core, rig->reader, 5, &args);
	core_tick(rig->core, 10);
	core_expect_waits(rig->core, read, "copies of unit 'w'");
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, read, 0);
}

/* Its new shard has not the committed bytes, and the next commit has them. */
READ_TEST(test_rank_is_replaced)
{
	core_close(rig->core, rig->team.session[1]);
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_STALE_VERSION, "rank 1's shard of step 1");
	replace(rig);
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_STALE_VERSION,
	                  "rank 1 has joined after step 1");
}

static uint64_t send_rows(struct rig *rig, uint64_t offset, uint64_t bytes, uint64_t rows, uint64_t stride,
                          uint64_t into)
{
	return core_send(rig->core, rig->reader,
	                 &(struct zd_args){.kind = ZD_REQ_UNIT_READ,
	                                   .u.unit_read = {.group = rig->team.group,
	                                                   .unit = (char *)"w",
	                                                   .step = 1,
	                                                   .offset = offset,
	                                                   .bytes = bytes,
	                                                   .rows = rows,
	                                                   .stride = stride,
	                                                   .allocation = rig->into,
	                                                   .allocation_offset = into}});
}

/* Random rows, of both shards and cut by a shard's end: every byte of the allocation. */
READ_TEST(test_rows)
{
	const struct zd_unit *unit = zd_unit_find(core_engine(rig->core), rig->unit);
	uint8_t *to = core_bytes(rig->core, rig->place), from[UNIT_BYTES], expected[UNIT_BYTES];
	struct zd_metrics_view view;
	uint64_t copied = 0;
	uint32_t most = 0;
	for (uint32_t i = 0; i < UNIT_BYTES; i++)
		from[i] = (uint8_t)(i * 2654435761u >> 13);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		memcpy(core_bytes(rig->core, zd_extent_location(&unit->parts[rank].shard)),
		       from + rank * UNIT_BYTES / RANKS, UNIT_BYTES / RANKS);
	for (uint32_t i = 0; i < 2000; i++) {
		uint64_t bytes = 1 + below(64), stride = bytes + below(100), offset = below(900);
		uint64_t rows = below((uint32_t)((UNIT_BYTES - offset - bytes) / stride + 2));
		uint64_t total = zd_max_u64(rows, 1) * bytes,
		         into = below((uint32_t)(UNIT_BYTES + 1 - total));
		uint32_t copies = core_count(rig->core, ZD_CMD_COPY);
		memset(to, 0x55, UNIT_BYTES);
		memset(expected, 0x55, UNIT_BYTES);
		for (uint64_t at = 0; at < total; at++)
			expected[into + at] = from[offset + at / bytes * stride + at % bytes];
		core_expect(rig->core, send_rows(rig, offset, bytes, rows, stride, into), 0);
		copied += total;
		assert_memory_equal(to, expected, UNIT_BYTES);
		most = (uint32_t)zd_max_u64(most, core_count(rig->core, ZD_CMD_COPY) - copies);
	}
	zd_engine_metrics(core_engine(rig->core), &view);
	assert_int_equal(view.metrics->counters[ZD_COUNT_READ_BYTES], copied);
	assert_int_equal(core_copied_bytes(rig->core, 0) + core_copied_bytes(rig->core, 1), copied);
	assert_int_equal(most, 4); /* of each shard the whole rows, and the parts of a row */
}

READ_TEST(test_wrong_rows)
{
	const struct {
		uint64_t offset, bytes, rows, stride, into;
		const char *text;
	} cases[] = {
	        {0, 8, 2, 7, 0, "rows of 8 bytes that are 7 bytes apart"},
	        {5, 4, 3, 508, 0, "3 rows of 4 bytes, 508 bytes apart, from byte 5 on, of unit 'w', which "},
	        {0, 1, UINT64_MAX, UINT64_MAX, 0, "of unit 'w', which has 1024 bytes"},
	        {0, 2, UINT64_C(1) << 63, 2, 0, "9223372036854775808 rows of 2 bytes"},
	        {2000, 4, 2, 4, 0, "from byte 2000 on"},
	        {0, 8, 100, 10, 225, "800 bytes at offset 225 of allocation"},
	};
	for (uint32_t i = 0; i < ZD_ARRAY_LEN(cases); i++)
		core_expect_error(rig->core,
		                  send_rows(rig, cases[i].offset, cases[i].bytes, cases[i].rows,
		                            cases[i].stride, cases[i].into),
		                  ZEROD_E_INVALID, cases[i].text);
	core_expect(rig->core, send_rows(rig, 4, 4, 3, 508, 0), 0);
	core_expect(rig->core, send_rows(rig, 0, 0, UINT64_MAX, 0, 0), 0); /* nothing */
}

READ_TEST(test_everything_ends_during_a_read)
{
	core_hold(rig->core, ZD_CMD_COPY);
	uint64_t read = send_read(rig, 1);
	core_call(rig->core, rig->reader,
	          &(struct zd_args){.kind = ZD_REQ_FREE, .u.free.allocation = rig->into}, 0);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		core_close(rig->core, rig->team.session[rank]);
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, read, 0);
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_NOT_FOUND, "no group");
}

READ_TEST(test_copy_fails)
{
	core_fail_next(rig->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "the copy engine is broken");
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_DEVICE, "the copy engine is broken");
	core_expect(rig->core, send_read(rig, 1), 0);
	expect_bytes(rig, 1);
}

READ_TEST(test_other_users)
{
	uint64_t bob = core_open(rig->core, CORE_BOB), admin = core_open_admin(rig->core),
	         alice = rig->reader;
	core_expect_error(rig->core, send_wait(rig, bob, 0, 0), ZEROD_E_NOT_FOUND,
	                  "in job 'job' of uid 1001");
	core_expect_error(rig->core, send_wait(rig, bob, CORE_ALICE, 0), ZEROD_E_PERMISSION,
	                  "uid 1001 reads");
	rig->reader = bob;
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_NOT_FOUND, "no group");
	struct zd_peer peer = {.uid = CORE_BOB, .pid = 7, .reads_others = true, .name = "engine"};
	core_expect(rig->core, send_wait(rig, core_open_peer(rig->core, &peer), CORE_ALICE, 0), 0);
	rig->reader = alice;
	const struct zd_reply *reply = core_expect(rig->core, send_wait(rig, admin, CORE_ALICE, 0), 0);
	assert_int_equal(reply->u.commit_wait.group, rig->team.group);
	assert_int_equal(reply->u.commit_wait.step, 1);
}

/* Of several daemons, or with collectives of NCCL's. */
TEST(test_clusters_are_refused)
{
	const struct core_nodes_config configs[] = {{.nnodes = 2}, {.nnodes = 1, .exchange = true}};
	for (uint32_t i = 0; i < ZD_ARRAY_LEN(configs); i++) {
		struct core_nodes nodes;
		core_nodes_new(&nodes, &configs[i]);
		struct rig rig = {.core = nodes.node[0].core, .team = nodes.node[0]};
		rig.reader = core_open(rig.core, CORE_ALICE);
		core_expect_error(rig.core, send_wait(&rig, rig.reader, 0, 0), ZEROD_E_UNSUPPORTED,
		                  "group 'world' spans daemons, or its collectives are NCCL's");
		core_expect_error(rig.core, send_read(&rig, 1), ZEROD_E_UNSUPPORTED, "group 'world' spans");
		core_close(rig.core, rig.reader);
		core_net_end(nodes.net);
	}
}

static void expect_row(struct rig *rig, uint64_t step, uint64_t bytes, uint32_t copies)
{
	struct core_row found;
	core_row(rig->core, ZD__TABLE__SESSIONS, rig->reader, &found);
	assert_string_equal(found.row->session->reads->job, "job");
	assert_string_equal(found.row->session->reads->group, "world");
	assert_int_equal(found.row->session->reads->step, step);
	assert_int_equal(found.row->session->reads->bytes, bytes);
	assert_int_equal(found.row->session->reads->copies, copies);
}

/* In the listing of the job, too, and in the metrics; until the group ends. */
READ_TEST(test_reader_is_listed)
{
	struct core_row rows[RANKS + 2];
	struct zd_metrics_view view;
	core_row(rig->core, ZD__TABLE__SESSIONS, rig->reader, &rows[0]);
	assert_string_equal(rows[0].row->session->reads->job, "");
	assert_int_equal(core_rows_for(rig->core, 0, ZD__TABLE__SESSIONS, "job", rows, RANKS + 2), RANKS);
	core_expect(rig->core, send_wait(rig, rig->reader, 0, 0), 0);
	expect_row(rig, 0, 0, 0);
	assert_int_equal(core_rows_for(rig->core, 0, ZD__TABLE__SESSIONS, "job", rows, RANKS + 2), RANKS + 1);
	core_hold(rig->core, ZD_CMD_COPY);
	core_expect_waits(rig->core, send_read(rig, 1), "copies of unit 'w'");
	expect_row(rig, 0, 0, RANKS);
	core_unhold(rig->core, ZD_CMD_COPY);
	expect_row(rig, 1, UNIT_BYTES, 0);
	commit(rig, 2);
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_STALE_VERSION, "the last commit is step 2");
	expect_row(rig, 1, UNIT_BYTES, 0);
	zd_engine_metrics(core_engine(rig->core), &view);
	assert_int_equal(view.metrics->counters[ZD_COUNT_READS_COPIED], 1);
	assert_int_equal(view.metrics->counters[ZD_COUNT_READS_STALE], 1);
	assert_int_equal(view.metrics->counters[ZD_COUNT_READ_BYTES], UNIT_BYTES);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		core_close(rig->core, rig->team.session[rank]);
	core_row(rig->core, ZD__TABLE__SESSIONS, rig->reader, &rows[0]);
	assert_string_equal(rows[0].row->session->reads->job, "");
	assert_int_equal(rows[0].row->session->reads->bytes, 0);
}

static void expect_read_job(struct rig *rig, uint64_t asker, const char *job)
{
	struct core_row rows[8];
	uint32_t count = core_rows_for(rig->core, asker, ZD__TABLE__SESSIONS, NULL, rows, 8);
	const char *found = NULL;
	for (uint32_t i = 0; i < count; i++) {
		if (rows[i].row->session->id == rig->reader)
			found = rows[i].row->session->reads->job;
	}
	assert_true(job ? found && strcmp(found, job) == 0 : !found);
}

/* Of a job of alice's that a process of bob's reads, its name is listed to those that may read it and see the
 * process. */
READ_TEST(test_names_of_other_users_jobs)
{
	struct zd_peer peer = {.uid = CORE_BOB, .pid = 7, .reads_others = true, .name = "engine"};
	uint64_t alice = rig->reader, bob = core_open(rig->core, CORE_BOB),
	         admin = core_open_admin(rig->core);
	struct core_row row;
	rig->reader = core_open_peer(rig->core, &peer);
	core_expect(rig->core, send_wait(rig, rig->reader, CORE_ALICE, 0), 0);
	expect_read_job(rig, alice, NULL);
	expect_read_job(rig, bob, "");
	expect_read_job(rig, rig->reader, "job");
	expect_read_job(rig, admin, "job");
	assert_int_equal(core_rows_for(rig->core, rig->reader, ZD__TABLE__SESSIONS, "job", &row, 1), 1);
	assert_int_equal(core_rows_for(rig->core, bob, ZD__TABLE__SESSIONS, "job", &row, 1), 0);
	assert_int_equal(core_rows_for(rig->core, rig->reader, ZD__TABLE__SEGMENTS, NULL, &row, 1), 0);
}

/* The text names a rank that has not committed at the deadline. */
READ_TEST(test_deadline_of_a_wait)
{
	const struct zd_args args = {
	        .kind = ZD_REQ_COMMIT_WAIT,
	        .u.commit_wait = {.job = (char *)"job", .group = (char *)"world", .after = 1}};
	uint64_t wait = core_send_until(rig->core, rig->reader, 5, &args);
	core_expect_waits(rig->core, wait, "rank 0 to commit a step after 1");
	(void)core_commit(rig->core, rig->team.session[0], rig->team.group, 2);
	core_tick(rig->core, 10);
	core_expect_error(rig->core, wait, ZEROD_E_DEADLINE, "for rank 1 to commit a step after 1");
}

READ_TEST(test_waits_end_with_the_group)
{
	uint64_t second = send_wait(rig, rig->reader, 0, 1);
	core_expect_waits(rig->core, second, "rank 0 to commit");
	uint64_t first = core_commit(rig->core, rig->team.session[0], rig->team.group, 2);
	core_commit(rig->core, rig->team.session[1], rig->team.group, 2);
	core_expect(rig->core, first, 0);
	assert_int_equal(core_expect(rig->core, second, 0)->u.commit_wait.step, 2);
	uint64_t third = send_wait(rig, rig->reader, 0, 2);
	core_close(rig->core, rig->team.session[1]);
	core_expect_error(rig->core, third, ZEROD_E_PEER_LOST, "rank 1");
	core_close(rig->core, rig->team.session[0]);
	core_expect_error(rig->core, send_wait(rig, rig->reader, 0, 2), ZEROD_E_NOT_FOUND,
	                  "no group 'world'");
}
