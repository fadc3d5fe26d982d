/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner.c - memory that a client was given is written by nobody else until the client gives it back.
 *
 * Wrong bytes show sooner or later; this shows at once, when the command is given. A failed group changes
 * nothing in it: what its ranks were given is theirs until they say otherwise. A shard is written by nobody
 * but its client, but when it is set back to the last commit. A gathered buffer may be written by the copies
 * whose fences its holder was given, and nothing that the holder has queued behind these counts as a use; so
 * may it be by the fill of the former buffer there, before these copies are given.
 */
#include "core/engine/timelines.h"
#include "sim.h"

bool zd_sim_overlap(const struct zd_location *a, const struct zd_location *b)
{
	return a->segment == b->segment && a->offset < b->offset + b->bytes &&
	       b->offset < a->offset + a->bytes;
}

/* ---- What a failed group leaves to its ranks ----------------------------------------------------------- */

bool zd_sim_entry_held(const struct zd_sim_member *member, const struct zd_sim_entry *entry)
{
	return entry->id && !entry->committed && !member->beginning;
}

bool zd_sim_abandoned(const struct zd_sim_member *member)
{
	bool any = member->stepping;

	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++)
		any = any || member->handles[u].lent || zd_sim_entry_held(member, &member->handles[u].entry);
	return any && member->lost;
}

void zd_sim_give_up(struct zd_sim_member *member)
{
	if (member->lost || member->beginning)
		zd_sim_loans_forget(member);
	member->in_backward = member->stepping = member->lost = member->beginning = false;
	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++) {
		member->handles[u].entry.id = 0;
		member->handles[u].entry.committed = false;
	}
}

void zd_sim_group_lost(struct zd_sim_world *world, uint32_t group)
{
	for (uint32_t i = 0; i < world->nsessions; i++)
		world->sessions[i]->members[group].lost = true;
}

void zd_sim_residue_check(struct zd_sim_world *world, const struct zd_location *at)
{
	for (uint32_t i = 0; i < world->nsessions; i++) {
		const struct zd_sim_session *session = world->sessions[i];
		for (uint32_t k = 0; k < session->nresidue; k++) {
			if (zd_sim_overlap(&session->residue[k], at))
				zd_sim_fail(world,
				            "%u+%llu is given out, which the process of session %llu still "
				            "has",
				            at->segment, (unsigned long long)at->offset,
				            (unsigned long long)session->id);
		}
	}
}

/* ---- Commands ------------------------------------------------------------------------------------------ */

static bool is_nan_fill(const struct zd_command *by)
{
	return by && by->kind == ZD_CMD_FILL && by->u.fill.pattern == ZD_FILL_NAN;
}

static bool is_deferred(const struct zd_signal *signal)
{
	return signal->session && signal->timeline / ZD_MAX_DEVICES == ZD_TIMELINE_DEFERRED / ZD_MAX_DEVICES;
}

bool zd_sim_precedes(const struct zd_sim_session *session, const struct zd_fence *fences, uint32_t nfences,
                     const struct zd_signal *signal)
{
	for (uint32_t f = 0; f < nfences; f++) {
		if (fences[f].timeline == signal->timeline && fences[f].value >= signal->value)
			return true;
	}
	return is_deferred(signal) && zd_sim_is_promised(session, fences, nfences);
}

/* Do the fences pass behind the command: is it one that they stand for, or a fill before these. NULL: no. */
static bool are_behind(const struct zd_sim_session *session, const struct zd_fence *fences, uint32_t nfences,
                       const struct zd_command *by)
{
	const struct zd_signal *signal = by ? &by->signal : NULL;

	if (is_nan_fill(by))
		return session->poison && (session->broken || zd_sim_is_promised(session, fences, nfences));
	return signal && signal->session == session->id && zd_sim_precedes(session, fences, nfences, signal);
}

/* `copy`: what is set back is a shard that nobody writes; zd_sim_copy_check() looks after that. */
static const char *owned_by_handle(const struct zd_sim_world *world, const struct zd_sim_session *session,
                                   uint32_t group, uint32_t unit, const struct zd_location *at, bool copy,
                                   const struct zd_command *by)
{
	const struct zd_sim_member *member = &session->members[group];
	const struct zd_sim_handle *handle = &member->handles[unit];

	if (!copy && handle->id && zd_sim_overlap(&handle->shard, at) &&
	    !zd_sim_is_moving(world, group, unit)) /* then it may be free already */
		return "a shard";
	if (zd_sim_entry_held(member, &handle->entry) && zd_sim_overlap(&handle->entry.at, at))
		return "an entry that is not submitted";
	if (zd_sim_loan_overlaps(world, session, group, unit, at))
		return "a place of a target that is lent";
	for (uint32_t h = 0; h < ZD_SIM_HOLDERS; h++) {
		const struct zd_sim_lease *lease = &handle->leases[h];
		bool overlaps = false;
		for (uint32_t p = 0; p < ZD_SIM_PARTS; p++)
			overlaps |= zd_sim_overlap(&lease->at[p], at);
		if (lease->uses && overlaps && !are_behind(session, lease->fences, lease->nfences, by) &&
		    !(is_nan_fill(by) && zd_sim_is_ending(session, group, unit, h)))
			return "a gathered buffer that is held";
	}
	return NULL;
}

