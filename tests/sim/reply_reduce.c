/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply_reduce.c - replies to backwards, buckets and steps.
 *
 * Any error on the way, a rank that goes, or noise that meddles with a backward makes the group's sums
 * unpredictable for the model (it is "tainted"); safety is checked all the same.
 */
#include <math.h>
#include <string.h>

#include "sim.h"

static void replied_reserve(struct zd_sim_world *world, struct zd_sim_session *session,
                            const struct zd_sim_request *request, const struct zd_reply *reply)
{
	const struct zd_sim_group_config *group = &world->config.groups[request->group];
	struct zd_sim_entry *entry = &session->members[request->group].handles[request->unit].entry;
	uint64_t bytes = group->world * zd_sim_shard_numel(group, request->unit) *
	                 zerod_dtype_bytes(zd_sim_gradient_dtype(group, request->unit));

	entry->pending = false;
	if (reply->status != 0)
		return;
	entry->id = reply->u.bucket_reserve.entry;
	entry->bucket = request->bucket;
	entry->at = reply->place;
	entry->committed = false;
	zd_sim_location_seen(world, session, &entry->at);
	zd_sim_residue_check(world, &entry->at);
	if (entry->at.bytes != bytes)
		zd_sim_fail(world, "entry for %s/%s has %llu bytes instead of %llu", group->name,
		            group->units[request->unit].name, (unsigned long long)entry->at.bytes,
		            (unsigned long long)bytes);
	uint64_t true_bytes = group->units[request->unit].numel *
	                      zerod_dtype_bytes(zd_sim_gradient_dtype(group, request->unit));
	const uint8_t *padding = zd_sim_memory(world, &entry->at, "entry") + true_bytes;
	if (zd_sim_pattern_check(0, padding, bytes - true_bytes) != bytes - true_bytes)
		zd_sim_fail(world, "entry for %s/%s: its padding is not zeroed", group->name,
		            group->units[request->unit].name);
}

static void replied_commit(struct zd_sim_world *world, struct zd_sim_session *session,
                           const struct zd_sim_request *request, const struct zd_reply *reply)
{
	struct zd_sim_member *member = &session->members[request->group];
	uint32_t rank = zd_sim_rank(&world->config, session->actor, request->group);

	if (reply->status == ZEROD_E_NOT_FOUND || (member->lost && reply->status == 0))
		zd_sim_fail(world, "an entry of session %llu, %s, is submitted: %s",
		            (unsigned long long)session->id, member->lost ? "abandoned" : "reserved",
		            zerod_status_name(reply->status));
	if (member->lost) /* refused, and given back behind its fences */
		member->handles[request->unit].entry.id = 0;
	if (reply->status != 0 || member->backwards == 0)
		return;
	struct zd_sim_gradient *gradient =
	        &world->groups[request->group]
	                 .gradients[(member->backwards - 1) % ZD_SIM_BACKWARDS][request->unit][rank];
	gradient->present = true;
	gradient->key = request->key;
	gradient->inf_at = request->inf_at;
}

/* Reduced, all of them, or given up. `bucket`: those in it, 0: in any. */
static void forget_entries(struct zd_sim_member *member, uint64_t bucket)
{
	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++) {
		if (bucket && member->handles[u].entry.bucket != bucket)
			continue;
		member->handles[u].entry.id = 0;
		member->handles[u].entry.committed = false;
	}
}

/* The step's place in the ring is used again: nothing of an older backward may be left in it. */
static void begin_backward(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t group,
                           bool first)
{
	struct zd_sim_member *member = &session->members[group];
	uint32_t rank = zd_sim_rank(&world->config, session->actor, group);

	if (member->has_left)
		zd_sim_step_over(member);
	if (!world->groups[group].tainted && first != (member->backwards == member->step_first))
		zd_sim_fail(world, "backward %u of %s is %sthe first of a window", member->backwards + 1,
		            world->config.groups[group].name, first ? "" : "not ");
	zd_sim_give_up(member);
	if (first)
		zd_sim_loans_forget(member);
	member->in_backward = true;
	member->made_before = first ? 0 : member->made_before | member->made;
	member->made = 0;
	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++)
		world->groups[group].gradients[member->backwards % ZD_SIM_BACKWARDS][u][rank] =
		        (struct zd_sim_gradient){0};
	member->backwards++;
}

/* Once it was let in it has given everything up, however it ends. */
static void replied_begin(struct zd_sim_world *world, struct zd_sim_session *session,
                          const struct zd_sim_request *request, const struct zd_reply *reply)
{
	struct zd_sim_member *member = &session->members[request->group];

	switch (reply->status) {
	case 0:
		begin_backward(world, session, request->group, reply->u.backward_begin.first);
		break;
	case ZEROD_E_NO_MEMORY:
	case ZEROD_E_QUOTA:
	case ZEROD_E_LIMIT:
	case ZEROD_E_DEVICE:
		if (member->lost)
			zd_sim_give_up(member);
		break;
	default:
		break;
	}
	if (reply->status != 0 && reply->status != ZEROD_E_STATE && !member->lost &&
	    zd_sim_loans_end_with(world, session, request->group))
		zd_sim_loans_forget(member); /* maybe */
	member->beginning = false;
}

