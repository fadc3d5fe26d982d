// SPDX-License-Identifier: Apache-2.0
/*
 * top_waits.c - the waits of sessions, of groups without all their ranks, and of buffers for which no request
 * waits.
 *
 * The texts are the daemon's. If a text names a rank, the session of this rank follows it.
 */
#include "top.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ctl.h"

#define LONG_NS 1000000000 /* the waits of younger buffers pass too soon to be read */

void zd_top_wait_deinit(struct zd_top_wait *wait)
{
	free(wait->subject);
	free(wait->text);
	free(wait->job);
	free(wait->user);
	free(wait->name);
}

/* Adds a wait. Takes ownership of the first two texts, which are not escaped yet. */
static void add(struct zd_top_model *model, char *subject, char *text, const char *job, const char *user,
                const char *name)
{
	model->waits = zd_realloc(model->waits, model->nwaits + 1, sizeof(*model->waits));
	model->waits[model->nwaits++] = (struct zd_top_wait){
	        .subject = zd_ctl_shown(subject),
	        .text = zd_ctl_shown(text),
	        .job = zd_ctl_shown(zd_ctl_text("%s", job)),
	        .user = zd_ctl_text("%s", user),
	        .name = zd_ctl_text("%s", name),
	};
}

static bool is_stopped(const json_t *session)
{
	return zd_ctl_is(session, "process", "stopped");
}

/* Returns the text, followed by the session of the first rank that it names. */
static char *with_rank(const struct zd_top_sample *sample, const char *job, const char *group,
                       const char *text)
{
	const char *at = strstr(text, "rank ");
	unsigned rank;
	if (!at || !group || sscanf(at, "rank %u", &rank) != 1)
		return zd_ctl_text("%s", text);
	const json_t *member = zd_ctl_find_rank(sample->groups, job, group, rank);
	const json_int_t session = zd_ctl_integer(member, "session");
	if (!session)
		return zd_ctl_text("%s", text);
	return zd_ctl_text("%s [rank %u: session %" JSON_INTEGER_FORMAT ", pid %" JSON_INTEGER_FORMAT "%s]",
	                   text, rank, zd_ctl_number(session), zd_ctl_integer(member, "pid"),
	                   is_stopped(zd_ctl_row_of_id(sample->sessions, session)) ? ", stopped" : "");
}

/* ---- Sessions ------------------------------------------------------------------------------------------ */

/* The only group with the session as a rank; NULL: it is in none, or in several. */
static const char *group_of(const json_t *groups, json_int_t session)
{
	const char *found = NULL;
	size_t i, j;
	json_t *group, *member;
	json_array_foreach((json_t *)groups, i, group)
	{
		json_array_foreach(json_object_get(group, "members"), j, member)
		{
			if (zd_ctl_integer(member, "session") != session)
				continue;
			if (found)
				return NULL;
			found = zd_ctl_string(group, "name");
		}
	}
	return found;
}

static void add_session(struct zd_top_model *model, const struct zd_top_sample *sample, const json_t *row)
{
	const json_int_t id = zd_ctl_integer(row, "id");
	struct zd_top_session *session = zd_top_find_session(model, (uint64_t)id);
	const char *job = zd_ctl_string(row, "job");
	char *subject = zd_ctl_text("session %" JSON_INTEGER_FORMAT " %s", zd_ctl_number(id),
	                            zd_ctl_string(row, "name"));
	char *all = zd_ctl_text("%s", "");
	size_t i;
	json_t *wait;
	if (is_stopped(row))
		all = zd_ctl_append(all, "process %" JSON_INTEGER_FORMAT " to continue: it is stopped",
		                    zd_ctl_integer(row, "pid"));
	char *stopped = *all ? zd_ctl_text("%s", all) : NULL;
	json_array_foreach(json_object_get(row, "waits"), i, wait)
	{
		const char *text = json_string_value(wait);
		all = zd_ctl_append(all, "%s%s", *all ? "; " : "", text);
		add(model, zd_ctl_text("%s", subject),
		    with_rank(sample, job, group_of(sample->groups, id), text), job, session->user,
		    session->name);
	}
	if (stopped)
		add(model, zd_ctl_text("%s", subject), stopped, job, session->user, session->name);
	free(subject);
	free(session->waits);
	session->waits = zd_ctl_shown(all);
}

/* ---- Groups and buffers -------------------------------------------------------------------------------- */

static void add_group(struct zd_top_model *model, const json_t *group)
{
	const char *job = zd_ctl_string(group, "job"), *state = zd_ctl_string(group, "state");
	const char *why = zd_ctl_string(group, "why");
	const bool waits = strcmp(state, "FORMING") == 0 || strcmp(state, "FAILED") == 0;
	char *missing = waits ? zd_ctl_missing_ranks(group) : zd_ctl_text("%s", "");
	if (*missing || *why)
		add(model, zd_ctl_text("group %s/%s", job, zd_ctl_string(group, "name")),
		    zd_ctl_text("%s: %s%s%s%s", state, *missing ? "to be joined by rank " : "", missing,
		                *missing && *why ? "; " : "", why),
		    job, "", "");
	free(missing);
}

/* A waiting gather is a request of its session, whose text reports it. */
static void add_buffer(struct zd_top_model *model, const struct zd_top_sample *sample, const json_t *buffer)
{
	const char *job = zd_ctl_string(buffer, "job"), *group = zd_ctl_string(buffer, "group");
	const char *text = zd_ctl_string(buffer, "waits_for"), *state = zd_ctl_string(buffer, "state");
	if (!*text || strcmp(state, "WAITING") == 0 || zd_ctl_integer(buffer, "age_ns") < LONG_NS)
		return;
	char *known = with_rank(sample, job, group, text);
	add(model,
	    zd_ctl_text("%s/%s/%s@%" JSON_INTEGER_FORMAT, job, group, zd_ctl_string(buffer, "unit"),
	                zd_ctl_integer(buffer, "rank")),
	    zd_ctl_text("%s: %s", state, known), job, "", "");
	free(known);
}

void zd_top_update_waits(struct zd_top_model *model, const struct zd_top_sample *sample)
{
	size_t i;
	json_t *row;
	for (i = 0; i < model->nwaits; i++)
		zd_top_wait_deinit(&model->waits[i]);
	model->nwaits = 0;
	json_array_foreach((json_t *)sample->sessions, i, row) add_session(model, sample, row);
	json_array_foreach((json_t *)sample->groups, i, row) add_group(model, row);
	json_array_foreach((json_t *)sample->buffers, i, row) add_buffer(model, sample, row);
}
