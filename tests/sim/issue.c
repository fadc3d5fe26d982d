/* SPDX-License-Identifier: Apache-2.0 */
/*
 * issue.c - operations of the training become requests, and work on the client's streams.
 *
 * An operation draws from its own random stream, and names objects by number; what was not joined, registered or held
 * when its turn comes makes it void. What the model must know before the engine acts is noted here, the rest when the
 * reply comes (reply.c).
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "sim.h"

static const char *const tags[ZD_SIM_TAGS] = {"default", "plan", "eager"};

struct issue {
	struct zd_sim_world *world;
	struct zd_sim_session *session;
	const struct zd_sim_op *op;
	struct zd_sim_rng rng;
	const struct zd_sim_group_config *group;
	struct zd_sim_group *model;
	struct zd_sim_member *member;
	struct zd_sim_handle *handle;
	uint32_t rank;
	struct zd_sim_request request;
	struct zd_args args;
	struct zd_fence fences[ZD_SIM_STREAMS];
	uint32_t nfences;
	struct zd_view_args views[2];
	uint64_t ids[ZD_SIM_UNITS];
};

void zd_sim_send(struct zd_sim_world *world, struct zd_sim_session *session,
                 const struct zd_sim_request *request, const struct zd_args *args)
{
	session->requests = zd_sim_grow(session->requests, session->nrequests, &session->room,
	                                sizeof(*session->requests));
	struct zd_sim_request *kept = &session->requests[session->nrequests++];
	*kept = *request;
	kept->kind = args->kind;
	kept->id = ++session->next_request;
	if (!world->config.clean && zd_sim_mix(world->config.seed, kept->op) % 4 == 0)
		kept->deadline_ns = world->now_ns + 1000 + zd_sim_mix(kept->op, world->config.seed) % 1000000;
	struct zd_call call = {.session = session->id, .request = kept->id, .deadline_ns = kept->deadline_ns};
	world->stats.requests++;
	zd_engine_request(world->engine, &call, args);
	zd_sim_called(world);
}

static bool send(struct issue *issue)
{
	zd_sim_send(issue->world, issue->session, &issue->request, &issue->args);
	return true;
}

static struct zd_fence_list fences(struct issue *issue)
{
	return (struct zd_fence_list){.count = issue->nfences, .fences = issue->fences};
}

static void signal_stream(struct issue *issue, uint32_t stream)
{
	issue->fences[issue->nfences++] = zd_sim_stream_signal(issue->world, issue->session, stream);
}

static uint32_t any_stream(struct issue *issue)
{
	return (uint32_t)zd_sim_below(&issue->rng, ZD_SIM_STREAMS);
}

/* ---- Groups and units --------------------------------------------------------------------------------------------- */

static bool issue_join(struct issue *issue)
{
	const struct zd_sim_config *config = &issue->world->config;
	const struct zd_sim_actor_config *actor = &config->actors[issue->session->actor];

	issue->args.kind = ZD_REQ_GROUP_JOIN;
	issue->args.u.group_join.job = config->jobs[issue->group->job].name;
	issue->args.u.group_join.group = issue->group->name;
	issue->args.u.group_join.world_size = issue->group->world;
	issue->args.u.group_join.rank = issue->rank;
	issue->args.u.group_join.device = actor->device;
	issue->args.u.group_join.durable = config->jobs[issue->group->job].durable;
	if (actor->job < 0)
		issue->args.u.group_join.rank %= issue->group->world;
	else if (issue->member->id || issue->member->joining)
		issue->request.must_fail = true; /* taken by itself */
	else
		issue->member->joining = true;
	return send(issue);
}

static bool somebody_registered(const struct issue *issue, uint32_t unit)
{
	for (uint32_t r = 0; r < issue->group->world; r++) {
		if (issue->model->shards[unit][r].exists)
			return true;
	}
	return false;
}

/* The group's id; noise knows it from another rank when its own join is not answered yet. */
static uint64_t group_id(const struct issue *issue)
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

