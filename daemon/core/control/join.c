/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.c - ranks join and leave groups. Administrators abort groups and end jobs.
 *
 * A group is FAILED when an attached rank leaves or its session ends while other ranks remain. The requests
 * of these ranks end with PEER_LOST, which names the lost rank. If that rank ended normally, requests that
 * only gather continue with its shards (part.c). The group is READY again when every rank is attached. An
 * ABORTED group ends when its last rank has left. In a durable job, ranks can then join the group again.
 */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "core/cluster/cluster.h"
#include "core/control/control.h"
#include "core/gather/collective.h"
#include "core/gather/commit.h"
#include "core/gather/scope.h"
#include "core/gather/shadow.h"
#include "core/memory/allocation.h"
#include "core/reduce/member.h"
#include "core/reduce/reduce.h"

/* ---- Groups -------------------------------------------------------------------------------------------- */

struct zd_group *zd_group_find(const struct zd_job *job, const char *name)
{
	struct zd_hash_node *node = zd_hash_first(&job->group_names, zd_text_hash(name));
	for (; node; node = zd_hash_next(node)) {
		struct zd_group *group = ZD_CONTAINER_OF(node, struct zd_group, by_name);
		if (strcmp(group->name, name) == 0)
			return group;
	}
	return NULL;
}

void zd_journal_group(const struct zd_group *group)
{
	if (!group->job->journal)
		return;
	struct zd_record_group *record = zd_journal_add(group->job->journal, ZD_RECORD_GROUP, group->id, 0,
	                                                sizeof(*record));
	record->job = group->job->id;
	record->world_size = group->world_size;
	record->local_world_size = group->local_world_size;
	record->first_rank = group->first_rank;
	record->hybrid = group->cluster && group->cluster->hybrid;
	record->nccl_collectives = group->cluster && group->cluster->nccl_collectives;
	record->shadow = group->shadow;
	(void)snprintf(record->name, sizeof(record->name), "%s", group->name);
}

static uint32_t ranks_here(const struct zd_args *args)
{
	uint32_t local_world_size = args->u.group_join.local_world_size;
	return local_world_size ? local_world_size : args->u.group_join.world_size;
}

/* The metadata of a group, including what its ranks need when they first reduce gradients. */
static uint32_t group_metadata_bytes(const struct zd_args *args)
{
	size_t rank_bytes = sizeof(struct zd_member) + sizeof(struct zd_member_reduce) +
	                    2 * sizeof(struct zd_window);
	return (uint32_t)(sizeof(struct zd_group) + strlen(args->u.group_join.group) + 1 +
	                  ranks_here(args) * rank_bytes + zd_cluster_metadata_bytes(args));
}

struct zd_group *zd_group_new(struct zd_engine *e, struct zd_job *job, const struct zd_args *args)
{
	uint32_t local_world_size = ranks_here(args);
	struct zd_group *group = zd_calloc(1, sizeof(*group));
	group->metadata_bytes = group_metadata_bytes(args);
	zd_metadata_charge(job->owner, group->metadata_bytes);
	group->id = zd_next_id(e, job->owner->ids, ZD_ID_GROUP);
	group->name = zd_strdup(args->u.group_join.group);
	group->shadow = args->u.group_join.shadow;
	group->job = job;
	group->cluster = zd_cluster_new(args);
	group->state = ZD_GROUP_FORMING;
	group->world_size = args->u.group_join.world_size;
	group->local_world_size = local_world_size;
	group->nshards = args->u.group_join.hybrid ? local_world_size : group->world_size;
	group->first_rank = args->u.group_join.rank / local_world_size * local_world_size;
	group->members = zd_calloc(local_world_size, sizeof(*group->members));
	for (uint32_t rank = 0; rank < local_world_size; rank++) {
		group->members[rank].group = group;
		group->members[rank].rank = rank;
		TAILQ_INIT(&group->members[rank].slots);
		TAILQ_INIT(&group->members[rank].scopes);
		TAILQ_INIT(&group->members[rank].barriers);
	}
	TAILQ_INIT(&group->units);
	TAILQ_INIT(&group->former);
	for (uint32_t i = 0; i < ZD_NTARGETS; i++)
		TAILQ_INIT(&group->places[i]);
	TAILQ_INIT(&group->unready);
	TAILQ_INIT(&group->slots);
	TAILQ_INIT(&group->reductions);
	TAILQ_INSERT_TAIL(&job->groups, group, job_link);
	zd_hash_insert(&job->group_names, &group->by_name, zd_text_hash(group->name));
	HASH_ADD(hh, e->groups, id, sizeof(group->id), group);
	zd_id_tree_insert(&e->listed[ZD__TABLE__GROUPS], &group->listed, group->id);
	job->refs++;
	zd_job_note_group(e, job);
	if (job->durable)
		group->refs++;
	zd_journal_group(group);
	zd_journal_group_state(group);
	return group;
}

