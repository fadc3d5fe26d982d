/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_comm_faults.c - communicators when a call of NCCL or of the driver fails: each call once.
 * Whatever fails, every operation ends, no data is wrong where one succeeded, and all is given back.
 */
#include "tests/unit/executor/comm_data.h"

#define RANKS 2u

/* ---- A program of everything --------------------------------------------------------------------------- */

/* When one of them does not live, the others are aborted, as a group's end is. */
static void abort_all(struct comm_scene *s)
{
	for (uint32_t i = 0; i < RANKS; i++)
		if (s->ranks[i].comm)
			zd_cuda_comm_abort(s->ranks[i].comm, "its peer has failed");
}

static bool all_live(const struct comm_scene *s)
{
	for (uint32_t i = 0; i < RANKS; i++)
		if (!s->ranks[i].comm || !zd_cuda_comm_lives(s->ranks[i].comm))
			return false;
	return true;
}

static void run_one(struct comm_scene *s, int kind)
{
	const struct zd_cuda_comm_call call = collective_call(kind, 100, RANKS);
	struct comm_op ops[RANKS];
	bool given[RANKS] = {false}, right = true;
	struct zd_err err;

	comm_prepare(s, &call, RANKS);
	for (uint32_t i = 0; i < RANKS; i++) {
		ops[i] = comm_op(s, i, call);
		given[i] = zd_cuda_comm_queue_give(&s->ranks[i].queue, s->ranks[i].comm, &ops[i].op, &err) ==
		           0;
	}
	for (uint32_t i = 0; i < RANKS; i++)
		while (given[i] && !ops[i].taken) {
			comm_poll(s);
			if (!all_live(s))
				abort_all(s);
		}
	for (uint32_t i = 0; i < RANKS; i++) {
		right &= given[i] && ops[i].op.err.status == 0;
		if (given[i] && ops[i].op.err.status != 0)
			assert_true(ops[i].op.err.text[0] != '\0');
	}
	if (right)
		comm_expect_data(s, &call, RANKS);
}

static void connect(struct comm_scene *s)
{
	struct zd_err err;

	for (uint32_t i = 0; i < RANKS; i++) {
		struct zd_cuda_comm_config config = comm_config(s, i);

		config.checking = true;
		comm_enter(s, i);
		(void)!zd_cuda_comm_queue_add(&s->ranks[i].queue, &config, &s->ranks[i].comm, &err);
	}
	while (all_live(s) && (s->ranks[0].comm->state != ZD_CUDA_COMM_READY ||
	                       s->ranks[1].comm->state != ZD_CUDA_COMM_READY))
		comm_poll(s);
}

/* As in a daemon: whether it went well, all is given back. */
static void run_everything(struct comm_scene *s)
{
	connect(s);
	for (int kind = 1; kind <= COLLECTIVE_KINDS && all_live(s); kind++)
		run_one(s, kind);
	if (!all_live(s))
		abort_all(s);
}

/* ---- NCCL ---------------------------------------------------------------------------------------------- */

/* False: there is no such call. */
static bool fail_nth(const char *function, unsigned nth, int result)
{
	struct comm_scene s;
	unsigned calls;

	comm_open(&s, RANKS);
	s.control->polls(1);
	s.control->fail_call(function, nth, result);
	run_everything(&s);
	comm_close(&s);
	calls = s.control->calls();
	return calls >= nth;
}

TEST(test_every_call_of_nccl_fails_once)
{
	unsigned nth = 1;

	while (fail_nth(NULL, nth, ZD_NCCL_INTERNAL_ERROR))
		nth++;
	print_message("%u calls\n", nth - 1);
	assert_true(nth > 30); /* each operation's, of each rank, and those of a life */
}

/* Polls of both ranks and of what ends them, as many as an operation may have. */
TEST(test_every_poll_fails_once)
{
	for (unsigned nth = 1; nth <= 60; nth++)
		(void)fail_nth("ncclCommGetAsyncError", nth, ZD_NCCL_UNHANDLED_CUDA_ERROR);
}

CONNECTED_TEST(test_what_a_failed_call_says, RANKS, false)
{
	struct comm_op ops[RANKS];
	struct zd_cuda_comm_call call = collective_call(ZD_CUDA_COMM_ALL_TO_ALL, 10, RANKS);

	s->control->fail_call("ncclRecv", 2, ZD_NCCL_INVALID_USAGE);
	for (uint32_t i = 0; i < RANKS; i++) {
		ops[i] = comm_op(s, i, call);
		comm_give(s, i, &ops[i]);
	}
	COMM_AWAIT(s, ops[0].taken);
	assert_string_equal(ops[0].op.err.text,
	                    "group 'world': rank 0's 1st operation all_to_all of 10 int16: invalid usage");
	assert_int_equal(ops[0].op.err.status, ZEROD_E_DEVICE);
	abort_all(s);
	COMM_AWAIT(s, ops[1].taken);
}

