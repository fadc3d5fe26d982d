/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.h - calls from lower rooms of the core to higher ones.
 *
 * A room includes and calls the rooms below it (docs/architecture.md). For a call of a higher room
 * it uses a function of this table, which is filled in control/events.c.
 */
#ifndef ZD_CORE_ENGINE_EVENTS_H
#define ZD_CORE_ENGINE_EVENTS_H

#include "core/engine/objects.h"

struct zd_segment;

struct zd_events {
	/* Called by the room engine. */
	void (*job_ended)(struct zd_engine *e, struct zd_job *job);
	void (*jobs_expire)(struct zd_engine *e);
	/* Ends sessions that have not unmapped a segment in time. Returns the time at which the next one will
	 * be late. */
	uint64_t (*unmaps_expire)(struct zd_engine *e);
	/* Ends sessions' pins at their deadlines. Returns the next one. */
	uint64_t (*pins_expire)(struct zd_engine *e);
	void (*group_freed)(struct zd_engine *e, struct zd_group *group);
	/* Called before the requests of a dirty device are tried. */
	void (*device_settles)(struct zd_engine *e, struct zd_device *device);
	/* A request starts (1) or ends (-1) to wait for the segment, which can be gone. */
	void (*segment_awaited)(struct zd_engine *e, uint32_t segment, int more);
	/* `reader` NULL: sees all. */
	void (*wait_text)(const struct zd_engine *e, const struct zd_request *req,
	                  const struct zd_session *reader, char out[ZD_WAIT_TEXT]);
	/* Returns the rank for which a request acts, or NULL. */
	struct zd_member *(*acting_member)(struct zd_engine *e, struct zd_session *session,
	                                   const struct zd_args *args);

	/* Called by the room memory. */
	/* Lists the segments with idle prefetched buffers in the device's `with_prefetched`. */
	void (*list_prefetched)(struct zd_device *device);
	void (*drop_prefetched)(struct zd_engine *e, struct zd_segment *segment);
	/* Revokes pins with saves in memory of the device, or of the owner. Returns whether it revoked
	 * any. */
	bool (*saves_make_room)(struct zd_engine *e, const struct zd_owner *owner, struct zd_device *device);

	/* Called by the room cluster. */
	void (*group_failed)(struct zd_engine *e, struct zd_group *group);
	void (*transfers_stop)(struct zd_engine *e, struct zd_group *group, struct zd_member *member);
	void (*daemons_met)(struct zd_engine *e, struct zd_group *group, uint64_t step, bool torn);

	/* Called by the room gather: checks whether a unit may change while gradients are being reduced. */
	int (*check_window_closed)(const struct zd_member *member, const struct zd_unit *unit,
	                           struct zd_err *err);
	int (*check_backward_ended)(const struct zd_member *member, struct zd_err *err);
	bool (*has_target)(const struct zd_group *group);
	int (*check_target_place)(const struct zd_part *part, struct zd_err *err);
	void (*unlend_target)(struct zd_part *part);
};

#endif
