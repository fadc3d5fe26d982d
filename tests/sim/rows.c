/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.c - what the engine's tables say, against the model and against each other.
 *
 * The engine checks its own books in zd_engine_check(); here the same sums are made from the outside: bytes
 * of rows against usage, devices against jobs, holders against the leases that the replies gave, outstanding
 * requests against those that were not answered.
 */
#include <string.h>

#include "base/mem.h"
#include "core/engine/objects.h"
#include "sim.h"

struct tally {
	struct zd_sim_world *world;
	uint64_t gathered[ZD_SIM_DEVICES], buckets[ZD_SIM_DEVICES], allocations[ZD_SIM_DEVICES]; /* of rows */
	uint32_t reserved[ZD_SIM_DEVICES]; /* entries of buckets' rows */
	Zd__Usage devices[ZD_SIM_DEVICES], device_sum, job_sum;
	uint64_t uid_bytes[4]; /* uids 0, 1000, 1001, 2000 */
	uint64_t uid_segment_bytes[4];
	uint32_t sessions, holders;
	bool quiet; /* nothing is under way: everything waits for a reason */
};

static uint64_t usage_bytes(const Zd__Usage *usage)
{
	return usage->shard_bytes + usage->gathered_bytes + usage->bucket_bytes + usage->staging_bytes +
	       usage->target_bytes + usage->allocation_bytes;
}

static void usage_add(Zd__Usage *sum, const Zd__Usage *usage)
{
	sum->shard_bytes += usage->shard_bytes;
	sum->gathered_bytes += usage->gathered_bytes;
	sum->bucket_bytes += usage->bucket_bytes;
	sum->staging_bytes += usage->staging_bytes;
	sum->target_bytes += usage->target_bytes;
	sum->allocation_bytes += usage->allocation_bytes;
}

static void list(struct zd_sim_world *world, Zd__Table table, zd_row_fn *fn, void *arg)
{
	const Zd__List query = {.table = table};

	(void)zd_engine_list(world->engine, 0, &query, 0, fn, arg);
}

/* ---- Devices and jobs ---------------------------------------------------------------------------------- */

/* The memory of processes that linger is neither free nor owned. */
static void check_quarantine(struct zd_sim_world *world, const Zd__DeviceRow *device)
{
	uint64_t least = 0;

	for (uint32_t i = 0; i < world->nsessions; i++)
		least += world->sessions[i]->quarantined[device->index];
	if (device->quarantine_bytes < least)
		zd_sim_fail(world, "device %u: processes that linger had %llu bytes, %llu are quarantined",
		            device->index, (unsigned long long)least,
		            (unsigned long long)device->quarantine_bytes);
}

static bool device_row(uint64_t id, const Zd__Row *row, void *arg)
{
	struct tally *tally = arg;
	struct zd_sim_world *world = tally->world;
	const Zd__DeviceRow *device = row->device;
	uint32_t index = device->index;
	uint64_t charged = usage_bytes(device->usage);

	(void)id;
	if (index >= zd_sim_ndevices(&world->config))
		zd_sim_fail(world, "a row for device %u", index);
	if (device->usage->gathered_bytes > world->budget_bytes[index])
		zd_sim_fail(world, "device %u: %llu gathered bytes, the budget is %llu", index,
		            (unsigned long long)device->usage->gathered_bytes,
		            (unsigned long long)world->budget_bytes[index]);
	if (device->segment_bytes > device->arena_bytes || device->block_bytes > device->segment_bytes ||
	    charged + device->quarantine_bytes > device->block_bytes)
		zd_sim_fail(
		        world,
		        "device %u: arena %llu, segments %llu, blocks %llu, charged %llu, quarantined %llu",
		        index, (unsigned long long)device->arena_bytes,
		        (unsigned long long)device->segment_bytes, (unsigned long long)device->block_bytes,
		        (unsigned long long)charged, (unsigned long long)device->quarantine_bytes);
	if (world->config.linger && world->engine->nendings == 0)
		check_quarantine(world, device);
	tally->devices[index] = *device->usage;
	usage_add(&tally->device_sum, device->usage);
	return true;
}

void zd_sim_budget_check(struct zd_sim_world *world)
{
	struct tally tally = {.world = world};

	list(world, ZD__TABLE__DEVICES, device_row, &tally);
}

static uint32_t uid_index(uint32_t uid)
{
	return uid == 0 ? 0 : uid == 2000 ? 3 : uid - 999;
}

static bool job_row(uint64_t id, const Zd__Row *row, void *arg)
{
	struct tally *tally = arg;

	usage_add(&tally->job_sum, row->job->usage);
	tally->uid_bytes[uid_index(row->job->uid)] += usage_bytes(row->job->usage);
	for (uint32_t i = 0; i < tally->world->nsegments; i++) {
		if (tally->world->segments[i].job == id)
			tally->uid_segment_bytes[uid_index(row->job->uid)] += tally->world->segments[i].bytes;
	}
	return true;
}

