/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle_metrics.c - metrics: what the daemon counts, as families that a client prints without knowing them.
 *
 * The engine's counters are the table of core/counters.def. The other families are below, a line each: their
 * figures are those of the engine's totals and of its table of devices.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "server/answer.h"
#include "server/api.h"
#include "server/handlers.h"
#include "server/loop.h"
#include "server/session.h"

#define NS_PER_S   1000000000u
#define MAX_FAMILY 64u /* families; add_family() asserts it */

struct device {
	Zd__DeviceRow row; /* without its texts */
	Zd__Usage usage;
	uint64_t copied_bytes, copying_ns;
};

/* The figures that all families are made from. */
struct figures {
	const struct zd_api *api;
	struct zd_arena *arena;
	struct zd_engine_totals totals;
	struct zd_metrics_view view;
	uint32_t ndevices;
	struct device devices[ZD_MAX_DEVICES];
	size_t nfamilies;
	Zd__Metric *families[MAX_FAMILY];
	size_t room; /* of the last family, for samples */
};

static const char *const request_names[ZD_NREQUESTS] = {
#define REQUEST(KIND, name) [ZD_REQ_##KIND] = #name,
#include "core/requests.def"
};

/* ---- Families and samples ------------------------------------------------------------------------------ */

/* Starts a family with room for `room` samples, whose labels have these names; NULL, NULL: none. */
static Zd__Metric *add_family(struct figures *f, Zd__MetricType type, const char *name, const char *unit,
                              const char *help, const char *label, const char *label2, size_t room)
{
	Zd__Metric *family = zd_arena_alloc(f->arena, sizeof(*family));

	zd_assert(f->nfamilies < MAX_FAMILY);
	zd__metric__init(family);
	family->type = type;
	family->name = (char *)name;
	family->unit = (char *)unit;
	family->help = (char *)help;
	family->parts = strcmp(unit, "seconds") == 0 ? NS_PER_S : 1;
	family->labels = zd_arena_alloc(f->arena, 2 * sizeof(char *));
	if (label)
		family->labels[family->n_labels++] = (char *)label;
	if (label2)
		family->labels[family->n_labels++] = (char *)label2;
	family->samples = zd_arena_alloc(f->arena, (room + 1) * sizeof(Zd__Sample *));
	f->room = room;
	f->families[f->nfamilies++] = family;
	return family;
}

/* Adds a sample to the last family, with values for as many labels as that has. */
static Zd__Sample *add_sample(struct figures *f, uint64_t value, const char *label, const char *label2)
{
	Zd__Metric *family = f->families[f->nfamilies - 1];
	Zd__Sample *sample = zd_arena_alloc(f->arena, sizeof(*sample));

	zd_assert(family->n_samples < f->room);
	zd__sample__init(sample);
	sample->value = value;
	sample->labels = zd_arena_alloc(f->arena, 2 * sizeof(char *));
	sample->labels[0] = (char *)label;
	sample->labels[1] = (char *)label2;
	sample->n_labels = family->n_labels;
	family->samples[family->n_samples++] = sample;
	return sample;
}

static void add_histogram(struct figures *f, const struct zd_histogram *histogram, const char *label)
{
	Zd__Sample *sample = add_sample(f, histogram->sum_ns, label, NULL);

	sample->counts = (uint64_t *)histogram->counts;
	sample->n_counts = ZD_HISTOGRAM_BOUNDS + 1;
}

static void set_bounds(struct figures *f, Zd__Metric *family)
{
	family->n_bounds = ZD_HISTOGRAM_BOUNDS;
	family->bounds = zd_arena_alloc(f->arena, ZD_HISTOGRAM_BOUNDS * sizeof(uint64_t));
	for (uint32_t i = 0; i < ZD_HISTOGRAM_BOUNDS; i++)
		family->bounds[i] = zd_histogram_bound_ns(i);
}

static void add_gauge(struct figures *f, const char *name, const char *unit, uint64_t value, const char *help)
{
	(void)add_family(f, ZD__METRIC_TYPE__GAUGE, name, unit, help, NULL, NULL, 1);
	(void)add_sample(f, value, NULL, NULL);
}

/* ---- The engine's counters ----------------------------------------------------------------------------- */

/* A row of counters.def: a family, or a counter of the family before it. */
static const struct {
	const char *name, *unit, *label, *help; /* name NULL: a counter, with this value of the label */
} counter_rows[] = {
#define FAMILY(name, unit, label, help) {name, unit, label, help},
#define COUNTER(NAME, value)            {NULL, NULL, value, NULL},
#include "core/counters.def"
};