/* ---- Members ------------------------------------------------------------------------------------------- */

static void member_attach(struct zd_engine *e, struct zd_member *member, struct zd_session *session,
                          struct zd_device *device)
{
	struct zd_group *group = member->group;
	bool was_forming = group->state == ZD_GROUP_FORMING;
	member->device = device;
	member->committing = false;
	member->since_commits = group->ncommits;
	member->set_back = false;
	member->leaves = false;
	if (member->ended)
		group->loss = group->generation; /* its shards are gone, and another session has its place */
	member->ended = false;
	zd_parts_move(&member->detached, &member->parts);
	zd_member_link(e, member, session);
	group->device_mask |= 1ull << device->index;
	group->attached++;
	group->refs++;
	zd_journal_member(member);
	zd_dirty_group(e, group); /* the other joins wait for one rank less, or for no rank */
	if (group->attached < group->local_world_size)
		return;
	if (group->state == ZD_GROUP_FAILED)
		zd_reduce_group_revived(e, group);
	zd_collective_start(group);
	if (group->cluster)
		zd_cluster_connect(e, group);
	else
		zd_group_ready(e, group);
	for (uint32_t rank = 0; rank < group->local_world_size && was_forming; rank++)
		zd_journal_member(&group->members[rank]);
}

static void note_lost(const struct zd_member *member)
{
	struct zd_group *group = member->group;
	if (!member->ended)
		group->loss = group->generation;
	group->lost[group->generation % ZD_LOST_KEPT] = (struct zd_lost){
	        .rank = zd_world_rank(member), .pid = member->session->pid, .ended = member->ended};
}

/* Ends only the attachment. The member has no other objects left. */
static void member_unlink(struct zd_engine *e, struct zd_member *member)
{
	struct zd_group *group = member->group;
	if (group->state == ZD_GROUP_ABORTED)
		note_lost(member);
	zd_member_unlink(e, member);
	if (member->joining)
		zd_parts_move(&member->parts, &member->detached);
	zd_assert(LIST_EMPTY(&member->parts));
	e->parts_serial++;
	member->joining = false;
	if (group->state != ZD_GROUP_FORMING)
		member->joined_before = true;
	zd_journal_member(member);
	group->attached--;
	zd_job_note_left(e, group->job);
	/* An abort does not free a durable job's shards: the ranks can join again. */
	if (group->state == ZD_GROUP_ABORTED && group->attached == 0 && group->job->durable)
		zd_sm_move(&zd_sm_group, &group->state, ZD_GROUP_FAILED);
	if (group->attached == 0 && !group->job->durable)
		zd_group_set_over(group); /* operations can still use its memory, but its name is free */
	zd_dirty_group(e, group);
	zd_dirty_commit_waits(e);
	zd_group_unref(e, group);
}

/* In a durable job without shadows: whether the rank is lost between update_begin and commit. */
static bool member_tears(const struct zd_member *member)
{
	return member->group->job->durable && !member->group->shadow && !LIST_EMPTY(&member->uncommitted);
}

/* The other ranks know, or can know, that the group is complete. */
static void lose(struct zd_engine *e, struct zd_member *member)
{
	struct zd_group *group = member->group;
	if (group->state == ZD_GROUP_READY || group->state == ZD_GROUP_FAILED) {
		group->generation++;
		note_lost(member);
		for (uint32_t rank = 0; rank < group->local_world_size; rank++)
			zd_member_note_told(&group->members[rank]);
	}
	if (group->state == ZD_GROUP_READY) {
		zd_sm_move(&zd_sm_group, &group->state, ZD_GROUP_FAILED);
		zd_count(e, ZD_COUNT_GROUPS_RANK_LOST, !member->ended);
		zd_group_event(e, group, member, ZD_EVENT_GROUP_FAIL,
		               member->ended ? ZD_WORD_RANK_LEFT : ZD_WORD_RANK_LOST);
		zd_reduce_group_failed(e, group);
	}
}

