/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strict.c - strict clients on GPUs, with kernels: what a stale view does, and that taking
 * access from one buffer disturbs nobody who reads another. tests/contract/test_strict.c has the rest.
 *
 *     strict [TEST]     without a name: each in a process of its own, since a context is lost in one of them
 *
 * The ranks are the contract's: three, on as many GPUs as there are. It runs on real GPUs and over the
 * driver's double.
 */
#include <stdio.h>

#include <zerod_cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "tests/contract/contract_internal.h"
#include "tests/gpu/stress.h"
#include "tests/support/daemon_fixture.h"

#define RANKS   3u
#define NUMEL   (1ull << 20) /* so that all ranks' slices travel */
#define ROUNDS  200u
#define KERNELS 4u
#define SECONDS 300u /* of one test */

/* Rank 0, and what its GPU runs. */
struct scene {
	struct contract *c;
	struct contract_rank *rank;
	struct zd_gpu gpu;
	struct stress_kernels kernels;
	struct CUstream_st *handle;
	zerod_stream *stream;
};

static struct zd_err err = ZD_ERR_NONE; /* of the call that RUNS() is about */

#define RUNS(call) expect_success(call, #call, __LINE__)

static void expect_success(int status, const char *call, int line)
{
	if (!status)
		return;
	print_message("%s\n", err.text);
	contract_check(false, call, line);
}

static void open_scene(struct scene *scene)
{
	const struct contract_options options = {.world_size = RANKS, .arena = "128M", .strict = 1};
	struct zerod_device_info info = ZEROD_INIT(info);

	memset(scene, 0, sizeof(*scene));
	scene->c = contract_open(&options);
	scene->rank = &scene->c->ranks[0];
	print_message("%u ranks on %u GPUs\n", scene->c->world_size, scene->c->devices);
	OK(scene->rank->client, zerod_device_get(scene->rank->client, 0, &info));
	RUNS(zd_gpu_open(&scene->gpu, info.name, &err));
	RUNS(stress_kernels_load(&scene->kernels, &scene->gpu, &err));
	RUNS(zd_gpu_stream(&scene->gpu, false, &scene->handle, &err));
	OK(scene->rank->client, zerod_cuda_stream_wrap(scene->rank->client, scene->handle, &scene->stream));
}

/* A kernel reads all of the view on the stream. */
static void read_view(struct scene *scene, struct CUstream_st *stream, const void *view, uint64_t bytes)
{
	RUNS(zd_gpu_enter(&scene->gpu, &err));
	RUNS(stress_compare(&scene->kernels, stream, (zd_cu_ptr)view, bytes / 8, 0, 0, &err));
}

/* Gathers, reads it by a kernel behind the wait, and releases it behind that: the view, which nobody holds
 * any more. */
static const void *use_once(struct scene *scene, struct contract_unit *unit, uint64_t version)
{
	zerod_unit *at = unit->at[0];
	zerod_ticket ticket;
	void *view = NULL;

	AWAIT(contract_device(scene->c, 0).quarantine_bytes ==
	      0); /* so that it comes to the place of the last one */
	OK(scene->rank->client, zerod_gather_begin(at, NULL, &ticket));
	OK(scene->rank->client, zerod_wait(scene->rank->client, ticket, scene->stream, &view));
	CHECK(contract_can_touch(scene->rank, view));
	read_view(scene, scene->handle, view, contract_padded_bytes(unit));
	OK(scene->rank->client, zerod_stream_synchronize(scene->stream));
	contract_expect_bytes(unit, view, version);
	read_view(scene, scene->handle, view, contract_padded_bytes(unit));
	OK(scene->rank->client, zerod_release(at, &scene->stream, 1, NULL, NULL));
	OK(scene->rank->client, zerod_stream_synchronize(scene->stream));
	CHECK(!contract_can_touch(scene->rank, view));
	return view;
}

/* Of a scene whose context works. */
static void close_scene(struct scene *scene)
{
	zerod_stream_destroy(scene->stream);
	RUNS(zd_gpu_enter(&scene->gpu, &err));
	RUNS(zd_cuda_err(scene->gpu.cuda, scene->gpu.cuda->streamDestroy(scene->handle), &err,
	                 "destroying a stream"));
	stress_kernels_unload(&scene->kernels);
	zd_gpu_close(&scene->gpu);
	contract_close(scene->c);
}

