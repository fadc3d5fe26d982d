/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.h - all that the daemon's listings and events say of memory, as one JSON object; and the file that
 * it is written to.
 */
#ifndef ZD_CTL_SNAPSHOT_H
#define ZD_CTL_SNAPSHOT_H

#include "ctl.h"

/* Events behind more than so many newer ones are not read: a page with more is of no use. */
#define ZD_CTL_SNAPSHOT_EVENTS (1u << 18)

/* Fetches it, of --device and --job or of all. Errors: NOT_FOUND: there is no such device or job. */
int zd_ctl_snapshot_fetch(struct zd_ctl *ctl, json_t **snapshot) __attribute__((warn_unused_result));

/* A file that is there only as a whole: it is written under a temporary name in its folder, which signals
 * that end the program remove. */
struct zd_ctl_output {
	FILE *file;
	char *path;      /* NULL: standard output */
	char *temporary; /* NULL: standard output, or no regular file, which is written directly */
};

/* `path` "-": standard output. Errors: SYSTEM, with the path and the reason. */
int zd_ctl_output_open(struct zd_ctl_output *output, const char *path) __attribute__((warn_unused_result));
/* Moves the file to its name if `status`, that of the writing, is 0; else removes it. Returns `status`, or
 * the error of writing: SYSTEM, with the path and the reason. */
int zd_ctl_output_close(struct zd_ctl_output *output, int status) __attribute__((warn_unused_result));

#endif
