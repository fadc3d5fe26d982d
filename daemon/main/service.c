/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service.c - the life cycle of the daemon, and its reports to the service manager.
 *
 * STARTING: everything is made. The socket comes first, so that a second daemon fails before it allocates
 * memory. SERVING. DRAINING, after SIGTERM: the daemon rejects new sessions and joins, serves running jobs,
 * and waits for sessions to end, up to a deadline. Then everything is closed in reverse order. What must
 * hold: at the end no handle, descriptor or file is left but the service manager's socket, whichever step has
 * failed.
 */
#include "main/service.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <uv.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sm.h"
#include "base/text.h"
#include "executor/backend.h"
#include "main/config.h"
#include "main/notify.h"
#include "main/options.h"
#include "main/sockets.h"
#include "main/state.h"
#include "server/api.h"
#include "server/loop.h"

#define NS_PER_S  UINT64_C(1000000000)
#define US_PER_S  UINT64_C(1000000)
#define MS_PER_S  UINT64_C(1000)
#define EXIT_S    10u /* after draining */
#define WHY_BYTES 128u

enum service_state { STARTING, SERVING, DRAINING, ENDED };
static const char *const state_names[] = {"STARTING", "SERVING", "DRAINING", "ENDED"};
static const uint32_t state_moves[] = {
        [STARTING] = ZD_SM_TO(SERVING) | ZD_SM_TO(ENDED),
        [SERVING] = ZD_SM_TO(DRAINING),
        [DRAINING] = ZD_SM_TO(ENDED),
        [ENDED] = 0,
};
static const struct zd_sm service_sm = {
        .name = "service", .nstates = 4, .state_names = state_names, .allowed = state_moves};

static const int signal_numbers[] = {SIGTERM, SIGINT, SIGHUP};
#define NSIGNALS ZD_ARRAY_LEN(signal_numbers)

struct service {
	const struct zd_options *options;
	struct zd_config config;
	uint64_t started_ns;
	uint8_t state;
	const char *drain_signal;  /* DRAINING: its name */
	char why_ended[WHY_BYTES]; /* the reason that the remaining sessions receive */
	struct zd_loop loop;
	struct zd_sockets sockets;
	struct zd_api api;
	uint32_t njobs_left; /* durable jobs, at the end */
	bool kept;           /* these are stored for the next daemon */
	uv_signal_t signals[NSIGNALS];
	uv_timer_t drain, watchdog, idle;
	uint32_t idle_s; /* seconds without a session */
	struct zd_notify notify;
	struct zd_state state_kept;
	/* A reload runs in another thread, because it reads files and groups, which can block. */
	struct {
		uv_work_t work;
		bool busy, again; /* busy: it runs; again: SIGHUP was received while it ran */
		struct zd_config config;
		int status;
		struct zd_err err;
	} reload;
};

/* ---- Ending -------------------------------------------------------------------------------------------- */

static void on_drained(void *arg)
{
	struct service *service = arg;

	zd_loop_stop(&service->loop);
}

static void on_drain_timeout(uv_timer_t *timer)
{
	struct service *service = timer->data;

	zd_log(ZD_LOG_WARNING, "sessions that did not end within %u s are closed: %u",
	       service->config.drain_timeout_s, zd_api_session_count(&service->api));
	(void)snprintf(service->why_ended, sizeof(service->why_ended),
	               "the daemon ended: drained by %s, deadline of %u s passed", service->drain_signal,
	               service->config.drain_timeout_s);
	zd_loop_stop(&service->loop);
}

/* The sockets are still served: administrators can ask which sessions remain, and others receive SHUTDOWN. */
static void start_draining(struct service *service, const char *signal_name)
{
	unsigned sessions = zd_api_session_count(&service->api);

	zd_sm_move(&service_sm, &service->state, DRAINING);
	service->drain_signal = signal_name;
	(void)snprintf(service->why_ended, sizeof(service->why_ended), "the daemon ended: drained by %s",
	               signal_name);
	zd_log(ZD_LOG_NOTICE, "%s: draining, open sessions: %u", signal_name, sessions);
	zd_notify_state(&service->notify,
	                "STOPPING=1\nEXTEND_TIMEOUT_USEC=%" PRIu64 "\nSTATUS=Draining, open sessions: %u",
	                (service->config.drain_timeout_s + EXIT_S) * US_PER_S, sessions);
	(void)uv_timer_start(&service->drain, on_drain_timeout,
	                     service->config.drain_timeout_s * UINT64_C(1000), 0);
	zd_api_drain_and_end(&service->api, signal_name, service->config.drain_timeout_s, on_drained,
	                     service);
}

