/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_rail_gathers.c - the planner of gathers across several daemons, and of gathers by exchanges alone.
 *
 * An EXCHANGE on the rank's rail transfers the shards of the ranks with the same local index in the other
 * daemons, directly into the buffer. The shards of this daemon's ranks are copied (plan_copies.c). Shards
 * that other local ranks receive over their rails are relayed: copied from these ranks' buffers, the Nth
 * transfer of a unit from the Nth (collective.h). If all ranks are on one rail, its exchange transfers all
 * shards.
 *
 *   COPY of each local shard      EXCHANGE      RELAY from each other local rank, of each other node's shard
 *
 * A buffer is a relay source, and remains allocated, from the start of its transfer until all local ranks
 * have copied from it. The other ranks therefore wait for a slow rank only when they need the memory of these
 * buffers. The relays of one session from one device run in the order of their fences, because they signal
 * one timeline. A relay depends on one event: its source's exchange is complete, and the session's earlier
 * relays from that device have been run. The event concerns several plans, and the steps of one plan cannot
 * express it: relays_try() finds the relays that may run.
 */
#include <stdio.h>

#include "core/cluster/cluster.h"
#include "core/gather/buffer.h"
#include "core/gather/collective.h"
#include "core/gather/gather.h"
#include "core/gather/transfer.h"

/* Whether the exchange fills the whole buffer, the rank's own shard included. */
static bool exchanges_all(const struct zd_group *group)
{
	return group->cluster->nccl_collectives || group->local_world_size == 1;
}

/* ---- Relay sources ------------------------------------------------------------------------------------- */

static struct zd_buffer *source_find(const struct zd_buffer *taker, const struct zd_plan_step *step)
{
	struct zd_buffer *source;
	TAILQ_FOREACH (source, &taker->unit->parts[step->source].collective->sources, relay.source_link) {
		if (source->relay.ordinal == taker->relay.ordinal)
			return source;
	}
	return NULL;
}

static void source_try_end(struct zd_engine *e, struct zd_buffer *source)
{
	if (source->relay.expected > 0 || source->relay.running > 0)
		return;
	TAILQ_REMOVE(&source->part->collective->sources, source, relay.source_link);
	zd_buffer_unwatch(e, source);
}

/* ---- Relays -------------------------------------------------------------------------------------------- */

static bool is_waiting_relay(const struct zd_plan_step *step)
{
	return step->kind == ZD_TRANSFER_RELAY && step->state == ZD_PLAN_WAITING;
}

uint32_t zd_relays_waiting(const struct zd_buffer *buffer, uint32_t rank)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < buffer->plan.nsteps; i++)
		n += is_waiting_relay(&buffer->plan.steps[i]) && buffer->plan.steps[i].source == rank;
	return n;
}

/* Called when the step is about to run or to fail. */
static void relay_leaves_queue(struct zd_session *session, struct zd_buffer *buffer)
{
	if (--buffer->relay.waiting == 0)
		TAILQ_REMOVE(&session->relaying, buffer, relay.taker_link);
}

void zd_transfer_run_relay(struct zd_engine *e, struct zd_buffer *buffer, struct zd_plan_step *step)
{
	const struct zd_group *group = buffer->unit->group;
	const struct zd_buffer *source = step->memory;
	uint32_t index = step->index * group->local_world_size + step->source;
	struct zd_command command = {.kind = ZD_CMD_COPY, .device = source->device->index};
	command.u.copy.src = zd_buffer_slice(source, index);
	command.u.copy.dst = zd_buffer_slice(buffer, index);
	command.u.copy.dst_device = buffer->device->index;
	zd_transfer_submit(e, buffer, step, &command);
}

void zd_transfer_relay_ended(struct zd_engine *e, struct zd_plan_step *step)
{
	struct zd_buffer *source = step->memory;
	source->relay.running--;
	source_try_end(e, source);
}