void zd_sim_step_over(struct zd_sim_member *member)
{
	member->stepping = member->has_left = false;
	member->step_first = member->backwards;
	member->made = member->made_before = 0;
}

void zd_sim_backward_over(struct zd_sim_member *member)
{
	member->in_backward = false;
	forget_entries(member, 0);
}

static void replied_step_end(struct zd_sim_world *world, struct zd_sim_session *session,
                             const struct zd_sim_request *request, const struct zd_reply *reply)
{
	struct zd_sim_member *member = &session->members[request->group];

	if (reply->status == 0 && zd_sim_loans_end_with(world, session, request->group))
		zd_sim_loans_forget(member);
	if (reply->status == 0 && world->program.ops[request->op].ahead && world->config.steps_ahead)
		return; /* long ago: see zd_sim_step_over() */
	if (reply->status == 0) {
		zd_sim_step_over(member);
	} else if (member->stepping) {
		zd_sim_fail(world, "session %llu cannot end its step: %s", (unsigned long long)session->id,
		            reply->error);
	}
}

/* The target is the one that places were lent of. Of an abandoned window there is none. */
static void check_target(struct zd_sim_world *world, const struct zd_sim_session *session, uint32_t group,
                         uint32_t memory, const struct zd_location *target, bool abandoned)
{
	const struct zd_location *from = &session->members[group].lent_from[memory];
	const char *name = world->config.groups[group].name;

	if (abandoned && target->segment)
		zd_sim_fail(world, "a window of %s was abandoned and has a target", name);
	if (target->segment)
		zd_sim_target_memory_check(world, session, target, memory);
	if (!abandoned && from->segment &&
	    (from->segment != target->segment || from->offset != target->offset))
		zd_sim_fail(world, "the target of %s is at %u+%llu, places were lent of one at %u+%llu", name,
		            target->segment, (unsigned long long)target->offset, from->segment,
		            (unsigned long long)from->offset);
}

/* No step is counted of an abandoned window. */
static void check_place(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t group,
                        const struct zd_reply *reply)
{
	struct zd_sim_member *member = &session->members[group];
	const char *name = world->config.groups[group].name;
	bool abandoned = zd_sim_is_abandoned(&world->groups[group], member->step_first);

	if (world->groups[group].tainted)
		return;
	member->steps += !abandoned;
	if (reply->u.step_begin.abandoned != abandoned)
		zd_sim_fail(world, "a window of %s was%s abandoned; its step says otherwise", name,
		            abandoned ? "" : " not");
	if (reply->u.step_begin.step != member->steps)
		zd_sim_fail(world, "step %u of %s is called %llu", member->steps, name,
		            (unsigned long long)reply->u.step_begin.step);
	for (uint32_t m = 0; m < ZD_NTARGETS; m++)
		check_target(world, session, group, m, zd_reply_target(reply, m), abandoned);
}

/* Has the rank left its window: then nothing of it is lent. */
static void replied_no_step(struct zd_sim_member *member, int status)
{
	if (member->stepping || status == ZEROD_E_STATE || status == ZEROD_E_DEADLINE ||
	    status == ZEROD_E_POISONED)
		return;
	zd_sim_loans_forget(member);
	zd_sim_step_over(member);
}

/* Its entries, if it was refused at once. */
static void replied_abandon(struct zd_sim_world *world, struct zd_sim_member *member,
                            const struct zd_sim_request *request, const struct zd_reply *reply)
{
	struct zd_sim_group *model = &world->groups[request->group];

	for (uint32_t u = 0; u < ZD_SIM_UNITS && reply->status != 0 && member->abandons; u++) {
		if (request->units & (1u << u))
			member->handles[u].entry.committed = false;
	}
	if (reply->status != 0 && member->abandons && !request->had)
		model->abandoned[member->step_first % ZD_SIM_BACKWARDS] = 0;
	if (reply->status != 0)
		return;
	zd_sim_backward_over(member);
	member->has_left = true;
	if (!model->tainted)
		member->backwards = member->step_first +
		                    world->config.groups[request->group].plan.micro_steps;
}

/* Work that compares the sums of the units which have their places in the target. */
static void append_target(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t group,
                          uint32_t memory, bool waits)
{
	const struct zd_sim_member *member = &session->members[group];
	const struct zd_sim_group *model = &world->groups[group];
	struct zd_sim_item *item = zd_sim_stream_append(world, session, 0, ZD_SIM_ITEM_TARGET);

	item->group = (uint8_t)group;
	item->at = member->targets[memory];
	item->nfences = waits;
	item->begin = model->step_first;
	item->end = model->step_last;
	for (uint32_t u = 0; u < world->config.groups[group].nunits; u++) {
		item->keys[u] = member->handles[u].target_offset_numel;
		if (member->handles[u].id && !member->handles[u].untargeted &&
		    zd_sim_on_host(world, group, u) == memory)
			item->units |= (uint8_t)(1u << u);
	}
}

