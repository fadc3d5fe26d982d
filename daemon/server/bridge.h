/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bridge.h - connects the engine to a backend and to the loop.
 *
 * The engine's commands are submitted to the backend, or to a delegate (delegate.h). Completions of executors
 * pass through a queue to the loop's thread, which reports them to the engine. The loop's timer wakes for the
 * engine's deadlines. Replies and ends of sessions are passed to the sessions.
 */
#ifndef ZD_SERVER_BRIDGE_H
#define ZD_SERVER_BRIDGE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "executor/backend.h"
#include "core/engine.h"
#include "server/loop.h"
#include "server/delegate.h"
#include "server/keeper.h"
#include "server/timer.h"

struct zd_api;

struct zd_bridge_config {
	const struct zd_backend_ops *backend;
	uint32_t ndevices;
	const char *devices; /* see struct zd_backend_config */
	/* For each device; 0: the default of the backend, or of the engine. */
	uint64_t arena_bytes, gather_budget_bytes, staging_bytes;
	uint64_t host_arena_bytes; /* 0: no host memory */
	uint64_t segment_bytes;    /* 0: default */
	uint64_t uid_quota_bytes;  /* 0: none */
	uint32_t events;           /* that are kept; 0: none */
	/* See struct zd_backend_config. */
	const char *nccl_path;
	bool check_collectives;
	uint64_t collective_timeout_ns;
	struct zd_store *store; /* stores durable jobs; NULL: they end with the daemon */
};

struct zd_completions {
	struct zd_completion *items;
	size_t count, room;
};

struct zd_bridge {
	const struct zd_backend_ops *ops;
	struct zd_backend *backend;
	struct zd_engine *engine;
	struct zd_delegates delegates; /* compute sums in place of the backend */
	struct zd_keeper keeper;
	struct zd_api *api; /* the api that has the bridge */
	struct zd_timer timer;
	bool collecting; /* commands, until zd_bridge_settle() */
	uv_async_t wake;
	struct zd_poll_source poll_source; /* polled for completions while the loop is awake */
	atomic_uint polling;
	pthread_mutex_t lock;
	struct zd_completions arrived; /* protected by `lock` */
	atomic_size_t narrived;        /* arrived.count, readable without the lock */
	struct zd_completions taken;   /* private to the loop, as nhandled is: of these */
	size_t nhandled;
};

/* Opens the backend and makes the engine. */
int zd_bridge_open(struct zd_bridge *bridge, struct zd_loop *loop, const struct zd_bridge_config *config,
                   struct zd_api *api, struct zd_err *err) __attribute__((warn_unused_result));
/* Returns the number of devices that ranks join on: all but host memory. */
uint32_t zd_bridge_devices(const struct zd_bridge *bridge);
/* Stops the backend, frees the engine, and begins to close the handles of the loop. */
void zd_bridge_close(struct zd_bridge *bridge);
/* Frees the rest, after the loop has closed the handles. */
void zd_bridge_deinit(struct zd_bridge *bridge);

/* Passes the current time to the engine, and returns that time. Called before every event for the engine. */
uint64_t zd_bridge_tick(struct zd_bridge *bridge);
/* Lets the backend collect the commands of the following events, until zd_bridge_settle(). */
void zd_bridge_collect(struct zd_bridge *bridge);
/* Submits the collected commands, and updates the timer for the engine's deadlines. Called after the
 * events. */
void zd_bridge_settle(struct zd_bridge *bridge);

/* Reports a completion as an executor does. Thread-safe. */
void zd_bridge_complete(struct zd_bridge *bridge, const struct zd_completion *completion);
/* Submits a command of the engine to the backend, or a substitute with the same op. */
void zd_bridge_submit(struct zd_bridge *bridge, const struct zd_command *command);

/* Returns whether the fence on the session's client page has passed. If so, a WATCH is not needed. */
bool zd_bridge_fence_passed(const struct zd_bridge *bridge, uint64_t session, struct zd_fence fence);

/* Returns whether the device has failed, and then copies the reason to `why`. */
bool zd_bridge_device_failure(const struct zd_bridge *bridge, uint32_t device, char why[ZD_FAILURE_TEXT]);

#endif
