// SPDX-License-Identifier: Apache-2.0
/*
 * verb_explain.c - zeroctl explain: the holders of a unit's buffers or a job's memory, or the objects of a
 * session; the reasons of their waits; and how to free them.
 */
#include "explain.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define MOST_LINES 8u /* of one kind */

/* ---- Units --------------------------------------------------------------------------------------------- */

/* Whether `rest`, after the job's name, names the unit. *rank: the number after '@', or -1 for all. */
static bool names_unit(const json_t *unit, const char *rest, json_int_t *rank)
{
	char *name = zd_ctl_text("%s/%s", zd_ctl_string(unit, "group"), zd_ctl_string(unit, "name"));
	const size_t bytes = strlen(name);
	bool found = strncmp(rest, name, bytes) == 0;
	free(name);
	*rank = -1;
	if (!found || rest[bytes] == '\0')
		return found;
	const char *digits = rest + bytes + 1;
	if (rest[bytes] != '@' || !*digits || digits[strspn(digits, "0123456789")] || strlen(digits) > 9)
		return false;
	*rank = atoll(digits);
	return true;
}

static bool is_of_group(const json_t *row, const json_t *group)
{
	return zd_ctl_is(row, "job", zd_ctl_string(group, "job")) &&
	       zd_ctl_is(row, "group", zd_ctl_string(group, "name"));
}

static bool is_of_unit(const json_t *buffer, const json_t *unit)
{
	return zd_ctl_is(buffer, "job", zd_ctl_string(unit, "job")) &&
	       zd_ctl_is(buffer, "group", zd_ctl_string(unit, "group")) &&
	       zd_ctl_is(buffer, "unit", zd_ctl_string(unit, "name"));
}

static void say_unit(const json_t *unit, const json_t *group)
{
	zd_ctl_say("Unit '%s' of job '%s', group '%s': %s, versions %" JSON_INTEGER_FORMAT
	           " to %" JSON_INTEGER_FORMAT ", registered by %" JSON_INTEGER_FORMAT
	           " of %" JSON_INTEGER_FORMAT " ranks.",
	           zd_ctl_string(unit, "name"), zd_ctl_string(unit, "job"), zd_ctl_string(unit, "group"),
	           zd_ctl_bytes(zd_ctl_integer(unit, "padded_bytes")), zd_ctl_integer(unit, "version_min"),
	           zd_ctl_integer(unit, "version_max"), zd_ctl_integer(unit, "registered"),
	           zd_ctl_integer(group, "local_world_size"));
}

static int check_rank(const json_t *group, json_int_t rank)
{
	size_t i;
	json_t *member;
	json_array_foreach(json_object_get(group, "members"), i, member)
	{
		if (rank < 0 || zd_ctl_integer(member, "rank") == rank)
			return 0;
	}
	return zd_ctl_fail(ZEROD_E_NOT_FOUND,
	                   "NOT_FOUND: group '%s' has no rank %" JSON_INTEGER_FORMAT " here",
	                   zd_ctl_string(group, "name"), rank);
}

/* A shard that is only read, or waits for its rank, or is asked for by rank. */
static void say_shard(const json_t *block, bool asked)
{
	const char *state = zd_ctl_string(block, "state"), *pins = zd_ctl_string(block, "pins");
	const bool detached = strcmp(state, "DETACHED") == 0, dying = strcmp(state, "DYING") == 0;
	if (!asked && !detached && !dying)
		return;
	zd_ctl_say("Rank %" JSON_INTEGER_FORMAT ", device %" JSON_INTEGER_FORMAT ": its shard of %s is %s.",
	           zd_ctl_integer(block, "rank"), zd_ctl_integer(block, "device"),
	           zd_ctl_bytes(zd_ctl_integer(block, "bytes")), state);
	if (*pins)
		zd_ctl_say("  In use: %s.", pins);
	if (detached)
		zd_ctl_say("  The job retains it for the next process that joins as this rank; `zeroctl "
		           "end-job` frees it.");
	else if (dying)
		zd_ctl_say("  Its rank has left: it is freed when that has ended.");
}