void zd_member_begin_detach(struct zd_engine *e, struct zd_member *member)
{
	struct zd_group *group = member->group;
	member->detaching = true;
	member->ended = member->leaves || member->session->clean_exit;
	TAILQ_REMOVE(&member->session->members, member, session_link); /* to the end of the list */
	TAILQ_INSERT_TAIL(&member->session->members, member, session_link);
	if (member_tears(member))
		group->torn = true;
	zd_journal_group_state(group);
	if (group->cluster)
		zd_cluster_leave(e, member, member->ended);
	lose(e, member);
	zd_reduce_member_detach(e, member);
	zd_dirty_group(e, group);
}

bool zd_member_detach(struct zd_engine *e, struct zd_member *member, uint32_t *budget)
{
	struct zd_group *group = member->group; /* kept by the member's own reference */
	if (zd_shadow_undoes(group) && !zd_shadow_roll_back(e, group, budget))
		return false;
	if (!zd_scopes_detach(e, member, budget) || !zd_parts_detach(e, member, budget) ||
	    !zd_ending_may_free(budget))
		return false;
	zd_assert(TAILQ_EMPTY(&member->slots));
	member->detaching = false;
	member_unlink(e, member);
	return true;
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

static int join_check(struct zd_engine *e, const struct zd_session *session, const struct zd_args *args,
                      struct zd_err *err)
{
	uint32_t world_size = args->u.group_join.world_size;
	int status = zd_name_check(args->u.group_join.job, ZD_MAX_NAME_BYTES, "job name", err);
	if (status == 0)
		status = zd_name_check(args->u.group_join.group, ZD_MAX_NAME_BYTES, "group name", err);
	if (status != 0)
		return status;
	if (world_size == 0 || world_size > ZD_MAX_WORLD)
		return zd_err_set(err, ZEROD_E_INVALID, "world_size %u is not in 1 .. %u", world_size,
		                  ZD_MAX_WORLD);
	if (args->u.group_join.rank >= world_size)
		return zd_err_set(err, ZEROD_E_INVALID, "rank %u of a world of %u", args->u.group_join.rank,
		                  world_size);
	status = zd_session_check_device(e, session, args->u.group_join.device, err);
	if (status != 0)
		return status;
	if (e->devices[args->u.group_join.device].config.host_memory)
		return zd_err_set(err, ZEROD_E_INVALID, "device %u (%s) is host memory; no rank joins on it",
		                  args->u.group_join.device,
		                  e->devices[args->u.group_join.device].config.name);
	if (args->u.group_join.shadow && !args->u.group_join.durable)
		return zd_err_set(err, ZEROD_E_INVALID, "only a durable group keeps shadow shards");
	if (args->u.group_join.durable && session->no_durable && !session->admin)
		return zd_err_set(err, ZEROD_E_PERMISSION,
		                  "uid %u may keep no durable job: it is in no group of durable_groups",
		                  session->uid);
	return zd_cluster_check(e, args, err);
}

static int join_check_group(const struct zd_engine *e, const struct zd_group *group,
                            const struct zd_session *session, const struct zd_args *args, struct zd_err *err)
{
	if (group->world_size != args->u.group_join.world_size)
		return zd_err_set(err, ZEROD_E_MISMATCH, "group '%s' has world_size %u; rank %u says %u",
		                  group->name, group->world_size, args->u.group_join.rank,
		                  args->u.group_join.world_size);
	if (group->state == ZD_GROUP_ABORTED)
		return zd_group_check(group, err);
	int status = zd_cluster_check_group(group, args, err);
	if (status != 0)
		return status;
	if (group->shadow != args->u.group_join.shadow)
		return zd_err_set(err, ZEROD_E_MISMATCH, "group '%s' keeps %s; rank %u says %s", group->name,
		                  group->shadow ? "shadow shards" : "no shadow shards",
		                  args->u.group_join.rank, group->shadow ? "it does not" : "it does");
	const struct zd_member *member = &group->members[args->u.group_join.rank - group->first_rank];
	if (member->session)
		return zd_err_set(err, ZEROD_E_EXISTS,
		                  "rank %u of group '%s' is taken by session %llu (pid %u)",
		                  zd_world_rank(member), group->name, ZD_ID_NUMBER(member->session->id),
		                  member->session->pid);
	member = zd_member_of(e, session, group);
	if (member)
		return zd_err_set(err, ZEROD_E_EXISTS, "this session is rank %u of group '%s' already",
		                  zd_world_rank(member), group->name);
	return 0;
}

/* A durable rank's shards remain on their device. */
static int join_check_device(const struct zd_group *group, const struct zd_args *args, struct zd_err *err)
{
	const struct zd_member *member = &group->members[args->u.group_join.rank - group->first_rank];
	if (!group->job->durable || !member->joined_before ||
	    member->device->index == args->u.group_join.device)
		return 0;
	return zd_err_set(err, ZEROD_E_MISMATCH,
	                  "the shards of rank %u are on device %u; it joins on device %u",
	                  zd_world_rank(member), member->device->index, args->u.group_join.device);
}

static int join_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = join_check(e, req->session, req->args, err);
	if (status != 0)
		return status;
	if (e->draining)
		return zd_err_set(err, ZEROD_E_SHUTDOWN, "the daemon is draining: no rank joins");
	bool durable = req->args->u.group_join.durable;
	struct zd_job *job = zd_job_find(e, req->session->uid, req->args->u.group_join.job);
	struct zd_group *group = job ? zd_group_find(job, req->args->u.group_join.group) : NULL;
	if (job && job->durable != durable && job->group_names.nnodes > 0)
		return zd_err_set(err, ZEROD_E_MISMATCH, "job '%s' is %s; rank %u says %s", job->name,
		                  job->durable ? "durable" : "not durable", req->args->u.group_join.rank,
		                  durable ? "durable" : "not durable");
	if (group)
		status = join_check_group(e, group, req->session, req->args, err);
	if (group && status == 0)
		status = join_check_device(group, req->args, err);
	if (status == 0 && !(group && group->attached > 0))
		status = zd_cluster_check_new(e, req->args, err);
	if (!group && status == 0)
		status = zd_metadata_check(e, req->session, "group", req->args->u.group_join.group,
		                           group_metadata_bytes(req->args), err);
	if (status != 0)
		return status;
	if (!job)
		status = zd_job_get(e, req->session, req->args->u.group_join.job, durable, &job, err);
	if (status != 0)
		return status;
	if (durable && !job->durable)
		status = zd_pool_check_kept(e, job, err);
	if (status != 0)
		return status;
	if (durable && !job->durable) {
		zd_job_set_durable(e, job, true);
		zd_pool_journal_job(e, job);
	}
	zd_job_set_durable(e, job, durable);
	if (!group)
		group = zd_group_new(e, job, req->args);
	if (group->cluster && group->attached == 0) {
		free(group->aborted_why); /* the reason of the group's previous end */
		group->aborted_why = NULL;
		zd_cluster_take_ids(e, group->cluster, req->args);
	}
	req->member = &group->members[req->args->u.group_join.rank - group->first_rank];
	req->device = &e->devices[req->args->u.group_join.device];
	if (!durable)
		(void)zd_parts_drop(e, req->member, &(uint32_t){UINT32_MAX});
	member_attach(e, req->member, req->session, req->device);
	req->member->joining = true;
	return 0;
}

