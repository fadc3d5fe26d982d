/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_scene.h - communicators under test, over the doubles of the driver and of NCCL: ranks on a GPU each,
 * all driven by the test's own thread, so that nothing moves but when the test polls. A test that hangs is
 * ended by an alarm.
 */
#ifndef ZD_TEST_COMM_SCENE_H
#define ZD_TEST_COMM_SCENE_H

#include <dlfcn.h>
#include <sched.h>

#include "executor/nccl/cuda_comm_queue.h"
#include "tests/double/nccl_control.h"
#include "tests/unit/executor/cuda_double.h"

#define COMM_RANKS   4u
#define COMM_BYTES   (2ull << 20) /* of what a rank sends, and of what it receives */
#define COMM_SECONDS 60u          /* unless ZEROD_TEST_DEADLINE_MS says otherwise */

struct comm_rank {
	struct zd_cuda cuda; /* the driver's table, in which a test may replace calls */
	struct zd_cuda_device device;
	struct zd_cuda_comm_queue queue;
	struct zd_cuda_comm *comm;
	zd_cu_ptr send, receive;
	bool lost; /* the GPU: what is given back to it fails */
};

struct comm_scene {
	const struct zd_cuda *cuda;
	const struct zd_nccl *nccl;
	const struct double_nccl_control *control;
	struct zd_cuda_comm_local_ranks local_ranks;
	struct zd_nccl_id id;
	uint32_t nranks; /* of this daemon */
	uint32_t world;  /* of the group */
	uint32_t first;  /* ranks[i] is rank first + i of it */
	struct comm_rank ranks[COMM_RANKS];
};

/* An operation of the test's, and whether it was taken. */
struct comm_op {
	struct zd_cuda_comm_op op;
	bool taken;
};

/* ---- The scene ----------------------------------------------------------------------------------------- */

static inline void comm_must(int rc, const struct zd_err *err)
{
	if (rc)
		fail_msg("%s", err->text);
}

static inline void comm_enter(const struct comm_scene *s, uint32_t i)
{
	assert_int_equal(s->cuda->ctxSetCurrent(s->ranks[i].device.context), 0);
}

static inline zd_cu_ptr comm_memory(const struct comm_scene *s, int device)
{
	const struct zd_cu_allocation allocation = {
	        .type = ZD_CU_ALLOCATION_PINNED,
	        .handle_types = ZD_CU_HANDLE_POSIX_FD,
	        .location = {.type = ZD_CU_LOCATION_DEVICE, .id = device}};
	const struct zd_cu_access access = {.location = allocation.location, .flags = ZD_CU_ACCESS_READWRITE};
	zd_cu_memory memory;
	zd_cu_ptr at;

	assert_int_equal(s->cuda->memCreate(&memory, COMM_BYTES, &allocation, 0), 0);
	assert_int_equal(s->cuda->memAddressReserve(&at, COMM_BYTES, 0, 0, 0), 0);
	assert_int_equal(s->cuda->memMap(at, COMM_BYTES, 0, memory, 0), 0);
	assert_int_equal(s->cuda->memSetAccess(at, COMM_BYTES, &access, 1), 0);
	assert_int_equal(s->cuda->memRelease(memory), 0);
	return at;
}

static inline void comm_open_rank(struct comm_scene *s, uint32_t i)
{
	struct comm_rank *rank = &s->ranks[i];
	struct zd_cuda_comm_home home = {&rank->device, s->nccl, &s->local_ranks};

	rank->cuda = *s->cuda;
	rank->device = (struct zd_cuda_device){
	        .cuda = &rank->cuda, .index = i, .ordinal = (int)i, .multiprocessors = 132};
	(void)snprintf(rank->device.name, sizeof(rank->device.name), "GPU-%u", i);
	pthread_mutex_init(&rank->device.lock, NULL);
	assert_int_equal(s->cuda->devicePrimaryCtxRetain(&rank->device.context, (int)i), 0);
	comm_enter(s, i);
	rank->send = comm_memory(s, (int)i);
	rank->receive = comm_memory(s, (int)i);
	zd_cuda_comm_queue_init(&rank->queue, &home);
}

