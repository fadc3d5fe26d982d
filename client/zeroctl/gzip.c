// SPDX-License-Identifier: Apache-2.0
/*
 * gzip.c - a stream of stdio in front of zlib.
 */
#include "gzip.h"

#include <errno.h>
#include <stdlib.h>
#include <zlib.h>

#include "base/err.h"
#include "base/mem.h"

struct gzip {
	gzFile file;
	int error; /* of the first call that failed: later ones fail at once, and leave errno as it was */
};

static ssize_t write_some(void *cookie, const char *bytes, size_t nbytes)
{
	struct gzip *gzip = cookie;
	const int written = gzwrite(gzip->file, bytes, (unsigned)nbytes);
	if (written == 0 && !gzip->error)
		gzip->error = errno;
	if (written == 0)
		errno = gzip->error;
	return written;
}

static int end(void *cookie)
{
	struct gzip *gzip = cookie;
	const int rc = gzclose_w(gzip->file);
	if (rc != Z_OK && gzip->error)
		errno = gzip->error;
	free(gzip);
	return rc == Z_OK ? 0 : EOF;
}

FILE *zd_ctl_gzip_open(int fd)
{
	static const cookie_io_functions_t functions = {.write = write_some, .close = end};
	gzFile file = gzdopen(fd, "wb1");
	if (!file)
		return NULL;
	struct gzip *gzip = zd_calloc(1, sizeof(*gzip));
	gzip->file = file;
	FILE *out = fopencookie(gzip, "w", functions);
	zd_assert(out); /* it fails only for lack of memory */
	return out;
}
