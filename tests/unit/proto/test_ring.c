/* SPDX-License-Identifier: Apache-2.0 */
/* test_ring.c - packets through shared memory, and what a writer or a reader that keeps to nothing can do:
 * nothing. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "proto/ring.h"
#include "tests/support/rounds.h"
#include "tests/support/test.h"

#define HEADER_BYTES 8u
#define MOST_BYTES   (ZD_RING_BYTES - HEADER_BYTES)
#define NONE         1

struct scene {
	struct zd_ring *ring;
	struct zd_ring_end writer, reader;
	uint8_t out[ZD_RING_BYTES], in[ZD_RING_BYTES];
};

static int setup(void **state)
{
	struct scene *scene = zd_calloc(1, sizeof(*scene));

	scene->ring = aligned_alloc(64, sizeof(*scene->ring));
	assert_non_null(scene->ring);
	memset(scene->ring, 0, sizeof(*scene->ring));
	scene->writer.ring = scene->reader.ring = scene->ring;
	*state = scene;
	return 0;
}

static int teardown(void **state)
{
	struct scene *scene = *state;

	free(scene->ring);
	free(scene);
	return 0;
}

#define SCENE_TEST(name) FIXTURE_TEST(name, struct scene *scene, setup, teardown)

static const uint8_t *content(struct scene *scene, size_t nbytes, unsigned number)
{
	for (size_t i = 0; i < nbytes; i++)
		scene->out[i] = (uint8_t)(number * 31 + i * 7 + i / 251);
	return scene->out;
}

static bool write_packet(struct scene *scene, size_t nbytes, unsigned number)
{
	return zd_ring_write(&scene->writer, content(scene, nbytes, number), nbytes, 0);
}

static void read_packet(struct scene *scene, size_t nbytes, unsigned number)
{
	size_t got = 0;

	assert_true(zd_ring_is_due(&scene->reader, 0));
	assert_int_equal(zd_ring_read(&scene->reader, 0, scene->in, &got, NULL), 0);
	assert_int_equal(got, nbytes);
	assert_memory_equal(scene->in, content(scene, nbytes, number), nbytes);
}

static int read_status(struct scene *scene, uint32_t after)
{
	size_t got;
	struct zd_err err;

	return zd_ring_read(&scene->reader, after, scene->in, &got, &err);
}

/* Every length, at every place that the lengths before it lead to: many of them lie across the end. */
SCENE_TEST(test_what_is_written_is_read)
{
	for (unsigned nbytes = 1; nbytes <= MOST_BYTES; nbytes += nbytes < 100 ? 1 : 97) {
		assert_true(write_packet(scene, nbytes, nbytes));
		read_packet(scene, nbytes, nbytes);
		assert_int_equal(read_status(scene, 0), NONE);
	}
	assert_true(write_packet(scene, MOST_BYTES, 1));
	read_packet(scene, MOST_BYTES, 1);
	assert_true(scene->reader.place > 10ull * ZD_RING_BYTES);
}

SCENE_TEST(test_a_full_ring_takes_nothing)
{
	unsigned written = 0;

	assert_false(write_packet(scene, MOST_BYTES + 1, 0));
	assert_false(zd_ring_write(&scene->writer, scene->out, SIZE_MAX, 0));
	while (write_packet(scene, 1000, written))
		written++;
	assert_int_equal(written, ZD_RING_BYTES / (1000 + HEADER_BYTES));
	assert_false(write_packet(scene, 1000, written));
	for (unsigned i = 0; i < written; i++)
		read_packet(scene, 1000, i);
	assert_int_equal(read_status(scene, 0), NONE);
	assert_true(write_packet(scene, MOST_BYTES, written));
	read_packet(scene, MOST_BYTES, written);
}

SCENE_TEST(test_what_comes_by_the_socket_first)
{
	for (uint32_t round = 0; round < 4; round++) {
		uint32_t after = UINT32_MAX - 1 + round; /* beyond the largest it goes on from 0 */

		assert_true(zd_ring_write(&scene->writer, "late", 4, after));
		assert_false(zd_ring_is_due(&scene->reader, after - 1));
		assert_int_equal(read_status(scene, after - 1), NONE);
		assert_true(zd_ring_is_due(&scene->reader, after));
		assert_int_equal(read_status(scene, after), 0);
		assert_memory_equal(scene->in, "late", 4);
	}
	assert_true(zd_ring_write(&scene->writer, "never", 5, 2));
	assert_true(zd_ring_is_due(&scene->reader, 3)); /* so that somebody sees what is wrong */
	assert_int_equal(read_status(scene, 3), ZEROD_E_PROTOCOL);
}

struct lie {
	uint64_t tail;
	uint32_t nbytes;
};

SCENE_TEST(test_writers_that_lie)
{
	static const struct lie lies[] = {
	        {1, 1},
	        {7, 1},
	        {8, 0},
	        {8, 1},
	        {8, UINT32_MAX},
	        {16, 0},
	        {16, 9},
	        {15, 7},
	        {ZD_RING_BYTES, MOST_BYTES + 1},
	        {ZD_RING_BYTES, UINT32_MAX},
	        {ZD_RING_BYTES + 8, 8},
	        {1ull << 63, 8},
	        {UINT64_MAX, 8},
	};
	struct zd_err err;
	size_t got;

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		memcpy(scene->ring->data, &lies[i].nbytes, sizeof(lies[i].nbytes));
		atomic_store(&scene->ring->tail, lies[i].tail);
		assert_true(zd_ring_is_due(&scene->reader, 0));
		assert_int_equal(zd_ring_read(&scene->reader, 0, scene->in, &got, &err), ZEROD_E_PROTOCOL);
		assert_non_null(strstr(err.text, "a ring with"));
		assert_int_equal(scene->reader.place, 0);
	}
}

