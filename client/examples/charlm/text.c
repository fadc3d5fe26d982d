/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.c - reads the training text.
 *
 * The bytes that occur are numbered in ascending order, so that the model's vocabulary is no larger than the
 * text needs. The default text comes in the order of the file names, each file once however many links lead
 * to it, so that one machine always trains on the same text.
 */
#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels.h"

#define DEFAULT_BYTES (1u << 20) /* of the default text */
#define MAX_BYTES     (1u << 30)

/* The first of these that has any text at all is the default. */
static const char *const default_patterns[] = {
        "/usr/share/common-licenses/*", /* on every Debian and Ubuntu */
        "/usr/share/licenses/*/*",      /* elsewhere */
        "/usr/share/doc/*/copyright",
};

struct seen {
	dev_t device;
	ino_t inode;
};

/* Appends up to `limit` bytes of the file. */
static int append(struct charlm_text *text, const char *path, size_t limit)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
	FILE *file = fd < 0 ? NULL : fdopen(fd, "rb");
	struct stat status;
	if (file == NULL || fstat(fd, &status) != 0) {
		fprintf(stderr, "charlm: %s: %s\n", path, strerror(errno));
		if (file != NULL)
			(void)fclose(file);
		else if (fd >= 0)
			(void)close(fd);
		return -1;
	}
	size_t bytes = (size_t)status.st_size;
	if (!S_ISREG(status.st_mode) || bytes > MAX_BYTES - text->count) {
		fprintf(stderr, "charlm: %s: %s\n", path,
		        S_ISREG(status.st_mode) ? "more than 1 GiB of text" : "not a regular file");
		(void)fclose(file);
		return -1;
	}
	if (bytes > limit)
		bytes = limit;
	uint8_t *grown = realloc(text->tokens, text->count + bytes + 1);
	if (grown == NULL) {
		fprintf(stderr, "charlm: %s: no memory for %zu bytes\n", path, bytes);
		(void)fclose(file);
		return -1;
	}
	text->tokens = grown;
	text->count += fread(grown + text->count, 1, bytes, file);
	text->nfiles++;
	bool failed = ferror(file) != 0;
	(void)fclose(file);
	if (failed)
		fprintf(stderr, "charlm: %s: cannot be read\n", path);
	return failed ? -1 : 0;
}

/* Is it a readable regular file that was not there yet? Then it is marked as seen. */
static bool is_new(const char *path, struct seen *seen, size_t *nseen)
{
	struct stat status;
	if (stat(path, &status) != 0 || !S_ISREG(status.st_mode) || access(path, R_OK) != 0)
		return false;
	for (size_t i = 0; i < *nseen; i++)
		if (seen[i].device == status.st_dev && seen[i].inode == status.st_ino)
			return false;
	seen[*nseen].device = status.st_dev;
	seen[*nseen].inode = status.st_ino;
	++*nseen;
	return true;
}

static int load_pattern(const char *pattern, struct charlm_text *text)
{
	glob_t paths = {0};
	(void)glob(pattern, 0, NULL, &paths); /* no match leaves the list empty */
	struct seen *seen = calloc(paths.gl_pathc + 1, sizeof(*seen));
	size_t nseen = 0;
	int rc = seen == NULL ? -1 : 0;
	for (size_t i = 0; rc == 0 && i < paths.gl_pathc && text->count < DEFAULT_BYTES; i++)
		if (is_new(paths.gl_pathv[i], seen, &nseen))
			rc = append(text, paths.gl_pathv[i], DEFAULT_BYTES - text->count);
	free(seen);
	globfree(&paths);
	return rc;
}

static int load_defaults(struct charlm_text *text)
{
	for (size_t i = 0; text->count == 0 && i < sizeof(default_patterns) / sizeof(default_patterns[0]);
	     i++)
		if (load_pattern(default_patterns[i], text) != 0)
			return -1;
	if (text->count > 0)
		return 0;
	fprintf(stderr, "charlm: no text under /usr/share/common-licenses, name a file with --text\n");
	return -1;
}

/* Bytes become numbers below the vocabulary's size. */
static void number_bytes(struct charlm_text *text)
{
	bool present[256] = {false};
	uint8_t number[256] = {0};
	for (size_t i = 0; i < text->count; i++)
		present[text->tokens[i]] = true;
	for (size_t byte = 0; byte < 256; byte++)
		if (present[byte]) {
			number[byte] = (uint8_t)text->vocabulary;
			text->bytes[text->vocabulary++] = (uint8_t)byte;
		}
	for (size_t i = 0; i < text->count; i++)
		text->tokens[i] = number[text->tokens[i]];
}

int charlm_text_load(const char *const *files, uint32_t nfiles, struct charlm_text *text)
{
	struct charlm_text loaded = {0};
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < nfiles; i++)
		rc = append(&loaded, files[i], MAX_BYTES);
	if (nfiles == 0)
		rc = load_defaults(&loaded);
	if (rc != 0) {
		charlm_text_free(&loaded);
		return rc;
	}
	number_bytes(&loaded);
	*text = loaded;
	return 0;
}

void charlm_text_free(struct charlm_text *text)
{
	free(text->tokens);
	*text = (struct charlm_text){0};
}

void charlm_text_sample(const struct charlm_text *text, uint64_t seed, uint64_t step, uint64_t index,
                        uint32_t context, uint8_t *inputs, uint8_t *target)
{
	size_t start = charlm_hash(seed, step, index) % (text->count - context);
	memcpy(inputs, text->tokens + start, context);
	*target = text->tokens[start + context];
}
