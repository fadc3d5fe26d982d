/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster.c - connects groups that span daemons, and checks that all daemons describe the same group.
 *
 * When the last rank of this daemon has joined, its ranks' communicators are opened. On each open
 * communicator the ranks exchange greetings, which describe the group. A group is therefore READY only when
 * the descriptions of all its daemons agree, and each communicator has been used once.
 *
 * A daemon can be in doubt about a commit. If another daemon has made the commit, all daemons had agreed to
 * it, and all make it now. Otherwise no client has received a reply to the commit, and all daemons return to
 * the step before. The group is therefore at the newest step that any daemon has committed. Each daemon must
 * have committed that step or be in doubt about it. No daemon changes its state before all greetings on all
 * of its communicators have arrived. All daemons that decide therefore make the same decision. A daemon that
 * does not decide remains in doubt, and the group makes no commit without it.
 */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "core/cluster/cluster.h"
#include "core/engine/events.h"
#include "core/engine/objects.h"

/* ---- Ranks --------------------------------------------------------------------------------------------- */

uint32_t zd_cluster_rank(const struct zd_member *member)
{
	const struct zd_group *group = member->group;
	return group->cluster->nccl_collectives ? zd_world_rank(member)
	                                        : group->first_rank / group->local_world_size;
}

uint32_t zd_cluster_world_rank(const struct zd_member *member, uint32_t peer)
{
	const struct zd_group *group = member->group;
	return group->cluster->nccl_collectives ? peer : peer * group->local_world_size + member->rank;
}

/* ---- Commands ------------------------------------------------------------------------------------------ */

#define AUX_SERIAL_SHIFT 32u /* above the local rank and the role */

static uint64_t connection_aux(const struct zd_member *member, enum zd_comm_role role)
{
	return member->group->cluster->serial << AUX_SERIAL_SHIFT | (uint64_t)member->rank * ZD_NCOMM_ROLES |
	       role;
}

static bool is_current(const struct zd_op *op)
{
	const struct zd_group *group = op->owner;
	return op->aux >> AUX_SERIAL_SHIFT == group->cluster->serial;
}

static void agree_over_rail(struct zd_engine *e, struct zd_member *member, enum zd_comm_role role,
                            const char *what, const void *value, uint32_t bytes, zd_op_fn *done)
{
	struct zd_command command = {.kind = ZD_CMD_AGREE, .device = member->device->index};
	zd_assert(bytes <= ZD_AGREE_BYTES && member->comm[role]);
	command.u.agree.comm = member->comm[role];
	command.u.agree.bytes = bytes;
	command.u.agree.what = what;
	memcpy(command.u.agree.value, value, bytes);
	member->group->refs++;
	zd_op_submit(e, member->group->job, &command, done, member->group, connection_aux(member, role));
}

/* ---- Connecting ---------------------------------------------------------------------------------------- */

/* A rank's description of its group. Every byte is set, and means the same in all daemons. */
struct greeting {
	char host[ZD_MAX_NAME_BYTES + 1];
	uint64_t name; /* a hash of the group's name */
	uint64_t committed_step;
	uint64_t voted_step; /* that the daemon is in doubt about; 0: none */
	uint32_t world_size, local_world_size, rank;
	uint8_t torn, durable, shadow, hybrid;
};

_Static_assert(sizeof(struct greeting) <= ZD_AGREE_BYTES, "one agreement takes it");

static void greet(const struct zd_engine *e, const struct zd_member *member, struct greeting *greeting)
{
	const struct zd_group *group = member->group;
	*greeting = (struct greeting){
	        .name = zd_text_hash(group->name),
	        .committed_step = group->committed_step,
	        .voted_step = group->voted_step,
	        .world_size = group->world_size,
	        .local_world_size = group->local_world_size,
	        .rank = zd_world_rank(member),
	        .torn = group->torn,
	        .durable = group->job->durable,
	        .shadow = group->shadow,
	        .hybrid = group->cluster->hybrid,
	};
	memcpy(greeting->host, e->host, sizeof(greeting->host));
	greeting->host[ZD_MAX_NAME_BYTES] = '\0';
}

static void greeting_text(const struct greeting *greeting, char *out, size_t out_bytes)
{
	char doubt[48] = "";
	if (greeting->voted_step)
		(void)snprintf(doubt, sizeof(doubt), ", step %llu in doubt",
		               (unsigned long long)greeting->voted_step);
	(void)snprintf(out, out_bytes, "rank %u of %u, %u a daemon (node %s)%s%s%s, step %llu committed%s",
	               greeting->rank, greeting->world_size, greeting->local_world_size, greeting->host,
	               greeting->durable ? ", durable" : "", greeting->shadow ? " with shadows" : "",
	               greeting->hybrid ? ", hybrid" : "", (unsigned long long)greeting->committed_step,
	               doubt);
}

