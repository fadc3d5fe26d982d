/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sources.c - publish with a source dtype: what travels is narrowed on the shard, in the order of a
 * stream, behind which it is published.
 *
 * Expected bytes are written down here by hand, value by value; tests/it/test_client_cast.c has all the
 * others.
 */
#include "contract.h"

#include "base/mem.h"

#define WORLD 3u
#define NUMEL 1000u

/* A float32 value, and the bits into which each dtype's conversion turns it. */
struct known {
	float value;
	uint16_t bfloat16, float16;
	uint8_t e4m3, e5m2;
};

static const struct known known[] = {
        {0.0f, 0x0000, 0x0000, 0x00, 0x00},
        {1.0f, 0x3f80, 0x3c00, 0x38, 0x3c},
        {-2.0f, 0xc000, 0xc000, 0xc0, 0xc0},
        {1.00390625f, 0x3f80, 0x3c04, 0x38, 0x3c}, /* a tie in bfloat16: down to even */
        {1.01171875f, 0x3f82, 0x3c0c, 0x38, 0x3c}, /* up to even */
        {1.0625f, 0x3f88, 0x3c40, 0x38, 0x3c},     /* a tie in e4m3: down */
        {1.1875f, 0x3f98, 0x3cc0, 0x3a, 0x3d},     /* up */
        {1e5f, 0x47c3, 0x7c00, 0x7f, 0x7c},        /* too large for the shorter ones */
        {0x1p-10f, 0x3a80, 0x1400, 0x00, 0x14},    /* half of e4m3's smallest */
};
#define NKNOWN (sizeof(known) / sizeof(known[0]))

/* Which value element i of a source has in this round. */
static const struct known *known_at(uint64_t i, unsigned round)
{
	return &known[(i + i / NKNOWN + round) % NKNOWN];
}

static bool on_gpus(void)
{
	const char *name = getenv("ZEROD_TEST_BACKEND");

	return name && strcmp(name, "cuda") == 0;
}

/* Where a rank keeps what it publishes: memory of its own, or of its GPU, which reads it. */
struct masters {
	struct contract_rank *rank;
	zerod_allocation *buffer; /* NULL: its own */
	void *data;
};

static void masters_new(struct contract_rank *rank, uint64_t bytes, struct masters *masters)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);

	*masters = (struct masters){.rank = rank};
	if (bytes > 0 && !on_gpus())
		masters->data = zd_calloc(1, bytes);
	if (bytes == 0 || !on_gpus())
		return;
	options.job = "masters";
	options.device = contract_device_of(rank);
	options.bytes = bytes;
	OK(rank->client, zerod_alloc(rank->client, &options, &masters->buffer, &masters->data));
}

/* All streams that read the memory have passed. */
static void masters_free(struct masters *masters)
{
	if (masters->buffer)
		OK(masters->rank->client, zerod_free(masters->buffer, NULL, 0));
	else
		free(masters->data);
}

/* The rank's own slice, as float32. NULL where it has none. */
static float *slice(struct contract_rank *rank, struct contract_unit *unit, unsigned round)
{
	struct zerod_shard shard = ZEROD_INIT(shard);
	float *values = NULL;

	OK(rank->client, zerod_shard_get(unit->at[rank->number], &shard));
	if (shard.true_numel > 0)
		values = zd_calloc(shard.true_numel, sizeof(*values));
	for (uint64_t i = 0; i < shard.true_numel; i++)
		values[i] = known_at(shard.offset_numel + i, round)->value;
	return values;
}

/* The same where the rank publishes it from. */
static void masters_of(struct contract_rank *rank, struct contract_unit *unit, unsigned round,
                       struct masters *masters)
{
	float *values = slice(rank, unit, round);
	struct zerod_shard shard = ZEROD_INIT(shard);

	OK(rank->client, zerod_shard_get(unit->at[rank->number], &shard));
	masters_new(rank, shard.true_numel * sizeof(*values), masters);
	if (values)
		contract_write(NULL, masters->data, values, shard.true_numel * sizeof(*values));
	free(values);
}

static void expect_element(const uint8_t *bytes, enum zerod_dtype dtype, uint64_t i,
                           const struct known *wanted)
{
	uint16_t half;
	float value;

	if (dtype == ZEROD_FLOAT8_E4M3) {
		assert_int_equal(bytes[i], wanted->e4m3);
	} else if (dtype == ZEROD_FLOAT8_E5M2) {
		assert_int_equal(bytes[i], wanted->e5m2);
	} else if (dtype == ZEROD_FLOAT32) {
		memcpy(&value, bytes + i * sizeof(value), sizeof(value));
		assert_memory_equal(&value, &wanted->value, sizeof(value));
	} else {
		memcpy(&half, bytes + i * sizeof(half), sizeof(half));
		assert_int_equal(half, dtype == ZEROD_FLOAT16 ? wanted->float16 : wanted->bfloat16);
	}
}

