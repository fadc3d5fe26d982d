/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit.c - commits. A commit requires that all parts of each unit are idle and at one version.
 *
 * A daemon that has agreed to a commit can miss its outcome: another daemon can have received all agreements
 * and made the commit. After its agreement the daemon therefore grants no update. If the group ends before
 * the outcome is known, the commit is in doubt: shards and shadows do not change until the daemons connect
 * again (cluster.c).
 */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "core/cluster/cluster.h"
#include "core/engine/events.h"
#include "core/gather/commit.h"

/* ---- Changes of a part --------------------------------------------------------------------------------- */

void zd_part_take_missed(struct zd_part *part)
{
	if (zd_part_missed_commit(part)) {
		zd_assert(!zd_part_is_written(part));
		if (zd_part_shadow(part) != part->shadow) {
			zd_sm_move(&zd_sm_shadow, &part->shadow, ZD_SHADOW_FREE);
			part->shadow_until = part->ncommits + 1;
			part->shadow_unpublished = part->committed == part->first;
		}
		part->committed = part->version;
		if (part->listed == ZD_PART_UNCOMMITTED) /* in the list that the commit emptied */
			part->listed = ZD_PART_UNLISTED;
	}
	part->ncommits = part->unit->group->ncommits;
}

static enum zd_part_listed list_of(const struct zd_part *part)
{
	if (zd_part_is_gone(part))
		return ZD_PART_UNLISTED;
	if (zd_shadow_is_owed(part))
		return ZD_PART_OWED;
	return zd_part_is_written(part) || part->version != zd_part_committed(part) ? ZD_PART_UNCOMMITTED
	                                                                            : ZD_PART_UNLISTED;
}

/* Returns the first part that is not idle, or whose version differs from that of `*first`, the unit's first
 * part. NULL: none. */
static const struct zd_part *find_unready(const struct zd_unit *unit, const struct zd_part **first)
{
	*first = NULL;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		const struct zd_part *part = &unit->parts[rank];
		if (zd_part_is_gone(part))
			continue;
		if (!*first)
			*first = part;
		if (part->state != ZD_PART_IDLE || part->version != (*first)->version)
			return part;
	}
	return NULL;
}

static void set_unready(struct zd_unit *unit, bool unready, uint64_t version)
{
	struct zd_group *group = unit->group;
	uint64_t hash = unready ? 0 : version * (unit->by_name.hash | 1);
	group->versions_hash += hash - unit->version_hash;
	unit->version_hash = hash;
	if (unready && !unit->unready)
		TAILQ_INSERT_TAIL(&group->unready, unit, unready_link);
	else if (!unready && unit->unready)
		TAILQ_REMOVE(&group->unready, unit, unready_link);
	unit->unready = unready;
}

void zd_part_changed(struct zd_part *part)
{
	struct zd_member *member = zd_part_member(part);
	enum zd_part_listed listed = list_of(part);
	const struct zd_part *first;
	zd_assert(!zd_part_missed_commit(part));
	if (listed != part->listed) {
		if (part->listed != ZD_PART_UNLISTED)
			LIST_REMOVE(part, commit_link);
		if (listed == ZD_PART_UNCOMMITTED)
			LIST_INSERT_HEAD(&member->uncommitted, part, commit_link);
		else if (listed == ZD_PART_OWED)
			LIST_INSERT_HEAD(&member->owed, part, commit_link);
		part->listed = (uint8_t)listed;
	}
	if (!zd_part_is_gone(part) && part->state != ZD_PART_IDLE) {
		set_unready(part->unit, true, 0);
		return;
	}
	bool unready = find_unready(part->unit, &first) != NULL;
	set_unready(part->unit, unready, first ? first->version : 0);
}

/* ---- The request --------------------------------------------------------------------------------------- */

