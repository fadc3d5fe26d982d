/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contract_cuda.c - the cuda backend's streams: CUstreams of each rank's GPU, wrapped.
 *
 * All ranks live in this process and share a GPU's few hardware queues, where a stream that waits holds up
 * all behind it. So the driver is asked for as many queues as there can be, unless the environment says how
 * many, and nothing of one test is left when the next one begins.
 * What streams copy is staged in memory that the driver has pinned, allocated once: with other memory, copies
 * would wait for the stream, and so would allocating beside a shut gate.
 */
#include <dlfcn.h>

#include <zerod_cuda.h>

#include "base/mem.h"
#include "client/lib/segments/cuda_context.h"
#include "client/lib/segments/segment.h"
#include "contract_internal.h"

#define MAX_GPUS     16
#define PINNED_BYTES ((size_t)64 << 20)
#define ALIGN        256u
#define QUEUES       "32"

struct gpu {
	struct CUctx_st *context;
	struct CUstream_st *now; /* of copies that nobody orders; of this test */
};

/* A copy to the CPU that has its bytes when its stream was synchronized. */
struct landing {
	const struct contract_stream *stream;
	void *to;
	void *staged;
	size_t bytes;
	LIST_ENTRY(landing) link;
};

enum gate_word { GATE_REACHED, GATE_OPEN, GATE_WORDS };

static const struct zd_cuda *cuda;
static struct gpu gpus[MAX_GPUS]; /* by ordinal; contexts stay until the process ends */
static uint8_t *pinned;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* `now` of GPUs, and: */
static size_t pinned_used;
static bool all_well = true; /* with what was given back */
static LIST_HEAD(, landing) landings = LIST_HEAD_INITIALIZER(landings);

/* ---- The driver ---------------------------------------------------------------------------------------- */

#define RUNS(call) check_result(call, #call, __LINE__)

static void check_result(int result, const char *call, int line)
{
	const char *name = "?";

	if (result == ZD_CU_SUCCESS)
		return;
	(void)cuda->getErrorName(result, &name);
	(void)print_message("%s: %s\n", call, name);
	contract_check(false, call, line);
}

#define ENDS(call) note_result(call, #call)

/* Of what ends something: a test's end goes on, to leave nothing to the next one. */
static void note_result(int result, const char *call)
{
	const char *name = "?";

	if (result == ZD_CU_SUCCESS)
		return;
	(void)cuda->getErrorName(result, &name);
	(void)print_message("%s: %s\n", call, name);
	all_well = false;
}

/* The calling thread goes on in the GPU's context. */
static void use_gpu(int ordinal)
{
	struct gpu *gpu = &gpus[ordinal];
	int result = ZD_CU_SUCCESS;

	CHECK(ordinal < MAX_GPUS);
	pthread_mutex_lock(&lock);
	if (!gpu->context)
		result = cuda->devicePrimaryCtxRetain(&gpu->context, ordinal);
	pthread_mutex_unlock(&lock);
	RUNS(result);
	RUNS(cuda->ctxSetCurrent(gpu->context));
}

/* Releases the memory and contexts that the tests share, at the end of the program. */
static void give_all_back(void)
{
	contract_gates_open(); /* of a test that has failed */
	for (int i = MAX_GPUS - 1; i >= 0; i--) {
		if (!gpus[i].context)
			continue;
		ENDS(cuda->ctxSetCurrent(gpus[i].context));
		if (i == 0 && pinned)
			ENDS(cuda->memFreeHost(pinned));
		ENDS(cuda->devicePrimaryCtxRelease(i));
	}
}

