/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait_text.c - texts that describe why a request or a buffer waits, for zeroctl and for errors of deadlines;
 * and a name for each reason, for metrics.
 *
 * A text is made when a client reads it. It names no session, process or segment of another user, unless the
 * reader is an administrator.
 */
#include <stdio.h>

#include "core/control/control.h"
#include "core/gather/buffer.h"
#include "core/memory/retire.h"
#include "core/reduce/reduce.h"

const char *const zd_wait_names[ZD_NWAITS] = {
        [ZD_WAIT_RANKS] = "ranks",         [ZD_WAIT_SEGMENT] = "segment",
        [ZD_WAIT_RETIRE] = "retire",       [ZD_WAIT_FILL] = "fill",
        [ZD_WAIT_FENCES] = "fences",       [ZD_WAIT_READERS] = "readers",
        [ZD_WAIT_FORMER] = "former_unit",  [ZD_WAIT_REGISTER] = "register",
        [ZD_WAIT_VERSION] = "version",     [ZD_WAIT_LEASES] = "leases",
        [ZD_WAIT_REFRESH] = "refresh",     [ZD_WAIT_GATHER] = "gather",
        [ZD_WAIT_SLOT] = "slot",           [ZD_WAIT_MEMORY] = "memory",
        [ZD_WAIT_BUDGET] = "budget",       [ZD_WAIT_TURN] = "turn",
        [ZD_WAIT_BUCKET] = "bucket",       [ZD_WAIT_REDUCTIONS] = "reductions",
        [ZD_WAIT_STEP] = "step",           [ZD_WAIT_SUMS] = "sums",
        [ZD_WAIT_BACKWARD] = "backward",   [ZD_WAIT_AGREE] = "agree",
        [ZD_WAIT_BARRIER] = "barrier",     [ZD_WAIT_COMMIT] = "commit",
        [ZD_WAIT_SAVE] = "save",           [ZD_WAIT_RESTORE] = "restore",
        [ZD_WAIT_PROCESS] = "process",     [ZD_WAIT_UNIQUE_IDS] = "unique_ids",
        [ZD_WAIT_TRANSFERS] = "transfers", [ZD_WAIT_NODES] = "nodes",
        [ZD_WAIT_OTHERS] = "others",       [ZD_WAIT_FOLLOW] = "follow",
        [ZD_WAIT_ORDER] = "order",         [ZD_WAIT_LOADERS] = "loaders",
        [ZD_WAIT_SOURCE] = "source",       [ZD_WAIT_LOAD] = "load",
        [ZD_WAIT_PLACERS] = "placers",     [ZD_WAIT_MOVE] = "move",
        [ZD_WAIT_READ] = "read",           [ZD_WAIT_NEXT] = "next_commit",
        [ZD_WAIT_HOST_COPY] = "host_copy",
};

static bool session_wants_memory(const struct zd_session *session, const struct zd_device *device)
{
	const struct zd_request *req;
	uint32_t left = ZD_WAIT_TEXT_VISITS;
	TAILQ_FOREACH (req, &session->requests, session_link) {
		if (left-- == 0)
			break;
		if (req->device == device && req->wants_memory)
			return true;
	}
	return false;
}

/* Whether every session with leases on gathered buffers of the device waits for memory of the device. Then
 * only a release from another thread or a deadline ends the wait. False if there are too many buffers to
 * check. */
static bool holders_all_wait(const struct zd_device *device)
{
	const struct zd_buffer *buffer;
	bool any = false;
	if (device->nbuffers > ZD_WAIT_TEXT_VISITS)
		return false;
	TAILQ_FOREACH (buffer, &device->buffers, device_link) {
		if (buffer->state == ZD_BUFFER_QUARANTINED)
			return false; /* will be freed without another call */
		if (TAILQ_EMPTY(&buffer->leases))
			continue;
		any = true;
		if (!session_wants_memory(zd_part_member(buffer->part)->session, device))
			return false;
	}
	return any;
}

