/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output.h - the file that a verb writes, which becomes visible only when it is complete.
 *
 * It is written under a temporary name in its folder. Signals that end the program remove it. It replaces
 * only a regular file of the caller, and follows no symbolic link of another user except root, because
 * anybody can make one in a folder like /tmp.
 */
#ifndef ZD_CTL_OUTPUT_H
#define ZD_CTL_OUTPUT_H

#include "ctl.h"

struct zd_ctl_output {
	FILE *file;
	int fd;          /* to which `file` writes; -1: standard output */
	char *path;      /* NULL: standard output */
	char *temporary; /* NULL: standard output, or no regular file, which is written directly */
	bool replaces;   /* an existing file of the caller */
};

/* `path` "-": standard output. `compressed`: by gzip. Errors: SYSTEM, with the path and the reason. */
int zd_ctl_output_open(struct zd_ctl_output *output, const char *path, bool compressed)
        __attribute__((warn_unused_result));
/* Moves the file to its name if `status`, that of the writing, is 0. Otherwise removes it. Returns `status`,
 * or the error of writing: SYSTEM, with the path and the reason. */
int zd_ctl_output_close(struct zd_ctl_output *output, int status) __attribute__((warn_unused_result));

#endif
