/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_collectives_faults.c - communicators through the backend's interface when a call of NCCL or of
 * the driver fails: each call once. Whatever fails, every command ends once, every waiter is freed, no data
 * is wrong where a command succeeded, and all is given back.
 */
#include <sched.h>

#include "tests/unit/executor/collective_scene.h"

#define BLOCK (64 * KIB)

static const struct zd_backend_config checking = {.check_collectives = true};

/* ---- A program of everything --------------------------------------------------------------------------- */

/* Both ranks' commands end; when one fails the other's communicators are aborted, as its group would be.
 * True: both ended well. */
static bool wait_both(struct collective_scene *s, const uint64_t ops_of[NODES])
{
	bool aborted = false, ended = false, well = true;
	while (!ended) {
		ended = true;
		for (uint32_t rank = 0; rank < NODES; rank++) {
			bool has = times_completed(s->nodes[rank], ops_of[rank]) > 0;
			ended &= has;
			if (has && wait_op(s->nodes[rank], ops_of[rank]).completion.status != 0)
				well = false;
		}
		for (uint32_t rank = 0; rank < NODES && !well && !aborted; rank++) {
			(void)close_comm(s, rank, GATHERS, true);
			(void)close_comm(s, rank, REDUCTIONS, true);
		}
		aborted |= !well;
		(void)sched_yield();
	}
	for (uint32_t rank = 0; rank < NODES && !well; rank++) {
		struct zd_completion completion = wait_op(s->nodes[rank], ops_of[rank]).completion;
		assert_true(completion.status == 0 || (completion.error && completion.error[0] != '\0'));
	}
	return well;
}

static bool open_both(struct collective_scene *s, uint64_t comm)
{
	uint64_t ops_of[NODES];
	for (uint32_t rank = 0; rank < NODES; rank++)
		ops_of[rank] = open_comm(s, rank, comm);
	return wait_both(s, ops_of);
}

static bool exchange_both(struct collective_scene *s, uint64_t comm, uint64_t send_stride, uint64_t value,
                          struct client c[NODES])
{
	uint64_t ops_of[NODES];
	bool well;
	for (uint32_t rank = 0; rank < NODES; rank++) {
		struct zd_command command = exchange_of(s, rank, comm, BLOCK, send_stride, BLOCK);
		command.signal = (struct zd_signal){SESSION, TIMELINE, value};
		memset(s->memory[rank], (int)(16 * value + rank), SENT);
		memset(s->memory[rank] + SENT, UNTOUCHED, ROOM - SENT);
		ops_of[rank] = give(s, rank, command);
	}
	well = wait_both(s, ops_of);
	for (uint32_t rank = 0; rank < NODES; rank++) {
		uint8_t *received = s->memory[rank] + SENT + (1 - rank) * BLOCK;
		bool ended_well = wait_op(s->nodes[rank], ops_of[rank]).completion.status == 0;
		uint64_t counter = atomic_load(&c[rank].daemon_page[TIMELINE]);
		assert_true(ended_well ? counter >= value : counter == ZD_FENCE_ABORTED);
		for (uint64_t i = 0; i < BLOCK && ended_well; i += 997)
			assert_int_equal(received[i], 16 * value + (1 - rank));
	}
	return well;
}

static bool agree_both(struct collective_scene *s)
{
	uint64_t ops_of[NODES];
	bool well;
	for (uint32_t rank = 0; rank < NODES; rank++)
		ops_of[rank] = give_value(s, rank, REDUCTIONS, rank == 0 ? "zero" : "one!", 4);
	well = wait_both(s, ops_of);
	for (uint32_t rank = 0; rank < NODES; rank++) {
		struct zd_completion completion = wait_op(s->nodes[rank], ops_of[rank]).completion;
		if (completion.status == 0)
			assert_memory_equal(completion.result.values, "zeroone!", 8);
		else
			assert_null(completion.result.values);
		free(completion.result.values);
	}
	return well;
}

/* Working communicators are closed in order, failed ones with an abort. Both ways their remaining operations
 * end. */
static void close_both(struct collective_scene *s, bool well)
{
	for (uint64_t comm = GATHERS; comm <= REDUCTIONS; comm++) {
		uint64_t ops_of[NODES];
		for (uint32_t rank = 0; rank < NODES; rank++)
			ops_of[rank] = close_comm(s, rank, comm, !well);
		for (uint32_t rank = 0; rank < NODES; rank++)
			(void)wait_ok(s->nodes[rank], ops_of[rank]);
	}
}

/* Of communicators with ids of their own. */
static void run_everything(struct collective_scene *s, struct client c[NODES], uint64_t value)
{
	bool well = open_both(s, GATHERS) && open_both(s, REDUCTIONS) &&
	            exchange_both(s, GATHERS, 0, value, c) &&
	            exchange_both(s, REDUCTIONS, BLOCK, value + 1, c) && agree_both(s);
	close_both(s, well);
}

static void reset(struct collective_scene *s, uint64_t value)
{
	struct zd_command command = {.kind = ZD_CMD_SIGNAL, .signal = {SESSION, TIMELINE, value}};
	for (uint32_t rank = 0; rank < NODES; rank++)
		(void)wait_op(s->nodes[rank], give(s, rank, command));
}

/* ---- NCCL ---------------------------------------------------------------------------------------------- */

