/* SPDX-License-Identifier: Apache-2.0 */
/*
 * issue_reduce.c - backwards, buckets and steps as requests.
 *
 * A gradient is written by none, one or several streams, each a part of it; the commit carries all their
 * fences. What it holds is noted when the engine has taken it, for the sum that the target must show.
 */
#include "base/mem.h"
#include "sim.h"

static void write_gradient(struct zd_sim_world *world, struct zd_sim_session *session,
                           const struct zd_sim_op *op, struct zd_sim_request *request, struct zd_sim_rng *rng,
                           struct zd_args *args, struct zd_fence *fences)
{
	const struct zd_sim_group_config *group = &world->config.groups[op->group];
	const struct zd_sim_entry *entry = &session->members[op->group].handles[op->unit].entry;
	enum zerod_dtype dtype = zd_sim_gradient_dtype(group, op->unit);
	uint64_t numel = group->units[op->unit].numel, done = 0;
	uint32_t nstreams = (uint32_t)zd_sim_below(rng, ZD_SIM_STREAMS + 1);

	request->key = zd_sim_next(rng);
	bool inf = zd_sim_percent(rng, group->plan.inf_percent);
	request->inf_at = inf ? zd_sim_below(rng, numel) : UINT64_MAX;
	for (uint32_t s = 0; s < nstreams; s++) {
		uint64_t end = s + 1 == nstreams ? numel : zd_sim_between(rng, done, numel);
		struct zd_sim_item *item = zd_sim_stream_append(world, session, s, ZD_SIM_ITEM_GRADIENT);

		item->dtype = dtype;
		item->at = entry->at;
		item->key = request->key;
		item->inf_at = request->inf_at;
		item->begin = done;
		item->end = end;
		done = end;
		fences[s] = zd_sim_stream_signal(world, session, s);
	}
	uint8_t *bytes = zd_sim_memory(world, &entry->at, "entry");
	for (uint64_t i = done; i < numel; i++)
		zd_sim_float_store(dtype, bytes, i, zd_sim_gradient_value(request->key, request->inf_at, i));
	args->fences = (struct zd_fence_list){.count = nstreams, .fences = fences};
}

static bool issue_bucket_submit(struct zd_sim_world *world, struct zd_sim_session *session,
                                const struct zd_sim_op *op, struct zd_sim_request *request,
                                struct zd_sim_rng *rng)
{
	const struct zd_sim_plan *plan = &world->config.groups[op->group].plan;
	struct zd_sim_member *member = &session->members[op->group];
	struct zd_sim_entry *entry = &member->handles[op->unit].entry;
	struct zd_args args = {.kind = ZD_REQ_BUCKET_SUBMIT};
	struct zd_fence fences[ZD_SIM_STREAMS];

	if (!zd_sim_entry_held(member, entry))
		return false;
	write_gradient(world, session, op, request, rng, &args, fences);
	args.u.bucket_submit.bucket = entry->bucket;
	args.u.bucket_submit.entry = entry->id;
	args.u.bucket_submit.op = plan->op;
	args.u.bucket_submit.prescale = plan->prescale;
	args.u.bucket_submit.overwrite = plan->overwrite;
	args.u.bucket_submit.terms = zd_sim_wants_terms(world, session, op);
	zd_sim_contribute(world, session, op, request, &args);
	if (args.u.bucket_submit.terms && session->open)
		zd_sim_ask_terms(world, session, op);
	return true;
}

static bool issue_step_end(struct zd_sim_world *world, struct zd_sim_session *session,
                           const struct zd_sim_op *op, const struct zd_sim_request *request)
{
	struct zd_args args = {.kind = ZD_REQ_STEP_END};
	struct zd_sim_member *member = &session->members[op->group];

	if (!member->id || (!op->noise && !member->stepping))
		return false;
	struct zd_fence fences[ZD_SIM_STREAMS];
	/* stream 0 reads the target (reply.c) */
	uint32_t count = zd_sim_signal(world, session, zd_sim_accessors(member) | 1, fences);
	args.u.step_end.group = member->id;
	args.fences = (struct zd_fence_list){.count = count, .fences = fences};
	if (op->ahead && world->config.steps_ahead)
		zd_sim_step_over(member);
	zd_sim_send(world, session, request, &args);
	return true;
}

