/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gzip.h - files that are compressed while they are written.
 */
#ifndef ZD_CTL_GZIP_H
#define ZD_CTL_GZIP_H

#include <stdio.h>

/* Creates the file, or returns NULL with errno. The file is complete when fclose() has succeeded: what
 * fflush() writes may still be in memory. */
FILE *zd_ctl_gzip_open(const char *path);

#endif
