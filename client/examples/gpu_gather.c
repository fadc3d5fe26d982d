/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_gather - hello_gather on GPUs: two trainers share a unit of a million numbers, each owns a half of it in its GPU's
 * memory, and gathers the whole in the order of a stream of its own. With one GPU both are on it. Run it beside a daemon:
 * zerod --backend cuda --foreground
 *
 *     gpu_gather [SOCKET]
 *
 * A trainer links CUDA and includes its headers, and runs kernels where this program copies; here the few functions that
 * it takes are looked up in the driver, so that it builds where there is no CUDA.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zerod.h>

#define WORLD 2
#define NUMEL 1000000

/* ---- CUDA, where a trainer has its header ----------------------------------------------------------------------------- */

static int (*cuInit)(unsigned int flags);
static int (*cuDeviceGetCount)(int *count);
static int (*cuDeviceGetUuid)(unsigned char uuid[16], int device);
static int (*cuDevicePrimaryCtxRetain)(void **context, int device);
static int (*cuCtxSetCurrent)(void *context);
static int (*cuStreamCreateWithPriority)(void **stream, unsigned int flags, int priority);
static int (*cuMemcpyHtoDAsync)(void *to, const void *from, size_t bytes, void *stream);
static int (*cuMemcpyDtoHAsync)(void *to, const void *from, size_t bytes, void *stream);

/* By way of the driver's own look-up, which knows versions. */
static int (*cuGetProcAddress)(const char *name, void **function, int version, uint64_t flags, int *status);

static void look_up(const char *name, void *function)
{
	void *found = NULL;
	if (cuGetProcAddress(name, &found, 12000, 0, NULL) || !found) {
		fprintf(stderr, "gpu_gather: the driver has no %s\n", name);
		exit(EXIT_FAILURE);
	}
	memcpy(function, &found, sizeof(found));
}

static void load_driver(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	void *found = driver ? dlsym(driver, "cuGetProcAddress_v2") : NULL;
	if (!found) {
		fprintf(stderr, "gpu_gather: there is no CUDA driver\n");
		exit(EXIT_FAILURE);
	}
	memcpy(&cuGetProcAddress, &found, sizeof(found));
	look_up("cuInit", &cuInit);
	look_up("cuDeviceGetCount", &cuDeviceGetCount);
	look_up("cuDeviceGetUuid", &cuDeviceGetUuid);
	look_up("cuDevicePrimaryCtxRetain", &cuDevicePrimaryCtxRetain);
	look_up("cuCtxSetCurrent", &cuCtxSetCurrent);
	look_up("cuStreamCreateWithPriority", &cuStreamCreateWithPriority);
	look_up("cuMemcpyHtoDAsync", &cuMemcpyHtoDAsync);
	look_up("cuMemcpyDtoHAsync", &cuMemcpyDtoHAsync);
}

/* ---- What may fail --------------------------------------------------------------------------------------------------- */

static void must(int result, const char *what)
{
	if (result == 0)
		return;
	fprintf(stderr, "gpu_gather: %s: CUDA error %d\n", what, result);
	exit(EXIT_FAILURE);
}

/* Ends the process with the library's words when a call failed. */
static void check(const zerod_client *client, int status, const char *what)
{
	if (status == ZEROD_OK)
		return;
	fprintf(stderr, "gpu_gather: %s: %s: %s\n", what, zerod_status_name(status),
	        zerod_last_error(client));
	exit(-status);
}

/* ---- A trainer ------------------------------------------------------------------------------------------------------- */

/* The daemon counts GPUs in its own way; their UUIDs say which is which. */
static int find_gpu(const char *name)
{
	int count = 0;
	must(cuInit(0), "cuInit");
	must(cuDeviceGetCount(&count), "cuDeviceGetCount");
	for (int device = 0; device < count; device++) {
		unsigned char uuid[16];
		char text[48] = "GPU-";
		must(cuDeviceGetUuid(uuid, device), "cuDeviceGetUuid");
		for (int i = 0; i < 16; i++)
			snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%02x",
			         i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
		if (strcmp(text, name) == 0)
			return device;
	}
	fprintf(stderr, "gpu_gather: this process does not see %s\n", name);
	exit(EXIT_FAILURE);
}