/* Streams still write into the rank's entries; the request names them. */
static uint32_t write_entries(struct zd_sim_world *world, struct zd_sim_session *session,
                              const struct zd_sim_op *op, struct zd_sim_request *request,
                              struct zd_sim_rng *rng)
{
	struct zd_sim_member *member = &session->members[op->group];
	uint32_t streams = 0;

	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++) {
		struct zd_sim_entry *entry = &member->handles[u].entry;
		uint32_t stream = (uint32_t)zd_sim_below(rng, ZD_SIM_STREAMS);
		if (!zd_sim_entry_held(member, entry))
			continue;
		struct zd_sim_item *item = zd_sim_stream_append(world, session, stream, ZD_SIM_ITEM_GRADIENT);
		item->dtype = zd_sim_gradient_dtype(&world->config.groups[op->group], u);
		item->at = entry->at;
		item->key = zd_sim_next(rng);
		item->end = world->config.groups[op->group].units[u].numel;
		streams |= 1u << stream;
		entry->committed = true;
		request->units |= (uint8_t)(1u << u);
	}
	return streams;
}

static bool issue_abandon(struct zd_sim_world *world, struct zd_sim_session *session,
                          const struct zd_sim_op *op, struct zd_sim_request *request, struct zd_sim_rng *rng)
{
	struct zd_sim_member *member = &session->members[op->group];
	struct zd_sim_group *model = &world->groups[op->group];
	struct zd_args args = {.kind = ZD_REQ_BACKWARD_ABANDON};
	struct zd_fence fences[ZD_SIM_STREAMS];

	if (!member->id)
		return false;
	zd_sim_loans_end(world, session, request, ZD_SIM_ALL_UNITS);
	uint32_t streams = write_entries(world, session, op, request, rng);
	args.u.backward_abandon.group = member->id;
	args.fences.count = zd_sim_signal(world, session, streams, fences);
	args.fences.fences = fences;
	request->had = zd_sim_is_abandoned(model, member->step_first);
	model->abandoned[member->step_first % ZD_SIM_BACKWARDS] = member->step_first + 1;
	member->abandons = true;
	zd_sim_send(world, session, request, &args);
	member->abandons = false;
	return true;
}

static bool group_args(const struct zd_sim_op *op, const struct zd_sim_group_config *group,
                       const struct zd_sim_member *member, struct zd_sim_rng *rng, struct zd_args *args)
{
	const struct zd_sim_plan *plan = &group->plan;
	enum zerod_dtype dtype = zd_sim_gradient_dtype(group, op->unit);
	uint64_t bucket = member->buckets[zd_sim_bucket_of(group, op->unit)];

	switch (op->kind) {
	case ZD_SIM_BACKWARD_BEGIN:
		args->kind = ZD_REQ_BACKWARD_BEGIN;
		args->u.backward_begin.group = member->id;
		args->u.backward_begin.stage = plan->stage;
		args->u.backward_begin.boundary = op->arg & 1;
		args->u.backward_begin.target_dtype = plan->target_dtype;
		return member->id != 0;
	case ZD_SIM_BUCKET_CREATE:
		args->kind = ZD_REQ_BUCKET_CREATE;
		args->u.bucket_create.group = member->id;
		args->u.bucket_create.dtype = dtype;
		args->u.bucket_create.slot_bytes = 256ull << zd_sim_below(rng, 5);
		args->u.bucket_create.nslots = (uint32_t)zd_sim_between(rng, 1, 4);
		return member->id && !bucket;
	case ZD_SIM_BUCKET_DESTROY:
		args->kind = ZD_REQ_BUCKET_DESTROY;
		args->u.bucket_destroy.bucket = bucket;
		return bucket != 0;
	case ZD_SIM_BACKWARD_END:
		args->kind = ZD_REQ_BACKWARD_END;
		args->u.backward_end.group = member->id;
		return member->id != 0;
	case ZD_SIM_STEP_BEGIN:
		args->kind = ZD_REQ_STEP_BEGIN;
		args->u.step_begin.group = member->id;
		return member->id != 0;
	default:
		return false;
	}
}

