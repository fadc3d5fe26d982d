/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.c - the daemon's communicators over all GPUs: a thread a GPU, in one process and in two that meet over
 * NCCL's network transport as daemons of two nodes do. The data of each operation is compared; ranks that
 * differ, that do not come and that do not run what the others run are named, and what comes afterwards
 * works. Then as the daemon uses them (comm_backend.h).
 *
 *     comm [TEST]     without a name: each in a process of its own
 *
 * It needs NCCL and two GPUs, and says when it finds neither. It runs on real GPUs and over the doubles.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "client/zerobench/cuda_gpu.h"
#include "executor/nccl/cuda_comm_ids.h"
#include "executor/nccl/cuda_comm_queue.h"
#include "executor/thread.h"
#include "tests/gpu/comm_backend.h"
#include "tests/support/collective.h"
#include "tests/support/pause.h"

#define SECONDS    240u /* of one test */
#define LARGEST    (1ull << 20)
#define WORLDS     2 /* groups, one after the other */
#define SOON_NS    2000000000ull
#define FOR_EVER   0
#define EACH_BYTES (LARGEST * 2 + 4096) /* a part, and what may lie behind it */

struct party;

/* A thread's. */
struct rank {
	struct party *party;
	uint32_t index; /* of the world */
	struct zd_cuda_device *device;
	struct zd_cuda_comm_queue queue;
	struct zd_cuda_comm *comm;
	struct zd_gpu gpu;
	struct zd_gpu_memory send, receive;
	uint8_t *bytes; /* on the host, as large as either */
	pthread_t thread;
	struct zd_err err;
};

/* The ranks of this process: those from `first` on, of all `world`. */
struct party {
	int (*play)(struct rank *rank);
	uint32_t world, first, count;
	struct zd_nccl_id ids[WORLDS];
	const struct zd_nccl *nccl;
	struct zd_cuda_devices devices;
	struct zd_cuda_comm_local_ranks local_ranks;
	pthread_barrier_t barrier;
	struct rank ranks[ZD_GPU_MAX];
};

/* ---- A rank's way -------------------------------------------------------------------------------------- */

static void wait_until(struct rank *rank, bool (*is)(struct zd_cuda_comm *comm))
{
	unsigned turns = 0;

	while (!is(rank->comm)) {
		(void)zd_cuda_comm_queue_poll(&rank->queue, zd_thread_now_ns());
		pause_for_others(&turns);
	}
}

static bool has_met(struct zd_cuda_comm *comm)
{
	return comm->state != ZD_CUDA_COMM_CONNECTING;
}

/* READY, or the communicator's failure. */
static int meet(struct rank *rank, int world, uint32_t nranks, bool checking)
{
	const struct zd_cuda_comm_config config = {
	        .group = "world",
	        .id = rank->party->ids[world],
	        .nranks = nranks,
	        .rank = rank->index,
	        .checking = checking,
	        .deadline_ns = nranks > rank->party->world ? zd_thread_now_ns() + SOON_NS : FOR_EVER,
	};
	int rc = zd_cuda_comm_queue_add(&rank->queue, &config, &rank->comm, &rank->err);

	if (rc)
		return rc;
	wait_until(rank, has_met);
	if (rank->comm->state == ZD_CUDA_COMM_READY)
		return 0;
	return zd_err_set(&rank->err, rank->comm->failure.status, "%s", rank->comm->failure.text);
}

/* In order, unless it has failed. */
static void part(struct rank *rank)
{
	zd_cuda_comm_end(rank->comm);
	wait_until(rank, zd_cuda_comm_is_over);
	zd_cuda_comm_queue_remove(&rank->queue, rank->comm);
}

/* With patience, it fails so long after its launch. */
static int run(struct rank *rank, const struct zd_cuda_comm_call *call, uint64_t patience_ns)
{
	struct zd_cuda_comm_op op = {.call = *call, .send = rank->send.at, .receive = rank->receive.at};
	int rc = zd_cuda_comm_queue_give(&rank->queue, rank->comm, &op, &rank->err);
	unsigned turns = 0;

	while (!rc && !zd_cuda_comm_queue_take(&rank->queue)) {
		(void)zd_cuda_comm_queue_poll(&rank->queue, zd_thread_now_ns());
		if (patience_ns && op.deadline_ns == 0 && op.phase != ZD_CUDA_COMM_WAITING)
			op.deadline_ns = zd_thread_now_ns() + patience_ns;
		pause_for_others(&turns);
	}
	if (!rc && op.err.status)
		rc = zd_err_set(&rank->err, op.err.status, "%s", op.err.text);
	return rc;
}