static int greetings_differ(const struct zd_member *member, const struct greeting *own,
                            const struct greeting *other, struct zd_err *err)
{
	char had[240], says[240];
	greeting_text(own, had, sizeof(had));
	greeting_text(other, says, sizeof(says));
	return zd_err_set(err, ZEROD_E_MISMATCH, "group '%s': here %s; there %s%s", member->group->name, had,
	                  says, own->name == other->name ? "" : ", of a group of another name");
}

static void greeting_of(const struct zd_op_result *result, uint32_t peer, struct greeting *greeting)
{
	memcpy(greeting, result->values + peer * sizeof(*greeting), sizeof(*greeting));
	greeting->host[ZD_MAX_NAME_BYTES] = '\0'; /* another daemon wrote it: it is not trusted */
}

/* Returns the last step that any daemon has committed. Each daemon has a rank on every rail. */
static uint64_t newest_step(const struct zd_cluster *cluster, const struct zd_op_result *result)
{
	uint64_t newest = 0;
	for (uint32_t peer = 0; peer < cluster->nranks; peer++) {
		struct greeting greeting;
		greeting_of(result, peer, &greeting);
		newest = zd_max_u64(newest, greeting.committed_step);
	}
	return newest;
}

static bool can_be_at(const struct greeting *greeting, uint64_t step)
{
	return greeting->committed_step == step || greeting->voted_step == step;
}

/* Returns MISMATCH unless all ranks of the rail describe the same group. */
static int greetings_check(const struct zd_engine *e, struct zd_member *member,
                           const struct zd_op_result *result, struct zd_err *err)
{
	struct zd_cluster *cluster = member->group->cluster;
	struct greeting own;
	greet(e, member, &own);
	zd_assert(result && result->values_bytes == cluster->nranks * sizeof(own));
	uint64_t newest = newest_step(cluster, result);
	for (uint32_t peer = 0; peer < cluster->nranks; peer++) {
		struct greeting other;
		greeting_of(result, peer, &other);
		if (other.name != own.name || other.world_size != own.world_size ||
		    other.local_world_size != own.local_world_size ||
		    other.rank != zd_cluster_world_rank(member, peer) || other.durable != own.durable ||
		    other.shadow != own.shadow || other.hybrid != own.hybrid ||
		    (can_be_at(&own, newest) ? !can_be_at(&other, newest) : other.committed_step == newest))
			return greetings_differ(member, &own, &other, err);
		memcpy(cluster->hosts[peer], other.host, sizeof(other.host));
	}
	return 0;
}

/* Sets the group's committed step, the same on all daemons, when all greetings have arrived. The group is
 * torn only if a daemon at that step is torn: the step repairs a group that was torn at an older step. */
static void resolve(struct zd_engine *e, struct zd_group *group, const struct zd_op_result *result)
{
	uint64_t newest = newest_step(group->cluster, result);
	bool torn = false;
	for (uint32_t peer = 0; peer < group->cluster->nranks; peer++) {
		struct greeting greeting;
		greeting_of(result, peer, &greeting);
		torn |= greeting.torn && greeting.committed_step == newest;
	}
	e->events->daemons_met(e, group, newest, torn);
}

/* A command of the op's connection has ended. Returns true if it was the last one of the current connection's
 * pending commands, and all have succeeded. */
static bool step_done(struct zd_engine *e, struct zd_group *group, const struct zd_op *op)
{
	struct zd_cluster *cluster = group->cluster;
	if (group->state != ZD_GROUP_CONNECTING || !is_current(op))
		return false;
	if (op->status != 0) {
		zd_cluster_fail(e, group, op->status, op->error);
		return false;
	}
	return --cluster->pending == 0;
}

static struct zd_member *op_member(const struct zd_op *op)
{
	struct zd_group *group = op->owner;
	return &group->members[(op->aux & UINT32_MAX) / ZD_NCOMM_ROLES];
}

static void greeted(struct zd_engine *e, struct zd_op *op)
{
	struct zd_group *group = op->owner;
	struct zd_err err = ZD_ERR_NONE;
	if (op->status == 0 && group->state == ZD_GROUP_CONNECTING && is_current(op)) {
		op->status = greetings_check(e, op_member(op), op->result, &err);
		op->error = err.text;
	}
	if (step_done(e, group, op)) {
		resolve(e, group, op->result);
		zd_group_ready(e, group);
		zd_dirty_group(e, group);
	}
	zd_group_unref(e, group);
}

