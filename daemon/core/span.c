/* SPDX-License-Identifier: Apache-2.0 */
/*
 * span.c - groups that span daemons: connected, found to be of one mind, and ended.
 *
 * When the last rank of this daemon has come, its ranks' communicators are opened; on each that is open its
 * rank tells the others what it takes the group for. So a group is READY only when all of its daemons have
 * the same, and each communicator has been used once.
 *
 * A daemon may be in doubt about a commit. If any other has made it, all had agreed, and all make it now; if
 * none has, nobody was told that it is made, and all go back. So the newest step that a daemon has committed
 * is the group's, and each must have it or be in doubt about it. Nobody's word changes before all have
 * greeted on all communicators, so whoever comes to a decision comes to the same; who does not is in doubt
 * still, and the group makes no commit without it.
 */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "core/rail.h"
#include "core/reduce.h"
#include "core/span.h"

/* ---- Joining ------------------------------------------------------------------------------------------- */

/* Ranks of the group in one daemon. */
static uint32_t local_ranks(const struct zd_args *args)
{
	uint32_t local = args->u.group_join.local_world_size;
	return local ? local : args->u.group_join.world_size;
}

/* As asked for; or because there is one rail anyway, of ranks that are alone in their daemons. */
static bool exchanges(const struct zd_args *args)
{
	return args->u.group_join.exchange ||
	       (local_ranks(args) == 1 && args->u.group_join.world_size > 1 && !args->u.group_join.hybrid);
}

static bool spans(const struct zd_args *args)
{
	return exchanges(args) || local_ranks(args) < args->u.group_join.world_size;
}

static uint32_t rails(const struct zd_args *args)
{
	return exchanges(args) ? 1 : local_ranks(args);
}

static int check_sizes(const struct zd_args *args, struct zd_err *err)
{
	uint32_t world = args->u.group_join.world_size, local = local_ranks(args);
	if (local > world || world % local != 0)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "group '%s': %u ranks in each daemon, of a world of %u",
		                  args->u.group_join.group, local, world);
	if (args->u.group_join.hybrid && (args->u.group_join.exchange || local == world))
		return zd_err_set(
		        err, ZEROD_E_INVALID,
		        "group '%s' is hybrid: it needs ranks in several daemons, and copies inside",
		        args->u.group_join.group);
	if (spans(args) && rails(args) * ZD_NCOMM_ROLES > ZD_MAX_UNIQUE_IDS)
		return zd_err_set(err, ZEROD_E_LIMIT, "group '%s': %u ranks in each daemon; at most %u",
		                  args->u.group_join.group, local, ZD_MAX_UNIQUE_IDS / ZD_NCOMM_ROLES);
	return 0;
}

static int check_ids(const struct zd_args *args, struct zd_err *err)
{
	uint32_t had = args->u.group_join.ids_bytes;
	uint32_t want = spans(args) ? rails(args) * ZD_NCOMM_ROLES * ZD_UNIQUE_ID_BYTES : 0;
	if (had == want || (had == 0 && local_ranks(args) == args->u.group_join.world_size))
		return 0;
	if (want == 0)
		return zd_err_set(
		        err, ZEROD_E_INVALID,
		        "group '%s': all ranks are in one daemon and use copies; it has no unique id",
		        args->u.group_join.group);
	return zd_err_set(err, ZEROD_E_INVALID, "group '%s': a unique id of %u bytes; it needs one of %u",
	                  args->u.group_join.group, had, want);
}