static void say_shards(const struct zd_ctl_facts *facts, const json_t *unit, json_int_t rank)
{
	size_t i;
	json_t *row;
	json_array_foreach(facts->map, i, row)
	{
		if (zd_ctl_is(row, "name", zd_ctl_string(unit, "name")) &&
		    zd_ctl_is(row, "group", zd_ctl_string(unit, "group")) &&
		    zd_ctl_is(row, "job", zd_ctl_string(unit, "job")) &&
		    strncmp(zd_ctl_string(row, "purpose"), "shard", 5) == 0 &&
		    (rank < 0 || zd_ctl_integer(row, "rank") == rank))
			say_shard(row, rank >= 0);
	}
}

static int explain_unit(const struct zd_ctl_facts *facts, const json_t *unit, json_int_t rank)
{
	size_t i, count = 0;
	json_t *buffer, *group, *of = NULL;
	json_array_foreach(facts->groups, i, group)
	{
		if (is_of_group(unit, group) && !zd_ctl_is(group, "state", "OVER"))
			of = group;
	}
	int status = check_rank(of, rank);
	if (status)
		return status;
	say_unit(unit, of);
	json_array_foreach(facts->buffers, i, buffer)
	{
		if (!is_of_unit(buffer, unit) || (rank >= 0 && zd_ctl_integer(buffer, "rank") != rank))
			continue;
		zd_ctl_explain_buffer(facts, buffer);
		count++;
	}
	if (count == 0 && rank >= 0)
		zd_ctl_say("Rank %" JSON_INTEGER_FORMAT
		           " has no gathered buffer of it, and does not wait for one.",
		           rank);
	else if (count == 0)
		zd_ctl_say("No rank has a gathered buffer of it, or waits for one.");
	say_shards(facts, unit, rank);
	if (of)
		zd_ctl_explain_group(facts, of);
	zd_ctl_explain_processes(facts, zd_ctl_string(unit, "job"));
	zd_ctl_explain_closing(facts, zd_ctl_string(unit, "job"), -1);
	return 0;
}

/* ---- Jobs ---------------------------------------------------------------------------------------------- */

static void say_usage(const json_t *job)
{
	static const struct {
		const char *key, *what;
	} purposes[] = {
	        {"shard_bytes", "shards"},   {"gathered_bytes", "gathered buffers"},
	        {"bucket_bytes", "buckets"}, {"staging_bytes", "staging"},
	        {"target_bytes", "targets"}, {"allocation_bytes", "allocations"},
	};
	const json_t *usage = json_object_get(job, "usage");
	char *text = zd_ctl_text("%s", "");
	for (size_t i = 0; i < ZD_ARRAY_LEN(purposes); i++) {
		const json_int_t bytes = zd_ctl_integer(usage, purposes[i].key);
		if (bytes == 0)
			continue;
		text = zd_ctl_append(text, "%s%s of %s", *text ? ", " : "", zd_ctl_bytes(bytes),
		                     purposes[i].what);
	}
	zd_ctl_say("It is charged %s.", *text ? text : "nothing");
	free(text);
}

/* Which of the job's buffers have leases or wait, and the oldest lease. */
static void say_buffers(const struct zd_ctl_facts *facts, const char *job)
{
	const json_t *oldest = NULL, *oldest_holder = NULL;
	size_t leased = 0, waiting = 0, quarantined = 0, i, j;
	json_t *buffer, *holder;
	json_array_foreach(facts->buffers, i, buffer)
	{
		const char *state = zd_ctl_string(buffer, "state");
		if (!zd_ctl_is(buffer, "job", job))
			continue;
		waiting += strcmp(state, "WAITING") == 0;
		quarantined += strcmp(state, "QUARANTINED") == 0;
		if (strcmp(state, "WAITING") == 0)
			continue;
		leased += json_array_size(json_object_get(buffer, "holders")) > 0;
		json_array_foreach(json_object_get(buffer, "holders"), j, holder)
		{
			if (!oldest ||
			    zd_ctl_integer(holder, "age_ns") > zd_ctl_integer(oldest_holder, "age_ns")) {
				oldest = buffer;
				oldest_holder = holder;
			}
		}
	}
	zd_ctl_say("Buffers with leases: %zu; in quarantine: %zu; gathers that wait: %zu.", leased,
	           quarantined, waiting);
	if (!oldest)
		return;
	char *session = zd_ctl_session_text(facts, zd_ctl_integer(oldest_holder, "session"));
	zd_ctl_say("  The oldest lease is on unit '%s', by %s under tag '%s', for %s.",
	           zd_ctl_string(oldest, "unit"), session, zd_ctl_string(oldest_holder, "tag"),
	           zd_ctl_age(zd_ctl_integer(oldest_holder, "age_ns")));
	free(session);
}

