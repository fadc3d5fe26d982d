/* SPDX-License-Identifier: Apache-2.0 */
#include "core_every.h"

/* clang-format off
 * NOLINTBEGIN(bugprone-macro-parentheses): names of fields */
#define FIELD(KIND, field, object, ...)                                                                      \
	{                                                                                                    \
		.kind = ZD_REQ_##KIND, .name = #KIND " " #field, .at = offsetof(struct zd_args, u.field),    \
		object, __VA_ARGS__                                                                          \
	}
#define ID(KIND, field, object)      FIELD(KIND, field, object, .list = false)
#define ID_OR_0(KIND, field, object) FIELD(KIND, field, object, .optional = true)
#define IDS(KIND, of, object)        FIELD(KIND, of.units, object, .list = true)
#define NO_IDS(KIND)                                                                                         \
	{                                                                                                    \
		.kind = ZD_REQ_##KIND                                                                        \
	}
/* NOLINTEND(bugprone-macro-parentheses)
 * clang-format on */

const struct core_field core_fields[] = {
        NO_IDS(SESSION_RESET),
        NO_IDS(CANCEL), /* the id of a request is the session's own: test_request.c */
        NO_IDS(GROUP_JOIN),
        NO_IDS(UNIQUE_IDS),
        NO_IDS(TRIM),
        NO_IDS(SEGMENTS_UNMAPPED), /* ids that are not the session's are ignored: test_retire.c */
        ID(GROUP_LEAVE, group_leave.group, CORE_GROUP),
        ID(GROUP_BARRIER, group_barrier.group, CORE_GROUP),
        ID(UNIT_REGISTER, unit_register.group, CORE_GROUP),
        ID(UNITS_RESUME, units_resume.group, CORE_GROUP),
        IDS(UNITS_RESUME, units_resume, CORE_UNIT),
        ID(UNIT_UNREGISTER, unit_unregister.unit, CORE_UNIT),
        IDS(UPDATE_BEGIN, update_begin, CORE_UNIT),
        IDS(PUBLISH, publish, CORE_UNIT),
        ID(COMMIT, commit.group, CORE_GROUP),
        NO_IDS(COMMIT_WAIT),
        ID(UNIT_READ, unit_read.group, CORE_GROUP),
        ID(UNIT_READ, unit_read.allocation, CORE_ALLOCATION),
        ID(SET_PERSISTENT, set_persistent.unit, CORE_UNIT),
        ID(SET_SLOT, set_slot.unit, CORE_UNIT),
        ID(SET_FROZEN, set_frozen.unit, CORE_UNIT),
        ID(UNIT_LOAD, unit_load.unit, CORE_UNIT),
        ID_OR_0(UNIT_LOAD, unit_load.allocation, CORE_ALLOCATION),
        ID(UNIT_PLACE, unit_place.unit, CORE_UNIT),
        ID(GATHER, gather.unit, CORE_UNIT),
        ID(GATHER, gather.scope, CORE_SCOPE),
        ID(RELEASE, release.unit, CORE_UNIT),
        ID(FORWARD_BEGIN, forward_begin.group, CORE_GROUP),
        ID_OR_0(FORWARD_BEGIN, forward_begin.parent, CORE_SCOPE),
        ID(FORWARD_END, forward_end.scope, CORE_SCOPE),
        ID(CLAIM_END, claim_end.scope, CORE_SCOPE),
        ID(SCOPE_ABANDON, scope_abandon.scope, CORE_SCOPE),
        IDS(CONTEXT_BEGIN, context_begin, CORE_UNIT),
        ID(CONTEXT_END, context_end.scope, CORE_SCOPE),
        ID(GROUP_AGREE, group_agree.group, CORE_GROUP),
        ID(BACKWARD_BEGIN, backward_begin.group, CORE_GROUP),
        ID(BUCKET_CREATE, bucket_create.group, CORE_GROUP),
        ID(BUCKET_DESTROY, bucket_destroy.bucket, CORE_BUCKET),
        ID(BUCKET_RESERVE, bucket_reserve.bucket, CORE_BUCKET),
        ID(BUCKET_RESERVE, bucket_reserve.unit, CORE_UNIT),
        ID(BUCKET_SUBMIT, bucket_submit.bucket, CORE_BUCKET),
        ID(BUCKET_SUBMIT, bucket_submit.entry, CORE_ENTRY),
        ID(REDUCE_SKIP, reduce_skip.unit, CORE_UNIT),
        ID(REDUCE_WAIT, reduce_wait.unit, CORE_UNIT),
        IDS(TARGET_RETURN, target_return, CORE_UNIT),
        ID(BACKWARD_END, backward_end.group, CORE_GROUP),
        ID(BACKWARD_ABANDON, backward_abandon.group, CORE_GROUP),
        ID(STEP_BEGIN, step_begin.group, CORE_GROUP),
        ID(STEP_GET, step_get.group, CORE_GROUP),
        IDS(STEP_GET, step_get, CORE_UNIT),
        ID(STEP_END, step_end.group, CORE_GROUP),
        ID_OR_0(ALLOC, alloc.unit, CORE_UNIT),
        ID(FREE, free.allocation, CORE_ALLOCATION),
        ID(KILL_SESSION, kill_session.session, CORE_SESSION),
        ID(ABORT_GROUP, abort_group.group, CORE_GROUP),
        ID(END_JOB, end_job.job, CORE_JOB),
        ID(KILL_JOB, kill_job.job, CORE_JOB),
};
const size_t core_nfields = sizeof(core_fields) / sizeof(core_fields[0]);

