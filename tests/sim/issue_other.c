/* SPDX-License-Identifier: Apache-2.0 */
/*
 * issue_other.c - allocations and administration.
 */
#include "base/mem.h"
#include "core/memory/block.h"
#include "sim.h"

static bool issue_alloc(struct zd_sim_world *world, struct zd_sim_session *session,
                        struct zd_sim_request *request, const struct zd_sim_op *op, struct zd_sim_rng *rng)
{
	struct zd_sim_alloc *alloc = &session->allocs[request->alloc];
	struct zd_args args = {.kind = ZD_REQ_ALLOC};
	bool own = world->config.actors[session->actor].job >= 0 && session->members[op->group].id;

	if (alloc->id || alloc->pending)
		return false;
	if (zd_sim_percent(rng, 30)) /* beside the trainers' job, which may be durable */
		own = false;
	args.u.alloc.job = (char *)(own ? world->config.jobs[world->config.groups[op->group].job].name
	                                : "scratch");
	args.u.alloc.name = (char *)"scratch";
	args.u.alloc.device = (uint32_t)zd_sim_below(rng, zd_sim_ndevices(&world->config));
	args.u.alloc.bytes = request->bytes = zd_sim_between(rng, 1, 3000);
	if (op->tag && !op->noise) {
		args.u.alloc.device = world->config.actors[session->actor].device;
		args.u.alloc.bytes = request->bytes = zd_sim_gathered_bytes(&world->config, session->actor,
		                                                            op->group, op->unit);
	}
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
	args.fences = (struct zd_fence_list){.count = 1, .fences = &fence};
	alloc->id = 0;
	zd_sim_send(world, session, request, &args);
	return true;
}

static void reload(struct zd_sim_world *world, struct zd_sim_rng *rng)
{
	uint32_t device = (uint32_t)zd_sim_below(rng, zd_sim_ndevices(&world->config));

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

static void trim(struct zd_sim_world *world, struct zd_sim_session *session,
                 const struct zd_sim_request *request, struct zd_sim_rng *rng)
{
	uint32_t device = (uint32_t)zd_sim_below(rng, zd_sim_ndevices(&world->config));
	uint64_t arena_bytes = world->config.devices[device].arena_bytes;
	struct zd_args args = {.kind = ZD_REQ_TRIM, .u.trim.device = device};

	args.u.trim.keep_bytes = zd_sim_percent(rng, 50) ? 0 : zd_sim_below(rng, arena_bytes);
	zd_sim_send(world, session, request, &args);
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
		args.u.kill_session.session = world->sessions[zd_sim_below(&rng, world->nsessions)]->id;
		world->ending = args.u.kill_session.session;
		break;
	case ZD_SIM_ABORT:
		args.kind = ZD_REQ_ABORT_GROUP;
		args.u.abort_group.group = some_group(world, op);
		break;
	case ZD_SIM_END_JOB:
		world->ending_all = zd_sim_percent(&rng, 50);
		args.kind = world->ending_all ? ZD_REQ_KILL_JOB : ZD_REQ_END_JOB;
		args.u.end_job.job = zd_sim_job_id(world, world->config.groups[op->group].job);
		break;
	default:
		if (zd_sim_percent(&rng, 50))
			trim(world, session, &request, &rng);
		else
			reload(world, &rng);
		return true;
	}
	zd_sim_send(world, session, &request, &args);
	world->ending = 0;
	world->ending_all = false;
	return true;
}
