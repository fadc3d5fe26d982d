/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scope.c - forward scopes and claims: holders of the buffers that are gathered outside any plan.
 *
 * A module that runs eagerly gathers its units in the forward scope in which it runs. If a backward will
 * follow, the end of the forward turns the scope into a claim, because the backward reads the same weights
 * again. The leases do not change. The claim ends with its backward. Each scope ends separately: of two
 * forwards before one backward, both hold their leases.
 *
 * A forward that raised an exception never ends. Its scope is abandoned by request, or swept by the rank's
 * next outermost forward, which cannot begin while an earlier one still runs. No scope is swept while a claim
 * is outstanding, because a backward can run a part of that forward again.
 *
 * A client can send the request that ends a scope before gathers in the scope receive their replies: while
 * one of them waits, the end waits as well.
 */
#include "core/cluster/cluster.h"
#include "core/gather/buffer.h"
#include "core/gather/collective.h"
#include "core/gather/gather.h"
#include "core/gather/scope.h"

#include <stdio.h>

/* ---- Life ---------------------------------------------------------------------------------------------- */

static void set_tag(struct zd_scope *scope)
{
	const char *kind = scope->context ? "context" : scope->state == ZD_SCOPE_CLAIMED ? "claim" : "scope";
	struct zd_lease *lease;
	(void)snprintf(scope->tag, sizeof(scope->tag), "%c%s %llu", ZD_RESERVED_TAG, kind,
	               ZD_ID_NUMBER(scope->id));
	TAILQ_FOREACH (lease, &scope->leases, scope_link)
		zd_lease_rename(lease, scope->tag);
}

int zd_scope_new(struct zd_engine *e, struct zd_member *member, bool context, uint32_t leaving,
                 struct zd_scope **out, struct zd_err *err)
{
	if (member->nscopes - leaving >= ZD_MAX_SCOPES)
		return zd_err_set(err, ZEROD_E_LIMIT,
		                  "rank %u has %u scopes, claims and contexts that have not ended",
		                  zd_world_rank(member), member->nscopes);
	int status = zd_metadata_check_work(e, member->session, context ? "a context" : "a scope",
	                                    sizeof(struct zd_scope), err);
	if (status != 0)
		return status;
	struct zd_scope *scope = zd_calloc(1, sizeof(*scope));
	zd_metadata_charge(member->group->job->owner, sizeof(*scope));
	scope->id = zd_next_id(e, member->group->job->owner->ids, ZD_ID_SCOPE);
	scope->state = context ? ZD_SCOPE_GATHERING : ZD_SCOPE_OPEN;
	scope->context = context;
	scope->member = member;
	scope->since_ns = e->now_ns;
	scope->refs = 1;
	TAILQ_INIT(&scope->leases);
	set_tag(scope);
	TAILQ_INSERT_TAIL(&member->scopes, scope, member_link);
	member->nscopes++;
	HASH_ADD(hh, e->scopes, id, sizeof(scope->id), scope);
	zd_id_tree_insert(&e->listed[ZD__TABLE__SCOPES], &scope->listed, scope->id);
	*out = scope;
	return 0;
}

int zd_scope_find(struct zd_engine *e, const struct zd_session *session, uint64_t id, struct zd_scope **out,
                  struct zd_err *err)
{
	struct zd_scope *scope;
	HASH_FIND(hh, e->scopes, &id, sizeof(id), scope);
	/* The client does not know the id of a context that is still being gathered. */
	if (!scope || scope->member->session != session || scope->state == ZD_SCOPE_GATHERING)
		return zd_err_set(err, ZEROD_E_NOT_FOUND,
		                  "this session has no scope, claim or context %llu, or it has ended",
		                  ZD_ID_NUMBER(id));
	*out = scope;
	return 0;
}

void zd_scope_unref(struct zd_scope *scope)
{
	zd_assert(scope->refs > 0);
	if (--scope->refs > 0)
		return;
	zd_assert(scope->state == ZD_SCOPE_ENDED && scope->nleases == 0);
	free(scope);
}

bool zd_scope_hold(struct zd_engine *e, struct zd_scope *scope, struct zd_buffer *buffer)
{
	zd_assert(scope->state != ZD_SCOPE_ENDED && zd_part_member(buffer->part) == scope->member);
	if (zd_lease_find(buffer, scope->tag))
		return false;
	struct zd_lease *lease = zd_lease_add(e, buffer, scope->tag, 1);
	lease->scope = scope;
	TAILQ_INSERT_TAIL(&scope->leases, lease, scope_link);
	scope->nleases++;
	return true;
}