static int holders_text(const struct zd_device *device, const struct zd_session *reader, char *out,
                        size_t out_bytes)
{
	const struct zd_buffer *buffer;
	uint64_t last = 0;
	bool others = false;
	int used = snprintf(out, out_bytes, "; every holder waits for room itself: sessions");
	TAILQ_FOREACH (buffer, &device->buffers, device_link) {
		if (TAILQ_EMPTY(&buffer->leases) || (size_t)used >= out_bytes - 24)
			continue;
		const struct zd_session *session = zd_part_member(buffer->part)->session;
		others |= !zd_session_sees(reader, session);
		if (session->id != last && zd_session_sees(reader, session))
			used += snprintf(out + used, out_bytes - (size_t)used, " %llu",
			                 ZD_ID_NUMBER(session->id));
		last = session->id;
	}
	return used + snprintf(out + used, out_bytes - (size_t)used, "%s", others ? " of others" : "");
}

static int room_text(const struct zd_request *req, const struct zd_session *reader, const char *what,
                     char *out)
{
	unsigned long long a = req->wait.a, b = req->wait.b;
	int used = snprintf(out, ZD_WAIT_TEXT, "%llu bytes of device %u's %s (%llu %s)", a,
	                    req->device->index, what, b, req->wait.kind == ZD_WAIT_BUDGET ? "live" : "left");
	if (holders_all_wait(req->device))
		used += holders_text(req->device, reader, out + used, ZD_WAIT_TEXT - (size_t)used);
	return used;
}

/* Returns the call that a rank has yet to make, for waits that end with one call of that rank. */
static const char *awaited_call(enum zd_wait_kind kind)
{
	switch (kind) {
	case ZD_WAIT_STEP:
		return "begin the step";
	case ZD_WAIT_BACKWARD:
		return "end its backward";
	case ZD_WAIT_AGREE:
		return "agree";
	case ZD_WAIT_BARRIER:
		return "reach the barrier";
	case ZD_WAIT_COMMIT:
		return "commit";
	default:
		zd_assert(!"a wait that ends with one call of a rank");
		return "";
	}
}

static int load_text(const struct zd_wait *wait, uint32_t rank, char *out)
{
	const char *unit = wait->unit ? wait->unit->name : "";
	if (wait->kind == ZD_WAIT_LOADERS)
		return snprintf(out, ZD_WAIT_TEXT, "rank %u to call unit_load of unit '%.64s'", rank, unit);
	if (wait->kind == ZD_WAIT_SOURCE)
		return snprintf(out, ZD_WAIT_TEXT, "the streams of rank %u, which loads unit '%.64s'", rank,
		                unit);
	return snprintf(out, ZD_WAIT_TEXT, "copies into the shards of unit '%.64s'", unit);
}

/* The text of a wait for shards that are moved, read, saved, restored or loaded. */
static int shards_text(const struct zd_wait *wait, uint32_t rank, char *out)
{
	const char *unit = wait->unit ? wait->unit->name : "";
	if (wait->kind == ZD_WAIT_SAVE)
		return snprintf(out, ZD_WAIT_TEXT,
		                "the last commit of rank %u's shard of unit '%.64s' to be saved", rank, unit);
	if (wait->kind == ZD_WAIT_RESTORE)
		return snprintf(out, ZD_WAIT_TEXT,
		                "rank %u's shard of unit '%.64s' to be restored to the last commit", rank,
		                unit);
	if (wait->kind == ZD_WAIT_READ)
		return snprintf(out, ZD_WAIT_TEXT, "copies of unit '%.64s'", unit);
	if (wait->kind == ZD_WAIT_HOST_COPY)
		return snprintf(out, ZD_WAIT_TEXT, "step %llu to be copied to host memory: %llu bytes",
		                (unsigned long long)wait->a, (unsigned long long)wait->b);
	if (wait->kind == ZD_WAIT_PLACERS)
		return snprintf(out, ZD_WAIT_TEXT, "rank %u to call unit_place of unit '%.64s'", rank, unit);
	if (wait->kind == ZD_WAIT_MOVE && wait->a)
		return snprintf(out, ZD_WAIT_TEXT, "memory of rank %u, to which unit '%.64s' is moved", rank,
		                unit);
	if (wait->kind == ZD_WAIT_MOVE)
		return snprintf(out, ZD_WAIT_TEXT, "unit '%.64s' to be moved", unit);
	return load_text(wait, rank, out);
}