static int run_right(struct rank *rank, const struct zd_cuda_comm_call *call)
{
	uint32_t world = rank->party->world;
	uint64_t wrong = 0;
	char text[ZD_CUDA_COMM_TEXT];
	int rc;

	collective_fill(call, world, rank->index, rank->bytes);
	rc = zd_gpu_write(&rank->gpu, rank->send.at, rank->bytes, collective_send_bytes(call, world),
	                  &rank->err);
	if (!rc)
		rc = run(rank, call, FOR_EVER);
	if (!rc)
		rc = zd_gpu_read(&rank->gpu, rank->bytes, rank->receive.at,
		                 collective_receive_bytes(call, world), &rank->err);
	if (!rc)
		wrong = collective_count_wrong(call, world, rank->index, rank->bytes);
	if (wrong > 0)
		rc = zd_err_set(&rank->err, ZEROD_E_DEVICE, "%" PRIu64 " wrong after the %s", wrong,
		                zd_cuda_comm_call_text(call, 1, text));
	return rc;
}

/* Every operation, in several sizes. */
static int run_all(struct rank *rank)
{
	static const uint64_t numels[] = {1, 1000, LARGEST};
	int rc = 0;

	for (int kind = 1; kind <= COLLECTIVE_KINDS; kind++)
		for (size_t i = 0; i < ZD_ARRAY_LEN(numels) && !rc; i++) {
			struct zd_cuda_comm_call call = collective_call(kind, numels[i], rank->party->world);

			rc = run_right(rank, &call);
		}
	return rc;
}

/* All that with a group of its own. */
static int run_world(struct rank *rank, int world, bool checking)
{
	int rc = meet(rank, world, rank->party->world, checking);

	if (!rc)
		rc = run_all(rank);
	if (!rc)
		part(rank);
	return rc;
}

/* 0 if that was to happen, and was said so. */
static int expect(struct rank *rank, int rc, int status, const char *text)
{
	if (rc == status && strstr(rank->err.text, text))
		return 0;
	return zd_err_set(&rank->err, rc ? rc : ZEROD_E_STATE, "expected %s with '%s', not %s: %s",
	                  zerod_status_name(status), text, zerod_status_name(rc), rc ? rank->err.text : "");
}

/* ---- The tests ----------------------------------------------------------------------------------------- */

static int play_all(struct rank *rank)
{
	int rc = 0;

	for (int world = 0; world < WORLDS && !rc; world++)
		rc = run_world(rank, world, world == 1);
	return rc;
}

/* The last rank does something else. */
static int play_difference(struct rank *rank)
{
	uint32_t world = rank->party->world;
	bool last = rank->index == world - 1;
	struct zd_cuda_comm_call call =
	        collective_call(last ? ZD_CUDA_COMM_ALL_REDUCE : ZD_CUDA_COMM_REDUCE_SCATTER, 1000, world);
	int rc = meet(rank, 0, world, true);

	if (!rc)
		rc = run_all(rank);
	if (!rc)
		rc = expect(rank, run(rank, &call, FOR_EVER), ZEROD_E_MISMATCH,
		            "rank 0 runs its 19th operation reduce_scatter of 1000 bfloat16, rank ");
	if (!rc)
		rc = expect(rank, rank->err.status, ZEROD_E_MISMATCH,
		            "its 19th operation all_reduce of 1000 bfloat16");
	if (rc)
		return rc;
	part(rank);
	return run_world(rank, 1, false);
}

/* The last rank does not run what the others do. What was aborted writes no more: the memory serves again. */
static int play_missing(struct rank *rank)
{
	uint32_t world = rank->party->world;
	struct zd_cuda_comm_call call = collective_call(ZD_CUDA_COMM_ALL_GATHER, LARGEST, world);
	int rc = meet(rank, 0, world, false);

	if (!rc)
		rc = run_all(rank);
	if (!rc && rank->index != world - 1)
		rc = expect(rank, run(rank, &call, SOON_NS), ZEROD_E_DEADLINE,
		            "a rank has not launched it, or is late");
	if (rc)
		return rc;
	(void)pthread_barrier_wait(&rank->party->barrier);
	zd_cuda_comm_abort(rank->comm, "the others were");
	part(rank);
	return run_world(rank, 1, false);
}

/* Nobody is the last of one more. */
static int play_alone(struct rank *rank)
{
	uint32_t world = rank->party->world;
	int rc = expect(rank, meet(rank, 0, world + 1, false), ZEROD_E_DEADLINE,
	                "another one has not come, or has another unique id");

	if (rc)
		return rc;
	part(rank);
	return run_world(rank, 1, false);
}

/* ---- A process's ranks --------------------------------------------------------------------------------- */

