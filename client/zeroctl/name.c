// SPDX-License-Identifier: Apache-2.0
/*
 * name.c - the meaning of a name on the command line: users, jobs, and similar names.
 *
 * A job's name is unique among its user's jobs. If two users have jobs of one name, USER/NAME or UID/NAME
 * selects one. Names themselves can have a '/'.
 */
#include "ctl.h"

#include <inttypes.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

/* ---- Near names ---------------------------------------------------------------------------------------- */

/* The number of letters to add, remove or replace to change `a` into `b`. */
static size_t edit_distance(const char *a, const char *b)
{
	size_t row[256], nb = strlen(b);
	if (nb >= ZD_ARRAY_LEN(row))
		return SIZE_MAX;
	for (size_t j = 0; j <= nb; j++)
		row[j] = j;
	for (size_t i = 1; a[i - 1]; i++) {
		size_t diagonal = row[0];
		row[0] = i;
		for (size_t j = 1; j <= nb; j++) {
			size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
			diagonal = row[j];
			size_t least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
			row[j] = replaced < least ? replaced : least;
		}
	}
	return row[nb];
}

void zd_ctl_near_offer(struct zd_ctl_near *near, const char *candidate)
{
	const size_t bytes = strlen(candidate);
	size_t distance = edit_distance(near->name, candidate);
	if (!*near->name || (near->found && near->distance == 0))
		return;
	if (strncmp(candidate, near->name, strlen(near->name)) == 0)
		distance = 0; /* an abbreviation */
	if (distance > (bytes + 2) / 3 || (near->found && distance >= near->distance))
		return;
	free(near->found);
	near->found = zd_ctl_text("%s", candidate);
	near->distance = distance;
}

int zd_ctl_near_fail(struct zd_ctl_near *near, int status, const char *what)
{
	if (near->found)
		status = zd_ctl_fail(status, "%s; did you mean '%s'?", what, near->found);
	else
		status = zd_ctl_fail(status, "%s", what);
	free(near->found);
	near->found = NULL;
	return status;
}

/* ---- Users --------------------------------------------------------------------------------------------- */

char *zd_ctl_user_text(uint32_t uid)
{
	const struct passwd *user = getpwuid(uid);
	return user ? zd_ctl_text("%s", user->pw_name) : NULL;
}

void zd_ctl_add_users(json_t *rows)
{
	size_t i;
	json_t *row, *user = NULL;
	uint32_t last = 0;
	json_array_foreach(rows, i, row)
	{
		const json_t *value = json_object_get(row, "uid");
		const uint32_t uid = (uint32_t)json_integer_value(value);
		if (!value)
			continue;
		if (!user || uid != last) { /* a look-up may ask a server */
			char *text = zd_ctl_user_text(uid);
			text = text ? text : zd_ctl_text("%" PRIu32, uid);
			json_decref(user);
			user = json_string(text);
			last = uid;
			free(text);
		}
		(void)json_object_set(row, "user", user);
	}
	json_decref(user);
}

/* ---- Jobs ---------------------------------------------------------------------------------------------- */

/* Whether `text` is `name`, or continues after it with a '/'. */
static const char *behind(const char *text, const char *name)
{
	const size_t bytes = strlen(name);
	if (strncmp(text, name, bytes) != 0 || (text[bytes] && text[bytes] != '/'))
		return NULL;
	return text + bytes + (text[bytes] == '/');
}

const char *zd_ctl_behind_name(const json_t *row, const char *name, const char *text)
{
	const char *rest = behind(text, name);
	char uid[32];
	(void)snprintf(uid, sizeof(uid), "%" JSON_INTEGER_FORMAT, zd_ctl_integer(row, "uid"));
	const char *const owners[] = {uid, zd_ctl_string(row, "user")};
	for (size_t i = 0; i < 2 && !rest; i++) {
		const char *owned = behind(text, owners[i]);
		rest = owned && *owned ? behind(owned, name) : NULL;
	}
	return rest;
}

static const char *behind_job(const json_t *job, const char *text)
{
	return zd_ctl_behind_name(job, zd_ctl_string(job, "name"), text);
}

char *zd_ctl_job_text(const json_t *job)
{
	return zd_ctl_text("%s/%s", zd_ctl_string(job, "user"), zd_ctl_string(job, "name"));
}

void zd_ctl_keep_job(struct zd_ctl *ctl, const json_t *job)
{
	free(ctl->job_owned);
	ctl->job_owned = job ? zd_ctl_text("%s", zd_ctl_string(job, "name")) : NULL;
	ctl->job = job ? ctl->job_owned : "";
	ctl->job_owner = job ? (uint64_t)zd_ctl_integer(job, "uid") + 1 : 0;
}

int zd_ctl_fail_ambiguous(const json_t *jobs, const char *text)
{
	char *all = zd_ctl_text("%s", "");
	size_t i;
	json_t *job;
	json_array_foreach((json_t *)jobs, i, job)
	{
		char *one = zd_ctl_job_text(job);
		all = zd_ctl_append(all, "%s%s", *all ? ", " : "", one);
		free(one);
	}
	int status = zd_ctl_fail(ZEROD_E_INVALID, "INVALID: '%s' names %zu jobs: %s", text,
	                         json_array_size(jobs), all);
	free(all);
	return status;
}

