/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_copy.c - copies and conversions by the trainer's GPU, on a stream of the library, and waits for them.
 *
 * The library's stream is non-blocking and of the highest priority, in the primary context. A copy therefore
 * overtakes the kernels that the trainer has queued. After copies that are enqueued together, the stream
 * writes the next value of a timeline on the client's page. All users of the bytes wait for that counter:
 * streams, the CPU, and the daemon.
 */
#include "client/lib/device/cuda_internal.h"

#define SPINS 1000u

static bool has_copied(const struct zerod_client *client, uint32_t timeline, uint64_t value)
{
	return zc_fence_reached(zc_counter_load(client->gpu_page, timeline), value);
}

/* In the GPU's context. */
static int open_stream(const struct zd_cuda *driver, struct zc_gpu *gpu, struct zd_err *err)
{
	int least = 0, greatest = 0;
	int rc = 0;

	if (gpu->copies)
		return 0;
	rc = zd_cuda_err(driver, driver->ctxGetStreamPriorityRange(&least, &greatest), err,
	                 "the priorities of %s", gpu->name);
	if (!rc)
		rc = zd_cuda_err(
		        driver,
		        driver->streamCreateWithPriority(&gpu->copies, ZD_CU_STREAM_NON_BLOCKING, greatest),
		        err, "a stream for copies on %s", gpu->name);
	return rc;
}

/* Records that the fence follows a copy. With the client's lock. */
static void copied_note(struct zc_cuda *cuda, struct zc_fence fence)
{
	atomic_store(&cuda->copied[fence.timeline], fence.value);
	atomic_fetch_or(&cuda->has_copied[fence.timeline / MASK_BITS], 1ull << fence.timeline % MASK_BITS);
}

/* Returns the driver's result: INVALID_VALUE for memory that it does not know. The client has a GPU. */
static int memory_type(const struct zc_cuda *cuda, const void *at, unsigned int *type)
{
	struct zc_cuda_scope scope;
	int result = zc_cuda_enter(cuda->driver, cuda->gpus[0].context, &scope);

	if (result == ZD_CU_SUCCESS)
		result = cuda->driver->pointerGetAttribute(type, ZD_CU_POINTER_MEMORY_TYPE, (zd_cu_ptr)at);
	zc_cuda_leave(cuda->driver, &scope);
	return result;
}

bool zc_cuda_is_gpu_address(const struct zerod_client *client, const void *at)
{
	const struct zc_cuda *cuda = client->cuda;
	unsigned int type = 0;

	return cuda && cuda->ngpus > 0 && memory_type(cuda, at, &type) == ZD_CU_SUCCESS &&
	       type == ZD_CU_MEMORY_OF_DEVICE;
}

static bool reaches_all_memory(const struct zc_cuda *cuda)
{
	int can = 1;

	for (unsigned i = 0; i < cuda->ngpus && can; i++)
		if (cuda->driver->deviceGetAttribute(&can, ZD_CU_ATTR_PAGEABLE_MEMORY_ACCESS,
		                                     cuda->gpus[i].device) != ZD_CU_SUCCESS)
			can = 0;
	return can;
}

bool zc_cuda_is_unreachable(const struct zerod_client *client, const void *at)
{
	const struct zc_cuda *cuda = client->cuda;
	unsigned int type = 0;

	return memory_type(cuda, at, &type) == ZD_CU_INVALID_VALUE && !reaches_all_memory(cuda);
}

int zc_cuda_converts(const struct zc_segment *segment, struct zd_err *err)
{
	return zc_kernels_check(&segment->gpu->kernels, err);
}

static int enqueue_one(const struct zd_cuda *driver, const struct zc_gpu *gpu, const struct zc_copy *copy,
                       struct zd_err *err)
{
	if (copy->conversion)
		return zc_kernels_cast(&gpu->kernels, gpu->copies, copy->conversion, err);
	return zd_cuda_err(
	        driver,
	        driver->memcpyAsync((zd_cu_ptr)copy->to, (zd_cu_ptr)copy->from, copy->bytes, gpu->copies),
	        err, "copying a slice of %llu bytes on %s", (unsigned long long)copy->bytes, gpu->name);
}

/* In the GPU's context: its copies, and after them the next value of its timeline. */
static int enqueue_copies(const struct zd_cuda *driver, struct zc_gpu *gpu, const struct zc_copy *copies,
                          unsigned count, struct zd_err *err)
{
	zd_cu_ptr counter = gpu->gpu_page + gpu->timeline * sizeof(uint64_t);
	int rc = open_stream(driver, gpu, err);

	for (unsigned i = 0; i < count && !rc; i++)
		rc = enqueue_one(driver, gpu, &copies[i], err);
	if (!rc)
		rc = zd_cuda_err(driver,
		                 driver->streamWriteValue64(gpu->copies, counter, gpu->copied + 1,
		                                            ZD_CU_WRITE_DEFAULT),
		                 err, "writing a fence on %s", gpu->name);
	if (!rc)
		gpu->copied++;
	return rc;
}

/* Enqueues the copies of one GPU. */
static int copy_on(struct zerod_client *client, struct zc_gpu *gpu, struct zc_copy *copies, unsigned count,
                   struct zd_err *err)
{
	struct zc_cuda *cuda = client->cuda;
	struct zc_forwarded_fence *forwarded = NULL;
	struct zc_cuda_scope scope;
	int rc = zc_forwarded_fence_new_for_copies(client, copies, count, &forwarded, err);

