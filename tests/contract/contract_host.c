/* SPDX-License-Identifier: Apache-2.0 */
/* contract_host.c - the host backend's streams: threads that run functions, on memory that the CPU
 * reaches. */
#include <errno.h>

#include <zerod_host.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/mem.h"
#include "contract_internal.h"

static uint32_t begin(uint32_t wanted)
{
	return wanted;
}

static void stream_new(struct contract_stream *stream)
{
	OK(stream->rank->client, zerod_host_stream_create(stream->rank->client, &stream->stream));
}

static void stream_end(struct contract_stream *stream)
{
	zerod_stream_destroy(stream->stream);
}

/* ---- Gates --------------------------------------------------------------------------------------------- */

static void pass_gate(void *arg)
{
	struct contract_gate *gate = arg;

	pthread_mutex_lock(&gate->lock);
	gate->reached = true;
	while (!gate->open)
		pthread_cond_wait(&gate->opened, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
}

static void gate_put(struct contract_stream *stream, struct contract_gate *gate)
{
	OK(stream->rank->client, zerod_host_stream_launch(stream->stream, pass_gate, gate));
}

static bool gate_reached(struct contract_gate *gate)
{
	bool reached;

	pthread_mutex_lock(&gate->lock);
	reached = gate->reached;
	pthread_mutex_unlock(&gate->lock);
	return reached;
}

static void gate_open(struct contract_gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	gate->open = true;
	pthread_cond_broadcast(&gate->opened);
	pthread_mutex_unlock(&gate->lock);
}

/* ---- Copies -------------------------------------------------------------------------------------------- */

struct copy {
	void *to;
	const void *from;
	size_t bytes;
	LIST_ENTRY(copy) link;
	uint8_t kept[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the list below */
static LIST_HEAD(, copy) copies = LIST_HEAD_INITIALIZER(copies);

/* One access after the other. The daemon often orders them, which the thread sanitizer does not see. */
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

static void copy_bytes(void *to, const void *from, size_t bytes)
{
	pthread_mutex_lock(&one);
	memcpy(to, from, bytes);
	pthread_mutex_unlock(&one);
}

static void run_copy(void *arg)
{
	struct copy *copy = arg;

	copy_bytes(copy->to, copy->from, copy->bytes);
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

static void write_bytes(struct contract_stream *stream, void *to, const void *from, size_t bytes)
{
	struct copy *copy;

	if (!stream) {
		copy_bytes(to, from, bytes);
		return;
	}
	copy = new_copy(to, bytes, bytes);
	memcpy(copy->kept, from, bytes);
	copy->from = copy->kept;
	CHECK(zerod_host_stream_launch(stream->stream, run_copy, copy) == ZEROD_OK);
}

static void read_bytes(struct contract_stream *stream, void *to, const void *from, size_t bytes)
{
	struct copy *copy;

	if (!stream) {
		copy_bytes(to, from, bytes);
		return;
	}
	copy = new_copy(to, bytes, 0);
	copy->from = from;
	CHECK(zerod_host_stream_launch(stream->stream, run_copy, copy) == ZEROD_OK);
}

static bool end(void)
{
	struct copy *copy;

	while ((copy = LIST_FIRST(&copies))) {
		LIST_REMOVE(copy, link);
		free(copy);
	}
	return true;
}

/* The kernel says EFAULT where a load would raise SIGSEGV. */
static bool can_touch(zerod_client *client, const void *at, bool writes)
{
	int ends[2];
	bool could;

	(void)client;
	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	pthread_mutex_lock(&one); /* a stream can copy to the same byte */
	could = write(ends[1], at, 1) == 1;
	if (writes && could) /* the same byte */
		could = read(ends[0], (void *)at, 1) == 1;
	pthread_mutex_unlock(&one);
	CHECK(could || errno == EFAULT);
	(void)close(ends[0]);
	(void)close(ends[1]);
	return could;
}

const struct contract_backend contract_host = {
        .begin = begin,
        .end = end,
        .stream_new = stream_new,
        .stream_end = stream_end,
        .gate_put = gate_put,
        .gate_reached = gate_reached,
        .gate_open = gate_open,
        .write = write_bytes,
        .read = read_bytes,
        .can_touch = can_touch,
};