/* A GPU of the daemon's, one a rank as far as they go; its context becomes the thread's. */
static uint32_t take_gpu(zerod_client *client, uint32_t rank)
{
	struct zerod_device_info info;
	uint32_t count = 0;
	void *context;
	while (zerod_device_get(client, count, &info) == ZEROD_OK)
		count++;
	check(client, zerod_device_get(client, rank % (count ? count : 1), &info), "device");
	must(cuDevicePrimaryCtxRetain(&context, find_gpu(info.name)), "cuDevicePrimaryCtxRetain");
	must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	return info.index;
}

static zerod_group *join(zerod_client *client, const char *job, uint32_t rank, uint32_t device)
{
	zerod_group *group;
	struct zerod_group_options place = ZEROD_INIT(place);
	place.job = job;
	place.world_size = WORLD;
	place.rank = rank;
	place.device = device;
	check(client, zerod_group_join(client, &place, &group), "join");
	return group;
}

static zerod_unit *register_weights(zerod_client *client, zerod_group *group)
{
	zerod_unit *unit;
	struct zerod_unit_options weights = ZEROD_INIT(weights);
	weights.name = "weights";
	weights.dtype = ZEROD_FLOAT32;
	weights.numel = NUMEL;
	check(client, zerod_unit_register(group, &weights, &unit), "register");
	return unit;
}

/* The shard has its content once `stream` has come so far: nobody waits for that here. */
static void publish(zerod_client *client, zerod_unit *unit, void *cuda_stream, zerod_stream *stream,
                    float *values)
{
	struct zerod_shard shard;
	check(client, zerod_unit_shard(unit, &shard), "shard");
	for (uint64_t i = 0; i < shard.true_numel; i++)
		values[i] = (float)(shard.offset_numel + i);
	check(client, zerod_update_begin(&unit, 1), "update_begin");
	must(cuMemcpyHtoDAsync(shard.data, values, shard.true_numel * sizeof(float), cuda_stream), "copy");
	check(client, zerod_publish(&unit, 1, &stream, 1, 0), "publish");
}

static void run_rank(const char *socket_path, const char *job, uint32_t rank)
{
	static float values[NUMEL];
	zerod_client *client = NULL;
	zerod_stream *stream;
	void *cuda_stream, *whole;
	uint64_t right = 0;
	struct zerod_options options = ZEROD_INIT(options);
	options.socket_path = socket_path;
	load_driver();
	check(NULL, zerod_connect(&options, &client), "connect");
	zerod_group *group = join(client, job, rank, take_gpu(client, rank));
	zerod_unit *unit = register_weights(client, group);
	must(cuStreamCreateWithPriority(&cuda_stream, 1, 0), "cuStreamCreateWithPriority"); /* non-blocking */
	check(client, zerod_cuda_stream_wrap(client, cuda_stream, &stream), "wrap");
	publish(client, unit, cuda_stream, stream, values);

	/* The stream waits for the bytes, and the release for the stream. */
	check(client, zerod_gather(unit, NULL, stream, &whole), "gather");
	must(cuMemcpyDtoHAsync(values, whole, sizeof(values), cuda_stream), "copy");
	check(client, zerod_release(unit, NULL, &stream, 1, NULL), "release");
	check(client, zerod_stream_synchronize(stream), "synchronize");
	for (uint64_t i = 0; i < NUMEL; i++)
		right += values[i] == (float)i;
	printf("rank %u: %llu of %d numbers are right\n", rank, (unsigned long long)right, NUMEL);
	check(client, zerod_commit(group, 1), "commit"); /* before, no rank may take its shard away */
	zerod_stream_destroy(stream);
	zerod_close(client);
	exit(right == NUMEL ? EXIT_SUCCESS : EXIT_FAILURE);
}

int main(int argc, char **argv)
{
	char job[32];
	(void)snprintf(job, sizeof(job), "gpu-%d", (int)getpid());
	for (uint32_t rank = 0; rank < WORLD; rank++)
		if (fork() == 0) /* before CUDA, which a child could not use then */
			run_rank(argc > 1 ? argv[1] : NULL, job, rank);
	int status, failed = 0;
	while (wait(&status) > 0)
		failed |= status;
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