int zd_span_check_group(const struct zd_group *group, const struct zd_args *args, struct zd_err *err)
{
	const struct zd_span *span = group->span;
	uint32_t rank = args->u.group_join.rank, local = local_ranks(args);
	if (group->local_world_size != local)
		return zd_err_set(err, ZEROD_E_MISMATCH,
		                  "group '%s' has %u ranks in each daemon; rank %u says %u", group->name,
		                  group->local_world_size, rank, local);
	if ((span && span->exchange) != exchanges(args))
		return zd_err_set(err, ZEROD_E_MISMATCH, "group '%s' %s; rank %u says it %s", group->name,
		                  span && span->exchange ? "exchanges all" : "uses copies", rank,
		                  exchanges(args) ? "exchanges all" : "uses copies");
	if ((span && span->hybrid) != args->u.group_join.hybrid)
		return zd_err_set(err, ZEROD_E_MISMATCH, "group '%s' is %s; rank %u says it is %s",
		                  group->name, span && span->hybrid ? "hybrid" : "not hybrid", rank,
		                  args->u.group_join.hybrid ? "hybrid" : "not hybrid");
	if (rank / local * local != group->first_rank)
		return zd_err_set(err, ZEROD_E_MISMATCH,
		                  "rank %u of group '%s' joins the daemon of ranks %u to %u", rank,
		                  group->name, group->first_rank, group->first_rank + local - 1);
	/* Whoever comes first after all have left brings new ones. */
	if (span && group->attached > 0 && span->given && args->u.group_join.ids_bytes > 0 &&
	    memcmp(span->ids, args->u.group_join.ids, span->ids_bytes) != 0)
		return zd_err_set(err, ZEROD_E_MISMATCH,
		                  "group '%s': ranks %u and %u give different unique ids", group->name,
		                  span->ids_rank, rank);
	return 0;
}

int zd_span_check(const struct zd_engine *e, const struct zd_args *args, struct zd_err *err)
{
	int status = check_sizes(args, err);
	if (status == 0 && spans(args) && !e->collectives)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "group '%s' needs communicators; this daemon's backend has none",
		                  args->u.group_join.group);
	if (status == 0)
		status = check_ids(args, err);
	return status;
}

struct zd_span *zd_span_new(const struct zd_args *args)
{
	if (!spans(args))
		return NULL;
	struct zd_span *span = zd_calloc(1, sizeof(*span));
	span->exchange = exchanges(args);
	span->hybrid = args->u.group_join.hybrid;
	span->nranks = args->u.group_join.world_size / (span->exchange ? 1 : local_ranks(args));
	span->ids_bytes = rails(args) * ZD_NCOMM_ROLES * ZD_UNIQUE_ID_BYTES;
	span->ids = zd_calloc(1, span->ids_bytes);
	span->hosts = zd_calloc(span->nranks, sizeof(*span->hosts));
	return span;
}

void zd_span_take_ids(struct zd_span *span, const struct zd_args *args)
{
	free(span->why); /* of its former end */
	span->why = NULL;
	span->given = args->u.group_join.ids_bytes > 0;
	span->ids_rank = args->u.group_join.rank;
	if (span->given)
		memcpy(span->ids, args->u.group_join.ids, span->ids_bytes);
}

void zd_span_free(struct zd_span *span)
{
	if (!span)
		return;
	free(span->ids);
	free(span->hosts);
	free(span->why);
	free(span);
}

/* ---- Who is who ---------------------------------------------------------------------------------------- */

uint32_t zd_span_rank(const struct zd_member *member)
{
	const struct zd_group *group = member->group;
	return group->span->exchange ? zd_world_rank(member) : group->first_rank / group->local_world_size;
}

uint32_t zd_span_world_rank(const struct zd_member *member, uint32_t peer)
{
	const struct zd_group *group = member->group;
	return group->span->exchange ? peer : peer * group->local_world_size + member->rank;
}

/* ---- Commands ------------------------------------------------------------------------------------------ */

#define AUX_SERIAL_SHIFT 32u /* above the local rank and the role */

static uint64_t connection_aux(const struct zd_member *member, enum zd_comm_role role)
{
	return member->group->span->serial << AUX_SERIAL_SHIFT | (uint64_t)member->rank * ZD_NCOMM_ROLES |
	       role;
}

/* Is it of the connection that there is, and not of a former one. */
static bool is_current(const struct zd_op *op)
{
	const struct zd_group *group = op->owner;
	return op->aux >> AUX_SERIAL_SHIFT == group->span->serial;
}

