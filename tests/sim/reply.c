/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply.c - replies: each answers one outstanding request, once; what it says must agree with the model.
 */
#include <string.h>

#include "sim.h"

void zd_sim_location_seen(struct zd_sim_world *world, const struct zd_sim_session *session,
                          const struct zd_location *at)
{
	const struct zd_sim_segment *segment = zd_sim_segment_find(world, at->segment);
	uint32_t device;
	uint64_t bytes;

	(void)zd_sim_memory(world, at, "location in a reply");
	if (!zd_engine_segment(world->engine, at->segment, &device, &bytes) || device != segment->device ||
	    bytes != segment->bytes)
		zd_sim_fail(world, "the engine does not know segment %u, which it has given out",
		            at->segment);
	zd_sim_map(world, session->id, at->segment);
	if (world->nseen == sizeof(world->seen) / sizeof(world->seen[0]))
		return;
	world->seen[world->nseen].session = session->id;
	world->seen[world->nseen++].segment = at->segment;
}

bool zd_sim_same_place(const struct zd_location *a, const struct zd_location *b)
{
	return a->segment == b->segment && a->offset == b->offset && a->bytes == b->bytes;
}

static void check_zero(struct zd_sim_world *world, const struct zd_location *at, const char *what)
{
	const uint8_t *bytes = zd_sim_memory(world, at, what);
	size_t same = zd_sim_pattern_check(0, bytes, at->bytes);

	if (same != at->bytes)
		zd_sim_fail(world, "%s at %u+%llu is not zeroed: byte %zu of %llu", what, at->segment,
		            (unsigned long long)at->offset, same, (unsigned long long)at->bytes);
}

/* ---- Groups and units ---------------------------------------------------------------------------------- */

static void check_joined(struct zd_sim_world *world, uint32_t index, const struct zd_reply *reply)
{
	const struct zd_sim_group *group = &world->groups[index];
	const struct zd_sim_job_config *job = &world->config.jobs[world->config.groups[index].job];
	const char *name = world->config.groups[index].name;

	if (group->torn && !reply->u.group_join.torn)
		zd_sim_fail(world, "%s is joined as whole, though a rank died while it wrote", name);
	if (job->shadow && !world->config.device_fault_permille && reply->u.group_join.torn)
		zd_sim_fail(world, "%s is joined as torn, though it keeps shadow shards", name);
	if (job->durable && reply->u.group_join.committed_step != group->committed_step)
		zd_sim_fail(world, "%s is joined at step %llu, step %llu was committed", name,
		            (unsigned long long)reply->u.group_join.committed_step,
		            (unsigned long long)group->committed_step);
}

static void replied_join(struct zd_sim_world *world, struct zd_sim_session *session,
                         const struct zd_sim_request *request, const struct zd_reply *reply)
{
	struct zd_sim_member *member = &session->members[request->group];

	if (world->config.actors[session->actor].job < 0)
		return; /* a job of its own, under the same name */
	member->joining = false;
	if (reply->status != 0)
		return;
	member->id = reply->u.group_join.group;
	zd_sim_regroup_wake(world);
	check_joined(world, request->group, reply);
}

