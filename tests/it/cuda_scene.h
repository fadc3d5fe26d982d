/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_scene.h - tests of libzerod on GPUs: the contract's ranks over the driver's double, each test in a
 * process of its own, since the double reads its environment once a process.
 */
#ifndef ZD_TESTS_CUDA_SCENE_H
#define ZD_TESTS_CUDA_SCENE_H

#include "base/err.h"
#include "driver/driver.h"
#include "tests/contract/contract_internal.h"
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

static inline int scene_main(struct a_case *cases, size_t count, int argc, char **argv)
{
	if (argc == 1) { /* a case has what its table says */
		(void)setenv("ZEROD_TEST_BACKEND", "cuda", 1);
		(void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
		(void)setenv("ZD_DOUBLE_DEVICES", "4", 1);
	}
	return case_main(cases, count, argc, argv);
}

#endif
