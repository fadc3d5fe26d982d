/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_monitor.c - the state of the GPUs that NVML reports: processes, Xids. */
#include "executor/cuda/cuda_monitor.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "driver/nvml.h"
#include "executor/thread.h"

#define LOOK_NS 5000000ull    /* between two checks of processes whose sessions linger */
#define XID_NS  1000000000ull /* between two reads of Xids */

/* ---- Processes ----------------------------------------------------------------------------------------- */

static bool has_exited(const struct zd_cuda_session *session)
{
	struct pollfd poll_for = {.fd = session->pidfd, .events = POLLIN};
	return poll(&poll_for, 1, 0) > 0 && (poll_for.revents & POLLIN);
}

/* If a GPU does not list its processes, or the process has no number here, the end of the process decides. */
static bool is_gone(const struct zd_cuda_monitor *monitor, const struct zd_cuda_session *session)
{
	bool known = monitor->lists_processes && session->pid > 0;
	for (uint32_t i = 0; known && i < monitor->devices->count; i++) {
		int listed = zd_nvml_lists(monitor->nvml, monitor->devices->all[i].name, session->pid, NULL);
		if (listed > 0)
			return false;
		known = listed == 0;
	}
	return known || has_exited(session);
}

static void poll_processes(struct zd_cuda_monitor *monitor)
{
	struct zd_cuda_session *session = LIST_FIRST(&monitor->lingering);
	while (session) {
		struct zd_cuda_session *next = LIST_NEXT(session, lingering);
		if (is_gone(monitor, session)) {
			LIST_REMOVE(session, lingering);
			zd_backend_session_end(&session->base, false);
		}
		session = next;
	}
}

/* ---- Xids ---------------------------------------------------------------------------------------------- */

/* After these Xids the GPU, or its link to the others, is unusable until a reset (NVIDIA's list of Xids): a
 * double-bit or uncontained ECC error, a broken NVLink, a GPU that has fallen off the bus or whose processors
 * have stopped. Errors of a program (13, 31, 43, 45) and contained errors (94) are not in the list: they end
 * the contexts concerned, as the driver reports. */
static bool is_fatal(uint64_t xid)
{
	static const uint64_t fatal[] = {48, 62, 64, 74, 79, 95, 110, 119, 120, 140, 143};
	for (size_t i = 0; i < ZD_ARRAY_LEN(fatal); i++) {
		if (fatal[i] == xid)
			return true;
	}
	return false;
}

static struct zd_cuda_device *find_device(const struct zd_cuda_monitor *monitor, const char *name)
{
	for (uint32_t i = 0; i < monitor->devices->count; i++) {
		if (strcmp(monitor->devices->all[i].name, name) == 0)
			return &monitor->devices->all[i];
	}
	return NULL;
}

static void poll_xids(struct zd_cuda_monitor *monitor)
{
	struct zd_nvml_xid event;
	while (monitor->nvml && zd_nvml_next_xid(monitor->nvml, &event)) {
		struct zd_cuda_device *device = find_device(monitor, event.uuid_text);
		char why[64];
		if (!device)
			continue; /* a GPU that the daemon does not drive */
		zd_log(ZD_LOG_WARNING, "device %" PRIu32 " (%s): Xid %" PRIu64, device->index, device->name,
		       event.xid);
		(void)snprintf(why, sizeof(why), "Xid %" PRIu64, event.xid);
		if (is_fatal(event.xid))
			zd_cuda_device_fail(device, why);
	}
}

/* ---- The thread ---------------------------------------------------------------------------------------- */

static void take_arrived(struct zd_cuda_monitor *monitor)
{
	struct zd_cuda_session *session;
	while ((session = LIST_FIRST(&monitor->arrived))) {
		LIST_REMOVE(session, lingering);
		LIST_INSERT_HEAD(&monitor->lingering, session, lingering);
	}
}