/* Once a second. A session that begins and ends between two calls is not seen. */
static void on_idle_tick(uv_timer_t *timer)
{
	struct service *service = timer->data;

	service->idle_s = zd_api_session_count(&service->api) ? 0 : service->idle_s + 1;
	if (service->idle_s >= service->config.exit_when_idle_s && service->state == SERVING)
		start_draining(service, "exit_when_idle_s");
}

/* ---- Reload -------------------------------------------------------------------------------------------- */

static struct zd_api_limits limits_of(const struct zd_config *config)
{
	return (struct zd_api_limits){
	        .max_sessions = config->max_sessions,
	        .uid_quota_bytes = config->uid_quota_bytes,
	        .uid_unsent_bytes = config->uid_unsent_bytes,
	        .gather_budget_bytes = config->gather_budget_bytes,
	        .root_is_user = !config->root_is_admin,
	        .allow_groups = config->allow_groups,
	        .has_admin_group = config->has_admin_group,
	        .admin_group = config->admin_group,
	        .of_uid = {.max_sessions = config->max_sessions_per_uid,
	                   .max_jobs = config->max_jobs_per_uid,
	                   .durable_ttl_ns = config->durable_ttl_s * NS_PER_S,
	                   .metadata_bytes = config->uid_metadata_bytes,
	                   .max_kept = config->max_durable_segments_per_uid},
	        .durable_groups = config->durable_groups,
	        .reader_groups = config->reader_groups,
	        .id_ttl_s = config->id_ttl_s,
	        .grants = config->grants,
	};
}

static bool same_sockets(const struct zd_config *old, const struct zd_config *new)
{
	bool same = old->nsockets == new->nsockets;

	for (unsigned i = 0; same && i < old->nsockets; i++) {
		const struct zd_config_socket *a = &old->sockets[i], *b = &new->sockets[i];

		same = strcmp(a->name, b->name) == 0 && strcmp(a->path, b->path) == 0 && a->mode == b->mode &&
		       a->owner == b->owner && a->group == b->group && a->has_tenant == b->has_tenant &&
		       a->tenant_uid == b->tenant_uid && a->has_devices == b->has_devices &&
		       a->devices == b->devices;
	}
	return same;
}

/* Compares the settings that are read at the start only. */
static bool needs_restart(const struct zd_config *old, const struct zd_config *new)
{
	return !same_sockets(old, new) || strcmp(old->socket_path, new->socket_path) != 0 ||
	       old->socket_mode != new->socket_mode || old->backend != new->backend ||
	       old->device_count != new->device_count || strcmp(old->gpus, new->gpus) != 0 ||
	       old->arena_bytes != new->arena_bytes || old->host_arena_bytes != new->host_arena_bytes ||
	       old->staging_bytes != new->staging_bytes || old->segment_bytes != new->segment_bytes ||
	       old->events != new->events || strcmp(old->nccl_path, new->nccl_path) != 0 ||
	       old->check_collectives != new->check_collectives ||
	       old->collective_timeout_s != new->collective_timeout_s || old->keep_state != new->keep_state ||
	       old->keep_state_ttl_s != new->keep_state_ttl_s ||
	       old->exit_when_idle_s != new->exit_when_idle_s;
}

static uint32_t device_count(const struct service *service)
{
	return zd_bridge_devices(&service->api.bridge);
}

static void notify_serving(struct service *service)
{
	zd_notify_state(&service->notify, "READY=1\nSTATUS=Serving %u device%s at %s", device_count(service),
	                device_count(service) == 1 ? "" : "s", zd_sockets_path(&service->sockets));
}

static void warn_of_part(uint32_t index, const struct zd_device_config *device, const char *key,
                         uint64_t bytes)
{
	char part[ZD_BYTES_TEXT], arena[ZD_BYTES_TEXT];

	if (bytes > device->arena_bytes)
		zd_log(ZD_LOG_WARNING, "%s, %s, has no effect on device %u, whose arena has %s", key,
		       zd_bytes_text(bytes, part), index, zd_bytes_text(device->arena_bytes, arena));
}

/* The size of an arena without a configured one is known only after the start. */
static void warn_of_parts(const struct service *service, uint64_t gather_budget_bytes)
{
	const struct zd_bridge *bridge = &service->api.bridge;
	struct zd_device_config device;

	for (uint32_t i = 0; i < device_count(service); i++) {
		bridge->ops->device_info(bridge->backend, i, &device);
		warn_of_part(i, &device, "gather_budget", gather_budget_bytes);
		warn_of_part(i, &device, "staging", service->config.staging_bytes);
	}
}

