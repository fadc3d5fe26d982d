/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storage.c - memory of buckets, staging and targets: charged until it is dropped, and allocated while an
 * operation uses it.
 */
#include "core/engine/deferred_teardown.h"
#include "core/engine/objects.h"
#include "core/reduce/member.h"
#include "core/reduce/storage.h"

int zd_storage_new(struct zd_engine *e, struct zd_request *req, struct zd_member *member,
                   struct zd_device *device, enum zd_charge charge, uint64_t bytes, struct zd_storage **out,
                   struct zd_err *err)
{
	struct zd_job *job = member->group->job;
	struct zd_extent extent;
	if (bytes > ZD_MAX_BYTES)
		return zd_err_set(err, ZEROD_E_NO_MEMORY, "%llu bytes do not fit on device %u",
		                  (unsigned long long)bytes, device->index);
	bytes = zd_align_up(bytes, ZD_BLOCK_MIN_ALIGN); /* as it will be charged */
	int status = zd_quota_check(e, job, bytes, err);
	if (status == 0)
		status = zd_pool_alloc(e, req, job, device, ZD_PURPOSE_GRADIENTS, bytes, ZD_BLOCK_MIN_ALIGN,
		                       &extent, err);
	if (status != 0)
		return status;
	struct zd_storage *storage = zd_calloc(1, sizeof(*storage));
	storage->member = member;
	storage->device = device;
	storage->extent = extent;
	storage->charge = charge;
	zd_extent_own(e, &storage->extent, ZD_BLOCK_STORAGE, storage,
	              zd_member_use(member,
	                            charge == ZD_CHARGE_BUCKET    ? ZD_WORD_BUCKET
	                            : charge == ZD_CHARGE_STAGING ? ZD_WORD_STAGING
	                                                          : ZD_WORD_TARGET,
	                            member->group->id));
	TAILQ_INSERT_TAIL(&member->reduce->storages, storage, link);
	zd_charge(e, job, device, charge, extent.bytes);
	if (charge == ZD_CHARGE_STAGING)
		device->staging_bytes += extent.bytes;
	*out = storage;
	return 0;
}

/* Slices on any device can wait for the uid's quota, not only slices that wait for this device's memory. */
static void staging_given_back(struct zd_engine *e, struct zd_storage *storage)
{
	storage->device->staging_bytes -= storage->extent.bytes;
	for (uint32_t i = 0; i < e->ndevices && e->quota_bytes; i++) {
		if (e->devices[i].staging_queue)
			zd_dirty(e, &e->devices[i]);
	}
}

static void storage_free(struct zd_engine *e, struct zd_storage *storage)
{
	struct zd_member_reduce *mr = storage->member->reduce;
	zd_pool_free(e, &storage->extent);
	TAILQ_REMOVE(&mr->storages, storage, link);
	free(storage);
	zd_member_reduce_release(e, mr);
}

static void end_storage_hold(struct zd_engine *e, struct zd_op *op)
{
	zd_storage_unuse(e, op->owner);
}

void zd_storage_drop(struct zd_engine *e, struct zd_storage *storage)
{
	if (!storage)
		return;
	struct zd_group *group = storage->member->group;
	uint64_t bytes = storage->extent.bytes;
	zd_assert(!storage->dropped);
	if (zd_deferred_teardown_hold(e, storage->member->session, group->job, storage->device,
	                              end_storage_hold, storage))
		zd_storage_use(storage);
	storage->dropped = true;
	zd_uncharge(e, group->job, storage->device, storage->charge, bytes);
	if (storage->charge == ZD_CHARGE_STAGING)
		staging_given_back(e, storage);
	if (storage->uses == 0) {
		storage_free(e, storage);
		return;
	}
	storage->device->quarantine_bytes += bytes;
	group->refs++;
	zd_dirty(e, storage->device); /* quota and staging have room */
}

void zd_storage_use(struct zd_storage *storage)
{
	zd_assert(!storage->dropped);
	storage->uses++;
}

void zd_storage_unuse(struct zd_engine *e, struct zd_storage *storage)
{
	zd_assert(storage->uses > 0);
	storage->uses--;
	if (storage->uses > 0 || !storage->dropped)
		return;
	struct zd_group *group = storage->member->group;
	storage->device->quarantine_bytes -= storage->extent.bytes;
	storage_free(e, storage);
	zd_group_unref(e, group);
}

struct zd_location zd_storage_location(const struct zd_storage *storage, uint64_t offset, uint64_t bytes)
{
	struct zd_location location = zd_extent_location(&storage->extent);
	zd_assert(offset <= location.bytes && bytes <= location.bytes - offset);
	location.offset += offset;
	location.bytes = bytes;
	return location;
}