/* Waits until there is work. The caller holds the lock. */
static void rest(struct zd_cuda_monitor *monitor)
{
	if (!LIST_EMPTY(&monitor->arrived) || monitor->stopping)
		return;
	if (!LIST_EMPTY(&monitor->lingering))
		zd_cond_sleep(&monitor->changed, &monitor->lock, LOOK_NS);
	else if (monitor->nvml)
		zd_cond_sleep(&monitor->changed, &monitor->lock, XID_NS);
	else
		pthread_cond_wait(&monitor->changed, &monitor->lock);
}

static void *monitor_main(void *arg)
{
	struct zd_cuda_monitor *monitor = arg;
	uint64_t xids_at_ns = 0;
	pthread_mutex_lock(&monitor->lock);
	while (!monitor->stopping) {
		take_arrived(monitor);
		pthread_mutex_unlock(&monitor->lock);
		poll_processes(monitor);
		uint64_t now_ns = zd_thread_now_ns();
		if (now_ns - xids_at_ns >= XID_NS) {
			xids_at_ns = now_ns;
			poll_xids(monitor);
		}
		pthread_mutex_lock(&monitor->lock);
		rest(monitor);
	}
	take_arrived(monitor);
	pthread_mutex_unlock(&monitor->lock);
	return NULL;
}

/* NVML's lists of processes are used only if they contain the daemon, which has a context on each GPU. */
static void open_nvml(struct zd_cuda_monitor *monitor)
{
	static const char then[] = "a process counts as having left the GPUs when it has ended";
	const char *name = monitor->devices->all[0].name;
	struct zd_err err = ZD_ERR_NONE;
	if (zd_nvml_open(&monitor->nvml, &err) != 0) {
		monitor->nvml = NULL;
		zd_log(ZD_LOG_WARNING, "%s: Xids are not seen, and %s", err.text, then);
		return;
	}
	int listed = zd_nvml_lists(monitor->nvml, name, getpid(), &err);
	monitor->lists_processes = listed == 1;
	if (listed < 0)
		zd_log(ZD_LOG_WARNING, "%s: %s", err.text, then);
	else if (!listed)
		zd_log(ZD_LOG_WARNING, "NVML does not list the daemon on %s: %s", name, then);
}

int zd_cuda_monitor_init(struct zd_cuda_monitor *monitor, struct zd_cuda_devices *devices, struct zd_err *err)
{
	*monitor = (struct zd_cuda_monitor){.devices = devices};
	LIST_INIT(&monitor->arrived);
	LIST_INIT(&monitor->lingering);
	open_nvml(monitor);
	pthread_mutex_init(&monitor->lock, NULL);
	zd_cond_init(&monitor->changed);
	int rc = zd_thread_start(&monitor->thread, "zd-gpu-monitor", monitor_main, monitor, err);
	if (rc) {
		pthread_cond_destroy(&monitor->changed);
		pthread_mutex_destroy(&monitor->lock);
		zd_nvml_close(monitor->nvml);
		return rc;
	}
	monitor->started = true;
	return 0;
}

void zd_cuda_monitor_deinit(struct zd_cuda_monitor *monitor)
{
	struct zd_cuda_session *session;
	if (!monitor->started)
		return;
	pthread_mutex_lock(&monitor->lock);
	monitor->stopping = true;
	pthread_mutex_unlock(&monitor->lock);
	pthread_cond_signal(&monitor->changed);
	pthread_join(monitor->thread, NULL);
	while ((session = LIST_FIRST(&monitor->lingering))) {
		LIST_REMOVE(session, lingering);
		zd_backend_session_end(&session->base, false);
	}
	zd_nvml_close(monitor->nvml);
	pthread_cond_destroy(&monitor->changed);
	pthread_mutex_destroy(&monitor->lock);
	monitor->started = false;
}

void zd_cuda_monitor_take(struct zd_cuda_monitor *monitor, struct zd_cuda_session *session)
{
	atomic_store_explicit(&session->base.lingers, true, memory_order_relaxed);
	pthread_mutex_lock(&monitor->lock);
	LIST_INSERT_HEAD(&monitor->arrived, session, lingering);
	pthread_mutex_unlock(&monitor->lock);
	pthread_cond_signal(&monitor->changed);
}
