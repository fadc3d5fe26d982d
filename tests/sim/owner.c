/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner.c - memory that a client was given is written by nobody else until the client gives it back.
 *
 * Wrong bytes show sooner or later; this shows at once, when the command is given.
 */
#include "sim.h"

static bool overlap(const struct zd_location *a, const struct zd_location *b)
{
	return a->segment == b->segment && a->offset < b->offset + b->bytes &&
	       b->offset < a->offset + a->bytes;
}

static const char *owned_by_handle(const struct zd_sim_handle *handle, const struct zd_location *at)
{
	if (handle->id && overlap(&handle->shard, at))
		return "a shard";
	if (handle->entry.id && !handle->entry.committed && overlap(&handle->entry.at, at))
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
		if (member->stepping && overlap(&member->target, at))
			what = "a target that its rank reads";
		for (uint32_t u = 0; u < ZD_SIM_UNITS && member->id && !what; u++)
			what = owned_by_handle(&member->handles[u], at);
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
