/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_segment.c - the memory of emulated devices: sealed memfd segments, and their table.
 *
 * Segments that the machine cannot back are rejected here, with the sizes. Later the kernel would send
 * SIGBUS. A segment must fit into the memory that is available now. All pages of a pinned segment are
 * allocated at once, for the daemon's control group. They must also fit below its limits, because otherwise
 * the kernel would kill the daemon. Under strict overcommit (vm.overcommit_memory = 2) the kernel sends
 * SIGBUS for a page that it cannot account for. In that mode the pages of every segment are therefore
 * allocated at once.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "executor/memfd.h"
#include "executor/host/host_segment.h"
#include "executor/host/memory_limit.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"

uint64_t zd_host_memory_bytes(void)
{
	long pages = sysconf(_SC_PHYS_PAGES);
	long page_bytes = sysconf(_SC_PAGESIZE);
	return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
}

/* The memory that is available without swapping, by the kernel's estimate, or all memory if the kernel has no
 * estimate. */
static uint64_t available_bytes(void)
{
	uint64_t kib = 0;
	bool found = false;
	char line[128];
	FILE *file = fopen("/proc/meminfo", "re");
	while (file && !found && fgets(line, sizeof(line), file))
		found = sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1;
	if (file)
		fclose(file);
	return found ? kib * 1024 : zd_host_memory_bytes();
}

static bool overcommit_is_strict(void)
{
	int mode = 0;
	FILE *file = fopen("/proc/sys/vm/overcommit_memory", "re");
	if (file) {
		if (fscanf(file, "%d", &mode) != 1)
			mode = 0;
		fclose(file);
	}
	return mode == 2;
}

static int check_size(uint64_t bytes, bool pinned, struct zd_err *err)
{
	struct zd_memory_limit limit;
	char wanted[ZD_BYTES_TEXT], found[ZD_BYTES_TEXT], used[ZD_BYTES_TEXT];
	uint64_t available = available_bytes();
	if (bytes > available)
		return zd_err_set(err, ZEROD_E_NO_MEMORY,
		                  "a segment of %s does not fit: %s of memory are available",
		                  zd_bytes_text(bytes, wanted), zd_bytes_text(available, found));
	if (pinned && zd_memory_limit_exceeded("", bytes, true, &limit))
		return zd_err_set(err, ZEROD_E_NO_MEMORY,
		                  "a segment of %s of host memory does not fit: the daemon's control group "
		                  "is limited to %s and uses %s (%s)",
		                  zd_bytes_text(bytes, wanted), zd_bytes_text(limit.bytes, found),
		                  zd_bytes_text(limit.used_bytes, used), limit.file);
	return 0;
}

static int map_segment(struct zd_host_segment *segment, struct zd_err *err)
{
	char text[ZD_BYTES_TEXT];
	void *base = mmap(NULL, segment->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
	                  segment->fd, 0);
	if (base == MAP_FAILED)
		return zd_err_set(err, ZEROD_E_NO_MEMORY, "no address space for a segment of %s",
		                  zd_bytes_text(segment->bytes, text));
	/* Keeps core dumps small: they contain the daemon's own memory, but no segments. */
	(void)madvise(base, segment->bytes, MADV_DONTDUMP);
	segment->base = base;
	return 0;
}

int zd_host_segment_new(uint32_t id, uint64_t bytes, const struct zd_host_pinning *pinning,
                        struct zd_host_segment **segment, struct zd_err *err)
{
	zd_assert(id != 0 && bytes > 0);
	char name[32];
	snprintf(name, sizeof(name), "zerod-segment-%" PRIu32, id);

	struct zd_host_segment *made = zd_calloc(1, sizeof(*made));
	made->id = id;
	made->bytes = bytes;
	made->fd = -1;
	int rc = check_size(bytes, pinning != NULL, err);
	if (!rc)
		rc = zd_memfd_new(name, bytes, &made->fd, err);
	if (!rc && overcommit_is_strict())
		rc = zd_memfd_reserve(made->fd, bytes, err);
	if (!rc)
		rc = zd_memfd_seal(made->fd, 0, err);
	if (!rc)
		rc = map_segment(made, err);
	if (!rc && pinning)
		rc = zd_host_segment_pin(made, pinning, err);
	if (rc) {
		zd_host_segment_free(made);
		return rc;
	}
	*segment = made;
	return 0;
}