/* The api has created its own key, which it uses while no file is named. */
static void use_key(struct service *service, const struct zd_config *config)
{
	struct zd_id_key key = config->id_key;
	struct zd_err err = ZD_ERR_NONE;
	uint64_t name;

	if (!key.shared && !service->api.id_key.shared)
		return;
	if (!key.shared && zd_id_key_make(&key, &err) != 0) {
		zd_log(ZD_LOG_ERROR, "%s; the former key remains", err.text);
		return;
	}
	zd_api_set_id_key(&service->api, &key);
	memcpy(&name, key.name, sizeof(name));
	zd_log(ZD_LOG_INFO, "unique ids have the key %016" PRIx64 " from %s", be64toh(name),
	       key.shared ? config->key_path : "this node alone");
}

/* A grant by cgroup does not apply to processes that the daemon cannot see. */
static void warn_of_hidden_processes(const struct zd_config *config)
{
	bool by_cgroup = false;

	for (unsigned i = 0; i < config->grants.count; i++)
		by_cgroup |= config->grants.all[i].kind == ZD_GRANT_CGROUP;
	if (by_cgroup && access("/proc/1/cgroup", R_OK) < 0)
		zd_log(ZD_LOG_WARNING,
		       "[grants] cgroup: %s: other users' processes have no grant (the unit's "
		       "ProtectProc=, or hidepid of /proc)",
		       strerror(errno));
}

static void apply(struct service *service, const struct zd_config *config)
{
	struct zd_api_limits limits = limits_of(config);

	if (needs_restart(&service->config, config))
		zd_log(ZD_LOG_WARNING,
		       "reload: the sockets, keep_state, keep_state_ttl, exit_when_idle_s, events, "
		       "[collectives] and [devices], but for gather_budget, key_file and id_ttl, change at "
		       "the next start only");
	use_key(service, config);
	zd_api_set_limits(&service->api, &limits);
	warn_of_parts(service, config->gather_budget_bytes);
	warn_of_hidden_processes(config);
	zd_log_set_level(config->log_level);
	service->config.drain_timeout_s = config->drain_timeout_s;
	zd_log(ZD_LOG_NOTICE, "reloaded the limits");
}

/* Runs on a thread of libuv's pool. */
static void reload_work(uv_work_t *work)
{
	struct service *service = work->data;

	service->reload.status = zd_options_load(service->options, NULL, &service->reload.config,
	                                         &service->reload.err);
}

static void reload_begin(struct service *service);

static void reload_done(uv_work_t *work, int status)
{
	struct service *service = work->data;

	(void)status; /* reloads are never cancelled */
	service->reload.busy = false;
	if (service->state != SERVING)
		return;
	if (service->reload.again) {
		reload_begin(service);
		return;
	}
	if (service->reload.status)
		zd_log(ZD_LOG_ERROR, "reload: %s; the former limits remain", service->reload.err.text);
	else
		apply(service, &service->reload.config);
	notify_serving(service);
}

static void reload_begin(struct service *service)
{
	service->reload.again = service->reload.busy;
	if (service->reload.busy)
		return;
	service->reload.busy = true;
	service->reload.work.data = service;
	zd_notify_state(&service->notify, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, zd_loop_now_ns() / 1000);
	(void)uv_queue_work(&service->loop.uv, &service->reload.work, reload_work, reload_done);
}

static void on_signal(uv_signal_t *handle, int number)
{
	struct service *service = handle->data;

	if (number == SIGHUP) {
		if (service->state == SERVING)
			reload_begin(service);
	} else if (service->state == SERVING) {
		start_draining(service, number == SIGTERM ? "SIGTERM" : "SIGINT");
	} else {
		zd_log(ZD_LOG_NOTICE, "second signal: ending at once, open sessions: %u",
		       zd_api_session_count(&service->api));
		(void)snprintf(service->why_ended, sizeof(service->why_ended),
		               "the daemon ended: drained by %s, and %s did not wait for the deadline",
		               service->drain_signal, number == SIGTERM ? "SIGTERM" : "SIGINT");
		zd_loop_stop(&service->loop);
	}
}

/* ---- Starting ------------------------------------------------------------------------------------------ */

/* Each session needs two descriptors, and each segment one. The usual soft limit of 1024 exists for programs
 * that use select(). */