static void say_waits(const struct zd_ctl_facts *facts, const json_t *session, const char *who)
{
	size_t i;
	json_t *wait;
	json_array_foreach(json_object_get(session, "waits"), i, wait)
	{
		const char *text = json_string_value(wait), *colon = strstr(text, ": ");
		zd_ctl_say("%s waits: %s.", who, text);
		json_t *group;
		size_t j;
		json_array_foreach(facts->groups, j, group)
		{
			const char *job = zd_ctl_string(group, "job"), *name = zd_ctl_string(group, "name");
			const bool reads = strncmp(text, "commit_wait: ", 13) == 0;
			if (colon && (reads ? zd_ctl_reads(session, job, name)
			                    : strcmp(job, zd_ctl_string(session, "job")) == 0))
				zd_ctl_explain_wait(facts, job, name, colon + 2);
		}
	}
}

static bool is_reader(const json_t *session)
{
	return !zd_ctl_reads(session, "", "");
}

static void say_reads(const json_t *session, const char *who)
{
	const json_t *reads = json_object_get(session, "reads");
	zd_ctl_say("%s reads group '%s' of job '%s': step %" JSON_INTEGER_FORMAT
	           " last, %s in all, %" JSON_INTEGER_FORMAT " copies in progress.",
	           who, zd_ctl_string(reads, "group"), zd_ctl_string(reads, "job"),
	           zd_ctl_integer(reads, "step"), zd_ctl_bytes(zd_ctl_integer(reads, "bytes")),
	           zd_ctl_integer(reads, "copies"));
}

static void say_readers(const struct zd_ctl_facts *facts, const json_t *group)
{
	size_t i;
	json_t *session;
	json_array_foreach(facts->sessions, i, session)
	{
		if (!zd_ctl_reads(session, zd_ctl_string(group, "job"), zd_ctl_string(group, "name")))
			continue;
		char *text = zd_ctl_session_text(facts, zd_ctl_integer(session, "id"));
		*text = 'S';
		say_reads(session, text);
		free(text);
		say_waits(facts, session, "  It");
	}
}

static int explain_job(const struct zd_ctl_facts *facts, const json_t *job)
{
	const char *name = zd_ctl_string(job, "name");
	const bool durable = json_is_true(json_object_get(job, "durable"));
	const json_int_t nsessions = zd_ctl_integer(job, "sessions"), uid = zd_ctl_integer(job, "uid");
	size_t i;
	json_t *group, *session;
	zd_ctl_say("Job '%s' of uid %" JSON_INTEGER_FORMAT " is %sdurable, with %" JSON_INTEGER_FORMAT
	           " session%s and %" JSON_INTEGER_FORMAT " group%s.",
	           name, uid, durable ? "" : "not ", nsessions, nsessions == 1 ? "" : "s",
	           zd_ctl_integer(job, "groups"), zd_ctl_integer(job, "groups") == 1 ? "" : "s");
	say_usage(job);
	json_array_foreach(facts->groups, i, group)
	{
		if (zd_ctl_is(group, "job", name)) {
			zd_ctl_explain_group(facts, group);
			say_readers(facts, group);
		}
	}
	say_buffers(facts, name);
	json_array_foreach(facts->sessions, i, session)
	{
		if (!zd_ctl_is(session, "job", name) || zd_ctl_integer(session, "uid") != uid ||
		    zd_ctl_is(json_object_get(session, "reads"), "job", name) ||
		    zd_ctl_is(session, "state", "CLOSING"))
			continue;
		char *who = zd_ctl_text("Session %" JSON_INTEGER_FORMAT,
		                        zd_ctl_number(zd_ctl_integer(session, "id")));
		if (is_reader(session))
			say_reads(session, who);
		say_waits(facts, session, who);
		free(who);
	}
	zd_ctl_explain_processes(facts, name);
	zd_ctl_explain_closing(facts, name, uid);
	if (durable && nsessions == 0)
		zd_ctl_say("No session uses it. `zeroctl end-job %s` frees it; otherwise durable_ttl of "
		           "zerod.conf does.",
		           name);
	else if (durable)
		zd_ctl_say(
		        "Its shards and durable allocations remain when its sessions end. `zeroctl kill-job "
		        "%s` ends "
		        "the sessions and frees all of it.",
		        name);
	else
		zd_ctl_say("All of it is freed with its sessions, which `zeroctl kill-job %s` ends.", name);
	return 0;
}

