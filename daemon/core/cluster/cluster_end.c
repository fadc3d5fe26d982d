/* SPDX-License-Identifier: Apache-2.0 */
/* cluster_end.c - the end of a group that spans daemons: it fails, or a rank leaves, and communicators are
 * closed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "core/cluster/cluster.h"
#include "core/engine/events.h"
#include "core/engine/objects.h"

static void close_comms(struct zd_engine *e, struct zd_member *member, bool abort)
{
	for (uint32_t role = 0; role < ZD_NCOMM_ROLES; role++) {
		struct zd_command command = {.kind = ZD_CMD_COMM_CLOSE};
		if (!member->comm[role])
			continue;
		command.device = member->device->index;
		command.u.comm_close.comm = member->comm[role];
		command.u.comm_close.abort = abort;
		member->comm[role] = 0;
		e->sink.command(e->sink.arg, &command);
	}
}

void zd_cluster_abort(struct zd_engine *e, struct zd_group *group)
{
	for (uint32_t rank = 0; rank < group->local_world_size; rank++)
		close_comms(e, &group->members[rank], true);
	e->events->transfers_stop(e, group, NULL);
}

/* Makes the group ABORTED, so that it starts no further operations. */
static void cluster_end(struct zd_engine *e, struct zd_group *group, int status, const char *text)
{
	bool was_ready = group->state == ZD_GROUP_READY;
	zd_sm_move(&zd_sm_group, &group->state, ZD_GROUP_ABORTED);
	zd_group_event(e, group, NULL, ZD_EVENT_GROUP_FAIL, ZD_WORD_ABORTED);
	free(group->aborted_why);
	group->aborted_status = status;
	group->aborted_why = zd_strdup(text);
	if (e->sink.group_ended)
		e->sink.group_ended(e->sink.arg, group->job->owner->uid, group->job->name, group->name, text);
	if (was_ready)
		e->events->group_failed(e, group);
	zd_dirty_group(e, group);
}

static bool is_up(const struct zd_group *group)
{
	return group->state == ZD_GROUP_CONNECTING || group->state == ZD_GROUP_READY;
}

/* Whether the peer's node differs from this node, and from the nodes of all earlier peers. */
static bool names_node(const struct zd_engine *e, const struct zd_cluster *cluster, uint32_t peer)
{
	const char *host = cluster->hosts[peer];
	uint32_t before = 0;
	while (before < peer && strcmp(cluster->hosts[before], host) != 0)
		before++;
	return host[0] && before == peer && strcmp(host, e->host) != 0;
}

/* Writes "; its other nodes: b, c", with the nodes whose greetings have arrived. */
static void nodes_text(const struct zd_engine *e, const struct zd_cluster *cluster, char *out,
                       size_t out_bytes)
{
	size_t used = 0;
	out[0] = '\0';
	for (uint32_t peer = 0; peer < cluster->nranks && used + ZD_MAX_NAME_BYTES + 24 < out_bytes; peer++) {
		if (names_node(e, cluster, peer))
			used += (size_t)snprintf(out + used, out_bytes - used, "%s%s",
			                         used ? ", " : "; its other nodes: ", cluster->hosts[peer]);
	}
}

void zd_cluster_fail(struct zd_engine *e, struct zd_group *group, int status, const char *text)
{
	struct zd_err err = ZD_ERR_NONE;
	char nodes[256];
	if (!is_up(group))
		return;
	nodes_text(e, group->cluster, nodes, sizeof(nodes));
	status = zd_err_set(&err, status, "%s%s", text,
	                    status == ZEROD_E_PEER_LOST || status == ZEROD_E_DEADLINE ? nodes : "");
	cluster_end(e, group, status, err.text);
	zd_count(e, ZD_COUNT_GROUPS_ABORTED, 1);
	zd_cluster_abort(e, group);
}

void zd_cluster_give_up(struct zd_engine *e, struct zd_member *member, const char *what)
{
	struct zd_err err = ZD_ERR_NONE;
	if (member->session->state == ZD_SESSION_CLOSING) {
		zd_cluster_leave(e, member, false);
		return;
	}
	int status = zd_err_set(&err, ZEROD_E_ABORTED, "group '%s': rank %u gave up %s", member->group->name,
	                        zd_world_rank(member), what);
	zd_cluster_fail(e, member->group, status, err.text);
}

void zd_cluster_leave(struct zd_engine *e, struct zd_member *member, bool clean_exit)
{
	struct zd_group *group = member->group;
	struct zd_err err = ZD_ERR_NONE;
	int status =
	        zd_err_set(&err, ZEROD_E_PEER_LOST,
	                   "rank %u (pid %u) of group '%s' %s: all ranks leave, and may join again with a "
	                   "new unique id",
	                   zd_world_rank(member), member->session->pid, group->name,
	                   clean_exit ? "ended normally" : "is gone");
	if (is_up(group) && (!clean_exit || group->state == ZD_GROUP_CONNECTING)) {
		zd_cluster_fail(e, group, status, err.text);
	} else if (is_up(group)) {
		cluster_end(e, group, status, err.text);
	}
	e->events->transfers_stop(e, group, member);
	close_comms(e, member, !clean_exit);
}
