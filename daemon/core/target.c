/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target.c - a rank's step-local target.
 *
 * It is bound as it is: to zero it a GPU would run a kernel of the daemon's, for which the driver takes the
 * trainer's off, and each first sum would read the zeros. Instead a unit's first sum of a window overwrites
 * its place, and what none has written is zeroed when the rank begins the step, before it can read any of it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "core/promise.h"
#include "core/reduce_internal.h"

int zd_target_bind(struct zd_engine *e, struct zd_request *req, struct zd_member_reduce *mr,
                   struct zd_err *err)
{
	uint64_t numel = mr->member->group->target_numel, item_bytes = zerod_dtype_bytes(mr->target_dtype);
	if (numel > ZD_MAX_BYTES / item_bytes)
		return zd_err_set(err, ZEROD_E_NO_MEMORY, "a target of %llu elements of %s can never fit",
		                  (unsigned long long)numel, zerod_dtype_name(mr->target_dtype));
	struct zd_storage *storage;
	int status = zd_storage_new(e, req, mr->member, ZD_CHARGE_TARGET, numel * item_bytes, &storage, err);
	if (status != 0)
		return status;
	mr->target = storage;
	mr->target_numel = numel;
	mr->target_number = mr->number;
	mr->unwritten_numel = numel;
	return 0;
}

void zd_target_drop(struct zd_engine *e, struct zd_member_reduce *mr)
{
	zd_target_forget_lent(mr);
	zd_storage_drop(e, mr->target);
	zd_storage_drop(e, mr->scalars);
	mr->target = NULL;
	mr->scalars = NULL;
	mr->target_numel = 0;
	mr->target_number = 0;
	mr->unwritten_numel = 0;
}

int zd_target_check_place(const struct zd_part *part, struct zd_err *err)
{
	const struct zd_member_reduce *mr = zd_member_reduce(zd_part_member(part));
	const struct zd_unit *unit = part->unit;
	if (!mr || !mr->target || mr->step == ZD_STEP_ABANDONED || part->frozen ||
	    unit->target_offset_numel + zd_unit_target_numel(unit) > mr->target_numel)
		return 0;
	return zd_err_set(err, ZEROD_E_BUSY,
	                  "unit '%s' has a place in the target that rank %u bound in backward %llu: the step "
	                  "has not ended",
	                  unit->name, zd_world_rank(mr->member), (unsigned long long)mr->target_number);
}

/* ---- Scalars ------------------------------------------------------------------------------------------- */

int zd_target_bind_scalars(struct zd_engine *e, struct zd_request *req, struct zd_member_reduce *mr,
                           struct zd_err *err)
{
	return zd_storage_new(e, req, mr->member, ZD_CHARGE_TARGET, ZD_BLOCK_MIN_ALIGN, &mr->scalars, err);
}

struct zd_location zd_target_scalars(const struct zd_member_reduce *mr)
{
	return zd_storage_location(mr->scalars, 0, 2 * sizeof(float));
}

struct storing {
	struct zd_storage *storage;
	struct zd_promise *promise;
};

static void stored(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                   const struct zd_op_result *result)
{
	struct storing *storing = op->owner;
	(void)error;
	(void)result;
	zd_storage_unuse(e, storing->storage);
	if (status == 0)
		zd_promise_keep(e, storing->promise);
	else
		zd_promise_break(e, storing->promise);
	free(storing);
}

void zd_target_store_scalars(struct zd_engine *e, struct zd_member_reduce *mr, struct zd_promise *promise)
{
	const float scalars[2] = {mr->result.overflow ? 1.0f : 0.0f, (float)mr->result.norm_squared};
	struct zd_command command = {.kind = ZD_CMD_FILL, .device = mr->scalars->device->index};
	struct storing *storing = zd_calloc(1, sizeof(*storing));
	*storing = (struct storing){mr->scalars, promise};
	command.u.fill.dst = zd_target_scalars(mr);
	memcpy(&command.u.fill.pattern, scalars, sizeof(scalars));
	zd_storage_use(mr->scalars);
	zd_op_submit(e, mr->member->group->job, &command, stored, storing, 0);
}

/* ---- What no sum has written --------------------------------------------------------------------------- */

/* Of the target, in elements. */
struct range {
	uint64_t begin, end;
};

struct fill {
	struct zd_storage *storage;
	struct zd_request *req;
};

static void filled(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                   const struct zd_op_result *result)
{
	struct fill *fill = op->owner;
	zd_dirty(e, fill->storage->device); /* whoever waits for it need not be who asked for it */
	fill->storage->fills--;
	zd_storage_unuse(e, fill->storage);
	op->owner = fill->req;
	free(fill);
	zd_request_op_done(e, op, status, error, result);
}

static void zero(struct zd_engine *e, struct zd_request *req, const struct zd_member_reduce *mr,
                 struct range range)
{
	uint64_t each = zerod_dtype_bytes(mr->target_dtype);
	if (range.begin >= range.end)
		return;
	struct fill *fill = zd_calloc(1, sizeof(*fill));
	*fill = (struct fill){mr->target, req};
	mr->target->fills++;
	zd_storage_use(mr->target);
	req->pending_ops++;
	zd_op_fill(e, mr->member->group->job, mr->target->device->index,
	           zd_storage_location(mr->target, range.begin * each, (range.end - range.begin) * each),
	           filled, fill, 0);
}

static int by_begin(const void *a, const void *b)
{
	const struct range *left = a, *right = b;
	return left->begin < right->begin ? -1 : left->begin > right->begin;
}

/* In order. The caller frees them. */
static struct range *find_written(const struct zd_member_reduce *mr, size_t *n)
{
	const struct zd_group *group = mr->member->group;
	struct range *written = zd_calloc(HASH_CNT(hh_name, group->units) + 1, sizeof(*written));
	*n = 0;
	for (const struct zd_unit *unit = group->units; unit; unit = unit->hh_name.next) {
		if (zd_norms_has(mr, unit))
			written[(*n)++] =
			        (struct range){unit->target_offset_numel,
			                       unit->target_offset_numel + zd_unit_target_numel(unit)};
	}
	qsort(written, *n, sizeof(*written), by_begin);
	return written;
}

int zd_target_zero_rest(struct zd_engine *e, struct zd_request *req, const struct zd_member_reduce *mr)
{
	uint64_t at = 0;
	size_t n;
	if (mr->unwritten_numel == 0)
		return 0;
	struct range *written = find_written(mr, &n);
	for (size_t i = 0; i < n; i++) {
		zero(e, req, mr, (struct range){at, written[i].begin});
		at = written[i].end;
	}
	zero(e, req, mr, (struct range){at, mr->target_numel});
	free(written);
	return req->pending_ops > 0 ? zd_wait_for(req, ZD_WAIT_FILL, 0, 0, 0) : 0;
}