/* The whole of it, and zeros behind. */
static void expect_gathered(struct contract_rank *rank, struct contract_unit *unit, enum zerod_dtype dtype,
                            unsigned round)
{
	uint64_t bytes = contract_padded_bytes(unit), real = unit->numel * unit->element_bytes;
	uint8_t *content = zd_calloc(1, bytes);

	contract_read(NULL, content, contract_gather(rank, unit, NULL), bytes);
	contract_release(rank, unit, NULL);
	for (uint64_t i = 0; i < unit->numel; i++)
		expect_element(content, dtype, i, known_at(i, round));
	for (uint64_t i = real; i < bytes; i++)
		assert_int_equal(content[i], 0);
	free(content);
}

/* ---- Conversions --------------------------------------------------------------------------------------- */

static const enum zerod_dtype dtypes[] = {ZEROD_BFLOAT16,    ZEROD_FLOAT16, ZEROD_FLOAT8_E4M3,
                                          ZEROD_FLOAT8_E5M2, ZEROD_FLOAT32, ZEROD_BFLOAT16};
static const char *const names[] = {"bf16", "f16", "e4m3", "e5m2", "f32", "one"};
#define NUNITS (sizeof(dtypes) / sizeof(dtypes[0]))

static void open_units(struct contract **c, struct contract_unit *units)
{
	*c = contract_open(&(struct contract_options){.world_size = WORLD});
	for (unsigned i = 0; i < NUNITS; i++)
		contract_unit_of(*c, names[i], dtypes[i], strcmp(names[i], "one") == 0 ? 1 : NUMEL + i,
		                 &units[i]);
}

static void publish_round(struct contract_rank *rank, struct contract_unit *units, zerod_stream *stream,
                          unsigned round)
{
	struct zerod_source sources[NUNITS];
	struct masters masters[NUNITS];
	zerod_unit *handles[NUNITS];

	for (unsigned i = 0; i < NUNITS; i++) {
		handles[i] = units[i].at[rank->number];
		masters_of(rank, &units[i], round, &masters[i]);
		sources[i] = (struct zerod_source){sizeof(struct zerod_source), handles[i], masters[i].data};
	}
	OK(rank->client, zerod_update_begin(handles, NUNITS, NULL, NULL));
	OK(rank->client, zerod_publish_from(sources, NUNITS, ZEROD_FLOAT32, stream, NULL, NULL));
	if (stream) /* it has run: the thread sanitizer sees no order that the daemon makes */
		contract_sync(rank, stream);
	for (unsigned i = 0; i < NUNITS; i++)
		masters_free(&masters[i]);
}

/* One call for units of all floating dtypes, and one whose shards are empty on all ranks but the first. */
CONTRACT_TEST(test_gathered_bytes_are_the_converted_ones)
{
	struct contract_unit units[NUNITS];
	struct contract *c;

	open_units(&c, units);
	for (unsigned round = 0; round < 3; round++) {
		for (uint32_t r = 0; r < WORLD; r++)
			publish_round(&c->ranks[r], units, round == 1 ? contract_stream(&c->ranks[r]) : NULL,
			              round);
		for (uint32_t r = 0; r < WORLD; r++)
			for (unsigned i = 0; i < NUNITS; i++)
				expect_gathered(&c->ranks[r], &units[i], dtypes[i], round);
	}
	contract_close(c);
}

struct publication {
	struct zerod_source source;
	zerod_stream *stream;
};

static void publish_source(struct contract_rank *rank, void *arg)
{
	const struct publication *publication = arg;

	OK(rank->client,
	   zerod_publish_from(&publication->source, 1, ZEROD_FLOAT32, publication->stream, NULL, NULL));
}

