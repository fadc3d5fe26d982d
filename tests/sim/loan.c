/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loan.c - a unit's place in its rank's target, which the rank is lent before the step.
 *
 * All loans of a unit are on one stream, so that each finds what the one before has written. Units of which
 * that is stream 0, which reads the step's target too, are written there in some programs: later sums are
 * added to that. As in libzerod a place is returned in front of what the daemon could store there next: the
 * rank's next contribution, its step, the end of its window. Some are returned late: the sum waits for that.
 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "sim.h"

/* ---- What is lent -------------------------------------------------------------------------------------- */

static bool any_lent(const struct zd_sim_member *member)
{
	bool any = false;

	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++)
		any = any || member->handles[u].lent;
	return any;
}

bool zd_sim_lends(const struct zd_sim_member *member)
{
	return any_lent(member) && !member->beginning;
}

bool zd_sim_loans_end_with(const struct zd_sim_world *world, const struct zd_sim_session *session,
                           uint32_t group)
{
	return world->groups[group].tainted && any_lent(&session->members[group]);
}

uint32_t zd_sim_accessors(struct zd_sim_member *member)
{
	uint32_t streams = 0;

	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++) {
		streams |= member->handles[u].accessors;
		member->handles[u].accessors = 0;
	}
	return streams;
}

void zd_sim_loans_forget(struct zd_sim_member *member)
{
	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++)
		member->handles[u].lent = false;
	memset(member->lent_from, 0, sizeof(member->lent_from));
}

bool zd_sim_is_abandoned(const struct zd_sim_group *model, uint64_t first)
{
	return model->abandoned[first % ZD_SIM_BACKWARDS] == first + 1;
}

bool zd_sim_sums_are_void(const struct zd_sim_world *world, const struct zd_sim_session *session,
                          uint32_t group, uint64_t first)
{
	const struct zd_sim_group *model = &world->groups[group];
	return session->broken || model->tainted || zd_sim_is_abandoned(model, first);
}

bool zd_sim_loan_overlaps(const struct zd_sim_world *world, const struct zd_sim_session *session,
                          uint32_t group, uint32_t unit, const struct zd_location *at)
{
	const struct zd_sim_member *member = &session->members[group];
	const struct zd_sim_handle *handle = &member->handles[unit];
	const struct zd_fence *from = &handle->lent_from;

	if (!handle->lent || member->beginning || !zd_sim_overlap(&handle->lent_at, at))
		return false;
	/* The promise of a sum that fails is kept before its other parts have ended, and nobody knows yet. */
	return from->value == 0 || (!world->config.device_fault_permille &&
	                            !zd_sim_sums_are_void(world, session, group, member->step_first) &&
	                            zd_fence_reached(session->daemon_page[from->timeline], from->value));
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

uint32_t zd_sim_signal(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t streams,
                       struct zd_fence fences[ZD_SIM_STREAMS])
{
	uint32_t count = 0;

	for (uint32_t s = 0; s < ZD_SIM_STREAMS; s++) {
		if (streams & (1u << s))
			fences[count++] = zd_sim_stream_signal(world, session, s);
	}
	return count;
}

/* `units`: bits. What is not lent may be named, too. */
static void give_back(struct zd_sim_world *world, struct zd_sim_session *session,
                      const struct zd_sim_request *like, uint32_t units)
{
	struct zd_sim_member *member = &session->members[like->group];
	struct zd_sim_request request = {.op = like->op, .group = like->group, .noise = like->noise};
	struct zd_args args = {.kind = ZD_REQ_TARGET_RETURN};
	struct zd_fence fences[ZD_SIM_STREAMS];
	uint64_t ids[ZD_SIM_UNITS];
	uint32_t streams = 0;

	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++) {
		struct zd_sim_handle *handle = &member->handles[u];
		if (!(units & (1u << u)) || !handle->id)
			continue;
		ids[args.u.target_return.n_units++] = handle->id;
		streams |= handle->accessors;
		if (handle->lent && handle->untargeted)
			handle->sum_first = handle->lent_end;
		handle->lent = false;
		handle->accessors = 0;
	}
	if (args.u.target_return.n_units == 0)
		return;
	if (zd_sim_streams_idle(session))
		streams = 0;
	args.u.target_return.units = ids;
	args.fences.count = zd_sim_signal(world, session, streams, fences);
	args.fences.fences = fences;
	zd_sim_send(world, session, &request, &args);
}