static inline void comm_make_id(const struct comm_scene *s, struct zd_nccl_id *id)
{
	assert_int_equal(s->nccl->getUniqueId(id), ZD_NCCL_SUCCESS);
}

/* `nranks` ranks on a GPU each, of a group that may have more elsewhere. */
static inline void comm_open(struct comm_scene *s, uint32_t nranks)
{
	const char *deadline_ms = getenv("ZEROD_TEST_DEADLINE_MS");
	struct zd_err err = ZD_ERR_NONE;
	void *library;

	(void)alarm(deadline_ms ? (unsigned)(strtoul(deadline_ms, NULL, 10) / 1000 + 1) : COMM_SECONDS);
	memset(s, 0, sizeof(*s));
	comm_must(zd_cuda_load(&s->cuda, &err), &err);
	comm_must(zd_nccl_load(NULL, &s->nccl, &err), &err);
	library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
	s->control = dlsym(library, "double_nccl");
	assert_non_null(s->control);
	(void)dlclose(library);
	s->control->fail_call(NULL, 0, 0);
	s->control->polls(2);
	comm_make_id(s, &s->id);
	zd_cuda_comm_local_ranks_init(&s->local_ranks);
	s->nranks = s->world = nranks;
	for (uint32_t i = 0; i < nranks; i++)
		comm_open_rank(s, i);
}

static inline struct zd_cuda_comm_config comm_config(const struct comm_scene *s, uint32_t i)
{
	return (struct zd_cuda_comm_config){
	        .group = "world", .id = s->id, .nranks = s->world, .rank = s->first + i};
}

static inline struct zd_cuda_comm *comm_add(struct comm_scene *s, uint32_t i,
                                            const struct zd_cuda_comm_config *config)
{
	struct zd_cuda_comm *comm = NULL;
	struct zd_err err = ZD_ERR_NONE;

	comm_enter(s, i);
	comm_must(zd_cuda_comm_queue_add(&s->ranks[i].queue, config, &comm, &err), &err);
	return comm;
}

/* Once each; what has ended is taken. */
static inline void comm_poll_at(struct comm_scene *s, uint64_t now_ns)
{
	for (uint32_t i = 0; i < s->nranks; i++) {
		struct zd_cuda_comm_op *op;

		comm_enter(s, i);
		(void)zd_cuda_comm_queue_poll(&s->ranks[i].queue, now_ns);
		while ((op = zd_cuda_comm_queue_take(&s->ranks[i].queue)))
			((struct comm_op *)op)->taken = true;
	}
	(void)sched_yield();
}

/* Deadlines are far away but where a test says what time it is. */
static inline void comm_poll(struct comm_scene *s)
{
	comm_poll_at(s, 1);
}

#define COMM_AWAIT(s, condition)                                                                             \
	do {                                                                                                 \
		while (!(condition))                                                                         \
			comm_poll(s);                                                                        \
	} while (0)

/* All ranks connect, as `config` says for rank 0. */
static inline void comm_connect(struct comm_scene *s, bool checking)
{
	for (uint32_t i = 0; i < s->nranks; i++) {
		struct zd_cuda_comm_config config = comm_config(s, i);

		config.checking = checking;
		s->ranks[i].comm = comm_add(s, i, &config);
	}
	for (uint32_t i = 0; i < s->nranks; i++)
		COMM_AWAIT(s, s->ranks[i].comm->state != ZD_CUDA_COMM_CONNECTING);
}

static inline void comm_remove(struct comm_scene *s, uint32_t i, struct zd_cuda_comm *comm)
{
	COMM_AWAIT(s, zd_cuda_comm_is_over(comm) && comm->nops == 0);
	comm_enter(s, i);
	zd_cuda_comm_queue_remove(&s->ranks[i].queue, comm);
}

#define COMM_GIVE_BACK(rank, call) assert_true((call) == 0 || (rank)->lost)

