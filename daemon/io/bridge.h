/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bridge.h - joins the engine to a backend and to the loop.
 *
 * The engine's commands go to the backend, or to a delegate (delegate.h). What executors complete comes back
 * through a queue to the loop's thread and into the engine. Deadlines are the loop's timer. Replies and ends
 * of sessions go to the layer above.
 */
#ifndef ZD_IO_BRIDGE_H
#define ZD_IO_BRIDGE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "backend/backend.h"
#include "core/engine.h"
#include "io/loop.h"
#include "io/delegate.h"
#include "io/timer.h"

struct zd_err;

/* Events for the layer above. All but `settled` come out of the engine, and must not call it. */
struct zd_bridge_ops {
	void (*reply)(void *arg, const struct zd_reply *reply);
	void (*session_killed)(void *arg, uint64_t session, const char *why);
	void (*segment_retire)(void *arg, uint64_t session, uint32_t segment);
	/* The bridge has given events to the engine by itself, and is through. */
	void (*settled)(void *arg);
};

struct zd_bridge_config {
	const struct zd_backend_ops *backend;
	uint32_t ndevices;
	const char *devices; /* which; see struct zd_backend_config */
	/* Of each device; 0: the backend's, or the engine's, default. */
	uint64_t arena_bytes, gather_budget_bytes, staging_bytes;
	uint64_t segment_bytes;   /* 0: default */
	uint64_t uid_quota_bytes; /* 0: none */
	/* As in struct zd_backend_config. */
	const char *nccl_path;
	bool check_collectives;
	uint64_t collective_timeout_ns;
};

struct zd_completions {
	struct zd_completion *items;
	size_t count, room;
};

struct zd_bridge {
	const struct zd_backend_ops *ops;
	struct zd_backend *backend;
	struct zd_engine *engine;
	struct zd_delegates delegates; /* which make sums instead of the backend */
	const struct zd_bridge_ops *above;
	void *arg;
	struct zd_timer timer;
	uv_async_t wake;
	struct zd_look look; /* at what has arrived, instead of being woken for it */
	atomic_uint looks;
	pthread_mutex_t lock;
	struct zd_completions arrived; /* under `lock` */
	atomic_size_t narrived;        /* its count */
	struct zd_completions taken;   /* the loop's */
};

/* Opens the backend and makes the engine. */
int zd_bridge_open(struct zd_bridge *bridge, struct zd_loop *loop, const struct zd_bridge_config *config,
                   const struct zd_bridge_ops *above, void *arg, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Stops the backend, frees the engine, and begins to close the handles. */
void zd_bridge_close(struct zd_bridge *bridge);
/* Frees the rest, when the loop has run its handles down. */
void zd_bridge_deinit(struct zd_bridge *bridge);

/* Tells the engine the time, which is returned. Before every event that the engine is given. */
uint64_t zd_bridge_tick(struct zd_bridge *bridge);
/* After the events. */
void zd_bridge_settle(struct zd_bridge *bridge);

/* Gives the backend a command that the engine gave before, or one that stands for it under the same op. */
void zd_bridge_submit(struct zd_bridge *bridge, const struct zd_command *command);

/* Has the fence on the session's client page passed already? Then a WATCH would end at once. */
bool zd_bridge_fence_passed(const struct zd_bridge *bridge, uint64_t session, struct zd_fence fence);

/* Has the device failed: then with these words. */
bool zd_bridge_device_failure(const struct zd_bridge *bridge, uint32_t device, char why[ZD_FAILURE_TEXT]);

#endif