static int join_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_group *group = req->member->group;
	if (group->state == ZD_GROUP_ABORTED) {
		int status = zd_group_check(group, err);
		member_unlink(e, req->member);
		return status;
	}
	if (group->attached < group->local_world_size)
		return zd_wait_for(req, ZD_WAIT_RANKS, 0, 0, 0);
	if (group->state == ZD_GROUP_CONNECTING)
		return zd_wait_for(req, ZD_WAIT_NODES, 0, group->world_size - group->local_world_size, 0);
	req->member->joining = false;
	req->member->told = group->generation;
	zd_member_note_told(req->member);
	e->reply.u.group_join.group = group->id;
	e->reply.u.group_join.torn = group->torn;
	e->reply.u.group_join.committed_step = group->committed_step;
	return 0;
}

static void join_cancel(struct zd_engine *e, struct zd_request *req)
{
	if (req->member->group->cluster)
		zd_cluster_leave(e, req->member, false);
	/* READY: the deadline of this request has passed, but another rank has completed the group before. */
	if (req->member->group->state == ZD_GROUP_READY)
		lose(e, req->member);
	member_unlink(e, req->member);
}

static bool leave_step(struct zd_engine *e, struct zd_ending *ending, uint32_t *budget)
{
	return zd_member_detach(e, ZD_CONTAINER_OF(ending, struct zd_member, ending), budget);
}

