/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gzip.h - files that are compressed while they are written.
 */
#ifndef ZD_CTL_GZIP_H
#define ZD_CTL_GZIP_H

#include <stdio.h>

/* Returns a stream that writes to `fd`, which fclose() closes. NULL, with errno, leaves it open. The file is
 * complete when fclose() has succeeded: after fflush() bytes can still be in memory. */
FILE *zd_ctl_gzip_open(int fd);

#endif
