/* SPDX-License-Identifier: Apache-2.0 */
/* prefetch.c - prefetched buffers whose memory can be reused, for memory/retire.c. */
#include "core/gather/buffer.h"
#include "core/gather/collective.h"
#include "core/gather/gather.h"

/* Whether the buffer can be dropped completely: no transfer fills or reads it, it has no slot, whose block
 * would remain, and no ranks of other daemons have gathered it. */
static bool is_idle_prefetch(const struct zd_buffer *buffer)
{
	return buffer->state == ZD_BUFFER_AVAILABLE && buffer->watches == 0 && !buffer->slot &&
	       !zd_buffer_is_shared(buffer);
}

void zd_buffer_evict(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_event *event = zd_event_of(e, ZD_EVENT_EVICT, zd_part_member(buffer->part));
	event->object = buffer->unit->id;
	event->bytes = zd_buffer_bytes(buffer);
	zd_buffer_drop(e, buffer);
}

static void add(struct zd_device *device, const struct zd_extent *extent)
{
	struct zd_segment *segment = extent->segment;
	if (!segment)
		return;
	if (!segment->has_prefetched)
		TAILQ_INSERT_TAIL(&device->with_prefetched, segment, prefetched_link);
	segment->has_prefetched = true;
	segment->prefetched_bytes += extent->bytes;
}

void zd_prefetches_list(struct zd_device *device)
{
	const struct zd_buffer *buffer;
	while (!TAILQ_EMPTY(&device->with_prefetched))
		zd_segment_unlist_prefetched(TAILQ_FIRST(&device->with_prefetched));
	TAILQ_FOREACH (buffer, &device->prefetched, use_link) {
		if (!is_idle_prefetch(buffer))
			continue;
		add(device, &buffer->space.low);
		add(device, &buffer->space.high);
	}
}

void zd_prefetches_drop(struct zd_engine *e, struct zd_segment *segment)
{
	struct zd_buffer *buffer, *next;
	TAILQ_FOREACH_SAFE (buffer, &segment->device->prefetched, use_link, next) {
		if (buffer->space.low.segment == segment || buffer->space.high.segment == segment)
			zd_buffer_evict(e, buffer);
	}
}