/* The norm of a unit is that of the last sum, and ranks return sums at different times. */
static bool has_untargeted(const struct zd_sim_member *member)
{
	bool any = false;

	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++)
		any = any || member->handles[u].untargeted;
	return any;
}

/* Of sums that are not made no overflow is known. */
static bool has_terms(const struct zd_sim_group_config *config)
{
	bool any = false;

	for (uint32_t u = 0; u < config->nunits; u++)
		any = any || config->units[u].terms;
	return any;
}

static void begin_step(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t group,
                       const struct zd_reply *reply)
{
	const struct zd_sim_plan *plan = &world->config.groups[group].plan;
	struct zd_sim_member *member = &session->members[group];
	struct zd_sim_group *model = &world->groups[group];

	check_place(world, session, group, reply);
	zd_sim_loans_forget(member);
	member->stepping = true;
	member->target_fence = reply->fence;
	for (uint32_t m = 0; m < ZD_NTARGETS; m++) {
		member->targets[m] = *zd_reply_target(reply, m);
		if (!member->targets[m].segment)
			continue;
		zd_sim_location_seen(world, session, &member->targets[m]);
		zd_sim_residue_check(world, &member->targets[m]);
	}
	if (model->tainted || reply->u.step_begin.abandoned)
		return;
	if (reply->u.step_begin.target_dtype != (uint32_t)plan->target_dtype)
		zd_sim_fail(world, "target of %s has dtype %u", world->config.groups[group].name,
		            reply->u.step_begin.target_dtype);
	if (model->step_first != member->step_first || model->step_last != member->backwards)
		zd_sim_expect_step(world, group, member->step_first, member->backwards);
	if (reply->fence.value) {
		for (uint32_t m = 0; m < ZD_NTARGETS; m++) {
			struct zd_sim_item *wait = zd_sim_stream_append(world, session, 0, ZD_SIM_ITEM_WAIT);
			wait->nfences = 1;
			wait->fences[0] = reply->fence;
			wait->at = member->targets[m];
		}
	} else if (!has_terms(&world->config.groups[group]) &&
	           reply->u.step_begin.overflow != model->overflow_once)
		zd_sim_fail(world, "step of %s: an overflow is %sreported", world->config.groups[group].name,
		            model->overflow_once ? "not " : "");
	double norm = reply->u.step_begin.norm_squared;
	if (!reply->fence.value && isfinite(model->norm_squared) && !has_untargeted(member) &&
	    fabs(norm - model->norm_squared) > 1e-9 * (1 + model->norm_squared))
		zd_sim_fail(world, "step of %s: squared norm %.9g, the reference is %.9g",
		            world->config.groups[group].name, norm, model->norm_squared);
	for (uint32_t m = 0; m < ZD_NTARGETS; m++) {
		if (member->targets[m].segment)
			append_target(world, session, group, m, reply->fence.value != 0);
	}
}

void zd_sim_reply_reduce(struct zd_sim_world *world, struct zd_sim_session *session,
                         const struct zd_sim_request *request, const struct zd_reply *reply)
{
	struct zd_sim_member *member = &session->members[request->group];
	const struct zd_sim_group_config *group = &world->config.groups[request->group];
	uint64_t *bucket = &member->buckets[zd_sim_bucket_of(group, request->unit)];

	if (reply->status != 0 || request->noise)
		zd_sim_taint(world, request->group);
	switch (request->kind) {
	case ZD_REQ_BUCKET_RESERVE:
		replied_reserve(world, session, request, reply);
		return;
	case ZD_REQ_BUCKET_SUBMIT:
		replied_commit(world, session, request, reply);
		return;
	case ZD_REQ_BUCKET_CREATE:
		if (reply->status == 0)
			*bucket = reply->u.bucket_create.bucket;
		return;
	case ZD_REQ_BUCKET_DESTROY:
		if (reply->status == 0) {
			forget_entries(member, *bucket);
			*bucket = 0;
		}
		return;
	case ZD_REQ_BACKWARD_BEGIN:
		replied_begin(world, session, request, reply);
		return;
	case ZD_REQ_BACKWARD_END:
		if (reply->status == 0 &&
		    !(world->program.ops[request->op].ahead && world->config.steps_ahead))
			zd_sim_backward_over(member);
		return;
	case ZD_REQ_STEP_BEGIN:
		if (reply->status == 0)
			begin_step(world, session, request->group, reply);
		else if (!member->lost)
			replied_no_step(member, reply->status);
		return;
	case ZD_REQ_BACKWARD_ABANDON:
		replied_abandon(world, member, request, reply);
		return;
	case ZD_REQ_STEP_END:
		replied_step_end(world, session, request, reply);
		return;
	default:
		return;
	}
}
