/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bridge.c - connects the engine to a backend and to the loop.
 *
 * Executors append completions under a lock that is held for a copy of a few words. The loop swaps two arrays
 * to receive all of them at once. Invariants: only the loop's thread calls the engine, and executors append
 * no completion after the backend was closed.
 */
#include "server/bridge.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/api.h"
#include "server/dispatch.h"
#include "server/ends.h"
#include "server/loop.h"
#include "server/notices.h"
#include "server/session.h"

#define FIRST_ROOM       64u
#define MOST_COMPLETIONS 256u /* per event, so that other users' requests do not wait for more */

/* ---- From executors to the loop ------------------------------------------------------------------------ */

static void on_done(void *arg, const struct zd_completion *completion)
{
	struct zd_bridge *bridge = arg;
	struct zd_completions *arrived = &bridge->arrived;

	(void)pthread_mutex_lock(&bridge->lock);
	if (arrived->count == arrived->room) {
		arrived->room = arrived->room ? 2 * arrived->room : FIRST_ROOM;
		arrived->items = zd_realloc(arrived->items, arrived->room, sizeof(*arrived->items));
	}
	bool first = arrived->count == 0;
	arrived->items[arrived->count++] = *completion;
	atomic_store(&bridge->narrived, arrived->count); /* must precede the read of `polling` */
	(void)pthread_mutex_unlock(&bridge->lock);
	/* The loop empties the whole array. Only the first completion therefore has to wake it. */
	if (first && !atomic_load(&bridge->polling))
		(void)uv_async_send(&bridge->wake);
}

void zd_bridge_complete(struct zd_bridge *bridge, const struct zd_completion *completion)
{
	on_done(bridge, completion);
}

/* Receives the completions that have arrived, when all received before are handled. */
static void swap_arrived(struct zd_bridge *bridge)
{
	struct zd_completions emptied = bridge->taken;

	emptied.count = 0;
	bridge->nhandled = 0;
	(void)pthread_mutex_lock(&bridge->lock);
	bridge->taken = bridge->arrived;
	bridge->arrived = emptied;
	atomic_store_explicit(&bridge->narrived, 0, memory_order_relaxed);
	(void)pthread_mutex_unlock(&bridge->lock);
}

static void take_arrived(void *arg)
{
	struct zd_bridge *bridge = arg;
	struct zd_completions *taken = &bridge->taken;
	bool rest = bridge->nhandled < taken->count;

	zd_loop_note_event(bridge->wake.loop);
	if (!rest)
		swap_arrived(bridge);
	size_t end = zd_min_u64(taken->count, bridge->nhandled + MOST_COMPLETIONS);
	(void)zd_bridge_tick(bridge);
	zd_bridge_collect(bridge);
	zd_engine_pause(bridge->engine);
	while (bridge->nhandled < end) {
		struct zd_completion *completion = &taken->items[bridge->nhandled++];

		zd_delegates_completed(&bridge->delegates, completion);
		zd_engine_op_done(bridge->engine, completion->op, completion->status, completion->error,
		                  &completion->result);
		zd_completion_deinit(completion);
	}
	zd_engine_resume(bridge->engine);
	/* Completions that arrive while some are left can wake the loop once, only for the rest. */
	if (rest || end < taken->count)
		(void)uv_async_send(&bridge->wake);
	zd_bridge_settle(bridge);
	zd_conns_flush(&bridge->api->conns);
}

static struct zd_loop *loop_of(struct zd_bridge *bridge)
{
	return (struct zd_loop *)bridge->wake.loop; /* `uv` is its first member */
}

static void on_wake(uv_async_t *wake)
{
	struct zd_bridge *bridge = wake->data;

	zd_loop_list(loop_of(bridge), &bridge->poll_source);
	take_arrived(bridge);
}

static bool has_arrived(const void *arg)
{
	const struct zd_bridge *bridge = arg;

	return bridge->nhandled < bridge->taken.count || atomic_load(&bridge->narrived) > 0;
}

static void on_deadline(void *arg)
{
	struct zd_bridge *bridge = arg;

	(void)zd_bridge_tick(bridge);
	zd_conns_flush(&bridge->api->conns);
}

/* ---- Calls of the engine ------------------------------------------------------------------------------- */

static void sink_command(void *arg, const struct zd_command *command)
{
	struct zd_bridge *bridge = arg;

	/* Other daemons act on a vote: the next daemon must know of it. */
	if (command->kind == ZD_CMD_AGREE)
		zd_keeper_write(&bridge->keeper);
	if (!zd_keeper_submit(&bridge->keeper, command) && !zd_delegates_submit(&bridge->delegates, command))
		zd_bridge_submit(bridge, command);
}

