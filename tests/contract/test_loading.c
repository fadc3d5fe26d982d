/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_loading.c - weights that one rank has read, on the shards of all: by zerod_unit_load(), byte by byte;
 * and as a reduction that one rank alone contributes to.
 */
#include "contract_reduce.h"

#include <stdio.h>

#include "base/mem.h"

#define NUMEL  1000u
#define RANKS  4u
#define READER 2u

struct loading {
	struct contract *c;
	struct contract_unit unit;
	zerod_bucket *bucket; /* the reader's */
};

/* The rank's slice of what came becomes its shard. */
static void take_slice(struct contract_rank *rank, struct contract_unit *unit)
{
	zerod_unit *handle = unit->at[rank->number];
	struct zerod_target target = ZEROD_INIT(target);
	struct zerod_source source = {.struct_size = sizeof(source), .unit = handle};

	(void)contract_step(rank);
	OK(rank->client, zerod_target_get(handle, &target));
	source.data = target.data;
	OK(rank->client, zerod_update_begin(&handle, 1, NULL, NULL));
	OK(rank->client, zerod_publish_from(&source, 1, target.dtype, NULL, NULL, NULL));
	contract_step_end(rank);
}

static void expect_weights(struct contract_rank *rank, const struct contract_unit *unit)
{
	float *weights = zd_calloc(NUMEL, sizeof(*weights));
	zerod_unit *handle = unit->at[rank->number];
	void *data;
	bool right = true;

	OK(rank->client, zerod_gather(handle, NULL, NULL, &data));
	contract_read(NULL, weights, data, NUMEL * sizeof(*weights));
	for (uint32_t i = 0; i < NUMEL; i++)
		right &= weights[i] == contract_gradient(READER, i) * 0.5f;
	CHECK(right);
	free(weights);
	OK(rank->client, zerod_release(handle, NULL, 0, NULL, NULL));
}

static void load(struct contract_rank *rank, void *arg)
{
	struct loading *loading = arg;
	struct zerod_reduce_options options = ZEROD_INIT(options);

	options.flags = ZEROD_REDUCE_OVERWRITE;
	contract_backward(rank, 3, true);
	if (rank->number == READER)
		contract_reduce(rank, loading->bucket, &loading->unit, 0.5f, &options);
	else
		OK(rank->client, zerod_reduce_skip(loading->unit.at[rank->number], NULL, NULL));
	contract_backward_end(rank);
	take_slice(rank, &loading->unit);
	expect_weights(rank, &loading->unit);
}

CONTRACT_TEST(test_one_rank_loads_for_all)
{
	struct loading loading;

	loading.c = contract_open(&(struct contract_options){.world_size = RANKS, .devices = 2});
	contract_plain_unit(loading.c, "w", NUMEL, &loading.unit);
	loading.bucket = contract_bucket(&loading.c->ranks[READER], 65536, 1);
	contract_run(loading.c, load, &loading);
	contract_close(loading.c);
}

/* ---- zerod_unit_load() --------------------------------------------------------------------------------- */

#define PRIME 1009u
#define FEW   3u /* elements, fewer than ranks */

/* Memory of the reader's with known bytes: the process' own, or its GPU's. */
struct weights {
	struct contract_rank *rank;
	zerod_allocation *buffer; /* NULL: the process' own */
	void *data;
	uint8_t *bytes; /* the same, for the CPU */
	size_t nbytes;
};

static bool on_gpus(void)
{
	const char *name = getenv("ZEROD_TEST_BACKEND");

	return name && strcmp(name, "cuda") == 0;
}

/* Any bits. As floating point the first element is -0.0, the second a nan with a payload. */
static void fill_bytes(uint8_t *bytes, size_t nbytes, size_t itemsize, uint32_t seed)
{
	for (size_t i = 0; i < nbytes; i++) {
		seed = seed * 1664525u + 1013904223u;
		bytes[i] = (uint8_t)(seed >> 24);
	}
	memset(bytes, 0, itemsize);
	bytes[itemsize - 1] = 0x80;
	memset(bytes + itemsize, 0xff, itemsize);
	bytes[itemsize] = itemsize > 1 ? 0xa5 : 0x7f;
}

static void weights_new(struct contract_rank *rank, const struct contract_unit *unit, uint32_t seed,
                        struct weights *weights)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);

	*weights = (struct weights){.rank = rank, .nbytes = unit->numel * unit->element_bytes};
	weights->bytes = zd_calloc(1, weights->nbytes);
	fill_bytes(weights->bytes, weights->nbytes, unit->element_bytes, seed);
	options.job = "checkpoint";
	options.device = contract_device_of(rank);
	options.bytes = weights->nbytes;
	if (on_gpus())
		OK(rank->client, zerod_alloc(rank->client, &options, &weights->buffer, &weights->data));
	else
		weights->data = zd_calloc(1, weights->nbytes);
}

