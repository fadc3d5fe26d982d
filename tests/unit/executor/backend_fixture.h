/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend_fixture.h - a backend under test: records completions by op, makes commands, and looks as a client
 * does. The host backend, or what TEST_BACKEND says: the cuda backend over the driver's double, whose memory
 * files can be mapped.
 *
 * A test that must know what an executor is doing holds it inside the completion of one op (the gate);
 * nothing here sleeps or depends on how fast anything is.
 */
#ifndef ZD_TEST_BACKEND_FIXTURE_H
#define ZD_TEST_BACKEND_FIXTURE_H

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "executor/backend.h"
#include "tests/support/test.h"

#define MAX_OPS    1024u
#define DEADLINE_S 60
#define KIB        ((uint64_t)1 << 10)
#define MIB        ((uint64_t)1 << 20)
#define SESSION    7u
#define PAGE_BYTES (sizeof(uint64_t) * ZD_TIMELINES)

struct record {
	unsigned times;
	unsigned order; /* 1: completed first */
	struct zd_completion completion;
};

struct fixture {
	struct zd_backend *backend;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct record records[MAX_OPS];
	unsigned completed;
	uint64_t last_op; /* given out by next_op() */
	uint64_t gate_op; /* its completion stays in its executor until the gate opens */
	bool gate_open;
};

#ifndef TEST_BACKEND
#define TEST_BACKEND zd_backend_host
#endif

static const struct zd_backend_ops *const ops = &TEST_BACKEND;

/* ---- Completions --------------------------------------------------------------------------------------- */

static inline struct timespec deadline(void)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += DEADLINE_S;
	return until;
}

static inline void done(void *arg, const struct zd_completion *completion)
{
	struct fixture *f = arg;
	pthread_mutex_lock(&f->lock);
	struct record *record = &f->records[completion->op];
	record->times++;
	record->order = ++f->completed;
	record->completion = *completion;
	pthread_cond_broadcast(&f->changed);
	while (completion->op == f->gate_op && !f->gate_open)
		pthread_cond_wait(&f->changed, &f->lock);
	pthread_mutex_unlock(&f->lock);
}

static inline struct record wait_op(struct fixture *f, uint64_t op)
{
	struct timespec until = deadline();
	int rc = 0;
	pthread_mutex_lock(&f->lock);
	while (f->records[op].times == 0 && rc == 0)
		rc = pthread_cond_timedwait(&f->changed, &f->lock, &until);
	struct record record = f->records[op];
	pthread_mutex_unlock(&f->lock);
	assert_int_equal(record.times, 1);
	return record;
}

static inline unsigned times_completed(struct fixture *f, uint64_t op)
{
	pthread_mutex_lock(&f->lock);
	unsigned times = f->records[op].times;
	pthread_mutex_unlock(&f->lock);
	return times;
}

static inline void set_gate(struct fixture *f, uint64_t op, bool open)
{
	pthread_mutex_lock(&f->lock);
	f->gate_op = op;
	f->gate_open = open;
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->lock);
}

static inline uint64_t next_op(struct fixture *f)
{
	assert_true(f->last_op + 1 < MAX_OPS);
	return ++f->last_op;
}

/* ---- Commands ------------------------------------------------------------------------------------------ */

static inline uint64_t submit(struct fixture *f, struct zd_command command)
{
	command.op = next_op(f);
	ops->submit(f->backend, &command);
	return command.op;
}

static inline struct record create(struct fixture *f, uint32_t device, uint32_t segment, uint64_t bytes)
{
	struct zd_command command = {.kind = ZD_CMD_SEGMENT_CREATE, .device = device};
	command.u.segment.segment = segment;
	command.u.segment.bytes = bytes;
	return wait_op(f, submit(f, command));
}

static inline struct zd_location at(uint32_t segment, uint64_t offset, uint64_t bytes)
{
	return (struct zd_location){segment, offset, bytes};
}

static inline struct zd_command copy(uint32_t device, struct zd_location src, uint32_t dst_device,
                                     struct zd_location dst)
{
	struct zd_command command = {.kind = ZD_CMD_COPY, .device = device};
	command.u.copy.src = src;
	command.u.copy.dst_device = dst_device;
	command.u.copy.dst = dst;
	return command;
}

