/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storage.h - memory of buckets, staging and targets. A storage is charged until it is dropped, and remains
 * while an operation uses it (storage.c).
 */
#ifndef ZD_CORE_REDUCE_STORAGE_H
#define ZD_CORE_REDUCE_STORAGE_H

#include "core/engine/objects.h"
#include "core/memory/pool.h"

/*
 * A block for gradients, charged to the member's job. Dropping a storage uncharges its bytes at once. Its
 * block is freed when the last use has ended. A dropped storage in use has a reference to its group. This
 * lets zd_reduce_check() find the storage in the member's list.
 */
struct zd_storage {
	struct zd_member *member;
	struct zd_device *device;
	struct zd_extent extent;
	enum zd_charge charge;
	bool dropped;
	uint32_t uses;  /* operations in progress that read or write the block */
	uint32_t fills; /* of these, fills of a part of a target: no sum is stored in the target meanwhile */
	TAILQ_ENTRY(zd_storage) link;
	/* For a sum without a place in a target (target.c), otherwise NULL: */
	struct zd_window *sum_of;
	struct zd_part *part;
	bool summing;                     /* its slice is open, or collects terms */
	bool returned;                    /* freed when it is not summing any more */
	TAILQ_ENTRY(zd_storage) sum_link; /* of the window's sums */
};

/* Allocates `bytes` on the member's device, or in its host memory, and charges them. Returns 0, ZD_WAIT or an
 * error, as zd_pool_alloc() does, or QUOTA. */
int zd_storage_new(struct zd_engine *e, struct zd_request *req, struct zd_member *member,
                   struct zd_device *device, enum zd_charge charge, uint64_t bytes,
                   struct zd_storage **storage, struct zd_err *err) __attribute__((warn_unused_result));
/* Drops the storage; NULL is allowed. A storage without uses is freed at once. */
void zd_storage_drop(struct zd_engine *e, struct zd_storage *storage);
/* Adds a use by an operation, to a storage that is not dropped. */
void zd_storage_use(struct zd_storage *storage);
/* Removes a use. Frees a dropped storage with its last use. */
void zd_storage_unuse(struct zd_engine *e, struct zd_storage *storage);
/* Returns the location of `bytes` bytes of the storage, from `offset` on. */
struct zd_location zd_storage_location(const struct zd_storage *storage, uint64_t offset, uint64_t bytes);

#endif