static void agree(struct zd_engine *e, struct zd_member *member, enum zd_comm_role role, const char *what,
                  const void *value, uint32_t bytes, zd_op_fn *done)
{
	struct zd_command command = {.kind = ZD_CMD_AGREE, .device = member->device->index};
	zd_assert(bytes <= ZD_AGREE_BYTES && member->comm[role]);
	command.u.agree.comm = member->comm[role];
	command.u.agree.bytes = bytes;
	command.u.agree.what = what;
	memcpy(command.u.agree.value, value, bytes);
	zd_group_ref(member->group);
	zd_op_submit(e, member->group->job, &command, done, member->group, connection_aux(member, role));
}

/* ---- Connecting ---------------------------------------------------------------------------------------- */

/* What a rank takes the group for. Every byte is set, and means the same in all daemons. */
struct greeting {
	char host[ZD_MAX_NAME_BYTES + 1];
	uint64_t name; /* a hash of the group's */
	uint64_t committed_step;
	uint64_t voted_step; /* that it is in doubt about; 0: none */
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
	        .hybrid = group->span->hybrid,
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
	greeting->host[ZD_MAX_NAME_BYTES] = '\0'; /* a stranger's */
}

/* The last step that any daemon has committed; each has a rank on every rail. */
static uint64_t newest_step(const struct zd_span *span, const struct zd_op_result *result)
{
	uint64_t newest = 0;
	for (uint32_t peer = 0; peer < span->nranks; peer++) {
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

/* Does everybody on the rail mean the same group. */
static int greetings_check(const struct zd_engine *e, struct zd_member *member,
                           const struct zd_op_result *result, struct zd_err *err)
{
	struct zd_span *span = member->group->span;
	struct greeting own;
	greet(e, member, &own);
	zd_assert(result && result->values_bytes == span->nranks * sizeof(own));
	uint64_t newest = newest_step(span, result);
	for (uint32_t peer = 0; peer < span->nranks; peer++) {
		struct greeting other;
		greeting_of(result, peer, &other);
		if (other.name != own.name || other.world_size != own.world_size ||
		    other.local_world_size != own.local_world_size ||
		    other.rank != zd_span_world_rank(member, peer) || other.durable != own.durable ||
		    other.shadow != own.shadow || other.hybrid != own.hybrid ||
		    (can_be_at(&own, newest) ? !can_be_at(&other, newest) : other.committed_step == newest))
			return greetings_differ(member, &own, &other, err);
		memcpy(span->hosts[peer], other.host, sizeof(other.host));
	}
	return 0;
}

/* All have greeted: the same step for all. What is torn since an older one than that is mended by it. */
static void resolve(struct zd_engine *e, struct zd_group *group, const struct zd_op_result *result)
{
	uint64_t newest = newest_step(group->span, result);
	bool torn = false;
	for (uint32_t peer = 0; peer < group->span->nranks; peer++) {
		struct greeting greeting;
		greeting_of(result, peer, &greeting);
		torn |= greeting.torn && greeting.committed_step == newest;
	}
	zd_commit_resolve(e, group, newest, torn);
}

/* One of the commands of this connection has ended well: true if it was the last of its kind. False too for
 * one of a connection that is over. */
static bool step_done(struct zd_engine *e, struct zd_group *group, const struct zd_op *op, int status,
                      const char *error)
{
	struct zd_span *span = group->span;
	if (group->state != ZD_GROUP_CONNECTING || !is_current(op))
		return false;
	if (status != 0) {
		zd_span_fail(e, group, status, error);
		return false;
	}
	return --span->pending == 0;
}

static struct zd_member *op_member(const struct zd_op *op)
{
	struct zd_group *group = op->owner;
	return &group->members[(op->aux & UINT32_MAX) / ZD_NCOMM_ROLES];
}

static void greeted(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                    const struct zd_op_result *result)
{
	struct zd_group *group = op->owner;
	struct zd_err err = ZD_ERR_NONE;
	if (status == 0 && group->state == ZD_GROUP_CONNECTING && is_current(op)) {
		status = greetings_check(e, op_member(op), result, &err);
		error = err.text;
	}
	if (step_done(e, group, op, status, error)) {
		resolve(e, group, result);
		zd_sm_move(&zd_sm_group, &group->state, ZD_GROUP_READY);
		zd_dirty_group(e, group);
	}
	zd_group_unref(e, group);
}

static void opened(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                   const struct zd_op_result *result)
{
	struct zd_group *group = op->owner;
	(void)result;
	if (status == 0 && group->state == ZD_GROUP_CONNECTING && is_current(op)) {
		struct zd_member *member = op_member(op);
		struct greeting greeting;
		greet(e, member, &greeting);
		group->span->pending++;
		agree(e, member, (op->aux & UINT32_MAX) % ZD_NCOMM_ROLES, "greeting", &greeting,
		      sizeof(greeting), greeted);
	}
	(void)step_done(e, group, op, status, error);
	zd_group_unref(e, group);
}

static void open_comm(struct zd_engine *e, struct zd_member *member, enum zd_comm_role role)
{
	struct zd_group *group = member->group;
	struct zd_span *span = group->span;
	struct zd_command command = {.kind = ZD_CMD_COMM_OPEN, .device = member->device->index};
	uint32_t rail = span->exchange ? 0 : member->rank;
	member->comm[role] = zd_next_id(e);
	command.u.comm_open = (struct zd_comm_desc){
	        .comm = member->comm[role],
	        .group = group->name,
	        .role = role,
	        .nranks = span->nranks,
	        .rank = zd_span_rank(member),
	};
	if (!span->exchange)
		command.u.comm_open.world = (struct zd_comm_world){member->rank, group->local_world_size - 1};
	memcpy(command.u.comm_open.id,
	       span->ids + (size_t)(rail * ZD_NCOMM_ROLES + role) * ZD_UNIQUE_ID_BYTES, ZD_UNIQUE_ID_BYTES);
	zd_group_ref(group);
	span->pending++;
	zd_op_submit(e, group->job, &command, opened, group, connection_aux(member, role));
}

static void open_all(struct zd_engine *e, struct zd_group *group)
{
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		for (uint32_t role = 0; role < ZD_NCOMM_ROLES; role++)
			open_comm(e, &group->members[rank], role);
	}
}

static void ids_made(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                     const struct zd_op_result *result)
{
	struct zd_group *group = op->owner;
	if (step_done(e, group, op, status, error)) {
		zd_assert(result->values_bytes == group->span->ids_bytes);
		memcpy(group->span->ids, result->values, result->values_bytes);
		open_all(e, group);
	}
	zd_group_unref(e, group);
}

void zd_span_connect(struct zd_engine *e, struct zd_group *group)
{
	struct zd_span *span = group->span;
	zd_sm_move(&zd_sm_group, &group->state, ZD_GROUP_CONNECTING);
	span->serial++;
	zd_rails_start(group);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++)
		group->members[rank].transfers = 0;
	span->pending = 0;
	span->step = span->commit = span->barrier = (struct zd_span_round){0};
	memset(span->hosts, 0, span->nranks * sizeof(*span->hosts));
	if (span->given) {
		open_all(e, group);
		return;
	}
	struct zd_command command = {.kind = ZD_CMD_UNIQUE_IDS, .device = group->members[0].device->index};
	command.u.ids.count = ZD_NCOMM_ROLES;
	command.u.ids.uid = group->job->owner->uid;
	zd_group_ref(group);
	span->pending++;
	zd_op_submit(e, group->job, &command, ids_made, group,
	             connection_aux(&group->members[0], ZD_COMM_GATHERS));
}

