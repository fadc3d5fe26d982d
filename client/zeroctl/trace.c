// SPDX-License-Identifier: Apache-2.0
/*
 * trace.c - lifecycle events as a timeline for Perfetto.
 *
 * An event is reported when something ends, with the time of its start. A slice is placed on the first track
 * of its kind whose last slice had ended by then. Slices of a track therefore neither overlap nor go back in
 * time. If all tracks of a kind are busy, the slice starts at the end of the first free one. A lease is a
 * slice. The first lease of a buffer that ends is also a flow from the gather that filled the buffer. The
 * gathers of the last transfers are stored by number. A lease whose gather is not among them has no flow.
 *
 * A busy device makes more copies than all other events: consecutive copies of one session to one device
 * without a gap are one slice.
 */
#include "trace.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "proto/limits.h"

#define MAX_PROCESSES  4096u
#define TRACKS         64u /* of one kind in one process */
#define GATHERS        16384u
#define MAX_OPEN_WAITS 4096u
#define MERGED_COPIES  256u
#define NO_PLACE       UINT32_MAX

enum process_kind { DEVICE, JOB, SESSION };
enum track_kind { INSTANTS, COPIES, GATHERED, WAITS, LEASES, REDUCTIONS, NTRACK_KINDS };

static const char *const track_names[NTRACK_KINDS] = {"events", "copies to device", "gathers",
                                                      "waits",  "leases",           "reductions"};

/* Copies of one session that have followed each other without a gap. */
struct copies {
	uint64_t begin_ns, end_ns, bytes, session;
	uint32_t count; /* 0: none */
};

struct process {
	uint64_t id;
	enum process_kind kind;
	bool has_job; /* its name has the job */
	/* the end of each track's last slice; NULL: no track of the kind yet */
	uint64_t *ends[NTRACK_KINDS];
	struct copies *copies; /* of a device, by destination: of TRACKS, not written yet */
};

/* The slice of a gather. */
struct gather {
	uint64_t transfer, session; /* transfer 0: none */
	uint64_t begin_ns, end_ns;
	uint32_t process, track;
	bool flowed; /* it has the flow to the first of its leases that ended */
};

struct open_wait {
	uint64_t begin_ns, session;
	char request[32], reason[32];
};

struct zd_ctl_trace {
	FILE *out;
	uint64_t begin_ns, count, flows, lost;
	bool any; /* something has been written before */
	uint32_t nprocesses, nwaits;
	struct process processes[MAX_PROCESSES];
	struct gather gathers[GATHERS];
	struct open_wait waits[MAX_OPEN_WAITS];
};

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void put_text(FILE *out, const char *text)
{
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fputc('\\', out);
		if ((unsigned char)*text < ' ')
			fprintf(out, "\\u%04x", (unsigned)(unsigned char)*text);
		else
			fputc(*text, out);
	}
}

/* The member `key`, with a comma in front. */
static void put_string(struct zd_ctl_trace *trace, const char *key, const char *text)
{
	fprintf(trace->out, ",\"%s\":\"", key);
	put_text(trace->out, text);
	fputc('"', trace->out);
}

/* Chrome's times are microseconds. Times before the trace are cut. */
static void put_time(struct zd_ctl_trace *trace, const char *key, uint64_t ns)
{
	fprintf(trace->out, ",\"%s\":%" PRIu64 ".%03u", key, ns / 1000, (unsigned)(ns % 1000));
}

static uint64_t since_begin(const struct zd_ctl_trace *trace, uint64_t ns)
{
	return ns > trace->begin_ns ? ns - trace->begin_ns : 0;
}

static void begin_record(struct zd_ctl_trace *trace, char phase, uint32_t process, uint32_t track)
{
	fprintf(trace->out, "%s{\"ph\":\"%c\",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32,
	        trace->any ? ",\n" : "\n", phase, process + 1, track);
	trace->any = true;
}

static void put_metadata(struct zd_ctl_trace *trace, uint32_t process, uint32_t track, const char *what,
                         const char *name)
{
	begin_record(trace, 'M', process, track);
	put_string(trace, "name", what);
	fputs(",\"args\":{\"name\":\"", trace->out);
	put_text(trace->out, name);
	fputs("\"}}", trace->out);
}

