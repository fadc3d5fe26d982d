/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An id of another user's object has the answer of an id that does not exist: in each field of each request,
 * with the same status and the same text.
 */
#include <stdio.h>

#include "tests/support/core_reduce.h"

enum object { GROUP, UNIT, BUCKET, ENTRY, SCOPE, ALLOCATION, SESSION, JOB, NOBJECTS };

struct user {
	uint64_t session, ids[NOBJECTS];
};

/* ---- Fields -------------------------------------------------------------------------------------------- */

#define ID(KIND, field, object)                                                                              \
	{                                                                                                    \
		ZD_REQ_##KIND, #KIND " " #field, offsetof(struct zd_args, u.field), object, false            \
	}
#define IDS(KIND, of, object)                                                                                \
	{                                                                                                    \
		ZD_REQ_##KIND, #KIND " units", offsetof(struct zd_args, u.of.units), object, true            \
	}
#define NO_IDS(KIND)                                                                                         \
	{                                                                                                    \
		ZD_REQ_##KIND, NULL, 0, NOBJECTS, false                                                      \
	}

static const struct field {
	enum zd_request_kind kind;
	const char *name; /* NULL: the request has no ids */
	size_t at;
	enum object object;
	bool list;
} fields[] = {
        NO_IDS(SESSION_RESET),
        NO_IDS(CANCEL), /* the id of a request is the session's own: test_request.c */
        NO_IDS(GROUP_JOIN),
        NO_IDS(UNIQUE_IDS),
        NO_IDS(TRIM),
        NO_IDS(SEGMENTS_UNMAPPED), /* ids that are not the session's are ignored: test_retire.c */
        ID(GROUP_LEAVE, group_leave.group, GROUP),
        ID(GROUP_BARRIER, group_barrier.group, GROUP),
        ID(UNIT_REGISTER, unit_register.group, GROUP),
        ID(UNITS_RESUME, units_resume.group, GROUP),
        IDS(UNITS_RESUME, units_resume, UNIT),
        ID(UNIT_UNREGISTER, unit_unregister.unit, UNIT),
        IDS(UPDATE_BEGIN, update_begin, UNIT),
        IDS(PUBLISH, publish, UNIT),
        ID(COMMIT, commit.group, GROUP),
        NO_IDS(COMMIT_WAIT),
        ID(UNIT_READ, unit_read.group, GROUP),
        ID(UNIT_READ, unit_read.allocation, ALLOCATION),
        ID(SET_PERSISTENT, set_persistent.unit, UNIT),
        ID(SET_SLOT, set_slot.unit, UNIT),
        ID(SET_FROZEN, set_frozen.unit, UNIT),
        ID(UNIT_LOAD, unit_load.unit, UNIT),
        ID(UNIT_LOAD, unit_load.allocation, ALLOCATION),
        ID(UNIT_PLACE, unit_place.unit, UNIT),
        ID(GATHER, gather.unit, UNIT),
        ID(GATHER, gather.scope, SCOPE),
        ID(RELEASE, release.unit, UNIT),
        ID(FORWARD_BEGIN, forward_begin.group, GROUP),
        ID(FORWARD_BEGIN, forward_begin.parent, SCOPE),
        ID(FORWARD_END, forward_end.scope, SCOPE),
        ID(CLAIM_END, claim_end.scope, SCOPE),
        ID(SCOPE_ABANDON, scope_abandon.scope, SCOPE),
        IDS(CONTEXT_BEGIN, context_begin, UNIT),
        ID(CONTEXT_END, context_end.scope, SCOPE),
        ID(GROUP_AGREE, group_agree.group, GROUP),
        ID(BACKWARD_BEGIN, backward_begin.group, GROUP),
        ID(BUCKET_CREATE, bucket_create.group, GROUP),
        ID(BUCKET_DESTROY, bucket_destroy.bucket, BUCKET),
        ID(BUCKET_RESERVE, bucket_reserve.bucket, BUCKET),
        ID(BUCKET_RESERVE, bucket_reserve.unit, UNIT),
        ID(BUCKET_SUBMIT, bucket_submit.bucket, BUCKET),
        ID(BUCKET_SUBMIT, bucket_submit.entry, ENTRY),
        ID(REDUCE_SKIP, reduce_skip.unit, UNIT),
        ID(REDUCE_WAIT, reduce_wait.unit, UNIT),
        IDS(TARGET_RETURN, target_return, UNIT),
        ID(BACKWARD_END, backward_end.group, GROUP),
        ID(BACKWARD_ABANDON, backward_abandon.group, GROUP),
        ID(STEP_BEGIN, step_begin.group, GROUP),
        ID(STEP_GET, step_get.group, GROUP),
        IDS(STEP_GET, step_get, UNIT),
        ID(STEP_END, step_end.group, GROUP),
        ID(ALLOC, alloc.unit, UNIT),
        ID(FREE, free.allocation, ALLOCATION),
        ID(KILL_SESSION, kill_session.session, SESSION),
        ID(ABORT_GROUP, abort_group.group, GROUP),
        ID(END_JOB, end_job.job, JOB),
        ID(KILL_JOB, kill_job.job, JOB),
};
#define NFIELDS (sizeof(fields) / sizeof(fields[0]))

