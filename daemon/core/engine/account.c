/* SPDX-License-Identifier: Apache-2.0 */
/*
 * account.c - charged bytes by device, by job, by uid and in total; and each uid's share of the daemon's own
 * memory.
 *
 * Each charge is added to four accounts: the device's, the job's, the uid's and the engine's. Charges are in
 * padded bytes. A charge ends at the moment of release, even if the block is quarantined longer.
 */
#include "core/engine/objects.h"

#define WORK_SHARE 8u /* 1 / WORK_SHARE of the limit is for requests and the objects that they leave */

struct zd_owner *zd_owner_get(struct zd_engine *e, uint32_t uid)
{
	struct zd_owner *owner;
	HASH_FIND(hh, e->owners, &uid, sizeof(uid), owner);
	if (!owner) {
		owner = zd_calloc(1, sizeof(*owner));
		owner->uid = uid;
		owner->ids = zd_ids_get(e, uid);
		owner->queues = zd_calloc(e->ndevices + 1, sizeof(*owner->queues));
		for (uint32_t i = 0; i <= e->ndevices; i++) {
			owner->queues[i].owner = owner;
			TAILQ_INIT(&owner->queues[i].requests);
			TAILQ_INIT(&owner->queues[i].waiters);
			TAILQ_INIT(&owner->queues[i].formers);
			TAILQ_INIT(&owner->queues[i].retiring);
		}
		TAILQ_INIT(&owner->endings);
		HASH_ADD(hh, e->owners, uid, sizeof(owner->uid), owner);
	}
	owner->refs++;
	return owner;
}

void zd_owner_put(struct zd_engine *e, struct zd_owner *owner)
{
	zd_assert(owner->refs > 0);
	if (--owner->refs > 0)
		return;
	zd_assert(TAILQ_EMPTY(&owner->endings) && owner->nwalks == 0);
	zd_assert(!owner->jobs && owner->account.total == 0 && owner->segment_bytes == 0);
	zd_assert(owner->retiring_bytes == 0 && owner->metadata_bytes == 0);
	HASH_DEL(e->owners, owner);
	free(owner->queues);
	free(owner);
}

/* ---- Device memory ------------------------------------------------------------------------------------- */

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

Zd__Usage zd_account_usage(const struct zd_account *account)
{
	return (Zd__Usage){
	        .base = PROTOBUF_C_MESSAGE_INIT(&zd__usage__descriptor),
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

/* ---- The daemon's own memory --------------------------------------------------------------------------- */

void zd_metadata_charge(struct zd_owner *owner, uint64_t bytes)
{
	owner->metadata_bytes += bytes;
}

void zd_metadata_uncharge(struct zd_owner *owner, uint64_t bytes)
{
	zd_assert(owner->metadata_bytes >= bytes);
	owner->metadata_bytes -= bytes;
}

static bool metadata_fits(const struct zd_engine *e, const struct zd_session *session, uint64_t bytes,
                          uint64_t kept_bytes)
{
	uint64_t limit = e->uid_limits.metadata_bytes, held = session->owner->metadata_bytes + kept_bytes;
	return session->admin || limit == 0 || (held <= limit && bytes <= limit - held);
}

int zd_metadata_check(const struct zd_engine *e, const struct zd_session *session, const char *kind,
                      const char *name, uint64_t bytes, struct zd_err *err)
{
	uint64_t limit = e->uid_limits.metadata_bytes;
	if (metadata_fits(e, session, bytes, limit / WORK_SHARE))
		return 0;
	return zd_err_set(err, ZEROD_E_LIMIT,
	                  "%s '%.64s' needs %llu bytes of the daemon's own memory; uid %u holds %llu: "
	                  "uid_metadata is %llu, an eighth of it for requests",
	                  kind, name, (unsigned long long)bytes, session->uid,
	                  (unsigned long long)session->owner->metadata_bytes, (unsigned long long)limit);
}

int zd_metadata_check_work(const struct zd_engine *e, const struct zd_session *session, const char *kind,
                           uint64_t bytes, struct zd_err *err)
{
	if (metadata_fits(e, session, bytes, 0))
		return 0;
	return zd_err_set(err, ZEROD_E_LIMIT,
	                  "%s needs %llu bytes of the daemon's own memory; uid %u holds %llu: uid_metadata "
	                  "is %llu",
	                  kind, (unsigned long long)bytes, session->uid,
	                  (unsigned long long)session->owner->metadata_bytes,
	                  (unsigned long long)e->uid_limits.metadata_bytes);
}
