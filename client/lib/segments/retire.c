/* SPDX-License-Identifier: Apache-2.0 */
/* retire.c - the end of segments: of segments that the daemon retires, and of all with their connection. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <zerod_host.h>

#include "client/lib/segments/cuda_segment.h"

#define PAGE_BYTES ((size_t)ZD_FENCE_PAGE_BYTES)

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

static int retire(struct zerod_client *client, struct zc_segment *segment, struct zd_err *err)
{
	bool is_named;
	int rc = note_unmapped(client, segment->id, err);

	if (rc)
		return rc;
	zc_ranges_drop(client, segment->id);
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

int zc_segment_retire(struct zerod_client *client, uint32_t id, struct zd_err *err)
{
	struct zc_segment *segment = zc_segment_find(client, id);

	if (!segment)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon retires segment %u, which it never sent",
		                  id);
	client->nretired++;
	segment->is_retired = true;
	return segment->nmapped > 0 ? 0 : retire(client, segment, err);
}

int zc_segment_unread(struct zerod_client *client, struct zc_segment *segment, struct zd_err *err)
{
	return --segment->nmapped == 0 && segment->is_retired ? retire(client, segment, err) : 0;
}

void zc_segments_free(struct zerod_client *client)
{
	struct zc_segment *segment = client->segments;

	zc_ranges_free(client);
	HASH_CLEAR(hh, client->segments); /* the elements remain chained in the order of their arrival */
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
