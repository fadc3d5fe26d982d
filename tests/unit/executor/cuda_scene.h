/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_scene.h - what tests of GPUs that fail begin with: a segment on each GPU, pushes, and copies that go
 * round. */
#ifndef ZD_TEST_CUDA_SCENE_H
#define ZD_TEST_CUDA_SCENE_H

#include "tests/unit/driver/cases.h"
#include "tests/unit/executor/backend_fixture.h"

#define SEGMENT (12 * MIB)
#define LARGE   (5 * MIB)

static inline struct fixture *open_fixture(void **state, uint32_t ndevices)
{
	assert_int_equal(open_devices(state, ndevices), 0);
	return *state;
}

/* A case of `f` with so many GPUs, and an environment. */
#define GPUS_TEST(name, ndevices, ...)                                                                       \
	CASE_DEFINE(name, struct fixture *f, struct fixture *f = open_fixture(state, ndevices);              \
	            (name(f), close_all(state)), .env = {__VA_ARGS__})
/* The same with a session, whose client is `c`. */
#define SESSION_PARAMETERS struct fixture *f, struct client *c
#define SESSION_TEST(name, ndevices, ...)                                                                    \
	CASE_DEFINE(name, SESSION_PARAMETERS, struct fixture *f = open_fixture(state, ndevices);             \
	            struct client c = open_session(f, SESSION);                                              \
	            (name(f, &c), forget_session(&c), close_all(state)), .env = {__VA_ARGS__})

static inline struct zd_command push_of(uint32_t from, uint32_t to, uint64_t value)
{
	struct zd_command push = copy(from, at(from + 1, 0, MIB), to, at(to + 1, MIB, MIB));
	push.signal = (struct zd_signal){SESSION, from, value};
	return push;
}

static inline void make_segments(struct fixture *f, uint32_t ndevices)
{
	for (uint32_t i = 0; i < ndevices; i++)
		assert_int_equal(create(f, i, i + 1, SEGMENT).completion.status, 0);
}

static inline struct zd_command round_of(uint64_t bytes, uint64_t value)
{
	struct zd_command round = copy(0, at(1, 0, bytes), 0, at(1, SEGMENT / 2, bytes));
	round.signal = (struct zd_signal){SESSION, 0, value};
	return round;
}

#endif
