// SPDX-License-Identifier: Apache-2.0
/*
 * explain.c - sentences about buffers, groups and waits, made of all listings.
 */
#include "explain.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

#define NTEXTS 8u

/* ---- Facts --------------------------------------------------------------------------------------------- */

int zd_ctl_facts_fetch(struct zd_ctl *ctl, struct zd_ctl_facts *facts)
{
	const struct {
		const struct zd_ctl_listing *listing;
		json_t **rows;
	} all[] = {
	        {&zd_ctl_jobs_listing, &facts->jobs},
	        {&zd_ctl_sessions_listing, &facts->sessions},
	        {&zd_ctl_groups_listing, &facts->groups},
	        {&zd_ctl_units_listing, &facts->units},
	        {&zd_ctl_buffers_listing, &facts->buffers},
	        {&zd_ctl_scopes_listing, &facts->scopes},
	        {&zd_ctl_allocations_listing, &facts->allocations},
	};
	for (size_t i = 0; i < ZD_ARRAY_LEN(all); i++) {
		int status = zd_ctl_list_fetch(ctl, all[i].listing, all[i].rows);
		if (status)
			return status;
	}
	return 0;
}

void zd_ctl_facts_deinit(struct zd_ctl_facts *facts)
{
	json_decref(facts->map);
	json_decref(facts->jobs);
	json_decref(facts->sessions);
	json_decref(facts->groups);
	json_decref(facts->units);
	json_decref(facts->buffers);
	json_decref(facts->scopes);
	json_decref(facts->allocations);
	*facts = (struct zd_ctl_facts){.map = NULL};
}

/* ---- Texts --------------------------------------------------------------------------------------------- */

static json_t *collected; /* NULL: sentences are printed */

void zd_ctl_collect(json_t *sentences)
{
	collected = sentences;
}

/* Adds {"text": sentence, "detail": whether it is about the sentence before}. */
static void collect(const char *text)
{
	const bool detail = strncmp(text, "  ", 2) == 0;
	(void)json_array_append_new(
	        collected, json_pack("{s:s,s:b}", "text", detail ? text + 2 : text, "detail", (int)detail));
}

void zd_ctl_say(const char *format, ...)
{
	va_list args;
	char *text;
	va_start(args, format);
	const int bytes = vasprintf(&text, format, args);
	if (bytes >= 0 && collected) {
		collect(text);
		free(text);
	} else if (bytes >= 0) {
		text = zd_ctl_shown(text);
		puts(text);
		free(text);
	}
	va_end(args);
}

const char *zd_ctl_bytes(json_int_t bytes)
{
	static char texts[NTEXTS][ZD_BYTES_TEXT];
	static unsigned next;
	return zd_bytes_text((uint64_t)bytes, texts[next++ % NTEXTS]);
}

const char *zd_ctl_age(json_int_t ns)
{
	static char texts[NTEXTS][ZD_CTL_AGE_TEXT];
	static unsigned next;
	return zd_ctl_age_text((uint64_t)ns, texts[next++ % NTEXTS]);
}

char *zd_ctl_session_text(const struct zd_ctl_facts *facts, json_int_t id)
{
	const json_t *row = zd_ctl_row_of_id(facts->sessions, id);
	if (!row)
		return zd_ctl_text("session %" JSON_INTEGER_FORMAT ", which has ended", zd_ctl_number(id));
	const char *name = zd_ctl_string(row, "name");
	const char *process = zd_ctl_string(row, "process");
	const bool runs = strcmp(process, "running") == 0 || strcmp(process, "unknown") == 0;
	return zd_ctl_text("session %" JSON_INTEGER_FORMAT " (pid %" JSON_INTEGER_FORMAT "%s%s%s%s%s)",
	                   zd_ctl_number(id), zd_ctl_integer(row, "pid"), *name ? ", '" : "", name,
	                   *name ? "'" : "", runs ? "" : ", ", runs ? "" : process);
}

