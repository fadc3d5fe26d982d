// SPDX-License-Identifier: Apache-2.0
/*
 * verb_self_test.c - zeroctl self-test: whether this installation works for a trainer.
 *
 * Two ranks, each a client of its own in this process, make every step at the same time on one device. After
 * the first step that fails, both close, and the daemon frees their objects.
 */
#include "ctl.h"
#include "explain.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <zerod_cuda.h>

#include "base/err.h"
#include "base/mem.h"
#include "client/zerobench/cuda_gpu.h"

#define WORLD       2
#define NUMEL       1000u
#define SUM         3 /* of the gradients, 1 and 2 times the elements' indices */
#define DEADLINE_MS 2000u
#define PAUSE_NS    2000000L /* between two checks whether the job has ended */

struct self_test {
	struct zd_ctl *ctl;
	char job[32];
	uint32_t device;
	char device_name[64];
	json_t *rows; /* of the steps */
};

struct rank {
	struct self_test *test;
	uint32_t number;
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit;
	struct zd_gpu gpu;    /* zeroed on an emulated device, as is: */
	zerod_stream *stream; /* the GPU's, wrapped */
	struct zd_err err;    /* the first failure */
};

/* ---- A rank's part ------------------------------------------------------------------------------------- */

static void check(struct rank *rank, int status, const char *call)
{
	if (status)
		(void)zd_err_set(&rank->err, status, "rank %u: %s: %s", rank->number, call,
		                 zerod_last_error(rank->client));
}

/* Calls the function unless the rank has failed before. */
#define CALL(rank, call, function, ...)                                                                      \
	do {                                                                                                 \
		if (!(rank)->err.status)                                                                     \
			check(rank, function(__VA_ARGS__), call);                                            \
	} while (0)

/* The rank's streams: its GPU's, or none. */
#define STREAMS(rank) &(rank)->stream, (rank)->stream ? 1u : 0u

static bool is_gpu(const struct rank *rank)
{
	return strncmp(rank->test->device_name, "GPU-", 4) == 0;
}

static void write_values(struct rank *rank, float *at, uint64_t first, uint64_t numel, float factor)
{
	float values[NUMEL];
	if (rank->err.status)
		return;
	for (uint64_t i = 0; i < numel; i++)
		values[i] = factor * (float)(first + i);
	if (!is_gpu(rank))
		memcpy(at, values, numel * sizeof(float));
	else if (zd_gpu_enter(&rank->gpu, &rank->err) ||
	         zd_gpu_write(&rank->gpu, (zd_cu_ptr)(uintptr_t)at, values, numel * sizeof(float),
	                      &rank->err))
		return;
}

static void compare_values(struct rank *rank, const float *at, uint64_t first, uint64_t numel, float factor)
{
	float values[NUMEL];
	if (rank->err.status)
		return;
	if (!is_gpu(rank))
		memcpy(values, at, numel * sizeof(float));
	else if (zd_gpu_enter(&rank->gpu, &rank->err) ||
	         zd_gpu_read(&rank->gpu, values, (zd_cu_ptr)(uintptr_t)at, numel * sizeof(float), &rank->err))
		return;
	for (uint64_t i = 0; i < numel && !rank->err.status; i++)
		if (values[i] != factor * (float)(first + i))
			(void)zd_err_set(&rank->err, ZEROD_E_DEVICE,
			                 "rank %u: element %" PRIu64 " is %g, not %g", rank->number,
			                 first + i, (double)values[i], (double)(factor * (float)(first + i)));
}

static void join(struct rank *rank)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options place = ZEROD_INIT(place);
	options.socket_path = rank->test->ctl->socket_path;
	options.name = "zeroctl self-test";
	options.deadline_ms = DEADLINE_MS;
	CALL(rank, "connect", zerod_connect, &options, &rank->client);
	place.job = rank->test->job;
	place.world_size = WORLD;
	place.rank = rank->number;
	place.device = rank->test->device;
	CALL(rank, "join", zerod_group_join, rank->client, &place, &rank->group);
	if (!rank->err.status && is_gpu(rank) &&
	    !zd_gpu_open(&rank->gpu, rank->test->device_name, &rank->err))
		CALL(rank, "stream", zerod_cuda_stream_wrap, rank->client, rank->gpu.stream, &rank->stream);
}

static void publish(struct rank *rank)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	struct zerod_shard shard = ZEROD_INIT(shard);
	options.name = "unit";
	options.dtype = ZEROD_FLOAT32;
	options.numel = NUMEL;
	CALL(rank, "register", zerod_unit_register, rank->group, &options, &rank->unit);
	CALL(rank, "shard", zerod_shard_get, rank->unit, &shard);
	CALL(rank, "update", zerod_update_begin, &rank->unit, 1, NULL, NULL);
	write_values(rank, shard.data, shard.offset_numel, shard.true_numel, 1);
	CALL(rank, "publish", zerod_publish, &rank->unit, 1, STREAMS(rank), NULL, NULL);
}

