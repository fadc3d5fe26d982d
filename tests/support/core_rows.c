/* SPDX-License-Identifier: Apache-2.0 */
/* core_rows.c - what a driven engine lists: copies of rows for a test to look at. */
#include "core_driver_internal.h"

struct rows {
	struct core_driver *core;
	struct core_row *rows;
	uint32_t n, room;
};

/* The message's text of the first of these names; "": it has none. */
static char *text_of(const ProtobufCMessage *message, const char *const names[3])
{
	for (size_t i = 0; i < 3 && names[i]; i++) {
		const ProtobufCFieldDescriptor *field =
		        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, names[i]);
		if (field)
			return *(char **)((char *)message + field->offset);
	}
	return (char *)"";
}

static bool keep_row(uint64_t id, const Zd__Row *row, void *arg)
{
	static const char *const names[4][3] = {
	        {"job", "name"}, {"group", "name"}, {"name", "unit", "tag"}, {"state"}};
	struct rows *rows = arg;
	if (rows->n++ >= rows->room)
		return true;
	uint8_t *bytes = zd_arena_alloc(&rows->core->rows, zd__row__get_packed_size(row));
	size_t nbytes = zd__row__pack(row, bytes);
	Zd__Row *copy = zd__row__unpack(&rows->core->rows.allocator, nbytes, bytes);
	const ProtobufCMessage *message = (ProtobufCMessage *)copy->device; /* whichever it is */
	rows->rows[rows->n - 1] = (struct core_row){.id = id,
	                                            .row = copy,
	                                            .job = text_of(message, names[0]),
	                                            .group = text_of(message, names[1]),
	                                            .name = text_of(message, names[2]),
	                                            .state = text_of(message, names[3])};
	return true;
}

uint32_t core_rows_for(struct core_driver *core, uint64_t session, Zd__Table table, const char *job,
                       struct core_row *rows, uint32_t room)
{
	struct rows out = {core, rows, 0, room};
	Zd__List query = {.table = table, .job = (char *)job};
	assert_int_equal(zd_engine_list(core_engine(core), session, &query, 0, keep_row, &out), 0);
	return out.n;
}

uint32_t core_rows(struct core_driver *core, Zd__Table table, struct core_row *rows, uint32_t room)
{
	return core_rows_for(core, 0, table, NULL, rows, room);
}

void core_row(struct core_driver *core, Zd__Table table, uint64_t id, struct core_row *row)
{
	struct rows out = {core, row, 0, 1};
	Zd__List query = {.table = table, .cursor = id - 1};
	assert_int_equal(zd_engine_list(core_engine(core), 0, &query, 0, keep_row, &out), 0);
	assert_true(out.n > 0);
	assert_true(row->id == id);
}

void core_expect_same(const void *one, const void *other)
{
	const ProtobufCMessage *messages[] = {one, other};
	uint8_t bytes[2][4096];
	size_t nbytes[2];
	for (int i = 0; i < 2; i++) {
		assert_true(protobuf_c_message_get_packed_size(messages[i]) <= sizeof(bytes[i]));
		nbytes[i] = protobuf_c_message_pack(messages[i], bytes[i]);
	}
	assert_int_equal(nbytes[0], nbytes[1]);
	assert_memory_equal(bytes[0], bytes[1], nbytes[0]);
}

Zd__Usage core_usage(struct core_driver *core)
{
	struct zd_engine_totals totals;
	zd_engine_totals(core_engine(core), &totals);
	return totals.usage;
}

uint64_t core_quarantine(struct core_driver *core, uint32_t device)
{
	struct core_row row;
	core_row(core, ZD__TABLE__DEVICES, device + 1, &row);
	return row.row->device->quarantine_bytes;
}

uint64_t core_copied_bytes(struct core_driver *core, uint32_t device)
{
	uint64_t bytes, busy_ns;
	zd_engine_copies(core_engine(core), device, &bytes, &busy_ns);
	return bytes;
}