/* ---- Processes ----------------------------------------------------------------------------------------- */

void zd_ctl_explain_process(const json_t *session, const char *who)
{
	const char *process = zd_ctl_string(session, "process");
	const char *age = zd_ctl_age(zd_ctl_integer(session, "idle_ns"));
	const json_int_t pid = zd_ctl_integer(session, "pid");
	if (strcmp(process, "stopped") == 0)
		zd_ctl_say("%s (pid %" JSON_INTEGER_FORMAT
		           ") is stopped (SIGSTOP), and made its last request %s "
		           "ago. `kill -CONT %" JSON_INTEGER_FORMAT "` continues it.",
		           who, pid, age, pid);
	else if (strcmp(process, "traced") == 0)
		zd_ctl_say("%s (pid %" JSON_INTEGER_FORMAT ") is stopped by a debugger, and made its last "
		           "request %s ago.",
		           who, pid, age);
	else if (strcmp(process, "zombie") == 0 || strcmp(process, "gone") == 0)
		zd_ctl_say("%s (pid %" JSON_INTEGER_FORMAT ") has ended%s.", who, pid,
		           *process == 'z' ? ", and its parent has not waited for it" : "");
}

void zd_ctl_explain_processes(const struct zd_ctl_facts *facts, const char *job)
{
	size_t i, j;
	json_t *group, *member;
	json_array_foreach(facts->groups, i, group)
	{
		if (!zd_ctl_is(group, "job", job))
			continue;
		json_array_foreach(json_object_get(group, "members"), j, member)
		{
			char *who = zd_ctl_text("Rank %" JSON_INTEGER_FORMAT, zd_ctl_integer(member, "rank"));
			zd_ctl_explain_process(
			        zd_ctl_row_of_id(facts->sessions, zd_ctl_integer(member, "session")), who);
			free(who);
		}
	}
}

/* ---- Waits --------------------------------------------------------------------------------------------- */

static void say_waits_of(const json_t *session)
{
	size_t i;
	json_t *wait;
	json_array_foreach(json_object_get(session, "waits"), i, wait)
	        zd_ctl_say("  That session waits itself: %s.", json_string_value(wait));
}

bool zd_ctl_reads(const json_t *session, const char *job, const char *group)
{
	const json_t *reads = json_object_get(session, "reads");
	return zd_ctl_is(reads, "group", group) && zd_ctl_is(reads, "job", job);
}

/* For a wait for transfers that read a shard. Omits those of gathers. */
static void say_copies(const struct zd_ctl_facts *facts, const char *job, const char *group)
{
	size_t i;
	json_t *session;
	json_array_foreach(facts->sessions, i, session)
	{
		const json_int_t copies = zd_ctl_integer(json_object_get(session, "reads"), "copies");
		if (copies == 0 || !zd_ctl_reads(session, job, group))
			continue;
		char *text = zd_ctl_session_text(facts, zd_ctl_integer(session, "id"));
		zd_ctl_say("  Copies to %s are in progress: %" JSON_INTEGER_FORMAT
		           ". The wait ends with them, regardless of that process.",
		           text, copies);
		free(text);
	}
}

void zd_ctl_explain_wait(const struct zd_ctl_facts *facts, const char *job, const char *group,
                         const char *wait)
{
	unsigned rank;
	if (strstr(wait, "the shard of rank"))
		say_copies(facts, job, group);
	if (sscanf(wait, "rank %u", &rank) != 1)
		return;
	const json_t *member = zd_ctl_find_rank(facts->groups, job, group, rank);
	const json_int_t session = zd_ctl_integer(member, "session");
	if (!member)
		return;
	if (session == 0) {
		zd_ctl_say("  Rank %u has no session: the wait ends when a process joins as this rank.",
		           rank);
		return;
	}
	char *text = zd_ctl_session_text(facts, session);
	zd_ctl_say("  Rank %u is %s.", rank, text);
	free(text);
	say_waits_of(zd_ctl_row_of_id(facts->sessions, session));
}

