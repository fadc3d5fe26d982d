/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail.c - gathers of groups that span daemons.
 *
 * A landing is known from the moment its transfer begins until all local ranks have taken from it, and holds
 * its buffer for so long. Nothing is lost when a rank is far behind: the others wait for it only when they
 * want the memory back.
 */
#include <stdio.h>

#include "core/gather.h"
#include "core/rail.h"

struct zd_rail *zd_rail_new(void)
{
	struct zd_rail *rail = zd_calloc(1, sizeof(*rail));
	TAILQ_INIT(&rail->landings);
	return rail;
}

void zd_rail_free(struct zd_rail *rail)
{
	zd_assert(!rail || TAILQ_EMPTY(&rail->landings));
	free(rail);
}

/* ---- Landings ------------------------------------------------------------------------------------------ */

static struct zd_landing *landing_find(const struct zd_part *part, uint64_t ordinal)
{
	struct zd_landing *landing;
	TAILQ_FOREACH (landing, &part->rail->landings, link) {
		if (landing->ordinal == ordinal)
			return landing;
	}
	return NULL;
}

static void landing_new(struct zd_buffer *buffer, uint32_t takers)
{
	struct zd_rail *rail = buffer->part->rail;
	struct zd_landing *landing;
	if (takers == 0)
		return;
	landing = zd_calloc(1, sizeof(*landing));
	landing->buffer = buffer;
	landing->ordinal = buffer->ordinal;
	landing->version = buffer->version;
	landing->left = takers;
	TAILQ_INSERT_TAIL(&rail->landings, landing, link);
	zd_buffer_watch(buffer);
}

static void landing_try_end(struct zd_engine *e, struct zd_landing *landing)
{
	struct zd_buffer *buffer = landing->buffer;
	if (landing->left > 0 || landing->copies > 0)
		return;
	TAILQ_REMOVE(&buffer->part->rail->landings, landing, link);
	free(landing);
	zd_buffer_unwatch(e, buffer);
}

/* ---- Onward -------------------------------------------------------------------------------------------- */

static void onward_copied(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                          const struct zd_op_result *result)
{
	struct zd_onward *onward = op->owner;
	struct zd_buffer *buffer = onward->buffer;
	struct zd_landing *landing = onward->landing;
	uint32_t timeline = ZD_TIMELINE_ONWARD + landing->buffer->device->index;
	(void)result;
	landing->copies--;
	landing_try_end(e, landing);
	if (--onward->copies == 0)
		free(onward);
	zd_buffer_arrived(e, buffer, timeline, status, error);
}

/* One copy for each of the other nodes. */
static void onward_give(struct zd_engine *e, struct zd_onward *onward, struct zd_landing *landing)
{
	struct zd_buffer *buffer = onward->buffer;
	const struct zd_group *group = buffer->unit->group;
	const struct zd_member *from = zd_part_member(onward->source);
	uint32_t nodes = group->span->nranks, own = zd_span_rank(from);
	uint64_t bytes = zd_unit_shard_bytes(buffer->unit), value = onward->value;
	onward->landing = landing;
	landing->left--;
	for (uint32_t node = 0; node < nodes; node++) {
		struct zd_command command = {.kind = ZD_CMD_COPY, .device = from->device->index};
		uint64_t at = (node * group->local_world_size + from->rank) * bytes;
		if (node == own)
			continue;
		command.u.copy.src = zd_extent_location(&landing->buffer->extent);
		command.u.copy.dst = zd_extent_location(&buffer->extent);
		command.u.copy.src.offset += at;
		command.u.copy.dst.offset += at;
		command.u.copy.src.bytes = command.u.copy.dst.bytes = bytes;
		command.u.copy.dst_device = buffer->device->index;
		command.signal.session = zd_part_member(buffer->part)->session->id;
		command.signal.timeline = ZD_TIMELINE_ONWARD + from->device->index;
		command.signal.value = value++;
		landing->copies++;
		zd_op_submit(e, group->job, &command, onward_copied, onward, 0);
	}
}