static bool reads_target(const struct zd_sim_session *session, const struct zd_sim_member *member)
{
	const struct zd_fence *fence = &member->target_fence;
	return member->stepping && !member->beginning &&
	       (fence->value == 0 ||
	        (!member->lost && zd_fence_reached(session->daemon_page[fence->timeline], fence->value)));
}

static const char *owned_by_session(const struct zd_sim_world *world, const struct zd_sim_session *session,
                                    const struct zd_location *at, bool copy, const struct zd_command *by)
{
	const char *what = NULL;

	for (uint32_t i = 0; i < session->nresidue; i++) {
		if (zd_sim_overlap(&session->residue[i], at))
			what = "what the process still has";
	}
	for (uint32_t i = 0; i < ZD_SIM_ALLOCS && session->open; i++) {
		if (session->allocs[i].id && zd_sim_overlap(&session->allocs[i].at, at))
			what = "an allocation";
	}
	for (uint32_t g = 0; g < world->config.ngroups && !what; g++) {
		const struct zd_sim_member *member = &session->members[g];
		if (reads_target(session, member) &&
		    (zd_sim_overlap(&member->targets[0], at) || zd_sim_overlap(&member->targets[1], at)))
			what = "a target that its rank reads";
		for (uint32_t u = 0; u < ZD_SIM_UNITS && member->id && !what; u++)
			what = owned_by_handle(world, session, g, u, at, copy, by);
	}
	return what;
}

static void check_owners(struct zd_sim_world *world, const struct zd_location *at, bool copy,
                         const struct zd_command *by)
{
	for (uint32_t i = 0; i < world->nsessions; i++) {
		const struct zd_sim_session *session = world->sessions[i];
		bool there = (session->open || session->lingers) && !zd_sim_may_end(world, session->id);
		const char *what = there ? owned_by_session(world, session, at, copy, by) : NULL;
		if (what)
			zd_sim_fail(world, "a command writes %u+%llu, which is in %s of session %llu",
			            at->segment, (unsigned long long)at->offset, what,
			            (unsigned long long)session->id);
	}
}

void zd_sim_owner_check(struct zd_sim_world *world, const struct zd_location *at, const struct zd_command *by)
{
	check_owners(world, at, false, by);
}

/* ---- Streams ------------------------------------------------------------------------------------------- */

/* Bits of enum zd_sim_item_kind. */
#define BIT(kind) (1u << (kind))
#define WRITES    (BIT(ZD_SIM_ITEM_GRADIENT) | BIT(ZD_SIM_ITEM_WRITE))
#define USES                                                                                                 \
	(WRITES | BIT(ZD_SIM_ITEM_TARGET) | BIT(ZD_SIM_ITEM_READ) | BIT(ZD_SIM_ITEM_LOAN) |                  \
	 BIT(ZD_SIM_ITEM_TERMS))

/* Does the stream wait for the grant of an update of that shard, which it writes when nothing reads it any
 * more; or for the step whose target it reads. */
static bool waits_for(const struct zd_sim_session *session, const struct zd_sim_item *item,
                      const struct zd_location *at)
{
	return item->kind == ZD_SIM_ITEM_WAIT && zd_sim_overlap(&item->at, at) &&
	       !zd_fence_reached(session->daemon_page[item->fences[0].timeline], item->fences[0].value);
}

static void check_streams(struct zd_sim_world *world, const struct zd_location *at, uint32_t kinds,
                          const char *what, const struct zd_command *by)
{
	for (uint32_t i = 0; i < world->nsessions; i++) {
		const struct zd_sim_session *session = world->sessions[i];
		bool there = (session->open || session->lingers) && !zd_sim_may_end(world, session->id);
		for (uint32_t s = 0; there && s < ZD_SIM_STREAMS; s++) {
			const struct zd_sim_stream *stream = &session->streams[s];
			/* after an abort nothing tells what its waits have been for */
			bool behind = is_nan_fill(by) && session->poison && session->broken;
			for (uint32_t k = 0; k < stream->count && !behind; k++) {
				const struct zd_sim_item *item = &stream->items[stream->first + k];
				behind = (item->kind == ZD_SIM_ITEM_WAIT &&
				          are_behind(session, item->fences, item->nfences, by)) ||
				         waits_for(session, item, at);
				bool target = item->kind == ZD_SIM_ITEM_LOAN ||
				              item->kind == ZD_SIM_ITEM_TARGET;
				bool is_void = target && item->nfences &&
				               zd_sim_sums_are_void(world, session, item->group, item->begin);
				if (kinds & BIT(item->kind) && !is_void && zd_sim_overlap(&item->at, at))
					zd_sim_fail(world,
					            "a command %s %u+%llu, which stream %u of session "
					            "%llu still uses",
					            what, at->segment, (unsigned long long)at->offset, s,
					            (unsigned long long)session->id);
			}
		}
	}
}

