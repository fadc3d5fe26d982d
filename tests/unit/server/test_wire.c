/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire.c - what is found in packed messages before these are unpacked. */
#include "base/mem.h"
#include "proto/frame.h"
#include "proto/zerod.pb-c.h"
#include "server/wire.h"
#include "tests/support/test.h"

static uint8_t bytes[ZD_MAX_PACKET_BYTES];

/* ---- Fields of a packet -------------------------------------------------------------------------------- */

static bool count(const char *packed, size_t nbytes, unsigned most, unsigned *count)
{
	return zd_wire_count(zd_wire_of((const uint8_t *)packed, nbytes), most, count);
}

TEST(test_count)
{
	/* Two requests, a number, 32 and 64 bits. */
	static const char fields[] = "\x0a\x02\x08\x05\x0a\x00\x10\x81\x01\x1d\x01\x02\x03\x04\x21\x01\x02"
	                             "\x03\x04\x05\x06\x07\x08";
	static const size_t ends[] = {0, 4, 6, 9, 14, 23};
	unsigned got, next = 0;

	for (size_t nbytes = 0; nbytes < sizeof(fields); nbytes++) {
		bool at_end = nbytes == ends[next];

		assert_int_equal(count(fields, nbytes, 16, &got), at_end);
		assert_int_equal(got, at_end ? next : next - 1);
		next += at_end;
	}
	assert_true(count("\x0a\x00\x0a\x00\x0a\x00\x0b", 7, 2, &got)); /* what is behind is not visited */
	assert_int_equal(got, 3);
	assert_false(count("\x0b\x00", 2, 16, &got)); /* a group */
}

/* ---- Fields of a request ------------------------------------------------------------------------------- */

static bool search(const Zd__Request *request, unsigned most, const ProtobufCFieldDescriptor **zero)
{
	size_t nbytes = zd__request__get_packed_size(request);

	assert_true(nbytes <= sizeof(bytes));
	(void)zd__request__pack(request, bytes);
	return zd_wire_search(zd_wire_of(bytes, nbytes), most, zero);
}

/* Accepted with this number, but not with less. */
static void expect_fields(const Zd__Request *request, unsigned number)
{
	const ProtobufCFieldDescriptor *zero;

	assert_true(search(request, number, &zero));
	assert_null(zero);
	assert_false(search(request, number - 1, &zero));
}

TEST(test_fields)
{
	static const uint64_t units[] = {1, 127, 128, UINT64_MAX, 1, 2, 3, 1u << 20, 9, 10, 11, 12, 1u << 30};
	Zd__Fence fence = ZD__FENCE__INIT, *fences[] = {&fence, &fence, &fence};
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Publish publish = ZD__PUBLISH__INIT;

	request.id = 1;
	expect_fields(&request, 1);
	request.deadline_ms = 1;
	expect_fields(&request, 2);
	request.body_case = ZD__REQUEST__BODY_PUBLISH;
	request.publish = &publish;
	expect_fields(&request, 3);
	publish.units = (uint64_t *)units;
	for (publish.n_units = 1; publish.n_units <= ZD_ARRAY_LEN(units); publish.n_units++)
		expect_fields(&request, 4 + (unsigned)publish.n_units / ZD_WIRE_VALUES);
	publish.n_units = 0;
	publish.fences = fences;
	publish.n_fences = 3;
	expect_fields(&request, 6);
	fence.value = 1;
	expect_fields(&request, 9);
}

/* The registration of a unit with as many views as there may be. */
TEST(test_largest_requests)
{
	uint64_t shape[ZD_MAX_DIMS] = {2, 2, 2, 2, 2, 2, 2, UINT64_MAX};
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__UnitRegister body = ZD__UNIT_REGISTER__INIT;
	Zd__View view = ZD__VIEW__INIT, *views[ZD_MAX_VIEWS];
	const ProtobufCFieldDescriptor *zero;

	view.name = (char *)"view";
	view.offset_numel = 1;
	view.shape = shape;
	view.n_shape = ZD_MAX_DIMS;
	for (size_t i = 0; i < ZD_MAX_VIEWS; i++)
		views[i] = &view;
	request.id = request.deadline_ms = 1;
	request.body_case = ZD__REQUEST__BODY_UNIT_REGISTER;
	request.unit_register = &body;
	body = (Zd__UnitRegister){body.base, 1,    (char *)"unit", 1,    1,    ZD_MAX_VIEWS, views,
	                          1,         true, true,           true, true, true,         true};
	assert_true(search(&request, ZD_MAX_FIELDS, &zero));
}

