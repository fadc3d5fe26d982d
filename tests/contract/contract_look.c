/* SPDX-License-Identifier: Apache-2.0 */
/* contract_look.c - the daemon's listings, for what zerod.h does not show. */
#include <stdio.h>

#include "client/lib/conn/request.h"
#include "contract_internal.h"

static void list_one(zerod_client *observer, Zd__Table table, int (*fn)(const Zd__Reply *reply, void *arg),
                     void *arg)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__List body = ZD__LIST__INIT;

	body.table = table;
	request.body_case = ZD__REQUEST__BODY_LIST;
	request.list = &body;
	OK(observer, zc_call(observer, &request, 0, fn, arg));
}

/* Of all daemons. */
static void list(struct contract *c, Zd__Table table, int (*fn)(const Zd__Reply *reply, void *arg), void *arg)
{
	for (uint32_t i = 0; i < c->daemons; i++)
		list_one(c->observers[i], table, fn, arg);
}

/* ---- Devices ------------------------------------------------------------------------------------------- */

/* The daemon's counters at the beginning of this test. */
static struct {
	uint64_t transfers, joined, fallbacks;
} before[CONTRACT_RANKS];

struct devices {
	int64_t only;   /* -1: all */
	uint32_t first; /* of the daemon that lists */
	struct contract_device sum;
};

static int add_devices(const Zd__Reply *reply, void *arg)
{
	struct devices *devices = arg;
	struct contract_device *sum = &devices->sum;

	for (size_t i = 0; i < reply->list->n_rows; i++) {
		const Zd__DeviceRow *row = reply->list->rows[i]->device;
		const Zd__Usage *usage = row->usage;
		uint32_t number = devices->first + row->index;

		if (devices->only >= 0 && number != (uint64_t)devices->only)
			continue;
		sum->segment_bytes += row->segment_bytes;
		sum->block_bytes += row->block_bytes;
		sum->quarantine_bytes += row->quarantine_bytes;
		sum->transfers += row->gathers - before[number].transfers;
		sum->joined += row->joined_gathers - before[number].joined;
		sum->fallbacks += row->fallback_gathers - before[number].fallbacks;
		sum->shard_bytes += usage->shard_bytes;
		sum->gathered_bytes += usage->gathered_bytes;
		sum->bucket_bytes += usage->bucket_bytes;
		sum->staging_bytes += usage->staging_bytes;
		sum->target_bytes += usage->target_bytes;
		sum->allocation_bytes += usage->allocation_bytes;
		sum->peak_bytes += usage->peak_bytes;
		sum->peak_gathered_bytes += usage->peak_gathered_bytes;
	}
	return 0;
}

static struct contract_device look_at_devices(struct contract *c, int64_t only)
{
	struct devices devices = {.only = only};

	for (uint32_t i = 0; i < c->daemons; i++) {
		devices.first = i * (c->devices / c->daemons);
		list_one(c->observers[i], ZD__TABLE__DEVICES, add_devices, &devices);
	}
	return devices.sum;
}

struct contract_device contract_device(struct contract *c, uint32_t device)
{
	return look_at_devices(c, device);
}

void contract_count_from_here(struct contract *c)
{
	memset(before, 0, sizeof(before));
	for (uint32_t i = 0; i < c->devices; i++) {
		struct contract_device counted = contract_device(c, i);

		before[i].transfers = counted.transfers;
		before[i].joined = counted.joined;
		before[i].fallbacks = counted.fallbacks;
	}
}

struct contract_device contract_devices(struct contract *c)
{
	return look_at_devices(c, -1);
}

/* ---- Buffers ------------------------------------------------------------------------------------------- */

struct buffers {
	uint32_t rank;
	const char *unit;
	struct contract_buffer found;
};

static int find_buffer(const Zd__Reply *reply, void *arg)
{
	struct buffers *buffers = arg;
	struct contract_buffer *found = &buffers->found;

	for (size_t i = 0; i < reply->list->n_rows; i++) {
		const Zd__BufferRow *row = reply->list->rows[i]->buffer;

		if (row->rank != buffers->rank || strcmp(row->unit, buffers->unit) != 0 ||
		    strcmp(row->state, "QUARANTINED") == 0)
			continue;
		(void)snprintf(found->state, sizeof(found->state), "%s", row->state);
		(void)snprintf(found->waits_for, sizeof(found->waits_for), "%s", row->waits_for);
		found->padded_bytes = row->padded_bytes;
		found->version = row->version;
		found->persistent = row->persistent;
		found->prefetched = row->prefetched;
		found->holders = (uint32_t)row->n_holders;
		found->uses = 0;
		for (size_t j = 0; j < row->n_holders; j++)
			found->uses += row->holders[j]->uses;
	}
	return 0;
}

struct contract_buffer contract_buffer(struct contract *c, uint32_t rank, const char *unit)
{
	struct buffers buffers = {.rank = rank, .unit = unit, .found = {.state = "NOT_AVAILABLE"}};

	list(c, ZD__TABLE__BUFFERS, find_buffer, &buffers);
	return buffers.found;
}

/* ---- Waits --------------------------------------------------------------------------------------------- */

struct waits {
	const char *text;
	bool found;
};

static int find_wait(const Zd__Reply *reply, void *arg)
{
	struct waits *waits = arg;

	for (size_t i = 0; i < reply->list->n_rows; i++) {
		const Zd__SessionRow *row = reply->list->rows[i]->session;

		for (size_t j = 0; j < row->n_waits; j++)
			waits->found |= strstr(row->waits[j], waits->text) != NULL;
	}
	return 0;
}

bool contract_somebody_waits(struct contract *c, const char *text)
{
	struct waits waits = {.text = text};

	list(c, ZD__TABLE__SESSIONS, find_wait, &waits);
	return waits.found;
}