/* ---- The tests ----------------------------------------------------------------------------------------- */

/* Kernels read one buffer while access to another comes and goes. */
static void test_others_are_not_disturbed(void **state)
{
	struct contract_unit held, unit;
	struct scene scene;
	struct CUstream_st *reading = NULL;
	const void *held_view;

	(void)state;
	open_scene(&scene);
	RUNS(zd_gpu_stream(&scene.gpu, false, &reading, &err));
	contract_plain_unit(scene.c, "held", NUMEL, &held);
	contract_plain_unit(scene.c, "w", NUMEL, &unit);
	contract_publish_all(scene.c, &held);
	contract_publish_all(scene.c, &unit);
	held_view = contract_gather(scene.rank, &held, NULL);
	for (unsigned round = 0; round < ROUNDS; round++) {
		void *view = NULL;

		for (unsigned i = 0; i < KERNELS; i++)
			read_view(&scene, reading, held_view, contract_padded_bytes(&held));
		OK(scene.rank->client, zerod_gather(unit.at[0], NULL, scene.stream, &view));
		read_view(&scene, scene.handle, view, contract_padded_bytes(&unit));
		OK(scene.rank->client, zerod_release(unit.at[0], &scene.stream, 1, NULL, NULL));
	}
	OK(scene.rank->client, zerod_stream_synchronize(scene.stream));
	RUNS(zd_gpu_synchronize(&scene.gpu, reading, &err));
	contract_expect_bytes(&held, held_view, 1);
	contract_release(scene.rank, &held, NULL);
	RUNS(zd_cuda_err(scene.gpu.cuda, scene.gpu.cuda->streamDestroy(reading), &err,
	                 "destroying a stream"));
	close_scene(&scene);
}

/* The last thing that this process does with GPUs, but for ending its clients. */
static void test_stale_view_ends_the_context(void **state)
{
	struct contract_unit unit;
	struct scene scene;
	const char *name = "?";
	const void *view;
	int result;

	(void)state;
	open_scene(&scene);
	contract_plain_unit(scene.c, "w", NUMEL, &unit);
	contract_publish_all(scene.c, &unit);
	view = use_once(&scene, &unit, 1);
	read_view(&scene, scene.handle, view, 8);
	result = scene.gpu.cuda->streamSynchronize(scene.handle);
	(void)scene.gpu.cuda->getErrorName(result, &name);
	print_message("a kernel that reads a stale view: %s\n", name);
	CHECK(result == ZD_CU_ILLEGAL_ADDRESS);
	for (uint32_t i = 0; i < scene.c->world_size; i++)
		zerod_close(scene.c->ranks[i].client);
	zerod_close(scene.c->observers[0]);
	CHECK(zd_daemon_stop(contract_daemon()) == 0);
	_exit(EXIT_SUCCESS); /* nothing of the lost context can be given back */
}

/* ---- Each in its process ------------------------------------------------------------------------------- */

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_others_are_not_disturbed, contract_teardown),
        cmocka_unit_test_teardown(test_stale_view_ends_the_context, contract_teardown),
};

static int run_one(const char *name)
{
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (strcmp(tests[i].name, name) == 0)
			return _cmocka_run_group_tests(name, &tests[i], 1, NULL, NULL);
	fprintf(stderr, "strict: no test '%s'\n", name);
	return EXIT_FAILURE;
}

static int run_in_process(const char *program, const char *name)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		(void)alarm(SECONDS);
		execl(program, program, name, (char *)NULL);
		_exit(EXIT_FAILURE);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return EXIT_FAILURE;
	if (WIFSIGNALED(status))
		printf("%s: ended by signal %d\n", name, WTERMSIG(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
	int failed = 0;

	(void)setenv("ZEROD_TEST_BACKEND", "cuda", 1);
	if (argc > 1)
		return run_one(argv[1]);
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		bool ok = run_in_process(argv[0], tests[i].name) == EXIT_SUCCESS;

		printf("%sok %zu - %s\n", ok ? "" : "not ", i + 1, tests[i].name);
		(void)fflush(stdout);
		failed += !ok;
	}
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
