/* SPDX-License-Identifier: Apache-2.0 */
/* contract_internal.h - what the fixture's own files share. */
#ifndef ZD_TESTS_CONTRACT_INTERNAL_H
#define ZD_TESTS_CONTRACT_INTERNAL_H

#include <pthread.h>
#include <sys/queue.h>

#include "contract.h"

#define CONTRACT_CONFIG 1024

/* The test's; valid while it is open. */
struct contract *contract_current(void);
/* The first. */
struct zd_daemon;
struct zd_daemon *contract_daemon(void);
/* Whether the calling thread is one of contract_start()'s. */
bool contract_in_task(void);
/* Remembers the daemon's counters, so that those of earlier tests can be subtracted. */
void contract_count_from_here(struct contract *c);

/* ---- contract_ranks.c ---------------------------------------------------------------------------------- */

/* Fills c->daemons and c->devices, of those that the test wants. */
void contract_place(struct contract *c, uint32_t devices);
/* Writes the value of the daemon's option --gpus. */
void contract_gpus_of(const struct contract *c, uint32_t daemon, char list[CONTRACT_TEXT]);
/* A daemon's configuration, with the test's own lines (NULL: none). */
void contract_config(const char *lines, char config[CONTRACT_CONFIG]);
/* `id` is of a group that spans daemons. */
void contract_join_options(const struct contract_rank *rank, const struct zerod_unique_id *id,
                           struct zerod_group_options *options);

/* ---- contract_stream.c --------------------------------------------------------------------------------- */

/* Every gate that is still shut. */
void contract_gates_open(void);
/* The rank's streams drain and go. */
void contract_streams_end(struct contract_rank *rank);
/* Frees memory that gates and copies have kept; no stream may be left. Returns whether all of the test has
 * ended well. */
bool contract_copies_free(void);

/* ---- What runs streams: contract_host.c, contract_cuda.c ----------------------------------------------- */

struct contract_stream {
	struct contract_rank *rank;
	zerod_stream *stream;
	void *handle; /* these two are the backend's */
	int gpu;
	LIST_ENTRY(contract_stream) link;
	const zerod_stream *known; /* `stream` once it is made: under the list's lock, for others' searches */
};

struct contract_gate {
	pthread_mutex_t lock;
	pthread_cond_t opened;
	bool reached, open;
	uint64_t *words; /* the backend's */
	LIST_ENTRY(contract_gate) link;
};

struct contract_backend {
	/* Before the daemon starts: how many devices there may be. */
	uint32_t (*begin)(uint32_t wanted);
	/* No stream is left: what copies have kept goes. Did all that has ended since `begin` end well. */
	bool (*end)(void);
	/* Fills and undoes stream->stream and ->handle; undoes a half of it, too. */
	void (*stream_new)(struct contract_stream *stream);
	void (*stream_end)(struct contract_stream *stream);
	/* After it has been synchronized. NULL: nothing is to be done. */
	void (*stream_synced)(struct contract_stream *stream);
	void (*gate_put)(struct contract_stream *stream, struct contract_gate *gate);
	bool (*gate_reached)(struct contract_gate *gate);
	void (*gate_open)(struct contract_gate *gate);
	/* To and from memory of the daemon; `stream` NULL: now. */
	void (*write)(struct contract_stream *stream, void *to, const void *from, size_t bytes);
	void (*read)(struct contract_stream *stream, void *to, const void *from, size_t bytes);
	bool (*can_touch)(zerod_client *client, const void *at, bool writes);
};

extern const struct contract_backend contract_host, contract_cuda;
/* By $ZEROD_TEST_BACKEND. */
const struct contract_backend *contract_backend(void);

#endif