static void relay_fail(struct zd_engine *e, struct zd_session *session, struct zd_buffer *buffer,
                       struct zd_plan_step *step)
{
	struct zd_buffer *source = source_find(buffer, step);
	if (source) {
		source->relay.expected--;
		source_try_end(e, source);
	}
	relay_leaves_queue(session, buffer);
	zd_plan_fail(e, &buffer->plan, step, ZEROD_E_PEER_LOST, "the group has ended");
}

/* Fails the buffer's relays that were not run. If `rank` is not ZD_PLAN_NOBODY, fails only relays from that
 * rank. With `keep_sourced`, relays whose source exists remain, because they can still be run. */
static void relays_fail(struct zd_engine *e, struct zd_session *session, struct zd_buffer *buffer,
                        uint32_t rank, bool keep_sourced)
{
	for (uint32_t i = 0, left = buffer->relay.waiting; left > 0; i++) {
		struct zd_plan_step *step = &buffer->plan.steps[i];
		if (!is_waiting_relay(step))
			continue;
		left--;
		if (rank != ZD_PLAN_NOBODY && rank != step->source)
			continue;
		if (!keep_sourced || !source_find(buffer, step))
			relay_fail(e, session, buffer, step); /* the last relay can free the buffer */
	}
}

/* Fails the group: all ranks gather in one order, and the source must therefore have the wanted version. */
static void source_differs(struct zd_engine *e, const struct zd_buffer *buffer,
                           const struct zd_buffer *source)
{
	struct zd_err err = ZD_ERR_NONE;
	int status =
	        zd_err_set(&err, ZEROD_E_MISMATCH,
	                   "unit '%.64s': rank %u gathers version %llu where rank %u gathers version %llu",
	                   buffer->unit->name, zd_world_rank(zd_part_member(buffer->part)),
	                   (unsigned long long)buffer->version, zd_world_rank(zd_part_member(source->part)),
	                   (unsigned long long)source->version);
	zd_cluster_fail(e, buffer->unit->group, status, err.text);
}

/* Runs the buffer's relays that may run. `behind` has a bit for each source device with an earlier relay that
 * may not run yet. Returns false when the group has ended. */
static bool relays_run(struct zd_engine *e, struct zd_session *session, struct zd_buffer *buffer,
                       uint64_t *behind)
{
	for (uint32_t i = 0, left = buffer->relay.waiting; left > 0; i++) {
		struct zd_plan_step *step = &buffer->plan.steps[i];
		uint64_t device = 1ull << buffer->unit->group->members[step->source].device->index;
		if (!is_waiting_relay(step))
			continue;
		left--;
		if (*behind & device)
			continue;
		struct zd_buffer *source = source_find(buffer, step);
		if (!source || source->phase != ZD_PHASE_EXCHANGED) {
			*behind |= device;
			continue;
		}
		if (source->version != buffer->version) {
			source_differs(e, buffer, source);
			return false;
		}
		source->relay.expected--;
		source->relay.running++;
		step->memory = source;
		relay_leaves_queue(session, buffer);
		zd_plan_satisfy(e, &buffer->plan, i);
	}
	return true;
}

static void relays_try(struct zd_engine *e, struct zd_session *session)
{
	struct zd_buffer *buffer, *next;
	uint64_t behind = 0;
	TAILQ_FOREACH_SAFE (buffer, &session->relaying, relay.taker_link, next) {
		if (!relays_run(e, session, buffer, &behind))
			return;
	}
}

static void relays_try_all(struct zd_engine *e, const struct zd_group *group)
{
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		if (group->members[rank].session)
			relays_try(e, group->members[rank].session);
	}
}

/* ---- Exchanges ----------------------------------------------------------------------------------------- */

