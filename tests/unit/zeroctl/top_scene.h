/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top_scene.h - samples for the model of `zeroctl top`: rows are added, and taken over at a moment. Then the
 * next sample begins without rows.
 */
#ifndef ZD_TEST_TOP_SCENE_H
#define ZD_TEST_TOP_SCENE_H

#include <jansson.h>

#include "client/zeroctl/top.h"
#include "tests/support/test.h"

/* Bytes of each device. */
#define TOP_ARENA       (1 << 30)
#define TOP_SHARDS      (256 << 20)
#define TOP_GATHERED    (128 << 20)
#define TOP_BUCKETS     (32 << 20)
#define TOP_ALLOCATIONS (32 << 20)

struct top_scene {
	struct zd_top_model model;
	json_int_t daemon_pid;
	const char *group_state;
	json_t *devices, *sessions, *groups, *buffers, *allocations;
};

static inline void top_scene_begin_sample(struct top_scene *scene)
{
	scene->devices = json_array();
	scene->sessions = json_array();
	scene->groups = json_array();
	scene->buffers = json_array();
	scene->allocations = json_array();
}

static inline void top_scene_end_sample(struct top_scene *scene)
{
	json_decref(scene->devices);
	json_decref(scene->sessions);
	json_decref(scene->groups);
	json_decref(scene->buffers);
	json_decref(scene->allocations);
}

static inline void top_scene_init(struct top_scene *scene)
{
	*scene = (struct top_scene){.daemon_pid = 1, .group_state = "READY"};
	top_scene_begin_sample(scene);
}

static inline void top_scene_deinit(struct top_scene *scene)
{
	zd_top_model_deinit(&scene->model);
	top_scene_end_sample(scene);
}

static inline void top_scene_device(struct top_scene *scene, int index, uint64_t gathered_total)
{
	json_array_append_new(scene->devices,
	                      json_pack("{s:i,s:s,s:s,s:s,s:i,s:i,s:I,s:{s:i,s:i,s:i,s:i}}", "index", index,
	                                "name", "host", "model", "", "state", "ok", "arena_bytes", TOP_ARENA,
	                                "quarantine_bytes", 0, "gathered_bytes_total",
	                                (json_int_t)gathered_total, "usage", "shard_bytes", TOP_SHARDS,
	                                "gathered_bytes", TOP_GATHERED, "bucket_bytes", TOP_BUCKETS,
	                                "allocation_bytes", TOP_ALLOCATIONS));
}

/* The session's pid is 1000 more than its id. */
static inline void top_scene_session(struct top_scene *scene, uint64_t id, const char *name,
                                     uint64_t requests)
{
	json_array_append_new(scene->sessions,
	                      json_pack("{s:I,s:s,s:i,s:i,s:s,s:s,s:I,s:[]}", "id", (json_int_t)id, "name",
	                                name, "uid", 1000, "pid", (int)(1000 + id), "state", "OPEN", "job",
	                                "job", "requests", (json_int_t)requests, "waits"));
}

/* Of the session that was added last. */
static inline void top_scene_wait(struct top_scene *scene, const char *text)
{
	const json_t *last = json_array_get(scene->sessions, json_array_size(scene->sessions) - 1);
	json_array_append_new(json_object_get(last, "waits"), json_string(text));
}

/* Adds a member to the last group, or a group before if that has another name. `session` 0: none. */
static inline void top_scene_member(struct top_scene *scene, const char *job, const char *name, int rank,
                                    uint64_t session)
{
	const size_t count = json_array_size(scene->groups);
	json_t *group = count ? json_array_get(scene->groups, count - 1) : NULL;
	if (!group || strcmp(json_string_value(json_object_get(group, "name")), name) != 0) {
		group = json_pack("{s:s,s:s,s:s,s:s,s:[]}", "job", job, "name", name, "state",
		                  scene->group_state, "why", "", "members");
		json_array_append_new(scene->groups, group);
	}
	json_array_append_new(json_object_get(group, "members"),
	                      json_pack("{s:i,s:i,s:I,s:i}", "rank", rank, "device", 0, "session",
	                                (json_int_t)session, "pid", session ? (int)(1000 + session) : 0));
}

/* `holder` 0: none. A buffer waits for something, and has done so for long. */
static inline void top_scene_buffer(struct top_scene *scene, const char *job, const char *group, int rank,
                                    int bytes, const char *state, uint64_t holder)
{
	json_t *row = json_pack("{s:s,s:s,s:s,s:i,s:i,s:s,s:i,s:s,s:I,s:[]}", "job", job, "group", group,
	                        "unit", "w", "rank", rank, "device", 0, "state", state, "padded_bytes", bytes,
	                        "waits_for", "2 transfers", "age_ns", (json_int_t)5000000000, "holders");
	if (holder)
		json_array_append_new(
		        json_object_get(row, "holders"),
		        json_pack("{s:I,s:s}", "session", (json_int_t)holder, "tag", "default"));
	json_array_append_new(scene->buffers, row);
}

static inline void top_scene_allocation(struct top_scene *scene, uint64_t session, int device, int bytes,
                                        bool durable)
{
	json_array_append_new(scene->allocations,
	                      json_pack("{s:I,s:i,s:i,s:b}", "session", (json_int_t)session, "device", device,
	                                "bytes", bytes, "durable", (int)durable));
}

static inline void top_scene_take(struct top_scene *scene, double at_s)
{
	json_t *status = json_pack("{s:s,s:s,s:s,s:I,s:I,s:i}", "daemon", "0.1.0", "backend", "host", "state",
	                           "SERVING", "pid", scene->daemon_pid, "uptime_ns", (json_int_t)(at_s * 1e9),
	                           "sessions", 1);
	const struct zd_top_sample sample = {
	        .at_ns = (uint64_t)(at_s * 1e9),
	        .status = status,
	        .devices = scene->devices,
	        .sessions = scene->sessions,
	        .groups = scene->groups,
	        .buffers = scene->buffers,
	        .allocations = scene->allocations,
	};
	zd_top_update(&scene->model, &sample);
	json_decref(status);
	top_scene_end_sample(scene);
	top_scene_begin_sample(scene);
}

#endif
