/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session_checks.c - what must hold after each packet: whose objects replies and listings name, the engine's
 * invariants and sums, and the restore of durable jobs.
 */
#include "tests/fuzz/session_checks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "tests/fuzz/clients.h"
#include "tests/fuzz/model.h"
#include "tests/support/core_check.h"

#define MAX_IDS      65536u
#define MAX_COMMANDS 4096u

const uint32_t fuzz_uids[FUZZ_USERS] = {1001, 1002};

static struct {
	uint8_t id_owner[MAX_IDS], segment_owner[MAX_IDS]; /* 1 + the user; 0: not known */
	uint8_t *journal;
	size_t journal_bytes;
} seen;

/* ---- Whose is what ------------------------------------------------------------------------------------- */

static void own(uint8_t *owners, uint64_t id, unsigned user)
{
	if (id >= MAX_IDS || user >= FUZZ_USERS)
		return;
	zd_assert(owners[id] == 0 || owners[id] == 1 + user);
	owners[id] = (uint8_t)(1 + user);
}

/* No event names another user's object. */
static void take_events(const Zd__EventsReply *events, unsigned user)
{
	for (size_t i = 0; i < events->n_events && user < FUZZ_USERS; i++) {
		const Zd__Event *event = events->events[i];
		const uint64_t ids[] = {event->job_id, event->object, event->session};

		for (size_t k = 0; k < ZD_ARRAY_LEN(ids); k++) {
			if (ids[k])
				own(seen.id_owner, ids[k], user);
		}
	}
}

/* The first field of all rows but those of devices, segments and blocks is the id. */
static void take_rows(const Zd__ListReply *list, unsigned user)
{
	for (size_t i = 0; i < list->n_rows; i++) {
		const Zd__Row *row = list->rows[i];

		if (row->row_case == ZD__ROW__ROW_DEVICE || row->row_case == ZD__ROW__ROW_SEGMENT ||
		    row->row_case == ZD__ROW__ROW_BLOCK || user >= FUZZ_USERS)
			continue;
		own(seen.id_owner, row->job->id, user);
		zd_assert(row->row_case != ZD__ROW__ROW_JOB || row->job->uid == fuzz_uids[user]);
		zd_assert(row->row_case != ZD__ROW__ROW_SESSION || row->session->uid == fuzz_uids[user]);
	}
}

void fuzz_check_ids(const Zd__Reply *reply, unsigned user)
{
	switch (reply->body_case) {
	case ZD__REPLY__BODY_GROUP_JOIN:
		own(seen.id_owner, reply->group_join->group, user);
		break;
	case ZD__REPLY__BODY_UNIT_REGISTER:
		own(seen.id_owner, reply->unit_register->unit, user);
		own(seen.segment_owner, reply->unit_register->shard->segment, user);
		break;
	case ZD__REPLY__BODY_SCOPE:
		own(seen.id_owner, reply->scope->scope, user);
		break;
	case ZD__REPLY__BODY_BUCKET_CREATE:
		own(seen.id_owner, reply->bucket_create->bucket, user);
		break;
	case ZD__REPLY__BODY_BUCKET_RESERVE:
		own(seen.id_owner, reply->bucket_reserve->entry, user);
		own(seen.segment_owner, reply->bucket_reserve->location->segment, user);
		break;
	case ZD__REPLY__BODY_ALLOC:
		own(seen.id_owner, reply->alloc->allocation, user);
		own(seen.segment_owner, reply->alloc->location->segment, user);
		break;
	case ZD__REPLY__BODY_GATHER:
		if (reply->gather->buffer)
			own(seen.segment_owner, reply->gather->buffer->segment, user);
		break;
	case ZD__REPLY__BODY_EVENTS:
		take_events(reply->events, user);
		break;
	case ZD__REPLY__BODY_LIST:
		take_rows(reply->list, user);
		break;
	default:
		break;
	}
}

/* ---- Invariants ---------------------------------------------------------------------------------------- */

struct sums {
	unsigned user;
	uint64_t jobs_bytes, allocation_bytes, listed_bytes, hash;
	uint32_t durable_jobs;
};

static uint64_t usage_bytes(const Zd__Usage *usage)
{
	return usage->shard_bytes + usage->gathered_bytes + usage->bucket_bytes + usage->staging_bytes +
	       usage->target_bytes + usage->allocation_bytes;
}