static void replied_register(struct zd_sim_world *world, struct zd_sim_session *session,
                             const struct zd_sim_request *request, const struct zd_reply *reply)
{
	const struct zd_sim_group_config *group = &world->config.groups[request->group];
	uint32_t unit = request->unit, rank = zd_sim_rank(&world->config, session->actor, request->group);
	struct zd_sim_shard *shard = &world->groups[request->group].shards[unit][rank];
	const struct zd_sim_member *member = &session->members[request->group];
	struct zd_sim_handle *handle = &session->members[request->group].handles[unit];
	uint64_t numel = zd_sim_shard_numel(group, unit), each = zerod_dtype_bytes(group->units[unit].dtype);

	handle->registering = false;
	shard->maybe = shard->maybe || reply->status == ZEROD_E_DEADLINE; /* it may be placed already */
	if (reply->status != 0)
		return;
	if (reply->u.unit_register.shard_numel != numel ||
	    reply->u.unit_register.true_numel != zd_sim_true_numel(group, unit, rank) ||
	    reply->u.unit_register.padded_numel != numel * group->world || reply->place.bytes != numel * each)
		zd_sim_fail(world, "shard of %s/%s, rank %u: wrong sizes", group->name,
		            group->units[unit].name, rank);
	if (handle->id && handle->id != reply->u.unit_register.unit)
		zd_sim_fail(world, "%s/%s has another id when registered again", group->name,
		            group->units[unit].name);
	zd_sim_location_seen(world, session, &reply->place);
	handle->id = reply->u.unit_register.unit;
	handle->shard = reply->place;
	world->groups[request->group].ids[unit] = handle->id;
	world->groups[request->group].descriptions[unit] = reply->u.unit_register.description;
	handle->target_offset_numel = reply->u.unit_register.target_offset_numel;
	zd_sim_placed_check(world, request->group, unit, rank, reply->u.unit_register.placed);
	if (shard->exists && shard->at.segment == 0)
		shard->at = handle->shard;
	if (shard->exists) {
		if (shard->version != reply->u.unit_register.version ||
		    !zd_sim_same_place(&shard->at, &handle->shard))
			zd_sim_fail(world, "shard of %s/%s, rank %u: was version %llu, now %llu at %u+%llu",
			            group->name, group->units[unit].name, rank,
			            (unsigned long long)shard->version,
			            (unsigned long long)reply->u.unit_register.version, handle->shard.segment,
			            (unsigned long long)handle->shard.offset);
		return;
	}
	check_zero(world, &handle->shard, "new shard");
	if (member->backwards != member->step_first) /* the target that is bound has no place for it */
		zd_sim_taint(world, request->group);
	shard->next_key = 0;
	memset(shard->keys, 0, sizeof(shard->keys));
	shard->maybe = shard->owed = shard->kept = false;
	shard->exists = true;
	shard->version = shard->committed = reply->u.unit_register.version;
	shard->at = handle->shard;
}

/* Resumes only what is there, and does not tell anything else of it than a registration does. */
static void replied_resume(struct zd_sim_world *world, struct zd_sim_session *session,
                           const struct zd_sim_request *request, const struct zd_reply *reply)
{
	uint32_t rank = zd_sim_rank(&world->config, session->actor, request->group);
	const struct zd_sim_shard *shard = &world->groups[request->group].shards[request->unit][rank];
	const Zd__UnitsResumeReply *resumed = &reply->u.units_resume;
	struct zd_location at;

	if (reply->status != 0 || resumed->segments[0] == 0)
		return;
	at = (struct zd_location){resumed->segments[0], resumed->offsets[0], shard->at.bytes};
	world->stats.resumed++;
	zd_sim_location_seen(world, session, &at);
	/* It exists without an answer if its rank went before that. */
	zd_sim_placed_check(world, request->group, request->unit, rank,
	                    resumed->n_placed ? resumed->placed[0] : ZD__PLACED__AS_REGISTERED);
	if (shard->exists && (shard->version != resumed->versions[0] ||
	                      (shard->at.segment && !zd_sim_same_place(&shard->at, &at))))
		zd_sim_fail(world, "unit %u, rank %u: is resumed with version %llu at %u+%llu", request->unit,
		            rank, (unsigned long long)resumed->versions[0], at.segment,
		            (unsigned long long)at.offset);
}

static void replied_unregister(struct zd_sim_world *world, struct zd_sim_session *session,
                               const struct zd_sim_request *request, const struct zd_reply *reply)
{
	uint32_t rank = zd_sim_rank(&world->config, session->actor, request->group);

	if (reply->status != 0)
		return;
	memset(&session->members[request->group].handles[request->unit], 0, sizeof(struct zd_sim_handle));
	world->groups[request->group].shards[request->unit][rank].exists = false;
	zd_sim_taint(world, request->group);
}

static void check_update(struct zd_sim_world *world, const struct zd_sim_session *session,
                         const struct zd_sim_request *request)
{
	if (session->members[request->group].set_back)
		zd_sim_fail(world, "session %llu may write, though it does not know that it was set back",
		            (unsigned long long)session->id);
}

/* The daemon has shards of an update that was undone back; the others are still to be published. */
static void publish_refused(struct zd_sim_handle *handle, int status)
{
	if (handle->undone && (status == ZEROD_E_PEER_LOST || status == ZEROD_E_ABORTED))
		handle->undone = handle->updating = handle->written = false;
}