static void weights_free(struct weights *weights)
{
	if (weights->buffer)
		OK(weights->rank->client, zerod_free(weights->buffer, NULL, 0));
	else
		free(weights->data);
	free(weights->bytes);
}

static void update_begin(struct contract_rank *rank, const struct contract_unit *unit)
{
	OK(rank->client, zerod_update_begin(&unit->at[rank->number], 1, NULL, NULL));
}

/* Publishes, and finds the reader's bytes in what it gathers, with zeros behind them. */
static void expect_loaded(struct contract_rank *rank, const struct contract_unit *unit,
                          const struct weights *weights)
{
	zerod_unit *handle = unit->at[rank->number];
	size_t padded_bytes = contract_padded_bytes(unit);
	uint8_t *bytes = zd_calloc(1, padded_bytes);
	uint8_t *wanted = zd_calloc(1, padded_bytes);
	void *data;

	OK(rank->client, zerod_publish(&handle, 1, NULL, 0, NULL, NULL));
	OK(rank->client, zerod_gather(handle, NULL, NULL, &data));
	contract_read(NULL, bytes, data, padded_bytes);
	memcpy(wanted, weights->bytes, weights->nbytes);
	CHECK_BYTES(memcmp(bytes, wanted, padded_bytes) == 0);
	OK(rank->client, zerod_release(handle, NULL, 0, NULL, NULL));
	free(wanted);
	free(bytes);
}

struct transfer {
	const struct contract_unit *unit;
	struct weights *weights;
	struct weights *others; /* those of ranks that are not the reader; NULL: the same */
	uint32_t sources;       /* bit mask of ranks that give data */
	uint32_t absent;        /* likewise: do not call */
	uint32_t deadline_ms;   /* 0: the default */
	int status;             /* wanted of those that call, with `text` */
	const char *text;
};

static void call_load(struct contract_rank *rank, void *arg)
{
	const struct transfer *transfer = arg;
	struct zerod_wait_options options = ZEROD_INIT(options);
	uint32_t bit = 1u << rank->number;
	const struct weights *weights = transfer->weights;

	if (transfer->others && rank->number != READER)
		weights = transfer->others;
	options.deadline_ms = transfer->deadline_ms;
	if (transfer->absent & bit)
		return;
	contract_expect(rank->client,
	                zerod_unit_load(transfer->unit->at[rank->number],
	                                transfer->sources & bit ? weights->data : NULL, NULL, &options, NULL),
	                transfer->status, transfer->text, "zerod_unit_load()", __LINE__);
}

static void load_one(struct contract_rank *rank, void *arg)
{
	const struct transfer *transfer = arg;

	update_begin(rank, transfer->unit);
	if (transfer->sources & 1u << rank->number)
		contract_write(NULL, transfer->weights->data, transfer->weights->bytes,
		               transfer->weights->nbytes);
	call_load(rank, arg);
	expect_loaded(rank, transfer->unit, transfer->weights);
}

CONTRACT_TEST(test_every_dtype_bit_by_bit)
{
	static const uint64_t sizes[] = {PRIME, FEW, 40000};
	struct contract *c;

	contract_needs(CONTRACT_ONE_SIDED);
	c = contract_open(&(struct contract_options){.world_size = RANKS, .devices = 2});
	for (int dtype = 0; dtype < 64; dtype++) {
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && zerod_dtype_bytes(dtype); i++) {
			char name[CONTRACT_NAME];
			struct contract_unit unit = {.numel = 0};
			struct weights weights;
			struct transfer transfer = {
			        .unit = &unit, .weights = &weights, .sources = 1u << (dtype % RANKS)};

			(void)snprintf(name, sizeof(name), "%s of %u", zerod_dtype_name(dtype),
			               (unsigned)sizes[i]);
			contract_unit_of(c, name, dtype, sizes[i], &unit);
			weights_new(&c->ranks[(uint32_t)dtype % RANKS], &unit, (uint32_t)sizes[i], &weights);
			contract_run(c, load_one, &transfer);
			weights_free(&weights);
		}
	}
	contract_close(c);
}