/* Also with the field "99" between them, which is unknown. */
TEST(test_two_bodies)
{
	static const char one[] = "\x08\x01\xc2\x02\x00\x9a\x06\x00",
	                  two[] = "\x08\x01\xc2\x02\x00\x9a\x06\x00\xca\x02\x00";
	const ProtobufCFieldDescriptor *zero;

	assert_true(zd_wire_search(zd_wire_of((const uint8_t *)one, sizeof(one) - 1), 4, &zero));
	assert_false(zd_wire_search(zd_wire_of((const uint8_t *)two, sizeof(two) - 1), 9, &zero));
}

/* So a second message that is not repeated is a second body. */
TEST(test_bodies_have_no_single_messages)
{
	const ProtobufCMessageDescriptor *request = &zd__request__descriptor;

	for (unsigned i = 0; i < request->n_fields; i++) {
		const ProtobufCMessageDescriptor *body = request->fields[i].descriptor;

		if (request->fields[i].type != PROTOBUF_C_TYPE_MESSAGE)
			continue;
		for (unsigned k = 0; k < body->n_fields; k++)
			assert_false(body->fields[k].type == PROTOBUF_C_TYPE_MESSAGE &&
			             body->fields[k].label != PROTOBUF_C_LABEL_REPEATED);
	}
}

TEST(test_zero_bytes)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__UnitRegister body = ZD__UNIT_REGISTER__INIT;
	Zd__View first = ZD__VIEW__INIT, second = ZD__VIEW__INIT, *views[] = {&first, &second};
	const ProtobufCFieldDescriptor *zero;
	size_t nbytes;
	uint8_t *at;

	request.id = 1;
	request.body_case = ZD__REQUEST__BODY_UNIT_REGISTER;
	request.unit_register = &body;
	body.name = (char *)"unit";
	body.views = views;
	body.n_views = 2;
	first.name = (char *)"one";
	second.name = (char *)"a?b";
	assert_true(search(&request, 64, &zero));
	assert_null(zero);
	nbytes = zd__request__get_packed_size(&request);
	at = memchr(bytes, '?', nbytes);
	assert_non_null(at);
	*at = '\0';
	assert_true(zd_wire_search(zd_wire_of(bytes, nbytes), 64, &zero));
	assert_ptr_equal(zero,
	                 protobuf_c_message_descriptor_get_field_by_name(&zd__view__descriptor, "name"));
}

/* ---- The memory of what is accepted -------------------------------------------------------------------- */

/* A request of one field over and over, as often as is accepted. `body_field` 0: no body. */
static void check_memory(unsigned body_field, const char *field, size_t field_bytes)
{
	const ProtobufCFieldDescriptor *zero;
	struct zd_arena arena;
	size_t head = 0, nbytes = (ZD_MAX_FIELDS - 2) * field_bytes;

	if (body_field) { /* a number of two bytes, and a length of three */
		bytes[head++] = (uint8_t)(body_field << 3 | 2 | 0x80);
		bytes[head++] = (uint8_t)(body_field >> 4);
		bytes[head++] = (uint8_t)(nbytes | 0x80);
		bytes[head++] = (uint8_t)(nbytes >> 7 | 0x80);
		bytes[head++] = (uint8_t)(nbytes >> 14);
	}
	assert_true(head + nbytes <= sizeof(bytes));
	for (size_t i = 0; i < nbytes; i++)
		bytes[head + i] = (uint8_t)field[i % field_bytes];
	assert_true(zd_wire_search(zd_wire_of(bytes, head + nbytes), ZD_MAX_FIELDS, &zero));
	zd_arena_init(&arena, 1u << 20);
	assert_non_null(zd__request__unpack(&arena.allocator, head + nbytes, bytes));
	assert_null(arena.spill);
	zd_arena_deinit(&arena);
}

TEST(test_memory)
{
	check_memory(0, "\x9a\x06", 3); /* unknown fields */
	check_memory(0, "\x08\x01", 2);
	check_memory(ZD__REQUEST__BODY_UNIT_REGISTER, "\x2a", 2); /* empty views */
	check_memory(ZD__REQUEST__BODY_UNIT_REGISTER,
	             "\x12\x0d"
	             "a unit's name",
	             15);
	check_memory(ZD__REQUEST__BODY_PUBLISH, "\x12", 2);     /* empty fences */
	check_memory(ZD__REQUEST__BODY_PUBLISH, "\x08\x01", 2); /* units, not packed */
	check_memory(ZD__REQUEST__BODY_PUBLISH, "\x0a", 2);     /* empty lists of units */
}
