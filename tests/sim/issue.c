/* SPDX-License-Identifier: Apache-2.0 */
/*
 * issue.c - operations of the training become requests, and work on the client's streams.
 *
 * An operation draws from its own random stream, and names objects by number; what was not joined, registered
 * or held when its turn comes makes it void. What the model must know before the engine acts is noted here,
 * the rest when the reply comes (reply.c).
 */
#include <stdlib.h>

#include "base/mem.h"
#include "issue.h"

static const char *const tags[ZD_SIM_TAGS] = {"default", "plan", "eager"};

/* Whether the units of the request are found before, as the daemon does beside other users. */
static bool finds_ahead(const struct zd_sim_world *world, const struct zd_sim_request *request,
                        const struct zd_args *args)
{
	return (args->kind == ZD_REQ_UPDATE_BEGIN || args->kind == ZD_REQ_PUBLISH) &&
	       args->u.publish.n_units > 0 && zd_sim_mix(world->config.seed, request->id) % 2;
}

void zd_sim_send(struct zd_sim_world *world, struct zd_sim_session *session,
                 const struct zd_sim_request *request, const struct zd_args *args)
{
	session->requests = zd_sim_grow(session->requests, session->nrequests, &session->room,
	                                sizeof(*session->requests));
	struct zd_sim_request *kept = &session->requests[session->nrequests++];
	*kept = *request;
	kept->kind = args->kind;
	kept->id = ++session->next_request;
	if (!world->config.clean && !world->config.mortal &&
	    zd_sim_mix(world->config.seed, kept->op) % 4 == 0)
		kept->deadline_ns = world->now_ns + 1000 + zd_sim_mix(kept->op, world->config.seed) % 1000000;
	struct zd_call call = {.session = session->id, .request = kept->id, .deadline_ns = kept->deadline_ns};
	struct zd_found found = {0};
	struct zd_args ahead = *args;
	world->stats.requests++;
	if (finds_ahead(world, kept, args)) {
		ahead.found = &found;
		while (!zd_engine_find_ahead(world->engine, session->id, &ahead, 1 + kept->op % 2))
			zd_engine_check(world->engine);
	}
	zd_engine_request(world->engine, &call, &ahead);
	free(found.parts);
	zd_sim_called(world);
}

bool zd_sim_issue_send(struct zd_sim_issue *issue)
{
	zd_sim_send(issue->world, issue->session, &issue->request, &issue->args);
	return true;
}

struct zd_fence_list zd_sim_issue_fences(struct zd_sim_issue *issue)
{
	return (struct zd_fence_list){.count = issue->nfences, .fences = issue->fences};
}

void zd_sim_issue_signal_stream(struct zd_sim_issue *issue, uint32_t stream)
{
	issue->fences[issue->nfences++] = zd_sim_stream_signal(issue->world, issue->session, stream);
}

uint32_t zd_sim_issue_any_stream(struct zd_sim_issue *issue)
{
	return (uint32_t)zd_sim_below(&issue->rng, ZD_SIM_STREAMS);
}

/* ---- Groups and units ---------------------------------------------------------------------------------- */

static bool issue_join(struct zd_sim_issue *issue)
{
	const struct zd_sim_config *config = &issue->world->config;
	const struct zd_sim_actor_config *actor = &config->actors[issue->session->actor];

	issue->args.kind = ZD_REQ_GROUP_JOIN;
	issue->args.u.group_join.job = (char *)config->jobs[issue->group->job].name;
	issue->args.u.group_join.group = (char *)issue->group->name;
	issue->args.u.group_join.world_size = issue->group->world;
	issue->args.u.group_join.rank = issue->rank;
	issue->args.u.group_join.device = actor->device;
	issue->args.u.group_join.durable = config->jobs[issue->group->job].durable;
	issue->args.u.group_join.shadow = config->jobs[issue->group->job].shadow;
	if (actor->job < 0)
		issue->args.u.group_join.rank %= issue->group->world;
	else if (issue->member->id || issue->member->joining)
		issue->request.must_fail = true; /* taken by itself */
	else
		issue->member->joining = true;
	return zd_sim_issue_send(issue);
}

static bool somebody_registered(const struct zd_sim_issue *issue, uint32_t unit)
{
	for (uint32_t r = 0; r < issue->group->world; r++) {
		if (issue->model->shards[unit][r].exists)
			return true;
	}
	return false;
}

uint64_t zd_sim_issue_group_id(const struct zd_sim_issue *issue)
{
	const struct zd_sim_world *world = issue->world;

	for (uint32_t i = 0;
	     !issue->member->id && issue->op->noise && issue->member->joining && i < world->nsessions; i++) {
		const struct zd_sim_session *other = world->sessions[i];
		if (other->open && other->members[issue->op->group].id)
			return other->members[issue->op->group].id;
	}
	return issue->member->id;
}

static bool issue_leave(struct zd_sim_issue *issue)
{
	if (!zd_sim_issue_group_id(issue))
		return false;
	issue->args.kind = ZD_REQ_GROUP_LEAVE;
	issue->args.u.group_leave.group = zd_sim_issue_group_id(issue);
	issue->world->ending = issue->session->id;
	(void)zd_sim_issue_send(issue);
	issue->world->ending = 0;
	return true;
}

