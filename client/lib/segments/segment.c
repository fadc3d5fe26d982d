/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.c - the daemon's memory in this process: segments, and locations in them.
 *
 * A segment is mapped whole at the first use of a location in it. It remains mapped, at the same address,
 * until the client is closed, or until all its locations were released and the daemon retires it. The library
 * does not trust the daemon's description of a descriptor: it reads the size from the file, which must be
 * sealed against shrinking, because an access beyond the end of a shrunken file would kill the process. A
 * descriptor of GPU memory has no such size and seal. Importing any other file fails, as does mapping with
 * another size.
 */
#include "client/lib/segments/segment.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lib/segments/cuda_segment.h"
#include "client/lib/segments/mapping.h"
#include "client/lib/segments/pages.h"

/* ---- Segments ------------------------------------------------------------------------------------------ */

struct zc_segment *zc_segment_find(struct zerod_client *client, uint32_t id)
{
	struct zc_segment *segment;

	HASH_FIND(hh, client->segments, &id, sizeof(id), segment);
	return segment;
}

static bool is_file(const struct zerod_client *client, const Zd__Segment *segment)
{
	return segment->host_memory || !client->on_gpus;
}

static int check_segment(struct zerod_client *client, const Zd__Segment *from, int fd, struct zd_err *err)
{
	if (from->id == 0 || from->bytes == 0 || from->bytes > ZD_MAX_BYTES)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon announced segment %u of %llu bytes",
		                  from->id, (unsigned long long)from->bytes);
	if (zc_segment_find(client, from->id))
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon announced segment %u twice", from->id);
	return is_file(client, from) ? zc_pages_check(fd, from->bytes, "segment", err) : 0;
}

int zc_segment_add(struct zerod_client *client, const Zd__Segment *from, int fd, struct zd_err *err)
{
	struct zc_segment *segment;
	int rc = check_segment(client, from, fd, err);

	if (rc)
		goto close_fd;
	segment = calloc(1, sizeof(*segment));
	if (!segment) {
		rc = zd_err_errno(err, ENOMEM, "taking a segment");
		goto close_fd;
	}
	segment->id = from->id;
	segment->device = from->device;
	segment->bytes = from->bytes;
	segment->is_file = is_file(client, from);
	segment->fd = fd;
	HASH_ADD(hh, client->segments, id, sizeof(segment->id), segment);
	if (segment->hh.tbl)
		return 0;
	rc = zd_err_errno(err, ENOMEM, "taking a segment");
	free(segment);
close_fd:
	(void)close(fd);
	return rc;
}

/* ---- Places -------------------------------------------------------------------------------------------- */

int zc_location_take(struct zerod_client *client, const Zd__Location *from, uint64_t min_bytes, size_t align,
                     struct zc_location *location, struct zd_err *err)
{
	const struct zc_segment *segment;

	if (!from)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon's reply names no place");
	segment = zc_segment_find(client, from->segment);
	if (!segment)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon named segment %u, which it never sent",
		                  from->segment);
	if (from->bytes > segment->bytes || from->offset > segment->bytes - from->bytes)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the daemon named %llu bytes at %llu of segment %u, which has %llu",
		                  (unsigned long long)from->bytes, (unsigned long long)from->offset,
		                  from->segment, (unsigned long long)segment->bytes);
	if (from->bytes < min_bytes || from->offset % align != 0)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the daemon named %llu bytes at %llu, for %llu bytes of elements of %zu",
		                  (unsigned long long)from->bytes, (unsigned long long)from->offset,
		                  (unsigned long long)min_bytes, align);
	*location = (struct zc_location){from->segment, from->offset, from->bytes};
	return 0;
}

static int map_segment(struct zc_segment *segment, struct zd_err *err)
{
	void *map = mmap(NULL, segment->bytes, PROT_READ | (segment->read_only ? 0 : PROT_WRITE),
	                 MAP_SHARED | MAP_NORESERVE, segment->fd, 0);

	if (map == MAP_FAILED)
		return zd_err_errno(err, errno, "mapping segment %u of %llu bytes", segment->id,
		                    (unsigned long long)segment->bytes);
	segment->mapping = zc_mapping_new(map, segment->bytes);
	if (!segment->mapping) {
		(void)munmap(map, segment->bytes);
		return zd_err_errno(err, ENOMEM, "mapping segment %u", segment->id);
	}
	segment->map = map;
	return 0;
}

/* A reader of the segment's job has become a member. */
static int make_writable(struct zerod_client *client, struct zc_segment *segment, struct zd_err *err)
{
	int rc;

	if (!segment->is_file)
		rc = zc_cuda_segment_protect(client, segment, true, err);
	else if (mprotect(segment->map, segment->bytes, PROT_READ | PROT_WRITE) == 0)
		rc = 0;
	else
		rc = zd_err_errno(err, errno, "writing to segment %u", segment->id);
	segment->read_only = rc != 0;
	return rc;
}

static int map_location(struct zerod_client *client, const struct zc_location *location, bool read_only,
                        const void **data, struct zd_err *err)
{
	struct zc_segment *segment = zc_segment_find(client, location->segment);
	int rc = 0;

	if (!segment) /* checked when the location was received; another thread has released it since then */
		return zd_err_set(err, ZEROD_E_STALE, "segment %u was released to its device",
		                  location->segment);
	if (!segment->map) {
		segment->read_only = read_only;
		rc = segment->is_file ? map_segment(segment, err) : zc_cuda_segment_map(client, segment, err);
		if (rc)
			return rc;
		(void)close(segment->fd);
		segment->fd = -1;
	} else if (segment->read_only && !read_only) {
		rc = make_writable(client, segment, err);
	}
	if (!rc)
		*data = (uint8_t *)segment->map + location->offset;
	return rc;
}

int zc_location_map(struct zerod_client *client, const struct zc_location *location, void **data,
                    struct zd_err *err)
{
	return map_location(client, location, false, (const void **)data, err);
}

int zc_location_map_read(struct zerod_client *client, const struct zc_location *location, const void **data,
                         struct zd_err *err)
{
	return map_location(client, location, true, data, err);
}
