/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_copy.c - commit_save: copies a group's last commit into host memory, while updates go on.
 *
 * A host copy in progress pins its commit (save.c), so that updates save what it has not copied yet. It has a
 * block of host memory for each unit. The shards come from where the parts hold the commit (holder.c), many
 * at once. The requests of all ranks for its step share it, and their attempts drive it. When it is complete
 * it replaces the group's former one. Copies to readers from that one end before it is freed.
 *
 * Units that are `unsaved`, or were not published before the commit, are not in it. If a shard no longer
 * holds the commit, if there is no memory, or if a copy fails, then all of its requests fail. A host copy
 * that no request waits for any more is abandoned.
 *
 * A complete one outlives the ranks, as the group of a durable job does, but not the daemon.
 */
#include "core/gather/host_copy.h"

#include <stdlib.h>

#include "core/gather/commit.h"
#include "core/gather/holder.h"

#define COPIES_PER_RANK 8u   /* under way at once */
#define PLACES_AT_ONCE  256u /* units that one attempt finds memory for */

size_t zd_host_copy_metadata_bytes(const struct zd_host_copy *copy)
{
	return sizeof(*copy) + copy->nunits * (sizeof(copy->units[0]) + sizeof(struct zd_block));
}

/* ---- Ends ---------------------------------------------------------------------------------------------- */

static void try_free(struct zd_engine *e, struct zd_host_copy *copy)
{
	struct zd_group *group = copy->group;
	if (copy->requests + copy->copies > 0 || group->saving == copy || group->saved == copy)
		return;
	for (uint32_t i = 0; i < copy->nplaced; i++) {
		struct zd_extent *extent = &copy->units[i].extent;
		zd_uncharge(e, group->job, extent->segment->device, ZD_CHARGE_ALLOCATION, extent->bytes);
		zd_pool_free(e, extent);
	}
	LIST_REMOVE(copy, link);
	zd_metadata_uncharge(group->job->owner, zd_host_copy_metadata_bytes(copy));
	free(copy->text);
	free(copy);
}

void zd_host_copy_done(struct zd_engine *e, struct zd_host_copy *copy)
{
	copy->copies--;
	try_free(e, copy);
}

void zd_host_copy_drop(struct zd_engine *e, struct zd_group *group)
{
	struct zd_host_copy *copy = group->saved;
	group->saved = NULL;
	for (uint32_t i = 0; copy && i < copy->nunits; i++) {
		if (copy->units[i].unit)
			copy->units[i].unit->host_copy = NULL;
	}
	if (copy)
		try_free(e, copy);
}

/* Ends the progress of the host copy, which replaces the former one unless it has failed or is abandoned. */
static void end(struct zd_engine *e, struct zd_host_copy *copy, bool complete)
{
	struct zd_group *group = copy->group;
	group->saving = NULL;
	zd_unpin(e, &copy->pinned);
	if (complete) {
		zd_host_copy_drop(e, group);
		group->saved = copy;
		zd_count(e, ZD_COUNT_HOST_COPIES, 1);
		zd_dirty_commit_waits(e);
	}
	for (uint32_t i = 0; i < copy->nunits; i++) {
		if (complete)
			copy->units[i].unit->host_copy = &copy->units[i];
		zd_unit_unref(e, copy->units[i].unit);
	}
	zd_dirty_group(e, group);
}

static void fail(struct zd_engine *e, struct zd_host_copy *copy, int status, const char *text)
{
	if (copy->group->saving != copy)
		return;
	copy->status = status;
	copy->text = zd_strdup(text);
	end(e, copy, false);
}

/* Removes a request. */
static void leave(struct zd_engine *e, struct zd_host_copy *copy)
{
	if (--copy->requests == 0 && copy->group->saving == copy)
		end(e, copy, false);
	try_free(e, copy);
}

/* ---- Its begin ----------------------------------------------------------------------------------------- */

/* A rank that has left or joined since is an error later. */
static bool is_copied(const struct zd_unit *unit)
{
	for (uint32_t rank = 0; rank < unit->group->local_world_size && !unit->unsaved; rank++) {
		const struct zd_part *part = &unit->parts[rank];
		if (!zd_part_is_gone(part) && zd_part_committed(part) != part->first)
			return true;
	}
	return false;
}

