/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_scene.h - tests of libzerod on GPUs: the contract's ranks over the driver's double, each test in a
 * process of its own, since the double reads its environment once a process.
 */
#ifndef ZD_TESTS_CUDA_SCENE_H
#define ZD_TESTS_CUDA_SCENE_H

#include "base/err.h"
#include "base/mem.h"
#include "driver/driver.h"
#include "tests/contract/contract_internal.h"
#include "tests/support/options.h"
#include "tests/unit/driver/cases.h"

#define SCENE_NUMEL          1000u
#define SCENE_IN_PLACE_NUMEL (2u << 20) /* of two ranks: slices of 4 MiB, each gathered by one push */

/* The driver, in this process; what is put into the environment from here on is the daemon's alone. */
static inline const struct zd_cuda *scene_driver(void)
{
	const struct zd_cuda *driver = NULL;
	struct zd_err err = ZD_ERR_NONE;

	if (zd_cuda_load(&driver, &err))
		fail_msg("%s", err.text);
	return driver;
}

static inline void scene_make_current(int ordinal)
{
	struct CUctx_st *context = NULL;

	assert_int_equal(scene_driver()->devicePrimaryCtxRetain(&context, ordinal), 0);
	assert_int_equal(scene_driver()->ctxSetCurrent(context), 0);
}

/* A stream that is not wrapped. */
static inline struct CUstream_st *scene_stream(int ordinal)
{
	struct CUstream_st *made = NULL;

	scene_make_current(ordinal);
	assert_int_equal(scene_driver()->streamCreateWithPriority(&made, ZD_CU_STREAM_NON_BLOCKING, 0), 0);
	return made;
}

/* The stream waits until the word that is returned is 1. */
static inline uint64_t *scene_hold(struct CUstream_st *stream)
{
	const struct zd_cuda *driver = scene_driver();
	void *word = NULL;
	zd_cu_ptr at = 0;

	assert_int_equal(driver->memHostAlloc(&word, sizeof(uint64_t), ZD_CU_HOST_ALLOC_DEVICEMAP), 0);
	*(uint64_t *)word = 0;
	assert_int_equal(driver->memHostGetDevicePointer(&at, word, 0), 0);
	assert_int_equal(driver->streamWaitValue64(stream, at, 1, ZD_CU_WAIT_GEQ), 0);
	return word;
}

static inline void scene_let_go(uint64_t *word)
{
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
}

/* Two ranks, and a unit in its first version. */
static inline struct contract *scene_open_with(struct contract_unit *unit, uint64_t numel)
{
	struct contract *c = contract_open(NULL);

	contract_plain_unit(c, "w", numel, unit);
	contract_publish_all(c, unit);
	return c;
}

static inline struct contract *scene_open(struct contract_unit *unit)
{
	return scene_open_with(unit, SCENE_NUMEL);
}

/* ---- Threads that use one stream of their rank, and one each ------------------------------------------- */

struct scene_user {
	struct contract_unit *unit;
	zerod_stream *own, *shared;
	const char *tag;
	void (*gather)(const struct scene_user *user, struct contract_rank *rank, unsigned round,
	               void **data);
	unsigned rounds;
};

static inline void scene_use_streams(struct contract_rank *rank, void *arg)
{
	const struct scene_user *user = arg;
	zerod_stream *const both[] = {user->own, user->shared};
	uint8_t *seen = zd_calloc(1, contract_padded_bytes(user->unit));
	bool same = true;

	for (unsigned i = 0; i < user->rounds; i++) {
		void *data = NULL;

		user->gather(user, rank, i, &data);
		contract_read(user->own, seen, data, contract_padded_bytes(user->unit));
		OK(rank->client,
		   zerod_release(user->unit->at[rank->number], both, 2, TAGGED(user->tag), NULL));
		contract_sync(rank, user->own);
		same &= contract_bytes_are(user->unit, seen, 1);
	}
	free(seen);
	CHECK(same);
}

/* Two threads of each of two ranks, of which each uses a unit of these, under a tag of these. */
static inline void scene_run_users(struct contract *c, struct contract_unit *const units[2],
                                   const char *const tags[2], const struct scene_user *like)
{
	struct contract_task *tasks[4];
	struct scene_user users[4];

	for (unsigned rank = 0; rank < 2; rank++) {
		zerod_stream *shared = contract_stream(&c->ranks[rank]);

		for (unsigned i = 0; i < 2; i++) {
			struct scene_user *user = &users[2 * rank + i];

			*user = *like;
			user->unit = units[i];
			user->own = contract_stream(&c->ranks[rank]);
			user->shared = shared;
			user->tag = tags[i];
		}
	}
	for (unsigned i = 0; i < 4; i++) /* when all streams are there */
		tasks[i] = contract_start(&c->ranks[i / 2], scene_use_streams, &users[i]);
	for (unsigned i = 0; i < 4; i++)
		contract_finish(tasks[i]);
	AWAIT(contract_devices(c).quarantine_bytes == 0);
}

static inline int scene_main(int argc, char **argv)
{
	if (argc == 1) { /* a case has what its definition says */
		(void)setenv("ZEROD_TEST_BACKEND", "cuda", 1);
		(void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
		(void)setenv("ZD_DOUBLE_DEVICES", "4", 1);
	}
	return case_run_all(argc, argv);
}

#endif