	if (rc)
		return rc;
	rc = zd_cuda_err(cuda->driver, zc_cuda_enter(cuda->driver, gpu->context, &scope), err, "entering %s",
	                 gpu->name);
	if (!rc)
		rc = enqueue_copies(cuda->driver, gpu, copies, count, err);
	zc_cuda_leave(cuda->driver, &scope);
	zc_forwarded_fence_enqueue(client, forwarded, (struct zc_fence){gpu->timeline, gpu->copied}, rc);
	if (rc)
		return rc;
	for (unsigned i = 0; i < count; i++)
		copies[i].copied = (struct zc_fence){gpu->timeline, gpu->copied};
	copied_note(cuda, copies[0].copied);
	return 0;
}

static uint32_t device_of(const struct zc_copy *copy)
{
	return copy->segment->is_file ? copy->device : copy->segment->device;
}

int zc_cuda_copy(struct zerod_client *client, struct zc_copy *copies, unsigned count, struct zd_err *err)
{
	struct zc_cuda *cuda = client->cuda;
	unsigned end;
	int rc = 0;

	for (unsigned first = 0; first < count && !rc; first = end) {
		struct zc_gpu *gpu = zc_gpu_find(cuda, device_of(&copies[first]));

		zd_assert(gpu); /* its segment is mapped, or its group was joined */
		for (end = first + 1; end < count; end++)
			if (device_of(&copies[end]) != device_of(&copies[first]))
				break;
		rc = copy_on(client, gpu, copies + first, end - first, err);
	}
	return rc;
}

/* ---- Waiting ------------------------------------------------------------------------------------------- */

static int synchronize(struct zerod_client *client, const struct zc_gpu *gpu, struct zd_err *err)
{
	const struct zd_cuda *driver = ((const struct zc_cuda *)client->cuda)->driver;
	struct zc_cuda_scope scope;
	int rc = zd_cuda_err(driver, zc_cuda_enter(driver, gpu->context, &scope), err, "entering %s",
	                     gpu->name);

	if (!rc)
		rc = zd_cuda_err(driver, driver->streamSynchronize(gpu->copies), err, "copies on %s",
		                 gpu->name);
	zc_cuda_leave(driver, &scope);
	return rc;
}

/* The library's own stream has only copies, which do not wait. */
static int wait_one(struct zerod_client *client, const struct zc_fence *copied, struct zd_err *err)
{
	const struct zc_cuda *cuda = client->cuda;

	for (unsigned i = 0; i < SPINS; i++)
		if (has_copied(client, copied->timeline, copied->value))
			return 0;
	return synchronize(client, &cuda->gpus[copied->timeline - ZEROD_MAX_STREAMS], err);
}

int zc_cuda_copies_wait(struct zerod_client *client, const struct zc_fences *copied, struct zd_err *err)
{
	const struct zc_fence *list = zc_fences_list(copied);
	int rc = 0;

	for (unsigned i = 0; i < copied->count && !rc; i++)
		rc = wait_one(client, &list[i], err);
	return rc;
}

static bool daemon_sees(const struct zerod_client *client, struct zc_fence fence)
{
	return zc_fence_reached(zc_counter_load(client->client_page, fence.timeline), fence.value);
}

/* Finds the last copy of each stream that has not ended, as far as the daemon can see. With or without the
 * lock. */
static void find_open(const struct zerod_client *client, struct zc_fence_merge *open)
{
	struct zc_cuda *cuda = client->cuda;

	zc_fence_merge_init(open);
	for (uint32_t i = 0; cuda && i < ZD_TIMELINES / MASK_BITS; i++) {
		for (uint64_t left = cuda->has_copied[i]; left; left &= left - 1) {
			uint32_t timeline = i * MASK_BITS + (uint32_t)__builtin_ctzll(left);
			struct zc_fence last = {timeline, cuda->copied[timeline]};

			if (!daemon_sees(client, last))
				zc_fence_merge_add(open, last);
		}
	}
}

int zc_cuda_copies_finish(struct zerod_client *client, struct zd_err *err)
{
	struct zc_fence_merge open;

	find_open(client, &open);
	return zc_cuda_copies_wait(client, &open.fences, err);
}

/* A later fence of the same stream also stands for its copies. */
static bool is_listed(const struct zc_fence_args *args, uint32_t timeline)
{
	for (size_t i = 0; i < args->count; i++)
		if (args->fences[i].timeline == timeline)
			return true;
	return false;
}

int zc_cuda_copies_fence(struct zerod_client *client, struct zc_fence_args *args, struct zd_err *err)
{
	struct zc_fence_merge open;

	/* If no other holder exists, a release revokes access before it returns. */
	zc_fence_forwarder_settle(client);
	find_open(client, &open);
	for (unsigned i = 0; i < open.fences.count; i++) {
		Zd__Fence *fence = &args->fences[args->count];

		if (is_listed(args, open.list[i].timeline))
			continue;
		if (args->count == ZD_MAX_FENCES) /* no room to name them in the request */
			return zc_cuda_copies_wait(client, &open.fences, err);
		zd__fence__init(fence);
		fence->timeline = open.list[i].timeline;
		fence->value = open.list[i].value;
		args->pointers[args->count++] = fence;
	}
	return 0;
}