static void gather(struct rank *rank)
{
	void *whole = NULL;
	CALL(rank, "gather", zerod_gather, rank->unit, NULL, rank->stream, &whole);
	compare_values(rank, whole, 0, NUMEL, 1);
	CALL(rank, "release", zerod_release, rank->unit, STREAMS(rank), NULL, NULL);
}

/* The gradient of rank r is (r + 1) times the elements' indices. */
static void submit(struct rank *rank)
{
	struct zerod_bucket_options options = ZEROD_INIT(options);
	struct zerod_reserve_options reserve = ZEROD_INIT(reserve);
	struct zerod_entry entry = ZEROD_INIT(entry);
	zerod_bucket *bucket = NULL;
	options.dtype = ZEROD_FLOAT32;
	options.slot_bytes = NUMEL * sizeof(float);
	reserve.stream = rank->stream;
	CALL(rank, "bucket", zerod_bucket_create, rank->group, &options, &bucket);
	CALL(rank, "reserve", zerod_bucket_reserve, bucket, rank->unit, &reserve, &entry);
	write_values(rank, entry.data, 0, NUMEL, (float)(rank->number + 1));
	CALL(rank, "submit", zerod_bucket_submit, bucket, entry.id, STREAMS(rank), NULL, NULL);
}

static void reduce(struct rank *rank)
{
	struct zerod_shard shard = ZEROD_INIT(shard);
	struct zerod_target target = ZEROD_INIT(target);
	struct zerod_step_info step = ZEROD_INIT(step);
	CALL(rank, "backward", zerod_backward_begin, rank->group, NULL);
	submit(rank);
	CALL(rank, "end of the backward", zerod_backward_end, rank->group, NULL, NULL);
	CALL(rank, "step", zerod_step_begin, rank->group, NULL, &step, NULL);
	CALL(rank, "target", zerod_target_get, rank->unit, &target);
	CALL(rank, "shard", zerod_shard_get, rank->unit, &shard);
	compare_values(rank, target.data, shard.offset_numel, target.true_numel, SUM);
	CALL(rank, "end of the step", zerod_step_end, rank->group, STREAMS(rank), NULL);
}

static void leave(struct rank *rank)
{
	CALL(rank, "leave", zerod_group_leave, rank->group, NULL);
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

static int note(struct self_test *test, const char *step, uint64_t begin_ns, int status, const char *detail)
{
	const uint64_t took_ns = zd_ctl_now_ns() - begin_ns;
	char age[ZD_CTL_AGE_TEXT];
	json_array_append_new(test->rows, json_pack("{s:s,s:s,s:I,s:s}", "step", step, "status",
	                                            zerod_status_name(status), "time_ns", ZD_CTL_INT(took_ns),
	                                            "detail", detail));
	if (!test->ctl->json && !status)
		zd_ctl_say("%-8s ok, %s: %s", step, zd_ctl_age_text(took_ns, age), detail);
	if (!test->ctl->json)
		(void)fflush(stdout);
	return status ? zd_ctl_fail(status, "%s: %s: %s", step, zerod_status_name(status), detail) : 0;
}

struct part {
	struct rank *rank;
	void (*run)(struct rank *rank);
};

static void *run_part(void *arg)
{
	const struct part *part = arg;
	part->run(part->rank);
	return NULL;
}

/* Both ranks make the step at the same time. If both fail, the lower rank's failure is reported. */
static int run_step(struct self_test *test, struct rank *ranks, const char *step,
                    void (*run)(struct rank *rank), const char *detail)
{
	const uint64_t begin_ns = zd_ctl_now_ns();
	struct part parts[WORLD];
	pthread_t threads[WORLD];
	unsigned begun = 0;
	for (unsigned i = 0; i < WORLD; i++)
		parts[i] = (struct part){.rank = &ranks[i], .run = run};
	while (begun < WORLD && pthread_create(&threads[begun], NULL, run_part, &parts[begun]) == 0)
		begun++;
	for (unsigned i = 0; i < begun; i++)
		(void)pthread_join(threads[i], NULL);
	if (begun < WORLD)
		return note(test, step, begin_ns, ZEROD_E_SYSTEM, "cannot start a thread");
	for (unsigned i = 0; i < WORLD; i++)
		if (ranks[i].err.status)
			return note(test, step, begin_ns, ranks[i].err.status, ranks[i].err.text);
	return note(test, step, begin_ns, 0, detail);
}

/* Whether this user can allocate on the device. Ranks cannot join on host memory of GPUs. */
static int try_device(struct self_test *test, const struct zerod_device_info *info, struct zd_err *err)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);
	zerod_allocation *allocation;
	void *data;
	if (strncmp(info->name, "memory", 6) == 0)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "device %u is host memory", info->index);
	options.job = test->job;
	options.bytes = 1;
	options.device = info->index;
	int status = zerod_alloc(test->ctl->client, &options, &allocation, &data);
	if (!status)
		status = zerod_free(allocation, NULL, 0);
	if (status)
		return zd_err_set(err, status, "%s", zerod_last_error(test->ctl->client));
	test->device = info->index;
	(void)snprintf(test->device_name, sizeof(test->device_name), "%s", info->name);
	return 0;
}

