/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_zeroctl_waits.c - zeroctl says why something is still there, and what it waits for.
 */
#include "proto/limits.h"
#include "tests/it/scope_scene.h"
#include "tests/it/zeroctl_scene.h"

#include <pthread.h>

static const zerod_scope none;

static int setup(void **state)
{
	(void)state;
	scene_setup("waits", 1); /* else a rank that is alone gathers no copy */
	return 0;
}

#define SETUP_TEST(name) TEST_DEFINE(name, void, , name(), setup, scene_teardown)

static bool table_has(const char *verb, const char *text)
{
	struct program program = zeroctl_run(daemon_.socket_path, verb);
	bool has = program.status == 0 && strstr(program.out_text, text);

	program_free(&program);
	return has;
}

/* Looks again until the verb's table has the text. */
static void await_table(const char *verb, const char *text)
{
	long until_ms = program_now_ms() + DEADLINE_MS;

	while (!table_has(verb, text))
		if (program_now_ms() >= until_ms)
			fail_msg("zeroctl %s shows nothing of \"%s\"", verb, text);
}

/* A unit whose shard nobody has written yet. */
static zerod_unit *unpublished_unit(void)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	zerod_unit *unit;

	options.name = "unpublished";
	options.dtype = ZEROD_UINT8;
	options.numel = UNIT_BYTES;
	assert_status(me.client, zerod_unit_register(me.group, &options, &unit), ZEROD_OK);
	return unit;
}

static void publish(zerod_unit *unit)
{
	assert_status(me.client, zerod_update_begin(&unit, 1, NULL, NULL), ZEROD_OK);
	assert_status(me.client, zerod_publish(&unit, 1, NULL, 0, NULL, NULL), ZEROD_OK);
}

/* ---- Gathers ------------------------------------------------------------------------------------------- */

SETUP_TEST(waiting_gather_says_for_whom)
{
	zerod_unit *unit = unpublished_unit();
	zerod_ticket ticket;

	assert_status(me.client, zerod_gather_begin(unit, NULL, &ticket), ZEROD_OK);
	await_table("buffers", "WAITING");
	await_table("buffers", "rank 0 to publish version 1 of unit 'unpublished' (has 0)");
	await_table("sessions", "gather: rank 0 to publish version 1 of unit 'unpublished' (has 0)");
	publish(unit);
	assert_status(me.client, zerod_wait(me.client, ticket, NULL, NULL), ZEROD_OK);
	await_table("buffers", "AVAILABLE");
	assert_false(table_has("buffers", "WAITING"));
}

SETUP_TEST(released_buffer_says_whose_streams_read_it)
{
	struct gated first, second;
	zerod_stream *streams[2];
	void *data;

	assert_status(me.client, zerod_gather(a, NULL, NULL, &data), ZEROD_OK);
	assert_status(me.client, zerod_gather(a, NULL, NULL, &data), ZEROD_OK);
	gated_open(&me, &first, data);
	gated_open(&me, &second, data);
	streams[0] = first.stream;
	streams[1] = second.stream;
	assert_status(me.client, zerod_release(a, streams, 2, NULL, NULL), ZEROD_OK);
	assert_status(me.client, zerod_release(a, streams, 1, NULL, NULL), ZEROD_OK);
	await_table("buffers", "QUARANTINED");
	await_table("buffers", "streams of 2 releases");
	gated_finish(&me, &first, 1);
	await_table("buffers", "streams of 1 release");
	gated_finish(&me, &second, 1);
}

SETUP_TEST(persistence_keeps_what_nobody_holds)
{
	json_t *object;
	const json_t *row;

	assert_status(me.client, zerod_unit_set_persistent(b, 1), ZEROD_OK);
	assert_status(me.client, zerod_gather(b, NULL, NULL, NULL), ZEROD_OK);
	assert_status(me.client, zerod_release(b, NULL, 0, NULL, NULL), ZEROD_OK);
	object = zeroctl_listing(daemon_.socket_path, "buffers", "buffers");
	row = row_where(object, "unit", "b");
	assert_true(json_is_true(json_object_get(row, "persistent")));
	assert_int_equal(json_array_size(json_object_get(row, "holders")), 0);
	json_decref(object);
	assert_true(table_has("buffers", "persistent"));
}

