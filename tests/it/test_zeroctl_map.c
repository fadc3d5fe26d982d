/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_zeroctl_map.c - zeroctl shows what lies where in an arena, and trim says why it has freed nothing.
 */
#include "tests/it/scope_scene.h"
#include "tests/it/zeroctl_scene.h"

#define ARENA_BYTES (64u << 20)

static int setup(void **state)
{
	(void)state;
	scene_setup("maps", 1); /* else a rank that is alone gathers no copy */
	return 0;
}

#define SETUP_TEST(name) TEST_DEFINE(name, void, , name(), setup, scene_teardown)

/* Sums over the rows of the map. */
struct sums {
	json_int_t bytes, used_bytes, largest_hole_bytes; /* of the segment whose blocks are being added */
	json_int_t end;
	unsigned nblocks;
};

static void check_segment(const json_t *segment, const struct sums *sums)
{
	if (!segment)
		return;
	assert_int_equal(sums->end, integer(segment, "bytes"));
	assert_int_equal(sums->used_bytes, integer(segment, "used_bytes"));
	assert_int_equal(sums->largest_hole_bytes, integer(segment, "largest_hole_bytes"));
}

static void add_block(const json_t *segment, const json_t *row, struct sums *sums)
{
	assert_non_null(segment);
	assert_int_equal(integer(row, "segment"), integer(segment, "segment"));
	assert_int_equal(integer(row, "offset"), sums->end);
	sums->end += integer(row, "bytes");
	if (strcmp(json_string_value(json_object_get(row, "kind")), "block") == 0) {
		sums->used_bytes += integer(row, "bytes");
		sums->nblocks++;
	} else if (integer(row, "bytes") > sums->largest_hole_bytes) {
		sums->largest_hole_bytes = integer(row, "bytes");
	}
}

/* Returns the number of blocks. */
static unsigned check_map(void)
{
	json_t *object = zeroctl_listing(daemon_.socket_path, "map --device 0", "map");
	const json_t *segment = NULL;
	struct sums sums = {.end = 0};
	json_int_t arena_bytes = 0;
	size_t i;
	json_t *row;

	json_array_foreach(json_object_get(object, "rows"), i, row)
	{
		const char *kind = json_string_value(json_object_get(row, "kind"));
		bool is_segment = strcmp(kind, "segment") == 0;

		assert_int_equal(integer(row, "device"), 0);
		if (!is_segment && strcmp(kind, "unused") != 0) {
			add_block(segment, row, &sums);
			continue;
		}
		check_segment(segment, &sums);
		arena_bytes += integer(row, "bytes");
		segment = is_segment ? row : NULL;
		sums = (struct sums){.nblocks = sums.nblocks};
	}
	assert_null(segment); /* what is in no segment comes last */
	assert_int_equal(arena_bytes, ARENA_BYTES);
	json_decref(object);
	return sums.nblocks;
}

SETUP_TEST(map_adds_up_to_the_arena)
{
	void *data[40];

	assert_int_equal(check_map(), 2); /* two shards */
	assert_status(me.client, zerod_gather(a, NULL, NULL, NULL), ZEROD_OK);
	assert_int_equal(check_map(), 3);
	for (unsigned i = 0; i < 40; i++) {
		struct zerod_alloc_options options = ZEROD_INIT(options);
		zerod_allocation *allocation;

		options.job = "maps";
		options.bytes = 5000ull * (i + 1);
		assert_status(me.client, zerod_alloc(me.client, &options, &allocation, &data[i]), ZEROD_OK);
		if (i % 2)
			assert_status(me.client, zerod_free(allocation, NULL, 0), ZEROD_OK);
	}
	assert_int_equal(check_map(), 23);
}

static void expect_shown(const char *line, const char *text)
{
	struct program program = zeroctl_run(daemon_.socket_path, line);

	assert_string_equal(program.err_text, "");
	if (!strstr(program.out_text, text))
		fail_msg("zeroctl %s shows nothing of \"%s\": %s", line, text, program.out_text);
	program_free(&program);
}

SETUP_TEST(blocks_have_owners_and_pins)
{
	const char *const map = "map --raw --no-headings --columns kind,purpose,state,owner,pins";
	struct gated reading;
	zerod_stream *stream;
	void *data;

	assert_status(me.client, zerod_gather(a, NULL, NULL, &data), ZEROD_OK);
	expect_shown(map, "block shard IDLE maps/world/a@0 -\n");
	expect_shown(map, "block gathered AVAILABLE maps/world/a@0 1\\x20lease\n");
	expect_shown(map, "segment shards READY maps shard\\xc3\\x972\n");
	gated_open(&me, &reading, data);
	stream = reading.stream;
	assert_status(me.client, zerod_release(a, &stream, 1, NULL, NULL), ZEROD_OK);
	expect_shown(map, "block gathered QUARANTINED maps/world/a@0 streams\\x20of\\x201\\x20release\n");
	expect_shown(map, "segment gathers READY maps gathered\\xc3\\x971\\x20(1\\x20in\\x20quarantine)\n");
	gated_finish(&me, &reading, 1);
}

SETUP_TEST(a_device_that_does_not_exist_is_not_found)
{
	struct program program = zeroctl_run(daemon_.socket_path, "map --device 2");

	assert_int_equal(program.status, 3);
	assert_string_equal(program.err_text, "zeroctl: NOT_FOUND: no device 2; there are 2\n");
	assert_string_equal(program.out_text, "");
	program_free(&program);
}

SETUP_TEST(trim_says_why_it_freed_nothing)
{
	assert_status(me.client, zerod_gather(a, NULL, NULL, NULL), ZEROD_OK);
	expect_shown("trim --device 0", " of job 'maps' has shard\u00d72; segment ");
	expect_shown("trim --device 0", " of job 'maps' has gathered\u00d71");
	expect_shown("trim --device 1", "no memory of it is in segments");
	expect_shown("trim --device 0 --keep 64M", "segments have at most --keep bytes");
	assert_status(me.client, zerod_release(a, NULL, 0, NULL, NULL), ZEROD_OK);
}

int main(void)
{
	return test_run(scene_start, scene_stop);
}
