/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_session.c - a session whose daemon page is written by GPUs. */
#include "executor/cuda/cuda_session.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "executor/cuda/cuda_worker.h"

_Static_assert(offsetof(struct zd_cuda_session, base) == 0, "zd_cuda_session_of() takes it for the session");

/* Any thread may drop the last reference, the loop's included. */
static void release_session(struct zd_backend_session *base)
{
	struct zd_cuda_session *session = zd_cuda_session_of(base);
	if (session->registered)
		zd_cuda_worker_free_session(session->worker, session);
	else
		zd_cuda_session_free(session, NULL);
}

int zd_cuda_session_new(uint64_t id, pid_t pid, int pidfd, struct zd_cuda_worker *worker,
                        struct zd_cuda_session **session, int *client_fd, int *daemon_fd, struct zd_err *err)
{
	int own_pidfd = fcntl(pidfd, F_DUPFD_CLOEXEC, 0);
	if (own_pidfd < 0)
		return zd_err_errno(err, errno, "copying the pidfd of process %d", (int)pid);
	struct zd_cuda_session *made = zd_calloc(1, sizeof(*made));
	int rc = zd_backend_session_init(&made->base, id, true, release_session, client_fd, daemon_fd, err);
	if (rc) {
		(void)close(own_pidfd);
		free(made);
		return rc;
	}
	made->worker = worker;
	made->pid = pid;
	made->pidfd = own_pidfd;
	pthread_mutex_init(&made->lock, NULL);
	*session = made;
	return 0;
}

void zd_cuda_session_free(struct zd_cuda_session *session, const struct zd_cuda *cuda)
{
	if (session->registered)
		(void)cuda->memHostUnregister(session->base.daemon_page);
	zd_backend_session_deinit(&session->base);
	(void)close(session->pidfd);
	pthread_mutex_destroy(&session->lock);
	free(session);
}

static int ask_page(struct zd_cuda_session *session, struct zd_cuda_device *device, struct zd_err *err)
{
	const struct zd_cuda *cuda = device->cuda;
	void *page = session->base.daemon_page;
	int rc = 0;
	pthread_mutex_lock(&session->lock);
	if (!session->registered) {
		rc = zd_cuda_device_err(
		        device,
		        cuda->memHostRegister(page, ZD_FENCE_PAGE_BYTES,
		                              ZD_CU_HOST_REGISTER_PORTABLE | ZD_CU_HOST_REGISTER_DEVICEMAP),
		        err, "registering a session's fences");
		session->registered = rc == 0;
	}
	pthread_mutex_unlock(&session->lock);
	if (rc)
		return rc;
	zd_cu_ptr at = 0;
	rc = zd_cuda_device_err(device, cuda->memHostGetDevicePointer(&at, page, 0), err,
	                        "a session's fences on the GPU");
	if (!rc)
		atomic_store_explicit(&session->page[device->index], at, memory_order_release);
	return rc;
}

int zd_cuda_session_counter_at(struct zd_cuda_session *session, struct zd_cuda_device *device,
                               uint32_t timeline, zd_cu_ptr *at, struct zd_err *err)
{
	_Atomic zd_cu_ptr *page = &session->page[device->index];
	zd_assert(timeline < ZD_TIMELINES);
	/* Two executors can ask for one GPU at the same time, and receive the same answer: that GPU's own
	 * executor, and one whose bounce uses the GPU. */
	if (!atomic_load_explicit(page, memory_order_acquire)) {
		int rc = ask_page(session, device, err);
		if (rc)
			return rc;
	}
	*at = atomic_load_explicit(page, memory_order_acquire) + timeline * sizeof(uint64_t);
	return 0;
}