/* ---- Sessions ------------------------------------------------------------------------------------------ */

static void say_memberships(const struct zd_ctl_facts *facts, json_int_t id)
{
	size_t i, j;
	json_t *group, *member;
	json_array_foreach(facts->groups, i, group)
	{
		json_array_foreach(json_object_get(group, "members"), j, member)
		{
			if (zd_ctl_integer(member, "session") == id)
				zd_ctl_say("It is rank %" JSON_INTEGER_FORMAT
				           " of group '%s' of job '%s', on device "
				           "%" JSON_INTEGER_FORMAT ".",
				           zd_ctl_integer(member, "rank"), zd_ctl_string(group, "name"),
				           zd_ctl_string(group, "job"), zd_ctl_integer(member, "device"));
		}
	}
}

static void say_leases(const struct zd_ctl_facts *facts, json_int_t id)
{
	size_t i, j, count = 0;
	json_int_t bytes = 0;
	json_t *buffer, *holder;
	json_array_foreach(facts->buffers, i, buffer)
	{
		bool holds = false;
		json_array_foreach(json_object_get(buffer, "holders"), j, holder)
		        holds = holds || zd_ctl_integer(holder, "session") == id;
		if (!holds || zd_ctl_is(buffer, "state", "WAITING"))
			continue;
		bytes += zd_ctl_integer(buffer, "padded_bytes");
		holder = json_array_get(json_object_get(buffer, "holders"), 0);
		if (count++ < MOST_LINES)
			zd_ctl_say("It holds unit '%s' of job '%s', %s, under tag '%s', for %s.",
			           zd_ctl_string(buffer, "unit"), zd_ctl_string(buffer, "job"),
			           zd_ctl_bytes(zd_ctl_integer(buffer, "padded_bytes")),
			           zd_ctl_string(holder, "tag"),
			           zd_ctl_age(zd_ctl_integer(holder, "age_ns")));
	}
	if (count > MOST_LINES)
		zd_ctl_say("It holds %zu gathered buffers, %s in all.", count, zd_ctl_bytes(bytes));
}

static void say_scopes_and_allocations(const struct zd_ctl_facts *facts, json_int_t id)
{
	size_t i, count = 0;
	json_int_t bytes = 0;
	json_t *row;
	json_array_foreach(facts->scopes, i, row)
	{
		if (zd_ctl_integer(row, "session") == id && count++ < MOST_LINES)
			zd_ctl_say("Its scope '%s' has existed for %s, and is %s.", zd_ctl_string(row, "tag"),
			           zd_ctl_age(zd_ctl_integer(row, "age_ns")), zd_ctl_string(row, "state"));
	}
	count = 0;
	json_array_foreach(facts->allocations, i, row)
	{
		if (zd_ctl_integer(row, "session") != id)
			continue;
		count++;
		bytes += zd_ctl_integer(row, "bytes");
	}
	if (count > 0)
		zd_ctl_say("It has %zu allocation%s, %s.", count, count == 1 ? "" : "s", zd_ctl_bytes(bytes));
}