/* The bytes that the segments of one uid may occupy: the quota and 16 granules of each device. */
static uint64_t most_segment_bytes(const struct zd_sim_world *world)
{
	uint64_t most = world->quota_bytes;

	for (uint32_t d = 0; d < zd_sim_ndevices(&world->config); d++)
		most += 16 * zd_max_u64(world->config.devices[d].segment_align_bytes, 4096);
	return most;
}

static void check_sums(struct tally *tally)
{
	struct zd_sim_world *world = tally->world;
	struct zd_engine_totals totals;
	uint64_t devices = usage_bytes(&tally->device_sum);

	zd_engine_totals(world->engine, &totals);
	if (devices != usage_bytes(&tally->job_sum) || devices != usage_bytes(&totals.usage))
		zd_sim_fail(world, "devices are charged %llu bytes, jobs %llu, in total %llu",
		            (unsigned long long)devices, (unsigned long long)usage_bytes(&tally->job_sum),
		            (unsigned long long)usage_bytes(&totals.usage));
	for (uint32_t i = 0; world->quota_bytes && i < 4; i++) {
		if (tally->uid_bytes[i] > world->quota_bytes)
			zd_sim_fail(world, "a uid is charged %llu bytes, its quota is %llu",
			            (unsigned long long)tally->uid_bytes[i],
			            (unsigned long long)world->quota_bytes);
		if (tally->uid_segment_bytes[i] > most_segment_bytes(world))
			zd_sim_fail(world, "a uid's segments have %llu bytes, its quota is %llu",
			            (unsigned long long)tally->uid_segment_bytes[i],
			            (unsigned long long)world->quota_bytes);
	}
}

/* ---- Buffers ------------------------------------------------------------------------------------------- */

static int number_in(const char *name)
{
	return name[0] ? name[1] - '0' : -1;
}

static const struct zd_sim_session *member_session(const struct zd_sim_world *world, uint32_t group,
                                                   uint32_t rank)
{
	for (uint32_t i = 0; i < world->nsessions; i++) {
		const struct zd_sim_session *session = world->sessions[i];
		if (session->open && session->members[group].id &&
		    zd_sim_rank(&world->config, session->actor, group) == rank)
			return session;
	}
	return NULL;
}

static void check_holder(struct tally *tally, const Zd__BufferRow *row, const Zd__Holder *holder,
                         uint32_t group)
{
	static const char *const tags[ZD_SIM_TAGS] = {"default", "plan", "eager"};
	const struct zd_sim_session *session = member_session(tally->world, group, row->rank);
	int unit = number_in(row->unit);
	bool known = false;

	if (session && holder->tag[0] == ZD_RESERVED_TAG) {
		enum zd_sim_holder found = zd_sim_scope_holder(&session->members[group], (uint32_t)unit,
		                                               holder->tag);
		if (found == ZD_SIM_HOLDER_PENDING)
			return;
		known = found == ZD_SIM_HOLDER_KNOWN && holder->uses == 1;
	}
	for (uint32_t t = 0; session && t < ZD_SIM_TAGS; t++)
		known = known || (strcmp(holder->tag, tags[t]) == 0 &&
		                  holder->uses == session->members[group].handles[unit].leases[t].uses);
	if (known && holder->session == session->id) {
		tally->holders++;
		return;
	}
	zd_sim_fail(tally->world,
	            "buffer of %s/%s/%s, rank %u: holder %s of session %llu with %u uses is none", row->job,
	            row->group, row->unit, row->rank, holder->tag, (unsigned long long)holder->session,
	            holder->uses);
}

static bool buffer_row(uint64_t id, const Zd__Row *listed, void *arg)
{
	const Zd__BufferRow *row = listed->buffer;
	struct tally *tally = arg;
	bool live = strcmp(row->state, "INFLIGHT") == 0 || strcmp(row->state, "AVAILABLE") == 0;
	int job = number_in(row->job);

	(void)id;
	if (live)
		tally->gathered[row->device] += row->padded_bytes;
	if (live && !row->n_holders && !row->persistent && !row->prefetched)
		zd_sim_fail(tally->world, "a buffer of %s/%s/%s is charged, and nobody holds it", row->job,
		            row->group, row->unit);
	if (strcmp(row->state, "QUARANTINED") == 0 && row->n_holders)
		zd_sim_fail(tally->world, "a quarantined buffer of %s/%s/%s has holders", row->job,
		            row->group, row->unit);
	if (strcmp(row->state, "WAITING") == 0 && tally->quiet && !row->waits_for[0])
		zd_sim_fail(tally->world, "gather of %s/%s/%s waits for nothing", row->job, row->group,
		            row->unit);
	for (size_t i = 0; live && i < row->n_holders; i++)
		check_holder(tally, row, row->holders[i],
		             tally->world->config.jobs[job].first_group + (uint32_t)number_in(row->group));
	return true;
}