/* ---- Processes and tracks ------------------------------------------------------------------------------ */

/* A session has no job before it joins a group, and is named again then. */
static void name_process(struct zd_ctl_trace *trace, uint32_t process, const Zd__Event *event)
{
	const struct process *p = &trace->processes[process];
	char name[160];
	if (p->kind == DEVICE)
		(void)snprintf(name, sizeof(name), "device %" PRIu64, p->id);
	else if (p->kind == JOB)
		(void)snprintf(name, sizeof(name), "job %s (%llu)", event->job, ZD_ID_NUMBER(p->id));
	else if (event->job_id)
		(void)snprintf(name, sizeof(name), "session %llu: %s, rank %" PRIu32, ZD_ID_NUMBER(p->id),
		               event->job, event->rank);
	else
		(void)snprintf(name, sizeof(name), "session %llu%s%s", ZD_ID_NUMBER(p->id),
		               *event->name ? ": " : "", event->name);
	put_metadata(trace, process, 0, "process_name", name);
}

/* Finds the process from the end, because most events are of the last sessions. NO_PLACE: there are too
 * many. */
static uint32_t find_process(struct zd_ctl_trace *trace, enum process_kind kind, uint64_t id,
                             const Zd__Event *event)
{
	uint32_t i = trace->nprocesses;
	while (i > 0 && (trace->processes[i - 1].id != id || trace->processes[i - 1].kind != kind))
		i--;
	bool is_new = i == 0;
	if (is_new && trace->nprocesses == MAX_PROCESSES)
		return NO_PLACE;
	i = is_new ? trace->nprocesses++ : i - 1;
	struct process *process = &trace->processes[i];
	if (is_new)
		*process = (struct process){.id = id, .kind = kind};
	if (is_new || (!process->has_job && event->job_id && kind == SESSION))
		name_process(trace, i, event);
	process->has_job |= event->job_id != 0;
	return i;
}

/* Returns the number of track `index` of the kind, and names it at the first use. */
static uint32_t open_track(struct zd_ctl_trace *trace, uint32_t process, enum track_kind kind, uint32_t index)
{
	struct process *p = &trace->processes[process];
	const uint32_t track = 1 + (uint32_t)kind * TRACKS + index;
	char name[64];
	if (!p->ends[kind]) {
		p->ends[kind] = zd_calloc(TRACKS, sizeof(uint64_t));
		for (uint32_t i = 0; i < TRACKS; i++)
			p->ends[kind][i] = UINT64_MAX; /* not opened */
	}
	if (p->ends[kind][index] != UINT64_MAX)
		return track;
	p->ends[kind][index] = 0;
	if (kind == COPIES)
		(void)snprintf(name, sizeof(name), "%s %" PRIu32, track_names[kind], index);
	else if (index == 0)
		(void)snprintf(name, sizeof(name), "%s", track_names[kind]);
	else
		(void)snprintf(name, sizeof(name), "%s %" PRIu32, track_names[kind], index + 1);
	put_metadata(trace, process, track, "thread_name", name);
	begin_record(trace, 'M', process, track);
	fprintf(trace->out, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%" PRIu32 "}}", track);
	return track;
}

/* Chooses a track that is free at `begin_ns`: the first one, or the one that is free first. */
static uint32_t choose_track(const struct process *process, enum track_kind kind, uint64_t begin_ns)
{
	const uint64_t *ends = process->ends[kind];
	uint32_t best = 0;
	for (uint32_t i = 0; ends && i < TRACKS; i++) {
		if (ends[i] == UINT64_MAX || ends[i] <= begin_ns)
			return i;
		if (ends[i] < ends[best])
			best = i;
	}
	return best;
}

/* ---- Slices, instants, flows --------------------------------------------------------------------------- */

struct slice {
	uint32_t process, track;
	uint64_t begin_ns, end_ns; /* since the trace's begin */
};