static int leave_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member *member = NULL;
	int status = zd_member_find(e, req->session, req->args->u.group_leave.group, &member, err);
	if (status != 0)
		return status;
	struct zd_err left = ZD_ERR_NONE;
	(void)zd_err_set(&left, ZEROD_E_STATE, "rank %u left group '%s'", zd_world_rank(member),
	                 member->group->name);
	member->leaves = true;
	zd_requests_drop(e, req->session, member, left.status, left.text);
	zd_member_begin_detach(e, member);
	zd_ending_begin(e, req->session->owner, &member->ending, leave_step);
	return 0;
}

void zd_group_tell_end(struct zd_engine *e, const struct zd_group *group, const char *what,
                       const struct zd_session *by)
{
	char why[128];
	if (!e->sink.group_ended)
		return;
	(void)snprintf(why, sizeof(why), "%s by session %llu (pid %u, uid %u)", what, ZD_ID_NUMBER(by->id),
	               by->pid, by->uid);
	e->sink.group_ended(e->sink.arg, group->job->owner->uid, group->job->name, group->name, why);
}

static int abort_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_group *group;
	zd_endings_finish_for(e, req->session);
	HASH_FIND(hh, e->groups, &req->args->u.abort_group.group, sizeof(req->args->u.abort_group.group),
	          group);
	if (!group || (!req->session->admin && group->job->owner->uid != req->session->uid))
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "no group %llu",
		                  ZD_ID_NUMBER(req->args->u.abort_group.group));
	if (group->state == ZD_GROUP_ABORTED)
		return zd_err_set(err, ZEROD_E_STATE, "group '%s' was aborted already", group->name);
	if (group->attached == 0) /* no rank could leave it, and the group could never be joined again */
		return zd_err_set(err, ZEROD_E_STATE, "all ranks of group '%s' have left already",
		                  group->name);
	bool was_ready = group->state == ZD_GROUP_READY;
	zd_group_tell_end(e, group, "it was aborted", req->session);
	zd_sm_move(&zd_sm_group, &group->state, ZD_GROUP_ABORTED);
	zd_count(e, ZD_COUNT_GROUPS_ABORTED, 1);
	zd_group_event(e, group, NULL, ZD_EVENT_GROUP_FAIL, ZD_WORD_ABORTED);
	if (was_ready)
		zd_reduce_group_failed(e, group);
	if (group->cluster)
		zd_cluster_abort(e, group);
	zd_dirty_group(e, group);
	zd_dirty_commit_waits(e);
	return 0;
}

static bool job_end_step(struct zd_engine *e, struct zd_ending *ending, uint32_t *budget)
{
	struct zd_job *job = ZD_CONTAINER_OF(ending, struct zd_job, ending);
	struct zd_group *group, *next;
	struct zd_allocation *allocation;
	while ((allocation = TAILQ_FIRST(&job->allocations))) {
		if (!zd_ending_may_free(budget))
			return false;
		zd_allocation_drop(e, allocation);
	}
	TAILQ_FOREACH_SAFE (group, &job->groups, job_link, next) {
		if (!group->ends)
			continue;
		zd_assert(group->over);
		for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
			if (!zd_parts_drop(e, &group->members[rank], budget))
				return false;
		}
		if (!zd_ending_may_free(budget))
			return false;
		group->ends = false;
		zd_group_unref(e, group);
	}
	job->ends = false;
	zd_job_unref(e, job);
	return true;
}