void zd_sim_loans_end(struct zd_sim_world *world, struct zd_sim_session *session,
                      const struct zd_sim_request *request, uint32_t unit)
{
	const struct zd_sim_member *member = &session->members[request->group];
	uint32_t units = 0;

	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++) {
		if (member->handles[u].lent && (unit == u || unit == ZD_SIM_ALL_UNITS))
			units |= 1u << u;
	}
	give_back(world, session, request, units);
}

void zd_sim_contribute(struct zd_sim_world *world, struct zd_sim_session *session, const struct zd_sim_op *op,
                       const struct zd_sim_request *request, const struct zd_args *args)
{
	struct zd_sim_member *member = &session->members[op->group];
	struct zd_sim_entry *entry = &member->handles[op->unit].entry;
	bool late = zd_sim_mix(world->config.seed, request->op) % 4 == 0;

	if (!late)
		zd_sim_loans_end(world, session, request, op->unit);
	if (!member->in_backward) /* a mistake, or a backward that is being begun */
		zd_sim_taint(world, op->group);
	member->made |= (uint8_t)(1u << op->unit);
	member->handles[op->unit].terms = args->kind == ZD_REQ_BUCKET_SUBMIT && args->u.bucket_submit.terms;
	if (args->kind == ZD_REQ_BUCKET_SUBMIT)
		entry->committed = true;
	zd_sim_send(world, session, request, args);
	if (late && !op->noise)
		zd_sim_loans_end(world, session, request, op->unit);
}

bool zd_sim_issue_loan(struct zd_sim_world *world, struct zd_sim_session *session, const struct zd_sim_op *op,
                       const struct zd_sim_request *request)
{
	struct zd_sim_handle *handle = &session->members[op->group].handles[op->unit];
	struct zd_args args = {.kind = ZD_REQ_REDUCE_WAIT};

	if (!handle->id || (op->kind == ZD_SIM_TARGET_RETURN && !handle->lent && !op->noise))
		return false;
	if (op->kind == ZD_SIM_REDUCE_WAIT && handle->terms && !op->noise) /* there is no sum */
		return false;
	if (op->kind == ZD_SIM_TARGET_RETURN) {
		give_back(world, session, request, 1u << op->unit);
		return true;
	}
	args.u.reduce_wait.unit = handle->id;
	args.u.reduce_wait.ahead = op->arg & ZD_SIM_LOAN_AHEAD;
	handle->lending++;
	zd_sim_send(world, session, request, &args);
	return true;
}

/* ---- Replies ------------------------------------------------------------------------------------------- */

/* The backward behind the last one whose sum is there: the running one counts once the rank has
 * contributed. */
static uint32_t backwards_summed(const struct zd_sim_member *member, uint32_t unit)
{
	bool runs = !(member->made & (1u << unit)) && member->backwards > member->step_first;
	return member->backwards - runs;
}

static bool has_gradient(const struct zd_sim_group *model, uint32_t unit, uint32_t first, uint32_t end)
{
	bool any = false;

	for (uint32_t b = first; b < end; b++) {
		for (uint32_t r = 0; r < ZD_SIM_WORLD; r++)
			any = any || model->gradients[b % ZD_SIM_BACKWARDS][unit][r].present;
	}
	return any;
}

/* The first backward that may be in the unit's sum. */
static uint32_t first_summed(const struct zd_sim_member *member, uint32_t unit)
{
	const struct zd_sim_handle *handle = &member->handles[unit];
	return handle->untargeted && handle->sum_first > member->step_first ? handle->sum_first
	                                                                    : member->step_first;
}

bool zd_sim_has_sum(const struct zd_sim_world *world, const struct zd_sim_session *session, uint32_t group,
                    uint32_t unit)
{
	const struct zd_sim_member *member = &session->members[group];
	return has_gradient(&world->groups[group], unit, first_summed(member, unit), member->backwards - 1);
}

uint32_t zd_sim_loan_stream(const struct zd_sim_world *world, uint32_t group, uint32_t unit)
{
	return zd_sim_mix(world->config.seed, group * ZD_SIM_UNITS + unit) % ZD_SIM_STREAMS;
}

