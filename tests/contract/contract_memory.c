/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contract_memory.c - streams, gates, copies in the order of a stream, and units of known bytes: the only place that touches
 * memory of the daemon, and the only one that knows how the backend's streams run something.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/mem.h"
#include "contract_internal.h"

/* ---- Streams ------------------------------------------------------------------------------------------------- */

struct owned_stream {
	struct contract_rank *rank;
	zerod_stream *stream;
	LIST_ENTRY(owned_stream) link;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the lists below */
static LIST_HEAD(, owned_stream) streams = LIST_HEAD_INITIALIZER(streams);

zerod_stream *contract_stream(struct contract_rank *rank)
{
	struct owned_stream *owned = zd_calloc(1, sizeof(*owned));

	OK(rank->client, zerod_host_stream_create(rank->client, &owned->stream));
	owned->rank = rank;
	pthread_mutex_lock(&lock);
	LIST_INSERT_HEAD(&streams, owned, link);
	pthread_mutex_unlock(&lock);
	return owned->stream;
}

void contract_streams_end(struct contract_rank *rank)
{
	struct owned_stream *owned, *next;

	for (owned = LIST_FIRST(&streams); owned; owned = next) {
		next = LIST_NEXT(owned, link);
		if (owned->rank != rank)
			continue;
		zerod_stream_destroy(owned->stream);
		LIST_REMOVE(owned, link);
		free(owned);
	}
}

void contract_sync(struct contract_rank *rank, zerod_stream *stream)
{
	OK(rank->client, zerod_stream_synchronize(stream));
}

/* ---- Gates --------------------------------------------------------------------------------------------------- */

struct contract_gate {
	pthread_mutex_t lock;
	pthread_cond_t opened;
	bool open;
	LIST_ENTRY(contract_gate) link;
};

static LIST_HEAD(, contract_gate) gates = LIST_HEAD_INITIALIZER(gates);

static void pass_gate(void *arg)
{
	struct contract_gate *gate = arg;

	pthread_mutex_lock(&gate->lock);
	while (!gate->open)
		pthread_cond_wait(&gate->opened, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
}

struct contract_gate *contract_block(struct contract_rank *rank, zerod_stream *stream)
{
	struct contract_gate *gate = zd_calloc(1, sizeof(*gate));

	pthread_mutex_init(&gate->lock, NULL);
	pthread_cond_init(&gate->opened, NULL);
	pthread_mutex_lock(&lock);
	LIST_INSERT_HEAD(&gates, gate, link);
	pthread_mutex_unlock(&lock);
	OK(rank->client, zerod_host_stream_launch(stream, pass_gate, gate));
	return gate;
}

void contract_unblock(struct contract_gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	gate->open = true;
	pthread_cond_broadcast(&gate->opened);
	pthread_mutex_unlock(&gate->lock);
}

void contract_gates_open(void)
{
	struct contract_gate *gate;

	LIST_FOREACH (gate, &gates, link)
		contract_unblock(gate);
}

/* ---- Copies -------------------------------------------------------------------------------------------------- */

struct copy {
	void *to;
	const void *from;
	size_t bytes;
	LIST_ENTRY(copy) link;
	uint8_t kept[];
};

static LIST_HEAD(, copy) copies = LIST_HEAD_INITIALIZER(copies);

static void run_copy(void *arg)
{
	struct copy *copy = arg;

	memcpy(copy->to, copy->from, copy->bytes);
}

/* Kept until the end of the test: a stream that takes no more work may drop it unseen. */
static struct copy *new_copy(void *to, size_t bytes, size_t kept_bytes)
{
	struct copy *copy = zd_calloc(1, sizeof(*copy) + kept_bytes);

	copy->to = to;
	copy->bytes = bytes;
	pthread_mutex_lock(&lock);
	LIST_INSERT_HEAD(&copies, copy, link);
	pthread_mutex_unlock(&lock);
	return copy;
}

void contract_write(zerod_stream *stream, void *to, const void *from, size_t bytes)
{
	struct copy *copy;

	if (!stream) {
		memcpy(to, from, bytes);
		return;
	}
	copy = new_copy(to, bytes, bytes);
	memcpy(copy->kept, from, bytes);
	copy->from = copy->kept;
	CHECK(zerod_host_stream_launch(stream, run_copy, copy) == ZEROD_OK);
}

void contract_read(zerod_stream *stream, void *to, const void *from, size_t bytes)
{
	struct copy *copy;

	if (!stream) {
		memcpy(to, from, bytes);
		return;
	}
	copy = new_copy(to, bytes, 0);
	copy->from = from;
	CHECK(zerod_host_stream_launch(stream, run_copy, copy) == ZEROD_OK);
}

void contract_copies_free(void)
{
	struct copy *copy;
	struct contract_gate *gate;

	while ((copy = LIST_FIRST(&copies))) {
		LIST_REMOVE(copy, link);
		free(copy);
	}
	while ((gate = LIST_FIRST(&gates))) {
		LIST_REMOVE(gate, link);
		pthread_mutex_destroy(&gate->lock);
		pthread_cond_destroy(&gate->opened);
		free(gate);
	}
}

/* ---- Units --------------------------------------------------------------------------------------------------- */

/* No byte is 0, which is the padding's. */
static uint8_t pattern(const struct contract_unit *unit, uint64_t version, uint64_t i)
{
	uint32_t hash = 2166136261u;

	for (const char *name = unit->name; *name; name++)
		hash = (hash ^ (uint8_t)*name) * 16777619u;
	hash = (hash ^ (uint32_t)version) * 16777619u;
	hash = (hash ^ (uint32_t)i) * 16777619u;
	return (uint8_t)((hash >> 13) % 255 + 1);
}

void contract_unit(struct contract *c, const struct zerod_unit_options *options, struct contract_unit *unit)
{
	*unit = (struct contract_unit){.numel = options->numel,
	                               .element_bytes = zerod_dtype_bytes(options->dtype)};
	(void)snprintf(unit->name, sizeof(unit->name), "%s", options->name);
	for (uint32_t i = 0; i < c->world_size; i++) {
		struct contract_rank *rank = &c->ranks[i];
		struct zerod_shard shard;

		OK(rank->client, zerod_unit_register(rank->group, options, &unit->at[i]));
		OK(rank->client, zerod_unit_shard(unit->at[i], &shard));
		unit->shard_numel = shard.shard_numel;
		unit->padded_numel = shard.padded_numel;
		unit->version[i] = shard.version;
	}
}

void contract_plain_unit(struct contract *c, const char *name, uint64_t numel, struct contract_unit *unit)
{
	struct zerod_unit_options options = ZEROD_INIT(options);

	options.name = name;
	options.dtype = ZEROD_FLOAT32;
	options.numel = numel;
	contract_unit(c, &options, unit);
}

void contract_write_shard(struct contract_rank *rank, struct contract_unit *unit, zerod_stream *stream)
{
	struct zerod_shard shard;
	uint64_t bytes, first;
	uint8_t *content;

	OK(rank->client, zerod_unit_shard(unit->at[rank->number], &shard));
	bytes = shard.true_numel * unit->element_bytes;
	first = shard.offset_numel * unit->element_bytes;
	content = zd_calloc(1, bytes + 1);
	for (uint64_t i = 0; i < bytes; i++)
		content[i] = pattern(unit, shard.version + 1, first + i);
	contract_write(stream, shard.data, content, bytes);
	free(content);
}

void contract_publish(struct contract_rank *rank, struct contract_unit *unit)
{
	zerod_unit *handle = unit->at[rank->number];

	OK(rank->client, zerod_update_begin(&handle, 1));
	contract_write_shard(rank, unit, NULL);
	OK(rank->client, zerod_publish(&handle, 1, NULL, 0, 0));
	unit->version[rank->number]++;
}

void contract_publish_all(struct contract *c, struct contract_unit *unit)
{
	for (uint32_t i = 0; i < c->world_size; i++)
		contract_publish(&c->ranks[i], unit);
}

uint64_t contract_padded_bytes(const struct contract_unit *unit)
{
	return unit->padded_numel * unit->element_bytes;
}

bool contract_bytes_are(const struct contract_unit *unit, const uint8_t *bytes, uint64_t version)
{
	uint64_t real = unit->numel * unit->element_bytes;

	for (uint64_t i = 0; i < contract_padded_bytes(unit); i++)
		if (bytes[i] != (i < real ? pattern(unit, version, i) : 0))
			return false;
	return true;
}

void contract_expect_bytes(const struct contract_unit *unit, const void *data, uint64_t version)
{
	uint8_t *bytes = zd_calloc(1, contract_padded_bytes(unit));
	bool same;

	contract_read(NULL, bytes, data, contract_padded_bytes(unit));
	same = contract_bytes_are(unit, bytes, version);
	free(bytes);
	CHECK(same);
}

void *contract_gather(struct contract_rank *rank, struct contract_unit *unit, const char *tag)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	void *data = NULL;

	options.tag = tag;
	OK(rank->client, zerod_gather(unit->at[rank->number], &options, NULL, &data));
	return data;
}

void contract_release(struct contract_rank *rank, struct contract_unit *unit, const char *tag)
{
	OK(rank->client, zerod_release(unit->at[rank->number], tag, NULL, 0, NULL));
}

void contract_expect_version(struct contract_rank *rank, struct contract_unit *unit, uint64_t version)
{
	contract_expect_bytes(unit, contract_gather(rank, unit, NULL), version);
	contract_release(rank, unit, NULL);
}
