/* SPDX-License-Identifier: Apache-2.0 */
#include "core_every.h"

const struct core_kind core_kinds[ZD_NREQUESTS] = {
#define REQUEST(KIND, name) [ZD_REQ_##KIND] = {#name, offsetof(struct zd_args, u.name)},
#include "core/requests.def"
};

const ProtobufCMessageDescriptor *core_message(enum zd_request_kind kind)
{
	return protobuf_c_message_descriptor_get_field_by_name(&zd__request__descriptor,
	                                                       core_kinds[kind].name)
	        ->descriptor;
}

enum core_object core_object_of(const ProtobufCFieldDescriptor *field)
{
	static const char *const names[CORE_NOBJECTS] = {"group", "unit",       "bucket",  "entry",
	                                                 "scope", "allocation", "session", "job"};

	if (field->type != PROTOBUF_C_TYPE_UINT64)
		return CORE_NOBJECTS;
	if (strcmp(field->name, "parent") == 0)
		return CORE_SCOPE;
	if (strcmp(field->name, "units") == 0)
		return CORE_UNIT;
	for (uint32_t i = 0; i < CORE_NOBJECTS; i++) {
		if (strcmp(field->name, names[i]) == 0)
			return (enum core_object)i;
	}
	return CORE_NOBJECTS;
}

void core_set_id(struct zd_args *args, const ProtobufCFieldDescriptor *field, const uint64_t *id)
{
	char *at = (char *)args + core_kinds[args->kind].at + field->offset;

	if (field->label == PROTOBUF_C_LABEL_REPEATED)
		memcpy(at, &id, sizeof(id));
	else
		memcpy(at, id, sizeof(*id));
}

/* The requests of core_args() leave it 0. */
static bool is_optional(enum zd_request_kind kind, const ProtobufCFieldDescriptor *field)
{
	return kind == ZD_REQ_ALLOC || strcmp(field->name, "parent") == 0 ||
	       (kind == ZD_REQ_UNIT_LOAD && strcmp(field->name, "allocation") == 0);
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
	case ZD_REQ_COMMIT_SAVE:
		args.u.commit_save.step = 1;
		break;
	case ZD_REQ_COMMIT_WAIT:
		args.u.commit_wait.job = (char *)"job";
		args.u.commit_wait.group = (char *)"world";
		break;
	case ZD_REQ_UNIT_READ:
		args.u.unit_read.unit = (char *)"w";
		args.u.unit_read.step = 1;
		args.u.unit_read.bytes = CORE_KIB / 4;
		args.u.unit_read.rows = 2;
		args.u.unit_read.stride = CORE_KIB / 2;
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
	const ProtobufCMessageDescriptor *message = core_message(kind);
	for (unsigned i = 0; i < message->n_fields; i++) {
		enum core_object object = core_object_of(&message->fields[i]);
		if (object < CORE_NOBJECTS && !is_optional(kind, &message->fields[i]))
			core_set_id(&args, &message->fields[i], &ids[object]);
	}
	return args;
}
