/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_scene.h - a group over two daemons of this host: two ranks each, over the doubles of the driver and
 * of NCCL. Ranks are threads of the test's process, which sees all GPUs; each daemon has two of them.
 *
 * A rank does what it is told by all_do(), and what has failed first is in its `status` and `text` then:
 * assertions are the test's own thread's.
 */
#ifndef ZD_TESTS_SPAN_SCENE_H
#define ZD_TESTS_SPAN_SCENE_H

#include "cuda_scene.h"

#include <zerod_cuda.h>

#include <pthread.h>

#include "tests/support/daemon_fixture.h"

#define DAEMONS 2u
#define LOCAL   2u
#define WORLD   (DAEMONS * LOCAL)
#define UNITS   2u
#define MOST    5003u /* elements of the larger unit: the last shard is shorter */

struct world;

struct rank {
	struct world *world;
	uint32_t number;
	zerod_client *client;
	zerod_group *group;
	zerod_unit *units[UNITS];
	zerod_bucket *bucket;
	struct CUctx_st *context;
	struct CUstream_st *handle;
	zerod_stream *stream;
	float values[MOST];
	int status;
	char text[ZD_ERR_TEXT_BYTES];
	void (*task)(struct rank *rank);
};

struct world {
	struct zd_daemon daemons[DAEMONS];
	struct zerod_unique_id id;
	uint32_t flags;
	enum zerod_collectives collectives;
	struct rank ranks[WORLD];
};

static const uint64_t unit_numel[UNITS] = {1000, MOST};

/* ---- What ranks do ------------------------------------------------------------------------------------- */

/* The rank's task ends where a call fails. */
#define TRY(rank, call)                                                                                      \
	do {                                                                                                 \
		int status_ = (call);                                                                        \
		if (status_) {                                                                               \
			rank_note(rank, status_);                                                            \
			return;                                                                              \
		}                                                                                            \
	} while (0)

static inline void rank_note(struct rank *rank, int status)
{
	rank->status = status;
	(void)snprintf(rank->text, sizeof(rank->text), "%s", zerod_last_error(rank->client));
}

static inline void *rank_main(void *arg)
{
	struct rank *rank = arg;

	if (rank->context && scene_driver()->ctxSetCurrent(rank->context))
		rank->status = ZEROD_E_DEVICE;
	else
		rank->task(rank);
	return NULL;
}

/* Of those in `mask`; returns when all have. */
static inline void some_do(struct world *world, uint32_t mask, void (*task)(struct rank *rank))
{
	pthread_t threads[WORLD];

	for (uint32_t r = 0; r < WORLD; r++) {
		if (!(mask & 1u << r))
			continue;
		world->ranks[r].status = ZEROD_OK;
		world->ranks[r].text[0] = '\0';
		world->ranks[r].task = task;
		assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &world->ranks[r]), 0);
	}
	for (uint32_t r = 0; r < WORLD; r++)
		if (mask & 1u << r)
			pthread_join(threads[r], NULL);
}

#define ALL_RANKS ((1u << WORLD) - 1)

static inline void expect_ok(const struct world *world, uint32_t mask)
{
	for (uint32_t r = 0; r < WORLD; r++)
		if (mask & 1u << r && world->ranks[r].status)
			fail_msg("rank %u: %s: %s", r, zerod_status_name(world->ranks[r].status),
			         world->ranks[r].text);
}

static inline void all_do(struct world *world, void (*task)(struct rank *rank))
{
	some_do(world, ALL_RANKS, task);
	expect_ok(world, ALL_RANKS);
}

/* Each ended with the status, and with these words. */
static inline void expect_failed(const struct world *world, uint32_t mask, int status, const char *text)
{
	for (uint32_t r = 0; r < WORLD; r++)
		if (mask & 1u << r &&
		    (world->ranks[r].status != status || !strstr(world->ranks[r].text, text)))
			fail_msg("rank %u: %s: %s", r, zerod_status_name(world->ranks[r].status),
			         world->ranks[r].text);
}

/* ---- Memory of GPUs ------------------------------------------------------------------------------------ */

static inline void rank_write(struct rank *rank, void *to, uint64_t numel)
{
	const struct zd_cuda *driver = scene_driver();

	TRY(rank, driver->memcpyHtoDAsync((zd_cu_ptr)to, rank->values, numel * sizeof(float), rank->handle));
	TRY(rank, driver->streamSynchronize(rank->handle));
}

static inline void rank_read(struct rank *rank, void *from, uint64_t numel)
{
	const struct zd_cuda *driver = scene_driver();

	TRY(rank,
	    driver->memcpyDtoHAsync(rank->values, (zd_cu_ptr)from, numel * sizeof(float), rank->handle));
	TRY(rank, zerod_stream_synchronize(rank->stream));
}

