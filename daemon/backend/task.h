/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task.h - what a backend's tasks have in common: the part of a command that names no memory.
 *
 * Each backend's task begins with it, and adds the addresses that it works on.
 */
#ifndef ZD_BACKEND_TASK_H
#define ZD_BACKEND_TASK_H

#include <stdint.h>

#include "backend/watch.h"

struct zd_task {
	enum zd_command_kind kind;
	uint32_t timeline; /* of the command's signal, and: */
	uint64_t value;
	union {
		struct {
			uint32_t id;
			uint64_t bytes;
		} create;              /* SEGMENT_CREATE */
		struct zd_watch watch; /* WATCH */
	} u;
};

/* `watched`: as for zd_watch_init(). */
void zd_task_init(struct zd_task *task, const struct zd_command *command, struct zd_backend_session *watched);
void zd_task_deinit(struct zd_task *task);

/* A reduction that the core may ask for: its types, whole elements, and as many as it says. */
void zd_task_check_reduce(const struct zd_reduce_desc *desc);

#endif