/* Begins a slice, up to its arguments. `index` NO_PLACE: any track of the kind. */
static bool begin_slice(struct zd_ctl_trace *trace, uint32_t process, enum track_kind kind, uint32_t index,
                        uint64_t begin_ns, uint64_t end_ns, struct slice *slice)
{
	if (process == NO_PLACE)
		return false;
	begin_ns = since_begin(trace, begin_ns);
	end_ns = since_begin(trace, end_ns);
	if (index == NO_PLACE)
		index = choose_track(&trace->processes[process], kind, begin_ns);
	const uint32_t track = open_track(trace, process, kind, index);
	uint64_t *last = &trace->processes[process].ends[kind][index];
	begin_ns = begin_ns < *last ? *last : begin_ns;
	end_ns = end_ns < begin_ns ? begin_ns : end_ns;
	*last = end_ns;
	*slice = (struct slice){process, track, begin_ns, end_ns};
	begin_record(trace, 'X', process, track);
	put_time(trace, "ts", begin_ns);
	put_time(trace, "dur", end_ns - begin_ns);
	trace->count++;
	return true;
}

/* Ends the entry. Traces have many entries: an argument that the track or another entry has is left out. */
static void put_args(struct zd_ctl_trace *trace, const Zd__Event *event, enum process_kind kind)
{
	static const char first[] = ",\"args\":{";
	const char *before = first;
	if (event->bytes) {
		fprintf(trace->out, "%s\"bytes\":%" PRIu64, before, event->bytes);
		before = ",";
	}
	if (*event->reason && strcmp(event->reason, "ready") != 0) {
		fprintf(trace->out, "%s\"reason\":\"", before);
		put_text(trace->out, event->reason);
		fputc('"', trace->out);
		before = ",";
	}
	if (event->session && kind != SESSION) {
		fprintf(trace->out, "%s\"session\":%llu", before, ZD_ID_NUMBER(event->session));
		before = ",";
	}
	fputs(before == first ? "}" : "}}", trace->out);
}

static void put_flow(struct zd_ctl_trace *trace, char phase, uint64_t id, uint32_t process, uint32_t track,
                     uint64_t ns)
{
	begin_record(trace, phase, process, track);
	fprintf(trace->out, ",\"name\":\"lease\",\"cat\":\"lease\",\"id\":%" PRIu64 "%s", id,
	        phase == 'f' ? ",\"bp\":\"e\"" : "");
	put_time(trace, "ts", ns);
	fputc('}', trace->out);
	trace->count++;
}

/* The last nanosecond of a slice: an arrow at this time belongs to the slice. */
static uint64_t inside(uint64_t begin_ns, uint64_t end_ns)
{
	return end_ns > begin_ns ? end_ns - 1 : end_ns;
}

static void add_gather(struct zd_ctl_trace *trace, const Zd__Event *event)
{
	struct slice slice;
	if (!begin_slice(trace, find_process(trace, SESSION, event->session, event), GATHERED, NO_PLACE,
	                 event->begin_ns, event->time_ns, &slice))
		return;
	put_string(trace, "name", *event->name ? event->name : "gather");
	put_args(trace, event, SESSION);
	trace->gathers[event->number % GATHERS] = (struct gather){.transfer = event->number,
	                                                          .session = event->session,
	                                                          .begin_ns = slice.begin_ns,
	                                                          .end_ns = slice.end_ns,
	                                                          .process = slice.process,
	                                                          .track = slice.track};
}

static void add_lease(struct zd_ctl_trace *trace, const Zd__Event *event)
{
	struct gather *gather = &trace->gathers[event->number % GATHERS];
	struct slice slice;
	if (!begin_slice(trace, find_process(trace, SESSION, event->session, event), LEASES, NO_PLACE,
	                 event->begin_ns, event->time_ns, &slice))
		return;
	put_string(trace, "name", *event->name ? event->name : "lease");
	fputc('}', trace->out);
	const uint64_t from_ns = inside(gather->begin_ns, gather->end_ns);
	const uint64_t to_ns = inside(slice.begin_ns, slice.end_ns);
	if (!event->number || gather->transfer != event->number || gather->session != event->session ||
	    gather->flowed || from_ns > to_ns)
		return;
	gather->flowed = true;
	trace->flows++;
	put_flow(trace, 's', trace->flows, gather->process, gather->track, from_ns);
	put_flow(trace, 'f', trace->flows, slice.process, slice.track, to_ns);
}