static uint32_t next_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*seed >> 33);
}

/* The reader's own memory stays whole: what looks over it would see that it does not. */
/* As the daemon leaves it at the session's end: whatever was there to be read. */
SCENE_TEST(test_an_emptied_ring)
{
	for (unsigned i = 0; i < 3; i++)
		assert_true(write_packet(scene, 100, i));
	read_packet(scene, 100, 0);
	memset(scene->ring, 0, sizeof(*scene->ring));
	assert_false(zd_ring_is_due(&scene->reader, 0));
	assert_int_equal(read_status(scene, 0), NONE);
}

#define MOST_ROUNDS 500000u
#define MOST_STEPS  1024u

struct emptying {
	struct zd_ring *ring;
	atomic_uint round, done;
};

/* As memory goes that is taken out of a file: who sees the packet's header gone sees the tail gone. */
static void *empty_all(void *arg)
{
	struct emptying *emptying = arg;

	for (unsigned round = 1; rounds_await(&emptying->round, round); round++) {
		atomic_store(&emptying->ring->tail, 0);
		__atomic_store_n((uint64_t *)emptying->ring->data, 0, __ATOMIC_RELEASE);
		emptying->done = round;
	}
	return NULL;
}

SCENE_TEST(test_a_ring_that_is_emptied_meanwhile)
{
	struct emptying emptying = {.ring = scene->ring};
	struct rounds rounds = rounds_of(MOST_ROUNDS);
	cpu_set_t allowed;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, empty_all, &emptying), 0);
	rounds_pin(thread, &allowed);
	while (rounds_next(&rounds)) {
		unsigned looks = 0;

		scene->writer.place = scene->reader.place = 0;
		atomic_store(&scene->ring->head, 0);
		assert_true(write_packet(scene, 8, 0));
		emptying.round = rounds.begun;
		rounds_dally(rounds.begun % MOST_STEPS); /* until the other thread may have seen it */
		do {
			int rc = read_status(scene, 0);

			assert_true(rc == 0 || rc == NONE);
			rounds_look_again(&looks);
		} while (emptying.done < rounds.begun);
	}
	rounds_unpin(&allowed);
	emptying.round = ROUNDS_OVER;
	pthread_join(thread, NULL);
}

SCENE_TEST(test_rings_full_of_noise)
{
	uint64_t seed = 1;

	for (unsigned round = 0; round < 2000; round++) {
		uint8_t *at = (uint8_t *)scene->ring;

		for (unsigned i = 0; i < 64; i++)
			at[next_random(&seed) % sizeof(*scene->ring)] = (uint8_t)next_random(&seed);
		atomic_store(&scene->ring->tail,
		             scene->reader.place + next_random(&seed) % (ZD_RING_BYTES + 64));
		for (unsigned i = 0; i < 8; i++)
			(void)read_status(scene, next_random(&seed) % 2);
	}
}

SCENE_TEST(test_readers_that_lie)
{
	assert_true(write_packet(scene, 100, 0));
	atomic_store(&scene->ring->head, 1u << 20); /* more than was written */
	assert_false(write_packet(scene, 1, 0));
	atomic_store(&scene->ring->head, (uint64_t)0 - ZD_RING_BYTES); /* less than there is room for */
	assert_false(write_packet(scene, 1, 0));
	atomic_store(&scene->ring->head, 0);
	assert_true(write_packet(scene, 1, 1));
	read_packet(scene, 100, 0);
	read_packet(scene, 1, 1);
}

#define MOST_PACKETS 20000u
#define LAST_BYTES   3001u /* no other packet is that long */

static size_t length_of(unsigned number)
{
	return number == ROUNDS_OVER ? LAST_BYTES : 1 + (number * 37u) % 3000;
}

static void *write_all(void *arg)
{
	struct rounds rounds = rounds_of(MOST_PACKETS);
	struct zd_ring_end end = {.ring = arg};
	uint8_t bytes[LAST_BYTES];
	unsigned number;

	do {
		number = rounds_next(&rounds) ? rounds.begun : ROUNDS_OVER;
		memset(bytes, (int)(number % 251), length_of(number));
		while (!zd_ring_write(&end, bytes, length_of(number), 0))
			sched_yield();
	} while (number != ROUNDS_OVER);
	return NULL;
}

SCENE_TEST(test_two_threads)
{
	unsigned received = 0;
	size_t got = 0;
	pthread_t writer;

	assert_int_equal(pthread_create(&writer, NULL, write_all, scene->ring), 0);
	while (got != LAST_BYTES) {
		unsigned number;
		int rc;

		while ((rc = zd_ring_read(&scene->reader, 0, scene->in, &got, NULL)) == NONE)
			sched_yield();
		assert_int_equal(rc, 0);
		number = got == LAST_BYTES ? ROUNDS_OVER : ++received;
		assert_int_equal(got, length_of(number));
		memset(scene->out, (int)(number % 251), got);
		assert_memory_equal(scene->in, scene->out, got);
	}
	assert_int_equal(pthread_join(writer, NULL), 0);
	assert_true(received > 0);
	assert_int_equal(read_status(scene, 0), NONE);
}