/* The arguments of a request whose other ids are the user's own. */
static struct zd_args args_of(enum zd_request_kind kind, const struct user *user)
{
	static const uint64_t description;
	static const double value = 1.0;
	struct zd_args args = {.kind = kind};
	switch (kind) {
	case ZD_REQ_UNIT_REGISTER:
		args.u.unit_register.name = (char *)"new";
		args.u.unit_register.dtype = ZEROD_FLOAT32;
		args.u.unit_register.numel = 1;
		break;
	case ZD_REQ_UNITS_RESUME:
		args.u.units_resume.group = user->ids[GROUP];
		args.u.units_resume.n_units = 1;
		args.u.units_resume.n_descriptions = 1;
		args.u.units_resume.descriptions = (uint64_t *)&description;
		args.u.units_resume.units = (uint64_t *)&user->ids[UNIT];
		break;
	case ZD_REQ_UPDATE_BEGIN:
	case ZD_REQ_PUBLISH:
		args.u.publish.n_units = 1;
		break;
	case ZD_REQ_UNIT_READ:
		args.u.unit_read.group = user->ids[GROUP];
		args.u.unit_read.unit = (char *)"w";
		args.u.unit_read.bytes = 4;
		break;
	case ZD_REQ_UNIT_LOAD:
		args.u.unit_load.unit = user->ids[UNIT];
		break;
	case ZD_REQ_GATHER:
		args.u.gather.unit = user->ids[UNIT];
		break;
	case ZD_REQ_RELEASE:
		args.u.release.tag = (char *)"t";
		break;
	case ZD_REQ_FORWARD_BEGIN:
		args.u.forward_begin.group = user->ids[GROUP];
		break;
	case ZD_REQ_CONTEXT_BEGIN:
		args.u.context_begin.n_units = 1;
		break;
	case ZD_REQ_GROUP_AGREE:
		args.u.group_agree.n_values = 1;
		args.u.group_agree.values = (double *)&value;
		break;
	case ZD_REQ_BACKWARD_BEGIN:
		args.u.backward_begin.stage = 3;
		args.u.backward_begin.target_dtype = ZEROD_FLOAT32;
		break;
	case ZD_REQ_BUCKET_CREATE:
		args.u.bucket_create.dtype = ZEROD_FLOAT32;
		args.u.bucket_create.slot_bytes = CORE_KIB;
		args.u.bucket_create.nslots = 2;
		break;
	case ZD_REQ_BUCKET_RESERVE:
		args.u.bucket_reserve.bucket = user->ids[BUCKET];
		args.u.bucket_reserve.unit = user->ids[UNIT];
		break;
	case ZD_REQ_BUCKET_SUBMIT:
		args.u.bucket_submit.bucket = user->ids[BUCKET];
		args.u.bucket_submit.entry = user->ids[ENTRY];
		break;
	case ZD_REQ_TARGET_RETURN:
		args.u.target_return.n_units = 1;
		break;
	case ZD_REQ_STEP_GET:
		args.u.step_get.group = user->ids[GROUP];
		args.u.step_get.n_units = 1;
		args.u.step_get.units = (uint64_t *)&user->ids[UNIT];
		break;
	default:
		break;
	}
	return args;
}