static void write_copies(struct zd_ctl_trace *trace, uint32_t process, uint32_t to)
{
	struct copies *copies = &trace->processes[process].copies[to];
	struct slice slice;
	char bytes[ZD_BYTES_TEXT];
	if (copies->count == 0 ||
	    !begin_slice(trace, process, COPIES, to, copies->begin_ns, copies->end_ns, &slice))
		return;
	zd_bytes_text(copies->bytes, bytes);
	if (copies->count == 1)
		fprintf(trace->out, ",\"name\":\"%s\"}", bytes);
	else
		fprintf(trace->out, ",\"name\":\"%" PRIu32 " copies, %s\"}", copies->count, bytes);
	*copies = (struct copies){.count = 0};
}

/* An executor copies to each device in order. */
static void add_copy(struct zd_ctl_trace *trace, const Zd__Event *event)
{
	const uint32_t to = event->n_devices == 2 ? event->devices[1] : TRACKS;
	const uint32_t process = to < TRACKS ? find_process(trace, DEVICE, event->devices[0], event)
	                                     : NO_PLACE;
	if (process == NO_PLACE)
		return;
	struct process *p = &trace->processes[process];
	if (!p->copies)
		p->copies = zd_calloc(TRACKS, sizeof(*p->copies));
	struct copies *copies = &p->copies[to];
	if (copies->session != event->session || event->begin_ns > copies->end_ns ||
	    copies->count == MERGED_COPIES)
		write_copies(trace, process, to);
	if (copies->count == 0)
		copies->begin_ns = event->begin_ns;
	copies->session = event->session;
	copies->end_ns = event->time_ns;
	copies->bytes += event->bytes;
	copies->count++;
}

static void add_reduction(struct zd_ctl_trace *trace, const Zd__Event *event)
{
	struct slice slice;
	if (!begin_slice(trace, find_process(trace, JOB, event->job_id, event), REDUCTIONS, NO_PLACE,
	                 event->begin_ns, event->time_ns, &slice))
		return;
	put_string(trace, "name", *event->name ? event->name : "reduction");
	put_args(trace, event, JOB);
}

static void add_instant(struct zd_ctl_trace *trace, const Zd__Event *event)
{
	uint32_t process = event->session     ? find_process(trace, SESSION, event->session, event)
	                   : event->job_id    ? find_process(trace, JOB, event->job_id, event)
	                   : event->n_devices ? find_process(trace, DEVICE, event->devices[0], event)
	                                      : NO_PLACE;
	if (process == NO_PLACE)
		return;
	const uint32_t track = open_track(trace, process, INSTANTS, 0);
	begin_record(trace, 'i', process, track);
	put_time(trace, "ts", since_begin(trace, event->time_ns));
	put_string(trace, "s", "t");
	fputs(",\"name\":\"", trace->out);
	put_text(trace->out, event->kind);
	if (*event->request)
		fprintf(trace->out, " %s", event->request);
	fputc('"', trace->out);
	put_args(trace, event, trace->processes[process].kind);
	trace->count++;
}

/* ---- Waits --------------------------------------------------------------------------------------------- */

static void add_wait(struct zd_ctl_trace *trace, const Zd__Event *event, uint64_t begin_ns, bool open)
{
	struct slice slice;
	if (!begin_slice(trace, find_process(trace, SESSION, event->session, event), WAITS, NO_PLACE,
	                 begin_ns, event->time_ns, &slice))
		return;
	fputs(",\"name\":\"", trace->out);
	put_text(trace->out, event->request);
	fputs(": ", trace->out);
	put_text(trace->out, event->reason);
	fputs(open ? " (not over)\"}" : "\"}", trace->out);
}