/* The threads of both nodes go on: what failed takes nothing else along. */
static void test_every_call_of_nccl_fails_once(void **state)
{
	struct collective_scene s;
	struct client c[NODES];
	unsigned nth = 0, calls;
	(void)state;
	scene_open(&s, 1, &checking);
	for (uint32_t rank = 0; rank < NODES; rank++)
		c[rank] = open_session(s.nodes[rank], SESSION);
	do {
		for (uint32_t i = 0; i < NODES; i++)
			forget_records(s.nodes[i]);
		scene_make_some_ids(&s, REDUCTIONS);
		reset(&s, 0);
		s.control->polls(1);
		s.control->fail_call(NULL, ++nth, ZD_NCCL_INTERNAL_ERROR);
		run_everything(&s, c, 1);
		calls = s.control->calls();
		s.control->fail_call(NULL, 0, 0);
	} while (calls >= nth);
	print_message("%u calls\n", nth - 1);
	assert_true(nth > 30);
	for (uint32_t rank = 0; rank < NODES; rank++)
		forget_session(&c[rank]);
	scene_close(&s);
}

/* ---- The driver ---------------------------------------------------------------------------------------- */

/* False: the call that failed was one of the backend's start. */
static bool try_to_open(struct collective_scene *s)
{
	static const char *const devices[] = {"0", "1"};
	bool well = true;
	*s = (struct collective_scene){.each = 1, .world = NODES};
	for (uint32_t i = 0; i < NODES; i++) {
		struct fixture *f = zd_calloc(1, sizeof(*f));
		struct zd_backend_config config = checking;
		config.devices = devices[i];
		config.arena_bytes = 64 * MIB;
		config.done = done;
		config.done_arg = f;
		pthread_mutex_init(&f->lock, NULL);
		pthread_cond_init(&f->changed, NULL);
		s->nodes[i] = f;
		well &= ops->open(&config, &f->backend, NULL) == 0;
	}
	for (uint32_t rank = 0; rank < NODES && well; rank++) {
		well &= create(s->nodes[rank], 0, 1, ROOM).completion.status == 0;
		if (well)
			s->memory[rank] = map_segment(s->nodes[rank], 1, ROOM);
	}
	return well;
}

static void close_what_is_open(struct collective_scene *s)
{
	for (uint32_t rank = 0; rank < NODES; rank++) {
		void *state = s->nodes[rank];
		if (s->memory[rank])
			munmap(s->memory[rank], ROOM);
		(void)close_all(&state);
	}
}

static void one_life(void **state)
{
	struct collective_scene s;
	struct client c[NODES];
	struct record record;
	(void)state;
	if (!try_to_open(&s)) {
		close_what_is_open(&s);
		return;
	}
	for (uint32_t rank = 0; rank < NODES; rank++)
		c[rank] = open_session(s.nodes[rank], SESSION);
	record = wait_ok(s.nodes[0], ask_ids(&s, 0, ZD_ARRAY_LEN(s.ids)));
	memcpy(s.ids, record.completion.result.values, sizeof(s.ids));
	free(record.completion.result.values);
	run_everything(&s, c, 1);
	for (uint32_t rank = 0; rank < NODES; rank++)
		forget_session(&c[rank]);
	close_what_is_open(&s);
}

/* As long as a life is before the first communicator. */
static void no_life(void **state)
{
	struct collective_scene s;
	(void)state;
	assert_true(try_to_open(&s));
	exit(0);
}

/* How many calls of the driver the double has counted in a case of its own. */
static unsigned long count_calls(CMUnitTestFunction fn, const char *name)
{
	char dir[] = CASE_DIR, count[PATH_MAX], line[256];
	struct a_case one = {.name = name, .fn = fn};
	void *state = &one;
	unsigned long calls = 0;
	FILE *file;
	assert_non_null(mkdtemp(dir));
	(void)snprintf(count, sizeof(count), "ZD_DOUBLE_COUNT=%s/calls", dir);
	one.env[0] = count;
	case_run(&state);
	file = fopen(strchr(count, '=') + 1, "re");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
		(void)sscanf(line, "%*s all %lu", &calls);
	(void)fclose(file);
	case_remove_dir(dir);
	return calls;
}

/* Calls of the backend's start have a test of their own. */
static void test_every_call_of_the_driver_fails_once(void **state)
{
	static const int results[] = {ZD_CU_OUT_OF_MEMORY, ZD_CU_ILLEGAL_ADDRESS};
	struct a_case life = CASE(one_life);
	void *one = &life;
	char fail[64];
	unsigned long first = count_calls(no_life, "no_life"), last = count_calls(one_life, "one_life");
	(void)state;
	assert_in_range(last - first, 50, 500);
	life.env[0] = fail;
	life.env[1] = "ZD_DOUBLE_LEAKS=1";
	for (unsigned long i = first + 1; i <= last; i++) {
		(void)snprintf(fail, sizeof(fail), "ZD_DOUBLE_FAIL=%lu:%d", i,
		               results[i % ZD_ARRAY_LEN(results)]);
		case_run(&one);
	}
}

int main(int argc, char **argv)
{
	struct a_case cases[] = {
	        CASE(test_every_call_of_nccl_fails_once, "ZD_DOUBLE_LEAKS=1"),
	        CASE(one_life, "ZD_DOUBLE_LEAKS=1"),
	        CASE(no_life, "ZD_DOUBLE_LEAKS=0"),
	};
	const struct CMUnitTest every[] = {cmocka_unit_test(test_every_call_of_the_driver_fails_once)};
	int failed;
	ID_PROGRAM(argc, argv);
	failed = argc > 1 ? 0 : cmocka_run_group_tests(every, NULL, NULL);
	return failed + case_main(cases, ZD_ARRAY_LEN(cases) - (argc == 1), argc, argv);
}
