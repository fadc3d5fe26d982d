/* SPDX-License-Identifier: Apache-2.0 */
/* core_every.h - a request of each kind, by the ids of what a session has. */
#ifndef ZD_TESTS_CORE_EVERY_H
#define ZD_TESTS_CORE_EVERY_H

#include "core_driver.h"

enum core_object {
	CORE_GROUP,
	CORE_UNIT,
	CORE_BUCKET,
	CORE_ENTRY,
	CORE_SCOPE,
	CORE_ALLOCATION,
	CORE_SESSION,
	CORE_JOB,
	CORE_NOBJECTS
};

extern const struct core_kind {
	const char *name;
	size_t at; /* of the message, in struct zd_args */
} core_kinds[ZD_NREQUESTS];
const ProtobufCMessageDescriptor *core_message(enum zd_request_kind kind);
/* The object whose id the field is; CORE_NOBJECTS: it is no id. */
enum core_object core_object_of(const ProtobufCFieldDescriptor *field);
/* Sets the field to one id. */
void core_set_id(struct zd_args *args, const ProtobufCFieldDescriptor *field, const uint64_t *id);
/* A request that is accepted if its ids are. CANCEL lacks its request. `ids` outlives the arguments. */
struct zd_args core_args(enum zd_request_kind kind, const uint64_t ids[CORE_NOBJECTS]);

#endif