/* Now and then, before a registration: by the id that the unit has had. */
static void resume_first(struct zd_sim_issue *issue)
{
	const struct zd_args args = issue->args;
	uint32_t unit = issue->op->unit;
	protobuf_c_boolean persistent = issue->group->units[unit].persistent;

	if (!issue->model->ids[unit] || zd_sim_percent(&issue->rng, 50))
		return;
	issue->args = (struct zd_args){.kind = ZD_REQ_UNITS_RESUME,
	                               .u.units_resume = {.group = zd_sim_issue_group_id(issue),
	                                                  .n_units = 1,
	                                                  .units = &issue->model->ids[unit],
	                                                  .n_descriptions = 1,
	                                                  .descriptions = &issue->model->descriptions[unit],
	                                                  .n_persistent = 1,
	                                                  .persistent = &persistent}};
	(void)zd_sim_issue_send(issue);
	issue->args = args;
}

static bool issue_register(struct zd_sim_issue *issue)
{
	const struct zd_sim_unit_config *unit = &issue->group->units[issue->op->unit];

	if (!zd_sim_issue_group_id(issue))
		return false;
	issue->args.kind = ZD_REQ_UNIT_REGISTER;
	issue->args.u.unit_register.group = zd_sim_issue_group_id(issue);
	issue->args.u.unit_register.name = (char *)unit->name;
	issue->args.u.unit_register.dtype = unit->dtype;
	issue->args.u.unit_register.numel = unit->numel;
	issue->args.u.unit_register.n_views = unit->nviews;
	issue->shapes[0][0] = unit->numel;
	issue->shapes[1][0] = issue->shapes[1][1] = 1;
	issue->views[0] = (Zd__View){.name = (char *)"all", .n_shape = 1, .shape = issue->shapes[0]};
	issue->views[1] = (Zd__View){.name = (char *)"last",
	                             .offset_numel = unit->numel - 1,
	                             .n_shape = 2,
	                             .shape = issue->shapes[1]};
	for (int i = 0; i < 2; i++)
		issue->list[i] = &issue->views[i];
	issue->args.u.unit_register.views = issue->list;
	issue->args.u.unit_register.slot = unit->slot;
	issue->args.u.unit_register.persistent = unit->persistent;
	issue->world->groups[issue->op->group].kept[issue->op->unit] |= unit->persistent;
	issue->args.u.unit_register.frozen = unit->frozen;
	issue->args.u.unit_register.on_host = unit->on_host;
	issue->args.u.unit_register.copied = unit->copied;
	if (issue->op->noise && issue->op->arg == 0 && somebody_registered(issue, issue->op->unit)) {
		issue->args.u.unit_register.numel++;
		issue->request.must_fail = true;
		return zd_sim_issue_send(issue);
	}
	zd_sim_register_place(issue->world, issue->op->group, issue->op->unit);
	issue->handle->registering = true;
	zd_sim_place_shard(issue->world, issue->op->group, issue->op->unit, issue->rank);
	resume_first(issue);
	return zd_sim_issue_send(issue);
}

static bool issue_unregister(struct zd_sim_issue *issue)
{
	if (!issue->handle->id)
		return false;
	issue->args.kind = ZD_REQ_UNIT_UNREGISTER;
	issue->args.u.unit_unregister.unit = issue->handle->id;
	return zd_sim_issue_send(issue);
}

static bool issue_set_persistent(struct zd_sim_issue *issue)
{
	issue->args.kind = ZD_REQ_SET_PERSISTENT;
	issue->args.u.set_persistent.unit = issue->handle->id;
	issue->args.u.set_persistent.persistent = issue->op->arg & 1;
	issue->world->groups[issue->op->group].kept[issue->op->unit] |= issue->op->arg & 1;
	return issue->handle->id && zd_sim_issue_send(issue);
}

/* ---- Gather and release -------------------------------------------------------------------------------- */

/* The scope that the operation names; NULL: a tag. */
static const struct zd_sim_scope *named_scope(const struct zd_sim_issue *issue)
{
	return issue->op->tag < ZD_SIM_TAGS ? NULL : &issue->member->scopes[issue->op->tag - ZD_SIM_TAGS];
}

static bool issue_gather(struct zd_sim_issue *issue)
{
	const struct zd_sim_shard *shard = &issue->model->shards[issue->op->unit][issue->rank];
	const struct zd_sim_scope *scope = named_scope(issue);

	if (!issue->handle->id || (scope && (!scope->id || scope->state == ZD_SIM_SCOPE_PENDING)))
		return false;
	issue->args.kind = ZD_REQ_GATHER;
	issue->args.u.gather.unit = issue->handle->id;
	issue->args.u.gather.prefetch = issue->request.prefetch = issue->op->kind == ZD_SIM_PREFETCH;
	if (scope) {
		issue->args.u.gather.scope = issue->request.scope = scope->id;
		issue->request.must_fail = scope->state == ZD_SIM_SCOPE_NONE;
	} else {
		issue->args.u.gather.tag = (char *)tags[issue->op->tag];
		issue->args.u.gather.uses = issue->op->arg;
	}
	if (issue->op->noise && zd_sim_percent(&issue->rng, 25))
		issue->args.u.gather.version = shard->version + zd_sim_below(&issue->rng, 3);
	issue->request.version = issue->args.u.gather.version;
	issue->request.least_version = issue->request.version ? issue->request.version
	                                                      : shard->version + issue->handle->publishing;
	issue->request.uses = issue->args.u.gather.uses ? issue->args.u.gather.uses : 1;
	issue->request.stream = (uint8_t)zd_sim_issue_any_stream(issue);
	if (!issue->request.prefetch && !issue->request.must_fail)
		issue->handle->leases[issue->op->tag].pending++;
	return zd_sim_issue_send(issue);
}