/* Chooses --device, or the first device on which this user can allocate. Reports the first of several
 * failures. */
static int choose_device(struct self_test *test)
{
	const long long only = test->ctl->device;
	const uint64_t begin_ns = zd_ctl_now_ns();
	struct zerod_device_info info = ZEROD_INIT(info);
	struct zd_err first = ZD_ERR_NONE;
	char text[96];
	int status = ZEROD_E_NOT_FOUND;
	for (uint32_t i = only < 0 ? 0 : (uint32_t)only;
	     status && !zerod_device_get(test->ctl->client, i, &info); i++) {
		struct zd_err err = ZD_ERR_NONE;
		status = try_device(test, &info, &err);
		if (!first.status)
			first = err;
		if (only >= 0)
			break;
	}
	if (!first.status)
		(void)zd_err_set(&first, ZEROD_E_NOT_FOUND, "%s", zerod_last_error(test->ctl->client));
	(void)snprintf(text, sizeof(text), "device %u, %s", test->device, test->device_name);
	return note(test, "device", begin_ns, status ? first.status : 0, status ? first.text : text);
}

/* Waits until the daemon has no job of this name. */
static int check_freed(struct self_test *test)
{
	const uint64_t begin_ns = zd_ctl_now_ns();
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	size_t left = 1;
	test->ctl->job = test->job;
	for (;;) {
		json_t *rows;
		int status = zd_ctl_list_fetch(test->ctl, &zd_ctl_jobs_listing, &rows);
		if (status)
			return status;
		left = json_array_size(rows);
		json_decref(rows);
		if (!left || zd_ctl_now_ns() - begin_ns > DEADLINE_MS * 1000000ull)
			break;
		(void)nanosleep(&pause, NULL);
	}
	return note(test, "free", begin_ns, left ? ZEROD_E_DEADLINE : 0,
	            left ? "the daemon still holds memory of the job" : "nothing is left of the job");
}

static int run_steps(struct self_test *test, struct rank *ranks)
{
	static const struct {
		const char *name;
		void (*run)(struct rank *rank);
		const char *detail;
	} steps[] = {
	        {"join", join, "2 ranks"},
	        {"publish", publish, "1000 elements"},
	        {"gather", gather, "4000 bytes compared by each rank"},
	        {"reduce", reduce, "the sum of 2 gradients compared"},
	        {"leave", leave, "2 ranks"},
	};
	const uint64_t begin_ns = zd_ctl_now_ns();
	int status = zd_ctl_connect(test->ctl);
	if (status)
		return status;
	status = note(test, "connect", begin_ns, 0, test->ctl->socket_path);
	if (!status)
		status = choose_device(test);
	for (size_t i = 0; i < ZD_ARRAY_LEN(steps) && !status; i++)
		status = run_step(test, ranks, steps[i].name, steps[i].run, steps[i].detail);
	for (unsigned i = 0; i < WORLD; i++) {
		struct zd_err err;
		zerod_stream_destroy(ranks[i].stream);
		if (ranks[i].gpu.context && !zd_gpu_enter(&ranks[i].gpu, &err))
			zd_gpu_close(&ranks[i].gpu);
		zerod_close(ranks[i].client);
	}
	return status ? status : check_freed(test);
}

int zd_ctl_self_test(struct zd_ctl *ctl)
{
	struct self_test test = {.ctl = ctl, .rows = json_array()};
	struct rank ranks[WORLD] = {{.test = &test, .err = ZD_ERR_NONE},
	                            {.test = &test, .number = 1, .err = ZD_ERR_NONE}};
	(void)snprintf(test.job, sizeof(test.job), "self-test-%ld", (long)getpid());
	ctl->deadline_ms = DEADLINE_MS;
	int status = run_steps(&test, ranks);
	ctl->job = "";
	if (ctl->json) {
		int printed = zd_ctl_print_json(stdout, ctl->verb, test.rows);
		return status ? status : printed;
	}
	json_decref(test.rows);
	if (!status)
		puts("all is well");
	return status;
}
