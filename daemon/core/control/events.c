/* SPDX-License-Identifier: Apache-2.0 */
/* events.c - the functions of higher rooms that lower rooms call, see engine/events.h. */
#include "core/cluster/cluster.h"
#include "core/control/control.h"
#include "core/gather/collective.h"
#include "core/gather/commit.h"
#include "core/gather/gather.h"
#include "core/gather/host_copy.h"
#include "core/gather/save.h"
#include "core/memory/empty.h"
#include "core/reduce/reduce.h"

static void group_freed(struct zd_engine *e, struct zd_group *group)
{
	zd_host_copy_drop(e, group);
	zd_cluster_free(group->cluster);
	zd_norms_group_end(e, group);
}

const struct zd_events zd_control_events = {
        .job_ended = zd_pool_job_end,
        .jobs_expire = zd_jobs_expire,
        .unmaps_expire = zd_unmaps_expire,
        .pins_expire = zd_pins_expire,
        .group_freed = group_freed,
        .device_settles = zd_reduce_settle,
        .segment_awaited = zd_empty_await,
        .wait_text = zd_wait_text,
        .acting_member = zd_acting_member,
        .list_prefetched = zd_prefetches_list,
        .drop_prefetched = zd_prefetches_drop,
        .saves_make_room = zd_saves_make_room,
        .group_failed = zd_reduce_group_failed,
        .transfers_stop = zd_relays_stop,
        .daemons_met = zd_commit_resolve,
        .check_window_closed = zd_backward_check_closed,
        .check_backward_ended = zd_backward_check_ended,
        .has_target = zd_reduce_has_target,
        .check_target_place = zd_target_check_place,
        .unlend_target = zd_target_unlend,
};