static void add_hash(uint64_t *hash, uint64_t value)
{
	*hash = (*hash ^ value) * UINT64_C(0x100000001b3);
}

static void add_text(uint64_t *hash, const char *text)
{
	while (*text)
		add_hash(hash, (uint64_t)*text++);
}

/* Of an object, without ages. */
static void add_content(uint64_t *hash, uint64_t id, const Zd__Row *row)
{
	add_hash(hash, id);
	switch (row->row_case) {
	case ZD__ROW__ROW_JOB:
		add_text(hash, row->job->name);
		add_hash(hash, usage_bytes(row->job->usage));
		add_hash(hash, row->job->sessions + 64ull * row->job->groups);
		break;
	case ZD__ROW__ROW_SESSION:
		add_text(hash, row->session->job);
		add_text(hash, row->session->state);
		add_hash(hash, row->session->outstanding);
		break;
	case ZD__ROW__ROW_GROUP:
		add_text(hash, row->group->name);
		add_text(hash, row->group->state);
		add_hash(hash, row->group->committed_step);
		for (size_t i = 0; i < row->group->n_members; i++)
			add_hash(hash, row->group->members[i]->session);
		break;
	case ZD__ROW__ROW_UNIT:
		add_text(hash, row->unit->name);
		add_hash(hash, row->unit->version_min + 1000 * row->unit->version_max);
		add_hash(hash, row->unit->registered + 64ull * row->unit->gathered);
		break;
	case ZD__ROW__ROW_BUFFER:
		add_text(hash, row->buffer->unit);
		add_text(hash, row->buffer->state);
		add_hash(hash, row->buffer->n_holders);
		break;
	case ZD__ROW__ROW_BUCKET:
		add_hash(hash, row->bucket->reserved + 64ull * row->bucket->submitted);
		break;
	case ZD__ROW__ROW_ALLOCATION:
		add_text(hash, row->allocation->name);
		add_hash(hash, row->allocation->session);
		break;
	case ZD__ROW__ROW_SCOPE:
		add_text(hash, row->scope->tag);
		add_text(hash, row->scope->state);
		add_hash(hash, row->scope->units);
		break;
	default:
		break;
	}
}

static bool add_row(uint64_t id, const Zd__Row *row, void *arg)
{
	struct sums *sums = arg;

	/* Devices are everybody's, and so are the places of segments and blocks in them. */
	if (row->row_case == ZD__ROW__ROW_DEVICE || row->row_case == ZD__ROW__ROW_SEGMENT ||
	    row->row_case == ZD__ROW__ROW_BLOCK)
		return true;
	own(seen.id_owner, id, sums->user);
	add_content(&sums->hash, id, row);
	if (row->row_case == ZD__ROW__ROW_JOB) {
		zd_assert(row->job->uid == fuzz_uids[sums->user]);
		sums->allocation_bytes += row->job->usage->allocation_bytes;
	} else if (row->row_case == ZD__ROW__ROW_ALLOCATION) {
		sums->listed_bytes += row->allocation->bytes;
	}
	return true;
}

/* All that a user may see. Returns false without a session that sees it. */
static bool sum_user(unsigned user, struct sums *sums)
{
	const struct fuzz_actor *ranks = &fuzz_model.actors[user * (size_t)FUZZ_RANKS];
	uint64_t session = ranks[0].session ? ranks[0].session : ranks[1].session;
	Zd__List query = {0};

	*sums = (struct sums){.user = user};
	for (unsigned table = 0; table < ZD_NTABLES && session; table++) {
		query.table = (Zd__Table)table;
		(void)zd_engine_list(fuzz_scene.api.bridge.engine, session, &query, 0, add_row, sums);
	}
	return session != 0;
}

static bool add_job(uint64_t id, const Zd__Row *row, void *arg)
{
	struct sums *sums = arg;
	unsigned user = row->job->uid == fuzz_uids[1];
	unsigned place = row->job->name[0] == 'k' ? 2 : row->job->name[0] == 'n' ? 3 : 0;

	sums->jobs_bytes += usage_bytes(row->job->usage);
	sums->durable_jobs += row->job->durable;
	fuzz_model.jobs[user][place] = id;
	if (place == 0)
		fuzz_model.jobs[user][1] = id;
	return true;
}

static void take_journal(void)
{
	const uint8_t *bytes;
	size_t nbytes = zd_engine_journal_take(fuzz_scene.api.bridge.engine, &bytes);

	seen.journal = zd_realloc(seen.journal, seen.journal_bytes + nbytes + 1, 1);
	memcpy(seen.journal + seen.journal_bytes, bytes, nbytes);
	seen.journal_bytes += nbytes;
}