static void add_counters(struct figures *f)
{
	const uint64_t *counter = f->view.metrics->counters;

	for (size_t i = 0; i < ZD_ARRAY_LEN(counter_rows); i++) {
		const char *label = counter_rows[i].label;

		if (counter_rows[i].name)
			(void)add_family(f, ZD__METRIC_TYPE__COUNTER, counter_rows[i].name,
			                 counter_rows[i].unit, counter_rows[i].help, *label ? label : NULL,
			                 NULL, ZD_NCOUNTERS);
		else
			(void)add_sample(f, *counter++, label, NULL);
	}
}

static void add_requests(struct figures *f)
{
	(void)add_family(f, ZD__METRIC_TYPE__COUNTER, "requests", "", "Requests by kind", "kind", NULL,
	                 ZD_NREQUESTS);
	for (uint32_t i = 0; i < ZD_NREQUESTS; i++)
		(void)add_sample(f, f->view.metrics->requests[i], request_names[i], NULL);
	(void)add_family(f, ZD__METRIC_TYPE__COUNTER, "request_errors", "", "Requests that failed, by status",
	                 "status", NULL, ZD_NERRORS);
	for (uint32_t i = 1; i < ZD_NERRORS; i++) {
		if (strcmp(zerod_status_name(-(int)i), "UNKNOWN") != 0)
			(void)add_sample(f, f->view.metrics->errors[i], zerod_status_name(-(int)i), NULL);
	}
	(void)add_family(f, ZD__METRIC_TYPE__COUNTER, "rejected_requests", "",
	                 "Requests that are not counted by kind, because they were unknown or wrong", NULL,
	                 NULL, 1);
	(void)add_sample(f, f->api->rejected, NULL, NULL);
}

static void add_durations(struct figures *f)
{
	set_bounds(f, add_family(f, ZD__METRIC_TYPE__HISTOGRAM, "gather_duration", "seconds",
	                         "From a gather to the end of the transfer that it started", NULL, NULL, 1));
	add_histogram(f, &f->view.metrics->gathers, NULL);
	set_bounds(f, add_family(f, ZD__METRIC_TYPE__HISTOGRAM, "request_wait", "seconds",
	                         "How long requests waited, by reason", "reason", NULL, f->view.nwaits));
	for (uint32_t i = 0; i < f->view.nwaits; i++) {
		if (f->view.wait_names[i])
			add_histogram(f, &f->view.waits[i], f->view.wait_names[i]);
	}
}

/* ---- Devices ------------------------------------------------------------------------------------------- */

#define DEVICE_FIGURE(get, expression)                                                                       \
	static uint64_t get(const struct device *device)                                                     \
	{                                                                                                    \
		return expression;                                                                           \
	}
DEVICE_FIGURE(get_arena, device->row.arena_bytes)
DEVICE_FIGURE(get_budget, device->row.gather_budget_bytes)
DEVICE_FIGURE(get_segments, device->row.segment_bytes)
DEVICE_FIGURE(get_peak, device->usage.peak_bytes)
DEVICE_FIGURE(get_waiting, device->row.waiting)
DEVICE_FIGURE(get_copied, device->copied_bytes)
DEVICE_FIGURE(get_copying, device->copying_ns)
DEVICE_FIGURE(get_shards, device->usage.shard_bytes)
DEVICE_FIGURE(get_gathered, device->usage.gathered_bytes)
DEVICE_FIGURE(get_buckets, device->usage.bucket_bytes)
DEVICE_FIGURE(get_staging, device->usage.staging_bytes)
DEVICE_FIGURE(get_targets, device->usage.target_bytes)
DEVICE_FIGURE(get_allocations, device->usage.allocation_bytes)
DEVICE_FIGURE(get_quarantine, device->row.quarantine_bytes)

static const struct {
	const char *name, *unit;
	Zd__MetricType type;
	uint64_t (*get)(const struct device *device);
	const char *help;
} device_families[] = {
        {"arena", "bytes", ZD__METRIC_TYPE__GAUGE, get_arena, "Limit of the daemon's memory on the device"},
        {"segments", "bytes", ZD__METRIC_TYPE__GAUGE, get_segments, "Memory of the daemon on the device"},
        {"gather_budget", "bytes", ZD__METRIC_TYPE__GAUGE, get_budget, "Limit of gathered buffers"},
        {"memory_peak", "bytes", ZD__METRIC_TYPE__GAUGE, get_peak, "Highest sum of memory by purpose"},
        {"waiting_requests", "", ZD__METRIC_TYPE__GAUGE, get_waiting, "Requests that wait now"},
        {"copied", "bytes", ZD__METRIC_TYPE__COUNTER, get_copied, "Bytes of copies by the device's executor"},
        {"copying", "seconds", ZD__METRIC_TYPE__COUNTER, get_copying,
         "Time in which the device's executor had a copy or fill in progress"},
};

