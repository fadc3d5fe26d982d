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

/* The fields of requests that are ids. */
struct core_field {
	enum zd_request_kind kind;
	const char *name; /* NULL: the request has no ids */
	size_t at;        /* in struct zd_args */
	enum core_object object;
	bool list, optional; /* optional: 0 in the requests of core_args() */
};
extern const struct core_field core_fields[];
extern const size_t core_nfields;

/* Sets the field to one id. */
void core_set_field(struct zd_args *args, const struct core_field *field, const uint64_t *id);
/* A request that is accepted if its ids are. CANCEL lacks its request. `ids` outlives the arguments. */
struct zd_args core_args(enum zd_request_kind kind, const uint64_t ids[CORE_NOBJECTS]);

#endif