int zd_ctl_fail_no_job(const json_t *jobs, const char *text)
{
	struct zd_ctl_near near = {.name = text};
	size_t i;
	json_t *job;
	json_array_foreach((json_t *)jobs, i, job)
	{
		zd_ctl_near_offer(&near, zd_ctl_string(job, "name"));
		char *with_user = zd_ctl_job_text(job);
		if (strchr(text, '/'))
			zd_ctl_near_offer(&near, with_user);
		free(with_user);
	}
	char *what = zd_ctl_text("NOT_FOUND: no job is called '%s'", text);
	int status = zd_ctl_near_fail(&near, ZEROD_E_NOT_FOUND, what);
	free(what);
	return status;
}

/* The rows of `jobs` that `text` names as a whole, as a new array. */
static json_t *jobs_called(const json_t *jobs, const char *text)
{
	json_t *found = json_array(), *job;
	size_t i;
	json_array_foreach((json_t *)jobs, i, job)
	{
		const char *rest = behind_job(job, text);
		if (rest && !*rest)
			(void)json_array_append(found, job);
	}
	return found;
}

/* UID/NAME or USER/NAME of a job that does not exist any more. */
static void keep_past_job(struct zd_ctl *ctl, const char *text)
{
	const char *slash = strchr(text, '/');
	char *owner = zd_ctl_text("%.*s", slash ? (int)(slash - text) : 0, text);
	const struct passwd *user = getpwnam(owner);
	uint64_t uid;
	if (user)
		ctl->job_owner = (uint64_t)user->pw_uid + 1;
	else if (!zd_ctl_parse_id(owner, &uid))
		ctl->job_owner = uid + 1;
	if (ctl->job_owner)
		ctl->job = slash + 1;
	free(owner);
}

static int check_job(struct zd_ctl *ctl, bool past)
{
	const char *text = ctl->job;
	json_t *jobs;
	if (!*text || ctl->job_owner)
		return 0;
	ctl->job = "";
	int status = zd_ctl_list_fetch(ctl, &zd_ctl_jobs_listing, &jobs);
	ctl->job = text;
	if (status)
		return status;
	json_t *found = jobs_called(jobs, text);
	if (json_array_size(found) > 1)
		status = zd_ctl_fail_ambiguous(found, text);
	else if (json_array_size(found) == 1)
		zd_ctl_keep_job(ctl, json_array_get(found, 0));
	else if (past)
		keep_past_job(ctl, text);
	else
		status = zd_ctl_fail_no_job(jobs, text);
	json_decref(found);
	json_decref(jobs);
	return status;
}

int zd_ctl_check_job(struct zd_ctl *ctl)
{
	return check_job(ctl, false);
}

int zd_ctl_check_past_job(struct zd_ctl *ctl)
{
	return check_job(ctl, true);
}

int zd_ctl_each_job(struct zd_ctl *ctl, const char *text,
                    int (*fn)(struct zd_ctl *ctl, const json_t *job, const char *rest, void *arg), void *arg)
{
	json_t *jobs, *job;
	size_t i;
	int status = zd_ctl_list_fetch(ctl, &zd_ctl_jobs_listing, &jobs);
	if (status)
		return status;
	json_array_foreach(jobs, i, job)
	{
		const char *rest = behind_job(job, text);
		if (!rest || status)
			continue;
		zd_ctl_keep_job(ctl, job);
		status = fn(ctl, job, rest, arg);
	}
	zd_ctl_keep_job(ctl, NULL);
	json_decref(jobs);
	return status;
}

/* "job 'alice/mine': 2 sessions, 12 MiB" */
static char *contents_text(const json_t *job)
{
	static const char *const purposes[] = {"shard_bytes",   "gathered_bytes", "bucket_bytes",
	                                       "staging_bytes", "target_bytes",   "allocation_bytes"};
	const json_int_t sessions = zd_ctl_integer(job, "sessions");
	char *name = zd_ctl_job_text(job), bytes_text[ZD_BYTES_TEXT];
	json_int_t bytes = 0;
	for (size_t i = 0; i < ZD_ARRAY_LEN(purposes); i++)
		bytes += zd_ctl_integer(json_object_get(job, "usage"), purposes[i]);
	char *text = zd_ctl_text("job '%s': %" JSON_INTEGER_FORMAT " session%s, %s", name, sessions,
	                         sessions == 1 ? "" : "s", zd_bytes_text((uint64_t)bytes, bytes_text));
	free(name);
	return text;
}

int zd_ctl_find_job(struct zd_ctl *ctl, const char *text, uint64_t *id, char **what)
{
	json_t *jobs;
	int status = zd_ctl_list_fetch(ctl, &zd_ctl_jobs_listing, &jobs);
	if (status)
		return status;
	json_t *found = jobs_called(jobs, text);
	if (json_array_size(found) > 1)
		status = zd_ctl_fail_ambiguous(found, text);
	else
		status = zd_ctl_choose_id(jobs, json_array_get(found, 0), text, id);
	if (!status && !*id)
		status = zd_ctl_fail_no_job(jobs, text);
	if (!status)
		*what = contents_text(zd_ctl_row_of_id(jobs, ZD_CTL_INT(*id)));
	json_decref(found);
	json_decref(jobs);
	return status;
}