static void opened(struct zd_engine *e, struct zd_op *op)
{
	struct zd_group *group = op->owner;
	if (op->status == 0 && group->state == ZD_GROUP_CONNECTING && is_current(op)) {
		struct zd_member *member = op_member(op);
		struct greeting greeting;
		greet(e, member, &greeting);
		group->cluster->pending++;
		agree_over_rail(e, member, (op->aux & UINT32_MAX) % ZD_NCOMM_ROLES, "greeting", &greeting,
		                sizeof(greeting), greeted);
	}
	(void)step_done(e, group, op);
	zd_group_unref(e, group);
}

static void open_rail_comm(struct zd_engine *e, struct zd_member *member, enum zd_comm_role role)
{
	struct zd_group *group = member->group;
	struct zd_cluster *cluster = group->cluster;
	struct zd_command command = {.kind = ZD_CMD_COMM_OPEN, .device = member->device->index};
	uint32_t rail = cluster->nccl_collectives ? 0 : member->rank;
	member->comm[role] = ++e->next_op;
	command.u.comm_open = (struct zd_comm_desc){
	        .comm = member->comm[role],
	        .group = group->name,
	        .role = role,
	        .nranks = cluster->nranks,
	        .rank = zd_cluster_rank(member),
	};
	if (!cluster->nccl_collectives)
		command.u.comm_open.world = (struct zd_comm_world){member->rank, group->local_world_size - 1};
	memcpy(command.u.comm_open.id,
	       cluster->ids + (size_t)(rail * ZD_NCOMM_ROLES + role) * ZD_UNIQUE_ID_BYTES,
	       ZD_UNIQUE_ID_BYTES);
	group->refs++;
	cluster->pending++;
	zd_op_submit(e, group->job, &command, opened, group, connection_aux(member, role));
}

static void open_all(struct zd_engine *e, struct zd_group *group)
{
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		for (uint32_t role = 0; role < ZD_NCOMM_ROLES; role++)
			open_rail_comm(e, &group->members[rank], role);
	}
}

static void ids_made(struct zd_engine *e, struct zd_op *op)
{
	struct zd_group *group = op->owner;
	if (step_done(e, group, op)) {
		zd_assert(op->result->values_bytes == group->cluster->ids_bytes);
		memcpy(group->cluster->ids, op->result->values, op->result->values_bytes);
		open_all(e, group);
	}
	zd_group_unref(e, group);
}

void zd_cluster_connect(struct zd_engine *e, struct zd_group *group)
{
	struct zd_cluster *cluster = group->cluster;
	zd_sm_move(&zd_sm_group, &group->state, ZD_GROUP_CONNECTING);
	cluster->serial++;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++)
		group->members[rank].transfers = 0;
	cluster->pending = 0;
	cluster->step = cluster->commit = cluster->barrier = (struct zd_cluster_round){0};
	memset(cluster->hosts, 0, cluster->nranks * sizeof(*cluster->hosts));
	if (cluster->given) {
		zd_ids_use(e, group);
		open_all(e, group);
		return;
	}
	struct zd_command command = {.kind = ZD_CMD_UNIQUE_IDS, .device = group->members[0].device->index};
	command.u.ids.count = ZD_NCOMM_ROLES;
	command.u.ids.uid = group->job->owner->uid;
	group->refs++;
	cluster->pending++;
	zd_op_submit(e, group->job, &command, ids_made, group,
	             connection_aux(&group->members[0], ZD_COMM_GATHERS));
}

/* ---- Rounds -------------------------------------------------------------------------------------------- */

/* Starts an agreement on the communicators of reductions. Their operations have the same order on all ranks:
 * a step comes after the reductions of its backwards, and a commit after its step. */
void zd_cluster_ask(struct zd_engine *e, struct zd_member *member, struct zd_cluster_round *round,
                    const char *what, const void *value, uint32_t bytes, zd_op_fn *done)
{
	round->pending++;
	agree_over_rail(e, member, ZD_COMM_REDUCTIONS, what, value, bytes, done);
}

bool zd_cluster_answered(struct zd_engine *e, const struct zd_op *op, struct zd_cluster_round *round)
{
	struct zd_group *group = op->owner;
	bool last = false;
	if (group->state == ZD_GROUP_READY && is_current(op)) {
		if (op->status != 0)
			zd_cluster_fail(e, group, op->status, op->error);
		else
			last = --round->pending == 0;
	}
	zd_group_unref(e, group);
	return last;
}
