/* SPDX-License-Identifier: Apache-2.0 */
/*
 * issue_other.c - allocations, administration, and requests that make no sense.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "core/block.h"
#include "sim.h"

static bool issue_alloc(struct zd_sim_world *world, struct zd_sim_session *session,
                        struct zd_sim_request *request, const struct zd_sim_op *op, struct zd_sim_rng *rng)
{
	struct zd_sim_alloc *alloc = &session->allocs[request->alloc];
	struct zd_args args = {.kind = ZD_REQ_ALLOC};
	bool own = world->config.actors[session->actor].job >= 0 && session->members[op->group].id;

	if (alloc->id || alloc->pending)
		return false;
	/* a job of its own until the session is in the trainers' one, which may be durable */
	args.u.alloc.job = own ? world->config.jobs[world->config.groups[op->group].job].name : "scratch";
	args.u.alloc.name = "scratch";
	args.u.alloc.device = (uint32_t)zd_sim_below(rng, world->config.ndevices);
	args.u.alloc.bytes = request->bytes = zd_sim_between(rng, 1, 3000);
	args.u.alloc.alignment = zd_sim_percent(rng, 30) ? 256ull << zd_sim_below(rng, 5) : 0;
	request->alignment = args.u.alloc.alignment ? args.u.alloc.alignment : ZD_BLOCK_MIN_ALIGN;
	alloc->pending = true;
	zd_sim_send(world, session, request, &args);
	return true;
}

static bool issue_free(struct zd_sim_world *world, struct zd_sim_session *session,
                       struct zd_sim_request *request, struct zd_sim_rng *rng)
{
	struct zd_sim_alloc *alloc = &session->allocs[request->alloc];
	struct zd_args args = {.kind = ZD_REQ_FREE};
	uint32_t stream = (uint32_t)zd_sim_below(rng, ZD_SIM_STREAMS);

	if (!alloc->id)
		return false;
	struct zd_sim_item *item = zd_sim_stream_append(world, session, stream, ZD_SIM_ITEM_CHECK);
	item->at = alloc->at;
	item->key = alloc->key;
	struct zd_fence fence = zd_sim_stream_signal(world, session, stream);
	args.u.free.allocation = alloc->id;
	args.u.free.fences = (struct zd_fence_list){.count = 1, .fences = &fence};
	alloc->id = 0;
	zd_sim_send(world, session, request, &args);
	return true;
}

static void reload(struct zd_sim_world *world, struct zd_sim_rng *rng)
{
	uint32_t device = (uint32_t)zd_sim_below(rng, world->config.ndevices);

	if (zd_sim_percent(rng, 50)) {
		uint64_t quota = zd_sim_percent(rng, 30) ? 0 : zd_sim_between(rng, 4096, 1 << 18);
		zd_engine_set_quota(world->engine, quota);
		world->quota_bytes = quota && world->quota_bytes ? zd_max_u64(world->quota_bytes, quota) : 0;
	} else {
		uint64_t budget = zd_sim_between(rng, 256, world->config.devices[device].arena_bytes);
		world->budget_bytes[device] = zd_max_u64(world->budget_bytes[device], budget);
		zd_engine_set_gather_budget(world->engine, device, budget);
	}
	zd_sim_called(world);
}

/* Some group that some session is in; 0 if there is none. */
static uint64_t some_group(const struct zd_sim_world *world, const struct zd_sim_op *op)
{
	for (uint32_t i = 0; i < world->nsessions; i++) {
		const struct zd_sim_session *session = world->sessions[i];
		if (session->open && session->members[op->group].id)
			return session->members[op->group].id;
	}
	return 0;
}

bool zd_sim_issue_other(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t index)
{
	const struct zd_sim_op *op = &world->program.ops[index];
	struct zd_sim_request request = {.op = index, .group = op->group, .noise = op->noise};
	struct zd_args args = {0};
	struct zd_sim_rng rng;

	request.alloc = op->arg % ZD_SIM_ALLOCS;
	zd_sim_rng_init(&rng, world->config.seed, index);
	switch (op->kind) {
	case ZD_SIM_ALLOC:
		return issue_alloc(world, session, &request, op, &rng);
	case ZD_SIM_FREE:
		return issue_free(world, session, &request, &rng);
	case ZD_SIM_KILL:
		args.kind = ZD_REQ_KILL_SESSION;
		args.u.session = world->sessions[zd_sim_below(&rng, world->nsessions)]->id;
		break;
	case ZD_SIM_ABORT:
		args.kind = ZD_REQ_ABORT_GROUP;
		args.u.group = some_group(world, op);
		break;
	case ZD_SIM_END_JOB:
		args.kind = ZD_REQ_END_JOB;
		args.u.job = zd_sim_job_id(world, world->config.groups[op->group].job);
		break;
	default:
		reload(world, &rng);
		return true;
	}
	zd_sim_send(world, session, &request, &args);
	return true;
}