/* The text of a wait for ranks of other daemons or for communicators. */
static int collectives_text(const struct zd_wait *wait, char *out)
{
	unsigned long long a = wait->a;
	const char *unit = wait->unit ? wait->unit->name : "";
	switch (wait->kind) {
	case ZD_WAIT_UNIQUE_IDS:
		return snprintf(out, ZD_WAIT_TEXT, "unique ids to be created");
	case ZD_WAIT_TRANSFERS:
		return snprintf(out, ZD_WAIT_TEXT, "%llu transfers of rank %u to end", a, wait->rank);
	case ZD_WAIT_NODES:
		return a == 0 ? snprintf(out, ZD_WAIT_TEXT, "communicators to be opened")
		              : snprintf(out, ZD_WAIT_TEXT, "the group's %llu ranks in other daemons to join",
		                         a);
	case ZD_WAIT_OTHERS:
		return snprintf(out, ZD_WAIT_TEXT, "ranks of other daemons to make the same call");
	case ZD_WAIT_FOLLOW:
		return snprintf(out, ZD_WAIT_TEXT, "rank %llu to gather unit '%.64s' as others have", a,
		                unit);
	case ZD_WAIT_ORDER:
		return snprintf(out, ZD_WAIT_TEXT, "its turn behind the gather of unit '%.64s'", unit);
	default:
		return 0;
	}
}

static int ranks_text(const struct zd_group *group, char *out)
{
	uint32_t missing = group->local_world_size - group->attached, first = 0;
	while (first + 1 < group->local_world_size && group->members[first].session)
		first++;
	return snprintf(out, ZD_WAIT_TEXT, "%u rank%s to join, rank %u first", missing,
	                missing == 1 ? "" : "s", group->first_rank + first);
}

/* Names the first rank that has not called commit. The group exists: its end ends the wait. */
static int next_commit_text(const struct zd_engine *e, const struct zd_wait *wait, char *out)
{
	const struct zd_group *group;
	uint32_t rank = 0;
	HASH_FIND(hh, e->groups, &wait->b, sizeof(wait->b), group);
	while (group && rank + 1 < group->local_world_size && group->members[rank].committing)
		rank++;
	if (wait->rank == 1)
		return snprintf(out, ZD_WAIT_TEXT, "a host copy of a step after %llu",
		                (unsigned long long)wait->a);
	return snprintf(out, ZD_WAIT_TEXT, "rank %u to commit a step after %llu", rank,
	                (unsigned long long)wait->a);
}