/* In front of a window: takes the places of units' sums away. */
static void take_places(struct zd_sim_world *world, struct zd_sim_session *session,
                        const struct zd_sim_op *op)
{
	const struct zd_sim_group_config *config = &world->config.groups[op->group];
	struct zd_sim_member *member = &session->members[op->group];

	for (uint32_t u = 0; u < config->nunits; u++) {
		struct zd_sim_handle *handle = &member->handles[u];
		struct zd_sim_request request = {.op = (uint32_t)(op - world->program.ops),
		                                 .group = op->group,
		                                 .unit = u,
		                                 .noise = op->noise};
		struct zd_args args = {.kind = ZD_REQ_SET_FROZEN};

		if (!config->units[u].untargeted || !handle->id || handle->untargeted ||
		    member->backwards != member->step_first)
			continue;
		args.u.set_frozen.unit = handle->id;
		args.u.set_frozen.frozen = config->units[u].frozen;
		args.u.set_frozen.target = ZD_TARGET_NONE;
		zd_sim_send(world, session, &request, &args);
	}
}

/* The engine may have what was abandoned from here on. */
static void send_begin(struct zd_sim_world *world, struct zd_sim_session *session,
                       const struct zd_sim_request *request, const struct zd_args *args)
{
	struct zd_sim_member *member = &session->members[request->group];

	member->beginning = member->lost || zd_sim_loans_end_with(world, session, request->group);
	zd_sim_send(world, session, request, args);
	if (member->beginning && zd_sim_request_find(session, session->next_request))
		zd_sim_give_up(member);
}

bool zd_sim_issue_reduce(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t index)
{
	const struct zd_sim_op *op = &world->program.ops[index];
	struct zd_sim_member *member = &session->members[op->group];
	struct zd_sim_handle *handle = &member->handles[op->unit % ZD_SIM_UNITS];
	struct zd_sim_request request = {
	        .op = index, .group = op->group, .unit = op->unit, .noise = op->noise};
	struct zd_args args = {0};
	struct zd_sim_rng rng;

	zd_sim_rng_init(&rng, world->config.seed, index);
	switch (op->kind) {
	case ZD_SIM_BUCKET_SUBMIT:
		return issue_bucket_submit(world, session, op, &request, &rng);
	case ZD_SIM_STEP_END:
		return issue_step_end(world, session, op, &request);
	case ZD_SIM_REDUCE_WAIT:
	case ZD_SIM_TARGET_RETURN:
		return zd_sim_issue_loan(world, session, op, &request);
	case ZD_SIM_BACKWARD_ABANDON:
		return issue_abandon(world, session, op, &request, &rng);
	case ZD_SIM_SKIP:
		args.kind = ZD_REQ_REDUCE_SKIP;
		args.u.reduce_skip.unit = handle->id;
		if (!handle->id)
			return false;
		zd_sim_contribute(world, session, op, &request, &args);
		return true;
	case ZD_SIM_RESERVE:
		request.bucket =
		        member->buckets[zd_sim_bucket_of(&world->config.groups[op->group], op->unit)];
		if (!handle->id || !request.bucket || handle->entry.pending)
			return false;
		if (zd_sim_entry_held(member, &handle->entry) && world->config.lends &&
		    world->groups[op->group].tainted)
			return false; /* in an abandoned window it is no mistake */
		args.kind = ZD_REQ_BUCKET_RESERVE;
		args.u.bucket_reserve.bucket = request.bucket;
		args.u.bucket_reserve.unit = handle->id;
		handle->entry.pending = true;
		break;
	case ZD_SIM_BACKWARD_BEGIN:
		if (!group_args(op, &world->config.groups[op->group], member, &rng, &args))
			return false;
		take_places(world, session, op);
		send_begin(world, session, &request, &args);
		return true;
	default:
		if (!group_args(op, &world->config.groups[op->group], member, &rng, &args))
			return false;
		if (op->kind == ZD_SIM_BACKWARD_END && op->ahead && world->config.steps_ahead)
			zd_sim_backward_over(member);
		if (op->kind != ZD_SIM_STEP_BEGIN)
			break;
		if (op->noise || op->arg != ZD_SIM_KEEPS_LOANS)
			zd_sim_loans_end(world, session, &request, ZD_SIM_ALL_UNITS);
		args.u.step_begin.ahead = world->config.steps_ahead;
		break;
	}
	zd_sim_send(world, session, &request, &args);
	return true;
}
