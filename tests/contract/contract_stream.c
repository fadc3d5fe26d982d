/* SPDX-License-Identifier: Apache-2.0 */
/* contract_stream.c - streams, gates and copies of a test, whatever backend runs them. */
#include "base/mem.h"
#include "contract_internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the lists below */
static LIST_HEAD(, contract_stream) streams = LIST_HEAD_INITIALIZER(streams);
static LIST_HEAD(, contract_gate) gates = LIST_HEAD_INITIALIZER(gates);

const struct contract_backend *contract_backend(void)
{
	const char *name = getenv("ZEROD_TEST_BACKEND");

	return name && strcmp(name, "cuda") == 0 ? &contract_cuda : &contract_host;
}

/* ---- Streams ------------------------------------------------------------------------------------------- */

zerod_stream *contract_stream(struct contract_rank *rank)
{
	struct contract_stream *made = zd_calloc(1, sizeof(*made));

	made->rank = rank;
	/* First, so that it goes with the rank if something of it is refused. */
	pthread_mutex_lock(&lock);
	LIST_INSERT_HEAD(&streams, made, link);
	pthread_mutex_unlock(&lock);
	contract_backend()->stream_new(made);
	pthread_mutex_lock(&lock);
	made->known = made->stream;
	pthread_mutex_unlock(&lock);
	return made->stream;
}

/* NULL stays NULL. */
static struct contract_stream *find_stream(const zerod_stream *stream)
{
	struct contract_stream *found = NULL;

	if (!stream)
		return NULL;
	pthread_mutex_lock(&lock);
	LIST_FOREACH (found, &streams, link)
		if (found->known == stream)
			break;
	pthread_mutex_unlock(&lock);
	CHECK(found);
	return found;
}

void contract_streams_end(struct contract_rank *rank)
{
	struct contract_stream *stream, *next;

	for (stream = LIST_FIRST(&streams); stream; stream = next) {
		next = LIST_NEXT(stream, link);
		if (stream->rank != rank)
			continue;
		LIST_REMOVE(stream, link);
		contract_backend()->stream_end(stream);
		free(stream);
	}
}

void contract_sync(struct contract_rank *rank, zerod_stream *stream)
{
	OK(rank->client, zerod_stream_synchronize(stream));
	if (contract_backend()->stream_synced)
		contract_backend()->stream_synced(find_stream(stream));
}

/* ---- Gates --------------------------------------------------------------------------------------------- */

struct contract_gate *contract_block(struct contract_rank *rank, zerod_stream *stream)
{
	struct contract_gate *gate = zd_calloc(1, sizeof(*gate));

	(void)rank;
	pthread_mutex_init(&gate->lock, NULL);
	pthread_cond_init(&gate->opened, NULL);
	contract_backend()->gate_put(find_stream(stream), gate);
	pthread_mutex_lock(&lock);
	LIST_INSERT_HEAD(&gates, gate, link);
	pthread_mutex_unlock(&lock);
	return gate;
}

bool contract_is_blocked(struct contract_gate *gate)
{
	return contract_backend()->gate_reached(gate);
}

void contract_unblock(struct contract_gate *gate)
{
	contract_backend()->gate_open(gate);
}

void contract_gates_open(void)
{
	struct contract_gate *gate;

	LIST_FOREACH (gate, &gates, link)
		contract_unblock(gate);
}

/* ---- Copies -------------------------------------------------------------------------------------------- */

void contract_write(zerod_stream *stream, void *to, const void *from, size_t bytes)
{
	contract_backend()->write(find_stream(stream), to, from, bytes);
}

void contract_read(zerod_stream *stream, void *to, const void *from, size_t bytes)
{
	contract_backend()->read(find_stream(stream), to, from, bytes);
}

bool contract_can_touch(struct contract_rank *rank, const void *at)
{
	return contract_backend()->can_touch(rank->client, at, false);
}

bool contract_can_write(zerod_client *client, const void *at)
{
	return contract_backend()->can_touch(client, at, true);
}

bool contract_copies_free(void)
{
	bool well = contract_backend()->end();
	struct contract_gate *gate;

	while ((gate = LIST_FIRST(&gates))) {
		LIST_REMOVE(gate, link);
		pthread_mutex_destroy(&gate->lock);
		pthread_cond_destroy(&gate->opened);
		free(gate);
	}
	return well;
}