static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == limit.rlim_max)
		return;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		zd_log(ZD_LOG_WARNING, "raising the limit of open descriptors: %s", strerror(errno));
}

static void on_watchdog(uv_timer_t *timer)
{
	struct service *service = timer->data;

	zd_notify_alive(&service->notify);
}

/* Creates signals and timers. All of them are initialised even on failure, so that close_handles() can close
 * all. */
static int open_handles(struct service *service, struct zd_err *err)
{
	uint64_t watchdog_us = zd_notify_watchdog_us();
	int rc = 0;

	(void)uv_timer_init(&service->loop.uv, &service->drain);
	(void)uv_timer_init(&service->loop.uv, &service->watchdog);
	(void)uv_timer_init(&service->loop.uv, &service->idle);
	service->drain.data = service->watchdog.data = service->idle.data = service;
	if (service->config.exit_when_idle_s)
		(void)uv_timer_start(&service->idle, on_idle_tick, MS_PER_S, MS_PER_S);
	zd_notify_open(&service->notify, &service->loop);
	for (size_t i = 0; i < NSIGNALS; i++) {
		int uv_rc = uv_signal_init(&service->loop.uv, &service->signals[i]);

		zd_assert(uv_rc == 0); /* cannot fail: the loop has its pipe for signals already */
		service->signals[i].data = service;
		uv_rc = uv_signal_start(&service->signals[i], on_signal, signal_numbers[i]);
		if (uv_rc && rc == 0)
			rc = zd_loop_error(err, uv_rc, "catching signals");
	}
	/* Twice per watchdog period. */
	if (watchdog_us > 0)
		(void)uv_timer_start(&service->watchdog, on_watchdog, 0, zd_max_u64(watchdog_us / 2000, 1));
	return rc;
}

static void close_handles(struct service *service)
{
	for (size_t i = 0; i < NSIGNALS; i++)
		uv_close((uv_handle_t *)&service->signals[i], NULL);
	uv_close((uv_handle_t *)&service->drain, NULL);
	uv_close((uv_handle_t *)&service->watchdog, NULL);
	uv_close((uv_handle_t *)&service->idle, NULL);
	zd_notify_close(&service->notify);
}

static const struct zd_backend_ops *choose_backend(const struct zd_config *config)
{
	struct zd_err why = ZD_ERR_NONE;

	if (config->backend)
		return config->backend;
	const struct zd_backend_ops *chosen = zd_backend_auto(&why);
	if (why.status == 0)
		zd_log(ZD_LOG_NOTICE, "backend %s, because the machine has GPUs", chosen->name);
	else
		zd_log(ZD_LOG_NOTICE, "backend %s: %s", chosen->name, why.text);
	return chosen;
}

/* Only a notice, because one file can configure all nodes. */
static void tell_unused(const struct zd_config *config, const struct zd_backend_ops *backend)
{
	bool gpus = strcmp(backend->name, "cuda") == 0;

	if (gpus && config->device_count != ZD_DEFAULT_DEVICES)
		zd_log(ZD_LOG_NOTICE, "count = %u is not used: the devices are GPUs, and gpus names them",
		       config->device_count);
	if (!gpus && strcmp(config->gpus, ZD_DEFAULT_GPUS) != 0)
		zd_log(ZD_LOG_NOTICE,
		       "gpus = %s is not used: the devices are emulated, and count numbers them",
		       config->gpus);
	if (!gpus && config->nccl_path[0] != '\0')
		zd_log(ZD_LOG_NOTICE, "nccl = %s is not used: the devices are emulated", config->nccl_path);
}

static int open_api(struct service *service, struct zd_err *err)
{
	const struct zd_config *config = &service->config;
	const struct zd_backend_ops *backend = choose_backend(config);
	struct zd_api_limits limits = limits_of(config);
	struct zd_bridge_config bridge = {
	        .backend = backend,
	        .ndevices = config->device_count,
	        .devices = config->gpus,
	        .arena_bytes = config->arena_bytes,
	        .host_arena_bytes = config->host_arena_bytes,
	        .gather_budget_bytes = config->gather_budget_bytes,
	        .staging_bytes = config->staging_bytes,
	        .segment_bytes = config->segment_bytes,
	        .uid_quota_bytes = config->uid_quota_bytes,
	        .events = config->events,
	        .nccl_path = config->nccl_path,
	        .check_collectives = config->check_collectives,
	        .collective_timeout_ns = config->collective_timeout_s * NS_PER_S,
	};

	int rc = zd_state_open(&service->state_kept, config, service->options->discard_state,
	                       zd_sockets_path(&service->sockets), &service->notify, &bridge.store, err);

	if (rc)
		return rc;
	tell_unused(config, backend);
	rc = zd_api_open(&service->api, &service->loop, &bridge, &limits, err);
	if (!rc)
		use_key(service, config);
	return rc;
}