static int commit_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member *member;
	int status = zd_member_find(e, req->session, req->args->u.commit.group, &member, err);
	if (status == 0)
		status = zd_session_check_poisoned(req->session, err);
	if (status == 0)
		status = zd_member_check(member, err);
	if (status != 0)
		return status;
	struct zd_group *group = member->group;
	uint64_t step = req->args->u.commit.step;
	status = group->cluster ? e->events->check_backward_ended(member, err) : 0;
	if (status != 0)
		return status;
	if (member->committing)
		return zd_err_set(err, ZEROD_E_STATE, "rank %u is committing step %llu already",
		                  zd_world_rank(member), (unsigned long long)member->commit_step);
	if (step <= group->committed_step)
		return zd_err_set(err, ZEROD_E_STATE, "step %llu is committed; %llu is not after it",
		                  (unsigned long long)group->committed_step, (unsigned long long)step);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member *other = &group->members[rank];
		if (other->committing && other->commit_step != step)
			return zd_err_set(err, ZEROD_E_MISMATCH,
			                  "rank %u commits step %llu; rank %u says %llu",
			                  zd_world_rank(other), (unsigned long long)other->commit_step,
			                  zd_world_rank(member), (unsigned long long)step);
	}
	zd_request_set_member(req, member);
	req->u.commit.serial = group->commit_serial;
	member->committing = true;
	member->commit_step = step;
	return 0;
}

static int commit_check(const struct zd_engine *e, const struct zd_group *group, struct zd_err *err)
{
	if (group->job->durable && e->keep_ended[0])
		return zd_err_set(
		        err, ZEROD_E_SYSTEM,
		        "no step is committed any more: durable jobs will not outlive this daemon: %s",
		        e->keep_ended);
	const struct zd_unit *unit = TAILQ_FIRST(&group->unready);
	if (!unit)
		return 0;
	const struct zd_part *first, *part = find_unready(unit, &first);
	if (part->state != ZD_PART_IDLE)
		return zd_err_set(err, ZEROD_E_STATE, "unit '%s' is %s on rank %u", unit->name,
		                  zd_sm_name(&zd_sm_part, part->state), zd_world_rank(zd_part_member(part)));
	return zd_err_set(err, ZEROD_E_STATE, "unit '%s' has version %llu on rank %u and %llu on rank %u",
	                  unit->name, (unsigned long long)first->version,
	                  zd_world_rank(zd_part_member(first)), (unsigned long long)part->version,
	                  zd_world_rank(zd_part_member(part)));
}

/* Does not change parts: zd_part_take_commits() later applies the commits that a part has missed. */
static void commit_make(struct zd_group *group, uint64_t step)
{
	group->ncommits++;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++)
		LIST_INIT(&group->members[rank].uncommitted);
	group->committed_step = step;
	group->torn = false;
	zd_journal_commit(group);
}

static void commit_event(struct zd_engine *e, const struct zd_group *group, uint64_t step, int status)
{
	struct zd_event *event = zd_event_new(e, ZD_EVENT_COMMIT, group->job);
	event->reason = status ? ZD_WORD_FAILED : ZD_WORD_READY;
	event->object = group->id;
	event->value = step;
}

/* Ends the commit requests of all ranks: the commit is made or, with a status, rejected. */
static void commit_evaluate(struct zd_engine *e, struct zd_group *group, uint64_t step, int status,
                            const char *text)
{
	if (status == 0)
		commit_make(group, step);
	group->voted_step = 0;
	zd_journal_group_state(group);
	group->commit_status = status;
	commit_event(e, group, step, status);
	(void)snprintf(group->commit_text, sizeof(group->commit_text), "%.191s", text);
	group->commit_serial++;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++)
		group->members[rank].committing = false;
	zd_dirty_group(e, group);
	zd_dirty_commit_waits(e);
}

/* A daemon's vote on a commit. Every byte is set, and means the same in all daemons. */
struct vote {
	uint64_t step;
	int64_t status; /* 0: its ranks are ready */
	/* A hash over its units, if the ranks are ready. Units that were never published do not change it,
	 * because a daemon's ranks can have yet to register them. */
	uint64_t versions;
};

