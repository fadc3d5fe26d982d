/* SPDX-License-Identifier: Apache-2.0 */
/*
 * range.c - gathered buffers in place: two frames, with the rank's own shard between them.
 *
 * A range of addresses has the three segments side by side, each mapped whole and a second time. It is
 * created when such a buffer is opened first, and remains: a gather into the same frames needs no system
 * call. A range ends with the first of its segments that retires. By then no buffer is in the frames, or no
 * stream reads the shard any more. The range is therefore not in use.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <zerod_host.h>

#include "client/lib/segments/cuda_segment.h"
#include "client/lib/segments/mapping.h"

/* A range of a GPU is unmapped with its segments when the client ends. */
static void range_free(struct zerod_client *client, struct zc_range *range)
{
	if (range->mapping)
		zerod_mapping_release(range->mapping);
	else
		zc_cuda_range_unmap(client, range);
	free(range);
}

static bool has_segment(const struct zc_range *range, uint32_t segment)
{
	for (unsigned i = 0; i < ZC_RANGE_PARTS; i++)
		if (range->segments[i] == segment)
			return true;
	return false;
}

void zc_ranges_drop(struct zerod_client *client, uint32_t segment)
{
	struct zc_range *range, *next;

	/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what is freed is not in the table */
	HASH_ITER (hh, client->ranges, range, next) {
		if (!has_segment(range, segment))
			continue;
		HASH_DEL(client->ranges, range);
		range_free(client, range);
	}
}

void zc_ranges_free(struct zerod_client *client)
{
	struct zc_range *range, *next;

	/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what is freed is not in the table */
	HASH_ITER (hh, client->ranges, range, next) {
		HASH_DEL(client->ranges, range);
		range_free(client, range);
	}
}

/* A second mapping of shared memory is made by a move of no bytes: mremap(2). */
static int map_host(struct zc_range *range, struct zc_segment *const *segments, struct zd_err *err)
{
	uint8_t *base = mmap(NULL, range->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
	                     0);
	uint8_t *at = base;

	if (base == MAP_FAILED)
		return zd_err_errno(err, errno, "reserving %llu bytes of addresses",
		                    (unsigned long long)range->bytes);
	for (unsigned i = 0; i < ZC_RANGE_PARTS; i++) {
		if (!segments[i])
			continue;
		if (mremap(segments[i]->map, 0, segments[i]->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) ==
		    MAP_FAILED) {
			int rc = zd_err_errno(err, errno, "mapping segment %u into a gathered buffer",
			                      segments[i]->id);

			(void)munmap(base, range->bytes);
			return rc;
		}
		at += segments[i]->bytes;
	}
	range->mapping = zc_mapping_new(base, range->bytes);
	range->map = base;
	if (range->mapping)
		return 0;
	(void)munmap(base, range->bytes);
	return zd_err_errno(err, ENOMEM, "mapping a gathered buffer");
}

static int map_parts(struct zerod_client *client, const struct zc_frames *frames, struct zc_range *range,
                     struct zd_err *err)
{
	const struct zc_location *parts[ZC_RANGE_PARTS] = {&frames->low, &frames->own, &frames->high};
	struct zc_segment *segments[ZC_RANGE_PARTS] = {NULL};
	void *data;

	for (unsigned i = 0; i < ZC_RANGE_PARTS; i++) {
		int rc = parts[i]->segment ? zc_location_map(client, parts[i], &data, err) : 0;

		if (rc)
			return rc;
		if (!parts[i]->segment)
			continue;
		segments[i] = zc_segment_find(client, parts[i]->segment);
		range->bytes += segments[i]->bytes;
	}
	zd_assert(segments[1]); /* its location was checked */
	return segments[1]->is_file ? map_host(range, segments, err)
	                            : zc_cuda_range_map(client, range, segments, err);
}

static int make(struct zerod_client *client, const struct zc_frames *frames, struct zc_range **made,
                struct zd_err *err)
{
	struct zc_range *range = calloc(1, sizeof(*range));
	int rc;

	if (!range)
		return zd_err_errno(err, ENOMEM, "mapping a gathered buffer");
	range->segments[0] = frames->low.segment;
	range->segments[1] = frames->own.segment;
	range->segments[2] = frames->high.segment;
	rc = map_parts(client, frames, range, err);
	if (rc) {
		free(range);
		return rc;
	}
	HASH_ADD(hh, client->ranges, segments, sizeof(range->segments), range);
	if (!range->hh.tbl) {
		range_free(client, range);
		return zd_err_errno(err, ENOMEM, "mapping a gathered buffer");
	}
	*made = range;
	return 0;
}

int zc_range_map(struct zerod_client *client, const struct zc_frames *frames, void **data, struct zd_err *err)
{
	const uint32_t key[ZC_RANGE_PARTS] = {frames->low.segment, frames->own.segment, frames->high.segment};
	struct zc_range *range;
	int rc = 0;

	/* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): all of the key is set */
	HASH_FIND(hh, client->ranges, key, sizeof(key), range);
	if (!range)
		rc = make(client, frames, &range, err);
	if (!rc)
		*data = (uint8_t *)range->map + frames->low.offset;
	return rc;
}
