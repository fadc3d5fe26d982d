/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acting.c - whether a request acts for a rank, and for which one.
 *
 * If the rank's session has not yet been told of a loss in its group, the engine rejects a request that acts
 * for the rank with PEER_LOST, once (request.c). A rank that does not know of a loss therefore does not
 * gather, and makes no change that other ranks see. A request that ends or frees an object is executed. The
 * next request of another kind reports the loss.
 */
#include "core/control/control.h"
#include "core/gather/gather.h"
#include "core/gather/unit.h"
#include "core/reduce/bucket.h"

static struct zd_member *of_group(struct zd_engine *e, struct zd_session *session, uint64_t id)
{
	struct zd_member *member;
	return zd_member_find(e, session, id, &member, NULL) == 0 ? member : NULL;
}

static struct zd_member *of_unit(struct zd_engine *e, struct zd_session *session, uint64_t id)
{
	struct zd_part *part;
	return zd_part_find(e, session, id, &part, NULL) == 0 ? zd_part_member(part) : NULL;
}

/* An update whose versions a normally ended rank has already published does not need that rank. */
static struct zd_member *of_update(struct zd_engine *e, struct zd_session *session,
                                   const struct zd_args *args)
{
	struct zd_part *part;
	for (uint32_t i = 0; i < args->u.publish.n_units; i++) {
		if (zd_part_find(e, session, args->u.publish.units[i], &part, NULL) != 0)
			return NULL;
		if (!zd_update_catches_up(part))
			return zd_part_member(part);
	}
	return NULL;
}

/* In a group with shadows the loss has undone the update. The publish ends it, and then returns PEER_LOST. */
static struct zd_member *of_publish(struct zd_engine *e, struct zd_session *session,
                                    const struct zd_args *args)
{
	struct zd_member *member = of_update(e, session, args);
	return member && !member->group->shadow ? member : NULL;
}

/* A rank that ended normally is not a loss for a request that does not need it. */
static struct zd_member *unless_reads_on(struct zd_member *member)
{
	return member && zd_member_reads_on(member) ? NULL : member;
}

static struct zd_member *of_bucket(struct zd_engine *e, const struct zd_session *session, uint64_t id)
{
	struct zd_bucket *bucket;
	return zd_bucket_find(e, session, id, &bucket, NULL) == 0 ? bucket->mr->member : NULL;
}

struct zd_member *zd_acting_member(struct zd_engine *e, struct zd_session *session,
                                   const struct zd_args *args)
{
	switch (args->kind) {
	case ZD_REQ_GROUP_BARRIER:
		return of_group(e, session, args->u.group_barrier.group);
	case ZD_REQ_UNIT_REGISTER:
		return unless_reads_on(of_group(e, session, args->u.unit_register.group));
	case ZD_REQ_COMMIT_SAVE:
		return of_group(e, session, args->u.commit_save.group);
	case ZD_REQ_COMMIT:
		return of_group(e, session, args->u.commit.group);
	case ZD_REQ_FORWARD_BEGIN:
		return unless_reads_on(of_group(e, session, args->u.forward_begin.group));
	case ZD_REQ_GROUP_AGREE:
		return of_group(e, session, args->u.group_agree.group);
	case ZD_REQ_BACKWARD_BEGIN:
		return of_group(e, session, args->u.backward_begin.group);
	case ZD_REQ_BACKWARD_END:
		return of_group(e, session, args->u.backward_end.group);
	case ZD_REQ_BACKWARD_ABANDON: /* the loss has ended the window */
		return of_group(e, session, args->u.backward_abandon.group);
	case ZD_REQ_BUCKET_CREATE:
		return of_group(e, session, args->u.bucket_create.group);
	case ZD_REQ_STEP_BEGIN:
		return of_group(e, session, args->u.step_begin.group);
	case ZD_REQ_STEP_GET:
		return of_group(e, session, args->u.step_get.group);
	case ZD_REQ_UPDATE_BEGIN:
		return of_update(e, session, args);
	case ZD_REQ_PUBLISH:
		return of_publish(e, session, args);
	case ZD_REQ_SET_PERSISTENT: /* otherwise it frees */
		return args->u.set_persistent.persistent ? of_unit(e, session, args->u.set_persistent.unit)
		                                         : NULL;
	case ZD_REQ_SET_SLOT:
		return of_unit(e, session, args->u.set_slot.unit);
	case ZD_REQ_SET_FROZEN:
		return of_unit(e, session, args->u.set_frozen.unit);
	case ZD_REQ_UNIT_LOAD:
		return of_unit(e, session, args->u.unit_load.unit);
	case ZD_REQ_UNIT_PLACE:
		return of_unit(e, session, args->u.unit_place.unit);
	case ZD_REQ_GATHER: /* clients do not wait for the reply of a prefetch: it does not report the loss */
		return args->u.gather.prefetch ? NULL
		                               : unless_reads_on(of_unit(e, session, args->u.gather.unit));
	case ZD_REQ_CONTEXT_BEGIN:
		return args->u.context_begin.n_units > 0
		               ? unless_reads_on(of_unit(e, session, args->u.context_begin.units[0]))
		               : NULL;
	case ZD_REQ_REDUCE_SKIP:
		return of_unit(e, session, args->u.reduce_skip.unit);
	case ZD_REQ_REDUCE_WAIT:
		return of_unit(e, session, args->u.reduce_wait.unit);
	case ZD_REQ_BUCKET_RESERVE:
		return of_bucket(e, session, args->u.bucket_reserve.bucket);
	case ZD_REQ_BUCKET_SUBMIT: /* frees an abandoned entry, and then reports the loss */
	case ZD_REQ_RELEASE:
	case ZD_REQ_FORWARD_END:
	case ZD_REQ_CLAIM_END:
	case ZD_REQ_SCOPE_ABANDON:
	case ZD_REQ_CONTEXT_END:
	case ZD_REQ_TARGET_RETURN:
	case ZD_REQ_STEP_END:
	case ZD_REQ_BUCKET_DESTROY:
	case ZD_REQ_UNIT_UNREGISTER:
	case ZD_REQ_GROUP_LEAVE:
	case ZD_REQ_FREE:
	case ZD_REQ_SEGMENTS_UNMAPPED: /* these end or free an object; the kinds below act for no rank */
	case ZD_REQ_SESSION_RESET:
	case ZD_REQ_CANCEL:
	case ZD_REQ_GROUP_JOIN:
	case ZD_REQ_UNITS_RESUME: /* is a part of the join */
	case ZD_REQ_UNIQUE_IDS:
	case ZD_REQ_ALLOC:
	case ZD_REQ_COMMIT_WAIT:
	case ZD_REQ_UNIT_READ:
	case ZD_REQ_KILL_SESSION:
	case ZD_REQ_ABORT_GROUP:
	case ZD_REQ_END_JOB:
	case ZD_REQ_KILL_JOB:
	case ZD_REQ_TRIM:
	case ZD_NREQUESTS:
		break;
	}
	return NULL;
}