static uint32_t model_holders(const struct zd_sim_world *world)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < world->nsessions; i++) {
		for (uint32_t g = 0; world->sessions[i]->open && g < world->config.ngroups; g++)
			for (uint32_t u = 0; u < ZD_SIM_UNITS; u++)
				for (uint32_t h = 0; h < ZD_SIM_HOLDERS; h++)
					count += world->sessions[i]->members[g].handles[u].leases[h].uses > 0;
	}
	return count;
}

/* ---- The other tables ---------------------------------------------------------------------------------- */

static bool bucket_row(uint64_t id, const Zd__Row *row, void *arg)
{
	struct tally *tally = arg;

	(void)id;
	tally->buckets[row->bucket->device] += row->bucket->held_bytes;
	tally->reserved[row->bucket->device] += row->bucket->reserved;
	return true;
}

static uint32_t waiting_reserves(const struct zd_sim_session *session)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < session->nrequests; i++)
		count += session->requests[i].kind == ZD_REQ_BUCKET_RESERVE;
	return count;
}

/* The entries and targets of a rank are listed and charged as long as the rank has them, and entries no
 * longer. */
static void check_given(const struct tally *tally)
{
	struct zd_sim_world *world = tally->world;
	uint32_t entries[ZD_SIM_DEVICES] = {0}, waiting[ZD_SIM_DEVICES] = {0};
	uint64_t target_bytes[ZD_SIM_DEVICES] = {0};
	uint32_t host = world->config.has_host ? world->config.ndevices
	                                       : 0; /* 0: there are no such targets */

	for (uint32_t i = 0; i < world->nsessions; i++) {
		const struct zd_sim_session *session = world->sessions[i];
		uint32_t device = world->config.actors[session->actor].device;
		waiting[device] += session->open ? waiting_reserves(session) : 0;
		for (uint32_t g = 0; session->open && g < world->config.ngroups; g++) {
			const struct zd_sim_member *member = &session->members[g];
			if (member->beginning) /* whether it was let in is not known yet */
				waiting[device] += ZD_SIM_UNITS;
			if (member->stepping && !member->beginning) {
				target_bytes[device] += member->targets[ZD_TARGET_ON_DEVICE].bytes;
				target_bytes[host] += member->targets[ZD_TARGET_ON_HOST].bytes;
			}
			for (uint32_t u = 0; u < ZD_SIM_UNITS; u++) {
				entries[device] += zd_sim_entry_held(member, &member->handles[u].entry);
				if (member->handles[u].lent && !member->handles[u].terms &&
				    !member->beginning)
					target_bytes[zd_sim_on_host(world, g, u) ? host : device] +=
					        member->handles[u].lent_at.bytes;
			}
		}
	}
	for (uint32_t d = 0; d < zd_sim_ndevices(&world->config); d++) {
		if (tally->reserved[d] < entries[d] || tally->reserved[d] > entries[d] + waiting[d])
			zd_sim_fail(world, "device %u: ranks have %u entries and want %u, %u are listed", d,
			            entries[d], waiting[d], tally->reserved[d]);
		if (tally->devices[d].target_bytes < target_bytes[d])
			zd_sim_fail(world,
			            "device %u: ranks read %llu bytes of targets, it is charged for %llu", d,
			            (unsigned long long)target_bytes[d],
			            (unsigned long long)tally->devices[d].target_bytes);
	}
}

static bool allocation_row(uint64_t id, const Zd__Row *row, void *arg)
{
	(void)id;
	((struct tally *)arg)->allocations[row->allocation->device] += row->allocation->bytes;
	return true;
}

static bool session_row(uint64_t id, const Zd__Row *row, void *arg)
{
	struct tally *tally = arg;
	const struct zd_sim_session *session = zd_sim_session_find(tally->world, id);

	if (session && !session->open && tally->world->config.linger &&
	    strcmp(row->session->state, "CLOSING") == 0)
		return true; /* until its process is known to have gone */
	tally->sessions++;
	if (!session || !session->open)
		zd_sim_fail(tally->world, "session %llu is listed, but it is not open",
		            (unsigned long long)id);
	if (row->session->outstanding != session->nrequests)
		zd_sim_fail(tally->world, "session %llu has %u requests outstanding, its row says %u",
		            (unsigned long long)id, session->nrequests, row->session->outstanding);
	if (tally->quiet && row->session->outstanding && !row->session->n_waits)
		zd_sim_fail(tally->world, "session %llu waits for no reason", (unsigned long long)id);
	for (size_t i = 0; i < row->session->n_waits; i++) {
		if (!row->session->waits[i][0])
			zd_sim_fail(tally->world, "session %llu waits for nothing", (unsigned long long)id);
	}
	return true;
}

