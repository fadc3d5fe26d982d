/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poison.c - memory that a poison session has been given is filled with NaN patterns before other bytes come.
 *
 * What a session was given is exposed from the reply on. A fill ends that, but not for buffers in the same
 * place whose copies are promised and come behind the fill. A copy of something else must not go where
 * anything is exposed. Units that have been persistent are left out: their copies are refreshed in place.
 */
#include <string.h>

#include "sim.h"

bool zd_sim_is_promised(const struct zd_sim_session *session, const struct zd_fence *fences, uint32_t nfences)
{
	for (uint32_t f = 0; f < nfences; f++) {
		if (session->given[fences[f].timeline] < fences[f].value)
			return true;
	}
	return false;
}

/* Places of scopes, as bits, that the request ends. */
static uint32_t scopes_ended(const struct zd_sim_session *session, const struct zd_sim_request *request)
{
	const struct zd_sim_member *member = &session->members[request->group];

	switch (request->kind) {
	case ZD_REQ_FORWARD_BEGIN:
		return request->parent ? 0 : zd_sim_scopes_swept(member);
	case ZD_REQ_FORWARD_END:
	case ZD_REQ_CLAIM_END:
	case ZD_REQ_SCOPE_ABANDON:
	case ZD_REQ_CONTEXT_END:
		return zd_sim_scopes_ended(member, request->kind, request->tag, request->grad);
	default:
		return 0;
	}
}

bool zd_sim_is_ending(const struct zd_sim_session *session, uint32_t group, uint32_t unit, uint32_t holder)
{
	uint32_t releases = 0;

	for (uint32_t i = 0; i < session->nrequests; i++) {
		const struct zd_sim_request *request = &session->requests[i];
		if (request->group != group)
			continue;
		releases += request->kind == ZD_REQ_RELEASE && request->unit == unit &&
		            request->tag == holder;
		if (holder >= ZD_SIM_TAGS && scopes_ended(session, request) & (1u << (holder - ZD_SIM_TAGS)))
			return true;
	}
	return releases >= session->members[group].handles[unit].leases[holder].uses;
}

void zd_sim_expose(struct zd_sim_world *world, const struct zd_sim_session *session, uint32_t group,
                   uint32_t unit, const struct zd_sim_lease *lease)
{
	world->exposures = zd_sim_grow(world->exposures, world->nexposures, &world->exposures_room,
	                               sizeof(*world->exposures));
	struct zd_sim_exposure *exposure = &world->exposures[world->nexposures++];
	*exposure = (struct zd_sim_exposure){.session = session->id,
	                                     .group = (uint8_t)group,
	                                     .unit = (uint8_t)unit,
	                                     .at = lease->at[ZD_SIM_LOW],
	                                     .nfences = lease->nfences};
	memcpy(exposure->fences, lease->fences, lease->nfences * sizeof(*lease->fences));
}

void zd_sim_poison_end(struct zd_sim_world *world, uint64_t session)
{
	for (uint32_t i = world->nexposures; i-- > 0;) {
		if (world->exposures[i].session == session)
			world->exposures[i] = world->exposures[--world->nexposures];
	}
}

static void check_copy(struct zd_sim_world *world, const struct zd_command *copy)
{
	const struct zd_location *dst = &copy->u.copy.dst;
	struct zd_sim_session *session = zd_sim_session_find(world, copy->signal.session);

	for (uint32_t i = 0; i < world->nexposures; i++) {
		const struct zd_sim_exposure *exposure = &world->exposures[i];
		if (zd_sim_overlap(&exposure->at, dst) && !zd_sim_may_end(world, exposure->session) &&
		    !world->groups[exposure->group].kept[exposure->unit] &&
		    !(session && session->id == exposure->session &&
		      zd_sim_precedes(session, exposure->fences, exposure->nfences, &copy->signal)))
			zd_sim_fail(world,
			            "a copy goes to %u+%llu, which session %llu has had and which was not "
			            "filled",
			            dst->segment, (unsigned long long)dst->offset,
			            (unsigned long long)exposure->session);
	}
	if (session)
		session->given[copy->signal.timeline] = copy->signal.value;
}

/* Of a session whose promises were broken, nothing tells which copies will never be given. */
static void take_fill(struct zd_sim_world *world, const struct zd_location *dst)
{
	for (uint32_t i = world->nexposures; i-- > 0;) {
		const struct zd_sim_exposure *exposure = &world->exposures[i];
		const struct zd_sim_session *session = zd_sim_session_find(world, exposure->session);
		bool promised = zd_sim_is_promised(session, exposure->fences, exposure->nfences);
		if (!zd_sim_overlap(&exposure->at, dst) || (promised && !session->broken))
			continue;
		if (!promised && (exposure->at.offset < dst->offset ||
		                  exposure->at.offset + exposure->at.bytes > dst->offset + dst->bytes))
			zd_sim_fail(world,
			            "a fill of %llu bytes at %u+%llu is not of all that session %llu "
			            "has had there",
			            (unsigned long long)dst->bytes, dst->segment,
			            (unsigned long long)dst->offset, (unsigned long long)exposure->session);
		world->exposures[i] = world->exposures[--world->nexposures];
	}
}

void zd_sim_poison_check(struct zd_sim_world *world, const struct zd_command *command)
{
	if (command->kind == ZD_CMD_COPY)
		check_copy(world, command);
	else if (command->kind == ZD_CMD_FILL && command->u.fill.pattern == ZD_FILL_NAN)
		take_fill(world, &command->u.fill.dst);
}