/* Its gathered buffer is the shard itself. */
CONTRACT_TEST(test_a_rank_alone)
{
	struct contract_unit unit;
	struct weights weights;
	struct transfer transfer = {.unit = &unit, .weights = &weights, .sources = 1};
	struct contract *c;

	contract_needs(CONTRACT_ONE_SIDED);
	c = contract_open(&(struct contract_options){.world_size = 1, .devices = 1});
	contract_unit_of(c, "w", ZEROD_FLOAT16, PRIME, &unit);
	weights_new(&c->ranks[0], &unit, 3, &weights);
	contract_run(c, load_one, &transfer);
	weights_free(&weights);
	contract_close(c);
}

static void begin_one(struct contract_rank *rank, void *arg)
{
	update_begin(rank, arg);
}

static struct contract *open_transfer(struct contract_unit *unit, struct weights *weights,
                                      struct transfer *transfer)
{
	struct contract *c;

	contract_needs(CONTRACT_ONE_SIDED);
	c = contract_open(&(struct contract_options){.world_size = RANKS, .devices = 2});
	contract_plain_unit(c, "w", PRIME, unit);
	weights_new(&c->ranks[READER], unit, 1, weights);
	*transfer = (struct transfer){.unit = unit, .weights = weights, .sources = 1u << READER};
	contract_run(c, begin_one, unit);
	return c;
}

CONTRACT_TEST(test_load_needs_an_update)
{
	struct contract_unit unit;
	struct weights weights;
	struct contract *c;

	contract_needs(CONTRACT_ONE_SIDED);
	c = contract_open(&(struct contract_options){.world_size = RANKS, .devices = 2});
	contract_plain_unit(c, "w", PRIME, &unit);
	weights_new(&c->ranks[0], &unit, 1, &weights);
	FAILS(c->ranks[0].client, zerod_unit_load(unit.at[0], weights.data, NULL, NULL, NULL), ZEROD_E_STATE,
	      "unit 'w' is not under update");
	update_begin(&c->ranks[0], &unit);
	FAILS(c->ranks[0].client, zerod_unit_load(unit.at[0], (uint8_t *)weights.data + 1, NULL, NULL, NULL),
	      ZEROD_E_INVALID, "unit 'w': data is not aligned for float32");
	weights_free(&weights);
	contract_close(c);
}

CONTRACT_TEST(test_data_come_with_a_stream)
{
	struct contract_unit unit;
	struct weights weights;
	struct transfer transfer;
	struct contract *c = open_transfer(&unit, &weights, &transfer);
	struct contract_rank *reader = &c->ranks[READER];
	zerod_stream *stream = contract_stream(reader);
	struct contract_gate *gate = contract_block(reader, stream);
	struct contract_task *others[RANKS] = {NULL};
	zerod_unit *handle = unit.at[READER];
	zerod_ticket ticket;

	contract_write(stream, weights.data, weights.bytes, weights.nbytes);
	OK(reader->client, zerod_unit_load(handle, weights.data, stream, NULL, &ticket));
	transfer.sources = 0;
	for (uint32_t rank = 0; rank < RANKS; rank++)
		if (rank != READER)
			others[rank] = contract_start(&c->ranks[rank], call_load, &transfer);
	AWAIT(contract_somebody_waits(c, "the streams of rank 2, which loads unit 'w'"));
	FAILS(reader->client, zerod_unit_load(handle, NULL, NULL, NULL, NULL), ZEROD_E_STATE,
	      "unit 'w' is LOADING");
	FAILS(reader->client, zerod_publish(&handle, 1, NULL, 0, NULL, NULL), ZEROD_E_STATE,
	      "unit 'w' is LOADING");
	contract_unblock(gate);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		if (others[rank])
			contract_finish(others[rank]);
	OK(reader->client, zerod_wait(reader->client, ticket, NULL, NULL));
	for (uint32_t rank = 0; rank < RANKS; rank++)
		if (rank != READER)
			OK(c->ranks[rank].client, zerod_publish(&unit.at[rank], 1, NULL, 0, NULL, NULL));
	expect_loaded(reader, &unit, &weights);
	/* The daemon has ordered the copies before; the thread sanitizer does not see it. */
	contract_sync(reader, stream);
	weights_free(&weights);
	contract_close(c);
}

CONTRACT_TEST(test_collectives_cannot_load)
{
	struct contract_unit unit;
	struct contract *c;

	if (!contract_gathers_together())
		skip();
	c = contract_open(&(struct contract_options){.world_size = RANKS, .devices = 2});
	contract_plain_unit(c, "w", PRIME, &unit);
	contract_run(c, begin_one, &unit);
	FAILS(c->ranks[0].client, zerod_unit_load(unit.at[0], NULL, NULL, NULL, NULL), ZEROD_E_UNSUPPORTED,
	      "unit 'w': group");
	contract_close(c);
}