/* It will not come: who waits for it is freed. */
static void onward_fail(struct zd_engine *e, struct zd_onward *onward, const char *why)
{
	struct zd_buffer *buffer = onward->buffer;
	struct zd_landing *landing = landing_find(onward->source, onward->ordinal);
	uint32_t timeline = ZD_TIMELINE_ONWARD + zd_part_member(onward->source)->device->index;
	if (landing) {
		landing->left--;
		landing_try_end(e, landing);
	}
	for (uint32_t left = onward->copies; left > 0; left--)
		zd_buffer_arrived(e, buffer, timeline, ZEROD_E_PEER_LOST, why);
	free(onward);
}

/* All ranks gather in one order, so what has landed is what is wanted. */
static void onward_differs(struct zd_engine *e, const struct zd_onward *onward,
                           const struct zd_landing *landing)
{
	const struct zd_unit *unit = onward->buffer->unit;
	struct zd_err err = ZD_ERR_NONE;
	int status = zd_err_set(
	        &err, ZEROD_E_MISMATCH,
	        "unit '%.64s': rank %u gathers version %llu where rank %u gathers version %llu", unit->name,
	        zd_world_rank(zd_part_member(onward->buffer->part)),
	        (unsigned long long)onward->buffer->version, zd_world_rank(zd_part_member(onward->source)),
	        (unsigned long long)landing->version);
	zd_span_fail(e, unit->group, status, err.text);
}

/* Gives what has landed, in the order of its fences. */
static void onwards_try(struct zd_engine *e, struct zd_session *session)
{
	struct zd_onward *onward, *next;
	uint64_t behind = 0; /* source devices with one that has not landed */
	TAILQ_FOREACH_SAFE (onward, &session->onwards, link, next) {
		uint64_t device = 1ull << zd_part_member(onward->source)->device->index;
		struct zd_landing *landing = landing_find(onward->source, onward->ordinal);
		if (behind & device)
			continue;
		if (!landing || !landing->landed) {
			behind |= device;
			continue;
		}
		if (landing->version != onward->buffer->version) {
			onward_differs(e, onward, landing);
			return;
		}
		TAILQ_REMOVE(&session->onwards, onward, link);
		onward_give(e, onward, landing);
	}
}

static void onward_new(struct zd_session *session, struct zd_buffer *buffer, struct zd_part *source)
{
	uint32_t timeline = ZD_TIMELINE_ONWARD + zd_part_member(source)->device->index;
	struct zd_onward *onward = zd_calloc(1, sizeof(*onward));
	onward->buffer = buffer;
	onward->source = source;
	onward->ordinal = buffer->ordinal;
	onward->copies = buffer->unit->group->span->nranks - 1;
	onward->value = session->timeline[timeline] + 1;
	session->timeline[timeline] += onward->copies;
	buffer->transfers += onward->copies;
	TAILQ_INSERT_TAIL(&session->onwards, onward, link);
}

/* Something has landed, or what others were behind is no more. */
static void onwards_try_all(struct zd_engine *e, const struct zd_group *group)
{
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		if (group->members[rank].session)
			onwards_try(e, group->members[rank].session);
	}
}

/* ---- Transfers ----------------------------------------------------------------------------------------- */

/* The other local ranks may take what came. */
static void landed(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_landing *landing;
	TAILQ_FOREACH (landing, &buffer->part->rail->landings, link) {
		if (landing->buffer == buffer)
			landing->landed = true;
	}
	onwards_try_all(e, buffer->unit->group);
}

/* Nothing comes into the buffer any more: who was to take from there is freed. Where the group has not ended
 * before, in order, all are already. */
static void lost(struct zd_engine *e, struct zd_part *part, const struct zd_buffer *buffer)
{
	struct zd_group *group = part->unit->group;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_session *session = group->members[rank].session;
		struct zd_onward *onward, *next;
		if (!session)
			continue;
		TAILQ_FOREACH_SAFE (onward, &session->onwards, link, next) {
			struct zd_landing *landing = landing_find(onward->source, onward->ordinal);
			if (!landing || landing->buffer != buffer)
				continue;
			TAILQ_REMOVE(&session->onwards, onward, link);
			onward_fail(e, onward, "what it was to take did not come");
		}
	}
	onwards_try_all(e, group);
}