static uint32_t begin(uint32_t wanted)
{
	struct zd_err err = ZD_ERR_NONE;
	void *made = NULL;
	int count = 0;

	if (!cuda) {
		(void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", QUEUES, 0);
		if (zd_cuda_load(&cuda, &err))
			fail_msg("%s", err.text);
		assert_int_equal(atexit(give_all_back), 0);
	}
	if (!pinned) {
		use_gpu(0);
		RUNS(cuda->memHostAlloc(&made, PINNED_BYTES,
		                        ZD_CU_HOST_ALLOC_PORTABLE | ZD_CU_HOST_ALLOC_DEVICEMAP));
		pinned = made;
	}
	RUNS(cuda->deviceGetCount(&count));
	return wanted < (uint32_t)count ? wanted : (uint32_t)count;
}

static bool end(void)
{
	struct landing *landing;
	bool were_well;

	while ((landing = LIST_FIRST(&landings))) {
		LIST_REMOVE(landing, link);
		free(landing);
	}
	for (int i = 0; i < MAX_GPUS; i++) {
		if (!gpus[i].now)
			continue;
		ENDS(cuda->ctxSetCurrent(gpus[i].context));
		ENDS(cuda->streamDestroy(gpus[i].now));
		gpus[i].now = NULL;
	}
	pinned_used = 0;
	were_well = all_well;
	all_well = true;
	return were_well;
}

/* Until the end of the test. */
static void *stage(size_t bytes)
{
	void *staged = NULL;

	pthread_mutex_lock(&lock);
	if (bytes <= PINNED_BYTES - pinned_used) {
		staged = pinned + pinned_used;
		pinned_used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
	}
	pthread_mutex_unlock(&lock);
	CHECK(staged);
	return staged;
}

/* ---- Streams ------------------------------------------------------------------------------------------- */

static int create_stream(struct CUstream_st **made)
{
	return cuda->streamCreateWithPriority(made, ZD_CU_STREAM_NON_BLOCKING, 0);
}

static void stream_new(struct contract_stream *stream)
{
	struct contract_rank *rank = stream->rank;
	struct zerod_device_info info = ZEROD_INIT(info);
	struct zd_err err = ZD_ERR_NONE;
	struct CUstream_st *handle = NULL;
	int ordinal = 0;

	OK(rank->client, zerod_device_get(rank->client, contract_device_of(rank), &info));
	if (zd_cuda_find_device(cuda, info.name, &ordinal, &err)) {
		(void)print_message("%s\n", err.text);
		contract_check(false, "the rank's GPU is one of this process", __LINE__);
	}
	use_gpu(ordinal);
	stream->gpu = ordinal;
	RUNS(create_stream(&handle));
	stream->handle = handle;
	OK(rank->client, zerod_cuda_stream_wrap(rank->client, stream->handle, &stream->stream));
}

/* Enters the stream's context, whatever thread this is. */
static struct CUstream_st *handle_of(const struct contract_stream *stream)
{
	use_gpu(stream->gpu);
	return stream->handle;
}

static void stream_end(struct contract_stream *stream)
{
	struct CUstream_st *handle = stream->handle;

	zerod_stream_destroy(stream->stream);
	if (!handle)
		return; /* there was no room for it */
	ENDS(cuda->ctxSetCurrent(gpus[stream->gpu].context));
	ENDS(cuda->streamSynchronize(handle)); /* the daemon's memory goes with its client */
	ENDS(cuda->streamDestroy(handle));
}

static void stream_synced(struct contract_stream *stream)
{
	struct landing *landing, *next;

	pthread_mutex_lock(&lock);
	for (landing = LIST_FIRST(&landings); landing; landing = next) {
		next = LIST_NEXT(landing, link);
		if (landing->stream != stream)
			continue;
		memcpy(landing->to, landing->staged, landing->bytes);
		LIST_REMOVE(landing, link);
		free(landing);
	}
	pthread_mutex_unlock(&lock);
}

/* ---- Gates --------------------------------------------------------------------------------------------- */

static void gate_put(struct contract_stream *stream, struct contract_gate *gate)
{
	struct CUstream_st *handle = handle_of(stream);
	uint64_t *words = stage(GATE_WORDS * sizeof(*words));
	zd_cu_ptr at = 0;

	memset(words, 0, GATE_WORDS * sizeof(*words));
	RUNS(cuda->memHostGetDevicePointer(&at, words, 0));
	RUNS(cuda->streamWriteValue64(handle, at + GATE_REACHED * sizeof(*words), 1, ZD_CU_WRITE_DEFAULT));
	RUNS(cuda->streamWaitValue64(handle, at + GATE_OPEN * sizeof(*words), 1, ZD_CU_WAIT_GEQ));
	gate->words = words;
}

static bool gate_reached(struct contract_gate *gate)
{
	return __atomic_load_n(&gate->words[GATE_REACHED], __ATOMIC_ACQUIRE) == 1;
}

static void gate_open(struct contract_gate *gate)
{
	__atomic_store_n(&gate->words[GATE_OPEN], 1, __ATOMIC_RELEASE);
}

/* ---- Copies -------------------------------------------------------------------------------------------- */

/* The GPU whose memory some rank's client has mapped there; -1: none. */
static int find_gpu(zerod_client *client, const uint8_t *at)
{
	struct zc_segment *segment, *next;
	struct zc_range *range, *after;
	int ordinal = -1;

	if (!client)
		return -1;
	pthread_mutex_lock(&client->lock);
	HASH_ITER (hh, client->ranges, range, after) {
		const uint8_t *first = range->map;

		if (!range->mapping && at >= first && at < first + range->bytes)
			ordinal = range->gpu->device;
	}
	HASH_ITER (hh, client->segments, segment, next) {
		const uint8_t *first = segment->map;

		if (first && !segment->is_file && at >= first && at < first + segment->bytes)
			ordinal = zc_gpu_find(client->cuda, segment->device)->device;
	}
	pthread_mutex_unlock(&client->lock);
	return ordinal;
}

static bool find_file(zerod_client *client, const uint8_t *at)
{
	struct zc_segment *segment, *next;
	bool found = false;

	pthread_mutex_lock(&client->lock);
	HASH_ITER (hh, client->segments, segment, next) {
		const uint8_t *first = segment->map;

		found |= first && segment->is_file && at >= first && at < first + segment->bytes;
	}
	pthread_mutex_unlock(&client->lock);
	return found;
}

/* A stream that nothing is in, of the GPU with the address. */
static struct CUstream_st *stream_now(const void *at)
{
	struct contract *c = contract_current();
	int result = ZD_CU_SUCCESS, ordinal = -1;

	for (uint32_t i = 0; i < c->world_size && ordinal < 0; i++)
		ordinal = find_gpu(c->ranks[i].client, at);
	for (uint32_t i = 0; i < c->daemons && ordinal < 0; i++)
		ordinal = find_gpu(c->observers[i], at);
	CHECK(ordinal >= 0);
	use_gpu(ordinal);
	pthread_mutex_lock(&lock);
	if (!gpus[ordinal].now)
		result = create_stream(&gpus[ordinal].now);
	pthread_mutex_unlock(&lock);
	RUNS(result);
	return gpus[ordinal].now;
}

/* Memory of the host that some client has mapped. */
static bool is_of_host(const void *at)
{
	struct contract *c = contract_current();
	bool found = false;

	for (uint32_t i = 0; i < c->world_size && !found; i++)
		found = c->ranks[i].client && find_file(c->ranks[i].client, at);
	for (uint32_t i = 0; i < c->daemons && !found; i++)
		found = find_file(c->observers[i], at);
	return found;
}

struct host_copy {
	void *to;
	const void *from;
	size_t bytes;
	void *staged; /* owned */
};

static void run_host_copy(void *arg)
{
	struct host_copy *copy = arg;

	memcpy(copy->to, copy->from, copy->bytes);
	free(copy->staged);
	free(copy);
}

/* A copy by the CPU, in the order of the stream. */
static void copy_on_host(struct contract_stream *stream, void *to, const void *from, size_t bytes,
                         bool stages)
{
	int (*get_proc)(const char *name, void **fn, int version, uint64_t flags, int *status);
	int (*launch)(struct CUstream_st * stream, void (*call)(void *arg), void *arg) = NULL;
	struct host_copy *copy = zd_calloc(1, sizeof(*copy));
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	*copy = (struct host_copy){.to = to, .from = from, .bytes = bytes};
	if (stages) {
		copy->from = copy->staged = zd_calloc(1, bytes + 1);
		memcpy(copy->staged, from, bytes);
	}
	*(void **)&get_proc = dlsym(library, "cuGetProcAddress_v2");
	CHECK(get_proc != NULL);
	RUNS(get_proc("cuLaunchHostFunc", (void **)&launch, ZD_CUDA_VERSION, 0, NULL));
	RUNS(launch(handle_of(stream), run_host_copy, copy));
	(void)dlclose(library);
}

static void write_bytes(struct contract_stream *stream, void *to, const void *from, size_t bytes)
{
	struct CUstream_st *handle;
	void *staged;

	if (is_of_host(to)) {
		if (stream)
			copy_on_host(stream, to, from, bytes, true);
		else
			memcpy(to, from, bytes);
		return;
	}

	if (!stream) {
		handle = stream_now(to);
		RUNS(cuda->memcpyHtoDAsync((zd_cu_ptr)to, from, bytes, handle));
		RUNS(cuda->streamSynchronize(handle));
		return;
	}
	staged = stage(bytes);
	memcpy(staged, from, bytes);
	RUNS(cuda->memcpyHtoDAsync((zd_cu_ptr)to, staged, bytes, handle_of(stream)));
}

static void read_bytes(struct contract_stream *stream, void *to, const void *from, size_t bytes)
{
	struct CUstream_st *handle;
	struct landing *landing;

	if (is_of_host(from)) {
		if (stream)
			copy_on_host(stream, to, from, bytes, false);
		else
			memcpy(to, from, bytes);
		return;
	}

	if (!stream) {
		handle = stream_now(from);
		RUNS(cuda->memcpyDtoHAsync(to, (zd_cu_ptr)from, bytes, handle));
		RUNS(cuda->streamSynchronize(handle));
		return;
	}
	landing = zd_calloc(1, sizeof(*landing));
	*landing = (struct landing){.stream = stream, .to = to, .staged = stage(bytes), .bytes = bytes};
	pthread_mutex_lock(&lock);
	LIST_INSERT_HEAD(&landings, landing, link);
	pthread_mutex_unlock(&lock);
	RUNS(cuda->memcpyDtoHAsync(landing->staged, (zd_cu_ptr)from, bytes, handle_of(stream)));
}

static bool can_touch(zerod_client *client, const void *at, bool writes)
{
	const struct zd_cu_location location = {ZD_CU_LOCATION_DEVICE, find_gpu(client, at)};
	unsigned long long flags = ZD_CU_ACCESS_NONE;

	if (location.id < 0)
		return writes && find_file(client, at) && contract_host.can_touch(client, at, true);
	use_gpu(location.id);
	RUNS(cuda->memGetAccess(&flags, &location, (zd_cu_ptr)at));
	return writes ? flags == ZD_CU_ACCESS_READWRITE : flags != ZD_CU_ACCESS_NONE;
}

const struct contract_backend contract_cuda = {
        .begin = begin,
        .end = end,
        .stream_new = stream_new,
        .stream_end = stream_end,
        .stream_synced = stream_synced,
        .gate_put = gate_put,
        .gate_reached = gate_reached,
        .gate_open = gate_open,
        .write = write_bytes,
        .read = read_bytes,
        .can_touch = can_touch,
};