static const struct {
	const char *name;
	uint64_t (*get)(const struct device *device);
} purposes[] = {
        {"shards", get_shards},         {"gathered", get_gathered}, {"buckets", get_buckets},
        {"staging", get_staging},       {"targets", get_targets},   {"allocations", get_allocations},
        {"quarantine", get_quarantine},
};

static bool take_device(uint64_t id, const Zd__Row *row, void *arg)
{
	struct figures *f = arg;
	struct device *device = &f->devices[f->ndevices++];

	(void)id;
	device->row = *row->device;
	device->usage = *row->device->usage;
	zd_engine_copies(f->api->bridge.engine, row->device->index, &device->copied_bytes,
	                 &device->copying_ns);
	return true;
}

static void add_devices(struct figures *f)
{
	const Zd__List query = {.table = ZD__TABLE__DEVICES};
	char *indices[ZD_MAX_DEVICES] = {NULL}, text[16], why[ZD_FAILURE_TEXT];

	(void)zd_engine_list(f->api->bridge.engine, 0, &query, 0, take_device, f);
	for (uint32_t i = 0; i < f->ndevices; i++) {
		(void)snprintf(text, sizeof(text), "%" PRIu32, i);
		indices[i] = zd_answer_text(f->arena, text);
	}
	for (size_t i = 0; i < ZD_ARRAY_LEN(device_families); i++) {
		(void)add_family(f, device_families[i].type, device_families[i].name, device_families[i].unit,
		                 device_families[i].help, "device", NULL, f->ndevices);
		for (uint32_t d = 0; d < f->ndevices; d++)
			(void)add_sample(f, device_families[i].get(&f->devices[d]), indices[d], NULL);
	}
	(void)add_family(f, ZD__METRIC_TYPE__GAUGE, "memory", "bytes",
	                 "Memory in use: shards with their shadows, gathered buffers, gradients in buckets, "
	                 "staging and targets, allocations, and quarantine: freed memory that work still "
	                 "uses",
	                 "device", "purpose", f->ndevices * ZD_ARRAY_LEN(purposes));
	for (uint32_t d = 0; d < f->ndevices; d++) {
		for (size_t i = 0; i < ZD_ARRAY_LEN(purposes); i++)
			(void)add_sample(f, purposes[i].get(&f->devices[d]), indices[d], purposes[i].name);
	}
	(void)add_family(f, ZD__METRIC_TYPE__GAUGE, "device_failed", "", "Whether the device has failed",
	                 "device", NULL, f->ndevices);
	for (uint32_t d = 0; d < f->ndevices; d++)
		(void)add_sample(f, zd_bridge_device_failure(&f->api->bridge, d, why), indices[d], NULL);
}

/* ---- The daemon ---------------------------------------------------------------------------------------- */

static void add_daemon(struct figures *f)
{
	const struct zd_engine_totals *totals = &f->totals;

	(void)add_family(f, ZD__METRIC_TYPE__INFO, "build", "", "The daemon", "version", "backend", 1);
	(void)add_sample(f, 1, ZEROD_VERSION_TEXT, f->api->bridge.ops->name);
	add_gauge(f, "uptime", "seconds", zd_loop_now_ns() - f->api->started_ns, "Since the daemon's start");
	add_gauge(f, "draining", "", f->api->draining, "Whether the daemon drains");
	add_gauge(f, "sessions", "", totals->sessions, "Open sessions, including the requester's");
	add_gauge(f, "jobs", "", totals->jobs, "Jobs that have anything");
	add_gauge(f, "durable_jobs", "", totals->durable_jobs, "Durable ones of these");
	add_gauge(f, "groups", "", totals->groups, "Groups");
	add_gauge(f, "resident_memory", "bytes", zd_resident_bytes(f->api),
	          "The daemon's own memory, without segments");
	add_gauge(f, "metadata", "bytes", totals->metadata_bytes,
	          "The part of it that is charged to users, for sessions, units, requests and so on");
}

int zd_answer_metrics(struct zd_api_session *session, const Zd__Request *request, struct zd_err *err)
{
	struct zd_api *api = session->api;
	struct figures *f = zd_arena_alloc(&api->replies, sizeof(*f));
	Zd__MetricsReply metrics = ZD__METRICS_REPLY__INIT;
	Zd__Reply reply = ZD__REPLY__INIT;

	(void)err;
	f->api = api;
	f->arena = &api->replies;
	zd_engine_totals(api->bridge.engine, &f->totals);
	zd_engine_metrics(api->bridge.engine, &f->view);
	add_daemon(f);
	add_counters(f);
	add_requests(f);
	add_durations(f);
	add_devices(f);
	metrics.metrics = f->families;
	metrics.n_metrics = f->nfamilies;
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_METRICS;
	reply.metrics = &metrics;
	zd_conn_send(session->conn, &reply, NULL, 0);
	zd_arena_reset(&api->replies);
	return 0;
}
