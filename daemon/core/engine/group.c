/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group.c - jobs, groups and their members: references, lookups, and errors that name lost ranks.
 *
 * A job is a namespace of one uid: another uid's job of the same name is another job. A job lives while a
 * group, an allocation or an operation refers to it. A group lives while a rank is attached, an operation of
 * it is under way, or its job is durable.
 */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "core/engine/events.h"
#include "core/engine/objects.h"

/* ---- Jobs ---------------------------------------------------------------------------------------------- */

struct zd_job *zd_job_find(struct zd_engine *e, uint32_t uid, const char *name)
{
	struct zd_owner *owner;
	struct zd_job *job = NULL;
	HASH_FIND(hh, e->owners, &uid, sizeof(uid), owner);
	if (owner)
		HASH_FIND(hh_name, owner->jobs, name, strlen(name), job);
	return job;
}

void zd_job_set_durable(struct zd_engine *e, struct zd_job *job, bool durable)
{
	e->ndurable += durable;
	e->ndurable -= job->durable;
	job->durable = durable;
	if (durable && !job->journal && e->journal.on) {
		job->journal = &e->journal;
		zd_journal_job(job);
	} else if (!durable && job->journal) {
		zd_journal_gone(job->journal, ZD_RECORD_JOB, job->id, 0);
		job->journal = NULL;
	}
}

static int check_job_count(const struct zd_engine *e, const struct zd_session *session, struct zd_err *err)
{
	uint32_t max_jobs = e->uid_limits.max_jobs, njobs = HASH_CNT(hh_name, session->owner->jobs);
	if (session->admin || max_jobs == 0 || njobs < max_jobs)
		return 0;
	return zd_err_set(err, ZEROD_E_LIMIT, "uid %u has %u jobs already: max_jobs_per_uid is %u",
	                  session->uid, njobs, max_jobs);
}

static uint32_t job_metadata_bytes(const char *name)
{
	return (uint32_t)(sizeof(struct zd_job) + strlen(name) + 1);
}

struct zd_job *zd_job_new(struct zd_engine *e, uint32_t uid, const char *name, bool durable)
{
	struct zd_job *job = zd_calloc(1, sizeof(*job));
	job->name = zd_strdup(name);
	job->owner = zd_owner_get(e, uid);
	job->id = zd_next_id(e, job->owner->ids, ZD_ID_JOB);
	job->metadata_bytes = job_metadata_bytes(name);
	zd_metadata_charge(job->owner, job->metadata_bytes);
	HASH_ADD_KEYPTR(hh_name, job->owner->jobs, job->name, strlen(job->name), job);
	zd_job_set_durable(e, job, durable);
	TAILQ_INIT(&job->groups);
	TAILQ_INIT(&job->allocations);
	HASH_ADD(hh, e->jobs, id, sizeof(job->id), job);
	zd_id_tree_insert(&e->listed[ZD__TABLE__JOBS], &job->listed, job->id);
	job->made_ns = e->now_ns;
	(void)zd_event_new(e, ZD_EVENT_JOB_BEGIN, job);
	return job;
}

int zd_job_get(struct zd_engine *e, const struct zd_session *session, const char *name, bool durable,
               struct zd_job **out, struct zd_err *err)
{
	struct zd_job *job = zd_job_find(e, session->uid, name);
	if (job) {
		*out = job;
		return 0;
	}
	int status = check_job_count(e, session, err);
	if (status == 0)
		status = zd_metadata_check(e, session, "job", name, job_metadata_bytes(name), err);
	if (status != 0)
		return status;
	*out = zd_job_new(e, session->uid, name, durable);
	return 0;
}

void zd_job_note_left(struct zd_engine *e, struct zd_job *job)
{
	job->left_ns = e->now_ns;
	if (job->durable && e->uid_limits.durable_ttl_ns)
		e->next_expiry_ns = zd_min_u64(e->next_expiry_ns, e->now_ns + e->uid_limits.durable_ttl_ns);
}

