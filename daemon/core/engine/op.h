/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.h - operations: commands in progress. An operation holds a reference on its job.
 */
#ifndef ZD_CORE_ENGINE_OP_H
#define ZD_CORE_ENGINE_OP_H

#include "core/engine/device.h"

struct zd_op;
struct zd_session;

typedef void zd_op_fn(struct zd_engine *e, struct zd_op *op);

/* A command in progress. done() is called exactly once. After that the op is freed and its job reference
 * dropped. */
struct zd_op {
	uint64_t id;
	zd_op_fn *done;
	struct zd_job *job; /* NULL: none */
	void *owner;        /* done()'s own */
	uint32_t metadata_bytes;
	uint64_t aux;
	/* for done(): how the command has ended */
	int status;
	const char *error;                 /* never NULL */
	const struct zd_op_result *result; /* NULL: none */
	struct zd_device *copies;          /* device whose `ncopying` counts it, or NULL */
	/* for a COPY that will be an event; bytes 0: no event */
	uint64_t begin_ns, bytes, session;
	uint8_t peer;
	UT_hash_handle hh;
};

/* The metadata of a WATCH, in core and executor. It is charged because its fences may never pass. All other
 * operations end by themselves. */
#define ZD_WATCH_METADATA_BYTES 1024u

/* Returns the device that executes a COPY: the source's device. Host memory copies only within host memory. A
 * GPU reads host memory itself. */
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

/*
 * Watches the fences of the session's client page that have not passed. Returns true if it started an op
 * (done will be called), false if all fences have passed.
 */
bool zd_fences_watch(struct zd_engine *e, struct zd_session *session, struct zd_job *job, uint32_t device,
                     const struct zd_fence_list *list, zd_op_fn *done, void *owner, uint64_t aux);

#endif