void zd_job_end(struct zd_engine *e, struct zd_job *job)
{
	struct zd_group *group;
	zd_assert(job->durable && !job->ends);
	job->refs++;
	zd_job_set_durable(e, job, false);
	job->ends = true;
	TAILQ_FOREACH (group, &job->groups, job_link) {
		group->ends = !group->over; /* the others were over before the job was durable */
		if (group->attached == 0)
			zd_group_set_over(group);
	}
	zd_dirty_commit_waits(e);
	zd_ending_begin_last(e, job->owner, &job->ending, job_end_step);
}

int zd_job_find_for(struct zd_engine *e, const struct zd_session *session, uint64_t id, struct zd_job **out,
                    struct zd_err *err)
{
	struct zd_job *job;
	zd_endings_finish_for(e, session);
	HASH_FIND(hh, e->jobs, &id, sizeof(id), job);
	if (!job || (!session->admin && job->owner->uid != session->uid))
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "no job %llu", ZD_ID_NUMBER(id));
	*out = job;
	return 0;
}

static bool job_is_used(const struct zd_job *job)
{
	const struct zd_group *group;
	const struct zd_allocation *allocation;
	TAILQ_FOREACH (group, &job->groups, job_link) {
		if (group->attached > 0)
			return true;
	}
	TAILQ_FOREACH (allocation, &job->allocations, job_link) {
		if (allocation->session)
			return true;
	}
	return false;
}

static void tell_expired(struct zd_engine *e, const struct zd_job *job)
{
	const struct zd_group *group;
	char why[128];
	(void)snprintf(why, sizeof(why), "no session has used its durable job for %llu s, durable_ttl",
	               (unsigned long long)(e->uid_limits.durable_ttl_ns / 1000000000u));
	TAILQ_FOREACH (group, &job->groups, job_link) {
		if (!group->over && e->sink.group_ended)
			e->sink.group_ended(e->sink.arg, job->owner->uid, job->name, group->name, why);
	}
}

void zd_jobs_expire(struct zd_engine *e)
{
	uint64_t ttl_ns = e->uid_limits.durable_ttl_ns, earliest = UINT64_MAX;
	struct zd_job *job, *next;
	HASH_ITER (hh, e->jobs, job, next) {
		if (ttl_ns == 0 || !job->durable || job_is_used(job))
			continue;
		if (job->left_ns + ttl_ns > e->now_ns) {
			earliest = zd_min_u64(earliest, job->left_ns + ttl_ns);
			continue;
		}
		tell_expired(e, job);
		zd_job_end(e, job);
	}
	e->next_expiry_ns = earliest;
	zd_settle(e);
}

static int end_job_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_job *job;
	struct zd_group *group;
	const struct zd_allocation *allocation;
	int status = zd_job_find_for(e, req->session, req->args->u.end_job.job, &job, err);
	if (status != 0)
		return status;
	if (!job->durable)
		return zd_err_set(err, ZEROD_E_STATE, "job '%s' is not durable: it ends with its sessions",
		                  job->name);
	TAILQ_FOREACH (group, &job->groups, job_link) {
		if (group->attached > 0)
			return zd_err_set(err, ZEROD_E_BUSY, "%u ranks of group '%s' are attached",
			                  group->attached, group->name);
	}
	TAILQ_FOREACH (allocation, &job->allocations, job_link) {
		if (allocation->session)
			return zd_err_set(err, ZEROD_E_BUSY,
			                  "allocation '%s' is held by session %llu (pid %u)",
			                  allocation->name, ZD_ID_NUMBER(allocation->session->id),
			                  allocation->session->pid);
	}
	TAILQ_FOREACH (group, &job->groups, job_link)
		zd_group_tell_end(e, group, "its job was ended", req->session);
	zd_job_end(e, job);
	return 0;
}

const struct zd_request_type zd_req_group_join = {
        .begin = join_begin, .attempt = join_attempt, .cancel = join_cancel, .forms_group = true};
const struct zd_request_type zd_req_group_leave = {.begin = leave_begin};
const struct zd_request_type zd_req_abort_group = {.begin = abort_begin};
const struct zd_request_type zd_req_end_job = {.begin = end_job_begin};
