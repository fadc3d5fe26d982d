/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner.c - memory that a client was given is written by nobody else until the client gives it back.
 *
 * Wrong bytes show sooner or later; this shows at once, when the command is given. A failed group changes nothing in it:
 * what its ranks were given is theirs until they say otherwise.
 */
#include "sim.h"

static bool overlap(const struct zd_location *a, const struct zd_location *b)
{
	return a->segment == b->segment && a->offset < b->offset + b->bytes &&
	       b->offset < a->offset + a->bytes;
}

/* ---- What a failed group leaves to its ranks ----------------------------------------------------------------- */

bool zd_sim_entry_held(const struct zd_sim_member *member, const struct zd_sim_entry *entry)
{
	return entry->id && !entry->committed && !member->beginning;
}

bool zd_sim_abandoned(const struct zd_sim_member *member)
{
	bool any = member->stepping;

	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++)
		any = any || zd_sim_entry_held(member, &member->handles[u].entry);
	return any && member->lost;
}

void zd_sim_give_up(struct zd_sim_member *member)
{
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

/* ---- Commands ------------------------------------------------------------------------------------------------- */

static const char *owned_by_handle(const struct zd_sim_member *member, const struct zd_sim_handle *handle,
                                   const struct zd_location *at)
{
	if (handle->id && overlap(&handle->shard, at))
		return "a shard";
	if (zd_sim_entry_held(member, &handle->entry) && overlap(&handle->entry.at, at))
		return "an entry that is not committed";
	for (uint32_t t = 0; t < ZD_SIM_TAGS; t++) {
		if (handle->leases[t].uses && overlap(&handle->leases[t].buffer, at))
			return "a gathered buffer that is held";
	}
	return NULL;
}

static const char *owned_by_session(const struct zd_sim_session *session, uint32_t ngroups,
                                    const struct zd_location *at)
{
	const char *what = NULL;

	for (uint32_t i = 0; i < ZD_SIM_ALLOCS; i++) {
		if (session->allocs[i].id && overlap(&session->allocs[i].at, at))
			what = "an allocation";
	}
	for (uint32_t g = 0; g < ngroups && !what; g++) {
		const struct zd_sim_member *member = &session->members[g];
		if (member->stepping && !member->beginning && overlap(&member->target, at))
			what = "a target that its rank reads";
		for (uint32_t u = 0; u < ZD_SIM_UNITS && member->id && !what; u++)
			what = owned_by_handle(member, &member->handles[u], at);
	}
	return what;
}

void zd_sim_owner_check(struct zd_sim_world *world, const struct zd_location *at)
{
	for (uint32_t i = 0; i < world->nsessions; i++) {
		const struct zd_sim_session *session = world->sessions[i];
		const char *what = session->open ? owned_by_session(session, world->config.ngroups, at)
		                                 : NULL;
		if (what)
			zd_sim_fail(world, "a command writes %u+%llu, which is in %s of session %llu",
			            at->segment, (unsigned long long)at->offset, what,
			            (unsigned long long)session->id);
	}
}

/* What was committed, or ended, with fences is the streams' until they are through. */
void zd_sim_streams_check(struct zd_sim_world *world, const struct zd_location *at)
{
	for (uint32_t i = 0; i < world->nsessions; i++) {
		const struct zd_sim_session *session = world->sessions[i];
		for (uint32_t s = 0; session->open && s < ZD_SIM_STREAMS; s++) {
			const struct zd_sim_stream *stream = &session->streams[s];
			for (uint32_t k = 0; k < stream->count; k++) {
				const struct zd_sim_item *item = &stream->items[stream->first + k];
				bool uses = item->kind == ZD_SIM_ITEM_GRADIENT ||
				            item->kind == ZD_SIM_ITEM_TARGET;
				if (uses && overlap(&item->at, at))
					zd_sim_fail(world,
					            "a command writes %u+%llu, which stream %u of session "
					            "%llu still uses",
					            at->segment, (unsigned long long)at->offset, s,
					            (unsigned long long)session->id);
			}
		}
	}
}
