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

static void count(const struct zd_extent *extent)
{
	if (!extent->segment)
		return;
	if (!extent->segment->is_candidate)
		extent->segment->prefetched_bytes = 0; /* counted before */
	zd_segment_set_candidate(extent->segment, true);
	extent->segment->prefetched_bytes += extent->bytes;
}

void zd_prefetches_count(struct zd_device *device)
{
	struct zd_segment *segment, *next;
	const struct zd_buffer *buffer;
	TAILQ_FOREACH_SAFE (segment, &device->candidates, candidate_link, next) {
		segment->prefetched_bytes = 0;
		/* The segment's only buffer was prefetched, and a gather has joined it since. */
		if (zd_purpose_is_single(segment->purpose) && !segment->offered &&
		    segment->state == ZD_SEGMENT_READY)
			zd_segment_set_candidate(segment, false);
	}
	TAILQ_FOREACH (buffer, &device->prefetched, use_link) {
		if (!is_idle_prefetch(buffer))
			continue;
		count(&buffer->space.low);
		count(&buffer->space.high);
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