/* ---- The end ------------------------------------------------------------------------------------------- */

/* One watch for all buffers of the scopes that end together: all units of a model cost one command. */
struct scope_watch {
	uint32_t nbuffers;
	struct zd_buffer *buffers[]; /* a buffer occurs once for each lease */
};

static void scope_watch_done(struct zd_engine *e, struct zd_op *op)
{
	struct scope_watch *watch = op->owner;
	/* The status does not matter: a failed watch means that the session and its streams have ended. */
	for (uint32_t i = 0; i < watch->nbuffers; i++)
		zd_buffer_unwatch(e, watch->buffers[i]);
	free(watch);
}

static void scope_end(struct zd_engine *e, struct zd_scope *scope, struct scope_watch *watch)
{
	struct zd_lease *lease;
	while ((lease = TAILQ_FIRST(&scope->leases))) {
		struct zd_buffer *buffer = lease->buffer;
		if (watch) {
			buffer->watches++;
			watch->buffers[watch->nbuffers++] = buffer;
		}
		zd_lease_end(e, lease);
	}
	zd_sm_move(&zd_sm_scope, &scope->state, ZD_SCOPE_ENDED);
	TAILQ_REMOVE(&scope->member->scopes, scope, member_link);
	scope->member->nscopes--;
	HASH_DEL(e->scopes, scope);
	zd_metadata_uncharge(scope->member->group->job->owner, sizeof(*scope));
	zd_id_tree_remove(&e->listed[ZD__TABLE__SCOPES], &scope->listed);
	zd_scope_unref(scope);
}

uint32_t zd_scopes_end(struct zd_engine *e, struct zd_member *member, const struct zd_fence_list *fences)
{
	struct zd_scope *scope, *next;
	struct scope_watch *watch = NULL;
	uint32_t nleases = 0, nended = 0;
	TAILQ_FOREACH (scope, &member->scopes, member_link)
		nleases += scope->ending ? scope->nleases : 0;
	if (nleases > 0 && fences->count > 0) {
		watch = zd_calloc(1, sizeof(*watch) + nleases * sizeof(struct zd_buffer *));
		if (!zd_fences_watch(e, member->session, member->group->job, member->device->index, fences,
		                     scope_watch_done, watch, 0)) {
			free(watch);
			watch = NULL;
		}
	}
	TAILQ_FOREACH_SAFE (scope, &member->scopes, member_link, next) {
		if (!scope->ending)
			continue;
		e->ended[nended++] = scope->id;
		scope_end(e, scope, watch);
	}
	zd_dirty(e, member->device); /* gathers that wait in these scopes fail now */
	return nended;
}

bool zd_scopes_detach(struct zd_engine *e, struct zd_member *member, uint32_t *budget)
{
	struct zd_scope *scope;
	while ((scope = TAILQ_FIRST(&member->scopes))) {
		while (!TAILQ_EMPTY(&scope->leases)) {
			if (!zd_ending_may_free(budget))
				return false;
			zd_lease_end(e, TAILQ_FIRST(&scope->leases));
		}
		scope_end(e, scope, NULL);
	}
	return true;
}

/* ---- forward_begin ------------------------------------------------------------------------------------- */

static int parent_check(const struct zd_scope *parent, const struct zd_member *member, struct zd_err *err)
{
	unsigned long long id = ZD_ID_NUMBER(parent->id);
	if (parent->member != member)
		return zd_err_set(err, ZEROD_E_INVALID, "scope %llu is of group '%s', not of '%s'", id,
		                  parent->member->group->name, member->group->name);
	if (parent->context)
		return zd_err_set(err, ZEROD_E_INVALID, "%llu is a user context, not a forward scope", id);
	if (parent->state != ZD_SCOPE_OPEN)
		return zd_err_set(err, ZEROD_E_STATE, "the forward of scope %llu has ended on rank %u", id,
		                  zd_world_rank(member));
	return 0;
}