static bool issue_register(struct issue *issue)
{
	const struct zd_sim_unit_config *unit = &issue->group->units[issue->op->unit];

	if (!group_id(issue))
		return false;
	issue->args.kind = ZD_REQ_UNIT_REGISTER;
	issue->args.u.unit_register.group = group_id(issue);
	issue->args.u.unit_register.name = unit->name;
	issue->args.u.unit_register.dtype = unit->dtype;
	issue->args.u.unit_register.numel = unit->numel;
	issue->args.u.unit_register.nviews = unit->nviews;
	issue->views[0] = (struct zd_view_args){.name = "all", .ndim = 1, .shape = {unit->numel}};
	issue->views[1] = (struct zd_view_args){
	        .name = "last", .offset_numel = unit->numel - 1, .ndim = 2, .shape = {1, 1}};
	issue->args.u.unit_register.views = issue->views;
	issue->args.u.unit_register.slot = unit->slot;
	issue->args.u.unit_register.persistent = unit->persistent;
	issue->args.u.unit_register.frozen = unit->frozen;
	if (issue->op->noise && issue->op->arg == 0 && somebody_registered(issue, issue->op->unit)) {
		issue->args.u.unit_register.numel++;
		issue->request.must_fail = true;
		return send(issue);
	}
	issue->handle->registering = true;
	issue->model->shards[issue->op->unit][issue->rank].device =
	        issue->world->config.actors[issue->session->actor].device;
	return send(issue);
}

static bool issue_unregister(struct issue *issue)
{
	if (!issue->handle->id)
		return false;
	issue->args.kind = ZD_REQ_UNIT_UNREGISTER;
	issue->args.u.unit = issue->handle->id;
	return send(issue);
}

/* ---- Updates --------------------------------------------------------------------------------------------------------- */

/* The units that the operation names and that `wanted` accepts. */
static uint32_t pick_units(struct issue *issue, bool (*wanted)(const struct zd_sim_handle *))
{
	uint32_t count = 0;

	for (uint32_t u = 0; u < issue->group->nunits; u++) {
		const struct zd_sim_handle *handle = &issue->member->handles[u];
		if ((issue->op->unit != ZD_SIM_ALL_UNITS && issue->op->unit != u) || !handle->id ||
		    !wanted(handle))
			continue;
		issue->ids[count++] = handle->id;
		issue->request.units |= (uint8_t)(1u << u);
	}
	issue->args.u.publish.nunits = count;
	issue->args.u.publish.units = issue->ids;
	return count;
}

static bool not_updating(const struct zd_sim_handle *handle)
{
	return !handle->updating;
}

static bool may_publish(const struct zd_sim_handle *handle)
{
	return handle->updating && !handle->publishing;
}

static bool issue_update_begin(struct issue *issue)
{
	issue->args.kind = ZD_REQ_UPDATE_BEGIN;
	return pick_units(issue, not_updating) > 0 && send(issue);
}

/* The shard's new content. What an earlier, refused publish has queued stays in front, on the same stream. */
static void write_shard(struct issue *issue, uint32_t unit, bool now)
{
	struct zd_sim_shard *shard = &issue->model->shards[unit][issue->rank];
	struct zd_sim_handle *handle = &issue->member->handles[unit];
	uint64_t each = zerod_dtype_bytes(issue->group->units[unit].dtype);
	struct zd_location at = handle->shard;

	at.bytes = zd_sim_true_numel(issue->group, unit, issue->rank) * each;
	if (zd_sim_percent(&issue->rng, 90)) {
		shard->next_key = zd_sim_mix(zd_sim_next(&issue->rng), unit);
		if (now) {
			zd_sim_pattern_write(shard->next_key, zd_sim_memory(issue->world, &at, "shard"),
			                     at.bytes);
		} else {
			struct zd_sim_item *item = zd_sim_stream_append(issue->world, issue->session,
			                                                handle->writer, ZD_SIM_ITEM_WRITE);
			item->at = at;
			item->key = shard->next_key;
		}
	}
	shard->keys[(shard->version + 1) % ZD_SIM_VERSIONS] = shard->next_key;
}

static bool issue_publish(struct issue *issue)
{
	bool now = zd_sim_percent(&issue->rng, 20), used[ZD_SIM_STREAMS] = {false};

	if (pick_units(issue, may_publish) == 0)
		return false;
	for (uint32_t u = 0; u < issue->group->nunits; u++)
		now = now && (!(issue->request.units & (1u << u)) || !issue->member->handles[u].written);
	for (uint32_t u = 0; u < issue->group->nunits; u++) {
		struct zd_sim_handle *handle = &issue->member->handles[u];
		if (!(issue->request.units & (1u << u)))
			continue;
		if (!handle->written)
			handle->writer = (uint8_t)any_stream(issue);
		handle->publishing = handle->written = true;
		write_shard(issue, u, now);
		used[handle->writer] = !now;
	}
	for (uint32_t s = 0; s < ZD_SIM_STREAMS; s++) {
		if (used[s])
			signal_stream(issue, s);
	}
	issue->args.kind = ZD_REQ_PUBLISH;
	issue->args.u.publish.fences = fences(issue);
	issue->args.u.publish.force = issue->op->noise && zd_sim_percent(&issue->rng, 50);
	return send(issue);
}

