/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_device.c - the GPUs that a client uses, from the first join to the client's end.
 *
 * A GPU is found by the UUID by which the daemon names it, since CUDA_VISIBLE_DEVICES and containers hide and
 * renumber GPUs. Its primary context is retained, so that memory that is mapped here is valid in every
 * context of that GPU in this process. At the client's end, all work that the library has appended to the
 * trainer's streams must have run before the pages that this work accesses are freed. If that takes too long,
 * pages and contexts stay until the process ends.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "client/lib/base/options.h"
#include "client/lib/device/cuda_internal.h"
#include "client/lib/device/offloaded_sum.h"
#include "client/lib/segments/cuda_segment.h"

#define REGISTER    (ZD_CU_HOST_REGISTER_PORTABLE | ZD_CU_HOST_REGISTER_DEVICEMAP)
#define DRAIN_NS    10000000000ull /* how long the end waits for the trainer's streams */
#define LOOK_AGAIN  100000L        /* ns */
#define CHECK_EVERY 64u            /* polls between two checks of the contexts */
/* A client's timelines: its streams', its GPUs' copies', its GPUs' sums'. */
#define COPIES_TIMELINE ZEROD_MAX_STREAMS
#define SUMS_TIMELINE   (ZEROD_MAX_STREAMS + MOST_GPUS)
#define MOST_GPUS       ((ZD_TIMELINES - ZEROD_MAX_STREAMS) / (1 + ZC_SUM_STREAMS))

/* ---- Contexts ------------------------------------------------------------------------------------------ */

