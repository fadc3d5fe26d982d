/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.h - operations: commands under way.
 *
 * An operation holds a reference on its job.
 */
#ifndef ZD_CORE_ENGINE_OP_H
#define ZD_CORE_ENGINE_OP_H

#include "core/engine/device.h"

struct zd_op;
struct zd_session;

typedef void zd_op_fn(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                      const struct zd_op_result *result);

/* A command under way. done() is called exactly once; afterwards the op is freed and its job reference
 * dropped. */
struct zd_op {
	uint64_t id;
	zd_op_fn *done;
	struct zd_job *job; /* NULL: none */
	void *owner;        /* done()'s own */
	uint32_t metadata_bytes;
	uint64_t aux;
	struct zd_device *copies; /* whose `ncopying` counts it; NULL: none */
	/* of a COPY that will be an event; bytes 0: it will be none */
	uint64_t begin_ns, bytes, session;
	uint8_t peer;
	UT_hash_handle hh;
};

/* The metadata of a WATCH, in core and executor. Its fences may never pass, and so it is charged. All other
 * operations end by themselves. */
#define ZD_WATCH_METADATA_BYTES 1024u

/* Returns the device that makes a COPY: the one that has the source. Host memory copies within host memory
 * only; a GPU reads it by itself. */
static inline uint32_t zd_copy_device(const struct zd_device *from, const struct zd_device *to)
{
	return from->config.host_memory ? to->index : from->index;
}

/* Sets command->op and hands the command to the sink. `job`: NULL for a command of no job. */
void zd_op_submit(struct zd_engine *e, struct zd_job *job, struct zd_command *command, zd_op_fn *done,
                  void *owner, uint64_t aux);
/* Submits a FILL that zeroes the location. */
void zd_op_fill(struct zd_engine *e, struct zd_job *job, uint32_t device, struct zd_location where,
                zd_op_fn *done, void *owner, uint64_t aux);

/* Checks the fences of a request. Errors: INVALID or LIMIT for an invalid count, timeline or value. */
int zd_fences_check(const struct zd_fence_list *list, struct zd_err *err) __attribute__((warn_unused_result));
/*
 * Watches those fences of the session's client page that have not passed. Returns true if an op was started
 * (done will be called), false if all have passed.
 */
bool zd_fences_watch(struct zd_engine *e, struct zd_session *session, struct zd_job *job, uint32_t device,
                     const struct zd_fence_list *list, zd_op_fn *done, void *owner, uint64_t aux);

#endif