void core_set_field(struct zd_args *args, const struct core_field *field, const uint64_t *id)
{
	if (field->list)
		memcpy((char *)args + field->at, &id, sizeof(id));
	else
		memcpy((char *)args + field->at, id, sizeof(*id));
}

struct zd_args core_args(enum zd_request_kind kind, const uint64_t ids[CORE_NOBJECTS])
{
	static const uint64_t description = 1;
	static const uint32_t segment = 1;
	static const double values[ZEROD_MAX_AGREED];
	struct zd_args args = {.kind = kind};
	switch (kind) {
	case ZD_REQ_GROUP_JOIN:
		args.u.group_join.job = (char *)"job";
		args.u.group_join.group = (char *)"new";
		args.u.group_join.world_size = 2;
		break;
	case ZD_REQ_UNIQUE_IDS:
		args.u.unique_ids.job = (char *)"job";
		args.u.unique_ids.group = (char *)"world";
		args.u.unique_ids.count = 1;
		break;
	case ZD_REQ_UNIT_REGISTER:
		args.u.unit_register.name = (char *)"new";
		args.u.unit_register.dtype = ZEROD_FLOAT32;
		args.u.unit_register.numel = 300;
		break;
	case ZD_REQ_UNITS_RESUME:
		args.u.units_resume.n_units = 1;
		args.u.units_resume.n_descriptions = 1;
		args.u.units_resume.descriptions = (uint64_t *)&description;
		break;
	case ZD_REQ_UPDATE_BEGIN:
	case ZD_REQ_PUBLISH:
		args.u.publish.n_units = 1;
		break;
	case ZD_REQ_COMMIT:
		args.u.commit.step = 1;
		break;
	case ZD_REQ_COMMIT_WAIT:
		args.u.commit_wait.job = (char *)"job";
		args.u.commit_wait.group = (char *)"world";
		break;
	case ZD_REQ_UNIT_READ:
		args.u.unit_read.unit = (char *)"w";
		args.u.unit_read.step = 1;
		args.u.unit_read.bytes = CORE_KIB;
		break;
	case ZD_REQ_SET_PERSISTENT:
		args.u.set_persistent.persistent = true;
		break;
	case ZD_REQ_SET_SLOT:
		args.u.set_slot.slot = 1;
		break;
	case ZD_REQ_SET_FROZEN:
		args.u.set_frozen.frozen = true;
		break;
	case ZD_REQ_GATHER:
		args.u.gather.tag = (char *)(ids[CORE_SCOPE] ? "" : CORE_TAG);
		args.u.gather.uses = 1;
		break;
	case ZD_REQ_RELEASE:
		args.u.release.tag = (char *)CORE_TAG;
		break;
	case ZD_REQ_FORWARD_END:
		args.u.forward_end.grad = true;
		break;
	case ZD_REQ_CONTEXT_BEGIN:
		args.u.context_begin.n_units = 1;
		break;
	case ZD_REQ_GROUP_AGREE:
		args.u.group_agree.n_values = ZEROD_MAX_AGREED;
		args.u.group_agree.values = (double *)values;
		break;
	case ZD_REQ_BACKWARD_BEGIN:
		args.u.backward_begin.stage = 3;
		args.u.backward_begin.boundary = true;
		args.u.backward_begin.target_dtype = ZEROD_FLOAT32;
		break;
	case ZD_REQ_BUCKET_CREATE:
		args.u.bucket_create.dtype = ZEROD_FLOAT32;
		args.u.bucket_create.slot_bytes = CORE_KIB;
		args.u.bucket_create.nslots = 2;
		break;
	case ZD_REQ_TARGET_RETURN:
		args.u.target_return.n_units = 1;
		break;
	case ZD_REQ_STEP_GET:
		args.u.step_get.n_units = 1;
		break;
	case ZD_REQ_ALLOC:
		args.u.alloc.job = (char *)"job";
		args.u.alloc.bytes = CORE_KIB;
		break;
	case ZD_REQ_SEGMENTS_UNMAPPED:
		args.u.segments_unmapped.n_segments = 1;
		args.u.segments_unmapped.segments = (uint32_t *)&segment;
		break;
	default:
		break;
	}
	for (size_t i = 0; i < core_nfields; i++) {
		if (core_fields[i].kind == kind && core_fields[i].name && !core_fields[i].optional)
			core_set_field(&args, &core_fields[i], &ids[core_fields[i].object]);
	}
	return args;
}