static int begin(struct zd_engine *e, const struct zd_session *session, struct zd_group *group,
                 struct zd_err *err)
{
	struct zd_host_copy *copy, sized = {.nunits = 0};
	struct zd_unit *unit;
	TAILQ_FOREACH (unit, &group->units, group_link)
		sized.nunits += is_copied(unit);
	size_t metadata_bytes = zd_host_copy_metadata_bytes(&sized);
	int status = zd_metadata_check(e, session, "host copy of group", group->name, metadata_bytes, err);
	if (status != 0)
		return status;
	zd_metadata_charge(group->job->owner, metadata_bytes);
	copy = zd_calloc(1, sizeof(*copy) + sized.nunits * sizeof(copy->units[0]));
	copy->group = group;
	copy->step = group->committed_step;
	TAILQ_FOREACH (unit, &group->units, group_link) {
		if (!is_copied(unit))
			continue;
		unit->refs++;
		copy->bytes += unit->numel * zerod_dtype_bytes(unit->dtype);
		copy->units[copy->nunits++] = (struct zd_copied_unit){.copy = copy, .unit = unit};
	}
	LIST_INSERT_HEAD(&group->host_copies, copy, link);
	group->saving = copy;
	zd_pin(e, &copy->pinned, group);
	return 0;
}

/* ---- Its progress -------------------------------------------------------------------------------------- */

/* Host memory of a rank's device, of each in its turn: the units are spread across the NUMA nodes. */
static struct zd_device *memory_for(const struct zd_host_copy *copy, uint32_t index)
{
	const struct zd_unit *unit = copy->units[index].unit;
	if (unit->on_host && unit->parts[0].shard.segment) /* no processor copies between the nodes' */
		return unit->parts[0].shard.segment->device;
	return copy->group->members[index % copy->group->local_world_size].device->host;
}

static int place(struct zd_engine *e, struct zd_request *req, struct zd_host_copy *copy, struct zd_err *err)
{
	for (uint32_t left = PLACES_AT_ONCE; copy->nplaced < copy->nunits; left--) {
		struct zd_copied_unit *to = &copy->units[copy->nplaced];
		struct zd_group *group = copy->group;
		struct zd_device *device = memory_for(copy, copy->nplaced);
		uint64_t bytes = to->unit->numel * zerod_dtype_bytes(to->unit->dtype);
		struct zd_err why = ZD_ERR_NONE;
		bytes = zd_align_up(bytes, ZD_BLOCK_MIN_ALIGN);
		if (left == 0) {
			req->goes_on = true;
			return zd_wait_for(req, ZD_WAIT_HOST_COPY, 0, copy->step, copy->bytes);
		}
		int status = zd_quota_check(e, group->job, bytes, &why);
		if (status == 0)
			status = zd_pool_alloc(e, req, group->job, device, ZD_PURPOSE_HOST_COPIES, bytes,
			                       ZD_BLOCK_MIN_ALIGN, &to->extent, &why);
		if (status == ZD_WAIT)
			return status;
		if (status != 0)
			return zd_err_set(err, status,
			                  "step %llu of group '%s' has %llu bytes; unit '%.64s': %s",
			                  (unsigned long long)copy->step, group->name,
			                  (unsigned long long)copy->bytes, to->unit->name, why.text);
		zd_extent_own(e, &to->extent, ZD_BLOCK_HOST_COPY, to,
		              zd_member_use(req->member, ZD_WORD_HOST_COPY, to->unit->id));
		zd_charge(e, group->job, device, ZD_CHARGE_ALLOCATION, to->extent.bytes);
		copy->nplaced++;
	}
	return 0;
}

static void copied(struct zd_engine *e, struct zd_op *op)
{
	struct zd_copied_unit *to = op->owner;
	struct zd_part *part = &to->unit->parts[op->aux / 4];
	if (op->status != 0)
		fail(e, to->copy, op->status, op->error);
	zd_dirty_group(e, part->unit->group);
	zd_host_copy_done(e, to->copy);
	zd_holder_done(e, part, op->aux % 4);
}

