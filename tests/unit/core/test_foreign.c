/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An id of another user's object has the answer of an id that does not exist: in each field of each request,
 * with the same status and the same text.
 */
#include <stdio.h>

#include "tests/support/core_every.h"
#include "tests/support/core_reduce.h"

struct user {
	uint64_t session, ids[CORE_NOBJECTS];
};

/* ---- The test ------------------------------------------------------------------------------------------ */

/* A group of one rank in whose backward an entry is reserved, a scope and an allocation. */
static void user_start(struct core_driver *core, uint32_t uid, struct user *user)
{
	struct core_row row;
	struct core_team team = {.core = core, .world_size = 1, .nranks = 1};
	uint64_t session = team.session[0] = user->session = user->ids[CORE_SESSION] = core_open(core, uid);
	uint64_t group = core_join_ok(core, session, &(struct core_join){.world_size = 1});
	team.group = user->ids[CORE_GROUP] = group;
	const struct core_unit unit = {.name = "w", .numel = 300};
	user->ids[CORE_UNIT] = core_register_ok(core, session, group, &unit);
	user->ids[CORE_BUCKET] = core_bucket_ok(&team, 0, ZEROD_FLOAT32, 16 * CORE_KIB, 2);
	core_expect(core, core_backward(&team, 0, 3, true), 0);
	user->ids[CORE_ENTRY] =
	        core_expect(core, core_reserve(&team, 0, user->ids[CORE_BUCKET], user->ids[CORE_UNIT]), 0)
	                ->u.bucket_reserve.entry;
	user->ids[CORE_SCOPE] =
	        core_expect(core, core_forward_begin(core, session, group, 0, NULL, 0), 0)->u.scope.scope;
	user->ids[CORE_ALLOCATION] = core_alloc_ok(core, session, "job", 0, 2 * CORE_KIB);
	assert_int_equal(core_rows_for(core, session, ZD__TABLE__JOBS, NULL, &row, 1), 1);
	user->ids[CORE_JOB] = row.id;
}

/* The answer to the request with that id in the field. */
static void answer(struct core_driver *core, const struct user *user, enum zd_request_kind kind,
                   const ProtobufCFieldDescriptor *field, uint64_t id, char out[512])
{
	struct zd_args args = core_args(kind, user->ids);
	core_set_id(&args, field, &id);
	const struct zd_reply *reply = core_reply(core, core_send(core, user->session, &args));
	(void)snprintf(out, 512, "%s: %s", reply ? zerod_status_name(reply->status) : "waits",
	               reply ? reply->error : "");
	if (reply && kind == ZD_REQ_UNITS_RESUME && reply->status == 0)
		(void)snprintf(out, 512, "not registered: segment %u", reply->u.units_resume.segments[0]);
}

/* An id of an object of Alice's, and one that is of nobody and has the same number. */
static bool answers_alike(struct core_driver *core, const struct user *bob, enum zd_request_kind kind,
                          const ProtobufCFieldDescriptor *field, uint64_t id)
{
	char foreign[512], absent[512];
	answer(core, bob, kind, field, id, foreign);
	answer(core, bob, kind, field, id ^ UINT64_C(1) << 62, absent);
	if (strcmp(foreign, absent) == 0 && strncmp(absent, "OK", 2) != 0)
		return true;
	print_error("%s %s\n  of another user: %s\n  of none:         %s\n", core_kinds[kind].name,
	            field->name, foreign, absent);
	return false;
}

/* Ids of requests are the session's own (test_request.c), segments that are not the session's are ignored
 * (test_retire.c). */
ENGINE_TEST(test_foreign_is_absent, .ndevices = 1)
{
	struct user alice, bob;
	uint32_t failures = 0;
	user_start(core, CORE_ALICE, &alice);
	user_start(core, CORE_BOB, &bob);
	for (enum zd_request_kind kind = 0; kind < ZD_NREQUESTS; kind++) {
		const ProtobufCMessageDescriptor *message = core_message(kind);
		for (unsigned i = 0; i < message->n_fields; i++) {
			enum core_object object = core_object_of(&message->fields[i]);
			if (object < CORE_NOBJECTS)
				failures += !answers_alike(core, &bob, kind, &message->fields[i],
				                           alice.ids[object]);
		}
	}
	assert_int_equal(failures, 0);
	core_close_all(core);
}
