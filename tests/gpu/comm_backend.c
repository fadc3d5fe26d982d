/* SPDX-License-Identifier: Apache-2.0 */
/* comm_backend.c - communicators as the daemon uses them: through its backend. */
#include "tests/gpu/comm_backend.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "client/zerobench/cuda_gpu.h"
#include "executor/backend.h"

#define ROUNDS     20u
#define BLOCK      (1ull << 20)
#define MAX_OPS    4096u
#define UNTOUCHED  0xee
#define TIMEOUT_NS 60000000000ull

/* The parts of a GPU's segment, of a block a rank each. */
enum part { TO_ALL, TO_EACH, GATHERED, EXCHANGED, NPARTS };

struct scene {
	const struct zd_backend_ops *ops;
	struct zd_backend *backend;
	uint32_t world;
	struct zd_gpu gpus[ZD_GPU_MAX];
	zd_cu_ptr memory[ZD_GPU_MAX];
	uint8_t *bytes; /* of a part, on the host */

	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t last_op;
	bool ended[MAX_OPS];
	struct zd_completion completions[MAX_OPS];
};

/* ---- Commands ------------------------------------------------------------------------------------------ */

static void on_done(void *arg, const struct zd_completion *completion)
{
	struct scene *s = arg;

	(void)pthread_mutex_lock(&s->lock);
	s->completions[completion->op] = *completion;
	s->ended[completion->op] = true;
	(void)pthread_cond_broadcast(&s->changed);
	(void)pthread_mutex_unlock(&s->lock);
}

static uint64_t submit(struct scene *s, struct zd_command command)
{
	command.op = ++s->last_op;
	zd_assert(command.op < MAX_OPS);
	s->ops->submit(s->backend, &command);
	return command.op;
}

/* After a failure others may wait for ever: the process ends. Returns its values, which are the caller's. */
static unsigned char *must(struct scene *s, uint64_t op, const char *what)
{
	(void)pthread_mutex_lock(&s->lock);
	while (!s->ended[op])
		(void)pthread_cond_wait(&s->changed, &s->lock);
	(void)pthread_mutex_unlock(&s->lock);
	if (s->completions[op].status) {
		printf("%s: %s\n", what, s->completions[op].error);
		(void)fflush(stdout);
		_Exit(EXIT_FAILURE);
	}
	return s->completions[op].result.values;
}

static void must_all(struct scene *s, const uint64_t *ops, const char *what)
{
	for (uint32_t i = 0; i < s->world; i++)
		(void)must(s, ops[i], what);
}

static void check(int rc, const struct zd_err *err)
{
	if (!rc)
		return;
	printf("%s\n", err->text);
	(void)fflush(stdout);
	_Exit(EXIT_FAILURE);
}

static struct zd_location part_of(const struct scene *s, uint32_t rank, enum part part)
{
	uint64_t bytes = s->world * BLOCK;

	return (struct zd_location){rank + 1, part * bytes, bytes};
}

/* ---- Communicators ------------------------------------------------------------------------------------- */

static void open_comms(struct scene *s)
{
	struct zd_command command = {.kind = ZD_CMD_UNIQUE_IDS, .u.ids.count = ZD_NCOMM_ROLES};
	unsigned char *ids = must(s, submit(s, command), "unique ids");
	uint64_t ops[ZD_NCOMM_ROLES][ZD_GPU_MAX];

	for (uint32_t i = 0; i < s->world; i++)
		for (uint32_t role = 0; role < ZD_NCOMM_ROLES; role++) {
			command = (struct zd_command){.kind = ZD_CMD_COMM_OPEN, .device = i};
			command.u.comm_open = (struct zd_comm_desc){.comm = role + 1,
			                                            .group = "world",
			                                            .role = role,
			                                            .nranks = s->world,
			                                            .rank = i};
			memcpy(command.u.comm_open.id, ids + (size_t)role * ZD_UNIQUE_ID_BYTES,
			       ZD_UNIQUE_ID_BYTES);
			ops[role][i] = submit(s, command);
		}
	for (uint32_t role = 0; role < ZD_NCOMM_ROLES; role++)
		must_all(s, ops[role], "opening a communicator");
	free(ids);
}

static void close_comms(struct scene *s)
{
	uint64_t ops[ZD_NCOMM_ROLES][ZD_GPU_MAX];

	for (uint32_t i = 0; i < s->world; i++)
		for (uint32_t role = 0; role < ZD_NCOMM_ROLES; role++) {
			struct zd_command command = {.kind = ZD_CMD_COMM_CLOSE, .device = i};

			command.u.comm_close.comm = role + 1;
			ops[role][i] = submit(s, command);
		}
	for (uint32_t role = 0; role < ZD_NCOMM_ROLES; role++)
		must_all(s, ops[role], "closing a communicator");
}