static void begin_wait(struct zd_ctl_trace *trace, const Zd__Event *event)
{
	struct open_wait *wait = &trace->waits[trace->nwaits];
	if (trace->nwaits == MAX_OPEN_WAITS)
		return;
	*wait = (struct open_wait){.begin_ns = event->time_ns, .session = event->session};
	(void)snprintf(wait->request, sizeof(wait->request), "%s", event->request);
	(void)snprintf(wait->reason, sizeof(wait->reason), "%s", event->reason);
	trace->nwaits++;
}

/* Several waits with the same start are alike: any of them is used. */
static void end_wait(struct zd_ctl_trace *trace, const Zd__Event *event)
{
	for (uint32_t i = trace->nwaits; i-- > 0;) {
		const struct open_wait *wait = &trace->waits[i];
		if (wait->begin_ns != event->begin_ns || wait->session != event->session ||
		    strcmp(wait->request, event->request) != 0 || strcmp(wait->reason, event->reason) != 0)
			continue;
		trace->waits[i] = trace->waits[--trace->nwaits];
		break;
	}
	add_wait(trace, event, event->begin_ns, false);
}

static void end_open_waits(struct zd_ctl_trace *trace, uint64_t end_ns)
{
	for (uint32_t i = 0; i < trace->nwaits; i++) {
		const struct open_wait *wait = &trace->waits[i];
		Zd__Event event = ZD__EVENT__INIT;
		event.session = wait->session;
		event.time_ns = end_ns;
		event.request = (char *)wait->request;
		event.reason = (char *)wait->reason;
		add_wait(trace, &event, wait->begin_ns, true);
	}
}

/* ---- Traces -------------------------------------------------------------------------------------------- */

/* Blocks are in no timeline. */
static const struct {
	const char *kind;
	void (*add)(struct zd_ctl_trace *trace, const Zd__Event *event);
} adders[] = {
        {"gather", add_gather},     {"copy", add_copy},     {"lease", add_lease},
        {"wait_begin", begin_wait}, {"wait_end", end_wait}, {"reduction", add_reduction},
        {"block_give", NULL},       {"block_free", NULL},   {"segment_map", NULL},
};

void zd_ctl_trace_add(struct zd_ctl_trace *trace, const Zd__Event *event)
{
	for (size_t i = 0; i < ZD_ARRAY_LEN(adders); i++) {
		if (strcmp(adders[i].kind, event->kind) != 0)
			continue;
		if (adders[i].add)
			adders[i].add(trace, event);
		return;
	}
	add_instant(trace, event);
}

struct zd_ctl_trace *zd_ctl_trace_new(FILE *out, uint64_t begin_ns, int64_t real_ns)
{
	struct zd_ctl_trace *trace = zd_calloc(1, sizeof(*trace));
	trace->out = out;
	trace->begin_ns = begin_ns;
	/* By this name tools read the begin of torch's traces (Kineto). */
	fprintf(out, "{\"displayTimeUnit\":\"ns\",\"baseTimeNanoseconds\":%" PRId64 ",\"traceEvents\":[",
	        real_ns);
	return trace;
}

void zd_ctl_trace_lose(struct zd_ctl_trace *trace, uint64_t events)
{
	trace->lost += events;
}

uint64_t zd_ctl_trace_count(const struct zd_ctl_trace *trace)
{
	return trace->count;
}

void zd_ctl_trace_end(struct zd_ctl_trace *trace, uint64_t end_ns)
{
	for (uint32_t i = 0; i < trace->nprocesses; i++) {
		for (uint32_t to = 0; to < TRACKS && trace->processes[i].copies; to++)
			write_copies(trace, i, to);
	}
	end_open_waits(trace, end_ns);
	fprintf(trace->out, "\n],\"otherData\":{\"program\":\"zeroctl %s\",\"lost_events\":%" PRIu64 "}}\n",
	        ZEROD_VERSION_TEXT, trace->lost);
	for (uint32_t i = 0; i < trace->nprocesses; i++) {
		for (unsigned kind = 0; kind < NTRACK_KINDS; kind++)
			free(trace->processes[i].ends[kind]);
		free(trace->processes[i].copies);
	}
	free(trace);
}
