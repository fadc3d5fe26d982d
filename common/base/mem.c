/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem.c - the daemon's own small allocations, which succeed or end the process.
 *
 * An empty allocation is a valid, unique pointer, so that NULL never means "none of it".
 */
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void out_of_memory(size_t count, size_t bytes_each)
{
	(void)fprintf(stderr, "out of memory: %zu x %zu bytes\n", count, bytes_each);
	abort();
}

/* glibc keeps freed pieces of up to this size for the thread that freed them. Its calloc(), before 2.41,
 * takes none of those, at five times the instructions. */
#define KEPT_BYTES 1024u

void *zd_calloc(size_t count, size_t bytes_each)
{
	size_t bytes;
	void *memory;

	if (__builtin_mul_overflow(count, bytes_each, &bytes) || bytes > KEPT_BYTES)
		memory = calloc(count, bytes_each);
	else
		memory = malloc(bytes ? bytes : 1);
	if (!memory)
		out_of_memory(count, bytes_each);
	return bytes <= KEPT_BYTES ? memset(memory, 0, bytes) : memory;
}

void *zd_realloc(void *old, size_t count, size_t bytes_each)
{
	void *memory = count && bytes_each ? reallocarray(old, count, bytes_each) : realloc(old, 1);

	if (!memory)
		out_of_memory(count, bytes_each);
	return memory;
}

char *zd_strdup(const char *text)
{
	size_t bytes = strlen(text) + 1;

	return memcpy(zd_calloc(bytes, 1), text, bytes);
}
