/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task.h - the common part of a backend's tasks: the part of a command that names no memory.
 *
 * Each backend embeds it in a task of its own, which adds addresses.
 */
#ifndef ZD_EXECUTOR_TASK_H
#define ZD_EXECUTOR_TASK_H

#include <stdint.h>

#include "executor/watch.h"

struct zd_task {
	enum zd_command_kind kind;
	uint32_t timeline; /* the timeline and value of the command's signal */
	uint64_t value;
	union {
		struct {
			uint32_t id;
			uint64_t bytes;
		} create;              /* SEGMENT_CREATE */
		struct zd_watch watch; /* WATCH */
	} u;
};

/* Initialises the task of a command. `watched`: see zd_watch_init(). */
void zd_task_init(struct zd_task *task, const struct zd_command *command, struct zd_backend_session *watched);
void zd_task_deinit(struct zd_task *task);

/* Asserts that the reduction is valid: its types, the alignment of its elements, and the sizes of its
 * locations. */
void zd_task_check_reduce(const struct zd_reduce_desc *desc);

#endif