/* ---- Rounds -------------------------------------------------------------------------------------------- */

/* On the communicators of reductions, whose operations come in the same order on all ranks: a step is behind
 * its backward's, and a commit behind its step. */
void zd_span_ask(struct zd_engine *e, struct zd_member *member, struct zd_span_round *round, const char *what,
                 const void *value, uint32_t bytes, zd_op_fn *done)
{
	round->pending++;
	agree(e, member, ZD_COMM_REDUCTIONS, what, value, bytes, done);
}

bool zd_span_answered(struct zd_engine *e, const struct zd_op *op, struct zd_span_round *round, int status,
                      const char *error)
{
	struct zd_group *group = op->owner;
	bool last = false;
	if (group->state == ZD_GROUP_READY && is_current(op)) {
		if (status != 0)
			zd_span_fail(e, group, status, error);
		else
			last = --round->pending == 0;
	}
	zd_group_unref(e, group);
	return last;
}

/* ---- The end ------------------------------------------------------------------------------------------- */

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

void zd_span_abort(struct zd_engine *e, struct zd_group *group)
{
	for (uint32_t rank = 0; rank < group->local_world_size; rank++)
		close_comms(e, &group->members[rank], true);
	zd_rails_stop(e, group, NULL);
}

/* No more is begun in it. */
static void span_end(struct zd_engine *e, struct zd_group *group, int status, const char *text)
{
	bool was_ready = group->state == ZD_GROUP_READY;
	zd_sm_move(&zd_sm_group, &group->state, ZD_GROUP_ABORTED);
	free(group->span->why);
	group->span->status = status;
	group->span->why = zd_strdup(text);
	if (e->sink.group_ended)
		e->sink.group_ended(e->sink.arg, group->job->name, group->name, text);
	if (was_ready)
		zd_reduce_group_failed(e, group);
	zd_dirty_group(e, group);
}