static int open_rank(struct rank *rank)
{
	const struct zd_cuda_comm_home home = {rank->device, rank->party->nccl, &rank->party->local_ranks};
	uint64_t bytes = EACH_BYTES * rank->party->world;
	int rc = zd_gpu_open_ordinal(&rank->gpu, rank->device->ordinal, &rank->err);

	if (!rc)
		rc = zd_gpu_memory_new(&rank->gpu, bytes, 0, &rank->send, &rank->err);
	if (!rc)
		rc = zd_gpu_memory_new(&rank->gpu, bytes, 0, &rank->receive, &rank->err);
	rank->bytes = zd_calloc(1, bytes);
	zd_cuda_comm_queue_init(&rank->queue, &home);
	return rc;
}

/* After a failure others may wait for this rank: the process ends. */
static void *rank_main(void *arg)
{
	struct rank *rank = arg;
	int rc = open_rank(rank);

	if (!rc)
		rc = rank->party->play(rank);
	if (rc) {
		printf("rank %" PRIu32 ": %s: %s\n", rank->index, zerod_status_name(rc), rank->err.text);
		(void)fflush(stdout);
		_exit(EXIT_FAILURE);
	}
	zd_cuda_comm_queue_deinit(&rank->queue);
	free(rank->bytes);
	zd_gpu_memory_free(&rank->gpu, &rank->send);
	zd_gpu_memory_free(&rank->gpu, &rank->receive);
	zd_gpu_close(&rank->gpu);
	return NULL;
}

static int load_nccl(const struct zd_nccl **nccl, struct zd_err *err)
{
	static const char *const names[] = {"libnccl.so.2", NULL};
	char where[256];
	void *library;
	int rc = zd_library_load(names, NULL, &library, where, sizeof(where), err);

	return rc ? rc : zd_nccl_load(where, nccl, err);
}

static int open_party(struct party *party, struct zd_err *err)
{
	int rc = load_nccl(&party->nccl, err);

	if (!rc)
		rc = zd_cuda_devices_init(&party->devices, NULL, err);
	if (!rc && party->devices.count < party->count)
		rc = zd_err_set(err, ZEROD_E_NOT_FOUND, "%" PRIu32 " GPUs, not %" PRIu32,
		                party->devices.count, party->count);
	zd_cuda_comm_local_ranks_init(&party->local_ranks);
	(void)pthread_barrier_init(&party->barrier, NULL, party->count);
	return rc;
}

static int play(struct party *party)
{
	for (uint32_t i = 0; i < party->count; i++) {
		struct rank *rank = &party->ranks[i];

		rank->party = party;
		rank->index = party->first + i;
		rank->device = &party->devices.all[i];
		if (pthread_create(&rank->thread, NULL, rank_main, rank))
			return EXIT_FAILURE;
	}
	for (uint32_t i = 0; i < party->count; i++)
		(void)pthread_join(party->ranks[i].thread, NULL);
	(void)pthread_barrier_destroy(&party->barrier);
	zd_cuda_comm_local_ranks_deinit(&party->local_ranks);
	zd_cuda_devices_deinit(&party->devices);
	return EXIT_SUCCESS;
}

static int make_ids(struct party *party, struct zd_err *err)
{
	int rc = 0;

	for (int i = 0; i < WORLDS && !rc; i++)
		rc = zd_nccl_err(party->nccl, party->nccl->getUniqueId(&party->ids[i]), err, "a unique id");
	return rc;
}

static int say(const struct zd_err *err)
{
	printf("%s\n", err->text);
	return EXIT_FAILURE;
}

static int in_one_process(const struct zd_gpu_list *gpus, int (*what)(struct rank *rank))
{
	static struct party party;
	struct zd_err err = ZD_ERR_NONE;

	party.play = what;
	party.world = party.count = gpus->count;
	return open_party(&party, &err) || make_ids(&party, &err) ? say(&err) : play(&party);
}

static int through_backend(const struct zd_gpu_list *gpus, int (*what)(struct rank *rank))
{
	const struct zd_nccl *nccl;
	struct zd_err err = ZD_ERR_NONE;

	(void)what;
	return load_nccl(&nccl, &err) ? say(&err) : comm_through_backend(gpus->count);
}

/* ---- Two processes ------------------------------------------------------------------------------------- */

/* The GPUs of a half, so that the other's are not seen. */
static void show_half(const struct zd_gpu_list *gpus, uint32_t first, uint32_t count)
{
	char names[ZD_GPU_MAX * (ZD_CUDA_UUID_TEXT + 1)] = "";
	size_t used = 0;

	for (uint32_t i = first; i < first + count; i++)
		used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i > first ? "," : "",
		                         gpus->names[i]);
	(void)setenv("CUDA_VISIBLE_DEVICES", names, 1);
}

