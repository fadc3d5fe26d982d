/* SPDX-License-Identifier: Apache-2.0 */
/* update_points.h - where the ranks of a group with shadows are in a step when one of them ends, or all. */
#ifndef ZD_TESTS_UPDATE_POINTS_H
#define ZD_TESTS_UPDATE_POINTS_H

#include "tests/support/core_durable.h"

static const struct zd_fence slow = {7, 1}; /* a client's stream that has not come so far */

enum point {
	BEFORE,
	SAVING,     /* the last commit is being saved */
	READING,    /* the same, behind a push that reads the shard */
	SAVED,      /* saved, and not granted: another unit of the same request is being saved */
	UPDATING,   /* half written */
	PUBLISHING, /* written, behind a stream that has not come so far */
	PUBLISHED_BY_ONE,
	PUBLISHED_UNIT, /* one of two, by both ranks */
	PUBLISHED_BY_ALL,
	UPDATED_AGAIN, /* in the same step */
	COMMITTING,    /* one rank of two */
	COMMITTED,
	COMMITTED_AND_UPDATING,
	DUE,       /* rank 0 has ended, and rank 1 still writes */
	RESTORING, /* rank 0 has ended, and the copies back are under way */
	RESTORED,
	NPOINTS
};

static inline void both_units_published(struct durable *d)
{
	both_publish(d, 0);
	both_publish(d, 1);
}

static inline void go_to_commit(struct durable *d, enum point point)
{
	if (point == COMMITTING) {
		both_units_published(d);
		core_expect_waits(d->core, core_commit(d->core, d->team.session[0], d->team.group, 2),
		                  "rank 1 to commit");
		return;
	}
	core_team_publish(&d->team, d->unit[0]);
	core_team_publish(&d->team, d->unit[1]);
	commit(d, 2);
	if (point == COMMITTED_AND_UPDATING)
		both_publish(d, 0);
}

static inline void go_to_loss(struct durable *d, enum point point)
{
	both_units_published(d);
	if (point == DUE) {
		core_expect(d->core, update(d, 0, 1), 0);
		write_undone(d, 0, 1);
	}
	if (point != RESTORED)
		core_hold(d->core, ZD_CMD_COPY);
	core_close(d->core, d->team.session[0]);
	if (point == RESTORING) /* half of the copies */
		core_run_on(d->core, ZD_CMD_COPY, 0);
}

/* Takes rank 0 there; rank 1 is not behind. */
static inline void go_to(struct durable *d, enum point point)
{
	struct zd_args both = {.kind = ZD_REQ_UPDATE_BEGIN,
	                       .u.update_begin = {.n_units = 2, .units = d->unit}};
	switch (point) {
	case SAVING:
		core_hold(d->core, ZD_CMD_COPY);
		core_expect_waits(d->core, update(d, 0, 0),
		                  "the last commit of rank 0's shard of unit 'a' to be saved");
		break;
	case READING:
		core_hold(d->core, ZD_CMD_COPY);
		core_expect(d->core, core_gather(d->core, d->team.session[1], d->unit[0]), 0);
		core_expect(d->core, core_release(d->core, d->team.session[1], d->unit[0]), 0);
		(void)update(d, 0, 0);
		core_expect_waits(d->core, update(d, 1, 0), "to be saved");
		break;
	case SAVED:
		core_hold(d->core, ZD_CMD_COPY);
		core_expect_waits(d->core, core_send(d->core, d->team.session[0], &both), "to be saved");
		core_run_one(d->core, ZD_CMD_COPY);
		break;
	case UPDATING:
		core_expect(d->core, update(d, 0, 0), 0);
		memset(core_bytes(d->core, d->shard[0][0]), UNDONE, SHARD_BYTES / 2);
		break;
	case PUBLISHING:
		core_expect(d->core, update(d, 0, 0), 0);
		write_undone(d, 0, 0);
		core_expect_waits(d->core, core_publish_after(d->core, d->team.session[0], d->unit[0], slow),
		                  "own streams");
		break;
	case PUBLISHED_BY_ONE:
		publish_undone(d, 0, 0);
		break;
	case PUBLISHED_UNIT:
		both_publish(d, 0);
		core_expect(d->core, update(d, 1, 0), 0);
		break;
	case PUBLISHED_BY_ALL:
		both_units_published(d);
		break;
	case UPDATED_AGAIN:
		both_units_published(d);
		publish_undone(d, 0, 0);
		core_expect(d->core, update(d, 1, 0), 0);
		break;
	case COMMITTING:
	case COMMITTED:
	case COMMITTED_AND_UPDATING:
		go_to_commit(d, point);
		break;
	case DUE:
	case RESTORING:
	case RESTORED:
		go_to_loss(d, point);
		break;
	default:
		break;
	}
}

static inline uint64_t version_at(enum point point)
{
	return point == COMMITTED || point == COMMITTED_AND_UPDATING ? 2 : 1;
}

#endif