int zd_host_segment_import(uint32_t id, uint64_t bytes, int fd, struct zd_host_segment **segment,
                           struct zd_err *err)
{
	struct zd_host_segment *made = zd_calloc(1, sizeof(*made));
	struct stat found;
	int seals = fcntl(fd, F_GET_SEALS), rc = 0;
	*made = (struct zd_host_segment){.id = id, .bytes = bytes, .fd = fd};
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &found) < 0 || (uint64_t)found.st_size < bytes)
		rc = zd_err_set(err, ZEROD_E_INVALID,
		                "segment %" PRIu32 " has not the %" PRIu64 " bytes that it had", id, bytes);
	if (!rc)
		rc = map_segment(made, err);
	if (rc) {
		zd_host_segment_free(made);
		return rc;
	}
	*segment = made;
	return 0;
}

int zd_host_segment_pin(struct zd_host_segment *segment, const struct zd_host_pinning *pinning,
                        struct zd_err *err)
{
	int rc = pinning->pin(pinning->arg, segment->base, segment->bytes, err);
	if (!rc)
		segment->pinned_by = pinning;
	return rc;
}

static void unpin(struct zd_host_segment *segment)
{
	if (segment->pinned_by)
		segment->pinned_by->unpin(segment->pinned_by->arg, segment->base);
	segment->pinned_by = NULL;
}

void zd_host_segment_destroy(struct zd_host_segment *segment)
{
	if (!segment)
		return;
	unpin(segment);
	zd_memfd_drop(segment->base, segment->bytes);
	segment->base = NULL;
	zd_host_segment_free(segment);
}

void zd_host_segment_free(struct zd_host_segment *segment)
{
	if (!segment)
		return;
	unpin(segment);
	if (segment->base)
		munmap(segment->base, segment->bytes);
	if (segment->fd >= 0)
		close(segment->fd);
	free(segment);
}

void zd_host_segments_init(struct zd_host_segments *segments)
{
	for (size_t i = 0; i < ZD_HOST_SEGMENT_BUCKETS; i++)
		LIST_INIT(&segments->buckets[i]);
	segments->pinning = NULL;
	pthread_mutex_init(&segments->lock, NULL);
}

void zd_host_segments_deinit(struct zd_host_segments *segments)
{
	for (size_t i = 0; i < ZD_HOST_SEGMENT_BUCKETS; i++) {
		struct zd_host_segment *segment = LIST_FIRST(&segments->buckets[i]);
		while (segment) {
			struct zd_host_segment *next = LIST_NEXT(segment, in_bucket);
			zd_host_segment_free(segment);
			segment = next;
		}
	}
	pthread_mutex_destroy(&segments->lock);
}

static struct zd_host_segment_bucket *bucket_of(struct zd_host_segments *segments, uint32_t id)
{
	return &segments->buckets[id % ZD_HOST_SEGMENT_BUCKETS];
}

/* The caller holds the lock. */
static struct zd_host_segment *find_segment(struct zd_host_segments *segments, uint32_t id)
{
	struct zd_host_segment *segment;
	LIST_FOREACH (segment, bucket_of(segments, id), in_bucket) {
		if (segment->id == id)
			break;
	}
	return segment;
}

void zd_host_segments_add(struct zd_host_segments *segments, struct zd_host_segment *segment)
{
	pthread_mutex_lock(&segments->lock);
	zd_assert(!find_segment(segments, segment->id));
	LIST_INSERT_HEAD(bucket_of(segments, segment->id), segment, in_bucket);
	pthread_mutex_unlock(&segments->lock);
}

struct zd_host_segment *zd_host_segments_take(struct zd_host_segments *segments, uint32_t id)
{
	pthread_mutex_lock(&segments->lock);
	struct zd_host_segment *segment = find_segment(segments, id);
	if (segment)
		LIST_REMOVE(segment, in_bucket);
	pthread_mutex_unlock(&segments->lock);
	return segment;
}

int zd_host_segments_fd(struct zd_host_segments *segments, uint32_t id)
{
	pthread_mutex_lock(&segments->lock);
	struct zd_host_segment *segment = find_segment(segments, id);
	int fd = segment ? segment->fd : -1;
	pthread_mutex_unlock(&segments->lock);
	return fd;
}

void *zd_host_segments_at(struct zd_host_segments *segments, const struct zd_location *location)
{
	if (location->bytes == 0)
		return NULL;
	pthread_mutex_lock(&segments->lock);
	struct zd_host_segment *segment = find_segment(segments, location->segment);
	pthread_mutex_unlock(&segments->lock);
	/* Valid without the lock: the core destroys no segment that a command may still name. */
	zd_assert(segment);
	zd_assert(location->offset <= segment->bytes && location->bytes <= segment->bytes - location->offset);
	return segment->base + location->offset;
}
