/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.c - transfers: which copies fill a gathered buffer, and which fences say that they have.
 *
 * A shard of this daemon comes by a COPY of the device that has it. The rank's own shard may be left to its
 * client. Shards of other daemons come over the unit's rail (rail.c). Copies that something else has to
 * precede are promised, and begin later (deferred.h).
 */
#include <stdlib.h>

#include "core/deferred.h"
#include "core/gather.h"
#include "core/rail.h"

/* Where a group spans daemons its ranks' transfers belong together: when one fails, so does the group. */
static void transfer_failed(struct zd_engine *e, struct zd_buffer *buffer, uint32_t timeline, int status,
                            const char *error)
{
	/* Not whoever has taken its rank's place since. */
	struct zd_session *session = zd_session_find(e, buffer->session);
	struct zd_group *group = buffer->unit->group;
	struct zd_err err = ZD_ERR_NONE;
	buffer->stale = true;
	/* Its streams wait, though the copy may be released already; but a reset since has freed them. */
	if (session && session->resets == buffer->resets) {
		if (buffer->deferred)
			zd_deferred_break(e, session); /* the fences behind this one's, on its timeline */
		zd_session_abort(e, session, timeline);
	}
	if (!zd_gathers_over_rails(group) || buffer->connection != group->span->serial)
		return;
	status = zd_err_set(&err, status, "group '%.64s': a gather of unit '%.64s' by rank %u: %s",
	                    group->name, buffer->unit->name, zd_world_rank(zd_part_member(buffer->part)),
	                    error);
	zd_span_fail(e, group, status, err.text);
}

/* A reset may wait for the last one, in the queue of another group's device. */
static void member_transfer_over(struct zd_engine *e, const struct zd_buffer *buffer)
{
	struct zd_member *member = zd_part_member(buffer->part);
	const struct zd_group *group = member->group;
	if (!zd_gathers_over_rails(group) || buffer->connection != group->span->serial ||
	    --member->transfers > 0 || !member->session)
		return;
	zd_dirty_session(e, member->session);
}

void zd_buffer_arrived(struct zd_engine *e, struct zd_buffer *buffer, uint32_t timeline, int status,
                       const char *error)
{
	if (status != 0)
		transfer_failed(e, buffer, timeline, status, error);
	buffer->transfers--;
	member_transfer_over(e, buffer);
	if (buffer->transfers == 0 && buffer->state == ZD_BUFFER_INFLIGHT)
		zd_sm_move(&zd_sm_buffer, &buffer->state, ZD_BUFFER_AVAILABLE);
	zd_buffer_op_over(e, buffer);
}

static void transfer_done(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                          const struct zd_op_result *result)
{
	struct zd_buffer *buffer = op->owner;
	struct zd_part *source = &buffer->unit->parts[op->aux];
	(void)result;
	uint32_t timeline = buffer->deferred ? ZD_TIMELINE_DEFERRED : ZD_TIMELINE_COPIES;
	zd_buffer_arrived(e, buffer, timeline + source->shard.segment->device->index, status, error);
	zd_part_reader_done(e, source);
}

void zd_buffer_copy(struct zd_engine *e, struct zd_buffer *buffer, struct zd_part *source,
                    struct zd_signal signal)
{
	uint64_t bytes = zd_unit_shard_bytes(buffer->unit);
	struct zd_location dst = zd_extent_location(&buffer->extent);
	struct zd_command command = {.kind = ZD_CMD_COPY, .device = source->shard.segment->device->index};
	dst.offset += zd_shard_index(zd_part_member(source)) * bytes;
	dst.bytes = bytes;
	command.u.copy.src = zd_extent_location(&source->shard);
	command.u.copy.src.bytes = bytes;
	command.u.copy.dst_device = buffer->device->index;
	command.u.copy.dst = dst;
	command.signal = signal;
	zd_op_submit(e, buffer->unit->group->job, &command, transfer_done, buffer, source->rank);
}