/* ---- The test ------------------------------------------------------------------------------------------ */

/* A group of one rank in whose backward an entry is reserved, a scope and an allocation. */
static void user_start(struct core_driver *core, uint32_t uid, struct user *user)
{
	struct core_row row;
	struct core_team team = {.core = core, .world_size = 1, .nranks = 1};
	uint64_t session = team.session[0] = user->session = user->ids[SESSION] = core_open(core, uid);
	uint64_t group = core_expect(core, core_join(core, session, &(struct core_join){.world_size = 1}), 0)
	                         ->u.group_join.group;
	team.group = user->ids[GROUP] = group;
	const struct core_unit unit = {.name = "w", .numel = 300};
	user->ids[UNIT] =
	        core_expect(core, core_register(core, session, group, &unit), 0)->u.unit_register.unit;
	user->ids[BUCKET] = core_expect(core, core_bucket(&team, 0, ZEROD_FLOAT32, 16 * CORE_KIB, 2), 0)
	                            ->u.bucket_create.bucket;
	core_expect(core, core_backward(&team, 0, 3, true), 0);
	user->ids[ENTRY] = core_expect(core, core_reserve(&team, 0, user->ids[BUCKET], user->ids[UNIT]), 0)
	                           ->u.bucket_reserve.entry;
	user->ids[SCOPE] =
	        core_expect(core, core_forward_begin(core, session, group, 0, NULL, 0), 0)->u.scope.scope;
	user->ids[ALLOCATION] =
	        core_expect(core, core_alloc(core, session, "job", 0, 2 * CORE_KIB), 0)->u.alloc.allocation;
	assert_int_equal(core_rows_for(core, session, ZD__TABLE__JOBS, NULL, &row, 1), 1);
	user->ids[JOB] = row.id;
}

/* The answer to the request with that id in the field. */
static void answer(struct core_driver *core, const struct user *user, const struct field *field, uint64_t id,
                   char out[512])
{
	struct zd_args args = args_of(field->kind, user);
	const uint64_t *list = &id;
	if (field->list)
		memcpy((char *)&args + field->at, &list, sizeof(list));
	else
		memcpy((char *)&args + field->at, &id, sizeof(id));
	const struct zd_reply *reply = core_reply(core, core_send(core, user->session, &args));
	(void)snprintf(out, 512, "%s: %s", reply ? zerod_status_name(reply->status) : "waits",
	               reply ? reply->error : "");
	if (reply && field->kind == ZD_REQ_UNITS_RESUME && reply->status == 0)
		(void)snprintf(out, 512, "not registered: segment %u", reply->u.units_resume.segments[0]);
}

ENGINE_TEST(test_foreign_is_absent, .ndevices = 1)
{
	struct user alice, bob;
	bool tried[ZD_NREQUESTS] = {false};
	uint32_t failures = 0;
	user_start(core, CORE_ALICE, &alice);
	user_start(core, CORE_BOB, &bob);
	for (size_t i = 0; i < NFIELDS; i++) {
		char foreign[512], absent[512];
		tried[fields[i].kind] = true;
		if (!fields[i].name)
			continue;
		uint64_t id = alice.ids[fields[i].object];
		answer(core, &bob, &fields[i], id, foreign);
		answer(core, &bob, &fields[i], id ^ UINT64_C(1) << 62, absent); /* with the same number */
		if (strcmp(foreign, absent) == 0 && strncmp(absent, "OK", 2) != 0)
			continue;
		print_error("%s\n  of another user: %s\n  of none:         %s\n", fields[i].name, foreign,
		            absent);
		failures++;
	}
	for (uint32_t kind = 0; kind < ZD_NREQUESTS; kind++)
		assert_true(tried[kind]);
	assert_int_equal(failures, 0);
	core_close_all(core);
}
