/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collective_scene.h - communicators through the backend's interface: two daemons in one process, each with
 * its own GPUs, over the doubles of the driver and of NCCL.
 *
 * Rank r of the world is on node r / `each`, device r % `each`. A rank's segment is what it sends from, one
 * half, and receives into. Every test is a case of its own (cases.h): NCCL is loaded once a process, and what
 * hangs is ended by an alarm.
 */
#ifndef ZD_TEST_COLLECTIVE_SCENE_H
#define ZD_TEST_COLLECTIVE_SCENE_H

#ifndef TEST_BACKEND
#define TEST_BACKEND zd_backend_cuda
#endif

#include <dlfcn.h>
#include <stdio.h>

#include "driver/nccl.h"
#include "executor/nccl/cuda_comm_ids.h"
#include "tests/double/nccl_control.h"
#include "tests/unit/driver/cases.h"
#include "tests/unit/executor/backend_fixture.h"

#define NODES      2u
#define RANKS      4u /* at most */
#define ROOM       (4 * MIB)
#define SENT       (ROOM / 2) /* what is sent lies before it, what is received behind */
#define UNTOUCHED  0xee
#define TIMELINE   ((uint32_t)ZD_MAX_DEVICES) /* of the first device's exchanges */
#define SECOND_NS  1000000000ull
#define GATHERS    1u /* numbers of communicators */
#define REDUCTIONS 2u
#define OTHER      3u

/* Long enough for what is to happen before, and no test's measure. */
__attribute__((unused)) static const struct zd_backend_config impatient = {
        .collective_timeout_ns = SECOND_NS / 5};

struct collective_scene {
	struct fixture *nodes[NODES];
	uint32_t each, world;
	uint8_t *memory[RANKS];
	unsigned char ids[8][ZD_UNIQUE_ID_BYTES];  /* of communicators 1 to 8 */
	const struct double_nccl_control *control; /* once NCCL has been loaded */
};

/* The backend makes unique ids by its program, which the test is here: to stand first in main(). */
#define ID_PROGRAM(argc, argv)                                                                               \
	do {                                                                                                 \
		if ((argc) > 1 && strcmp((argv)[1], ZD_CUDA_IDS_PROGRAM_ARG) == 0)                           \
			return zd_cuda_ids_main((argc)-2, (argv) + 2);                                       \
	} while (0)

/* ---- The scene ----------------------------------------------------------------------------------------- */

static inline struct fixture *node_of(const struct collective_scene *s, uint32_t rank)
{
	return s->nodes[rank / s->each];
}

static inline struct fixture *open_node(const struct zd_backend_config *settings, const char *devices)
{
	struct fixture *f = zd_calloc(1, sizeof(*f));
	struct zd_backend_config config = *settings;
	struct zd_err err = ZD_ERR_NONE;
	config.devices = devices;
	config.arena_bytes = 64 * MIB;
	config.done = done;
	config.done_arg = f;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->changed, NULL);
	if (ops->open(&config, &f->backend, &err))
		fail_msg("%s", err.text);
	return f;
}

/* `each` devices a node; of the settings those of communicators count. */
static inline void scene_open(struct collective_scene *s, uint32_t each,
                              const struct zd_backend_config *settings)
{
	static const struct zd_backend_config none;
	const char *deadline_ms = getenv("ZEROD_TEST_DEADLINE_MS");
	if (deadline_ms)
		(void)alarm((unsigned)(strtoul(deadline_ms, NULL, 10) / 1000 + 1));
	*s = (struct collective_scene){.each = each, .world = NODES * each};
	for (uint32_t i = 0; i < NODES; i++) {
		const char *devices = each == 1 ? (i == 0 ? "0" : "1") : (i == 0 ? "0,1" : "2,3");
		s->nodes[i] = open_node(settings ? settings : &none, devices);
	}
	for (uint32_t rank = 0; rank < s->world; rank++) {
		struct fixture *f = node_of(s, rank);
		assert_int_equal(create(f, rank % each, rank % each + 1, ROOM).completion.status, 0);
		s->memory[rank] = map_segment(f, rank % each + 1, ROOM);
	}
}