/* Begins the next copy into the host copy. */
static int copy_next(struct zd_engine *e, struct zd_request *req, struct zd_host_copy *copy,
                     struct zd_err *err)
{
	struct zd_copied_unit *to = &copy->units[copy->unit];
	struct zd_device *memory = to->extent.segment->device;
	uint64_t bytes = to->unit->numel * zerod_dtype_bytes(to->unit->dtype);
	uint64_t shard_bytes = zd_unit_shard_bytes(to->unit), at = copy->shard * shard_bytes;
	struct zd_part *part = zd_holder_part(to->unit, copy->shard, memory);
	struct zd_command command = {.kind = ZD_CMD_COPY};
	enum zd_holder holder;
	int status = zd_holder_check_step(copy->group, copy->step, err);
	if (status == 0)
		status = zd_holder_locate(part, copy->step, &holder, err);
	if (status == ZEROD_E_BUSY)
		return zd_wait_for_unit(req, to->unit, ZD_WAIT_SAVE, part->rank, 0, 0);
	const struct zd_device *from = status == 0 ? zd_holder_extent(part, holder)->segment->device : NULL;
	if (status == 0 && from->config.host_memory && from != memory)
		status = zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                    "unit '%s' is in the host memory of devices %u and %u", to->unit->name,
		                    memory->index, from->index);
	if (status != 0)
		return status;
	command.device = zd_copy_device(from, memory);
	command.u.copy.dst = zd_extent_location(&to->extent);
	command.u.copy.dst.offset += at;
	command.u.copy.dst.bytes = zd_min_u64(shard_bytes, bytes - at);
	command.u.copy.dst_device = memory->index;
	command.u.copy.src = zd_holder_read(part, holder, 0, command.u.copy.dst.bytes);
	copy->copies++;
	zd_op_submit(e, copy->group->job, &command, copied, to, 4 * (uint64_t)part->rank + holder);
	bool is_last = at + shard_bytes >= bytes;
	copy->shard = is_last ? 0 : copy->shard + 1;
	copy->unit += is_last;
	return 0;
}

static int go_on(struct zd_engine *e, struct zd_request *req, struct zd_host_copy *copy, struct zd_err *err)
{
	int status = zd_group_check(copy->group, err);
	if (status == 0)
		status = place(e, req, copy, err);
	while (status == 0 && copy->unit < copy->nunits &&
	       copy->copies < COPIES_PER_RANK * copy->group->local_world_size)
		status = copy_next(e, req, copy, err);
	if (status == 0 && copy->copies > 0)
		return zd_wait_for(req, ZD_WAIT_HOST_COPY, 0, copy->step, copy->bytes);
	if (status == 0)
		end(e, copy, true);
	return status;
}

/* ---- The request --------------------------------------------------------------------------------------- */

static int check(const struct zd_member *member, uint64_t step, struct zd_err *err)
{
	const struct zd_group *group = member->group;
	int status = zd_member_check(member, err);
	if (status != 0 || step == 0 || zd_host_copy_is_of(group, step))
		return status;
	if (group->cluster)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "group '%s' spans daemons, or its collectives are NCCL's: it has no host "
		                  "copies",
		                  group->name);
	status = zd_holder_check_step(group, step, err);
	if (status == 0 && step != group->committed_step)
		status = zd_err_set(
		        err, ZEROD_E_STALE_VERSION, "step %llu of group '%s': the last commit is step %llu",
		        (unsigned long long)step, group->name, (unsigned long long)group->committed_step);
	for (uint32_t rank = 0; status == 0 && rank < group->local_world_size; rank++) {
		const struct zd_device *device = group->members[rank].device;
		if (!device->host)
			status =
			        zd_err_set(err, ZEROD_E_UNSUPPORTED,
			                   "this daemon has no host memory for device %u (%s); host_arena in "
			                   "zerod.conf sets its size",
			                   device->index, device->config.name);
	}
	if (status == 0 && group->saving && group->saving->step != step)
		status = zd_err_set(err, ZEROD_E_BUSY,
		                    "step %llu of group '%s' is being copied to host memory",
		                    (unsigned long long)group->saving->step, group->name);
	return status;
}

static int save_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member *member;
	uint64_t step = req->args->u.commit_save.step;
	int status = zd_member_find(e, req->session, req->args->u.commit_save.group, &member, err);
	if (status == 0)
		status = zd_session_check_poisoned(req->session, err);
	if (status == 0)
		status = check(member, step, err);
	if (status != 0)
		return status;
	struct zd_group *group = member->group;
	zd_request_set_member(req, member);
	if (step == 0)
		zd_host_copy_drop(e, group);
	if (step == 0 || zd_host_copy_is_of(group, step))
		return 0;
	if (!group->saving)
		status = begin(e, req->session, group, err);
	if (status != 0)
		return status;
	req->u.save.copy = group->saving;
	req->u.save.copy->requests++;
	return 0;
}

static void save_cancel(struct zd_engine *e, struct zd_request *req)
{
	if (req->u.save.copy)
		leave(e, req->u.save.copy);
}

static int save_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_host_copy *copy = req->u.save.copy;
	struct zd_err why = ZD_ERR_NONE;
	int status = copy && copy->group->saving == copy ? go_on(e, req, copy, &why) : 0;
	if (status == ZD_WAIT)
		return status;
	if (status != 0)
		fail(e, copy, status, why.text);
	if (copy && copy->status != 0)
		status = zd_err_set(err, copy->status, "%s", copy->text);
	save_cancel(e, req);
	return status;
}

const struct zd_request_type zd_req_commit_save = {
        .begin = save_begin, .attempt = save_attempt, .cancel = save_cancel};