/* ---- Buffers ------------------------------------------------------------------------------------------- */

/* The session's scope of this tag. */
static const json_t *find_scope(const struct zd_ctl_facts *facts, const json_t *holder)
{
	size_t i;
	json_t *scope;
	json_array_foreach(facts->scopes, i, scope)
	{
		if (zd_ctl_integer(scope, "session") == zd_ctl_integer(holder, "session") &&
		    zd_ctl_is(scope, "tag", zd_ctl_string(holder, "tag")))
			return scope;
	}
	return NULL;
}

/* A tag with '@' in front is a scope's. */
static void say_holder(const struct zd_ctl_facts *facts, const json_t *holder)
{
	const char *tag = zd_ctl_string(holder, "tag");
	const json_int_t uses = zd_ctl_integer(holder, "uses");
	const json_t *scope = *tag == '@' ? find_scope(facts, holder) : NULL;
	if (*tag && zd_ctl_integer(holder, "session") == 0) { /* "and 3 more" */
		zd_ctl_say("  %s leases hold it.", tag);
		return;
	}
	char *session = zd_ctl_session_text(facts, zd_ctl_integer(holder, "session"));
	if (scope)
		zd_ctl_say("  The scope '%s' of %s, which is %s, has held it for %s: the end of the scope "
		           "frees it.",
		           tag, session, zd_ctl_string(scope, "state"),
		           zd_ctl_age(zd_ctl_integer(holder, "age_ns")));
	else
		zd_ctl_say("  A lease of %s under tag '%s' has held it for %s: %" JSON_INTEGER_FORMAT
		           " release%s free it.",
		           session, tag, zd_ctl_age(zd_ctl_integer(holder, "age_ns")), uses,
		           uses == 1 ? "" : "s");
	free(session);
}

static void say_waiting(const struct zd_ctl_facts *facts, const json_t *buffer)
{
	const char *wait = zd_ctl_string(buffer, "waits_for");
	const json_t *holder = json_array_get(json_object_get(buffer, "holders"), 0);
	const json_int_t version = zd_ctl_integer(buffer, "version"); /* 0: the gather asked for none */
	char *by = holder ? zd_ctl_session_text(facts, zd_ctl_integer(holder, "session"))
	                  : zd_ctl_text("a prefetch");
	char *of = version ? zd_ctl_text(" of version %" JSON_INTEGER_FORMAT, version)
	                   : zd_ctl_text("%s", "");
	zd_ctl_say("Rank %" JSON_INTEGER_FORMAT ", device %" JSON_INTEGER_FORMAT
	           ": a gather%s by %s has waited for %s.",
	           zd_ctl_integer(buffer, "rank"), zd_ctl_integer(buffer, "device"), of, by,
	           zd_ctl_age(zd_ctl_integer(buffer, "age_ns")));
	free(by);
	free(of);
	zd_ctl_say("  It waits for %s.", *wait ? wait : "nothing that the daemon names");
	zd_ctl_explain_wait(facts, zd_ctl_string(buffer, "job"), zd_ctl_string(buffer, "group"), wait);
}