static bool is_up(const struct zd_group *group)
{
	return group->state == ZD_GROUP_CONNECTING || group->state == ZD_GROUP_READY;
}

/* Is the peer's node not this one, and no peer's before it. */
static bool names_node(const struct zd_engine *e, const struct zd_span *span, uint32_t peer)
{
	const char *host = span->hosts[peer];
	uint32_t before = 0;
	while (before < peer && strcmp(span->hosts[before], host) != 0)
		before++;
	return host[0] && before == peer && strcmp(host, e->host) != 0;
}

/* "; its other nodes: b, c", as far as they have been met. */
static void nodes_text(const struct zd_engine *e, const struct zd_span *span, char *out, size_t out_bytes)
{
	size_t used = 0;
	out[0] = '\0';
	for (uint32_t peer = 0; peer < span->nranks && used + ZD_MAX_NAME_BYTES + 24 < out_bytes; peer++) {
		if (names_node(e, span, peer))
			used += (size_t)snprintf(out + used, out_bytes - used, "%s%s",
			                         used ? ", " : "; its other nodes: ", span->hosts[peer]);
	}
}

void zd_span_fail(struct zd_engine *e, struct zd_group *group, int status, const char *text)
{
	struct zd_err err = ZD_ERR_NONE;
	char nodes[256];
	if (!is_up(group))
		return;
	nodes_text(e, group->span, nodes, sizeof(nodes));
	status = zd_err_set(&err, status, "%s%s", text,
	                    status == ZEROD_E_PEER_LOST || status == ZEROD_E_DEADLINE ? nodes : "");
	span_end(e, group, status, err.text);
	zd_span_abort(e, group);
}

void zd_span_give_up(struct zd_engine *e, struct zd_member *member, const char *what)
{
	struct zd_err err = ZD_ERR_NONE;
	if (member->session->state == ZD_SESSION_CLOSING) {
		zd_span_leave(e, member, false);
		return;
	}
	int status = zd_err_set(&err, ZEROD_E_ABORTED, "group '%s': rank %u gave up %s", member->group->name,
	                        zd_world_rank(member), what);
	zd_span_fail(e, member->group, status, err.text);
}

void zd_span_leave(struct zd_engine *e, struct zd_member *member, bool orderly)
{
	struct zd_group *group = member->group;
	struct zd_err err = ZD_ERR_NONE;
	int status = zd_err_set(
	        &err, ZEROD_E_PEER_LOST,
	        "rank %u (pid %u) of group '%s' %s: all ranks leave, and may join again with a "
	        "new unique id",
	        zd_world_rank(member), member->session->pid, group->name, orderly ? "has left" : "is gone");
	if (is_up(group) && (!orderly || group->state == ZD_GROUP_CONNECTING)) {
		zd_span_fail(e, group, status, err.text);
	} else if (is_up(group)) {
		span_end(e, group, status, err.text);
	}
	zd_rails_stop(e, group, member);
	close_comms(e, member, !orderly);
}