static int explain_session(const struct zd_ctl_facts *facts, const json_t *session)
{
	const json_int_t id = zd_ctl_integer(session, "id");
	const char *state = zd_ctl_string(session, "state"), *job = zd_ctl_string(session, "job");
	const bool closing = strcmp(state, "CLOSING") == 0;
	char *text = zd_ctl_session_text(facts, id);
	*text = 'S';
	zd_ctl_say("%s of uid %" JSON_INTEGER_FORMAT ", opened %s ago%s%s%s, is %s.", text,
	           zd_ctl_integer(session, "uid"), zd_ctl_age(zd_ctl_integer(session, "age_ns")),
	           *job ? ", of job '" : "", job, *job ? "'" : "", state);
	free(text);
	zd_ctl_explain_process(session, "Its process");
	if (*zd_ctl_string(session, "process_unknown"))
		zd_ctl_say("Whether its process runs is not known: %s.",
		           zd_ctl_string(session, "process_unknown"));
	say_memberships(facts, id);
	if (is_reader(session))
		say_reads(session, "It");
	say_waits(facts, session, "It");
	say_leases(facts, id);
	say_scopes_and_allocations(facts, id);
	if (closing)
		zd_ctl_say("Its connection has ended. Memory that its process can still use is freed when "
		           "the process has "
		           "left the devices.");
	else if (strcmp(state, "POISONED") == 0)
		zd_ctl_say("Its streams have waited for work that failed: the program has to reset the "
		           "session.");
	if (!closing)
		zd_ctl_say("`zeroctl kill-session %" JSON_INTEGER_FORMAT "` ends it, and frees its memory.",
		           zd_ctl_number(id));
	return 0;
}

/* ---- Groups -------------------------------------------------------------------------------------------- */

static void explain_group(const struct zd_ctl_facts *facts, const json_t *group)
{
	size_t i, count = 0;
	json_t *member, *buffer;
	zd_ctl_say("Group '%s' of job '%s' is %s, with %" JSON_INTEGER_FORMAT
	           " units. Its last committed step is %" JSON_INTEGER_FORMAT ".",
	           zd_ctl_string(group, "name"), zd_ctl_string(group, "job"), zd_ctl_string(group, "state"),
	           zd_ctl_integer(group, "units"), zd_ctl_integer(group, "committed_step"));
	json_array_foreach(json_object_get(group, "members"), i, member)
	{
		const json_int_t id = zd_ctl_integer(member, "session");
		if (id == 0)
			continue;
		char *who = zd_ctl_text("Rank %" JSON_INTEGER_FORMAT, zd_ctl_integer(member, "rank"));
		char *text = zd_ctl_session_text(facts, id);
		zd_ctl_say("%s is %s, on device %" JSON_INTEGER_FORMAT ".", who, text,
		           zd_ctl_integer(member, "device"));
		const json_t *session = zd_ctl_row_of_id(facts->sessions, id);
		if (is_reader(session) &&
		    !zd_ctl_reads(session, zd_ctl_string(group, "job"), zd_ctl_string(group, "name")))
			say_reads(session, "  It");
		say_waits(facts, session, "  It");
		free(text);
		free(who);
	}
	json_array_foreach(facts->buffers, i, buffer)
	{
		if (is_of_group(buffer, group) && zd_ctl_is(buffer, "state", "WAITING") &&
		    count++ < MOST_LINES)
			zd_ctl_explain_buffer(facts, buffer);
	}
	zd_ctl_explain_group(facts, group);
	say_readers(facts, group);
	zd_ctl_explain_processes(facts, zd_ctl_string(group, "job"));
}

/* ---- The verb ------------------------------------------------------------------------------------------ */

/* The meanings that the text can have. All rows are references. */
struct search {
	const char *text;
	json_t *job, *jobs; /* the last one that was found, and all */
	json_t *group, *unit;
	json_int_t rank;
};

static void note(struct search *search, const json_t *job, json_t *group, json_t *unit, json_int_t rank)
{
	(void)json_array_append(search->jobs, (json_t *)job);
	json_decref(search->group);
	json_decref(search->unit);
	search->group = json_incref(group);
	search->unit = json_incref(unit);
	search->rank = rank;
	search->job = json_array_get(search->jobs, json_array_size(search->jobs) - 1);
}

/* Adds the objects that `rest` names in the job: itself, groups, units. */
static int search_job(struct zd_ctl *ctl, const json_t *job, const char *rest, void *arg)
{
	struct search *search = arg;
	json_t *groups = NULL, *units = NULL, *row;
	json_int_t rank;
	size_t i;
	if (!*rest) {
		note(search, job, NULL, NULL, -1);
		return 0;
	}
	int status = zd_ctl_list_fetch(ctl, &zd_ctl_groups_listing, &groups);
	if (!status)
		status = zd_ctl_list_fetch(ctl, &zd_ctl_units_listing, &units);
	json_array_foreach(groups, i, row)
	{
		if (!status && zd_ctl_is(row, "name", rest) && !zd_ctl_is(row, "state", "OVER"))
			note(search, job, row, NULL, -1);
	}
	json_array_foreach(units, i, row)
	{
		if (!status && names_unit(row, rest, &rank))
			note(search, job, NULL, row, rank);
	}
	json_decref(groups);
	json_decref(units);
	return status;
}