void zd_ctl_explain_buffer(const struct zd_ctl_facts *facts, const json_t *buffer)
{
	const json_t *holders = json_object_get(buffer, "holders");
	const char *state = zd_ctl_string(buffer, "state"), *wait = zd_ctl_string(buffer, "waits_for");
	size_t i;
	json_t *holder;
	if (strcmp(state, "WAITING") == 0) {
		say_waiting(facts, buffer);
		return;
	}
	zd_ctl_say("Rank %" JSON_INTEGER_FORMAT ", device %" JSON_INTEGER_FORMAT
	           ": a buffer of %s%s, version %" JSON_INTEGER_FORMAT ", has been %s for %s.",
	           zd_ctl_integer(buffer, "rank"), zd_ctl_integer(buffer, "device"),
	           zd_ctl_bytes(zd_ctl_integer(buffer, "padded_bytes")),
	           json_is_true(json_object_get(buffer, "in_place")) ? " in addition to the rank's own shard"
	                                                             : "",
	           zd_ctl_integer(buffer, "version"), state, zd_ctl_age(zd_ctl_integer(buffer, "age_ns")));
	json_array_foreach((json_t *)holders, i, holder) say_holder(facts, holder);
	if (json_is_true(json_object_get(buffer, "persistent")))
		zd_ctl_say("  Its unit is persistent for this rank: it remains without leases until the rank "
		           "leaves.");
	else if (json_array_size(holders) == 0 && json_is_true(json_object_get(buffer, "prefetched")))
		zd_ctl_say("  It was prefetched, and no gather has joined it: `zeroctl trim` frees it.");
	if (*wait && strcmp(state, "QUARANTINED") == 0)
		zd_ctl_say("  No lease holds it, and it is not charged. Its memory waits for %s.", wait);
	else if (*wait)
		zd_ctl_say("  It waits for %s.", wait);
	zd_ctl_explain_wait(facts, zd_ctl_string(buffer, "job"), zd_ctl_string(buffer, "group"), wait);
}

/* ---- Groups -------------------------------------------------------------------------------------------- */

static const char *state_meaning(const char *state)
{
	static const struct {
		const char *state, *meaning;
	} meanings[] = {
	        {"FORMING", "it waits for ranks that have not joined"},
	        {"CONNECTING", "it waits for the ranks of other daemons"},
	        {"FAILED", "it has lost ranks, and continues when they have joined again"},
	        {"LEFT", "ranks have ended normally, and the others can gather"},
	        {"PARKED", "all ranks have left, and the job retains their shards for the next join"},
	        {"ABORTED", "it has ended; its ranks can leave, and join again"},
	        {"OVER", "all ranks have left, and operations still use its memory"},
	};
	for (size_t i = 0; i < ZD_ARRAY_LEN(meanings); i++)
		if (strcmp(state, meanings[i].state) == 0)
			return meanings[i].meaning;
	return "all ranks have joined";
}

void zd_ctl_explain_group(const struct zd_ctl_facts *facts, const json_t *group)
{
	const char *state = zd_ctl_string(group, "state"), *why = zd_ctl_string(group, "why");
	char *missing = zd_ctl_missing_ranks(group);
	(void)facts;
	if (*missing || strcmp(state, "READY") != 0)
		zd_ctl_say("Group '%s' of job '%s' is %s: %s.", zd_ctl_string(group, "name"),
		           zd_ctl_string(group, "job"), state, state_meaning(state));
	if (*missing)
		zd_ctl_say("  Ranks without a session: %s.", missing);
	if (*why)
		zd_ctl_say("  It has ended because: %s.", why);
	if (json_is_true(json_object_get(group, "torn")))
		zd_ctl_say("  It is torn: it has lost a rank since its last commit, and shards may have "
		           "different "
		           "versions.");
	free(missing);
}

void zd_ctl_explain_closing(const struct zd_ctl_facts *facts, const char *job, json_int_t uid)
{
	size_t i, j;
	json_t *session, *wait;
	json_array_foreach(facts->sessions, i, session)
	{
		if (!zd_ctl_is(session, "state", "CLOSING") || !zd_ctl_is(session, "job", job) ||
		    (uid >= 0 && zd_ctl_integer(session, "uid") != uid))
			continue;
		char *text = zd_ctl_session_text(facts, zd_ctl_integer(session, "id"));
		zd_ctl_say("Memory of %s is retained, although its connection has ended.", text);
		free(text);
		json_array_foreach(json_object_get(session, "waits"), j, wait)
		        zd_ctl_say("  It waits for %s.", json_string_value(wait));
	}
}
