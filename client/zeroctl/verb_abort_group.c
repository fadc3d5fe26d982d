// SPDX-License-Identifier: Apache-2.0
/*
 * verb_abort_group.c - zeroctl abort-group: all that waits in the group fails with ABORTED, at once.
 */
#include "explain.h"

#include <stdlib.h>
#include <string.h>

struct search {
	json_t *groups, *jobs; /* groups of that name, and their jobs */
};

static int add_group(struct zd_ctl *ctl, const json_t *job, const char *rest, void *arg)
{
	struct search *search = arg;
	json_t *groups, *group;
	size_t i;
	int status = zd_ctl_list_fetch(ctl, &zd_ctl_groups_listing, &groups);
	if (status)
		return status;
	json_array_foreach(groups, i, group)
	{
		/* No rank can join a group again that is OVER. */
		if (!zd_ctl_is(group, "name", rest) || zd_ctl_is(group, "state", "OVER"))
			continue;
		(void)json_array_append(search->groups, group);
		(void)json_array_append(search->jobs, (json_t *)job);
	}
	json_decref(groups);
	return 0;
}

static int find_group(struct zd_ctl *ctl, const char *text, const struct search *search, uint64_t *id)
{
	struct zd_ctl_near near = {.name = text};
	json_t *groups, *group;
	size_t i;
	int status = zd_ctl_list_fetch(ctl, &zd_ctl_groups_listing, &groups);
	if (status)
		return status;
	if (json_array_size(search->groups) > 1)
		status = zd_ctl_fail_ambiguous(search->jobs, text);
	else
		status = zd_ctl_choose_id(groups, json_array_get(search->groups, 0), text, id);
	if (!status && !*id) {
		json_array_foreach(groups, i, group)
		{
			char *name = zd_ctl_text("%s/%s", zd_ctl_string(group, "job"),
			                         zd_ctl_string(group, "name"));
			zd_ctl_near_offer(&near, name);
			free(name);
		}
		char *what = zd_ctl_text("NOT_FOUND: no group is called '%s', or has this id", text);
		status = zd_ctl_near_fail(&near, ZEROD_E_NOT_FOUND, what);
		free(what);
	}
	json_decref(groups);
	return status;
}

int zd_ctl_abort_group(struct zd_ctl *ctl)
{
	struct search search = {.groups = json_array(), .jobs = json_array()};
	Zd__AbortGroup body = ZD__ABORT_GROUP__INIT;
	Zd__Request request = ZD_REQUEST(ABORT_GROUP, abort_group, &body);
	int status = zd_ctl_each_job(ctl, ctl->args[0], add_group, &search);
	if (!status)
		status = find_group(ctl, ctl->args[0], &search, &body.group);
	json_decref(search.groups);
	json_decref(search.jobs);
	if (status)
		return status;
	status = zd_ctl_call(ctl, &request, NULL, NULL);
	if (!status)
		zd_ctl_say("aborted group %" JSON_INTEGER_FORMAT ", '%s'",
		           zd_ctl_number(ZD_CTL_INT(body.group)), ctl->args[0]);
	return status;
}