/* ---- Scopes and contexts ------------------------------------------------------------------------------- */

struct context {
	zerod_unit *units[2];
	zerod_scope scope;
	int status;
};

static void *begin_context(void *arg)
{
	struct context *context = arg;

	context->status = zerod_context_begin(context->units, 2, NULL, &context->scope);
	return NULL;
}

/* Holders of every kind at once, each with its state. */
SETUP_TEST(scopes_show_their_state)
{
	zerod_scope outer = forward(&me, none), inner = forward(&me, outer), claim = forward(&me, outer);
	json_t *object;
	char tag[32];

	(void)touch(&me, a, inner);
	(void)touch(&me, b, claim);
	assert_status(me.client, zerod_forward_end(me.client, claim, 1, NULL, 0, NULL), ZEROD_OK);
	object = zeroctl_listing(daemon_.socket_path, "scopes", "scopes");
	assert_int_equal(json_array_size(json_object_get(object, "rows")), 3);
	snprintf(tag, sizeof(tag), "@scope %llu", ZD_ID_NUMBER(inner.id));
	assert_string_equal(json_string_value(json_object_get(row_where(object, "tag", tag), "state")),
	                    "OPEN");
	assert_int_equal(integer(row_where(object, "tag", tag), "parent"), ZD_ID_NUMBER(outer.id));
	assert_int_equal(integer(row_where(object, "tag", tag), "bytes"), UNIT_BYTES);
	snprintf(tag, sizeof(tag), "@claim %llu", ZD_ID_NUMBER(claim.id));
	assert_string_equal(json_string_value(json_object_get(row_where(object, "tag", tag), "state")),
	                    "CLAIMED");
	json_decref(object);
}

/* A context holds what it has while it waits for the rest, and says for what. */
SETUP_TEST(incomplete_context_says_what_it_waits_for)
{
	struct context context = {.units = {a, unpublished_unit()}};
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, begin_context, &context), 0);
	await_table("scopes", "GATHERING");
	await_table("sessions", "context_begin: rank 0 to publish version 1 of unit 'unpublished' (has 0)");
	publish(context.units[1]);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_status(me.client, context.status, ZEROD_OK);
	assert_false(table_has("scopes", "GATHERING"));
	assert_true(table_has("scopes", "@context"));
	assert_status(me.client, zerod_context_end(me.client, context.scope, NULL, 0, NULL), ZEROD_OK);
	assert_false(table_has("scopes", "@context"));
}

/* ---- Gradients ----------------------------------------------------------------------------------------- */

SETUP_TEST(gradient_says_which_streams_still_write_it)
{
	struct zerod_backward_options backward = ZEROD_INIT(backward);
	struct zerod_bucket_options options = ZEROD_INIT(options);
	struct gated first, second;
	zerod_stream *streams[2];
	struct zerod_entry entry = ZEROD_INIT(entry);
	zerod_bucket *bucket;

	options.dtype = ZEROD_FLOAT32;
	options.slot_bytes = 1 << 20;
	assert_status(me.client, zerod_bucket_create(me.group, &options, &bucket), ZEROD_OK);
	assert_status(me.client, zerod_backward_begin(me.group, &backward), ZEROD_OK);
	assert_status(me.client, zerod_bucket_reserve(bucket, a, NULL, &entry), ZEROD_OK);
	assert_true(table_has("buckets", "unit 'a': not submitted yet"));
	memset(entry.data, 0, UNIT_BYTES * sizeof(float));
	gated_open(&me, &first, entry.data);
	gated_open(&me, &second, entry.data);
	streams[0] = first.stream;
	streams[1] = second.stream;
	assert_status(me.client, zerod_bucket_submit(bucket, entry.id, streams, 2, NULL, NULL), ZEROD_OK);
	await_table("buckets", "unit 'a': 2 of rank 0's 2 streams, timeline 0 first");
	gated_finish(&me, &first, 0);
	await_table("buckets", "unit 'a': 1 of rank 0's 2 streams, timeline 1 first");
	gated_finish(&me, &second, 0);
	assert_status(me.client, zerod_backward_end(me.group, NULL, NULL), ZEROD_OK);
	assert_false(table_has("buckets", "streams"));
}

int main(void)
{
	return test_run(scene_start, scene_stop);
}