static void check_shards(const struct tally *tally)
{
	struct zd_sim_world *world = tally->world;
	uint64_t least[ZD_SIM_DEVICES] = {0}, most[ZD_SIM_DEVICES] = {0};

	for (uint32_t g = 0; g < world->config.ngroups; g++) {
		const struct zd_sim_group_config *group = &world->config.groups[g];
		for (uint32_t u = 0; u < group->nunits; u++)
			for (uint32_t r = 0; r < group->world; r++) {
				const struct zd_sim_shard *shard = &world->groups[g].shards[u][r];
				uint64_t bytes = zd_sim_shard_numel(group, u) *
				                 zerod_dtype_bytes(group->units[u].dtype);
				bytes *= world->config.jobs[group->job].shadow ? 2 : 1;
				least[shard->device] += shard->exists ? bytes : 0;
				most[shard->device] += shard->exists || shard->maybe || shard->kept ? bytes
				                                                                    : 0;
			}
	}
	for (uint32_t d = 0; d < zd_sim_ndevices(&world->config); d++) {
		uint64_t found = tally->devices[d].shard_bytes;
		if (found < least[d] || found > most[d])
			zd_sim_fail(world,
			            "device %u is charged for %llu bytes of shards, there are %llu to %llu",
			            d, (unsigned long long)found, (unsigned long long)least[d],
			            (unsigned long long)most[d]);
	}
}

/* Whether what is charged for shards is not known. */
static bool registering(const struct zd_sim_world *world)
{
	for (uint32_t i = 0; i < world->nsessions; i++) {
		for (uint32_t r = 0; world->sessions[i]->open && r < world->sessions[i]->nrequests; r++) {
			enum zd_request_kind kind = world->sessions[i]->requests[r].kind;
			if (kind == ZD_REQ_UNIT_REGISTER || kind == ZD_REQ_UNIT_PLACE)
				return true;
		}
	}
	return false;
}

static void check_tables(struct zd_sim_world *world, bool quiet)
{
	struct tally tally = {.world = world, .quiet = quiet};
	uint32_t open = 0;

	list(world, ZD__TABLE__DEVICES, device_row, &tally);
	list(world, ZD__TABLE__JOBS, job_row, &tally);
	list(world, ZD__TABLE__SESSIONS, session_row, &tally);
	list(world, ZD__TABLE__BUFFERS, buffer_row, &tally);
	list(world, ZD__TABLE__BUCKETS, bucket_row, &tally);
	list(world, ZD__TABLE__ALLOCATIONS, allocation_row, &tally);
	zd_sim_scopes_check(world);
	check_sums(&tally);
	check_given(&tally);
	for (uint32_t d = 0; d < zd_sim_ndevices(&world->config); d++) {
		if (tally.gathered[d] != tally.devices[d].gathered_bytes)
			zd_sim_fail(world,
			            "device %u is charged for %llu gathered bytes, its buffers have %llu", d,
			            (unsigned long long)tally.devices[d].gathered_bytes,
			            (unsigned long long)tally.gathered[d]);
		if (tally.buckets[d] != tally.devices[d].bucket_bytes)
			zd_sim_fail(world, "device %u is charged for %llu bytes of buckets, they have %llu",
			            d, (unsigned long long)tally.devices[d].bucket_bytes,
			            (unsigned long long)tally.buckets[d]);
		if (tally.allocations[d] != tally.devices[d].allocation_bytes)
			zd_sim_fail(world, "device %u is charged for %llu allocated bytes, there are %llu", d,
			            (unsigned long long)tally.devices[d].allocation_bytes,
			            (unsigned long long)tally.allocations[d]);
	}
	for (uint32_t i = 0; i < world->nsessions; i++)
		open += world->sessions[i]->open;
	if (open != tally.sessions)
		zd_sim_fail(world, "%u sessions are open, %u are listed", open, tally.sessions);
	if (tally.holders != model_holders(world))
		zd_sim_fail(world, "%u leases are held, %u are listed", model_holders(world), tally.holders);
	if (!registering(world))
		check_shards(&tally);
}

void zd_sim_rows_check(struct zd_sim_world *world)
{
	/* The model forgets objects at once; the engine frees them step by step. */
	if (world->engine->nendings == 0)
		check_tables(world, false);
}

void zd_sim_waits_check(struct zd_sim_world *world)
{
	check_tables(world, true);
	for (uint32_t i = 0; i < world->nsessions; i++) {
		if (!world->sessions[i]->open)
			continue;
		zd_sim_sight_check(world, world->sessions[i]);
		zd_sim_shards_check(world, world->sessions[i]);
	}
}