void zd_transfer_run_exchange(struct zd_engine *e, struct zd_buffer *buffer, struct zd_plan_step *step)
{
	const struct zd_unit *unit = buffer->unit;
	const struct zd_group *group = unit->group;
	const struct zd_part *part = buffer->part;
	uint64_t bytes = zd_unit_shard_bytes(unit);
	char what[ZD_WHAT_TEXT];
	struct zd_command command = {.kind = ZD_CMD_EXCHANGE, .device = buffer->device->index};
	(void)snprintf(what, sizeof(what), "gather of version %llu of '%s'",
	               (unsigned long long)buffer->version, unit->name);
	command.u.exchange = (struct zd_exchange_desc){
	        .comm = zd_part_member(part)->comm[ZD_COMM_GATHERS],
	        .bytes = bytes,
	        .send = zd_part_location(part),
	        .receive = zd_buffer_low(buffer),
	        .receive_stride = bytes,
	        .what = what,
	};
	if (!group->cluster->nccl_collectives) {
		command.u.exchange.receive.offset += part->rank * bytes;
		command.u.exchange.receive.bytes -= part->rank * bytes;
		command.u.exchange.receive_stride = group->local_world_size * bytes;
	}
	zd_transfer_submit(e, buffer, step, &command);
}

void zd_transfer_exchanged(struct zd_engine *e, struct zd_buffer *buffer)
{
	zd_sm_move(&zd_sm_transfer, &buffer->phase, ZD_PHASE_EXCHANGED);
	relays_try_all(e, buffer->unit->group);
}

/* Fails the relays from a source whose exchange has failed. Such relays remain only if a rank has left the
 * group in order: the failure of a connected group has failed all relays before. */
static void relays_from_fail(struct zd_engine *e, const struct zd_buffer *source)
{
	struct zd_group *group = source->unit->group;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_session *session = group->members[rank].session;
		struct zd_buffer *buffer, *next;
		if (!session)
			continue;
		TAILQ_FOREACH_SAFE (buffer, &session->relaying, relay.taker_link, next) {
			if (buffer->unit == source->unit && buffer->relay.ordinal == source->relay.ordinal)
				relays_fail(e, session, buffer, source->part->rank, false);
		}
	}
	relays_try_all(e, group);
}

/* ---- The planner --------------------------------------------------------------------------------------- */

static uint32_t max_steps(const struct zd_engine *e, const struct zd_buffer *buffer)
{
	const struct zd_group *group = buffer->unit->group;
	uint32_t local = group->local_world_size;
	(void)e;
	return exchanges_all(group) ? 1 : local + 1 + (local - 1) * (group->cluster->nranks - 1);
}

/* For each other local rank, adds a relay of each other node's shard, in the order of nodes. */
static void add_relays(struct zd_session *session, struct zd_buffer *buffer)
{
	const struct zd_group *group = buffer->unit->group;
	uint32_t own_node = zd_cluster_rank(zd_part_member(buffer->part));
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		uint32_t timeline = ZD_TIMELINE_RELAYS + group->members[rank].device->index;
		for (uint32_t node = 0; node < group->cluster->nranks; node++) {
			struct zd_plan_step step = {.kind = ZD_TRANSFER_RELAY, .source = rank, .index = node};
			if (rank == buffer->part->rank || node == own_node)
				continue;
			step.waits = 1;
			zd_transfer_add(buffer, step, timeline);
			buffer->relay.waiting++;
		}
	}
	TAILQ_INSERT_TAIL(&session->relaying, buffer, relay.taker_link);
}

static void build(struct zd_engine *e, struct zd_buffer *buffer)
{
	const struct zd_group *group = buffer->unit->group;
	struct zd_part *part = buffer->part;
	struct zd_member *member = zd_part_member(part);
	struct zd_plan_step exchange = {.kind = ZD_TRANSFER_EXCHANGE, .source = part->rank};
	buffer->connection = group->cluster->serial;
	buffer->relay.ordinal = ++part->collective->begun;
	/* Requests of ranks that began this transfer earlier can wait until this rank has begun it. */
	zd_dirty(e, buffer->device);
	if (!exchanges_all(group))
		zd_transfer_add_copies(buffer);
	part->readers++;
	zd_transfer_add(buffer, exchange, ZD_TIMELINE_EXCHANGE + buffer->device->index);
	if (!exchanges_all(group)) {
		buffer->relay.expected = (group->local_world_size - 1) * (group->cluster->nranks - 1);
		TAILQ_INSERT_TAIL(&part->collective->sources, buffer, relay.source_link);
		buffer->watches++;
		add_relays(member->session, buffer);
	}
	member->transfers += buffer->plan.nsteps;
}