static void log_ready(const struct service *service)
{
	const struct zd_bridge *bridge = &service->api.bridge;
	struct zd_device_config device;
	uint32_t hosts = bridge->ops->device_count(bridge->backend) - device_count(service);
	char arena[ZD_BYTES_TEXT];

	bridge->ops->device_info(bridge->backend, 0, &device);
	zd_log(ZD_LOG_NOTICE, "zerod %s serves %u %s device%s of %s at %s, ready after %.1f ms",
	       ZEROD_VERSION_TEXT, device_count(service), bridge->ops->name,
	       device_count(service) == 1 ? "" : "s", zd_bytes_text(device.arena_bytes, arena),
	       zd_sockets_path(&service->sockets), (double)(zd_loop_now_ns() - service->started_ns) / 1e6);
	if (service->config.host_arena_bytes)
		zd_log(ZD_LOG_NOTICE, "host memory of %s for units on the host: %u device%s after these",
		       zd_bytes_text(service->config.host_arena_bytes, arena), hosts, hosts == 1 ? "" : "s");
}

static void on_holder_ended(void *arg)
{
	struct service *service = arg;

	zd_keeper_put_again(&service->api.bridge.keeper);
}

/* Serves from an open socket to the end of the last session. */
static int serve(struct service *service, struct zd_err *err)
{
	int rc = open_api(service, err);

	if (rc)
		return rc;
	rc = zd_sockets_listen(&service->sockets, &service->loop, &service->api, err);
	if (rc == 0) {
		zd_sm_move(&service_sm, &service->state, SERVING);
		warn_of_parts(service, service->config.gather_budget_bytes);
		warn_of_hidden_processes(&service->config);
		log_ready(service);
		notify_serving(service);
		zd_holder_watch(&service->state_kept.holder, &service->loop.uv, on_holder_ended, service);
		zd_loop_run(&service->loop);
		service->njobs_left = zd_engine_durable_jobs(service->api.bridge.engine);
		service->kept = service->api.bridge.keeper.store != NULL;
	}
	zd_holder_unwatch(&service->state_kept.holder);
	zd_sockets_stop(&service->sockets);
	zd_api_close(&service->api, service->why_ended);
	return rc;
}

int zd_service_run(const struct zd_options *options, const struct zd_config *config, uint64_t started_ns)
{
	struct service service = {.options = options,
	                          .config = *config,
	                          .started_ns = started_ns,
	                          .state_kept = {.holder = {.sock = -1}},
	                          .why_ended = "the daemon ended"};
	struct zd_err err = ZD_ERR_NONE;

	(void)signal(SIGPIPE, SIG_IGN);
	(void)signal(SIGXFSZ, SIG_IGN); /* a memory file beyond RLIMIT_FSIZE fails with EFBIG */
	(void)signal(SIGCHLD, SIG_DFL); /* if ignored, waitpid() would fail */
	raise_descriptor_limit();
	int rc = zd_loop_init(&service.loop, &err);
	if (rc == 0) {
		rc = open_handles(&service, &err);
		if (rc == 0)
			rc = zd_sockets_open(&service.sockets, &service.config, &err);
		if (rc == 0)
			rc = serve(&service, &err);
		close_handles(&service);
		zd_loop_deinit(&service.loop);
	}
	zd_api_deinit(&service.api);
	zd_state_close(&service.state_kept);
	zd_sockets_close(&service.sockets);
	zd_sm_move(&service_sm, &service.state, ENDED);
	if (rc)
		zd_log(ZD_LOG_ERROR, "%s", err.text);
	else
		zd_log(ZD_LOG_NOTICE,
		       service.kept ? "ended; durable jobs stored for the next daemon: %u"
		                    : "ended, and with it durable jobs: %u",
		       service.njobs_left);
	if (rc == 0)
		return ZD_EXIT_OK;
	/* These errors persist: a restart with the same settings would fail again. */
	return rc == ZEROD_E_INVALID || rc == ZEROD_E_NO_MEMORY ? ZD_EXIT_CONFIG : ZD_EXIT_FAILURE;
}
