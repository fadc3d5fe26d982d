/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.c - the daemon's memory in this process: segments, locations in them, and the two fence pages.
 *
 * A segment is mapped whole at the first use of a location in it. It stays mapped, at the same address, until
 * the client is closed, or until all its locations were released and the daemon retires it. The daemon's
 * description of a descriptor is not trusted: the size is read from the file, which must be sealed against
 * shrinking, since an access behind the end of a shrunken file would kill the process. A descriptor of GPU
 * memory has no such size and seal; importing any other file fails, and so does mapping with another size.
 */
#include "client/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zerod_host.h>

#include "client/cuda.h"
#include "client/mapping.h"
#include "client/offloaded_sum.h"

#define PAGE_BYTES ((size_t)ZD_FENCE_PAGE_BYTES)

/* The other seals (GROW, SEAL, FUTURE_WRITE) protect the daemon, which looks after them itself. */
static int check_descriptor(int fd, uint64_t min_bytes, const char *what, struct zd_err *err)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the %s is not sealed against shrinking", what);
	if (fstat(fd, &st))
		return zd_err_errno(err, errno, "looking at the %s", what);
	if (st.st_size < 0 || (uint64_t)st.st_size < min_bytes)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the %s has %lld bytes, %llu were announced", what,
		                  (long long)st.st_size, (unsigned long long)min_bytes);
	return 0;
}

/* ---- Fence pages --------------------------------------------------------------------------------------- */

static int map_file(int fd, size_t bytes, int protection, const char *what, void **page, struct zd_err *err)
{
	void *map = MAP_FAILED;
	int rc = check_descriptor(fd, bytes, what, err);

	if (!rc)
		map = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
	if (!rc && map == MAP_FAILED)
		rc = zd_err_errno(err, errno, "mapping the %s", what);
	(void)close(fd);
	if (!rc)
		*page = map;
	return rc;
}

int zc_page_map(int fd, size_t bytes, int protection, const char *what, void **page, struct zd_err *err)
{
	return map_file(fd, bytes, protection, what, page, err);
}

int zc_rings_take(struct zerod_client *client, int fd, struct zd_err *err)
{
	void *map;
	int rc = map_file(fd, ZD_RINGS_BYTES, PROT_READ | PROT_WRITE, "rings", &map, err);

	if (rc)
		return rc;
	client->rings = map;
	client->endpoint.out.ring = &client->rings->requests;
	client->endpoint.in.ring = &client->rings->replies;
	client->worker.endpoint.in.ring = &client->rings->works;
	client->worker.endpoint.out.ring = &client->rings->answers;
	zd_endpoint_start_polling(&client->endpoint);
	zd_endpoint_start_polling(&client->worker.endpoint);
	return 0;
}

/* Shared, so that no fork makes a copy of what GPUs write to. */
static int make_gpu_page(struct zerod_client *client, struct zd_err *err)
{
	void *map = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED)
		return zd_err_errno(err, errno, "making a page for GPUs' fences");
	client->gpu_page = map;
	return 0;
}

int zc_pages_map(struct zerod_client *client, int client_fd, int daemon_fd, struct zd_err *err)
{
	void *client_page = NULL, *daemon_page = NULL;
	int rc = zc_page_map(client_fd, PAGE_BYTES, PROT_READ | PROT_WRITE, "client's fence page",
	                     &client_page, err);

	if (rc)
		(void)close(daemon_fd);
	else
		rc = zc_page_map(daemon_fd, PAGE_BYTES, client->on_gpus ? PROT_READ | PROT_WRITE : PROT_READ,
		                 "daemon's fence page", &daemon_page, err);
	if (rc) {
		if (client_page)
			(void)munmap(client_page, PAGE_BYTES);
		return rc;
	}
	client->client_page = client_page;
	client->daemon_page = daemon_page;
	client->gpu_page = client_page;
	return client->strict && client->on_gpus ? make_gpu_page(client, err) : 0;
}

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
	return is_file(client, from) ? check_descriptor(fd, from->bytes, "segment", err) : 0;
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