/* The refusals that the model can predict; the group is not tainted. */
static void check_refusal(struct zd_sim_world *world, const struct zd_sim_session *session,
                          const struct zd_sim_request *request, const struct zd_reply *reply)
{
	const struct zd_sim_member *member = &session->members[request->group];
	const struct zd_sim_group *model = &world->groups[request->group];
	const struct zd_sim_unit_config *unit = &world->config.groups[request->group].units[request->unit];
	bool contributed = (member->made | member->made_before) & (1u << request->unit);
	uint32_t end = backwards_summed(member, request->unit);
	bool any = has_gradient(model, request->unit, member->step_first, end);
	bool returned = any && !has_gradient(model, request->unit, first_summed(member, request->unit), end);
	bool right = !world->config.clean; /* a deadline, a reset, ... */

	if (reply->status == ZEROD_E_NOT_FOUND)
		right = contributed && !any;
	else if (reply->status == ZEROD_E_STATE)
		right = !contributed || returned || zd_sim_is_abandoned(model, member->step_first) ||
		        zd_sim_may_end(world, session->id); /* it leaves the group */
	else if (reply->status == ZEROD_E_INVALID)
		right = unit->frozen;
	if (!right && !member->lost && !request->noise)
		zd_sim_fail(world, "the sum of %s is not lent, %s: %s", unit->name,
		            zerod_status_name(reply->status), reply->error);
}

void zd_sim_target_memory_check(struct zd_sim_world *world, const struct zd_sim_session *session,
                                const struct zd_location *at, uint32_t memory)
{
	const struct zd_sim_segment *segment = zd_sim_segment_find(world, at->segment);
	uint32_t device = memory == ZD_TARGET_ON_HOST ? world->config.ndevices
	                                              : world->config.actors[session->actor].device;

	if (!segment || segment->device != device)
		zd_sim_fail(world, "a target is at %u+%llu, which is not on device %u", at->segment,
		            (unsigned long long)at->offset, device);
}

/* The part of one target, the same for all loans of a window. */
static void check_place(struct zd_sim_world *world, struct zd_sim_session *session,
                        const struct zd_sim_request *request, const struct zd_reply *reply)
{
	const struct zd_sim_group_config *group = &world->config.groups[request->group];
	struct zd_sim_member *member = &session->members[request->group];
	const struct zd_location *at = &reply->place;
	uint64_t each = zerod_dtype_bytes(group->plan.target_dtype);
	uint64_t before = member->handles[request->unit].target_offset_numel * each;
	uint32_t memory = zd_sim_on_host(world, request->group, request->unit);
	struct zd_location *from = &member->lent_from[memory];

	zd_sim_target_memory_check(world, session, at, memory);
	if (member->handles[request->unit].untargeted)
		return;
	if (reply->u.reduce_wait.target_dtype != (uint32_t)group->plan.target_dtype ||
	    at->bytes != zd_sim_shard_numel(group, request->unit) * each || at->offset < before ||
	    (from->segment && (from->segment != at->segment || from->offset != at->offset - before)))
		zd_sim_fail(world, "the place of %s/%s that is lent, %llu bytes at %u+%llu, is none",
		            group->name, group->units[request->unit].name, (unsigned long long)at->bytes,
		            at->segment, (unsigned long long)at->offset);
	*from = (struct zd_location){at->segment, at->offset - before, 0};
}

static bool begins_step(const struct zd_sim_session *session, uint32_t group)
{
	for (uint32_t i = 0; i < session->nrequests; i++) {
		if (session->requests[i].kind == ZD_REQ_STEP_BEGIN && session->requests[i].group == group)
			return true;
	}
	return session->members[group].stepping;
}

/* Work on the unit's stream that finds the sum, and may write there. */
static void append(struct zd_sim_world *world, struct zd_sim_session *session,
                   const struct zd_sim_request *request, struct zd_fence from)
{
	struct zd_sim_member *member = &session->members[request->group];
	struct zd_sim_handle *handle = &member->handles[request->unit];
	struct zd_sim_group *model = &world->groups[request->group];
	uint32_t rank = zd_sim_rank(&world->config, session->actor, request->group);
	uint32_t stream = zd_sim_loan_stream(world, request->group, request->unit);
	uint32_t end = backwards_summed(member, request->unit);
	struct zd_sim_gradient *last =
	        &model->gradients[(end + ZD_SIM_BACKWARDS - 1) % ZD_SIM_BACKWARDS][request->unit][rank];
	bool writes = world->program.ops[request->op].arg & ZD_SIM_LOAN_WRITES;

	if (from.value) {
		struct zd_sim_item *wait = zd_sim_stream_append(world, session, stream, ZD_SIM_ITEM_WAIT);
		wait->nfences = 1;
		wait->fences[0] = from;
		wait->at = handle->lent_at;
	}
	struct zd_sim_item *item = zd_sim_stream_append(world, session, stream, ZD_SIM_ITEM_LOAN);
	item->group = request->group;
	item->unit = request->unit;
	item->at = handle->lent_at;
	item->nfences = from.value != 0;
	item->begin = member->step_first;
	item->sum_first = first_summed(member, request->unit);
	item->end = handle->lent_end = end;
	item->key = last->edit;
	if (writes && stream == 0 && !request->noise && end > item->sum_first)
		item->value = last->edit = zd_sim_mix(world->config.seed, request->op);
	handle->accessors |= (uint8_t)(1u << stream);
}