/* The publish has failed: the session's gathers behind it may return the version before. */
static void expect_no_publish(struct zd_sim_session *session, uint32_t group, uint32_t unit, uint64_t version)
{
	for (uint32_t i = 0; i < session->nrequests; i++) {
		struct zd_sim_request *request = &session->requests[i];
		if (request->kind == ZD_REQ_GATHER && request->group == group && request->unit == unit &&
		    !request->version)
			request->least_version = version;
	}
}

static void check_held(struct zd_sim_world *world, const struct zd_sim_request *request,
                       const struct zd_reply *reply)
{
	if (request->held && reply->status == 0)
		zd_sim_fail(world, "operation %u writes or publishes what its rank holds", request->op);
	if (request->unheld && reply->status == ZEROD_E_BUSY)
		zd_sim_fail(world, "operation %u writes or publishes what its rank does not hold: %s",
		            request->op, reply->error);
}

static void check_unheld(struct zd_sim_world *world, const struct zd_sim_handle *handle,
                         const struct zd_sim_request *request)
{
	for (uint32_t h = 0; h < ZD_SIM_HOLDERS; h++) {
		if (handle->leases[h].uses && handle->leases[h].at[ZD_SIM_OWN].segment)
			zd_sim_fail(world, "operation %u: the rank holds the shard that it may write",
			            request->op);
	}
}

/* Granted ahead: what writes the shard waits on a stream. */
static void write_behind(struct zd_sim_world *world, struct zd_sim_session *session,
                         const struct zd_sim_request *request, uint32_t unit, struct zd_fence fence)
{
	struct zd_sim_handle *handle = &session->members[request->group].handles[unit];

	if (fence.value == 0)
		return;
	handle->written = true;
	handle->writer = (uint8_t)(fence.value % ZD_SIM_STREAMS);
	struct zd_sim_item *item = zd_sim_stream_append(world, session, handle->writer, ZD_SIM_ITEM_WAIT);
	item->fences[item->nfences++] = fence;
	item->at = handle->shard;
	item->group = request->group;
	item->unit = (uint8_t)unit;
	item->value = 1;
}

static void replied_update(struct zd_sim_world *world, struct zd_sim_session *session,
                           const struct zd_sim_request *request, const struct zd_reply *reply)
{
	uint32_t rank = zd_sim_rank(&world->config, session->actor, request->group);

	check_held(world, request, reply);
	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++) {
		struct zd_sim_handle *handle = &session->members[request->group].handles[u];
		struct zd_sim_shard *shard = &world->groups[request->group].shards[u][rank];

		if (!(request->units & (1u << u)))
			continue;
		if (request->kind == ZD_REQ_UPDATE_BEGIN) {
			if (reply->status == 0) {
				check_update(world, session, request);
				handle->updating = true;
				handle->written = handle->undone = false;
				check_unheld(world, handle, request);
				if (reply->fence.value == 0) {
					zd_sim_residue_check(world, &handle->shard);
					zd_sim_unread_check(world, session, request->group, u);
				}
				write_behind(world, session, request, u, reply->fence);
				shard->next_key = shard->keys[shard->version % ZD_SIM_VERSIONS];
			}
			continue;
		}
		handle->publishing = false;
		if (reply->status != 0) {
			publish_refused(handle, reply->status);
			expect_no_publish(session, request->group, u, shard->version);
			continue;
		}
		if (handle->undone)
			zd_sim_fail(world, "version %llu of %s/%s is published, though it was undone",
			            (unsigned long long)shard->version + 1,
			            world->config.groups[request->group].name,
			            world->config.groups[request->group].units[u].name);
		handle->updating = handle->written = false;
		shard->keys[++shard->version % ZD_SIM_VERSIONS] = shard->next_key;
	}
}

/* ---- Allocations, administration ----------------------------------------------------------------------- */

static void replied_alloc(struct zd_sim_world *world, struct zd_sim_session *session,
                          const struct zd_sim_request *request, const struct zd_reply *reply)
{
	struct zd_sim_alloc *alloc = &session->allocs[request->alloc];

	alloc->pending = false;
	if (reply->status != 0)
		return;
	alloc->id = reply->u.alloc.allocation;
	alloc->at = reply->place;
	if (alloc->at.bytes < request->bytes || alloc->at.offset % request->alignment != 0)
		zd_sim_fail(world, "allocation of %llu bytes aligned to %llu: %llu bytes at %llu",
		            (unsigned long long)request->bytes, (unsigned long long)request->alignment,
		            (unsigned long long)alloc->at.bytes, (unsigned long long)alloc->at.offset);
	zd_sim_location_seen(world, session, &alloc->at);
	zd_sim_residue_check(world, &alloc->at);
	check_zero(world, &alloc->at, "allocation");
	alloc->key = zd_sim_mix(world->config.seed, request->op);
	zd_sim_pattern_write(alloc->key, zd_sim_memory(world, &alloc->at, "allocation"), alloc->at.bytes);
}