/* Memory that was committed or released with fences belongs to the streams until the fences have passed. */
void zd_sim_streams_check(struct zd_sim_world *world, const struct zd_location *at,
                          const struct zd_command *by)
{
	check_streams(world, at, USES, "writes", by);
}

/* A read of a later version waits for its publish. After an abort the session's results are garbage. */
void zd_sim_unread_check(struct zd_sim_world *world, const struct zd_sim_session *session, uint32_t group,
                         uint32_t unit)
{
	const struct zd_sim_handle *handle = &session->members[group].handles[unit];
	uint32_t rank = zd_sim_rank(&world->config, session->actor, group);
	uint64_t version = world->groups[group].shards[unit][rank].version;

	for (uint32_t i = 0; i < world->nsessions; i++) {
		const struct zd_sim_session *reader = world->sessions[i];
		for (uint32_t s = 0; !reader->broken && s < ZD_SIM_STREAMS; s++) {
			const struct zd_sim_stream *stream = &reader->streams[s];
			for (uint32_t k = 0; k < stream->count; k++) {
				const struct zd_sim_item *item = &stream->items[stream->first + k];
				if (item->kind == ZD_SIM_ITEM_READ && item->value <= version &&
				    zd_sim_overlap(&item->at, &handle->shard))
					zd_sim_fail(
					        world,
					        "rank %u may write %s/%s, which stream %u of session %llu "
					        "reads in place",
					        rank, world->config.groups[group].name,
					        world->config.groups[group].units[unit].name, s,
					        (unsigned long long)reader->id);
			}
		}
	}
}

/* ---- Copies -------------------------------------------------------------------------------------------- */

/* Only a shard of a job with shadows is ever copied into: from right behind it, and not while its rank
 * writes. */
static void check_restore(struct zd_sim_world *world, uint32_t group, uint32_t unit, uint32_t rank,
                          const struct zd_location *src, const struct zd_location *dst)
{
	struct zd_sim_shard *shard = &world->groups[group].shards[unit][rank];
	const struct zd_sim_group_config *config = &world->config.groups[group];
	bool from_shadow = src->segment == dst->segment && src->offset == dst->offset + dst->bytes;

	if (!from_shadow && zd_sim_is_moving(world, group, unit)) /* it may be free already */
		return;
	if (!world->config.jobs[config->job].shadow || !from_shadow)
		zd_sim_fail(world, "a copy from %u+%llu goes into the shard of %s/%s, rank %u", src->segment,
		            (unsigned long long)src->offset, config->name, config->units[unit].name, rank);
	shard->owed = false;
	shard->restored_in = world->calls;
	for (uint32_t i = 0; i < world->nsessions; i++) {
		const struct zd_sim_session *session = world->sessions[i];
		const struct zd_sim_handle *handle = &session->members[group].handles[unit];
		bool stopped = !handle->updating || (handle->undone && handle->publishing);
		if (session->open && !zd_sim_may_end(world, session->id) && handle->id && !stopped &&
		    zd_sim_rank(&world->config, session->actor, group) == rank)
			zd_sim_fail(world, "the shard of %s/%s is set back while rank %u writes it",
			            config->name, config->units[unit].name, rank);
	}
}

/* A shard in host memory lands on its rank's device. */
static bool is_landing(struct zd_sim_world *world, const struct zd_command *copy)
{
	const struct zd_sim_segment *source = zd_sim_segment_find(world, copy->u.copy.src.segment);
	return source && world->config.devices[source->device].host_memory && copy->signal.session == 0 &&
	       !world->config.devices[copy->u.copy.dst_device].host_memory;
}

/* A gather that was answered before the rank went reads what it was promised: the shard is set back behind
 * its copies. */
void zd_sim_copy_check(struct zd_sim_world *world, const struct zd_command *command)
{
	const struct zd_location *src = &command->u.copy.src, *dst = &command->u.copy.dst;

	check_owners(world, dst, true, command);
	check_streams(world, dst, USES, "writes", command);
	check_streams(world, src, WRITES, "reads", NULL);
	for (uint32_t g = 0; g < world->config.ngroups; g++) {
		for (uint32_t u = 0; u < world->config.groups[g].nunits; u++) {
			for (uint32_t r = 0; r < world->config.groups[g].world; r++) {
				const struct zd_sim_shard *shard = &world->groups[g].shards[u][r];
				if (shard->exists && zd_sim_overlap(&shard->at, dst))
					check_restore(world, g, u, r, src, dst);
				if (shard->exists && shard->owed && !is_deferred(&command->signal) &&
				    !is_landing(world, command) && zd_sim_overlap(&shard->at, src))
					zd_sim_fail(world,
					            "a copy reads the shard of %s/%s, rank %u, which is "
					            "to be set back",
					            world->config.groups[g].name,
					            world->config.groups[g].units[u].name, r);
			}
		}
	}
}
