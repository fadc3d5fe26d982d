/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restored engines: ranks that were inside an update, and processes that may still write.
 */
#include "core/engine/journal.h"
#include "tests/unit/core/update_points.h"

/* ---- Shadows ------------------------------------------------------------------------------------------- */

TEST(test_shadows_restore_the_last_commit_from_every_point)
{
	for (enum point point = BEFORE; point < NPOINTS; point++) {
		for (uint32_t restarts = 1; restarts <= 2; restarts++) {
			struct durable d;
			uint64_t version = version_at(point);
			start(&d, true);
			go_to(&d, point);
			/* the second restart is in the middle of the first one's copies */
			core_hold(d.core, ZD_CMD_COPY);
			for (uint32_t i = 0; i < restarts; i++) {
				core_restart(d.core);
				expect_group(&d, "PARKED", version, false);
				if (core_pending(d.core, ZD_CMD_COPY) > 0)
					core_run_one(d.core, ZD_CMD_COPY);
			}
			core_unhold(d.core, ZD_CMD_COPY);
			come_back(&d, version, false);
			expect_commit(&d, version);
			core_restart(d.core);
			come_back(&d, version + 1, false);
			expect_commit(&d, version + 1);
			core_end(d.core);
		}
	}
}

/* ---- Former sessions ----------------------------------------------------------------------------------- */

static void leave(struct durable *d, const uint64_t session[2])
{
	for (uint32_t rank = 0; rank < 2; rank++)
		core_gone(d->core, session[rank]);
}

/* Their processes may be alive, and kernels of them may still write. */
TEST(test_memory_waits_for_former_processes)
{
	for (enum point point = BEFORE; point < NPOINTS; point++) {
		for (uint32_t restarts = 1; restarts <= 2; restarts++) {
			struct durable d;
			uint64_t former[2], version = version_at(point);
			start_lingering(&d, true);
			go_to(&d, point);
			memcpy(former, d.team.session, sizeof(former));
			core_unhold(d.core, ZD_CMD_COPY);
			for (uint32_t i = 0; i < restarts; i++) {
				uint32_t ncopies = core_count(d.core, ZD_CMD_COPY);
				core_restart(d.core);
				assert_int_equal(core_count(d.core, ZD_CMD_COPY), ncopies);
				assert_true(core_pending(d.core, ZD_CMD_WATCH) >= 2);
			}
			if (point == UPDATING)
				write_undone(&d, 0, 0); /* the process has not ended */
			uint32_t nsessions = core_rows(d.core, ZD__TABLE__SESSIONS, NULL, 0);
			assert_int_equal(nsessions, 2);
			leave(&d, former);
			assert_int_equal(core_rows(d.core, ZD__TABLE__SESSIONS, NULL, 0), 0);
			come_back(&d, version, false);
			expect_commit(&d, version);
			for (uint32_t rank = 0; rank < 2; rank++)
				former[rank] = d.team.session[rank];
			core_end(d.core);
		}
	}
}

TEST(test_an_allocation_waits_for_its_former_process)
{
	struct durable d;
	for (uint32_t closed = 0; closed < 2; closed++) {
		start_lingering(&d, false);
		uint64_t owner = core_open(d.core, CORE_ALICE);
		core_expect(d.core, keep(&d, owner, "adam"), 0);
		if (closed)
			core_close(d.core, owner);
		core_restart(d.core);
		core_restart(d.core);
		uint64_t session = core_open(d.core, CORE_ALICE), again = keep(&d, session, "adam");
		core_expect_waits(d.core, again, "");
		core_gone(d.core, owner);
		core_expect(d.core, again, 0);
		core_end(d.core);
	}
}

TEST(test_former_sessions_are_listed)
{
	struct durable d;
	struct core_row rows[2];
	uint32_t uid, pid;
	uint64_t started;
	start_lingering(&d, false);
	struct zd_peer peer = {.uid = CORE_ALICE, .pid = 77, .started = 123, .name = "late"};
	uint64_t owner = core_open_peer(d.core, &peer);
	core_expect(d.core, keep(&d, owner, "adam"), 0);
	close_ranks(&d);
	leave(&d, d.team.session);
	assert_false(zd_engine_former(core_engine(d.core), owner, &uid, &pid, &started));
	core_restart(d.core);
	assert_int_equal(core_rows(d.core, ZD__TABLE__SESSIONS, rows, 2), 1);
	assert_true(rows[0].id == owner);
	assert_string_equal(rows[0].state, "CLOSING");
	assert_non_null(strstr(rows[0].row->session->waits[0], "process 77 to leave device 1"));
	assert_true(zd_engine_former(core_engine(d.core), owner, &uid, &pid, &started));
	assert_int_equal(uid, CORE_ALICE);
	assert_int_equal(pid, 77);
	assert_int_equal(started, 123);
	core_gone(d.core, owner);
	assert_false(zd_engine_former(core_engine(d.core), owner, &uid, &pid, &started));
	core_end(d.core);
}

/* ---- How much is recorded ------------------------------------------------------------------------------ */

/* Counts the records of parts behind the first *nbytes of the journal, and moves *nbytes to its end. */
static uint32_t count_new(const struct durable *d, size_t *nbytes)
{
	size_t end;
	const uint8_t *bytes = core_journal_bytes(d->core, &end);
	uint32_t count = 0;
	while (*nbytes < end) {
		const struct zd_record *record = (const void *)(bytes + *nbytes);
		count += record->type == ZD_RECORD_PART || record->type == ZD_RECORD_PART_STATE;
		*nbytes += record->bytes;
	}
	return count;
}

/* Requests that leave a part's record as it is append none. */
TEST(test_parts_are_recorded_when_their_records_change)
{
	struct durable d;
	size_t at = 0;
	start(&d, false);
	(void)count_new(&d, &at);
	publish_undone(&d, 0, 0);
	assert_int_equal(count_new(&d, &at), 2); /* while it is written, and published */
	core_restart(d.core);
	at = 0; /* the journal begins anew */
	assert_int_equal(count_new(&d, &at), NUNITS * 2);
	join_all(&d, 1, true);
	for (uint32_t unit = 0; unit < NUNITS; unit++)
		core_expect(d.core, send_register(&d, unit, 0), 0);
	assert_int_equal(count_new(&d, &at), 0);
	core_end(d.core);
}
