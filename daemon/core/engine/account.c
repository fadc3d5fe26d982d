/* SPDX-License-Identifier: Apache-2.0 */
/*
 * account.c - charged bytes by device, by job, by uid and in total.
 *
 * Each charge is added to four accounts: the device's, the job's, the uid's and the engine's. Charges are in
 * padded bytes. A charge ends at the moment of release, even if the block is quarantined longer.
 */
#include "core/engine/objects.h"

static void account_add(struct zd_account *account, enum zd_charge kind, uint64_t bytes)
{
	account->bytes[kind] += bytes;
	account->total += bytes;
	account->peak = zd_max_u64(account->peak, account->total);
	account->peak_gathered = zd_max_u64(account->peak_gathered, account->bytes[ZD_CHARGE_GATHERED]);
}

static void account_sub(struct zd_account *account, enum zd_charge kind, uint64_t bytes)
{
	zd_assert(account->bytes[kind] >= bytes && account->total >= bytes);
	account->bytes[kind] -= bytes;
	account->total -= bytes;
}

void zd_charge(struct zd_engine *e, struct zd_job *job, struct zd_device *device, enum zd_charge kind,
               uint64_t bytes)
{
	account_add(&device->account, kind, bytes);
	account_add(&job->account, kind, bytes);
	account_add(&job->owner->account, kind, bytes);
	account_add(&e->account, kind, bytes);
}

void zd_uncharge(struct zd_engine *e, struct zd_job *job, struct zd_device *device, enum zd_charge kind,
                 uint64_t bytes)
{
	account_sub(&device->account, kind, bytes);
	account_sub(&job->account, kind, bytes);
	account_sub(&job->owner->account, kind, bytes);
	account_sub(&e->account, kind, bytes);
}

int zd_quota_check(struct zd_engine *e, const struct zd_job *job, uint64_t bytes, struct zd_err *err)
{
	if (e->quota_bytes == 0)
		return 0;
	uint64_t held = job->owner->account.total;
	if (held <= e->quota_bytes && bytes <= e->quota_bytes - held)
		return 0;
	return zd_err_set(err, ZEROD_E_QUOTA,
	                  "uid %u holds %llu bytes and asks for %llu more; its quota is %llu",
	                  job->owner->uid, (unsigned long long)held, (unsigned long long)bytes,
	                  (unsigned long long)e->quota_bytes);
}

void zd_account_usage(const struct zd_account *account, struct zd_usage *usage)
{
	*usage = (struct zd_usage){
	        .shard_bytes = account->bytes[ZD_CHARGE_SHARD],
	        .gathered_bytes = account->bytes[ZD_CHARGE_GATHERED],
	        .bucket_bytes = account->bytes[ZD_CHARGE_BUCKET],
	        .staging_bytes = account->bytes[ZD_CHARGE_STAGING],
	        .target_bytes = account->bytes[ZD_CHARGE_TARGET],
	        .allocation_bytes = account->bytes[ZD_CHARGE_ALLOCATION],
	        .peak_bytes = account->peak,
	        .peak_gathered_bytes = account->peak_gathered,
	};
}
