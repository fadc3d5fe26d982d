/* SPDX-License-Identifier: Apache-2.0 */
/* requests.c - requests that make sense at some time: small ids, few names, sizes from tiny to absurd. */
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "proto/limits.h"
#include "server/id_stamp.h"
#include "tests/fuzz/script.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static uint32_t random_state;

static uint32_t pick(uint32_t among)
{
	random_state = random_state * 1664525u + 1013904223u;
	return (random_state >> 8) % among;
}

static uint64_t pick_id(void)
{
	return 1 + pick(3);
}

static uint64_t pick_size(void)
{
	static const uint64_t sizes[] = {1,       7,       64,         1000,       4096,       65536,
	                                 1 << 20, 3 << 20, 1ull << 40, 1ull << 50, 1ull << 62, UINT64_MAX};

	return sizes[pick(pick(4) ? 6 : COUNT(sizes))];
}

static char *pick_name(void)
{
	static const char *const names[] = {
	        "a",     "b",       "c",
	        "world", "default", "",
	        "a\nb",  "\xff",    "a name that is rather long for a name, but not too long"};

	return (char *)names[pick(pick(8) ? 3 : COUNT(names))];
}

static uint32_t pick_dtype(void)
{
	return pick(4) ? 1 + pick(3) : pick(14);
}

/* ---- Parts --------------------------------------------------------------------------------------------- */

static size_t pick_fences(Zd__Fence ***out)
{
	static Zd__Fence fences[3];
	static Zd__Fence *pointers[3];
	size_t count = pick(COUNT(fences) + 1);

	for (size_t i = 0; i < count; i++) {
		fences[i] = (Zd__Fence)ZD__FENCE__INIT;
		fences[i].timeline = pick(4);
		fences[i].value = 1 + pick(4);
		pointers[i] = &fences[i];
	}
	*out = pointers;
	return count;
}

static size_t pick_units(uint64_t **out)
{
	static uint64_t units[3];

	for (size_t i = 0; i < COUNT(units); i++)
		units[i] = i + 1;
	units[0] = pick_id();
	*out = units;
	return pick(4) ? 1 : pick(COUNT(units) + 1);
}

static size_t pick_segments(uint32_t **out)
{
	static uint32_t segments[3];

	for (size_t i = 0; i < COUNT(segments); i++)
		segments[i] = pick(8);
	*out = segments;
	return pick(COUNT(segments) + 1);
}

static size_t pick_views(Zd__View ***out)
{
	static Zd__View views[2];
	static Zd__View *pointers[2];
	static uint64_t shape[3];
	size_t count = pick(COUNT(views) + 1);

	for (size_t i = 0; i < COUNT(shape); i++)
		shape[i] = pick(6) ? pick(9) : pick_size();
	for (size_t i = 0; i < count; i++) {
		views[i] = (Zd__View)ZD__VIEW__INIT;
		views[i].name = pick_name();
		views[i].offset_numel = pick(3) ? 0 : pick_size();
		views[i].n_shape = pick(COUNT(shape) + 1);
		views[i].shape = shape;
		pointers[i] = &views[i];
	}
	*out = pointers;
	return count;
}

static size_t pick_features(char ***out)
{
	static char *features[] = {(char *)ZD_FEATURE_WORK, (char *)ZD_FEATURE_WORK_AHEAD, (char *)"other"};

	*out = features;
	return pick(COUNT(features) + 1);
}

static size_t pick_values(double **out)
{
	static double values[20] = {1, -1, 0.5};

	*out = values;
	return pick(4) ? 1 + pick(3) : pick(COUNT(values) + 1);
}

const struct zd_id_key fuzz_id_key = {.shared = true};

void fuzz_stamp(const char *job, const char *group, uint32_t nids, uint8_t *ids)
{
	const struct zd_id_facts facts = {.uid = geteuid(), .job = job, .group = group};

	zd_assert(zd_id_stamp_write(&fuzz_id_key, &facts, ids + ZD_ID_STAMP_BYTES, nids, ids, NULL) == 0);
}