static void started(struct zd_engine *e, struct zd_buffer *buffer)
{
	relays_try(e, zd_part_member(buffer->part)->session);
}

static bool is_connected(const struct zd_buffer *buffer)
{
	return buffer->connection == buffer->unit->group->cluster->serial;
}

/* The transfers of all ranks depend on each other: if one fails, the group fails. */
static void failed(struct zd_engine *e, struct zd_buffer *buffer, const struct zd_plan_step *step, int status,
                   const char *error)
{
	struct zd_group *group = buffer->unit->group;
	struct zd_err err = ZD_ERR_NONE;
	if (is_connected(buffer)) {
		status = zd_err_set(&err, status, "group '%.64s': a gather of unit '%.64s' by rank %u: %s",
		                    group->name, buffer->unit->name,
		                    zd_world_rank(zd_part_member(buffer->part)), error);
		zd_cluster_fail(e, group, status, err.text);
	}
	if (step->kind == ZD_TRANSFER_EXCHANGE)
		relays_from_fail(e, buffer);
}

/* A session reset can wait for the last step, in the queue of another group's device. */
static void step_over(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_member *member = zd_part_member(buffer->part);
	if (is_connected(buffer) && --member->transfers == 0 && member->session)
		zd_dirty_session(e, member->session);
}

const struct zd_gather_planner zd_plan_rail_gathers = {
        .max_steps = max_steps,
        .build = build,
        .started = started,
        .failed = failed,
        .step_over = step_over,
};

/* ---- The end of a group -------------------------------------------------------------------------------- */

/* Counts the relays that will still be run from the source. */
static uint32_t count_expected(const struct zd_group *group, const struct zd_buffer *source)
{
	uint32_t n = 0;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_session *session = group->members[rank].session;
		const struct zd_buffer *buffer;
		if (!session)
			continue;
		TAILQ_FOREACH (buffer, &session->relaying, relay.taker_link) {
			if (buffer->unit == source->unit && buffer->relay.ordinal == source->relay.ordinal)
				n += zd_relays_waiting(buffer, source->part->rank);
		}
	}
	return n;
}

static void sources_stop(struct zd_engine *e, struct zd_group *group, struct zd_unit *unit)
{
	struct zd_buffer *source, *next;
	unit->refs++; /* the last source can have the last reference */
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		TAILQ_FOREACH_SAFE (source, &unit->parts[rank].collective->sources, relay.source_link, next) {
			source->relay.expected = count_expected(group, source);
			source_try_end(e, source);
		}
	}
	zd_unit_unref(e, unit);
}

void zd_relays_stop(struct zd_engine *e, struct zd_group *group, struct zd_member *member)
{
	struct zd_unit *unit, *next_unit;
	if (!zd_gathers_are_collective(group))
		return;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_member *owner = &group->members[rank];
		struct zd_buffer *buffer, *next;
		if (!owner->session)
			continue;
		TAILQ_FOREACH_SAFE (buffer, &owner->session->relaying, relay.taker_link, next) {
			if (buffer->unit->group == group)
				relays_fail(e, owner->session, buffer, ZD_PLAN_NOBODY,
				            member && member != owner);
		}
	}
	TAILQ_FOREACH_SAFE (unit, &group->units, group_link, next_unit)
		sources_stop(e, group, unit);
	TAILQ_FOREACH_SAFE (unit, &group->former, group_link, next_unit)
		sources_stop(e, group, unit);
	relays_try_all(e, group); /* also relays of other groups */
}