static bool ends_step(const struct zd_sim_session *session, uint32_t group)
{
	for (uint32_t i = 0; i < session->nrequests; i++) {
		if (session->requests[i].kind == ZD_REQ_STEP_END && session->requests[i].group == group)
			return true;
	}
	return false;
}

/* It names the groups whose target the session may read, and no other; or one whose step is about to end. */
static void check_steps(struct zd_sim_world *world, const struct zd_sim_session *session,
                        const struct zd_reply *reply)
{
	for (uint32_t g = 0; g < world->config.ngroups; g++) {
		const struct zd_sim_member *member = &session->members[g];
		bool reads = member->id != 0 && (member->stepping || zd_sim_lends(member)) && !member->lost;
		bool named = false;

		for (uint32_t i = 0; i < reply->u.session_reset.n_steps; i++)
			named |= member->id != 0 && reply->u.session_reset.steps[i] == member->id;
		/* whether a window that has failed has lent anything is not always known */
		if (named && (ends_step(session, g) || (world->config.lends && world->groups[g].tainted)))
			continue;
		if (reads != named)
			zd_sim_fail(world,
			            "session %llu %s the target of group %u, and its reset says otherwise",
			            (unsigned long long)session->id, reads ? "reads" : "does not read", g);
	}
}

static void replied_other(struct zd_sim_world *world, struct zd_sim_session *session,
                          const struct zd_sim_request *request, const struct zd_reply *reply)
{
	if (reply->status != 0)
		return;
	switch (request->kind) {
	case ZD_REQ_SESSION_RESET:
		zd_sim_shards_check(world, session);
		check_steps(world, session, reply);
		break;
	case ZD_REQ_COMMIT:
		zd_sim_committed(world, request->group, request->version);
		break;
	case ZD_REQ_GROUP_LEAVE:
		zd_sim_member_gone(world, session, request->group, true);
		break;
	case ZD_REQ_END_JOB:
	case ZD_REQ_KILL_JOB:
		if (request->group < world->config.ngroups)
			zd_sim_job_gone(world, world->config.groups[request->group].job);
		break;
	case ZD_REQ_ABORT_GROUP:
		zd_sim_group_lost(world, request->group);
		zd_sim_taint(world, request->group);
		break;
	default:
		break;
	}
}

static void dispatch(struct zd_sim_world *world, struct zd_sim_session *session,
                     const struct zd_sim_request *request, const struct zd_reply *reply)
{
	switch (request->kind) {
	case ZD_REQ_GROUP_JOIN:
		replied_join(world, session, request, reply);
		break;
	case ZD_REQ_UNIT_REGISTER:
		replied_register(world, session, request, reply);
		break;
	case ZD_REQ_UNITS_RESUME:
		replied_resume(world, session, request, reply);
		break;
	case ZD_REQ_UNIT_UNREGISTER:
		replied_unregister(world, session, request, reply);
		break;
	case ZD_REQ_UPDATE_BEGIN:
	case ZD_REQ_PUBLISH:
		replied_update(world, session, request, reply);
		break;
	case ZD_REQ_UNIT_PLACE:
		zd_sim_reply_place(world, session, request, reply);
		break;
	case ZD_REQ_GATHER:
	case ZD_REQ_RELEASE:
		zd_sim_reply_gather(world, session, request, reply);
		break;
	case ZD_REQ_FORWARD_BEGIN:
	case ZD_REQ_FORWARD_END:
	case ZD_REQ_CLAIM_END:
	case ZD_REQ_SCOPE_ABANDON:
	case ZD_REQ_CONTEXT_BEGIN:
	case ZD_REQ_CONTEXT_END:
		zd_sim_reply_scope(world, session, request, reply);
		break;
	case ZD_REQ_ALLOC:
		replied_alloc(world, session, request, reply);
		break;
	case ZD_REQ_BACKWARD_BEGIN:
	case ZD_REQ_BUCKET_CREATE:
	case ZD_REQ_BUCKET_DESTROY:
	case ZD_REQ_BUCKET_RESERVE:
	case ZD_REQ_BUCKET_SUBMIT:
	case ZD_REQ_REDUCE_SKIP:
	case ZD_REQ_BACKWARD_END:
	case ZD_REQ_BACKWARD_ABANDON:
	case ZD_REQ_STEP_BEGIN:
	case ZD_REQ_STEP_END:
		zd_sim_reply_reduce(world, session, request, reply);
		break;
	case ZD_REQ_SET_FROZEN:
		session->members[request->group].handles[request->unit].untargeted |= reply->status == 0;
		break;
	case ZD_REQ_REDUCE_WAIT:
		zd_sim_reply_loan(world, session, request, reply);
		break;
	default:
		replied_other(world, session, request, reply);
		break;
	}
}