static void report_job(struct zd_engine *e, const struct zd_job *job, enum zd_notice_kind kind)
{
	struct zd_notice notice = {.kind = kind,
	                           .job = job->name,
	                           .uid = job->owner->uid,
	                           .began_ns = job->began_ns,
	                           .peak_bytes = job->account.peak};
	if (e->sink.notice)
		e->sink.notice(e->sink.arg, &notice);
}

void zd_job_note_group(struct zd_engine *e, struct zd_job *job)
{
	if (job->had_group)
		return;
	job->had_group = true;
	job->began_ns = e->now_ns;
	zd_journal_job(job);
	report_job(e, job, ZD_NOTICE_JOB_BEGAN);
}

/* Its segments refer to it until they are destroyed. Its name is free for another job at once. */
static void end_job(struct zd_engine *e, struct zd_job *job)
{
	zd_assert(TAILQ_EMPTY(&job->groups) && job->account.total == 0);
	job->over = true;
	e->events->job_ended(e, job);
	if (job->had_group)
		report_job(e, job, ZD_NOTICE_JOB_ENDED);
	HASH_DEL(e->jobs, job);
	zd_id_tree_remove(&e->listed[ZD__TABLE__JOBS], &job->listed);
	zd_job_set_durable(e, job, false);
	HASH_DELETE(hh_name, job->owner->jobs, job);
	zd_metadata_uncharge(job->owner, job->metadata_bytes);
	zd_event_new(e, ZD_EVENT_JOB_END, job)->value = job->made_ns;
	zd_history_keep_name(&e->history, job->id, job->name, "");
}

void zd_job_unref(struct zd_engine *e, struct zd_job *job)
{
	zd_assert(job->refs > 0);
	if (job->refs == 1 && !job->over)
		end_job(e, job);
	if (--job->refs > 0)
		return;
	zd_owner_put(e, job->owner);
	free(job->pools);
	free(job->name);
	free(job);
}

/* ---- Groups -------------------------------------------------------------------------------------------- */

void zd_group_event(struct zd_engine *e, const struct zd_group *group, const struct zd_member *member,
                    enum zd_event_kind kind, enum zd_event_word reason)
{
	struct zd_event *event = member ? zd_event_of(e, kind, member) : zd_event_new(e, kind, group->job);
	event->object = group->id;
	event->reason = (uint8_t)reason;
}

void zd_group_ready(struct zd_engine *e, struct zd_group *group)
{
	zd_sm_move(&zd_sm_group, &group->state, ZD_GROUP_READY);
	zd_group_event(e, group, NULL, ZD_EVENT_GROUP_BEGIN, ZD_WORD_NONE);
}

void zd_group_set_over(struct zd_group *group)
{
	if (!group->over)
		zd_hash_remove(&group->job->group_names, &group->by_name);
	group->over = true;
}

void zd_group_unref(struct zd_engine *e, struct zd_group *group)
{
	zd_assert(group->refs > 0);
	if (--group->refs > 0)
		return;
	zd_assert(group->attached == 0 && TAILQ_EMPTY(&group->units) && TAILQ_EMPTY(&group->former) &&
	          TAILQ_EMPTY(&group->reductions));
	zd_assert(TAILQ_EMPTY(&group->slots));
	HASH_DEL(e->groups, group);
	zd_id_tree_remove(&e->listed[ZD__TABLE__GROUPS], &group->listed);
	zd_group_set_over(group);
	TAILQ_REMOVE(&group->job->groups, group, job_link);
	zd_metadata_uncharge(group->job->owner, group->metadata_bytes);
	zd_group_event(e, group, NULL, ZD_EVENT_GROUP_END, ZD_WORD_NONE);
	e->events->group_freed(e, group);
	zd_job_unref(e, group->job);
	zd_history_keep_name(&e->history, group->id, "", group->name);
	free(group->members);
	free(group->aborted_why);
	free(group->name);
	free(group);
}

