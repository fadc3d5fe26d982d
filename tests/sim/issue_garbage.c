/* SPDX-License-Identifier: Apache-2.0 */
/*
 * issue_garbage.c - requests that make no sense: each must be answered with an error, and change nothing.
 */
#include "base/mem.h"
#include "sim.h"

static void garbage_ids(struct zd_args *args, struct zd_sim_rng *rng)
{
	static const enum zd_request_kind kinds[] = {
	        ZD_REQ_GROUP_LEAVE,    ZD_REQ_UNIT_UNREGISTER,
	        ZD_REQ_BACKWARD_END,   ZD_REQ_STEP_BEGIN,
	        ZD_REQ_REDUCE_SKIP,    ZD_REQ_BUCKET_DESTROY,
	        ZD_REQ_KILL_SESSION,   ZD_REQ_ABORT_GROUP,
	        ZD_REQ_END_JOB,        ZD_REQ_COMMIT,
	        ZD_REQ_SET_PERSISTENT, ZD_REQ_BUCKET_RESERVE,
	        ZD_REQ_BUCKET_SUBMIT,  ZD_REQ_FREE,
	        ZD_REQ_STEP_END,       ZD_REQ_BACKWARD_BEGIN,
	        ZD_REQ_FORWARD_BEGIN,  ZD_REQ_FORWARD_END,
	        ZD_REQ_CLAIM_END,      ZD_REQ_SCOPE_ABANDON,
	        ZD_REQ_CONTEXT_END,    ZD_REQ_SET_SLOT,
	        ZD_REQ_SET_FROZEN,     ZD_REQ_GROUP_BARRIER,
	        ZD_REQ_STEP_GET,       ZD_REQ_UNIT_LOAD,
	        ZD_REQ_REDUCE_WAIT,    ZD_REQ_GROUP_AGREE,
	        ZD_REQ_KILL_JOB,       ZD_REQ_UNITS_RESUME,
	        ZD_REQ_UNIT_PLACE,     ZD_REQ_UNIT_READ,
	        ZD_REQ_COMMIT_SAVE,
	};
	uint64_t bad = zd_sim_percent(rng, 50) ? 0 : UINT64_MAX - zd_sim_below(rng, 100);

	args->kind = kinds[zd_sim_below(rng, ZD_ARRAY_LEN(kinds))];
	args->u.unit_place.unit = bad; /* the first member of every one of these is an id */
}

static void garbage_join(struct zd_args *args, struct zd_sim_rng *rng)
{
	args->kind = ZD_REQ_GROUP_JOIN;
	args->u.group_join.job = (char *)"j0";
	args->u.group_join.group = (char *)"g0";
	args->u.group_join.world_size = 2;
	switch (zd_sim_below(rng, 6)) {
	case 0:
		args->u.group_join.rank = 2;
		break;
	case 5:
		args->u.group_join.shadow = true; /* of a job that is not durable */
		break;
	case 1:
		args->u.group_join.world_size = ZD_MAX_WORLD + 1;
		break;
	case 2:
		args->u.group_join.device = 99;
		break;
	case 3:
		args->u.group_join.job = (char *)"";
		break;
	default:
		args->u.group_join.group = (char *)"a\xff";
		break;
	}
}

static void garbage_alloc(struct zd_args *args, struct zd_sim_rng *rng)
{
	args->kind = ZD_REQ_ALLOC;
	args->u.alloc.job = (char *)"scratch";
	args->u.alloc.bytes = 256;
	switch (zd_sim_below(rng, 4)) {
	case 0:
		args->u.alloc.bytes = 0;
		break;
	case 1:
		args->u.alloc.bytes = UINT64_MAX - zd_sim_below(rng, 1000);
		break;
	case 2:
		args->u.alloc.alignment = 768;
		break;
	default:
		args->u.alloc.device = 64;
		break;
	}
}