static void sink_reply(void *arg, const struct zd_reply *reply)
{
	struct zd_bridge *bridge = arg;

	zd_api_reply(bridge->api, reply);
}

static bool sink_fence_passed(void *arg, uint64_t session, struct zd_fence fence)
{
	return zd_bridge_fence_passed(arg, session, fence);
}

static void sink_session_killed(void *arg, uint64_t session, const char *why)
{
	struct zd_bridge *bridge = arg;

	zd_api_session_killed(bridge->api, session, why);
}

static void sink_segment_retire(void *arg, uint64_t session, uint32_t segment)
{
	struct zd_bridge *bridge = arg;

	zd_api_session_retire(bridge->api, session, segment);
}

static void sink_expect(void *arg, uint32_t device)
{
	struct zd_bridge *bridge = arg;

	if (bridge->ops->expect)
		bridge->ops->expect(bridge->backend, device);
	zd_loop_expect(loop_of(bridge));
}

static bool sink_sums_ahead(void *arg, uint64_t session)
{
	struct zd_bridge *bridge = arg;

	return zd_delegates_sum_ahead(&bridge->delegates, session);
}

static enum zd_sums_state sink_sums(void *arg, uint64_t session)
{
	struct zd_bridge *bridge = arg;

	return zd_delegates_sums(&bridge->delegates, session);
}

static void sink_group_ended(void *arg, uint32_t uid, const char *job, const char *group, const char *why)
{
	struct zd_bridge *bridge = arg;

	if (zd_log_limit_admits(&bridge->api->log_limit, uid, ZD_LOG_WARNING))
		zd_log(ZD_LOG_WARNING, "job '%s': group '%s' has ended on this node: %s", job, group, why);
}

static int sink_segment_restore(void *arg, uint32_t device, uint32_t segment, uint64_t bytes,
                                struct zd_err *err)
{
	struct zd_bridge *bridge = arg;

	return zd_keeper_restore_segment(&bridge->keeper, device, segment, bytes, err);
}

static bool sink_segment_is_kept(void *arg, uint32_t segment)
{
	const struct zd_bridge *bridge = arg;

	return zd_keeper_has_segment(&bridge->keeper, segment);
}

static void sink_segment_kept(void *arg, uint32_t segment, bool kept)
{
	struct zd_bridge *bridge = arg;

	zd_keeper_keep_segment(&bridge->keeper, segment, kept);
}

static void sink_notice(void *arg, const struct zd_notice *notice)
{
	struct zd_bridge *bridge = arg;

	zd_notice_log(bridge->api, notice);
}