static void exchanged(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                      const struct zd_op_result *result)
{
	struct zd_buffer *buffer = op->owner;
	struct zd_part *part = buffer->part;
	(void)result;
	if (status == 0)
		landed(e, buffer);
	part->unit->refs++; /* the buffer may be its last */
	zd_buffer_arrived(e, buffer, ZD_TIMELINE_EXCHANGE + (uint32_t)op->aux, status, error);
	if (status != 0)
		lost(e, part, buffer);
	zd_part_reader_done(e, part);
	zd_unit_unref(e, part->unit);
}

static void exchange(struct zd_engine *e, struct zd_buffer *buffer, struct zd_session *session)
{
	const struct zd_unit *unit = buffer->unit;
	const struct zd_group *group = unit->group;
	struct zd_part *part = buffer->part;
	uint32_t device = buffer->device->index, timeline = ZD_TIMELINE_EXCHANGE + device;
	uint64_t bytes = zd_unit_shard_bytes(unit);
	char what[ZD_WHAT_TEXT];
	struct zd_command command = {.kind = ZD_CMD_EXCHANGE, .device = device};
	(void)snprintf(what, sizeof(what), "gather of version %llu of '%s'",
	               (unsigned long long)buffer->version, unit->name);
	command.u.exchange = (struct zd_exchange_desc){
	        .comm = zd_part_member(part)->comm[ZD_COMM_GATHERS],
	        .bytes = bytes,
	        .send = zd_part_location(part),
	        .receive = zd_extent_location(&buffer->extent),
	        .receive_stride = bytes,
	        .what = what,
	};
	if (!group->span->exchange) {
		command.u.exchange.receive.offset += part->rank * bytes;
		command.u.exchange.receive.bytes -= part->rank * bytes;
		command.u.exchange.receive_stride = group->local_world_size * bytes;
	}
	command.signal = (struct zd_signal){session->id, timeline, ++session->timeline[timeline]};
	part->readers++;
	buffer->transfers++;
	zd_op_submit(e, group->job, &command, exchanged, buffer, device);
}

void zd_rail_transfer(struct zd_engine *e, struct zd_buffer *buffer, struct zd_timelines *timelines)
{
	const struct zd_group *group = buffer->unit->group;
	struct zd_session *session = zd_part_member(buffer->part)->session;
	buffer->ordinal = ++buffer->part->rail->begun;
	zd_dirty(e, buffer->device); /* who had gathered it before may go on */
	exchange(e, buffer, session);
	zd_timelines_add(timelines, ZD_TIMELINE_EXCHANGE + buffer->device->index);
	if (group->span->exchange)
		return;
	landing_new(buffer, group->local_world_size - 1);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_part *source = &buffer->unit->parts[rank];
		if (source == buffer->part)
			continue;
		onward_new(session, buffer, source);
		zd_timelines_add(timelines, ZD_TIMELINE_ONWARD + zd_part_member(source)->device->index);
	}
	onwards_try(e, session);
}

/* ---- Who is behind ------------------------------------------------------------------------------------- */

/* A rank whose transfer that takes from the landing has not begun; else local_world_size. */
static uint32_t first_behind(const struct zd_unit *unit, const struct zd_landing *landing)
{
	uint32_t rank = 0;
	while (rank < unit->group->local_world_size && unit->parts[rank].rail->begun >= landing->ordinal)
		rank++;
	return rank;
}

uint32_t zd_rail_first_to_follow(const struct zd_part *part)
{
	const struct zd_group *group = part->unit->group;
	const struct zd_landing *landing;
	/* No rank can gather a version that was never published, so no rank is awaited for it. */
	if (!zd_gathers_over_rails(group) || group->state != ZD_GROUP_READY || zd_part_is_unpublished(part))
		return group->local_world_size;
	TAILQ_FOREACH (landing, &part->rail->landings, link) {
		uint32_t rank = first_behind(part->unit, landing);
		if (landing->version == part->version && rank < group->local_world_size)
			return rank;
	}
	return group->local_world_size;
}