static inline void scene_close(struct collective_scene *s)
{
	for (uint32_t rank = 0; rank < s->world; rank++)
		munmap(s->memory[rank], ROOM);
	for (uint32_t i = 0; i < NODES; i++) {
		void *state = s->nodes[i];
		(void)close_all(&state);
	}
	if (s->control)
		assert_int_equal(s->control->comms(), 0);
}

static inline struct zd_command to_rank(const struct collective_scene *s, uint32_t rank,
                                        enum zd_command_kind kind)
{
	return (struct zd_command){.kind = kind, .device = rank % s->each};
}

static inline void expect_text(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("'%s' is not in '%s'", part, text);
}

/* The command has ended well; a failure is shown with its words. */
static inline struct record wait_ok(struct fixture *f, uint64_t op)
{
	struct record record = wait_op(f, op);
	if (record.completion.status != 0)
		fail_msg("%d: %s", record.completion.status, record.completion.error);
	return record;
}

static inline void wait_status(struct fixture *f, uint64_t op, int status)
{
	struct record record = wait_op(f, op);
	if (record.completion.status != status)
		fail_msg("%d: %s", record.completion.status, record.completion.error);
}

/* A test of `s`, between calls that open and close it, such as scene_open(s, 1, NULL). */
#define SCENE_TEST(name, open, close, ...)                                                                   \
	CASE_DEFINE(name, struct collective_scene *s, struct collective_scene scene = {.each = 0};           \
	            struct collective_scene *s = &scene;                                                     \
	            (open, name(s), close), .env = {"ZD_DOUBLE_LEAKS=1", __VA_ARGS__})

/* ---- Communicators ------------------------------------------------------------------------------------- */

static inline uint64_t ask_ids(struct collective_scene *s, uint32_t rank, uint32_t count)
{
	struct zd_command command = to_rank(s, rank, ZD_CMD_UNIQUE_IDS);
	command.u.ids.count = count;
	return submit(node_of(s, rank), command);
}

/* NCCL is loaded for good, by the first communicator at the latest. */
static inline void find_control(struct collective_scene *s)
{
	void *library = dlopen("libnccl.so.2", RTLD_NOW);
	assert_non_null(library);
	s->control = dlsym(library, "double_nccl");
	assert_non_null(s->control);
}

/* For the communicators 1 to `count`. */
static inline void scene_make_some_ids(struct collective_scene *s, uint32_t count)
{
	struct record record = wait_ok(s->nodes[0], ask_ids(s, 0, count));
	assert_int_equal(record.completion.result.values_bytes, count * ZD_UNIQUE_ID_BYTES);
	memcpy(s->ids, record.completion.result.values, count * ZD_UNIQUE_ID_BYTES);
	free(record.completion.result.values);
	find_control(s);
}

static inline void scene_make_ids(struct collective_scene *s)
{
	scene_make_some_ids(s, ZD_ARRAY_LEN(s->ids));
}

/* A rank's place in a communicator of all ranks, with the id of its number. */
static inline uint64_t open_comm_as(struct collective_scene *s, uint32_t rank, uint64_t comm,
                                    enum zd_comm_role role, uint32_t nranks)
{
	struct zd_command command = to_rank(s, rank, ZD_CMD_COMM_OPEN);
	command.u.comm_open = (struct zd_comm_desc){
	        .comm = comm, .group = "world", .role = role, .nranks = nranks, .rank = rank};
	memcpy(command.u.comm_open.id, s->ids[(comm - 1) % ZD_ARRAY_LEN(s->ids)], ZD_UNIQUE_ID_BYTES);
	return submit(node_of(s, rank), command);
}

/* Of one device of a node the core's numbers differ, across nodes they need not: here they do. */
static inline uint64_t comm_number(const struct collective_scene *s, uint32_t rank, uint64_t comm)
{
	return comm + 16 * (rank / s->each + 1);
}

static inline uint64_t open_comm(struct collective_scene *s, uint32_t rank, uint64_t comm)
{
	return open_comm_as(s, rank, comm_number(s, rank, comm),
	                    comm == REDUCTIONS ? ZD_COMM_REDUCTIONS : ZD_COMM_GATHERS, s->world);
}