static void sink_ends(void *arg, uint32_t uid)
{
	struct zd_bridge *bridge = arg;

	zd_ends_begin(bridge->api, uid);
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

static struct zd_engine *make_engine(struct zd_bridge *bridge, const struct zd_bridge_config *config)
{
	uint32_t ndevices = bridge->ops->device_count(bridge->backend);
	char host[ZD_MAX_NAME_BYTES + 1] = "";
	struct zd_device_config *devices = zd_calloc(ndevices, sizeof(*devices));
	struct zd_engine_config engine_config = {
	        .ndevices = ndevices,
	        .devices = devices,
	        .segment_bytes = config->segment_bytes,
	        .uid_quota_bytes = config->uid_quota_bytes,
	        .sessions_linger = bridge->ops->sessions_linger,
	        .collectives = bridge->ops->collectives,
	        .host = host,
	        .strict_by_segment = bridge->ops->strict_by_segment,
	        .events = config->events,
	};
	struct zd_engine_sink sink = {
	        .arg = bridge,
	        .command = sink_command,
	        .reply = sink_reply,
	        .fence_passed = sink_fence_passed,
	        .session_killed = sink_session_killed,
	        .segment_retire = sink_segment_retire,
	        .expect = sink_expect,
	        .sums_ahead = sink_sums_ahead,
	        .sums = sink_sums,
	        .group_ended = sink_group_ended,
	        .segment_is_kept = sink_segment_is_kept,
	        .segment_restore = sink_segment_restore,
	        .segment_kept = sink_segment_kept,
	        .notice = sink_notice,
	        .ends = sink_ends,
	};

	if (gethostname(host, sizeof(host) - 1) < 0)
		host[0] = '\0';
	for (uint32_t i = 0; i < ndevices; i++) {
		bridge->ops->device_info(bridge->backend, i, &devices[i]);
		devices[i].gather_budget_bytes = config->gather_budget_bytes;
		devices[i].staging_bytes = config->staging_bytes;
	}
	struct zd_engine *engine = zd_engine_new(&engine_config, &sink);
	free(devices);
	return engine;
}

uint32_t zd_bridge_devices(const struct zd_bridge *bridge)
{
	uint32_t all = bridge->ops->device_count(bridge->backend);

	return all - (uint32_t)__builtin_popcountll(zd_engine_host_memory(bridge->engine));
}

int zd_bridge_open(struct zd_bridge *bridge, struct zd_loop *loop, const struct zd_bridge_config *config,
                   struct zd_api *api, struct zd_err *err)
{
	struct zd_backend_config backend_config = {
	        .ndevices = config->ndevices,
	        .devices = config->devices,
	        .arena_bytes = config->arena_bytes,
	        .host_arena_bytes = config->host_arena_bytes,
	        .nccl_path = config->nccl_path,
	        .check_collectives = config->check_collectives,
	        .collective_timeout_ns = config->collective_timeout_ns,
	        .done = on_done,
	        .done_arg = bridge,
	};

	*bridge = (struct zd_bridge){.ops = config->backend, .api = api};
	zd_delegates_init(&bridge->delegates, bridge);
	int rc = uv_async_init(&loop->uv, &bridge->wake, on_wake);
	if (rc)
		return zd_loop_error(err, rc, "creating the handle with which executors wake the loop");
	bridge->wake.data = bridge;
	bridge->poll_source = (struct zd_poll_source){
	        .has = has_arrived, .take = take_arrived, .arg = bridge, .polling = &bridge->polling};
	(void)pthread_mutex_init(&bridge->lock, NULL);
	rc = bridge->ops->open(&backend_config, &bridge->backend, err);
	if (rc) {
		uv_close((uv_handle_t *)&bridge->wake, NULL);
		return rc;
	}
	bridge->engine = make_engine(bridge, config);
	if (bridge->ops->is_prompt || zd_spin_always())
		zd_loop_allow_spinning(loop);
	zd_timer_init(&bridge->timer, loop, bridge->engine, on_deadline, bridge);
	rc = zd_keeper_open(&bridge->keeper, bridge, config->store, err);
	if (rc)
		zd_bridge_close(bridge);
	return rc;
}

void zd_bridge_close(struct zd_bridge *bridge)
{
	if (!bridge->backend)
		return;
	zd_loop_drop(loop_of(bridge), &bridge->poll_source);
	zd_keeper_close(&bridge->keeper);
	bridge->ops->close(bridge->backend);
	bridge->backend = NULL;
	zd_engine_free(bridge->engine);
	bridge->engine = NULL;
	zd_timer_close(&bridge->timer);
	uv_close((uv_handle_t *)&bridge->wake, NULL);
}

void zd_bridge_deinit(struct zd_bridge *bridge)
{
	zd_delegates_deinit(&bridge->delegates);
	for (size_t i = 0; i < bridge->arrived.count; i++)
		zd_completion_deinit(&bridge->arrived.items[i]);
	for (size_t i = bridge->nhandled; i < bridge->taken.count; i++)
		zd_completion_deinit(&bridge->taken.items[i]);
	free(bridge->arrived.items);
	free(bridge->taken.items);
	(void)pthread_mutex_destroy(&bridge->lock);
}

uint64_t zd_bridge_tick(struct zd_bridge *bridge)
{
	uint64_t now_ns = zd_loop_now_ns();

	zd_engine_tick(bridge->engine, now_ns);
	return now_ns;
}

void zd_bridge_collect(struct zd_bridge *bridge)
{
	bridge->collecting = bridge->ops->collect != NULL;
}

void zd_bridge_settle(struct zd_bridge *bridge)
{
	if (bridge->collecting)
		bridge->ops->flush(bridge->backend);
	bridge->collecting = false;
	zd_timer_update(&bridge->timer);
}

void zd_bridge_submit(struct zd_bridge *bridge, const struct zd_command *command)
{
	if (bridge->collecting)
		bridge->ops->collect(bridge->backend, command);
	else
		bridge->ops->submit(bridge->backend, command);
}

bool zd_bridge_fence_passed(const struct zd_bridge *bridge, uint64_t session, struct zd_fence fence)
{
	return zd_fence_reached(bridge->ops->timeline_read(bridge->backend, session, fence.timeline),
	                        fence.value);
}

bool zd_bridge_device_failure(const struct zd_bridge *bridge, uint32_t device, char why[ZD_FAILURE_TEXT])
{
	return bridge->ops->device_failure && bridge->ops->device_failure(bridge->backend, device, why);
}