/* ---- Garbage: each must be answered with an error, and change nothing ------------------------------------------------ */

static void garbage_ids(struct zd_args *args, struct zd_sim_rng *rng)
{
	static const enum zd_request_kind kinds[] = {
	        ZD_REQ_GROUP_LEAVE,    ZD_REQ_UNIT_UNREGISTER,
	        ZD_REQ_BACKWARD_END,   ZD_REQ_STEP_BEGIN,
	        ZD_REQ_REDUCE_SKIP,    ZD_REQ_BUCKET_DESTROY,
	        ZD_REQ_KILL_SESSION,   ZD_REQ_ABORT_GROUP,
	        ZD_REQ_END_JOB,        ZD_REQ_COMMIT,
	        ZD_REQ_SET_PERSISTENT, ZD_REQ_BUCKET_RESERVE,
	        ZD_REQ_BUCKET_COMMIT,  ZD_REQ_FREE,
	        ZD_REQ_STEP_END,       ZD_REQ_BACKWARD_BEGIN,
	};
	uint64_t bad = zd_sim_percent(rng, 50) ? 0 : UINT64_MAX - zd_sim_below(rng, 100);

	args->kind = kinds[zd_sim_below(rng, ZD_ARRAY_LEN(kinds))];
	args->u.group = bad; /* the first member of every one of these is an id */
}

static void garbage_join(struct zd_args *args, struct zd_sim_rng *rng)
{
	args->kind = ZD_REQ_GROUP_JOIN;
	args->u.group_join.job = "j0";
	args->u.group_join.group = "g0";
	args->u.group_join.world_size = 2;
	switch (zd_sim_below(rng, 5)) {
	case 0:
		args->u.group_join.rank = 2;
		break;
	case 1:
		args->u.group_join.world_size = ZD_MAX_WORLD + 1;
		break;
	case 2:
		args->u.group_join.device = 99;
		break;
	case 3:
		args->u.group_join.job = "";
		break;
	default:
		args->u.group_join.group = "a\xff";
		break;
	}
}

static void garbage_alloc(struct zd_args *args, struct zd_sim_rng *rng)
{
	args->kind = ZD_REQ_ALLOC;
	args->u.alloc.job = "scratch";
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
		args->u.gather.tag = "a tag that is much longer than the thirty-one bytes";
		break;
	case 1:
		args->kind = ZD_REQ_RELEASE;
		args->u.release.unit = unit;
		args->u.release.tag = "default";
		args->u.release.fences = (struct zd_fence_list){.count = 1, .fences = bad_fence};
		break;
	case 2:
		args->kind = ZD_REQ_RELEASE;
		args->u.release.unit = unit;
		args->u.release.tag = "nobody";
		break;
	case 3:
		args->kind = ZD_REQ_UNIT_REGISTER;
		args->u.unit_register.group = member->id;
		args->u.unit_register.name = "huge";
		args->u.unit_register.dtype = ZEROD_INT64;
		args->u.unit_register.numel = UINT64_MAX / 2 - zd_sim_below(rng, 1000);
		break;
	default:
		args->kind = ZD_REQ_UNIT_REGISTER;
		args->u.unit_register.group = member->id;
		args->u.unit_register.name = "odd";
		args->u.unit_register.dtype = 77;
		args->u.unit_register.numel = 1;
		break;
	}
	return true;
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

	zd_sim_rng_init(&rng, world->config.seed, index);
	if (zd_sim_percent(&rng, 10)) {
		send_duplicate(world, session);
		return;
	}
	struct zd_fence bad_fence = {.timeline = zd_sim_percent(&rng, 50) ? ZD_TIMELINES : 0,
	                             .value = zd_sim_percent(&rng, 50) ? 0 : UINT64_MAX};
	switch (op->arg % 4) {
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