/* ---- Any reply ----------------------------------------------------------------------------------------- */

/* A prefetch waits while any gather waits for memory, and nobody waits for its reply: its peers may have left
 * before. */
static bool is_late_prefetch(const struct zd_sim_request *request, const struct zd_reply *reply)
{
	return request->prefetch && reply->status == ZEROD_E_PEER_LOST;
}

static void check_status(struct zd_sim_world *world, const struct zd_sim_session *session,
                         const struct zd_sim_request *request, const struct zd_reply *reply)
{
	bool text = reply->error && reply->error[0];

	if (reply->kind != request->kind)
		zd_sim_fail(world, "a reply of kind %d to a request of kind %d", (int)reply->kind,
		            (int)request->kind);
	if (reply->status > 0 || reply->status < ZEROD_E_RESTARTED || (reply->status != 0) != text)
		zd_sim_fail(world, "a reply with status %d and the text \"%s\"", reply->status,
		            reply->error ? reply->error : "(null)");
	if (request->must_fail && reply->status == 0)
		zd_sim_fail(world, "operation %u must fail and does not", request->op);
	if (world->config.clean && reply->status != 0 && !is_late_prefetch(request, reply) &&
	    reply->kind != ZD_REQ_REDUCE_WAIT) /* loan.c */
		zd_sim_fail(world, "operation %u of a program without mistakes fails: %s (%s)", request->op,
		            zerod_status_name(reply->status), reply->error);
	if (reply->status == ZEROD_E_POISONED && !session->aborted)
		zd_sim_fail(world, "session %llu is poisoned, and nothing was aborted since its reset",
		            (unsigned long long)session->id);
	if (reply->status == ZEROD_E_DEADLINE &&
	    (!request->deadline_ns || world->now_ns < request->deadline_ns))
		zd_sim_fail(world, "operation %u: its deadline is %llu", request->op,
		            (unsigned long long)request->deadline_ns);
}

void zd_sim_reply(void *arg, const struct zd_reply *reply)
{
	struct zd_sim_world *world = arg;
	struct zd_sim_session *session = zd_sim_session_find(world, reply->session);

	if (!session || !session->open)
		zd_sim_fail(world, "a reply to session %llu, which is not open",
		            (unsigned long long)reply->session);
	if (zd_sim_is_answer(world, reply))
		return;
	if (session->duplicate == reply->request && reply->status != 0) {
		session->duplicate = 0;
		return;
	}
	struct zd_sim_request *found = zd_sim_request_find(session, reply->request);
	if (!found &&
	    session->duplicate == reply->request) { /* the engine answered the first one before it */
		session->duplicate = 0;
		return;
	}
	if (!found)
		zd_sim_fail(world, "a reply to request %llu of session %llu, which is not outstanding",
		            (unsigned long long)reply->request, (unsigned long long)reply->session);
	struct zd_sim_request request = *found;
	*found = session->requests[--session->nrequests];
	zd_sim_trace(world, "  reply to op %u (session %llu): %s %s", request.op,
	             (unsigned long long)session->id, zerod_status_name(reply->status), reply->error);
	check_status(world, session, &request, reply);
	session->poisoned = session->poisoned || reply->status == ZEROD_E_POISONED;
	session->told = session->told || reply->status == ZEROD_E_PEER_LOST;
	if (!request.must_fail)
		dispatch(world, session, &request, reply);
	struct zd_sim_actor *actor = &world->actors[session->actor];
	if (actor->blocked_on == request.id)
		actor->blocked_on = 0;
	zd_sim_actor_wake(world, session->actor);
}