bool zd_group_is_left(const struct zd_group *group)
{
	bool left = group->state == ZD_GROUP_FAILED && group->attached > 0 && !group->cluster;
	for (uint32_t rank = 0; rank < group->local_world_size && left; rank++) {
		const struct zd_member *member = &group->members[rank];
		left = member->ended || (member->session && !member->detaching && !member->joining);
	}
	return left;
}

/* Returns the last lost rank whose place no session has. If all have been replaced, returns the last one. */
static const struct zd_lost *find_missing(const struct zd_group *group)
{
	for (uint64_t i = 0; i < zd_min_u64(group->generation, ZD_LOST_KEPT); i++) {
		const struct zd_lost *lost = &group->lost[(group->generation - i) % ZD_LOST_KEPT];
		const struct zd_member *member = &group->members[lost->rank - group->first_rank];
		if (!member->session || member->detaching)
			return lost;
	}
	return zd_group_lost(group);
}

static const char *end_of(const struct zd_lost *lost)
{
	return lost->ended ? "ended normally" : "is gone";
}

int zd_group_check(const struct zd_group *group, struct zd_err *err)
{
	const struct zd_lost *lost;
	switch (group->state) {
	case ZD_GROUP_READY:
		return 0;
	case ZD_GROUP_FAILED:
		lost = find_missing(group);
		return zd_err_set(err, ZEROD_E_PEER_LOST, "rank %u (pid %u) of group '%s' %s", lost->rank,
		                  lost->pid, group->name, end_of(lost));
	case ZD_GROUP_ABORTED:
		if (group->aborted_why)
			return zd_err_set(err, group->aborted_status, "%s", group->aborted_why);
		return zd_err_set(err, ZEROD_E_ABORTED, "group '%s' was aborted", group->name);
	default:
		return zd_err_set(err, ZEROD_E_STATE, "group '%s' is not complete yet", group->name);
	}
}

/* Names the ranks lost between generation `since` and the last lost rank: "", or ", as is rank 1 (pid 7)". If
 * a rank ended in the other way, its brackets say so. */
static void name_others(const struct zd_group *group, uint64_t since, char *out, size_t out_bytes)
{
	uint64_t others = group->generation - since - 1, named = zd_min_u64(others, ZD_LOST_KEPT - 1);
	bool ended = zd_group_lost(group)->ended;
	size_t length = 0;
	out[0] = '\0';
	for (uint64_t i = 1; i <= named; i++) {
		const struct zd_lost *lost = &group->lost[(group->generation - i) % ZD_LOST_KEPT];
		const char *first = ended ? ", as did" : others > 1 ? ", as are" : ", as is";
		int n = snprintf(out + length, out_bytes - length, "%s rank %u (pid %u%s)",
		                 i > 1 ? "," : first, lost->rank, lost->pid,
		                 lost->ended == ended ? ""
		                 : lost->ended        ? ", ended normally"
		                                      : ", is gone");
		length += (size_t)n;
	}
	if (others > named)
		(void)snprintf(out + length, out_bytes - length, " and %llu before",
		               (unsigned long long)(others - named));
}

int zd_group_tell(const struct zd_group *group, uint64_t since, struct zd_err *err)
{
	const struct zd_lost *lost = zd_group_lost(group);
	char others[192];
	name_others(group, since, others, sizeof(others));
	return zd_err_set(err, ZEROD_E_PEER_LOST, "rank %u (pid %u) of group '%s' %s%s%s", lost->rank,
	                  lost->pid, group->name, end_of(lost), others,
	                  group->state == ZD_GROUP_FAILED ? "" : "; another session may have its place");
}

int zd_member_tell(struct zd_member *member, struct zd_err *err)
{
	uint64_t since = member->told;
	if (since == member->group->generation)
		return 0;
	member->told = member->group->generation;
	zd_member_note_told(member);
	if (member->set_back && member->group->state == ZD_GROUP_READY)
		return zd_member_check(member, err); /* this error has more details */
	return zd_group_tell(member->group, since, err);
}

