// SPDX-License-Identifier: Apache-2.0
/*
 * verb_groups.c - zeroctl groups: the joined ranks, the last committed step, and why a group that spans
 * daemons has ended.
 */
#include "ctl.h"

#include <stdlib.h>

/* "3/4": joined ranks, of the ranks of this daemon. */
static char *present_text(const json_t *row)
{
	size_t index, present = 0;
	json_t *member;

	json_array_foreach(json_object_get(row, "members"), index, member)
	{
		if (json_integer_value(json_object_get(member, "session")))
			present++;
	}
	return zd_ctl_text("%zu/%" JSON_INTEGER_FORMAT, present,
	                   json_integer_value(json_object_get(row, "local_world_size")));
}

/* "4..7 of 16": which ones these are, in a group over several daemons; "all". */
static char *ranks_text(const json_t *row)
{
	json_int_t world_size = json_integer_value(json_object_get(row, "world_size"));
	json_int_t here = json_integer_value(json_object_get(row, "local_world_size"));
	json_int_t first = json_integer_value(json_object_get(row, "first_rank"));
	if (here == world_size)
		return zd_ctl_text("all");
	return zd_ctl_text("%" JSON_INTEGER_FORMAT "..%" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT,
	                   first, first + here - 1, world_size);
}

/* Why it has ended, preceded by "step 42 is in doubt: " if it ended inside that commit. */
static char *why_text(const json_t *row)
{
	const char *why = json_string_value(json_object_get(row, "why"));
	json_int_t doubt = json_integer_value(json_object_get(row, "doubt_step"));
	why = why ? why : "";
	if (!doubt)
		return zd_ctl_text("%s", why);
	return zd_ctl_text("step %" JSON_INTEGER_FORMAT " is in doubt%s%s", doubt, why[0] ? ": " : "", why);
}

/* "0:7@0 1:8@1": rank, session, device. A rank without a session reads "2:-@2". */
static char *members_text(const json_t *row)
{
	char *text = zd_ctl_text("%s", "");
	size_t index;
	json_t *member;
	json_array_foreach(json_object_get(row, "members"), index, member)
	{
		json_int_t session = json_integer_value(json_object_get(member, "session"));
		char *who = session ? zd_ctl_text("%" JSON_INTEGER_FORMAT, zd_ctl_number(session))
		                    : zd_ctl_text("-");
		char *longer = zd_ctl_text("%s%s%" JSON_INTEGER_FORMAT ":%s@%" JSON_INTEGER_FORMAT, text,
		                           index ? " " : "",
		                           json_integer_value(json_object_get(member, "rank")), who,
		                           json_integer_value(json_object_get(member, "device")));
		free(who);
		free(text);
		text = longer;
	}
	return text;
}

static const struct zd_ctl_column columns[] = {
        {"ID", "id", ZD_CTL_ID, 9, NULL},
        {"JOB", "job", ZD_CTL_TEXT, 0, NULL},
        {"GROUP", "name", ZD_CTL_TEXT, 0, NULL},
        {"STATE", "state", ZD_CTL_STATE, 0, NULL},
        {"HERE", NULL, ZD_CTL_CUSTOM, 0, present_text},
        {"RANKS", NULL, ZD_CTL_CUSTOM, 4, ranks_text},
        {"BY", "collectives", ZD_CTL_TEXT, 7, NULL},
        {"UNITS", "units", ZD_CTL_COUNT, 6, NULL},
        {"STEP", "committed_step", ZD_CTL_COUNT, 2, NULL},
        {"TORN", "torn", ZD_CTL_YES_NO, 5, NULL},
        {"SHADOW", "shadow", ZD_CTL_YES_NO, 8, NULL},
        {"MEMBERS", "members", ZD_CTL_CUSTOM, 3, members_text},
        {"WHY", "why", ZD_CTL_CUSTOM, 1, why_text},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

const struct zd_ctl_listing zd_ctl_groups_listing = {
        .table = ZD__TABLE__GROUPS,
        .row_case = ZD__ROW__ROW_GROUP,
        .columns = columns,
        .plural = "groups",
};

int zd_ctl_groups(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &zd_ctl_groups_listing);
}