/* Bad arguments for a unit that the session really has. */
static bool garbage_unit(struct zd_args *args, struct zd_sim_rng *rng, const struct zd_sim_member *member,
                         const struct zd_fence *bad_fence)
{
	uint64_t unit = member->handles[0].id;

	if (!unit)
		return false;
	switch (zd_sim_below(rng, 5)) {
	case 0:
		args->kind = ZD_REQ_GATHER;
		args->u.gather.unit = unit;
		args->u.gather.tag = (char *)"a tag that is much longer than the thirty-one bytes";
		break;
	case 1:
		args->kind = ZD_REQ_RELEASE;
		args->u.release.unit = unit;
		args->u.release.tag = (char *)"default";
		args->fences = (struct zd_fence_list){.count = 1, .fences = bad_fence};
		break;
	case 2:
		args->kind = ZD_REQ_RELEASE;
		args->u.release.unit = unit;
		args->u.release.tag = (char *)"nobody";
		break;
	case 3:
		args->kind = ZD_REQ_UNIT_REGISTER;
		args->u.unit_register.group = member->id;
		args->u.unit_register.name = (char *)"huge";
		args->u.unit_register.dtype = ZEROD_INT64;
		args->u.unit_register.numel = UINT64_MAX / 2 - zd_sim_below(rng, 1000);
		break;
	default:
		args->kind = ZD_REQ_UNIT_REGISTER;
		args->u.unit_register.group = member->id;
		args->u.unit_register.name = (char *)"odd";
		args->u.unit_register.dtype = 77;
		args->u.unit_register.numel = 1;
		break;
	}
	return true;
}

/* A scope that is another session's; 0: there is none. */
static uint64_t foreign_scope(const struct zd_sim_world *world, const struct zd_sim_session *session)
{
	for (uint32_t i = 0; i < world->nsessions; i++) {
		const struct zd_sim_session *other = world->sessions[i];
		for (uint32_t g = 0; other != session && g < world->config.ngroups; g++) {
			if (other->members[g].scopes[0].id)
				return other->members[g].scopes[0].id;
		}
	}
	return 0;
}

/* Bad requests around scopes: others', tags that look like theirs, what a scope does not count. */
static bool garbage_scope(struct zd_sim_world *world, const struct zd_sim_session *session,
                          struct zd_args *args, struct zd_sim_rng *rng, uint64_t twice[2], uint32_t group)
{
	const struct zd_sim_member *member = &session->members[group];

	twice[0] = twice[1] = args->u.gather.unit = member->handles[0].id;
	args->kind = ZD_REQ_GATHER;
	switch (zd_sim_below(rng, 4)) {
	case 0:
		args->kind = ZD_REQ_SCOPE_ABANDON;
		args->u.scope_abandon.scope = foreign_scope(world, session);
		return true;
	case 1:
		args->u.gather.tag = (char *)"@scope 1";
		return true;
	case 2:
		args->u.gather.scope = member->scopes[0].id;
		args->u.gather.uses = 2;
		return args->u.gather.scope != 0;
	default:
		args->kind = ZD_REQ_CONTEXT_BEGIN;
		args->u.context_begin.n_units = 2;
		args->u.context_begin.units = twice;
		return true;
	}
}

/* A request with the id of one that is outstanding: an error on top of its own reply. */
static void send_duplicate(struct zd_sim_world *world, struct zd_sim_session *session)
{
	struct zd_args args = {.kind = ZD_REQ_SESSION_RESET};

	if (session->nrequests == 0)
		return;
	session->duplicate = session->requests[0].id;
	struct zd_call call = {.session = session->id, .request = session->duplicate};
	zd_engine_request(world->engine, &call, &args);
	if (session->duplicate)
		zd_sim_fail(world, "a second request with the id %llu is not refused",
		            (unsigned long long)session->duplicate);
	zd_sim_called(world);
}

void zd_sim_issue_garbage(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t index)
{
	const struct zd_sim_op *op = &world->program.ops[index];
	struct zd_sim_request request = {.op = index, .group = op->group, .must_fail = true, .noise = true};
	struct zd_args args = {0};
	struct zd_sim_rng rng;
	uint64_t twice[2];

	zd_sim_rng_init(&rng, world->config.seed, index);
	if (zd_sim_percent(&rng, 10)) {
		send_duplicate(world, session);
		return;
	}
	struct zd_fence bad_fence = {.timeline = zd_sim_percent(&rng, 50) ? ZD_TIMELINES : 0,
	                             .value = zd_sim_percent(&rng, 50) ? 0 : UINT64_MAX};
	switch (zd_sim_percent(&rng, 20) ? 4 : op->arg % 4) {
	case 4:
		if (garbage_scope(world, session, &args, &rng, twice, op->group))
			break;
		args = (struct zd_args){0};
		/* fall through */
	case 0:
		if (garbage_unit(&args, &rng, &session->members[op->group], &bad_fence))
			break;
		/* fall through */
	case 1:
		garbage_ids(&args, &rng);
		break;
	case 2:
		garbage_join(&args, &rng);
		break;
	default:
		garbage_alloc(&args, &rng);
		break;
	}
	zd_sim_send(world, session, &request, &args);
}
