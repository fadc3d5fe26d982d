/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stress_gathers.c - what a trainer does in a round: updates, gathers that are compared, releases,
 * persistence.
 */
#include "tests/gpu/stress.h"
#include "tests/support/options.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define MOST_AT_ONCE   6
#define MOST_DELAY_NS  400000u
#define PERSISTENT_MAX (1ull << 20) /* bytes of a unit that may stay */

int stress_check(struct trainer *trainer, int status, const char *call)
{
	if (status == ZEROD_OK)
		return 0;
	return zd_err_set(&trainer->err, status, "%s: %s: %s", call, zerod_status_name(status),
	                  zerod_last_error(trainer->client));
}

static uint64_t below(struct trainer *trainer, uint64_t bound)
{
	return stress_random(&trainer->random) % bound;
}

static int maybe_delay(struct trainer *trainer, uint32_t stream)
{
	if (below(trainer, 4))
		return 0;
	return stress_delay(&trainer->kernels, trainer->cu_streams[stream], below(trainer, MOST_DELAY_NS),
	                    &trainer->err);
}

static uint64_t true_bytes(const struct stress_unit *unit)
{
	return unit->numel * zerod_dtype_bytes(unit->dtype);
}

/* ---- Updates ------------------------------------------------------------------------------------------- */

static int write_shard(struct trainer *trainer, uint32_t index, uint32_t stream)
{
	const struct stress_unit *unit = &trainer->stress->units[index];
	const struct zerod_shard *shard = &trainer->units[index].shard;
	const uint64_t words = shard->shard_numel * zerod_dtype_bytes(unit->dtype) / sizeof(uint64_t);

	if (shard->true_numel == 0)
		return 0;
	return stress_fill(&trainer->kernels, trainer->cu_streams[stream], (zd_cu_ptr)(uintptr_t)shard->data,
	                   trainer->rank * words, words, true_bytes(unit),
	                   stress_seed(trainer->stress, index, trainer->units[index].version + 1),
	                   &trainer->err);
}

int stress_update(struct trainer *trainer, uint64_t round)
{
	zerod_unit *units[STRESS_UNITS];
	uint32_t indices[STRESS_UNITS], count = 0;
	const uint32_t stream = (uint32_t)below(trainer, STRESS_STREAMS);
	int status;

	for (uint32_t i = 0; i < trainer->stress->options.units; i++)
		if (stress_updates(trainer->stress, round, i)) {
			indices[count] = i;
			units[count++] = trainer->units[i].unit;
		}
	if (count == 0)
		return 0;
	status = stress_check(trainer, zerod_update_begin(units, count, NULL, NULL), "zerod_update_begin");
	if (!status)
		status = maybe_delay(trainer, stream);
	for (uint32_t i = 0; i < count && !status; i++)
		status = write_shard(trainer, indices[i], stream);
	if (!status)
		status = stress_check(trainer,
		                      zerod_publish(units, count, &trainer->streams[stream], 1, NULL, NULL),
		                      "zerod_publish");
	for (uint32_t i = 0; i < count && !status; i++)
		trainer->units[indices[i]].version++;
	atomic_fetch_add(&trainer->stress->shared->counts.publishes, status ? 0 : count);
	return status;
}

/* ---- Releases ------------------------------------------------------------------------------------------ */

static int release(struct trainer *trainer, uint32_t index)
{
	const struct stress_lease lease = trainer->held[index];
	zerod_stream *streams[STRESS_STREAMS];
	uint32_t count = 0;

	for (uint32_t i = 0; i < STRESS_STREAMS; i++)
		if (lease.streams & 1u << i)
			streams[count++] = trainer->streams[i];
	trainer->held[index] = trainer->held[--trainer->nheld];
	trainer->held_bytes -= trainer->stress->units[lease.unit].gathered_bytes;
	return stress_check(
	        trainer,
	        zerod_release(trainer->units[lease.unit].unit, streams, count, TAGGED(lease.tag), NULL),
	        "zerod_release");
}

/* All of one tag by one call, which names every stream that uses any of them. */
static int release_tag(struct trainer *trainer, const char *tag)
{
	zerod_stream *streams[STRESS_STREAMS];
	zerod_unit *units[STRESS_HELD];
	uint32_t count = 0, nstreams = 0, used = 0, kept = 0;

	for (uint32_t i = 0; i < trainer->nheld; i++) {
		const struct stress_lease lease = trainer->held[i];

		if (strcmp(lease.tag, tag) != 0) {
			trainer->held[kept++] = lease;
			continue;
		}
		units[count++] = trainer->units[lease.unit].unit;
		used |= lease.streams;
		trainer->held_bytes -= trainer->stress->units[lease.unit].gathered_bytes;
	}
	trainer->nheld = kept;
	for (uint32_t i = 0; i < STRESS_STREAMS; i++)
		if (used & 1u << i)
			streams[nstreams++] = trainer->streams[i];
	return stress_check(trainer, zerod_release_many(units, count, streams, nstreams, TAGGED(tag), NULL),
	                    "zerod_release_many");
}

