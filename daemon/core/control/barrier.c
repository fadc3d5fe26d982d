/* SPDX-License-Identifier: Apache-2.0 */
/*
 * barrier.c - barriers: when the last rank of a group has reached a barrier, all ranks pass it.
 *
 * A rank's requests that wait at a barrier are in its member's list, in order. The first request of every
 * member belongs to the group's next barrier: two barriers in a row never mix. A request that fails or is
 * cancelled is removed from the list, because its rank has not reached the barrier.
 *
 * Between daemons a barrier is an agreement on the communicators of reductions. Their operations must have
 * the same order on all ranks, but backwards, steps and commits submit theirs later than they are called. A
 * rank of such a group therefore reaches a barrier only while it runs none of them, and one barrier at a
 * time.
 */
#include "core/cluster/cluster.h"
#include "core/engine/objects.h"
#include "core/reduce/member.h"

static int check_cluster(const struct zd_member *member, struct zd_err *err)
{
	const struct zd_member_reduce *mr = zd_member_reduce(member);
	const char *what = NULL;
	if (!member->group->cluster)
		return 0;
	if (!TAILQ_EMPTY(&member->barriers))
		what = "waits at a barrier already";
	else if (member->committing)
		what = "is committing";
	else if (mr && mr->w->backward != ZD_BACKWARD_IDLE)
		what = "runs a backward";
	else if (mr && zd_step_is_called(mr->w))
		what = "is beginning a step";
	if (!what)
		return 0;
	return zd_err_set(err, ZEROD_E_STATE, "group '%s' spans daemons, and rank %u %s", member->group->name,
	                  zd_world_rank(member), what);
}

static int barrier_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member *member;
	int status = zd_member_find(e, req->session, req->args->u.group_barrier.group, &member, err);
	if (status == 0)
		status = zd_group_check(member->group, err);
	if (status == 0)
		status = check_cluster(member, err);
	if (status != 0)
		return status;
	zd_request_set_member(req, member);
	TAILQ_INSERT_TAIL(&member->barriers, req, u.barrier.link);
	zd_dirty_group(e, member->group); /* the reasons of waiting requests can change */
	return 0;
}

static void take_back(struct zd_engine *e, struct zd_request *req)
{
	if (req->u.barrier.passed)
		return;
	TAILQ_REMOVE(&req->member->barriers, req, u.barrier.link);
	zd_dirty_group(e, req->member->group);
}

/* Passes the group's next barrier, which every rank has reached. */
static void pass(struct zd_engine *e, struct zd_group *group)
{
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_member *member = &group->members[rank];
		struct zd_request *req = TAILQ_FIRST(&member->barriers);
		TAILQ_REMOVE(&member->barriers, req, u.barrier.link);
		req->u.barrier.passed = true;
	}
	zd_dirty_group(e, group);
}

static void answered(struct zd_engine *e, struct zd_op *op)
{
	struct zd_group *group = op->owner;
	/* The result does not matter: the agreement carries no values. */
	if (zd_cluster_answered(e, op, &group->cluster->barrier))
		pass(e, group);
}

static void ask(struct zd_engine *e, struct zd_group *group)
{
	const uint64_t nothing = 0;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++)
		zd_cluster_ask(e, &group->members[rank], &group->cluster->barrier, "barrier", &nothing,
		               sizeof(nothing), answered);
	zd_dirty_group(e, group); /* the ranks' requests wait for other daemons now */
}

/* The request's place in its member's list, from 1. */
static uint32_t number_of(const struct zd_request *req)
{
	const struct zd_request *each = TAILQ_FIRST(&req->member->barriers);
	uint32_t number = 1;
	for (; each != req; each = TAILQ_NEXT(each, u.barrier.link))
		number++;
	return number;
}

/* The first rank that has not reached the request's barrier; local_world_size when all have. */
static uint32_t first_missing(const struct zd_request *req)
{
	const struct zd_group *group = req->member->group;
	uint32_t number = number_of(req), rank;
	for (rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_request *each;
		uint32_t reached = 0;
		TAILQ_FOREACH (each, &group->members[rank].barriers, u.barrier.link)
			reached++;
		if (reached < number)
			break;
	}
	return rank;
}

static int barrier_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_group *group = req->member->group;
	if (req->u.barrier.passed)
		return 0;
	int status = zd_group_check(group, err);
	if (status != 0) {
		take_back(e, req);
		return status;
	}
	uint32_t missing = first_missing(req);
	if (missing < group->local_world_size)
		return zd_wait_for(req, ZD_WAIT_BARRIER, missing, 0, 0);
	if (!group->cluster) {
		pass(e, group);
		return 0;
	}
	if (!group->cluster->barrier.pending)
		ask(e, group);
	return zd_wait_for(req, ZD_WAIT_OTHERS, 0, 0, 0);
}

static void barrier_cancel(struct zd_engine *e, struct zd_request *req)
{
	struct zd_group *group = req->member->group;
	take_back(e, req);
	if (group->cluster && group->cluster->barrier.pending && group->state == ZD_GROUP_READY)
		zd_cluster_give_up(e, req->member, "a barrier that other ranks wait at");
}

const struct zd_request_type zd_req_group_barrier = {
        .begin = barrier_begin, .attempt = barrier_attempt, .cancel = barrier_cancel};