/* As between two nodes. */
static void use_network(void)
{
	(void)setenv("NCCL_P2P_DISABLE", "1", 1);
	(void)setenv("NCCL_SHM_DISABLE", "1", 1);
	(void)setenv("NCCL_IB_DISABLE", "1", 1);
	(void)setenv("NCCL_NET", "Socket", 1);
}

/* One half of the ranks; the first half makes the ids and passes them on, as trainers do. */
static int play_half(const struct zd_gpu_list *gpus, bool second, int ids, int (*what)(struct rank *rank))
{
	static struct party party;
	struct zd_err err = ZD_ERR_NONE;
	uint32_t half = gpus->count / 2;
	bool passed;

	party.play = what;
	party.world = gpus->count;
	party.first = second ? half : 0;
	party.count = second ? gpus->count - half : half;
	show_half(gpus, party.first, party.count);
	if (open_party(&party, &err) || (!second && make_ids(&party, &err)))
		return say(&err);
	passed = second ? read(ids, party.ids, sizeof(party.ids)) == sizeof(party.ids)
	                : write(ids, party.ids, sizeof(party.ids)) == sizeof(party.ids);
	return passed ? play(&party) : EXIT_FAILURE;
}

static int in_two_processes(const struct zd_gpu_list *gpus, int (*what)(struct rank *rank))
{
	int ids[2], status = 0, other = EXIT_FAILURE;
	pid_t pid;

	use_network();
	if (pipe(ids))
		return EXIT_FAILURE;
	pid = fork();
	if (pid == 0) {
		(void)alarm(SECONDS);
		exit(play_half(gpus, true, ids[0], what));
	}
	status = play_half(gpus, false, ids[1], what);
	return waitpid(pid, &other, 0) == pid && WIFEXITED(other) && WEXITSTATUS(other) == 0 ? status
	                                                                                     : EXIT_FAILURE;
}

/* ---- Each in its process ------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	int (*how)(const struct zd_gpu_list *gpus, int (*what)(struct rank *rank));
	int (*what)(struct rank *rank);
} tests[] = {
        {"all operations in one process", in_one_process, play_all},
        {"all operations in two processes", in_two_processes, play_all},
        {"ranks that differ in one process", in_one_process, play_difference},
        {"ranks that differ in two processes", in_two_processes, play_difference},
        {"a rank that does not run it", in_one_process, play_missing},
        {"a rank that never comes", in_one_process, play_alone},
        {"two roles through the backend", through_backend, NULL},
};

static int run_in_process(const struct zd_gpu_list *gpus, size_t test)
{
	int status = 0;
	pid_t pid;

	(void)fflush(NULL);
	pid = fork();
	if (pid == 0) {
		(void)alarm(SECONDS);
		exit(tests[test].how(gpus, tests[test].what));
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return EXIT_FAILURE;
	if (WIFSIGNALED(status))
		printf("%s: ended by signal %d\n", tests[test].name, WTERMSIG(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

/* Why it cannot run here; NULL: it can. NCCL is asked in a child, since what it loads must not be forked. */
static const char *reason_to_skip(struct zd_gpu_list *gpus, struct zd_err *err)
{
	const struct zd_nccl *nccl;
	int status = 0;
	pid_t pid;

	if (zd_gpu_list(gpus, err))
		return err->text;
	if (gpus->count < 2)
		return "there is one GPU, and NCCL supports one rank per GPU";
	pid = fork();
	if (pid == 0) {
		status = load_nccl(&nccl, err);
		if (status)
			printf("%s\n", err->text);
		exit(status ? EXIT_FAILURE : EXIT_SUCCESS);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
		return "there is no NCCL that will do";
	return NULL;
}

int main(int argc, char **argv)
{
	struct zd_err err = ZD_ERR_NONE;
	struct zd_gpu_list gpus;
	const char *why_not;
	int failed = 0;

	if (argc > 1 && strcmp(argv[1], ZD_CUDA_IDS_PROGRAM_ARG) == 0)
		return zd_cuda_ids_main(argc - 2, argv + 2);
	(void)setenv("NCCL_NVLS_ENABLE", "0", 0);
	why_not = reason_to_skip(&gpus, &err);
	for (size_t i = 0; i < ZD_ARRAY_LEN(tests); i++) {
		bool ok;

		if (argc > 1 && strcmp(argv[1], tests[i].name) != 0)
			continue;
		if (why_not) {
			printf("ok %zu - %s # SKIP %s\n", i + 1, tests[i].name, why_not);
			continue;
		}
		ok = run_in_process(&gpus, i) == EXIT_SUCCESS;
		printf("%sok %zu - %s\n", ok ? "" : "not ", i + 1, tests[i].name);
		failed += !ok;
	}
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