/* Marks the scopes of abandoned forwards, and returns their number. A claim prevents that. */
static uint32_t mark_abandoned(struct zd_member *member)
{
	struct zd_scope *scope;
	uint32_t nmarked = 0;
	TAILQ_FOREACH (scope, &member->scopes, member_link) {
		if (scope->state == ZD_SCOPE_CLAIMED)
			return 0;
	}
	TAILQ_FOREACH (scope, &member->scopes, member_link) {
		scope->ending = !scope->context;
		nmarked += scope->ending;
	}
	return nmarked;
}

static int forward_begin_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member *member;
	int status = zd_member_find(e, req->session, req->args->u.forward_begin.group, &member, err);
	if (status == 0)
		status = zd_member_reads_on(member) ? 0 : zd_group_check(member->group, err);
	if (status == 0 && req->args->u.forward_begin.parent) {
		status = zd_scope_find(e, req->session, req->args->u.forward_begin.parent,
		                       &req->u.scope.scope, err);
		if (status == 0)
			status = parent_check(req->u.scope.scope, member, err);
	}
	if (status != 0)
		return status;
	zd_request_keep_fences(req, &req->args->fences);
	zd_request_set_member(req, member);
	return 0;
}

/* Called once, directly after its begin: it never waits. */
static int forward_begin_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	const struct zd_scope *parent = req->u.scope.scope;
	uint32_t nmarked = parent ? 0 : mark_abandoned(req->member);
	struct zd_scope *scope;
	int status = zd_scope_new(e, req->member, false, nmarked, &scope, err);
	if (status != 0) {
		zd_assert(nmarked == 0); /* otherwise there is room */
		return status;
	}
	scope->parent = parent ? parent->id : 0;
	if (nmarked > 0)
		e->reply.u.scope.n_ended = zd_scopes_end(e, req->member, &req->fences);
	e->reply.u.scope.ended = e->ended;
	e->reply.u.scope.scope = scope->id;
	return 0;
}

/* ---- forward_end, claim_end, scope_abandon, context_end ------------------------------------------------ */

static int end_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_scope *scope; /* all of these messages begin with it */
	int status = zd_scope_find(e, req->session, req->args->u.claim_end.scope, &scope, err);
	if (status != 0)
		return status;
	zd_request_keep_fences(req, &req->args->fences);
	zd_request_set_member(req, scope->member);
	req->u.scope.scope = scope;
	req->u.scope.grad = req->kind == ZD_REQ_FORWARD_END && req->args->u.forward_end.grad;
	scope->refs++;
	return 0;
}

/* If gathers are collective, ranks of other daemons have ended their scopes and will gather again the units
 * that this rank would join. The group therefore ends. */
static void end_cancel(struct zd_engine *e, struct zd_request *req)
{
	if (zd_gathers_are_collective(req->member->group))
		zd_cluster_give_up(e, req->member, "the end of a scope");
	zd_scope_unref(req->u.scope.scope);
}

/* Checks that this kind of request may end the scope, and that a forward has no open scope nested in it. */
static int end_check(const struct zd_request *req, struct zd_err *err)
{
	const struct zd_scope *scope = req->u.scope.scope, *inner;
	unsigned long long id = ZD_ID_NUMBER(scope->id);
	uint32_t rank = zd_world_rank(req->member);
	if (scope->state == ZD_SCOPE_ENDED) /* while the request waited */
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "scope %llu of rank %u has ended", id, rank);
	if (scope->context != (req->kind == ZD_REQ_CONTEXT_END))
		return zd_err_set(err, ZEROD_E_INVALID, "%llu is a %s, not a %s", id,
		                  scope->context ? "user context" : "forward scope",
		                  scope->context ? "forward scope" : "user context");
	if (req->kind == ZD_REQ_CLAIM_END && scope->state != ZD_SCOPE_CLAIMED)
		return zd_err_set(err, ZEROD_E_STATE, "the forward of scope %llu has not ended on rank %u",
		                  id, rank);
	if (req->kind != ZD_REQ_FORWARD_END)
		return 0;
	if (scope->state != ZD_SCOPE_OPEN)
		return zd_err_set(err, ZEROD_E_STATE,
		                  "the forward of scope %llu has ended on rank %u: it is a claim", id, rank);
	TAILQ_FOREACH (inner, &scope->member->scopes, member_link) {
		if (inner->parent == scope->id && inner->state == ZD_SCOPE_OPEN)
			return zd_err_set(err, ZEROD_E_STATE,
			                  "scope %llu is open inside scope %llu on rank %u",
			                  ZD_ID_NUMBER(inner->id), id, rank);
	}
	return 0;
}