int stress_release_all(struct trainer *trainer)
{
	int status = 0;

	while (trainer->nheld && !status)
		status = release(trainer, trainer->nheld - 1);
	return status;
}

int stress_release_updated(struct trainer *trainer, uint64_t round)
{
	int status = 0;

	for (uint32_t i = trainer->nheld; i > 0 && !status; i--)
		if (stress_updates(trainer->stress, round, trainer->held[i - 1].unit))
			status = release(trainer, i - 1);
	return status;
}

/* ---- Gathers ------------------------------------------------------------------------------------------- */

struct request {
	uint32_t unit;
	char tag[8];
	zerod_ticket ticket;
};

static bool is_held(const struct trainer *trainer, uint32_t unit, const char *tag)
{
	for (uint32_t i = 0; i < trainer->nheld; i++)
		if (trainer->held[i].unit == unit && strcmp(trainer->held[i].tag, tag) == 0)
			return true;
	return false;
}

/* Two leases of one tag are one lease of two uses: each is asked for once. */
static bool choose(struct trainer *trainer, const struct request *others, uint32_t nothers,
                   struct request *request)
{
	uint64_t bytes;

	request->unit = (uint32_t)below(trainer, trainer->stress->options.units);
	(void)snprintf(request->tag, sizeof(request->tag), "tag%u", (unsigned)below(trainer, 3));
	bytes = trainer->held_bytes + trainer->stress->units[request->unit].gathered_bytes;
	for (uint32_t i = 0; i < nothers; i++) {
		if (others[i].unit == request->unit)
			return false;
		bytes += trainer->stress->units[others[i].unit].gathered_bytes;
	}
	return bytes <= trainer->held_limit && trainer->nheld + nothers < STRESS_HELD &&
	       !is_held(trainer, request->unit, request->tag);
}

static int begin(struct trainer *trainer, struct request *request)
{
	struct zerod_gather_options options = ZEROD_INIT(options);

	options.tag = request->tag;
	options.version = trainer->units[request->unit].version;
	return stress_check(
	        trainer, zerod_gather_begin(trainer->units[request->unit].unit, &options, &request->ticket),
	        "zerod_gather_begin");
}

static int check_slot(struct trainer *trainer, uint32_t index, void *data)
{
	void **address = &trainer->units[index].address;

	if (trainer->stress->units[index].slot == ZEROD_NO_SLOT)
		return 0;
	if (*address && *address != data)
		return zd_err_set(&trainer->err, ZEROD_E_DEVICE, "%s has a slot and moved",
		                  trainer->stress->units[index].name);
	*address = data;
	return 0;
}

static int compare(struct trainer *trainer, uint32_t index, uint32_t stream, void *data)
{
	const struct stress_unit *unit = &trainer->stress->units[index];
	int status = check_slot(trainer, index, data);

	if (!status)
		status = maybe_delay(trainer, stream);
	if (!status)
		status = stress_compare(
		        &trainer->kernels, trainer->cu_streams[stream], (zd_cu_ptr)(uintptr_t)data,
		        unit->padded_bytes / sizeof(uint64_t), true_bytes(unit),
		        stress_seed(trainer->stress, index, trainer->units[index].version), &trainer->err);
	trainer->unlooked_bytes += unit->padded_bytes;
	return status;
}

static struct stress_lease *add_lease(struct trainer *trainer, const struct request *request, uint32_t stream)
{
	struct stress_lease *lease = &trainer->held[trainer->nheld++];

	*lease = (struct stress_lease){.unit = request->unit, .streams = 1u << stream};
	memcpy(lease->tag, request->tag, sizeof(lease->tag));
	trainer->held_bytes += trainer->stress->units[request->unit].gathered_bytes;
	atomic_fetch_add(&trainer->stress->shared->counts.gathers, 1);
	return lease;
}