/* ---- The driver ---------------------------------------------------------------------------------------- */

static const struct zd_cuda *real;
static struct {
	pthread_mutex_t lock;
	unsigned calls, nth;
	int result;
} fault = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The result with which this call fails, or 0. */
static int count(void)
{
	int result;

	(void)pthread_mutex_lock(&fault.lock);
	result = ++fault.calls == fault.nth ? fault.result : 0;
	(void)pthread_mutex_unlock(&fault.lock);
	return result;
}

static int set_current(struct CUctx_st *context)
{
	int result = count();

	return result ? result : real->ctxSetCurrent(context);
}

static int create_stream(struct CUstream_st **stream, unsigned int flags, int priority)
{
	int result = count();

	return result ? result : real->streamCreateWithPriority(stream, flags, priority);
}

static int alloc_host(void **at, size_t bytes, unsigned int flags)
{
	int result = count();

	return result ? result : real->memHostAlloc(at, bytes, flags);
}

static int find_host(zd_cu_ptr *device, void *host, unsigned int flags)
{
	int result = count();

	return result ? result : real->memHostGetDevicePointer(device, host, flags);
}

static int write_value(struct CUstream_st *stream, zd_cu_ptr at, uint64_t value, unsigned int flags)
{
	int result = count();

	return result ? result : real->streamWriteValue64(stream, at, value, flags);
}

static bool fail_nth_of_driver(unsigned nth, int result)
{
	struct comm_scene s;

	comm_open(&s, RANKS);
	real = s.cuda;
	for (uint32_t i = 0; i < RANKS; i++) {
		s.ranks[i].cuda.ctxSetCurrent = set_current;
		s.ranks[i].cuda.streamCreateWithPriority = create_stream;
		s.ranks[i].cuda.memHostAlloc = alloc_host;
		s.ranks[i].cuda.memHostGetDevicePointer = find_host;
		s.ranks[i].cuda.streamWriteValue64 = write_value;
	}
	fault.calls = 0;
	fault.nth = nth;
	fault.result = result;
	run_everything(&s);
	comm_close(&s);
	return fault.calls >= nth;
}

TEST(test_every_call_of_the_driver_fails_once)
{
	static const int results[] = {ZD_CU_OUT_OF_MEMORY, ZD_CU_ECC_UNCORRECTABLE};

	for (size_t i = 0; i < ZD_ARRAY_LEN(results); i++) {
		unsigned nth = 1;

		while (fail_nth_of_driver(nth, results[i]))
			nth++;
		assert_int_equal(nth - 1, RANKS * (4 + 2 * COLLECTIVE_KINDS));
	}
}

/* Under an operation that runs: its kernel still spins, and the driver gives one answer to everything. */
CONNECTED_TEST(test_a_gpu_that_is_lost, RANKS, false)
{
	const char *dir = getenv("ZD_DOUBLE_DIR");
	char path[PATH_MAX];
	struct comm_op op;

	op = comm_op(s, 0, collective_call(ZD_CUDA_COMM_ALL_GATHER, 10, RANKS));
	comm_give(s, 0, &op);
	COMM_AWAIT(s, op.op.phase == ZD_CUDA_COMM_FLYING);
	case_write_file(dir, "lost-0", "214");
	s->ranks[0].lost = true;
	comm_enter(s, 0);
	zd_cuda_comm_queue_check(&s->ranks[0].queue);
	assert_true(zd_cuda_device_failed(&s->ranks[0].device));
	COMM_AWAIT(s, op.taken);
	assert_int_equal(op.op.err.status, ZEROD_E_DEVICE);
	comm_expect_text(op.op.err.text,
	                 "GPU-0 has failed: looking at a stream: CUDA_ERROR_ECC_UNCORRECTABLE");
	assert_int_equal(s->ranks[1].comm->state, ZD_CUDA_COMM_READY);
	zd_cuda_comm_abort(s->ranks[1].comm, "its peer was");
	(void)snprintf(path, sizeof(path), "%s/lost-0", dir);
	assert_int_equal(unlink(path), 0);
}

/* Where the double is told of GPUs that are lost. */
static void make_dir(void)
{
	char dir[] = CASE_DIR;

	if (!getenv("ZD_DOUBLE_DIR") && mkdtemp(dir))
		(void)setenv("ZD_DOUBLE_DIR", dir, 1);
}

static int remove_dir(void **state)
{
	(void)state;
	case_remove_dir(getenv("ZD_DOUBLE_DIR"));
	return 0;
}

int main(int argc, char **argv)
{
	(void)argc;
	make_dir();
	use_double(argv);
	return test_run(NULL, remove_dir);
}