/* The optimizer writes its masters on the stream, and takes its time. */
CONTRACT_TEST(test_conversion_is_in_the_order_of_its_stream)
{
	struct contract *c = contract_open(NULL);
	struct contract_unit unit;
	struct contract_rank *writer = &c->ranks[1];
	struct contract_gate *gate;
	struct contract_task *task;
	struct publication publication;
	struct masters masters[2];
	struct zerod_shard shard = ZEROD_INIT(shard);
	float *next;

	contract_unit_of(c, "w", ZEROD_BFLOAT16, NUMEL, &unit);
	masters_of(&c->ranks[0], &unit, 2, &masters[0]);
	masters_of(writer, &unit, 1, &masters[1]);
	next = slice(writer, &unit, 2);
	OK(writer->client, zerod_shard_get(unit.at[1], &shard));
	publication = (struct publication){{sizeof(struct zerod_source), unit.at[1], masters[1].data},
	                                   contract_stream(writer)};
	OK(writer->client, zerod_update_begin(&unit.at[1], 1, NULL, NULL));
	gate = contract_block(writer, publication.stream);
	contract_write(publication.stream, masters[1].data, next, shard.true_numel * sizeof(*next));
	task = contract_start(writer, publish_source, &publication);
	AWAIT(contract_somebody_waits(c, "the caller's own streams"));
	OK(writer->client, zerod_shard_get(unit.at[1], &shard));
	assert_int_equal(shard.version, 0);
	contract_unblock(gate);
	contract_finish(task);
	publication = (struct publication){{sizeof(struct zerod_source), unit.at[0], masters[0].data}, NULL};
	OK(c->ranks[0].client, zerod_update_begin(&unit.at[0], 1, NULL, NULL));
	publish_source(&c->ranks[0], &publication);
	for (uint32_t r = 0; r < 2; r++)
		expect_gathered(&c->ranks[r], &unit, ZEROD_BFLOAT16, 2);
	masters_free(&masters[0]);
	masters_free(&masters[1]);
	free(next);
	contract_close(c);
}

/* ---- Copies: on every backend -------------------------------------------------------------------------- */

/* From an allocation of the daemon's on any backend, behind what wrote it. */
static void publish_copy(struct contract_rank *rank, struct contract_unit *unit, zerod_stream *stream,
                         unsigned round)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);
	struct zerod_source source = {sizeof(source), unit->at[rank->number], NULL};
	float *values = slice(rank, unit, round);
	struct zerod_shard shard = ZEROD_INIT(shard);
	zerod_allocation *buffer;
	void *data = NULL;

	OK(rank->client, zerod_shard_get(source.unit, &shard));
	options.job = "masters";
	options.device = contract_device_of(rank);
	options.bytes = shard.true_numel * sizeof(*values);
	OK(rank->client, zerod_alloc(rank->client, &options, &buffer, &data));
	contract_write(stream, data, values, options.bytes);
	source.data = data;
	OK(rank->client, zerod_update_begin(&source.unit, 1, NULL, NULL));
	OK(rank->client, zerod_publish_from(&source, 1, ZEROD_FLOAT32, stream, NULL, NULL));
	if (stream) /* as above */
		contract_sync(rank, stream);
	OK(rank->client, zerod_free(buffer, NULL, 0));
	free(values);
}

CONTRACT_TEST(test_equal_dtypes_are_copied)
{
	struct contract *c = contract_open(NULL);
	struct contract_unit unit;

	contract_plain_unit(c, "w", NUMEL, &unit);
	for (unsigned round = 0; round < 2; round++) {
		for (uint32_t r = 0; r < 2; r++)
			publish_copy(&c->ranks[r], &unit, round == 0 ? contract_stream(&c->ranks[r]) : NULL,
			             round);
		for (uint32_t r = 0; r < 2; r++)
			expect_gathered(&c->ranks[r], &unit, ZEROD_FLOAT32, round);
	}
	contract_close(c);
}

/* ---- What is refused ----------------------------------------------------------------------------------- */

/* Nothing was converted: not even for the sources before the one that is wrong. */
static void expect_zeros(struct contract_rank *rank, struct contract_unit *unit)
{
	struct zerod_shard shard = ZEROD_INIT(shard);
	uint8_t bytes[NUMEL * sizeof(float)];

	OK(rank->client, zerod_shard_get(unit->at[rank->number], &shard));
	assert_int_equal(shard.version, 0);
	contract_read(NULL, bytes, shard.data, shard.true_numel * unit->element_bytes);
	for (uint64_t i = 0; i < shard.true_numel * unit->element_bytes; i++)
		assert_int_equal(bytes[i], 0);
}

#define REFUSED(call, status, text)                                                                          \
	do {                                                                                                 \
		FAILS(rank->client, call, status, text);                                                     \
		expect_zeros(rank, &good);                                                                   \
	} while (0)