/* An all-gather over the communicator for gathers, blocks to each over the other one. */
static uint64_t exchange(struct scene *s, uint32_t rank, enum zd_comm_role role)
{
	bool gathers = role == ZD_COMM_GATHERS;
	struct zd_command command = {.kind = ZD_CMD_EXCHANGE, .device = rank};

	command.u.exchange = (struct zd_exchange_desc){
	        .comm = role + 1,
	        .bytes = BLOCK,
	        .send = part_of(s, rank, gathers ? TO_ALL : TO_EACH),
	        .receive = part_of(s, rank, gathers ? GATHERED : EXCHANGED),
	        .send_stride = gathers ? 0 : BLOCK,
	        .receive_stride = BLOCK,
	        .what = gathers ? "gather" : "reduction",
	};
	return submit(s, command);
}

static void agree(struct scene *s, enum zd_comm_role role, unsigned char round)
{
	uint64_t ops[ZD_GPU_MAX];

	for (uint32_t i = 0; i < s->world; i++) {
		struct zd_command command = {.kind = ZD_CMD_AGREE, .device = i};

		command.u.agree.comm = role + 1;
		command.u.agree.bytes = 2;
		command.u.agree.value[0] = (unsigned char)i;
		command.u.agree.value[1] = round;
		command.u.agree.what = "round";
		ops[i] = submit(s, command);
	}
	for (uint32_t i = 0; i < s->world; i++) {
		unsigned char *values = must(s, ops[i], "agreeing");

		for (uint32_t from = 0; from < s->world; from++)
			if (values[2 * from] != from || values[2 * from + 1] != round) {
				printf("rank %" PRIu32 " has wrong values in round %u\n", i, round);
				_Exit(EXIT_FAILURE);
			}
		free(values);
	}
}

/* ---- Bytes --------------------------------------------------------------------------------------------- */

static uint8_t byte_at(uint32_t from, uint32_t to, uint64_t index)
{
	return (uint8_t)(from * 37 + to * 11 + index * 3 + (index >> 8) + 1);
}

static zd_cu_ptr address(const struct scene *s, uint32_t rank, enum part part)
{
	return s->memory[rank] + part_of(s, rank, part).offset;
}

/* Fills the rank's send buffers with its pattern, and its receive buffers with a filler. */
static void fill(struct scene *s, uint32_t rank)
{
	uint64_t bytes = s->world * BLOCK;
	struct zd_err err;

	check(zd_gpu_enter(&s->gpus[rank], &err), &err);
	for (enum part part = TO_ALL; part < NPARTS; part++) {
		for (uint64_t i = 0; i < bytes; i++)
			s->bytes[i] = part == TO_ALL || part == TO_EACH
			                      ? byte_at(rank, part == TO_ALL ? 0 : (uint32_t)(i / BLOCK),
			                                i % BLOCK)
			                      : UNTOUCHED;
		check(zd_gpu_write(&s->gpus[rank], address(s, rank, part), s->bytes, bytes, &err), &err);
	}
}

/* How many are wrong; of blocks to each, a rank's own one is nobody's to write. */
static uint64_t count_wrong(struct scene *s, uint32_t rank, enum part part)
{
	uint64_t bytes = s->world * BLOCK, wrong = 0;
	struct zd_err err;

	check(zd_gpu_enter(&s->gpus[rank], &err), &err);
	check(zd_gpu_read(&s->gpus[rank], s->bytes, address(s, rank, part), bytes, &err), &err);
	for (uint64_t i = 0; i < bytes; i++) {
		uint32_t from = (uint32_t)(i / BLOCK);
		uint8_t expected = byte_at(from, part == GATHERED ? 0 : rank, i % BLOCK);

		if (part == EXCHANGED && from == rank)
			expected = UNTOUCHED;
		wrong += s->bytes[i] != expected;
	}
	return wrong;
}

static int expect_right(struct scene *s)
{
	for (uint32_t i = 0; i < s->world; i++) {
		uint64_t gathered = count_wrong(s, i, GATHERED), exchanged = count_wrong(s, i, EXCHANGED);

		if (gathered > 0 || exchanged > 0) {
			printf("rank %" PRIu32 ": %" PRIu64 " bytes of a gather are wrong, %" PRIu64
			       " of an exchange\n",
			       i, gathered, exchanged);
			return EXIT_FAILURE;
		}
	}
	return EXIT_SUCCESS;
}

/* ---- Orders -------------------------------------------------------------------------------------------- */

/* The first operations, for which NCCL connects: the gather of the first rank is there before all else, those
 * of the others come when the reductions have been done. */