/* Of two ranks; sometimes another group's, made up, or cut off. */
static void pick_ids(const Zd__GroupJoin *join, ProtobufCBinaryData *ids)
{
	static uint8_t bytes[ZD_ID_STAMP_BYTES + 2 * ZD_UNIQUE_ID_BYTES];
	bool other = pick(8) == 0 || strlen(join->job) > ZD_MAX_NAME_BYTES ||
	             strlen(join->group) > ZD_MAX_NAME_BYTES;

	memset(bytes, 1 + (int)pick(2), sizeof(bytes));
	if (pick(8))
		fuzz_stamp(other ? "other" : join->job, other ? "other" : join->group, 2, bytes);
	ids->data = bytes;
	ids->len = sizeof(bytes) - (pick(4) ? 0 : pick(sizeof(bytes)));
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* Lives until the next request is made. */
static union fuzz_body body;

#define BASE(field) .base = PROTOBUF_C_MESSAGE_INIT(&zd__##field##__descriptor)
#define FILL(field, ...)                                                                                     \
	body.field = (__typeof__(body.field))                                                                \
	{                                                                                                    \
		BASE(field), __VA_ARGS__                                                                     \
	}

static void fill_session(Zd__Request__BodyCase kind)
{
	switch (kind) {
	case ZD__REQUEST__BODY_HELLO:
		FILL(hello, .version_min = pick(2), .version_max = 1 + pick(2), .name = pick_name());
		body.hello.n_features = pick_features(&body.hello.features);
		break;
	case ZD__REQUEST__BODY_GROUP_JOIN:
		FILL(group_join, .job = pick_name(), .group = pick_name(), .world_size = 1 + pick(3),
		     .rank = pick(3), .device = pick(2), .durable = pick(8) == 0,
		     .local_world_size = pick(4) ? 0 : pick(3), .collectives = pick(8) ? 0 : pick(3));
		if (pick(4) == 0)
			pick_ids(&body.group_join, &body.group_join.unique_ids);
		break;
	case ZD__REQUEST__BODY_UNIQUE_IDS:
		FILL(unique_ids, .count = pick(4) ? 1 + pick(4) : pick(40), .job = pick_name(),
		     .group = pick_name());
		break;
	case ZD__REQUEST__BODY_ALLOC:
		FILL(alloc, .job = pick_name(), .name = pick_name(), .device = pick(2), .bytes = pick_size(),
		     .durable = pick(2), .alignment = 1ull << pick(24));
		break;
	case ZD__REQUEST__BODY_FREE:
		FILL(free, .allocation = pick_id());
		body.free.n_fences = pick_fences(&body.free.fences);
		break;
	case ZD__REQUEST__BODY_LIST:
		FILL(list, .table = (Zd__Table)pick(10), .cursor = pick(4),
		     .job = pick(3) ? NULL : pick_name());
		break;
	case ZD__REQUEST__BODY_KILL_SESSION:
		FILL(kill_session, .session = 1 + pick(40));
		break;
	case ZD__REQUEST__BODY_END_JOB:
		FILL(end_job, .job = 1 + pick(40));
		break;
	case ZD__REQUEST__BODY_KILL_JOB:
		FILL(kill_job, .job = 1 + pick(40));
		break;
	case ZD__REQUEST__BODY_DRAIN:
		FILL(drain, .undrain = pick(4) > 0);
		break;
	case ZD__REQUEST__BODY_SEGMENTS_UNMAPPED:
		FILL(segments_unmapped, .n_segments = 0);
		body.segments_unmapped.n_segments = pick_segments(&body.segments_unmapped.segments);
		break;
	case ZD__REQUEST__BODY_TRIM:
		FILL(trim, .device = pick(3), .keep_bytes = pick(2) ? 0 : pick_size());
		break;
	case ZD__REQUEST__BODY_METRICS:
		zd__metrics__init(&body.metrics);
		break;
	case ZD__REQUEST__BODY_EVENTS:
		FILL(events, .after = pick(4) ? pick(100) : pick_size(), .job = pick(2) ? "job" : "",
		     .copies = pick(2));
		break;
	case ZD__REQUEST__BODY_CANCEL:
		FILL(cancel, .request = pick(40));
		break;
	case ZD__REQUEST__BODY_SESSION_RESET:
	case ZD__REQUEST__BODY_GOODBYE:
		zd__session_reset__init(&body.session_reset);
		break;
	default:
		zd__daemon_status__init(&body.daemon_status);
		break;
	}
}

static void fill_group(Zd__Request__BodyCase kind)
{
	switch (kind) {
	case ZD__REQUEST__BODY_GROUP_LEAVE:
		FILL(group_leave, .group = pick_id());
		break;
	case ZD__REQUEST__BODY_GROUP_BARRIER:
		FILL(group_barrier, .group = pick_id());
		break;
	case ZD__REQUEST__BODY_COMMIT:
		FILL(commit, .group = pick_id(), .step = pick(4));
		break;
	case ZD__REQUEST__BODY_BACKWARD_BEGIN:
		FILL(backward_begin, .group = pick_id(), .stage = pick(4), .boundary = pick(2),
		     .target_dtype = pick_dtype());
		break;
	case ZD__REQUEST__BODY_BUCKET_CREATE:
		FILL(bucket_create, .group = pick_id(), .dtype = pick_dtype(), .slot_bytes = pick_size(),
		     .nslots = pick(4));
		break;
	case ZD__REQUEST__BODY_BACKWARD_END:
		FILL(backward_end, .group = pick_id(), .skip_rest = pick(2));
		break;
	case ZD__REQUEST__BODY_BACKWARD_ABANDON:
		FILL(backward_abandon, .group = pick_id());
		body.backward_abandon.n_fences = pick_fences(&body.backward_abandon.fences);
		break;
	case ZD__REQUEST__BODY_GROUP_AGREE:
		FILL(group_agree, .group = pick_id(), .op = pick(4));
		body.group_agree.n_values = pick_values(&body.group_agree.values);
		break;
	case ZD__REQUEST__BODY_COMMIT_WAIT:
		FILL(commit_wait, .job = pick_name(), .group = pick_name(), .after = pick(3), .pin = pick(2),
		     .pin_ms = pick(3));
		break;
	case ZD__REQUEST__BODY_UNIT_READ:
		FILL(unit_read, .group = pick_id(), .unit = pick_name(), .step = pick(3),
		     .offset = pick_size(), .bytes = pick_size(), .allocation = pick_id(),
		     .allocation_offset = pick_size());
		if (pick(2)) {
			body.unit_read.map_bytes = body.unit_read.bytes;
			body.unit_read.bytes = 0;
			body.unit_read.device = pick(3);
			body.unit_read.mapped = pick(2) ? pick_size() : 0;
		}
		break;
	case ZD__REQUEST__BODY_STEP_BEGIN:
		FILL(step_begin, .group = pick_id(), .ahead = pick(2));
		break;
	case ZD__REQUEST__BODY_STEP_GET:
		FILL(step_get, .group = pick_id());
		break;
	case ZD__REQUEST__BODY_STEP_END:
		FILL(step_end, .group = pick_id());
		body.step_end.n_fences = pick_fences(&body.step_end.fences);
		break;
	default:
		FILL(abort_group, .group = pick_id());
		break;
	}
}

static void fill_unit(Zd__Request__BodyCase kind)
{
	switch (kind) {
	case ZD__REQUEST__BODY_UNIT_REGISTER:
		FILL(unit_register, .group = pick_id(), .name = pick_name(), .dtype = pick_dtype(),
		     .numel = pick_size(), .slot = pick(3), .persistent = pick(4) == 0,
		     .frozen = pick(6) == 0, .unsaved = pick(2));
		body.unit_register.n_views = pick_views(&body.unit_register.views);
		break;
	case ZD__REQUEST__BODY_UNITS_RESUME:
		FILL(units_resume, .group = pick_id());
		body.units_resume.n_units = pick_units(&body.units_resume.units);
		body.units_resume.n_descriptions = body.units_resume.n_units;
		body.units_resume.descriptions = body.units_resume.units;
		break;
	case ZD__REQUEST__BODY_UNIT_UNREGISTER:
		FILL(unit_unregister, .unit = pick_id());
		break;
	case ZD__REQUEST__BODY_UPDATE_BEGIN:
		FILL(update_begin, .n_units = 0, .ahead = pick(2));
		body.update_begin.n_units = pick_units(&body.update_begin.units);
		break;
	case ZD__REQUEST__BODY_PUBLISH:
		FILL(publish, .force = pick(2));
		body.publish.n_units = pick_units(&body.publish.units);
		body.publish.n_fences = pick_fences(&body.publish.fences);
		break;
	case ZD__REQUEST__BODY_SET_PERSISTENT:
		FILL(set_persistent, .unit = pick_id(), .persistent = pick(2));
		break;
	case ZD__REQUEST__BODY_SET_SLOT:
		FILL(set_slot, .unit = pick_id(), .slot = pick(3));
		break;
	case ZD__REQUEST__BODY_SET_FROZEN:
		FILL(set_frozen, .unit = pick_id(), .frozen = pick(2), .target = pick(4));
		break;
	case ZD__REQUEST__BODY_UNIT_LOAD:
		FILL(unit_load, .unit = pick_id(), .allocation = pick(2) ? 0 : pick_id());
		body.unit_load.n_fences = pick_fences(&body.unit_load.fences);
		break;
	case ZD__REQUEST__BODY_UNIT_PLACE:
		FILL(unit_place, .unit = pick_id(), .on_host = pick(2));
		break;
	case ZD__REQUEST__BODY_GATHER:
		FILL(gather, .unit = pick_id(), .tag = pick_name(), .uses = pick(3), .version = pick(3),
		     .prefetch = pick(3) == 0, .no_slot = pick(2));
		break;
	case ZD__REQUEST__BODY_RELEASE:
		FILL(release, .unit = pick_id(), .tag = pick_name());
		body.release.n_fences = pick_fences(&body.release.fences);
		break;
	default:
		FILL(reduce_skip, .unit = pick_id());
		break;
	}
}

static void fill_scope(Zd__Request__BodyCase kind)
{
	switch (kind) {
	case ZD__REQUEST__BODY_FORWARD_BEGIN:
		FILL(forward_begin, .group = pick_id(), .parent = pick(3) ? 0 : pick_id());
		body.forward_begin.n_fences = pick_fences(&body.forward_begin.fences);
		break;
	case ZD__REQUEST__BODY_FORWARD_END:
		FILL(forward_end, .scope = pick_id(), .grad = pick(2));
		body.forward_end.n_fences = pick_fences(&body.forward_end.fences);
		break;
	case ZD__REQUEST__BODY_CONTEXT_BEGIN:
		FILL(context_begin, .n_units = 0);
		body.context_begin.n_units = pick_units(&body.context_begin.units);
		break;
	default:
		FILL(scope_end, .scope = pick_id());
		body.scope_end.n_fences = pick_fences(&body.scope_end.fences);
		break;
	}
}

static void fill_bucket(Zd__Request__BodyCase kind)
{
	switch (kind) {
	case ZD__REQUEST__BODY_BUCKET_DESTROY:
		FILL(bucket_destroy, .bucket = pick_id());
		break;
	case ZD__REQUEST__BODY_REDUCE_WAIT:
		FILL(reduce_wait, .unit = pick_id(), .ahead = pick(2));
		break;
	case ZD__REQUEST__BODY_TARGET_RETURN:
		FILL(target_return, .n_units = 0);
		body.target_return.n_units = pick_units(&body.target_return.units);
		body.target_return.n_fences = pick_fences(&body.target_return.fences);
		break;
	case ZD__REQUEST__BODY_BUCKET_RESERVE:
		FILL(bucket_reserve, .bucket = pick_id(), .unit = pick_id());
		break;
	default:
		FILL(bucket_submit, .bucket = pick_id(), .entry = pick_id(), .op = pick(3),
		     .prescale = (float)pick(3), .overwrite = pick(2));
		body.bucket_submit.n_fences = pick_fences(&body.bucket_submit.fences);
		break;
	}
}

static const struct {
	Zd__Request__BodyCase kind;
	void (*fill)(Zd__Request__BodyCase kind);
} kinds[] = {
        {ZD__REQUEST__BODY_HELLO, fill_session},
        {ZD__REQUEST__BODY_SESSION_RESET, fill_session},
        {ZD__REQUEST__BODY_GROUP_JOIN, fill_session},
        {ZD__REQUEST__BODY_UNIQUE_IDS, fill_session},
        {ZD__REQUEST__BODY_ALLOC, fill_session},
        {ZD__REQUEST__BODY_FREE, fill_session},
        {ZD__REQUEST__BODY_LIST, fill_session},
        {ZD__REQUEST__BODY_DAEMON_STATUS, fill_session},
        {ZD__REQUEST__BODY_METRICS, fill_session},
        {ZD__REQUEST__BODY_EVENTS, fill_session},
        {ZD__REQUEST__BODY_KILL_SESSION, fill_session},
        {ZD__REQUEST__BODY_GOODBYE, fill_session},
        {ZD__REQUEST__BODY_END_JOB, fill_session},
        {ZD__REQUEST__BODY_KILL_JOB, fill_session},
        {ZD__REQUEST__BODY_DRAIN, fill_session},
        {ZD__REQUEST__BODY_GROUP_LEAVE, fill_group},
        {ZD__REQUEST__BODY_COMMIT, fill_group},
        {ZD__REQUEST__BODY_COMMIT_WAIT, fill_group},
        {ZD__REQUEST__BODY_UNIT_READ, fill_group},
        {ZD__REQUEST__BODY_BACKWARD_BEGIN, fill_group},
        {ZD__REQUEST__BODY_BUCKET_CREATE, fill_group},
        {ZD__REQUEST__BODY_BACKWARD_END, fill_group},
        {ZD__REQUEST__BODY_BACKWARD_ABANDON, fill_group},
        {ZD__REQUEST__BODY_STEP_BEGIN, fill_group},
        {ZD__REQUEST__BODY_STEP_GET, fill_group},
        {ZD__REQUEST__BODY_STEP_END, fill_group},
        {ZD__REQUEST__BODY_ABORT_GROUP, fill_group},
        {ZD__REQUEST__BODY_UNIT_REGISTER, fill_unit},
        {ZD__REQUEST__BODY_UNITS_RESUME, fill_unit},
        {ZD__REQUEST__BODY_UNIT_UNREGISTER, fill_unit},
        {ZD__REQUEST__BODY_UPDATE_BEGIN, fill_unit},
        {ZD__REQUEST__BODY_PUBLISH, fill_unit},
        {ZD__REQUEST__BODY_SET_PERSISTENT, fill_unit},
        {ZD__REQUEST__BODY_SET_SLOT, fill_unit},
        {ZD__REQUEST__BODY_SET_FROZEN, fill_unit},
        {ZD__REQUEST__BODY_GATHER, fill_unit},
        {ZD__REQUEST__BODY_RELEASE, fill_unit},
        {ZD__REQUEST__BODY_REDUCE_SKIP, fill_unit},
        {ZD__REQUEST__BODY_BUCKET_DESTROY, fill_bucket},
        {ZD__REQUEST__BODY_BUCKET_RESERVE, fill_bucket},
        {ZD__REQUEST__BODY_BUCKET_SUBMIT, fill_bucket},
        {ZD__REQUEST__BODY_TRIM, fill_session},
        {ZD__REQUEST__BODY_SEGMENTS_UNMAPPED, fill_session},
        {ZD__REQUEST__BODY_CANCEL, fill_session},
        {ZD__REQUEST__BODY_UNIT_LOAD, fill_unit},
        {ZD__REQUEST__BODY_UNIT_PLACE, fill_unit},
        {ZD__REQUEST__BODY_GROUP_BARRIER, fill_group},
        {ZD__REQUEST__BODY_GROUP_AGREE, fill_group},
        {ZD__REQUEST__BODY_FORWARD_BEGIN, fill_scope},
        {ZD__REQUEST__BODY_FORWARD_END, fill_scope},
        {ZD__REQUEST__BODY_CLAIM_END, fill_scope},
        {ZD__REQUEST__BODY_SCOPE_ABANDON, fill_scope},
        {ZD__REQUEST__BODY_CONTEXT_BEGIN, fill_scope},
        {ZD__REQUEST__BODY_CONTEXT_END, fill_scope},
        {ZD__REQUEST__BODY_REDUCE_WAIT, fill_bucket},
        {ZD__REQUEST__BODY_TARGET_RETURN, fill_bucket},
};

size_t fuzz_request(unsigned seed, Zd__Request__BodyCase kind, uint8_t bytes[FUZZ_PACKET_BYTES])
{
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;
	Zd__Request request = ZD__REQUEST__INIT, *requests[] = {&request};
	size_t index;

	random_state = seed;
	index = pick(COUNT(kinds));
	for (size_t i = 0; i < COUNT(kinds) && kind != 0; i++)
		if (kinds[i].kind == kind)
			index = i;
	kinds[index].fill(kinds[index].kind);
	request.id = 2;
	request.deadline_ms = pick(16) ? 0 : 1;
	request.body_case = kinds[index].kind;
	request.hello = &body.hello; /* the union of all bodies' pointers */
	packet.n_requests = 1;
	packet.requests = requests;
	return zd__client_packet__pack(&packet, bytes);
}

size_t fuzz_make_request(unsigned seed, uint8_t bytes[FUZZ_PACKET_BYTES])
{
	return fuzz_request(seed, 0, bytes);
}