/* ---- Coming and going ---------------------------------------------------------------------------------- */

static inline void rank_connect(struct rank *rank)
{
	struct zerod_options options = ZEROD_INIT(options);

	options.socket_path = rank->world->daemons[rank->number / LOCAL].socket_path;
	options.deadline_ms = 30000;
	TRY(rank, zerod_connect(&options, &rank->client));
	TRY(rank, scene_driver()->devicePrimaryCtxRetain(&rank->context, (int)rank->number));
	TRY(rank, scene_driver()->ctxSetCurrent(rank->context));
	TRY(rank, scene_driver()->streamCreateWithPriority(&rank->handle, ZD_CU_STREAM_NON_BLOCKING, 0));
}

static inline struct zerod_group_options rank_options(const struct rank *rank)
{
	struct zerod_group_options options = ZEROD_INIT(options);

	options.job = "cluster";
	options.world_size = WORLD;
	options.local_world_size = LOCAL;
	options.rank = rank->number;
	options.device = rank->number % LOCAL;
	options.collectives = rank->world->collectives;
	return options;
}

static inline void rank_join_with(struct rank *rank, uint32_t flags)
{
	struct zerod_group_options options = rank_options(rank);

	options.flags = flags;
	options.unique_id = &rank->world->id;
	TRY(rank, zerod_group_join(rank->client, &options, &rank->group));
	if (!rank->stream)
		TRY(rank, zerod_cuda_stream_wrap(rank->client, rank->handle, &rank->stream));
}

static inline void rank_join(struct rank *rank)
{
	rank_join_with(rank, rank->world->flags);
}

static inline void rank_register(struct rank *rank)
{
	struct zerod_bucket_options bucket = ZEROD_INIT(bucket);

	for (uint32_t u = 0; u < UNITS; u++) {
		struct zerod_unit_options options = ZEROD_INIT(options);

		options.name = u == 0 ? "a" : "b";
		options.dtype = ZEROD_FLOAT32;
		options.numel = unit_numel[u];
		TRY(rank, zerod_unit_register(rank->group, &options, &rank->units[u]));
	}
	bucket.dtype = ZEROD_FLOAT32;
	TRY(rank, zerod_bucket_create(rank->group, &bucket, &rank->bucket));
}

static inline void rank_leave(struct rank *rank)
{
	zerod_group *group = rank->group; /* NULL: it has none */

	rank->group = NULL;
	TRY(rank, zerod_group_leave(group, NULL));
}

static inline void rank_close(struct rank *rank)
{
	zerod_stream_destroy(rank->stream);
	zerod_close(rank->client);
	rank->stream = NULL;
	rank->group = NULL;
	rank->client = NULL;
	if (rank->handle)
		TRY(rank, scene_driver()->streamDestroy(rank->handle));
	rank->handle = NULL;
}

/* ---- The world ----------------------------------------------------------------------------------------- */

static inline int world_start_daemon(struct world *world, uint32_t d, const char *config, bool again)
{
	const char *const args[] = {"--backend", "cuda", "--gpus", d == 0 ? "0,1" : "2,3", NULL};
	struct zd_daemon_options options = {.config = config, .args = args};

	return again ? zd_daemon_restart(&options, &world->daemons[d])
	             : zd_daemon_start(&options, &world->daemons[d]);
}

static inline void world_new_id(struct world *world)
{
	const struct zerod_group_options options = rank_options(&world->ranks[0]);

	if (zerod_group_unique_id(world->ranks[0].client, &options, NULL, &world->id))
		fail_msg("%s", zerod_last_error(world->ranks[0].client));
}

/* Connected, with an id. `collectives` is the daemons' configuration of that section. */
static inline struct world *world_open(const char *collectives)
{
	struct world *world = zd_calloc(1, sizeof(*world));
	char config[256];

	(void)snprintf(config, sizeof(config), "[collectives]\n%s", collectives);
	(void)scene_driver();
	for (uint32_t d = 0; d < DAEMONS; d++)
		assert_int_equal(world_start_daemon(world, d, config, false), 0);
	for (uint32_t r = 0; r < WORLD; r++) {
		world->ranks[r].world = world;
		world->ranks[r].number = r;
	}
	all_do(world, rank_connect);
	world_new_id(world);
	return world;
}

static inline void world_form(struct world *world)
{
	all_do(world, rank_join);
	all_do(world, rank_register);
}

static inline void world_close(struct world *world)
{
	some_do(world, ALL_RANKS, rank_close);
	for (uint32_t d = 0; d < DAEMONS; d++)
		assert_int_equal(zd_daemon_stop(&world->daemons[d]), 0);
	free(world);
}

#endif