static int fail_not_found(struct zd_ctl *ctl, const char *text)
{
	static const struct zd_ctl_listing *const listings[] = {&zd_ctl_jobs_listing, &zd_ctl_groups_listing,
	                                                        &zd_ctl_units_listing};
	struct zd_ctl_near near = {.name = text};
	size_t i;
	json_t *row;
	for (size_t k = 0; k < ZD_ARRAY_LEN(listings); k++) {
		json_t *rows;
		if (zd_ctl_list_fetch(ctl, listings[k], &rows))
			continue;
		json_array_foreach(rows, i, row)
		{
			const char *job = zd_ctl_string(row, "job"), *group = zd_ctl_string(row, "group");
			char *name = zd_ctl_text("%s%s%s%s%s", job, *job ? "/" : "", group, *group ? "/" : "",
			                         zd_ctl_string(row, "name"));
			zd_ctl_near_offer(&near, name);
			free(name);
		}
		json_decref(rows);
	}
	char *what =
	        zd_ctl_text("NOT_FOUND: '%s' is no session's id, no job, no group as JOB/GROUP, and no unit "
	                    "as JOB/GROUP/UNIT",
	                    text);
	int status = zd_ctl_near_fail(&near, ZEROD_E_NOT_FOUND, what);
	free(what);
	return status;
}

static int explain_found(struct zd_ctl *ctl, struct zd_ctl_facts *facts, const struct search *search)
{
	zd_ctl_keep_job(ctl, search->job);
	int status = zd_ctl_facts_fetch(ctl, facts);
	if (!status && search->unit)
		status = zd_ctl_map_fetch(ctl, &facts->map);
	if (status)
		return status;
	if (search->unit)
		return explain_unit(facts, search->unit, search->rank);
	if (!search->group)
		return explain_job(facts, search->job);
	explain_group(facts, search->group);
	return 0;
}

static int explain(struct zd_ctl *ctl, struct zd_ctl_facts *facts, struct search *search)
{
	json_t *sessions = NULL;
	uint64_t id = 0;
	int status = zd_ctl_each_job(ctl, search->text, search_job, search);
	if (!status)
		status = zd_ctl_list_fetch(ctl, &zd_ctl_sessions_listing, &sessions);
	if (!status)
		status = zd_ctl_find_id(sessions, search->text, &id);
	json_decref(sessions);
	const size_t found = json_array_size(search->jobs);
	if (status)
		return status;
	if (found > 1)
		return zd_ctl_fail_ambiguous(search->jobs, search->text);
	if (id && found)
		return zd_ctl_fail(ZEROD_E_INVALID,
		                   "INVALID: '%s' is the id of a session, and the name of a job; "
		                   "give the job as USER/NAME",
		                   search->text);
	if (found)
		return explain_found(ctl, facts, search);
	if (id)
		status = zd_ctl_facts_fetch(ctl, facts);
	const json_t *session = id ? zd_ctl_row_of_id(facts->sessions, ZD_CTL_INT(id)) : NULL;
	if (!status && !session)
		return fail_not_found(ctl, search->text);
	return status ? status : explain_session(facts, session);
}

int zd_ctl_explain(struct zd_ctl *ctl)
{
	struct zd_ctl_facts facts = {.jobs = NULL};
	struct search search = {.text = ctl->args[0], .jobs = json_array()};
	json_t *sentences = ctl->json ? json_array() : NULL;
	zd_ctl_collect(sentences);
	int status = explain(ctl, &facts, &search);
	zd_ctl_collect(NULL);
	zd_ctl_facts_deinit(&facts);
	json_decref(search.group);
	json_decref(search.unit);
	json_decref(search.jobs);
	if (!status && sentences)
		return zd_ctl_print_json(stdout, ctl->verb, sentences);
	json_decref(sentences);
	return status;
}