uint32_t fuzz_check(void)
{
	const Zd__List query = {.table = ZD__TABLE__JOBS};
	struct zd_engine_totals totals;
	struct sums all = {.user = FUZZ_USERS}, user;

	zd_engine_check(fuzz_scene.api.bridge.engine);
	fuzz_model.draining = fuzz_scene.api.draining;
	take_journal();
	memset(fuzz_model.jobs, 0, sizeof(fuzz_model.jobs));
	(void)zd_engine_list(fuzz_scene.api.bridge.engine, 0, &query, 0, add_job, &all);
	zd_engine_totals(fuzz_scene.api.bridge.engine, &totals);
	zd_assert(all.jobs_bytes == usage_bytes(&totals.usage));
	for (unsigned i = 0; i < FUZZ_USERS; i++) {
		if (sum_user(i, &user))
			zd_assert(user.allocation_bytes == user.listed_bytes);
	}
	return all.durable_jobs;
}

/* ---- A restored engine --------------------------------------------------------------------------------- */

/* Commands that are not completed. */
struct commands {
	uint64_t ops[MAX_COMMANDS];
	size_t count;
};

static void take_command(void *arg, const struct zd_command *command)
{
	struct commands *commands = arg;

	if (command->op == 0)
		return;
	zd_assert(commands->count < MAX_COMMANDS);
	commands->ops[commands->count++] = command->op;
}

static int restore_segment(void *arg, uint32_t device, uint32_t segment, uint64_t bytes, struct zd_err *err)
{
	(void)arg;
	(void)device;
	(void)segment;
	(void)bytes;
	(void)err;
	return 0;
}

void fuzz_check_restore(uint32_t durable_jobs)
{
	const struct zd_device_config devices[FUZZ_DEVICES] = {
	        {.arena_bytes = FUZZ_ARENA_BYTES, .name = "fake0"},
	        {.arena_bytes = FUZZ_ARENA_BYTES, .name = "fake1"}};
	const struct zd_engine_config config = {
	        .ndevices = FUZZ_DEVICES, .devices = devices, .collectives = true, .events = 64};
	struct commands commands = {.count = 0};
	const struct zd_engine_sink sink = {
	        .arg = &commands, .command = take_command, .segment_restore = restore_segment};
	struct zd_engine *engine = zd_engine_new(&config, &sink);
	struct zd_engine_totals totals;
	struct zd_err err = ZD_ERR_NONE;
	int rc;

	zd_engine_tick(engine, zd_loop_now_ns());
	rc = zd_engine_restore(engine, seen.journal, seen.journal_bytes, &err);
	if (rc)
		(void)fprintf(stderr, "restore: %s\n", err.text);
	zd_assert(rc == 0);
	zd_engine_check(engine);
	zd_engine_totals(engine, &totals);
	zd_assert(totals.jobs == durable_jobs && totals.durable_jobs == durable_jobs);
	while (commands.count > 0) { /* processes leave, and shards are rolled back */
		zd_engine_op_done(engine, commands.ops[--commands.count], 0, "", NULL);
		zd_engine_check(engine);
	}
	zd_engine_free(engine);
}

/* ---- The beginning and the end ------------------------------------------------------------------------- */

void fuzz_check_segment(uint32_t segment, unsigned user)
{
	own(seen.segment_owner, segment, user);
}

void fuzz_check_own(uint64_t id, unsigned user)
{
	own(seen.id_owner, id, user);
}

bool fuzz_hash_user(unsigned user, uint64_t *hash)
{
	struct sums sums;
	bool any = sum_user(user, &sums);

	*hash = sums.hash;
	return any;
}

void fuzz_checks_begin(void)
{
	memset(&seen, 0, sizeof(seen));
	/* The journal is recorded here, and not by the daemon. */
	fuzz_scene.api.bridge.keeper.bridge = NULL;
	zd_engine_journal_all(fuzz_scene.api.bridge.engine);
}

void fuzz_checks_end(void)
{
	struct zd_engine_totals totals;

	zd_engine_totals(fuzz_scene.api.bridge.engine, &totals);
	zd_assert(totals.jobs == 0 && totals.groups == 0 && usage_bytes(&totals.usage) == 0);
	free(seen.journal);
}
