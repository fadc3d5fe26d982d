/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output.h - the file that a verb writes, which is there only as a whole.
 *
 * It is written under a temporary name in its folder, which signals that end the program remove. It replaces
 * nothing but a regular file of the caller's, and follows no symbolic link of another user but root, because
 * anybody can put one into a folder like /tmp.
 */
#ifndef ZD_CTL_OUTPUT_H
#define ZD_CTL_OUTPUT_H

#include "ctl.h"

struct zd_ctl_output {
	FILE *file;
	int fd;          /* of what `file` writes; -1: standard output */
	char *path;      /* NULL: standard output */
	char *temporary; /* NULL: standard output, or no regular file, which is written directly */
	bool replaces;   /* a file of the caller's that is there */
};

/* `path` "-": standard output. `compressed`: by gzip. Errors: SYSTEM, with the path and the reason. */
int zd_ctl_output_open(struct zd_ctl_output *output, const char *path, bool compressed)
        __attribute__((warn_unused_result));
/* Moves the file to its name if `status`, that of the writing, is 0; else removes it. Returns `status`, or
 * the error of writing: SYSTEM, with the path and the reason. */
int zd_ctl_output_close(struct zd_ctl_output *output, int status) __attribute__((warn_unused_result));

#endif
