/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agree.c - scalars that all ranks of a group agree on: their sums, maxima or minima.
 *
 * A rank's request holds its values, and `member->agreeing` points to the request while it waits. Attempts
 * that find a request of every rank compute the result, which all requests of the round share. One attempt
 * combines the values of a bounded number of ranks. If a request ends in between, the unfinished result is
 * dropped. If operations or counts differ between the ranks, all requests of the round fail with MISMATCH. A
 * request also fails if another rank has begun a backward that its own rank has not: the other rank will not
 * make a request. A gather fails if its own rank has not begun an update, and another rank that has begun it
 * waits for an agreement (gather.c).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/objects.h"
#include "core/reduce/window.h"

#define VALUES_AT_ONCE 2048u /* values that one attempt combines, of at least one rank */

static const char *op_name(uint32_t op)
{
	static const char *const names[] = {"sum", "max", "min"};
	return names[op];
}

static int check_args(const struct zd_args *args, struct zd_err *err)
{
	uint32_t op = args->u.group_agree.op, count = args->u.group_agree.n_values;
	if (op > ZEROD_AGREE_MIN)
		return zd_err_set(err, ZEROD_E_INVALID, "unknown agreement operation %u", op);
	if (count == 0)
		return zd_err_set(err, ZEROD_E_INVALID, "no values to agree on");
	return 0;
}

static int agree_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member *member;
	if (req->args->u.group_agree.n_values > ZEROD_MAX_AGREED)
		return zd_err_set(err, ZEROD_E_LIMIT, "%zu values to agree on; at most %u",
		                  req->args->u.group_agree.n_values, ZEROD_MAX_AGREED);
	int status = zd_member_find(e, req->session, req->args->u.group_agree.group, &member, err);
	if (status == 0)
		status = zd_group_check(member->group, err);
	if (status == 0)
		status = check_args(req->args, err);
	if (status != 0)
		return status;
	if (member->group->cluster)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "group '%s' spans daemons: group_agree is not supported",
		                  member->group->name);
	if (member->agreeing)
		return zd_err_set(err, ZEROD_E_STATE, "rank %u waits for an agreement already",
		                  zd_world_rank(member));
	zd_request_set_member(req, member);
	req->u.agree.op = req->args->u.group_agree.op;
	req->u.agree.count = req->args->u.group_agree.n_values;
	size_t bytes = req->u.agree.count * sizeof(double);
	/* the charge includes the result, which all requests of the round share */
	req->u.agree.values = zd_request_own(req, zd_calloc(1, bytes), 2 * bytes);
	memcpy(req->u.agree.values, req->args->u.group_agree.values, bytes);
	member->agreeing = req;
	zd_window_fail_agreements(e, member->group);
	zd_dirty_group(e, member->group); /* gathers that would wait for this rank fail (gather.c) */
	return 0;
}

static void differ(struct zd_engine *e, struct zd_group *group, uint32_t rank)
{
	const struct zd_request *first = group->members[0].agreeing, *other = group->members[rank].agreeing;
	struct zd_err err = ZD_ERR_NONE;
	int status = zd_err_set(
	        &err, ZEROD_E_MISMATCH, "rank %u agrees on the %s of %u values; rank %u says the %s of %u",
	        zd_world_rank(&group->members[0]), op_name(first->u.agree.op), first->u.agree.count,
	        zd_world_rank(&group->members[rank]), op_name(other->u.agree.op), other->u.agree.count);
	for (uint32_t i = 0; i < group->local_world_size; i++)
		zd_request_fail(group->members[i].agreeing, status, err.text);
	zd_dirty_group(e, group);
}

static double combine(uint32_t op, double a, double b)
{
	if (op == ZEROD_AGREE_SUM)
		return a + b;
	if (isnan(a) || isnan(b))
		return NAN;
	return (op == ZEROD_AGREE_MAX) == (a > b) ? a : b;
}

/* Combines values of further ranks. The order is that of the ranks, so that all runs compute the same bits.
 * Returns whether all ranks are combined. */
static bool combine_ranks(const struct zd_engine *e, struct zd_group *group)
{
	const struct zd_request *first = group->members[0].agreeing;
	uint32_t count = first->u.agree.count, op = first->u.agree.op;
	struct zd_agreement *agreement = group->agreement;
	if (!agreement) {
		agreement = group->agreement = zd_calloc(1, sizeof(*agreement) + count * sizeof(double));
		memcpy(agreement->values, first->u.agree.values, count * sizeof(double));
		agreement->nranks = 1;
	}
	uint32_t left = e->sink.ends ? 1 + VALUES_AT_ONCE / count : UINT32_MAX;
	for (; agreement->nranks < group->local_world_size && left > 0; agreement->nranks++, left--) {
		const double *values = group->members[agreement->nranks].agreeing->u.agree.values;
		for (uint32_t i = 0; i < count; i++)
			agreement->values[i] = combine(op, agreement->values[i], values[i]);
	}
	return agreement->nranks == group->local_world_size;
}

static void decide(struct zd_engine *e, struct zd_group *group)
{
	group->agreement->refs = group->local_world_size;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		group->members[rank].agreeing->u.agree.result = group->agreement;
		group->members[rank].agreeing = NULL;
	}
	group->agreement = NULL;
	zd_dirty_group(e, group);
}

/* The first rank without a request; local_world_size if every rank has one. */
static uint32_t first_missing(const struct zd_group *group)
{
	uint32_t rank = 0;
	while (rank < group->local_world_size && group->members[rank].agreeing)
		rank++;
	return rank;
}

/* Evaluates a round in which every rank has a request. Returns whether the round has ended. */
static bool evaluate(struct zd_engine *e, struct zd_group *group)
{
	for (uint32_t rank = 1; rank < group->local_world_size; rank++) {
		const struct zd_request *first = group->members[0].agreeing,
		                        *other = group->members[rank].agreeing;
		if (first->u.agree.op != other->u.agree.op || first->u.agree.count != other->u.agree.count) {
			differ(e, group, rank);
			return true;
		}
	}
	if (!combine_ranks(e, group))
		return false;
	decide(e, group);
	return true;
}

static void agree_cancel(struct zd_engine *e, struct zd_request *req)
{
	(void)e;
	if (req->member->agreeing != req)
		return;
	req->member->agreeing = NULL;
	free(req->member->group->agreement);
	req->member->group->agreement = NULL;
}

static int agree_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_group *group = req->member->group;
	if (!req->u.agree.result) {
		int status = zd_group_check(group, err);
		if (status != 0) {
			agree_cancel(e, req);
			return status;
		}
		uint32_t missing = first_missing(group);
		if (missing < group->local_world_size)
			return zd_wait_for(req, ZD_WAIT_AGREE, missing, 0, 0);
		if (!evaluate(e, group)) {
			req->goes_on = true;
			return zd_wait_for(req, ZD_WAIT_AGREE, group->agreement->nranks, 0, 0);
		}
	}
	if (!req->u.agree.result) { /* the request has failed with all others of the round */
		agree_cancel(e, req);
		return zd_err_set(err, req->failed, "%s", req->failed_text);
	}
	e->reply.u.group_agree.n_values = req->u.agree.count;
	e->reply.u.group_agree.values = req->u.agree.result->values;
	return 0;
}

static void agree_free(struct zd_request *req)
{
	if (req->u.agree.result && --req->u.agree.result->refs == 0)
		free(req->u.agree.result);
}

const struct zd_request_type zd_req_group_agree = {
        .begin = agree_begin, .attempt = agree_attempt, .cancel = agree_cancel, .free = agree_free};