static inline struct zd_command fill(uint32_t device, struct zd_location where)
{
	struct zd_command command = {.kind = ZD_CMD_FILL, .device = device};
	command.u.fill.dst = where;
	return command;
}

static inline struct zd_command watch(uint32_t device, uint64_t session, uint32_t nfences,
                                      const struct zd_fence *fences)
{
	struct zd_command command = {.kind = ZD_CMD_WATCH, .device = device};
	command.u.watch.session = session;
	command.u.watch.nfences = nfences;
	command.u.watch.fences = fences;
	return command;
}

/* ---- What a client sees -------------------------------------------------------------------------------- */

static inline uint8_t *map_segment(struct fixture *f, uint32_t segment, uint64_t bytes)
{
	int fd = ops->segment_fd(f->backend, segment);
	assert_true(fd >= 0);
	void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(mapped, MAP_FAILED);
	return mapped;
}

struct client {
	int client_fd, daemon_fd;
	_Atomic uint64_t *client_page, *daemon_page;
};

static inline int open_pidfd(pid_t pid)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	assert_true(pidfd >= 0);
	return pidfd;
}

static inline struct client open_session(struct fixture *f, uint64_t session)
{
	struct client c = {.client_fd = -1};
	struct zd_err err = ZD_ERR_NONE;
	int pidfd = open_pidfd(getpid());
	assert_int_equal(
	        ops->session_open(f->backend, session, getpid(), pidfd, &c.client_fd, &c.daemon_fd, &err), 0);
	(void)close(pidfd);
	c.client_page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, c.client_fd, 0);
	c.daemon_page = mmap(NULL, PAGE_BYTES, PROT_READ, MAP_SHARED, c.daemon_fd, 0);
	assert_ptr_not_equal(c.client_page, MAP_FAILED);
	assert_ptr_not_equal(c.daemon_page, MAP_FAILED);
	return c;
}

static inline void forget_session(struct client *c)
{
	munmap(c->client_page, PAGE_BYTES);
	munmap(c->daemon_page, PAGE_BYTES);
	close(c->client_fd);
	close(c->daemon_fd);
}

/* As libzerod waits: sleeps in futex(2) on the low word until the counter has reached the value. */
static inline void wait_counter(_Atomic uint64_t *counter, uint64_t value)
{
	const struct timespec patience = {.tv_sec = DEADLINE_S};
	uint64_t seen;
	while (!zd_fence_reached(seen = atomic_load_explicit(counter, memory_order_acquire), value)) {
		long rc = syscall(SYS_futex, counter, FUTEX_WAIT, (uint32_t)seen, &patience, NULL, 0);
		assert_true(rc == 0 || errno == EAGAIN || errno == EINTR);
	}
}

/* ---- Setup --------------------------------------------------------------------------------------------- */

static inline int open_devices(void **state, uint32_t ndevices)
{
	struct fixture *f = zd_calloc(1, sizeof(*f));
	struct zd_backend_config config = {
	        .ndevices = ndevices,
	        .devices = ndevices == 2 ? "0,1" : "0,1,2,3",
	        .arena_bytes = 64 * MIB,
	        .done = done,
	        .done_arg = f,
	};
	struct zd_err err = ZD_ERR_NONE;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->changed, NULL);
	*state = f;
	return ops->open(&config, &f->backend, &err);
}

static inline int open_two(void **state)
{
	return open_devices(state, 2);
}

static inline int open_four(void **state)
{
	return open_devices(state, 4);
}

static inline void close_backend(struct fixture *f)
{
	ops->close(f->backend);
	f->backend = NULL;
}

/* Checks that each command has ended once, and forgets the records. Values have been freed by the tests that
 * requested them. */
static inline void forget_records(struct fixture *f)
{
	for (uint64_t op = 1; op <= f->last_op; op++) {
		assert_int_equal(f->records[op].times, 1);
		free(f->records[op].completion.error);
	}
	memset(f->records, 0, sizeof(f->records));
	f->last_op = 0;
}

static inline int close_all(void **state)
{
	struct fixture *f = *state;
	close_backend(f);
	forget_records(f);
	pthread_cond_destroy(&f->changed);
	pthread_mutex_destroy(&f->lock);
	free(f);
	return 0;
}

/* A test of a backend that setup opens. */
#define BACKEND_TEST(name, setup) FIXTURE_TEST(name, struct fixture *f, setup, close_all)

#endif