static void cross_at_first(struct scene *s)
{
	uint64_t gathers[ZD_GPU_MAX], reductions[ZD_GPU_MAX];

	gathers[0] = exchange(s, 0, ZD_COMM_GATHERS);
	for (uint32_t i = 0; i < s->world; i++)
		reductions[i] = exchange(s, i, ZD_COMM_REDUCTIONS);
	must_all(s, reductions, "an exchange behind a gather that nobody else has asked for");
	for (uint32_t i = 1; i < s->world; i++)
		gathers[i] = exchange(s, i, ZD_COMM_GATHERS);
	must_all(s, gathers, "a gather");
}

/* Every second rank has them in the other order. */
static void cross(struct scene *s)
{
	uint64_t ops[ZD_NCOMM_ROLES][ZD_GPU_MAX];

	for (uint32_t i = 0; i < s->world; i++)
		for (uint32_t step = 0; step < ZD_NCOMM_ROLES; step++) {
			enum zd_comm_role role = (step + i) % ZD_NCOMM_ROLES;

			ops[role][i] = exchange(s, i, role);
		}
	for (uint32_t role = 0; role < ZD_NCOMM_ROLES; role++)
		must_all(s, ops[role], "exchanges in other orders");
}

/* ---- The scene ----------------------------------------------------------------------------------------- */

/* The rank's segment, mapped here once more for its GPU. */
static void map(struct scene *s, uint32_t rank)
{
	const struct zd_cuda *cuda = s->gpus[rank].cuda;
	const struct zd_cu_access access = {
	        .location = {.type = ZD_CU_LOCATION_DEVICE, .id = s->gpus[rank].ordinal},
	        .flags = ZD_CU_ACCESS_READWRITE};
	uint64_t bytes = NPARTS * s->world * BLOCK;
	/* The driver takes descriptors as pointers. */
	void *fd = (void *)(intptr_t)s->ops->segment_fd(s->backend, rank + 1);
	zd_cu_memory memory = 0;
	struct zd_err err;
	int result = cuda->memImportFromShareableHandle(&memory, fd, ZD_CU_HANDLE_POSIX_FD);

	if (!result)
		result = cuda->memAddressReserve(&s->memory[rank], bytes, 0, 0, 0);
	if (!result)
		result = cuda->memMap(s->memory[rank], bytes, 0, memory, 0);
	if (!result)
		result = cuda->memSetAccess(s->memory[rank], bytes, &access, 1);
	if (!result)
		result = cuda->memRelease(memory);
	check(zd_cuda_err(cuda, result, &err, "mapping the segment of rank %" PRIu32, rank), &err);
}

static void open_scene(struct scene *s, uint32_t ngpus)
{
	const struct zd_backend_config config = {
	        .arena_bytes = 1ull << 30,
	        .collective_timeout_ns = TIMEOUT_NS,
	        .done = on_done,
	        .done_arg = s,
	};
	struct zd_err err;

	s->ops = &zd_backend_cuda;
	s->world = ngpus;
	s->bytes = zd_calloc(ngpus, BLOCK);
	(void)pthread_mutex_init(&s->lock, NULL);
	(void)pthread_cond_init(&s->changed, NULL);
	check(s->ops->open(&config, &s->backend, &err), &err);
	for (uint32_t i = 0; i < ngpus; i++) {
		struct zd_command command = {.kind = ZD_CMD_SEGMENT_CREATE, .device = i};

		command.u.segment.segment = i + 1;
		command.u.segment.bytes = NPARTS * s->world * BLOCK;
		(void)must(s, submit(s, command), "a segment");
		check(zd_gpu_open_ordinal(&s->gpus[i], (int)i, &err), &err);
		map(s, i);
		fill(s, i);
	}
}

static void close_scene(struct scene *s)
{
	uint64_t bytes = NPARTS * s->world * BLOCK;
	struct zd_err err;

	for (uint32_t i = 0; i < s->world; i++) {
		const struct zd_cuda *cuda = s->gpus[i].cuda;

		check(zd_gpu_enter(&s->gpus[i], &err), &err);
		check(zd_cuda_err(cuda, cuda->memUnmap(s->memory[i], bytes), &err, "unmapping"), &err);
		check(zd_cuda_err(cuda, cuda->memAddressFree(s->memory[i], bytes), &err, "unmapping"), &err);
		zd_gpu_close(&s->gpus[i]);
	}
	s->ops->close(s->backend);
	for (uint64_t op = 1; op <= s->last_op; op++)
		free(s->completions[op].error);
	(void)pthread_cond_destroy(&s->changed);
	(void)pthread_mutex_destroy(&s->lock);
	free(s->bytes);
}

int comm_through_backend(uint32_t ngpus)
{
	static struct scene s;
	int status;

	open_scene(&s, ngpus);
	open_comms(&s);
	cross_at_first(&s);
	for (unsigned round = 0; round < ROUNDS; round++) {
		cross(&s);
		agree(&s, (enum zd_comm_role)(round % ZD_NCOMM_ROLES), (unsigned char)round);
	}
	close_comms(&s);
	status = expect_right(&s);
	close_scene(&s);
	return status;
}