CONTRACT_TEST(test_bad_sources_convert_nothing)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct contract_unit good, integers;
	struct zerod_source sources[2];
	struct zerod_shard shard = ZEROD_INIT(shard);
	zerod_unit *handles[2];
	float *values;

	contract_plain_unit(c, "good", NUMEL, &good);
	contract_unit_of(c, "integers", ZEROD_INT32, NUMEL, &integers);
	values = slice(rank, &good, 1);
	sources[0] = (struct zerod_source){sizeof(struct zerod_source), handles[0] = good.at[0], values};
	sources[1] = (struct zerod_source){sizeof(struct zerod_source), handles[1] = integers.at[0], values};
	REFUSED(zerod_publish_from(sources, 1, ZEROD_FLOAT32, NULL, NULL, NULL), ZEROD_E_STATE,
	        "unit 'good' is");
	OK(rank->client, zerod_update_begin(handles, 2, NULL, NULL));
	REFUSED(zerod_publish_from(sources, 2, ZEROD_FLOAT32, NULL, NULL, NULL), ZEROD_E_UNSUPPORTED,
	        "unit 'integers' is int32, which float32 is not converted to");
	REFUSED(zerod_publish_from(sources, 1, ZEROD_INT32, NULL, NULL, NULL), ZEROD_E_UNSUPPORTED,
	        "unit 'good' is float32, which int32 is not converted to");
	REFUSED(zerod_publish_from(sources, 1, 0, NULL, NULL, NULL), ZEROD_E_INVALID,
	        "source_dtype 0 is no dtype");
	REFUSED(zerod_publish_from(sources, 1, ZEROD_FLOAT32, NULL, PUBLISH(2), NULL), ZEROD_E_INVALID, NULL);
	sources[1] = sources[0];
	sources[1].data = NULL;
	REFUSED(zerod_publish_from(&sources[1], 1, ZEROD_FLOAT32, NULL, NULL, NULL), ZEROD_E_INVALID,
	        "unit 'good': data is NULL, this rank has ");
	sources[1].data = (char *)values + 1;
	REFUSED(zerod_publish_from(&sources[1], 1, ZEROD_FLOAT32, NULL, NULL, NULL), ZEROD_E_INVALID,
	        "unit 'good': data is not aligned for float32");
	OK(rank->client, zerod_shard_get(good.at[0], &shard));
	sources[1].data = (float *)shard.data + shard.shard_numel - 1;
	REFUSED(zerod_publish_from(&sources[1], 1, ZEROD_FLOAT32, NULL, NULL, NULL), ZEROD_E_INVALID,
	        "unit 'good': data overlaps the shard");
	sources[1].unit = NULL;
	REFUSED(zerod_publish_from(sources, 2, ZEROD_FLOAT32, NULL, NULL, NULL), ZEROD_E_INVALID,
	        "units[1] is NULL");
	OK(rank->client, zerod_publish(handles, 2, NULL, 0, NULL, NULL));
	FAILS(rank->client, zerod_publish_from(sources, 1, ZEROD_FLOAT32, NULL, NULL, NULL), ZEROD_E_STATE,
	      "unit 'good' is not under update");
	free(values);
	contract_close(c);
}

/* The daemon refuses behind the conversion: the update is still open, and can be published again. */
CONTRACT_TEST(test_refused_publish_leaves_the_update_open)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_source source;
	struct contract_unit unit;
	struct masters masters[2];

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish_all(c, &unit);
	for (uint32_t r = 0; r < 2; r++)
		masters_of(&c->ranks[r], &unit, 1, &masters[r]);
	source = (struct zerod_source){sizeof(struct zerod_source), unit.at[0], masters[0].data};
	(void)contract_gather(rank, &unit, NULL);
	OK(rank->client, zerod_update_begin(&unit.at[0], 1, NULL, NULL));
	FAILS(rank->client, zerod_publish_from(&source, 1, ZEROD_FLOAT32, NULL, NULL, NULL), ZEROD_E_BUSY,
	      "unit 'w' is held");
	contract_release(rank, &unit, NULL);
	OK(rank->client, zerod_publish_from(&source, 1, ZEROD_FLOAT32, NULL, NULL, NULL));
	source = (struct zerod_source){sizeof(struct zerod_source), unit.at[1], masters[1].data};
	OK(c->ranks[1].client, zerod_update_begin(&unit.at[1], 1, NULL, NULL));
	OK(c->ranks[1].client, zerod_publish_from(&source, 1, ZEROD_FLOAT32, NULL, NULL, NULL));
	expect_gathered(rank, &unit, ZEROD_FLOAT32, 1);
	masters_free(&masters[0]);
	masters_free(&masters[1]);
	contract_close(c);
}