int zd_member_enter(struct zd_member *member, struct zd_err *err)
{
	int status = zd_group_check(member->group, err);
	if (status != 0 && status != ZEROD_E_PEER_LOST)
		return status;
	int told = zd_member_tell(member, err);
	return told != 0 ? told : status;
}

/* Returns PEER_LOST if the rank has not been reset since its publishes were undone. */
static int check_set_back(const struct zd_member *member, struct zd_err *err)
{
	const struct zd_group *group = member->group;
	if (!member->set_back)
		return 0;
	return zd_err_set(
	        err, ZEROD_E_PEER_LOST,
	        "rank %u (pid %u) of group '%s' was lost: rank %u is restored to step %llu; discard what "
	        "it has computed since, and reset the session",
	        zd_group_lost(group)->rank, zd_group_lost(group)->pid, group->name, zd_world_rank(member),
	        (unsigned long long)group->committed_step);
}

int zd_member_check(const struct zd_member *member, struct zd_err *err)
{
	const struct zd_group *group = member->group;
	int status = zd_group_check(group, err);
	if (group->state == ZD_GROUP_FAILED && member->told != group->generation)
		return zd_group_tell(group, member->told, err);
	return status ? status : check_set_back(member, err);
}

bool zd_member_reads_on(const struct zd_member *member)
{
	return member->told >= member->group->loss && zd_group_is_left(member->group);
}

int zd_member_check_read(const struct zd_member *member, struct zd_err *err)
{
	return zd_member_reads_on(member) ? check_set_back(member, err) : zd_member_check(member, err);
}

static uint64_t hash_member(const struct zd_session *session, const struct zd_group *group)
{
	return zd_hash_id(group->id + zd_hash_id(session->id));
}

void zd_member_link(struct zd_engine *e, struct zd_member *member, struct zd_session *session)
{
	member->session = session;
	TAILQ_INSERT_TAIL(&session->members, member, session_link);
	zd_hash_insert(&e->members, &member->by_session, hash_member(session, member->group));
	zd_member_note_told(member);
}

void zd_member_unlink(struct zd_engine *e, struct zd_member *member)
{
	TAILQ_REMOVE(&member->session->members, member, session_link);
	zd_hash_remove(&e->members, &member->by_session);
	member->session->nuntold -= member->untold;
	member->untold = false;
	member->session = NULL;
}

void zd_member_note_told(struct zd_member *member)
{
	bool untold = member->told != member->group->generation;
	if (!member->session || untold == member->untold)
		return;
	member->untold = untold;
	member->session->nuntold += untold ? 1u : -1u;
}

struct zd_member *zd_member_find_indexed(const struct zd_engine *e, const struct zd_session *session,
                                         const struct zd_group *group)
{
	struct zd_hash_node *node = zd_hash_first(&e->members, hash_member(session, group));
	for (; node; node = zd_hash_next(node)) {
		struct zd_member *member = ZD_CONTAINER_OF(node, struct zd_member, by_session);
		if (member->group == group && member->session == session)
			return member;
	}
	return NULL;
}

int zd_member_find(struct zd_engine *e, struct zd_session *session, uint64_t id, struct zd_member **out,
                   struct zd_err *err)
{
	struct zd_member *member = TAILQ_FIRST(&session->members);
	if (member && member->group->id != id) {
		struct zd_group *group;
		HASH_FIND(hh, e->groups, &id, sizeof(id), group);
		member = group ? zd_member_of(e, session, group) : NULL;
	}
	if (member && !member->joining) {
		*out = member;
		return 0;
	}
	return zd_err_set(err, ZEROD_E_NOT_FOUND, "this session is not a member of group %llu",
	                  ZD_ID_NUMBER(id));
}