static void copy_shard(struct zd_engine *e, struct zd_buffer *buffer, struct zd_part *source)
{
	struct zd_session *session = zd_part_member(buffer->part)->session;
	uint32_t timeline = ZD_TIMELINE_COPIES + source->shard.segment->device->index;
	source->readers++;
	buffer->transfers++;
	zd_buffer_copy(e, buffer, source,
	               (struct zd_signal){session->id, timeline, ++session->timeline[timeline]});
}

/* Every shard but one that is left to the client. */
static void copy_shards(struct zd_engine *e, struct zd_buffer *buffer, struct zd_timelines *timelines)
{
	struct zd_unit *unit = buffer->unit;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		struct zd_part *source = &unit->parts[rank];
		if (source == buffer->part && buffer->own_left)
			continue;
		copy_shard(e, buffer, source);
		zd_timelines_add(timelines, ZD_TIMELINE_COPIES + source->shard.segment->device->index);
	}
}

/* Is there something that the copies have to wait for. */
static bool is_early(const struct zd_buffer *buffer)
{
	const struct zd_unit *unit = buffer->unit;
	bool early = buffer->former;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++)
		early |= zd_deferred_comes(&unit->parts[rank], buffer->version);
	return early;
}

/* One fence a timeline is enough: what signals it ends in order. */
static void set_fences(struct zd_buffer *buffer, const struct zd_timelines *timelines)
{
	const struct zd_session *session = zd_part_member(buffer->part)->session;
	free(buffer->fences);
	buffer->nfences = 0;
	for (uint32_t i = 0; i < ZD_ARRAY_LEN(timelines->mask); i++)
		buffer->nfences += (uint32_t)__builtin_popcountll(timelines->mask[i]);
	buffer->fences = zd_calloc(buffer->nfences ? buffer->nfences : 1, sizeof(*buffer->fences));
	uint32_t n = 0;
	for (uint32_t i = 0; n < buffer->nfences; i++) {
		if (zd_timelines_has(timelines, i))
			buffer->fences[n++] = (struct zd_fence){i, session->timeline[i]};
	}
}

static bool is_left_to_client(const struct zd_engine *e, const struct zd_buffer *buffer)
{
	/* Ranks of several daemons begin the same transfers: none may depend on when a client had copied. */
	return !zd_gathers_over_rails(buffer->unit->group) && e->sink.client_copies_own &&
	       e->sink.client_copies_own(e->sink.arg, buffer->device->index,
	                                 zd_unit_shard_bytes(buffer->unit));
}

void zd_buffer_transfer(struct zd_engine *e, struct zd_buffer *buffer, uint64_t version)
{
	struct zd_unit *unit = buffer->unit;
	bool rails = zd_gathers_over_rails(unit->group);
	/* One exchange brings it all, the own shard too. */
	bool all = rails && (unit->group->span->exchange || unit->group->local_world_size == 1);
	const struct zd_session *session = zd_part_member(buffer->part)->session;
	struct zd_timelines timelines = {{0}};
	zd_assert(buffer->transfers == 0 && buffer->watches == 0);
	if (buffer->state == ZD_BUFFER_AVAILABLE)
		zd_sm_move(&zd_sm_buffer, &buffer->state, ZD_BUFFER_INFLIGHT);
	buffer->version = version;
	buffer->stale = false;
	buffer->deferred = is_early(buffer);
	/* A client would have to learn when it may begin to copy. */
	buffer->own_left = !buffer->deferred && is_left_to_client(e, buffer);
	buffer->own_copied = false;
	buffer->device->gathers++;
	e->gathers++;
	buffer->transfer = e->gathers;
	buffer->session = session->id;
	buffer->resets = session->resets;
	e->gathered_bytes_total += buffer->extent.bytes;
	if (buffer->deferred)
		zd_deferred_promise(e, buffer, &timelines);
	else if (!all)
		copy_shards(e, buffer, &timelines);
	if (rails) {
		buffer->connection = unit->group->span->serial;
		zd_rail_transfer(e, buffer, &timelines);
		zd_part_member(buffer->part)->transfers += buffer->transfers;
	}
	set_fences(buffer, &timelines);
	if (buffer->transfers == 0)
		zd_sm_move(&zd_sm_buffer, &buffer->state, ZD_BUFFER_AVAILABLE);
}