static int votes_check(const struct zd_engine *e, const struct zd_member *member,
                       const struct zd_op_result *result, struct zd_err *err)
{
	const struct zd_cluster *cluster = member->group->cluster;
	struct vote own;
	zd_assert(result->values_bytes == cluster->nranks * sizeof(struct vote));
	memcpy(&own, result->values + zd_cluster_rank(member) * sizeof(own), sizeof(own));
	for (uint32_t peer = 0; peer < cluster->nranks; peer++) {
		struct vote vote;
		memcpy(&vote, result->values + peer * sizeof(vote), sizeof(vote));
		if (vote.step != member->commit_step)
			return zd_err_set(err, ZEROD_E_MISMATCH,
			                  "rank %u commits step %llu; rank %u (node %s) says %llu",
			                  zd_world_rank(member), (unsigned long long)member->commit_step,
			                  zd_cluster_world_rank(member, peer), cluster->hosts[peer],
			                  (unsigned long long)vote.step);
		if (vote.status != 0 && peer == zd_cluster_rank(member) &&
		    commit_check(e, member->group, err) != 0)
			return err->status;
		if (vote.status != 0)
			return zd_err_set(
			        err, ZEROD_E_STATE,
			        "step %llu is not committed: the daemon of rank %u (node %s) refused it",
			        (unsigned long long)vote.step, zd_cluster_world_rank(member, peer),
			        cluster->hosts[peer]);
		if (own.status == 0 && vote.versions != own.versions)
			return zd_err_set(err, ZEROD_E_STATE,
			                  "step %llu is not committed: rank %u's units have other versions "
			                  "than rank %u's (node %s)",
			                  (unsigned long long)vote.step, zd_world_rank(member),
			                  zd_cluster_world_rank(member, peer), cluster->hosts[peer]);
	}
	return 0;
}

static void voted(struct zd_engine *e, struct zd_op *op)
{
	struct zd_group *group = op->owner;
	struct zd_cluster *cluster = group->cluster;
	struct zd_err err = ZD_ERR_NONE;
	if (!zd_cluster_answered(e, op, &cluster->commit))
		return;
	int status = votes_check(e, &group->members[0], op->result, &err);
	commit_evaluate(e, group, group->members[0].commit_step, status, err.text);
}

static void vote(struct zd_engine *e, struct zd_group *group)
{
	struct zd_err err = ZD_ERR_NONE;
	struct vote own = {.step = group->members[0].commit_step,
	                   .status = commit_check(e, group, &err),
	                   .versions = group->versions_hash};
	if (own.status == 0)
		group->voted_step = own.step;
	zd_journal_group_state(group);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++)
		zd_cluster_ask(e, &group->members[rank], &group->cluster->commit, "commit", &own, sizeof(own),
		               voted);
	zd_dirty_group(e, group); /* the ranks' requests wait for other daemons now */
}

void zd_commit_resolve(struct zd_engine *e, struct zd_group *group, uint64_t step, bool torn)
{
	uint64_t voted_step = group->voted_step;
	group->voted_step = 0;
	if (voted_step == step && step != 0)
		commit_make(group, step);
	else if (voted_step != 0 && group->shadow)
		(void)zd_shadow_roll_back(e, group, &(uint32_t){UINT32_MAX});
	group->torn |= torn;
	zd_journal_group_state(group);
}

static void commit_cancel(struct zd_engine *e, struct zd_request *req)
{
	struct zd_group *group = req->member->group;
	if (group->cluster && group->cluster->commit.pending)
		zd_cluster_give_up(e, req->member, "a commit that others make");
	if (req->u.commit.serial == group->commit_serial)
		req->member->committing = false;
}

static int commit_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_group *group = req->member->group;
	if (req->u.commit.serial == group->commit_serial) {
		int status = zd_group_check(group, err);
		if (status != 0) {
			commit_cancel(e, req);
			return status;
		}
		for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
			if (!group->members[rank].committing)
				return zd_wait_for(req, ZD_WAIT_COMMIT, rank, 0, 0);
		}
		if (group->cluster) {
			if (!group->cluster->commit.pending)
				vote(e, group);
			return zd_wait_for(req, ZD_WAIT_OTHERS, 0, 0, 0);
		}
		struct zd_err refusal = ZD_ERR_NONE;
		status = commit_check(e, group, &refusal);
		commit_evaluate(e, group, req->member->commit_step, status, refusal.text);
	}
	if (group->commit_status != 0)
		return zd_err_set(err, group->commit_status, "%s", group->commit_text);
	return 0;
}

const struct zd_request_type zd_req_commit = {
        .begin = commit_begin, .attempt = commit_attempt, .cancel = commit_cancel};
