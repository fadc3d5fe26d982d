// SPDX-License-Identifier: Apache-2.0
/*
 * object.c - a protocol message as a JSON object with all fields, made by the message's descriptor.
 */
#include "ctl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static json_t *lower_case(const char *name)
{
	char *text = zd_ctl_text("%s", name);
	for (char *c = text; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	json_t *made = json_string(text);
	free(text);
	return made;
}

static json_t *of_nothing(const ProtobufCMessageDescriptor *type)
{
	ProtobufCMessage *message = malloc(type->sizeof_message);
	if (!message)
		return NULL;
	protobuf_c_message_init(type, message);
	json_t *object = zd_ctl_object(message);
	free(message);
	return object;
}

static json_t *value_of(const ProtobufCFieldDescriptor *field, const void *at)
{
	switch (field->type) {
	case PROTOBUF_C_TYPE_BOOL:
		return json_boolean(*(const protobuf_c_boolean *)at);
	case PROTOBUF_C_TYPE_UINT32:
		if (strcmp(field->name, "dtype") == 0)
			return json_string(zerod_dtype_name(*(const enum zerod_dtype *)at));
		return json_integer(*(const uint32_t *)at);
	case PROTOBUF_C_TYPE_UINT64:
		return json_integer(ZD_CTL_INT(*(const uint64_t *)at));
	case PROTOBUF_C_TYPE_ENUM: {
		const ProtobufCEnumValue *value = protobuf_c_enum_descriptor_get_value(field->descriptor,
		                                                                       *(const int *)at);
		return value ? lower_case(value->name) : json_integer(*(const int *)at);
	}
	case PROTOBUF_C_TYPE_STRING:
		return json_string(*(char *const *)at);
	case PROTOBUF_C_TYPE_MESSAGE: {
		const ProtobufCMessage *message = *(ProtobufCMessage *const *)at;
		return message ? zd_ctl_object(message) : of_nothing(field->descriptor);
	}
	default:
		return NULL; /* rows have no other types */
	}
}

/* Rows repeat only texts, messages and numbers of 32 bits. */
static const void *item_at(const ProtobufCFieldDescriptor *field, const void *items, size_t i)
{
	return field->type == PROTOBUF_C_TYPE_UINT32 ? (const void *)((const uint32_t *)items + i)
	                                             : (const void *)((const void *const *)items + i);
}

static json_t *list_of(const ProtobufCFieldDescriptor *field, const char *message)
{
	size_t count = *(const size_t *)(message + field->quantifier_offset);
	const void *items = *(void *const *)(message + field->offset);
	json_t *list = json_array();
	for (size_t i = 0; i < count; i++) {
		if (json_array_append_new(list, value_of(field, item_at(field, items, i)))) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

json_t *zd_ctl_object(const ProtobufCMessage *message)
{
	const ProtobufCMessageDescriptor *type = message->descriptor;
	json_t *object = json_object();
	for (unsigned i = 0; i < type->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &type->fields[i];
		const char *at = (const char *)message;
		json_t *value = field->label == PROTOBUF_C_LABEL_REPEATED
		                        ? list_of(field, at)
		                        : value_of(field, at + field->offset);
		if (json_object_set_new(object, field->name, value)) {
			json_decref(object);
			return NULL;
		}
	}
	return object;
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

const char *zd_ctl_string(const json_t *row, const char *key)
{
	const char *text = json_string_value(json_object_get(row, key));
	return text ? text : "";
}

json_int_t zd_ctl_integer(const json_t *row, const char *key)
{
	return json_integer_value(json_object_get(row, key));
}

bool zd_ctl_is(const json_t *row, const char *key, const char *text)
{
	return strcmp(zd_ctl_string(row, key), text) == 0;
}

static json_t *find_row(const json_t *rows, const char *key, json_int_t number)
{
	size_t i;
	json_t *row;
	json_array_foreach((json_t *)rows, i, row)
	{
		if (zd_ctl_integer(row, key) == number)
			return row;
	}
	return NULL;
}

json_t *zd_ctl_row_of_id(const json_t *rows, json_int_t id)
{
	return find_row(rows, "id", id);
}

json_t *zd_ctl_find_rank(const json_t *groups, const char *job, const char *name, json_int_t rank)
{
	size_t i;
	json_t *group, *member = NULL;
	json_array_foreach((json_t *)groups, i, group)
	{
		if (zd_ctl_is(group, "job", job) && zd_ctl_is(group, "name", name) &&
		    !zd_ctl_is(group, "state", "OVER"))
			member = find_row(json_object_get(group, "members"), "rank", rank);
		if (member)
			break;
	}
	return member;
}

char *zd_ctl_missing_ranks(const json_t *group)
{
	char *text = zd_ctl_text("%s", "");
	size_t i;
	json_t *member;
	json_array_foreach(json_object_get(group, "members"), i, member)
	{
		if (zd_ctl_integer(member, "session") != 0)
			continue;
		text = zd_ctl_append(text, "%s%" JSON_INTEGER_FORMAT, *text ? ", " : "",
		                     zd_ctl_integer(member, "rank"));
	}
	return text;
}