static bool issue_use(struct zd_sim_issue *issue)
{
	struct zd_sim_lease *lease = &issue->handle->leases[issue->op->tag];
	uint32_t stream = zd_sim_issue_any_stream(issue);

	if (lease->uses == 0 || (!lease->at[ZD_SIM_LOW].segment && !lease->at[ZD_SIM_OWN].segment) ||
	    (named_scope(issue) && zd_sim_scope_ending(issue->session, named_scope(issue)->id)))
		return false;
	zd_sim_lease_read(issue->world, issue->session, issue->op->group, issue->op->unit, lease, stream);
	return true;
}

static bool issue_release(struct zd_sim_issue *issue)
{
	struct zd_sim_lease *lease = &issue->handle->leases[issue->op->tag];

	if (!issue->handle->id || (!issue->op->noise && lease->uses == 0))
		return false;
	for (uint32_t s = 0; s < ZD_SIM_STREAMS; s++) {
		if (lease->streams & (1u << s))
			zd_sim_issue_signal_stream(issue, s);
	}
	lease->streams = 0;
	issue->args.kind = ZD_REQ_RELEASE;
	issue->args.u.release.unit = issue->handle->id;
	issue->args.u.release.tag = (char *)tags[issue->op->tag];
	issue->args.fences = zd_sim_issue_fences(issue);
	return zd_sim_issue_send(issue);
}

/* ---- One operation ------------------------------------------------------------------------------------- */

static bool issue_of_kind(struct zd_sim_issue *issue)
{
	switch (issue->op->kind) {
	case ZD_SIM_JOIN:
		return issue_join(issue);
	case ZD_SIM_LEAVE:
		return issue_leave(issue);
	case ZD_SIM_RESET:
		zd_sim_reset(issue->world, issue->session, issue->request.op);
		return true;
	case ZD_SIM_REGISTER:
		return issue_register(issue);
	case ZD_SIM_UNREGISTER:
		return issue_unregister(issue);
	case ZD_SIM_UPDATE_BEGIN:
		return zd_sim_issue_update_begin(issue);
	case ZD_SIM_PUBLISH:
		return zd_sim_issue_publish(issue);
	case ZD_SIM_COMMIT:
		return zd_sim_issue_commit(issue);
	case ZD_SIM_SET_PERSISTENT:
		return issue_set_persistent(issue);
	case ZD_SIM_PLACE:
		return zd_sim_issue_place(issue);
	case ZD_SIM_GATHER:
	case ZD_SIM_PREFETCH:
		return issue_gather(issue);
	case ZD_SIM_USE:
		return issue_use(issue);
	case ZD_SIM_RELEASE:
		return issue_release(issue);
	default:
		return false;
	}
}

bool zd_sim_issue(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t index)
{
	const struct zd_sim_op *op = &world->program.ops[index];
	char text[128];

	if (world->verbose) {
		zd_sim_op_text(&world->config, op, text, sizeof(text));
		zd_sim_trace(world, "op %u: actor %u %s", index, op->actor, text);
	}
	if (op->kind == ZD_SIM_GARBAGE) {
		zd_sim_issue_garbage(world, session, index);
		return true;
	}
	if (op->kind >= ZD_SIM_FORWARD_BEGIN && op->kind <= ZD_SIM_CONTEXT_END)
		return zd_sim_issue_scope(world, session, index);
	if (op->kind >= ZD_SIM_BACKWARD_BEGIN && op->kind <= ZD_SIM_STEP_END)
		return zd_sim_issue_reduce(world, session, index);
	if (op->kind >= ZD_SIM_ALLOC && op->kind <= ZD_SIM_RELOAD)
		return zd_sim_issue_other(world, session, index);
	struct zd_sim_issue issue = {.world = world, .session = session, .op = op};
	issue.group = &world->config.groups[op->group];
	issue.model = &world->groups[op->group];
	issue.member = &session->members[op->group];
	issue.handle = &issue.member->handles[op->unit % ZD_SIM_UNITS];
	issue.rank = zd_sim_rank(&world->config, session->actor, op->group);
	issue.request =
	        (struct zd_sim_request){.op = index, .group = op->group, .unit = op->unit, .tag = op->tag};
	issue.request.noise = op->noise;
	zd_sim_rng_init(&issue.rng, world->config.seed, index);
	return issue_of_kind(&issue);
}