bool zd_rail_follows(const struct zd_part *part)
{
	const struct zd_group *group = part->unit->group;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		if (group->members[rank].device == zd_part_member(part)->device &&
		    part->unit->parts[rank].rail->begun > part->rail->begun)
			return true;
	}
	return false;
}

/* One on the copy's device that has not gathered what it is of. */
static const struct zd_member *find_follower(const struct zd_buffer *buffer)
{
	const struct zd_unit *unit = buffer->unit;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		if (unit->group->members[rank].device == buffer->device &&
		    unit->parts[rank].rail->begun < buffer->ordinal)
			return &unit->group->members[rank];
	}
	return NULL;
}

const struct zd_member *zd_rail_find_follower(const struct zd_session *session,
                                              const struct zd_device *device, const struct zd_unit **unit)
{
	const struct zd_buffer *buffer;
	TAILQ_FOREACH (buffer, &device->buffers, device_link) {
		const struct zd_group *group = buffer->unit->group;
		const struct zd_member *follower;
		if (buffer->state != ZD_BUFFER_QUARANTINED ||
		    zd_part_member(buffer->part)->session != session || !zd_gathers_over_rails(group) ||
		    group->state != ZD_GROUP_READY)
			continue;
		follower = find_follower(buffer);
		*unit = buffer->unit;
		if (follower)
			return follower;
	}
	return NULL;
}

/* ---- The end ------------------------------------------------------------------------------------------- */

static void onwards_stop(struct zd_engine *e, const struct zd_group *group, struct zd_member *owner,
                         const struct zd_member *only)
{
	struct zd_onward *onward, *next;
	TAILQ_FOREACH_SAFE (onward, &owner->session->onwards, link, next) {
		if (onward->buffer->unit->group != group)
			continue;
		if (only && only != owner && landing_find(onward->source, onward->ordinal))
			continue; /* it is on its way */
		TAILQ_REMOVE(&owner->session->onwards, onward, link);
		onward_fail(e, onward, "the group has ended");
	}
}

/* How many will still take from it. */
static uint32_t takers(const struct zd_group *group, const struct zd_landing *landing)
{
	const struct zd_onward *onward;
	uint32_t n = 0;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_session *session = group->members[rank].session;
		if (!session)
			continue;
		TAILQ_FOREACH (onward, &session->onwards, link) {
			/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what is freed is in no list */
			n += landing_find(onward->source, onward->ordinal) == landing;
		}
	}
	return n;
}

static void landings_stop(struct zd_engine *e, struct zd_group *group, struct zd_unit *unit)
{
	struct zd_landing *landing, *next;
	unit->refs++; /* the last landing's buffer may be its last */
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		TAILQ_FOREACH_SAFE (landing, &unit->parts[rank].rail->landings, link, next) {
			landing->left = takers(group, landing);
			landing_try_end(e, landing);
		}
	}
	zd_unit_unref(e, unit);
}

void zd_rails_stop(struct zd_engine *e, struct zd_group *group, struct zd_member *member)
{
	struct zd_unit *unit, *next;
	if (!zd_gathers_over_rails(group))
		return;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		if (group->members[rank].session)
			onwards_stop(e, group, &group->members[rank], member);
	}
	HASH_ITER (hh_name, group->units, unit, next)
		landings_stop(e, group, unit);
	HASH_ITER (hh_name, group->former, unit, next)
		landings_stop(e, group, unit);
	onwards_try_all(e, group); /* of other groups too */
}

/* ---- The beginning ------------------------------------------------------------------------------------- */

static void level(const struct zd_unit *unit)
{
	uint64_t begun = 0;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++)
		begun = zd_max_u64(begun, unit->parts[rank].rail->begun);
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++)
		unit->parts[rank].rail->begun = begun;
}

void zd_rails_start(struct zd_group *group)
{
	const struct zd_unit *unit;
	if (!zd_gathers_over_rails(group))
		return;
	for (unit = group->units; unit; unit = unit->hh_name.next)
		level(unit);
	for (unit = group->former; unit; unit = unit->hh_name.next)
		level(unit);
}