static inline void scene_connect(struct collective_scene *s, uint64_t comm)
{
	uint64_t ops_of[RANKS];
	for (uint32_t rank = 0; rank < s->world; rank++)
		ops_of[rank] = open_comm(s, rank, comm);
	for (uint32_t rank = 0; rank < s->world; rank++)
		(void)wait_ok(node_of(s, rank), ops_of[rank]);
}

/* Open on both nodes: gathers and reductions of all ranks. */
static inline void scene_open_both(struct collective_scene *s, uint32_t each,
                                   const struct zd_backend_config *settings)
{
	scene_open(s, each, settings);
	scene_make_ids(s);
	scene_connect(s, GATHERS);
	scene_connect(s, REDUCTIONS);
}

static inline uint64_t close_comm(struct collective_scene *s, uint32_t rank, uint64_t comm, bool aborts)
{
	struct zd_command command = to_rank(s, rank, ZD_CMD_COMM_CLOSE);
	command.u.comm_close.comm = comm_number(s, rank, comm);
	command.u.comm_close.abort = aborts;
	return submit(node_of(s, rank), command);
}

static inline void scene_disconnect(struct collective_scene *s, uint64_t comm)
{
	uint64_t ops_of[RANKS];
	for (uint32_t rank = 0; rank < s->world; rank++)
		ops_of[rank] = close_comm(s, rank, comm, false);
	for (uint32_t rank = 0; rank < s->world; rank++)
		(void)wait_ok(node_of(s, rank), ops_of[rank]);
}

/* In order, both; and the end. */
static inline void scene_close_both(struct collective_scene *s)
{
	scene_disconnect(s, GATHERS);
	scene_disconnect(s, REDUCTIONS);
	scene_close(s);
}

/* ---- Exchanges ----------------------------------------------------------------------------------------- */

static inline struct zd_command exchange_of(struct collective_scene *s, uint32_t rank, uint64_t comm,
                                            uint64_t bytes, uint64_t send_stride, uint64_t receive_stride)
{
	struct zd_command command = to_rank(s, rank, ZD_CMD_EXCHANGE);
	uint32_t segment = rank % s->each + 1;
	command.u.exchange = (struct zd_exchange_desc){
	        .comm = comm_number(s, rank, comm),
	        .bytes = bytes,
	        .send = at(segment, 0, SENT),
	        .receive = at(segment, SENT, ROOM - SENT),
	        .send_stride = send_stride,
	        .receive_stride = receive_stride,
	        .what = "a test's exchange",
	};
	return command;
}

static inline uint64_t give(struct collective_scene *s, uint32_t rank, struct zd_command command)
{
	return submit(node_of(s, rank), command);
}

/* A small one of blocks that lie apart; with a value, its fence on the rank's session. */
static inline uint64_t give_small(struct collective_scene *s, uint32_t rank, uint64_t comm, uint64_t value)
{
	struct zd_command command = exchange_of(s, rank, comm, KIB, 2 * KIB, 2 * KIB);
	if (value)
		command.signal = (struct zd_signal){SESSION, TIMELINE + command.device, value};
	return give(s, rank, command);
}

static inline uint64_t give_value(struct collective_scene *s, uint32_t rank, uint64_t comm, const void *value,
                                  uint32_t bytes)
{
	struct zd_command command = to_rank(s, rank, ZD_CMD_AGREE);
	command.u.agree.comm = comm_number(s, rank, comm);
	command.u.agree.bytes = bytes;
	command.u.agree.what = "a test's values";
	memcpy(command.u.agree.value, value, bytes);
	return give(s, rank, command);
}

/* The rank's thread has taken all that it was given before, and has looked at it since. */
static inline void wait_for_thread(struct collective_scene *s, uint32_t rank)
{
	for (int i = 0; i < 2; i++) {
		struct zd_command nothing = to_rank(s, rank, ZD_CMD_COMM_CLOSE);
		(void)wait_ok(node_of(s, rank), submit(node_of(s, rank), nothing));
	}
}

#endif