static inline void comm_close_rank(struct comm_scene *s, uint32_t i)
{
	struct comm_rank *rank = &s->ranks[i];

	comm_enter(s, i);
	assert_false(zd_cuda_comm_queue_poll(&rank->queue, 1));
	zd_cuda_comm_queue_deinit(&rank->queue);
	COMM_GIVE_BACK(rank, s->cuda->memUnmap(rank->send, COMM_BYTES));
	COMM_GIVE_BACK(rank, s->cuda->memUnmap(rank->receive, COMM_BYTES));
	COMM_GIVE_BACK(rank, s->cuda->memAddressFree(rank->send, COMM_BYTES));
	COMM_GIVE_BACK(rank, s->cuda->memAddressFree(rank->receive, COMM_BYTES));
	assert_int_equal(s->cuda->ctxSetCurrent(NULL), 0);
	COMM_GIVE_BACK(rank, s->cuda->devicePrimaryCtxRelease((int)i));
	pthread_mutex_destroy(&rank->device.lock);
}

/* Ends the ranks' communicators, in order where they live, and gives all back. */
static inline void comm_close(struct comm_scene *s)
{
	for (uint32_t i = 0; i < s->nranks; i++)
		if (s->ranks[i].comm)
			zd_cuda_comm_end(s->ranks[i].comm);
	for (uint32_t i = 0; i < s->nranks; i++)
		if (s->ranks[i].comm)
			comm_remove(s, i, s->ranks[i].comm);
	for (uint32_t i = 0; i < s->nranks; i++)
		comm_close_rank(s, i);
	zd_cuda_comm_local_ranks_deinit(&s->local_ranks);
	assert_int_equal(s->control->comms(), 0);
	(void)alarm(0);
}

/* A test of `s` with so many ranks. */
#define COMM_TEST(name, nranks)                                                                              \
	TEST_DEFINE(name, struct comm_scene *s, struct comm_scene scene; struct comm_scene *s = &scene;      \
	            comm_open(s, nranks), (name(s), comm_close(s)), NULL, NULL)
/* The same when all of them have connected. */
#define CONNECTED_TEST(name, nranks, checking)                                                               \
	TEST_DEFINE(name, struct comm_scene *s, struct comm_scene scene; struct comm_scene *s = &scene;      \
	            (comm_open(s, nranks), comm_connect(s, checking)), (name(s), comm_close(s)), NULL, NULL)

/* ---- Memory -------------------------------------------------------------------------------------------- */

static inline void comm_write(const struct comm_scene *s, uint32_t i, zd_cu_ptr to, const void *from,
                              size_t bytes)
{
	comm_enter(s, i);
	assert_int_equal(s->cuda->memcpyHtoDAsync(to, from, bytes, NULL), 0);
	assert_int_equal(s->cuda->streamSynchronize(NULL), 0);
}

static inline void comm_read(const struct comm_scene *s, uint32_t i, void *to, zd_cu_ptr from, size_t bytes)
{
	comm_enter(s, i);
	assert_int_equal(s->cuda->memcpyDtoHAsync(to, from, bytes, NULL), 0);
	assert_int_equal(s->cuda->streamSynchronize(NULL), 0);
}

/* ---- Operations ---------------------------------------------------------------------------------------- */

static inline struct comm_op comm_op(const struct comm_scene *s, uint32_t i, struct zd_cuda_comm_call call)
{
	return (struct comm_op){
	        .op = {.call = call, .send = s->ranks[i].send, .receive = s->ranks[i].receive}};
}

static inline void comm_give(struct comm_scene *s, uint32_t i, struct comm_op *op)
{
	struct zd_err err = ZD_ERR_NONE;

	comm_must(zd_cuda_comm_queue_give(&s->ranks[i].queue, s->ranks[i].comm, &op->op, &err), &err);
}

static inline struct zd_cuda_comm_call comm_bytes(enum zd_cuda_comm_kind kind, uint64_t numel)
{
	return (struct zd_cuda_comm_call){.kind = kind, .dtype = ZEROD_UINT8, .numel = numel};
}

static inline void comm_expect_text(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("'%s' is not in '%s'", part, text);
}

#endif