int zc_cuda_load(struct zerod_client *client, struct zc_cuda **out, struct zd_err *err)
{
	const struct zd_cuda *driver;
	struct zc_cuda *cuda;
	int rc = zd_cuda_load(&driver, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&client->cuda_lock);
	cuda = client->cuda;
	if (!cuda) {
		cuda = calloc(1, sizeof(*cuda));
		if (cuda) {
			cuda->driver = driver;
			zc_fence_forwarder_init(&cuda->forwarder);
			client->cuda = cuda;
		}
	}
	pthread_mutex_unlock(&client->cuda_lock);
	if (!cuda) {
		(void)zd_err_errno(err, ENOMEM, "opening a GPU");
		return ZEROD_E_SYSTEM;
	}
	*out = cuda;
	return 0;
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

static int check_gpu(const struct zc_cuda *cuda, const struct zc_gpu *gpu, struct zd_err *err)
{
	int can = 0;
	int rc = zd_cuda_err(
	        cuda->driver,
	        cuda->driver->deviceGetAttribute(&can, ZD_CU_ATTR_CAN_USE_64_BIT_MEM_OPS, gpu->device), err,
	        "querying the abilities of %s", gpu->name);

	if (!rc && !can)
		rc = zd_err_set(err, ZEROD_E_UNSUPPORTED, "%s has no 64-bit memory operations in streams",
		                gpu->name);
	return rc;
}

/* Pages that GPUs read or write. The last one is NULL if the daemon requests no sums. */
#define NPAGES 3u

static void list_pages(const struct zerod_client *client, void *pages[NPAGES])
{
	pages[0] = client->gpu_page;
	pages[1] = client->daemon_page;
	pages[2] = client->worker.page;
}

static void unregister(const struct zd_cuda *driver, void *const *pages, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (pages[i])
			(void)driver->memHostUnregister(pages[i]);
}

/* With a context current. */
static int register_pages(struct zerod_client *client, struct zc_cuda *cuda, struct zd_err *err)
{
	static const char *const names[NPAGES] = {"the client's fence page", "the daemon's fence page",
	                                          "the page of results"};
	static const size_t bytes[NPAGES] = {ZD_FENCE_PAGE_BYTES, ZD_FENCE_PAGE_BYTES, ZD_WORK_PAGE_BYTES};
	const struct zd_cuda *driver = cuda->driver;
	void *pages[NPAGES];
	int rc = 0;

	if (cuda->registered)
		return 0;
	list_pages(client, pages);
	for (unsigned i = 0; i < NPAGES && !rc; i++) {
		if (!pages[i])
			continue;
		rc = zd_cuda_err(driver, driver->memHostRegister(pages[i], bytes[i], REGISTER), err,
		                 "registering %s", names[i]);
		if (rc)
			unregister(driver, pages, i);
	}
	cuda->registered = !rc;
	return rc;
}

static void unregister_pages(struct zerod_client *client, struct zc_cuda *cuda)
{
	void *pages[NPAGES];

	list_pages(client, pages);
	if (cuda->registered)
		unregister(cuda->driver, pages, NPAGES);
	cuda->registered = false;
}

/* In the GPU's context. After a failure, the client's end frees everything that exists. */
static int set_up(struct zerod_client *client, struct zc_cuda *cuda, struct zc_gpu *gpu, struct zd_err *err)
{
	const struct zd_cuda *driver = cuda->driver;
	int rc = check_gpu(cuda, gpu, err);

	if (!rc)
		rc = register_pages(client, cuda, err);
	if (!rc)
		rc = zd_cuda_err(driver, driver->memHostGetDevicePointer(&gpu->gpu_page, client->gpu_page, 0),
		                 err, "mapping the client's fence page into %s", gpu->name);
	if (!rc)
		rc = zc_sum_streams_open(client, driver, gpu, err);
	if (!rc)
		rc = zc_watch_start(client, cuda, err);
	if (!rc)
		rc = zc_fence_forwarder_start(client, &cuda->forwarder, err);
	if (!rc) {
		zc_kernels_load(driver, gpu->name, &gpu->kernels);
		rc = zc_worker_start(client, err);
	}
	if (rc) {
		zc_sum_streams_close(driver, gpu);
		zc_kernels_unload(&gpu->kernels);
	}
	if (rc && cuda->ngpus == 0)
		unregister_pages(client, cuda); /* they must not outlive the only context */
	return rc;
}

static int open_context(struct zerod_client *client, struct zc_cuda *cuda, struct zc_gpu *gpu,
                        struct zd_err *err)
{
	const struct zd_cuda *driver = cuda->driver;
	struct zc_cuda_scope scope;
	int result = driver->devicePrimaryCtxRetain(&gpu->context, gpu->device);
	int rc;

	if (result == ZD_CU_DEVICE_UNAVAILABLE)
		return zd_err_set(err, ZEROD_E_DEVICE,
		                  "%s is in exclusive-process mode, and the daemon is that process",
		                  gpu->name);
	rc = zd_cuda_err(driver, result, err, "the context of %s", gpu->name);
	if (rc)
		return rc;
	rc = zd_cuda_err(driver, zc_cuda_enter(driver, gpu->context, &scope), err, "entering %s", gpu->name);
	if (!rc)
		rc = set_up(client, cuda, gpu, err);
	zc_cuda_leave(driver, &scope);
	if (rc)
		(void)driver->devicePrimaryCtxRelease(gpu->device);
	return rc;
}

/* Opens a GPU that is not open yet. With cuda_lock. */
static int add_gpu(struct zerod_client *client, struct zc_cuda *cuda, int device, struct zd_err *err)
{
	struct zc_gpu *gpu = &cuda->gpus[cuda->ngpus];
	struct zd_cu_uuid uuid;
	int rc;

	if (cuda->ngpus == MOST_GPUS ||
	    SUMS_TIMELINE + (cuda->ngpus + 1) * ZC_SUM_STREAMS > client->ntimelines)
		return zd_err_set(err, ZEROD_E_LIMIT, "the session uses %u GPUs already", cuda->ngpus);
	rc = zd_cuda_err(cuda->driver, cuda->driver->deviceGetUuid(&uuid, device), err, "the UUID of GPU %d",
	                 device);
	if (rc)
		return rc;
	*gpu = (struct zc_gpu){.device = device, .timeline = COPIES_TIMELINE + cuda->ngpus};
	for (uint32_t i = 0; i < ZC_SUM_STREAMS; i++)
		gpu->sum_streams[i].timeline = SUMS_TIMELINE + cuda->ngpus * ZC_SUM_STREAMS + i;
	zd_cuda_uuid_text(&uuid, gpu->name);
	rc = open_context(client, cuda, gpu, err);
	if (!rc)
		cuda->ngpus++;
	return rc;
}

int zc_gpu_open(struct zerod_client *client, struct zc_cuda *cuda, int device, struct zc_gpu **gpu,
                struct zd_err *err)
{
	unsigned i = 0;
	int rc = 0;

	pthread_mutex_lock(&client->cuda_lock);
	while (i < cuda->ngpus && cuda->gpus[i].device != device)
		i++;
	if (i == cuda->ngpus)
		rc = add_gpu(client, cuda, device, err);
	pthread_mutex_unlock(&client->cuda_lock);
	if (!rc)
		*gpu = &cuda->gpus[i];
	return rc;
}

/* ---- The end ------------------------------------------------------------------------------------------- */

/* As the daemon sees it: a strict client's thread has forwarded it by then. */
static bool all_written(const struct zerod_client *client, const struct zc_cuda *cuda)
{
	const uint64_t *page = client->client_page;
	bool all = true;

	for (uint32_t i = 0; i < ZEROD_MAX_STREAMS && i < client->ntimelines; i++)
		all &= zc_fence_reached(zc_counter_load(page, i), client->timeline_value[i]);
	for (unsigned i = 0; i < cuda->ngpus; i++) {
		const struct zc_gpu *gpu = &cuda->gpus[i];

		all &= zc_fence_reached(zc_counter_load(page, gpu->timeline), gpu->copied);
		all &= !zc_sum_streams_are_busy(page, gpu);
	}
	return all;
}

/* A lost context returns the error that caused the loss, for every call. */
static bool is_alive(const struct zc_cuda *cuda)
{
	bool alive = true;

	for (unsigned i = 0; i < cuda->ngpus && alive; i++) {
		struct zc_cuda_scope scope;
		size_t available, total;

		alive = zc_cuda_enter(cuda->driver, cuda->gpus[i].context, &scope) == ZD_CU_SUCCESS &&
		        cuda->driver->memGetInfo(&available, &total) == ZD_CU_SUCCESS;
		zc_cuda_leave(cuda->driver, &scope);
	}
	return alive;
}

/* Whether all work that the library has put into the trainer's streams has run, or never will. The streams
 * write their counters without waking a thread. The caller therefore polls. */
static bool drain(struct zerod_client *client, const struct zc_cuda *cuda)
{
	const struct timespec pause = {.tv_nsec = LOOK_AGAIN};
	uint64_t deadline_ns = zc_now_ns() + DRAIN_NS;

	for (unsigned polls = 1; !all_written(client, cuda); polls++) {
		if (polls % CHECK_EVERY == 0 && !is_alive(cuda))
			return true; /* the work in its streams is dropped */
		if (zc_now_ns() >= deadline_ns)
			return false;
		(void)nanosleep(&pause, NULL);
	}
	return true;
}

static void close_gpus(struct zerod_client *client, struct zc_cuda *cuda)
{
	const struct zd_cuda *driver = cuda->driver;

	zc_cuda_segments_unmap(client, cuda);
	for (unsigned i = cuda->ngpus; i-- > 0;) { /* the pages were registered in the first one's context */
		struct zc_gpu *gpu = &cuda->gpus[i];
		struct zc_cuda_scope scope;

		zc_cuda_enter_last(driver, gpu->context, &scope);
		if (gpu->copies)
			(void)driver->streamDestroy(gpu->copies);
		zc_sum_streams_close(driver, gpu);
		zc_kernels_unload(&gpu->kernels);
		if (i == 0)
			unregister_pages(client, cuda);
		zc_cuda_leave(driver, &scope);
		(void)driver->devicePrimaryCtxRelease(gpu->device);
	}
}

static bool is_kept(const struct zerod_client *client, int device)
{
	for (unsigned i = 0; i < client->ncontexts; i++)
		if (client->contexts[i] == device)
			return true;
	return false;
}

int zc_cuda_contexts_keep(struct zerod_client *client, struct zd_err *err)
{
	const struct zc_cuda *cuda = client->cuda;
	struct CUctx_st *context;
	int rc = 0;

	for (unsigned i = 0; cuda && i < cuda->ngpus && !rc; i++) {
		const struct zc_gpu *gpu = &cuda->gpus[i];

		if (is_kept(client, gpu->device))
			continue;
		rc = zd_cuda_err(cuda->driver, cuda->driver->devicePrimaryCtxRetain(&context, gpu->device),
		                 err, "the context of %s", gpu->name);
		if (!rc)
			client->contexts[client->ncontexts++] = gpu->device;
	}
	return rc;
}

void zc_cuda_contexts_free(struct zerod_client *client)
{
	const struct zd_cuda *driver;
	struct zd_err ignored;

	if (client->ncontexts == 0 || zd_cuda_load(&driver, &ignored))
		return;
	while (client->ncontexts > 0)
		(void)driver->devicePrimaryCtxRelease(client->contexts[--client->ncontexts]);
}

bool zc_cuda_close(struct zerod_client *client)
{
	struct zc_cuda *cuda = client->cuda;
	bool drained;

	if (!cuda)
		return true;
	if (client->broken_status)
		zc_waits_abort(client);
	zc_worker_stop(client);
	drained = drain(client, cuda);
	zc_watch_stop(cuda);
	zc_fence_forwarder_stop(client, &cuda->forwarder);
	if (drained) {
		close_gpus(client, cuda);
	} else {
		client->client_page = NULL; /* a GPU can still access them: they remain mapped */
		client->daemon_page = NULL;
		client->gpu_page = NULL;
		client->worker.page = NULL;
	}
	client->cuda = NULL;
	free(cuda);
	return drained;
}

void zc_cuda_forget(struct zerod_client *client)
{
	struct zc_cuda *cuda = client->cuda;

	if (cuda) {
		zc_fence_forwarder_forget(client, &cuda->forwarder);
		zc_watch_forget(cuda);
	}
	free(cuda);
	client->cuda = NULL;
}
