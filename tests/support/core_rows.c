/* SPDX-License-Identifier: Apache-2.0 */
/* core_rows.c - what a driven engine lists: rows copied, with their arrays, for a test to look at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core_driver.h"

struct rows {
	struct core_row *rows;
	uint32_t n, room;
};

static void copy_arrays(struct core_row *to, const struct zd_row *row)
{
	if (row->table == ZD_TABLE_SESSIONS) {
		for (uint32_t i = 0; i < row->u.session.nwaits && i < CORE_ROW_ITEMS; i++)
			(void)snprintf(to->waits[i], sizeof(to->waits[i]), "%s", row->u.session.waits[i]);
		to->row.u.session.waits = NULL;
	} else if (row->table == ZD_TABLE_BUCKETS) {
		for (uint32_t i = 0; i < row->u.bucket.nwaits && i < CORE_ROW_ITEMS; i++)
			(void)snprintf(to->waits[i], sizeof(to->waits[i]), "%s", row->u.bucket.waits[i]);
		for (uint32_t i = 0; i < row->u.bucket.nslots && i < CORE_ROW_ITEMS; i++)
			(void)snprintf(to->slots[i], sizeof(to->slots[i]), "%s", row->u.bucket.slots[i]);
		to->row.u.bucket.waits = to->row.u.bucket.slots = NULL;
	} else if (row->table == ZD_TABLE_BUFFERS) {
		(void)snprintf(to->waits[0], sizeof(to->waits[0]), "%s", row->u.buffer.waits_for);
		for (uint32_t i = 0; i < row->u.buffer.nholders && i < CORE_ROW_ITEMS; i++) {
			to->holders[i] = row->u.buffer.holders[i];
			(void)snprintf(to->tags[i], sizeof(to->tags[i]), "%s", to->holders[i].tag);
			to->holders[i].tag = NULL;
		}
		to->row.u.buffer.holders = NULL;
		to->row.u.buffer.waits_for = NULL;
	} else if (row->table == ZD_TABLE_GROUPS) {
		for (uint32_t i = 0; i < row->u.group.nmembers && i < CORE_ROW_ITEMS; i++)
			to->members[i] = row->u.group.members[i];
		to->row.u.group.members = NULL;
	}
}

static bool keep_row(const struct zd_row *row, void *arg)
{
	struct rows *rows = arg;
	if (rows->n++ >= rows->room)
		return true;
	struct core_row *to = &rows->rows[rows->n - 1];
	memset(to, 0, sizeof(*to));
	to->row = *row;
	(void)snprintf(to->job, sizeof(to->job), "%s", row->job);
	(void)snprintf(to->group, sizeof(to->group), "%s", row->group);
	(void)snprintf(to->name, sizeof(to->name), "%s", row->name);
	(void)snprintf(to->state, sizeof(to->state), "%s", row->state);
	to->row.job = to->row.group = to->row.name = to->row.state = NULL;
	copy_arrays(to, row);
	return true;
}

uint32_t core_rows_for(struct core_driver *core, uint64_t session, enum zd_table table, const char *job,
                       struct core_row *rows, uint32_t room)
{
	struct rows out = {rows, 0, room};
	struct zd_list_query query = {.table = table, .session = session, .job = job};
	assert_int_equal(zd_engine_list(core_engine(core), &query, keep_row, &out), 0);
	return out.n;
}

uint32_t core_rows(struct core_driver *core, enum zd_table table, struct core_row *rows, uint32_t room)
{
	return core_rows_for(core, 0, table, NULL, rows, room);
}

void core_row(struct core_driver *core, enum zd_table table, uint64_t id, struct core_row *row)
{
	struct rows out = {row, 0, 1};
	struct zd_list_query query = {.table = table, .cursor = id - 1};
	assert_int_equal(zd_engine_list(core_engine(core), &query, keep_row, &out), 0);
	assert_true(out.n > 0);
	assert_true(row->row.id == id);
}

struct zd_usage core_usage(struct core_driver *core)
{
	struct zd_engine_totals totals;
	zd_engine_totals(core_engine(core), &totals);
	return totals.usage;
}

uint64_t core_quarantine(struct core_driver *core, uint32_t device)
{
	struct core_row row;
	core_row(core, ZD_TABLE_DEVICES, device + 1, &row);
	return row.row.u.device.quarantine_bytes;
}