void zd_sim_reply_loan(struct zd_sim_world *world, struct zd_sim_session *session,
                       const struct zd_sim_request *request, const struct zd_reply *reply)
{
	struct zd_sim_member *member = &session->members[request->group];
	struct zd_sim_handle *handle = &member->handles[request->unit];
	struct zd_sim_group *model = &world->groups[request->group];

	handle->lending -= handle->lending > 0;
	if (reply->status != 0 && !model->tainted)
		check_refusal(world, session, request, reply);
	if (reply->status == ZEROD_E_DEVICE || reply->status == ZEROD_E_NO_MEMORY ||
	    reply->status == ZEROD_E_MISMATCH) /* the window has failed */
		zd_sim_taint(world, request->group);
	if (reply->status == 0 && request->terms)
		zd_sim_reply_terms(world, session, request, reply);
	if (reply->status != 0 || request->terms || begins_step(session, request->group))
		return;
	if (!model->tainted && !request->noise &&
	    !has_gradient(model, request->unit, first_summed(member, request->unit),
	                  backwards_summed(member, request->unit)))
		zd_sim_fail(world, "the sum of %s is lent, and there is none",
		            world->config.groups[request->group].units[request->unit].name);
	check_place(world, session, request, reply);
	zd_sim_location_seen(world, session, &reply->place);
	zd_sim_residue_check(world, &reply->place);
	handle->lent = true;
	handle->lent_at = reply->place;
	handle->lent_from = reply->fence;
	append(world, session, request, handle->lent_from);
}

/* ---- On the stream ------------------------------------------------------------------------------------- */

static void check_sum(struct zd_sim_world *world, const struct zd_sim_session *session,
                      const struct zd_sim_item *item, const uint8_t *bytes)
{
	const struct zd_sim_group_config *config = &world->config.groups[item->group];
	uint32_t rank = zd_sim_rank(&world->config, session->actor, item->group);
	uint64_t shard = zd_sim_shard_numel(config, item->unit);
	float *expected = zd_calloc(config->world * shard, sizeof(*expected));

	zd_sim_expect_unit(world, item, expected);
	for (uint64_t i = 0; i < shard; i++) {
		float found = zd_sim_float_load(config->plan.target_dtype, bytes, i);
		float want = expected[rank * shard + i];
		if (found != want && !(isnan(found) && isnan(want)))
			zd_sim_fail(world,
			            "%s/%s is lent to rank %u: element %llu is %g, the reference sum is %g",
			            config->name, config->units[item->unit].name, rank, (unsigned long long)i,
			            (double)found, (double)want);
	}
	free(expected);
	world->stats.loans_checked++;
}

void zd_sim_loan_run(struct zd_sim_world *world, const struct zd_sim_session *session,
                     const struct zd_sim_item *item, bool garbage)
{
	const struct zd_sim_group_config *config = &world->config.groups[item->group];
	const struct zd_sim_group *model = &world->groups[item->group];
	uint8_t *bytes = zd_sim_memory(world, &item->at, "a place that is lent");
	uint64_t numel = item->at.bytes / zerod_dtype_bytes(config->plan.target_dtype);

	bool may_fail = item->nfences && world->config.device_fault_permille; /* and nobody knows yet */

	if (!garbage && session->open && !model->tainted && !may_fail &&
	    !zd_sim_is_abandoned(model, item->begin))
		check_sum(world, session, item, bytes);
	if (!item->value)
		return;
	if (garbage) /* too early, maybe */
		zd_sim_taint(world, item->group);
	for (uint64_t i = 0; i < numel; i++)
		zd_sim_float_store(config->plan.target_dtype, bytes, i,
		                   zd_sim_gradient_value(item->value, UINT64_MAX, i));
}