static void free_segment(struct zc_segment *segment)
{
	free(segment->page_holders);
	free(segment);
}

/* Unmaps the segment. With the lock; the pages' lock keeps strict clients' streams from unmapped pages. */
static void unmap_segment(struct zerod_client *client, struct zc_segment *segment)
{
	pthread_mutex_lock(&client->page_lock);
	if (segment->map && client->on_gpus)
		zc_cuda_segment_unmap(client, segment);
	zerod_mapping_release(segment->mapping);
	segment->mapping = NULL;
	segment->map = NULL;
	pthread_mutex_unlock(&client->page_lock);
	if (segment->fd >= 0)
		(void)close(segment->fd);
	segment->fd = -1;
}

static int note_unmapped(struct zerod_client *client, uint32_t id, struct zd_err *err)
{
	if (client->nunmapped == client->unmapped_room) {
		size_t room = client->unmapped_room ? 2 * client->unmapped_room : 8;
		uint32_t *unmapped = realloc(client->unmapped, room * sizeof(*unmapped));

		if (!unmapped)
			return zd_err_errno(err, ENOMEM, "unmapping segment %u", id);
		client->unmapped = unmapped;
		client->unmapped_room = room;
	}
	client->unmapped[client->nunmapped++] = id;
	return 0;
}

int zc_segment_retire(struct zerod_client *client, uint32_t id, struct zd_err *err)
{
	struct zc_segment *segment = zc_segment_find(client, id);
	bool is_named;
	int rc;

	if (!segment)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon wants segment %u, which it never sent",
		                  id);
	rc = note_unmapped(client, id, err);
	if (rc)
		return rc;
	client->nretired++;
	zc_ranges_drop(client, id);
	HASH_DEL(client->segments, segment);
	unmap_segment(client, segment);
	pthread_mutex_lock(&client->page_lock);
	is_named = segment->nholds > 0; /* by a thread that is about to let go: the daemon's reply is older */
	pthread_mutex_unlock(&client->page_lock);
	if (is_named) {
		segment->next_retired = client->retired;
		client->retired = segment;
	} else {
		free_segment(segment);
	}
	return 0;
}

void zc_segments_free(struct zerod_client *client)
{
	struct zc_segment *segment = client->segments;

	zc_ranges_free(client);
	HASH_CLEAR(hh, client->segments); /* the elements stay chained in the order of their arrival */
	while (segment) {
		struct zc_segment *next = segment->hh.next;

		zerod_mapping_release(segment->mapping);
		if (segment->fd >= 0)
			(void)close(segment->fd);
		free_segment(segment);
		segment = next;
	}
	while ((segment = client->retired)) {
		client->retired = segment->next_retired;
		free_segment(segment);
	}
	free(client->unmapped);
	if (client->gpu_page && client->gpu_page != client->client_page)
		(void)munmap(client->gpu_page, PAGE_BYTES);
	if (client->client_page)
		(void)munmap(client->client_page, PAGE_BYTES);
	if (client->daemon_page)
		(void)munmap(client->daemon_page, PAGE_BYTES);
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
	void *map = mmap(NULL, segment->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
	                 segment->fd, 0);

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

int zc_location_map(struct zerod_client *client, const struct zc_location *location, void **data,
                    struct zd_err *err)
{
	struct zc_segment *segment = zc_segment_find(client, location->segment);
	int rc;

	if (!segment) /* checked when the location was received; another thread has released it since */
		return zd_err_set(err, ZEROD_E_STALE, "segment %u has gone back to its device",
		                  location->segment);
	if (!segment->map) {
		rc = segment->is_file ? map_segment(segment, err) : zc_cuda_segment_map(client, segment, err);
		if (rc)
			return rc;
		(void)close(segment->fd);
		segment->fd = -1;
	}
	*data = (uint8_t *)segment->map + location->offset;
	return 0;
}