/* A wait that an abort has freed returns ABORTED, and its lease is held all the same. */
static int finish(struct trainer *trainer, const struct request *request)
{
	uint32_t stream = (uint32_t)below(trainer, STRESS_STREAMS);
	struct stress_lease *lease;
	void *data = NULL;
	int status = zerod_wait(trainer->client, request->ticket, trainer->streams[stream], &data);

	if (status == ZEROD_E_STALE_VERSION) {
		atomic_fetch_add(&trainer->stress->shared->counts.stale, 1);
		return 0;
	}
	if (status && status != ZEROD_E_ABORTED)
		return stress_check(trainer, status, "zerod_wait");
	lease = add_lease(trainer, request, stream);
	if (status)
		return stress_check(trainer, status, "zerod_wait");
	status = compare(trainer, request->unit, stream, data);
	if (status || below(trainer, 3))
		return status;
	stream = (stream + 1) % STRESS_STREAMS;
	status = stress_check(trainer,
	                      zerod_wait(trainer->client, request->ticket, trainer->streams[stream], &data),
	                      "zerod_wait again");
	lease->streams |= 1u << stream;
	return status ? status : compare(trainer, request->unit, stream, data);
}

static int finish_each(struct trainer *trainer, const struct request *requests, uint32_t count)
{
	int first = 0;

	for (uint32_t i = 0; i < count; i++) {
		int status = finish(trainer, &requests[i]);

		first = first ? first : status;
	}
	return first;
}

/* By one call; when one of them fails, none has been waited for. */
static int finish_many(struct trainer *trainer, const struct request *requests, uint32_t count)
{
	const uint32_t stream = (uint32_t)below(trainer, STRESS_STREAMS);
	zerod_ticket tickets[MOST_AT_ONCE];
	void *data[MOST_AT_ONCE];
	int status = 0;

	for (uint32_t i = 0; i < count; i++)
		tickets[i] = requests[i].ticket;
	if (zerod_wait_many(trainer->client, tickets, count, trainer->streams[stream], data))
		return finish_each(trainer, requests, count);
	for (uint32_t i = 0; i < count; i++)
		(void)add_lease(trainer, &requests[i], stream);
	for (uint32_t i = 0; i < count && !status; i++)
		status = compare(trainer, requests[i].unit, stream, data[i]);
	return status;
}

static int maybe_prefetch(struct trainer *trainer, uint32_t unit)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	zerod_ticket ticket;
	int status;

	if (below(trainer, 6))
		return 0;
	options.flags = ZEROD_GATHER_PREFETCH;
	options.version = trainer->units[unit].version;
	status = stress_check(trainer, zerod_gather_begin(trainer->units[unit].unit, &options, &ticket),
	                      "zerod_gather_begin");
	if (status)
		return status;
	status = zerod_wait(trainer->client, ticket, NULL, NULL);
	return status == ZEROD_E_STALE_VERSION ? 0
	                                       : stress_check(trainer, status, "zerod_wait for a prefetch");
}

static int maybe_persist(struct trainer *trainer, uint32_t unit)
{
	bool *persistent = &trainer->units[unit].persistent;

	if (below(trainer, 8) || trainer->stress->units[unit].padded_bytes > PERSISTENT_MAX)
		return 0;
	*persistent = !*persistent;
	return stress_check(trainer, zerod_unit_set_persistent(trainer->units[unit].unit, *persistent),
	                    "zerod_unit_set_persistent");
}

/* Asks for some at once, as one packet or each by itself, then waits for all. */
static int gather_some(struct trainer *trainer)
{
	struct request requests[MOST_AT_ONCE];
	const uint32_t wanted = 1 + (uint32_t)below(trainer, MOST_AT_ONCE);
	const bool cork = below(trainer, 2);
	uint32_t count = 0;
	int status = 0, later;

	if (cork)
		zerod_cork(trainer->client);
	for (uint32_t i = 0; i < wanted && !status; i++)
		if (choose(trainer, requests, count, &requests[count])) {
			status = begin(trainer, &requests[count]);
			count += !status;
		}
	if (cork) {
		later = stress_check(trainer, zerod_uncork(trainer->client), "zerod_uncork");
		status = status ? status : later;
	}
	later = below(trainer, 2) ? finish_many(trainer, requests, count)
	                          : finish_each(trainer, requests, count);
	return status ? status : later;
}

int stress_gathers(struct trainer *trainer)
{
	const uint32_t times = 1 + (uint32_t)below(trainer, 6);
	int status = 0;

	for (uint32_t i = 0; i < times && !status; i++) {
		const uint32_t unit = (uint32_t)below(trainer, trainer->stress->options.units);

		status = zd_gemm_fill(trainer->gemm, &trainer->err);
		if (!status)
			status = maybe_prefetch(trainer, unit);
		if (!status)
			status = gather_some(trainer);
		if (!status)
			status = maybe_persist(trainer, unit);
		if (!status && below(trainer, 4) == 0)
			status = release_tag(trainer, "tag1");
		for (uint32_t j = (uint32_t)below(trainer, trainer->nheld + 1); j > 0 && !status; j--)
			status = release(trainer, (uint32_t)below(trainer, trainer->nheld));
	}
	return status;
}