void zd_wait_text(const struct zd_engine *e, const struct zd_request *req, const struct zd_session *reader,
                  char out[ZD_WAIT_TEXT])
{
	const struct zd_wait *wait = &req->wait;
	unsigned long long a = wait->a, b = wait->b;
	const char *unit = wait->unit ? wait->unit->name : "";
	const struct zd_group *group = req->member ? req->member->group : NULL;
	uint32_t rank = wait->rank + (group ? group->first_rank : 0);
	int used = 0;
	out[0] = '\0';
	switch (wait->kind) {
	case ZD_WAIT_NONE:
	case ZD_NWAITS:
		break;
	case ZD_WAIT_RANKS:
		used = group ? ranks_text(group, out) : 0;
		break;
	case ZD_WAIT_SEGMENT:
		used = snprintf(out, ZD_WAIT_TEXT, "a segment of device %u to be created",
		                req->device->index);
		break;
	case ZD_WAIT_RETIRE:
		used = zd_retire_text(e, (uint32_t)a, reader, out, ZD_WAIT_TEXT);
		break;
	case ZD_WAIT_PROCESS:
		used = snprintf(out, ZD_WAIT_TEXT, "the process that used the memory to leave device %u",
		                req->device->index);
		break;
	case ZD_WAIT_FILL:
		used = snprintf(out, ZD_WAIT_TEXT, "memory to be zeroed");
		break;
	case ZD_WAIT_FENCES:
		used = snprintf(out, ZD_WAIT_TEXT, "the caller's own streams");
		break;
	case ZD_WAIT_READERS:
		used = snprintf(out, ZD_WAIT_TEXT, "%llu %s%s the shard of rank %u of unit '%.64s'", a,
		                a == b  ? "consumer"
		                : b > 0 ? "reader"
		                        : "transfer",
		                a == 1 ? " that reads" : "s that read", rank, unit);
		break;
	case ZD_WAIT_FORMER:
		used = snprintf(out, ZD_WAIT_TEXT, "the end of the work on the former unit '%.64s'", unit);
		break;
	case ZD_WAIT_REGISTER:
		used = snprintf(out, ZD_WAIT_TEXT, "rank %u to register unit '%.64s'", rank, unit);
		break;
	case ZD_WAIT_VERSION:
		used = snprintf(out, ZD_WAIT_TEXT,
		                "rank %u to publish version %llu of unit '%.64s' (has %llu)", rank, b, unit,
		                a);
		break;
	case ZD_WAIT_LEASES:
	case ZD_WAIT_REFRESH:
		used = snprintf(out, ZD_WAIT_TEXT, "%s on version %llu of unit '%.64s'",
		                wait->kind == ZD_WAIT_LEASES ? "leases" : "work", a, unit);
		break;
	case ZD_WAIT_GATHER:
		used = snprintf(out, ZD_WAIT_TEXT, "its own gather of unit '%.64s' on rank %u", unit, rank);
		break;
	case ZD_WAIT_SLOT:
		used = snprintf(out, ZD_WAIT_TEXT, "slot %llu, which unit '%.64s' leaves", a, unit);
		break;
	case ZD_WAIT_MEMORY:
	case ZD_WAIT_BUDGET:
		used = room_text(req, reader, wait->kind == ZD_WAIT_MEMORY ? "arena" : "gather budget", out);
		break;
	case ZD_WAIT_TURN:
		used = snprintf(out, ZD_WAIT_TEXT, "gathers before it that wait for room on device %u",
		                req->device->index);
		break;
	case ZD_WAIT_BUCKET:
		used = snprintf(out, ZD_WAIT_TEXT, "a slot of the bucket: unit '%.64s' waits for rank %u",
		                unit, rank);
		break;
	case ZD_WAIT_REDUCTIONS:
		used = zd_reductions_text(e, req, out, ZD_WAIT_TEXT);
		break;
	case ZD_WAIT_SUMS:
		used = snprintf(out, ZD_WAIT_TEXT, "the sums of rank %u's step", rank);
		break;
	case ZD_WAIT_STEP:
	case ZD_WAIT_BACKWARD:
	case ZD_WAIT_AGREE:
	case ZD_WAIT_BARRIER:
	case ZD_WAIT_COMMIT:
		used = snprintf(out, ZD_WAIT_TEXT, "rank %u to %s", rank, awaited_call(wait->kind));
		break;
	case ZD_WAIT_NEXT:
		used = next_commit_text(e, wait, out);
		break;
	case ZD_WAIT_HOST_COPY:
	case ZD_WAIT_LOADERS:
	case ZD_WAIT_SOURCE:
	case ZD_WAIT_LOAD:
	case ZD_WAIT_PLACERS:
	case ZD_WAIT_MOVE:
	case ZD_WAIT_READ:
	case ZD_WAIT_SAVE:
	case ZD_WAIT_RESTORE:
		used = shards_text(wait, rank, out);
		break;
	case ZD_WAIT_UNIQUE_IDS:
	case ZD_WAIT_TRANSFERS:
	case ZD_WAIT_NODES:
	case ZD_WAIT_OTHERS:
	case ZD_WAIT_FOLLOW:
	case ZD_WAIT_ORDER:
		used = collectives_text(wait, out);
		break;
	}
	zd_assert(used >= 0);
}

void zd_buffer_wait_text(const struct zd_buffer *buffer, char out[ZD_WAIT_TEXT])
{
	char transfers[32] = "", streams[48] = "";
	if (buffer->leaving_pid) {
		(void)snprintf(out, ZD_WAIT_TEXT, "process %u to leave device %u", buffer->leaving_pid,
		               buffer->device->index);
		return;
	}
	if (buffer->poison == ZD_POISON_FILLING) {
		(void)snprintf(out, ZD_WAIT_TEXT, "its fill with NaN patterns");
		return;
	}
	if (buffer->plan.left > 0)
		(void)snprintf(transfers, sizeof(transfers), "%u transfer%s", buffer->plan.left,
		               buffer->plan.left == 1 ? "" : "s");
	if (buffer->watches > 0)
		(void)snprintf(streams, sizeof(streams), "streams of %u release%s", buffer->watches,
		               buffer->watches == 1 ? "" : "s");
	(void)snprintf(out, ZD_WAIT_TEXT, "%s%s%s", transfers, transfers[0] && streams[0] ? ", " : "",
	               streams);
}