static bool issue_commit(struct issue *issue)
{
	issue->args.kind = ZD_REQ_COMMIT;
	issue->args.u.commit.group = group_id(issue);
	issue->args.u.commit.step = issue->op->arg;
	return group_id(issue) && send(issue);
}

static bool issue_set_persistent(struct issue *issue)
{
	issue->args.kind = ZD_REQ_SET_PERSISTENT;
	issue->args.u.set_persistent.unit = issue->handle->id;
	issue->args.u.set_persistent.persistent = issue->op->arg & 1;
	return issue->handle->id && send(issue);
}

/* ---- Gather and release ------------------------------------------------------------------------------------------------ */

static bool issue_gather(struct issue *issue)
{
	const struct zd_sim_shard *shard = &issue->model->shards[issue->op->unit][issue->rank];

	if (!issue->handle->id)
		return false;
	issue->args.kind = ZD_REQ_GATHER;
	issue->args.u.gather.unit = issue->handle->id;
	issue->args.u.gather.tag = tags[issue->op->tag];
	issue->args.u.gather.prefetch = issue->request.prefetch = issue->op->kind == ZD_SIM_PREFETCH;
	issue->args.u.gather.uses = issue->op->arg;
	if (issue->op->noise && zd_sim_percent(&issue->rng, 25))
		issue->args.u.gather.version = shard->version + zd_sim_below(&issue->rng, 3);
	issue->request.version = issue->args.u.gather.version;
	issue->request.least_version = issue->request.version ? issue->request.version : shard->version;
	issue->request.uses = issue->op->arg ? issue->op->arg : 1;
	issue->request.stream = (uint8_t)any_stream(issue);
	if (!issue->request.prefetch)
		issue->handle->leases[issue->op->tag].pending++;
	return send(issue);
}

static bool issue_use(struct issue *issue)
{
	struct zd_sim_lease *lease = &issue->handle->leases[issue->op->tag];
	uint32_t stream = issue->world->config.client_copies ? issue->handle->home : any_stream(issue);

	if (lease->uses == 0)
		return false;
	zd_sim_lease_read(issue->world, issue->session, issue->op->group, issue->op->unit, lease, stream,
	                  false);
	return true;
}

static bool issue_release(struct issue *issue)
{
	struct zd_sim_lease *lease = &issue->handle->leases[issue->op->tag];

	if (!issue->handle->id || (!issue->op->noise && lease->uses == 0))
		return false;
	for (uint32_t s = 0; s < ZD_SIM_STREAMS; s++) {
		if (lease->streams & (1u << s))
			signal_stream(issue, s);
	}
	lease->streams = 0;
	issue->args.kind = ZD_REQ_RELEASE;
	issue->args.u.release.unit = issue->handle->id;
	issue->args.u.release.tag = tags[issue->op->tag];
	issue->args.u.release.fences = fences(issue);
	return send(issue);
}

/* ---- One operation -------------------------------------------------------------------------------------------------------- */

static bool issue_of_kind(struct issue *issue)
{
	switch (issue->op->kind) {
	case ZD_SIM_JOIN:
		return issue_join(issue);
	case ZD_SIM_LEAVE:
		issue->args.kind = ZD_REQ_GROUP_LEAVE;
		issue->args.u.group = group_id(issue);
		return group_id(issue) && send(issue);
	case ZD_SIM_RESET:
		issue->args.kind = ZD_REQ_SESSION_RESET;
		return send(issue);
	case ZD_SIM_REGISTER:
		return issue_register(issue);
	case ZD_SIM_UNREGISTER:
		return issue_unregister(issue);
	case ZD_SIM_UPDATE_BEGIN:
		return issue_update_begin(issue);
	case ZD_SIM_PUBLISH:
		return issue_publish(issue);
	case ZD_SIM_COMMIT:
		return issue_commit(issue);
	case ZD_SIM_SET_PERSISTENT:
		return issue_set_persistent(issue);
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
	if (op->kind >= ZD_SIM_BACKWARD_BEGIN && op->kind <= ZD_SIM_STEP_END)
		return zd_sim_issue_reduce(world, session, index);
	if (op->kind >= ZD_SIM_ALLOC && op->kind <= ZD_SIM_RELOAD)
		return zd_sim_issue_other(world, session, index);
	struct issue issue = {.world = world, .session = session, .op = op};
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