bool zd_scope_end_drops(const struct zd_request *req, const struct zd_part *part)
{
	bool ends = req->kind == ZD_REQ_FORWARD_END || req->kind == ZD_REQ_CLAIM_END ||
	            req->kind == ZD_REQ_CONTEXT_END;
	return ends && part->buffer && zd_lease_find(part->buffer, req->u.scope.scope->tag);
}

/* If gathers are collective: returns a unit of the scope that an earlier context_begin has yet to join. On
 * ranks on which that request did not wait, it has joined. NULL: none. */
static const struct zd_unit *joined_by(const struct zd_request *before, const struct zd_scope *scope)
{
	const struct zd_lease *lease;
	uint64_t version;
	if (before->kind != ZD_REQ_CONTEXT_BEGIN)
		return NULL;
	TAILQ_FOREACH (lease, &scope->leases, scope_link) {
		const struct zd_buffer *buffer = lease->buffer;
		if (zd_gather_lacks(before, buffer->part, &version) && buffer->version == version)
			return buffer->unit;
	}
	return NULL;
}

/* Returns ZD_WAIT while an earlier gather in the scope waits, or an earlier context_begin that joins a buffer
 * of the scope. */
static int end_wait(struct zd_request *req)
{
	const struct zd_request *other;
	const struct zd_unit *unit = NULL;
	bool rails = zd_gathers_are_collective(req->member->group);
	TAILQ_FOREACH (other, &req->session->requests, session_link) {
		if (other == req || unit)
			break;
		unit = rails ? joined_by(other, req->u.scope.scope) : NULL;
		if (other->kind == ZD_REQ_GATHER && other->u.gather.scope == req->u.scope.scope)
			unit = other->u.gather.part->unit;
	}
	if (!unit)
		return 0;
	return zd_wait_for_unit(req, unit, ZD_WAIT_GATHER, req->member->rank, 0, 0);
}

/* Marks the scope and all open scopes nested in it, because a forward that is nested in an abandoned one will
 * not end either. Claims remain: each of them has its own backward. */
static void mark_nested(struct zd_engine *e, struct zd_scope *outer)
{
	struct zd_scope *scope, *parent;
	outer->ending = true;
	TAILQ_FOREACH (scope, &outer->member->scopes, member_link) {
		HASH_FIND(hh, e->scopes, &scope->parent, sizeof(scope->parent), parent);
		if (parent && parent->ending && scope->state == ZD_SCOPE_OPEN)
			scope->ending = true;
	}
}

static int end_try(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_scope *scope = req->u.scope.scope;
	int status = end_check(req, err);
	if (status == 0 && req->kind != ZD_REQ_SCOPE_ABANDON) /* scope_abandon fails such gathers */
		status = end_wait(req);
	if (status != 0)
		return status;
	e->reply.u.scope.scope = scope->id;
	if (req->kind == ZD_REQ_FORWARD_END && req->u.scope.grad) {
		zd_sm_move(&zd_sm_scope, &scope->state, ZD_SCOPE_CLAIMED);
		set_tag(scope);
		return 0;
	}
	mark_nested(e, scope);
	e->reply.u.scope.n_ended = zd_scopes_end(e, req->member, &req->fences);
	e->reply.u.scope.ended = e->ended;
	return 0;
}

static int end_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = end_try(e, req, err);
	if (status != ZD_WAIT)
		zd_scope_unref(req->u.scope.scope);
	return status;
}

const struct zd_request_type zd_req_forward_begin = {.begin = forward_begin_begin,
                                                     .attempt = forward_begin_attempt};
const struct zd_request_type zd_req_forward_end = {
        .begin = end_begin, .attempt = end_attempt, .cancel = end_cancel};
const struct zd_request_type zd_req_claim_end = {
        .begin = end_begin, .attempt = end_attempt, .cancel = end_cancel};
const struct zd_request_type zd_req_scope_abandon = {
        .begin = end_begin, .attempt = end_attempt, .cancel = end_cancel};
const struct zd_request_type zd_req_context_end = {
        .begin = end_begin, .attempt = end_attempt, .cancel = end_cancel};
