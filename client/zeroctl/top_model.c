// SPDX-License-Identifier: Apache-2.0
/*
 * top_model.c - the data of `zeroctl top`: devices with their rates, and sessions in display order.
 *
 * The model owns copies of all texts, escaped. A rate is the difference of a counter between two samples,
 * divided by the time between them. A counter that has fallen has no rate.
 */
#include "top.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "ctl.h"

#define NS_PER_S 1e9

static const char *const titles[ZD_TOP_NCOLUMNS] = {
        [ZD_TOP_ID] = "ID",     [ZD_TOP_NAME] = "NAME",  [ZD_TOP_USER] = "USER",
        [ZD_TOP_PID] = "PID",   [ZD_TOP_JOB] = "JOB",    [ZD_TOP_RANK] = "RANK",
        [ZD_TOP_HELD] = "HELD", [ZD_TOP_RATE] = "REQ/S", [ZD_TOP_WAITS] = "WAITS",
};

static uint64_t number_of(const json_t *row, const char *key)
{
	const json_int_t number = zd_ctl_integer(row, key);
	return number > 0 ? (uint64_t)number : 0;
}

static char *shown(const char *text)
{
	return zd_ctl_shown(zd_ctl_text("%s", text));
}

static void replace(char **text, char *by)
{
	free(*text);
	*text = by;
}

/* ---- Clearing ------------------------------------------------------------------------------------------ */

static void session_deinit(struct zd_top_session *session)
{
	free(session->name);
	free(session->user);
	free(session->job);
	free(session->rank);
	free(session->waits);
}

static void clear(struct zd_top_model *model)
{
	for (size_t i = 0; i < model->ndevices; i++)
		free(model->devices[i].model);
	for (size_t i = 0; i < model->nsessions; i++)
		session_deinit(&model->sessions[i]);
	for (size_t i = 0; i < model->nwaits; i++)
		zd_top_wait_deinit(&model->waits[i]);
	model->ndevices = model->nsessions = model->nwaits = 0;
}

void zd_top_model_deinit(struct zd_top_model *model)
{
	clear(model);
	free(model->devices);
	free(model->sessions);
	free(model->waits);
	free(model->title);
	free(model->trouble);
	*model = (struct zd_top_model){.user_of = model->user_of};
}

/* ---- Devices ------------------------------------------------------------------------------------------- */

static uint64_t durable_bytes(const json_t *allocations, uint32_t device)
{
	uint64_t bytes = 0;
	size_t i;
	json_t *row;
	json_array_foreach((json_t *)allocations, i, row)
	{
		if (number_of(row, "device") == device && json_is_true(json_object_get(row, "durable")))
			bytes += number_of(row, "bytes");
	}
	return bytes;
}

static void add_rate(struct zd_top_device *device, double rate)
{
	if (device->nrates == ZD_TOP_HISTORY) {
		memmove(device->rates, device->rates + 1, (ZD_TOP_HISTORY - 1) * sizeof(double));
		device->nrates--;
	}
	device->rates[device->nrates++] = rate;
}

/* `seconds`: since the last sample; 0: no sample before. */
static void update_device(struct zd_top_device *device, const struct zd_top_sample *sample, const json_t *row,
                          double seconds)
{
	const json_t *usage = json_object_get(row, "usage");
	const char *model = zd_ctl_string(row, "model"), *state = zd_ctl_string(row, "state");
	const uint64_t total = number_of(row, "gathered_bytes_total");
	const uint64_t durable = durable_bytes(sample->allocations, device->index);
	const uint64_t allocations = number_of(usage, "allocation_bytes");

	replace(&device->model, shown(*model ? model : zd_ctl_string(row, "name")));
	device->usable = strcmp(state, "failed") != 0 && strcmp(state, "denied") != 0;
	device->arena_bytes = number_of(row, "arena_bytes");
	device->gathered_bytes = number_of(usage, "gathered_bytes");
	device->kept_bytes = number_of(usage, "shard_bytes") + durable;
	device->other_bytes = number_of(usage, "bucket_bytes") + number_of(usage, "staging_bytes") +
	                      number_of(usage, "target_bytes") + number_of(row, "quarantine_bytes") +
	                      (allocations > durable ? allocations - durable : 0);
	if (seconds > 0 && total >= device->gathered_total)
		add_rate(device, (double)(total - device->gathered_total) / seconds);
	device->gathered_total = total;
}

static void update_devices(struct zd_top_model *model, const struct zd_top_sample *sample, double seconds)
{
	const size_t count = json_array_size(sample->devices);
	for (size_t i = count; i < model->ndevices; i++)
		free(model->devices[i].model);
	model->devices = zd_realloc(model->devices, count + 1, sizeof(*model->devices));
	for (size_t i = 0; i < count; i++) {
		const json_t *row = json_array_get(sample->devices, i);
		const bool known = i < model->ndevices;
		if (!known)
			model->devices[i] =
			        (struct zd_top_device){.index = (uint32_t)number_of(row, "index")};
		update_device(&model->devices[i], sample, row, known ? seconds : 0);
	}
	model->ndevices = count;
}

/* ---- Sessions ------------------------------------------------------------------------------------------ */

struct zd_top_session *zd_top_find_session(const struct zd_top_model *model, uint64_t id)
{
	for (size_t i = 0; i < model->nsessions; i++)
		if (model->sessions[i].id == id)
			return &model->sessions[i];
	return NULL;
}

static struct zd_top_session *add_session(struct zd_top_model *model, const json_t *row)
{
	const uint32_t uid = (uint32_t)number_of(row, "uid");
	char *user = model->user_of ? model->user_of(uid) : NULL;
	struct zd_top_session *session;
	model->sessions = zd_realloc(model->sessions, model->nsessions + 1, sizeof(*model->sessions));
	session = &model->sessions[model->nsessions++];
	*session = (struct zd_top_session){
	        .id = number_of(row, "id"),
	        .pid = (uint32_t)number_of(row, "pid"),
	        .name = shown(zd_ctl_string(row, "name")),
	        .user = user ? zd_ctl_shown(user) : zd_ctl_text("%u", uid),
	        .rate = -1,
	};
	return session;
}

static void update_session(struct zd_top_model *model, const json_t *row, double seconds)
{
	const uint64_t requests = number_of(row, "requests");
	struct zd_top_session *session = zd_top_find_session(model, number_of(row, "id"));
	const bool known = session != NULL;
	if (!known)
		session = add_session(model, row);
	replace(&session->job, shown(zd_ctl_string(row, "job")));
	if (known && seconds > 0 && requests >= session->requests)
		session->rate = (double)(requests - session->requests) / seconds;
	session->requests = requests;
	session->seen = true;
}

static void remove_unseen(struct zd_top_model *model)
{
	size_t kept = 0;
	for (size_t i = 0; i < model->nsessions; i++) {
		if (model->sessions[i].seen)
			model->sessions[kept++] = model->sessions[i];
		else
			session_deinit(&model->sessions[i]);
	}
	model->nsessions = kept;
}

/* ---- What sessions have -------------------------------------------------------------------------------- */

static void add_held(const struct zd_top_model *model, uint64_t id, uint64_t bytes)
{
	struct zd_top_session *session = id ? zd_top_find_session(model, id) : NULL;
	if (session)
		session->held_bytes += bytes;
}

/* A buffer is its holder's, or without one its rank's. */
static uint64_t owner_of_buffer(const json_t *buffer, const json_t *groups)
{
	const json_t *holder = json_array_get(json_object_get(buffer, "holders"), 0);
	const uint64_t session = number_of(holder, "session");
	if (session)
		return session;
	return number_of(zd_ctl_find_rank(groups, zd_ctl_string(buffer, "job"),
	                                  zd_ctl_string(buffer, "group"), zd_ctl_integer(buffer, "rank")),
	                 "session");
}

static void update_held(struct zd_top_model *model, const struct zd_top_sample *sample)
{
	size_t i;
	json_t *row;
	for (i = 0; i < model->nsessions; i++)
		model->sessions[i].held_bytes = 0;
	json_array_foreach((json_t *)sample->allocations, i, row)
	        add_held(model, number_of(row, "session"), number_of(row, "bytes"));
	json_array_foreach((json_t *)sample->buffers, i, row)
	{
		if (!zd_ctl_is(row, "state", "WAITING"))
			add_held(model, owner_of_buffer(row, sample->groups), number_of(row, "padded_bytes"));
	}
}

static void update_ranks(struct zd_top_model *model, const json_t *groups)
{
	size_t i, j;
	json_t *group, *member;
	for (i = 0; i < model->nsessions; i++)
		replace(&model->sessions[i].rank, zd_ctl_text("%s", ""));
	json_array_foreach((json_t *)groups, i, group)
	{
		json_array_foreach(json_object_get(group, "members"), j, member)
		{
			const uint64_t id = number_of(member, "session");
			struct zd_top_session *session = id ? zd_top_find_session(model, id) : NULL;
			if (!session)
				continue;
			char *name = shown(zd_ctl_string(group, "name"));
			replace(&session->rank,
			        zd_ctl_text("%s%s%s/%llu", session->rank, *session->rank ? "," : "", name,
			                    (unsigned long long)number_of(member, "rank")));
			free(name);
		}
	}
}

/* ---- Samples ------------------------------------------------------------------------------------------- */

static char *title_text(const json_t *status)
{
	char age[ZD_CTL_AGE_TEXT];
	return zd_ctl_shown(zd_ctl_text("zerod %s, %s, %s, up %s", zd_ctl_string(status, "daemon"),
	                                zd_ctl_string(status, "backend"), zd_ctl_string(status, "state"),
	                                zd_ctl_age_text(number_of(status, "uptime_ns"), age)));
}

void zd_top_update(struct zd_top_model *model, const struct zd_top_sample *sample)
{
	const uint64_t pid = number_of(sample->status, "pid");
	double seconds = 0;
	size_t i;
	json_t *row;
	if (model->pid != pid)
		clear(model);
	else if (sample->at_ns > model->at_ns)
		seconds = (double)(sample->at_ns - model->at_ns) / NS_PER_S;
	model->pid = pid;
	model->at_ns = sample->at_ns;
	replace(&model->title, title_text(sample->status));
	update_devices(model, sample, seconds);
	for (i = 0; i < model->nsessions; i++)
		model->sessions[i].seen = false;
	json_array_foreach((json_t *)sample->sessions, i, row) update_session(model, row, seconds);
	remove_unseen(model);
	update_held(model, sample);
	update_ranks(model, sample->groups);
	zd_top_update_waits(model, sample);
}

void zd_top_set_trouble(struct zd_top_model *model, const char *text)
{
	replace(&model->trouble,
	        text ? zd_ctl_shown(zd_ctl_text("%.*s", (int)strcspn(text, "\n"), text)) : NULL);
}

/* ---- Sorting, filter ----------------------------------------------------------------------------------- */

bool zd_top_is_number(enum zd_top_column column)
{
	return column == ZD_TOP_ID || column == ZD_TOP_PID || column == ZD_TOP_HELD || column == ZD_TOP_RATE;
}

const char *zd_top_column_title(enum zd_top_column column)
{
	return titles[column];
}

int zd_top_parse_sort(const char *text, enum zd_top_column *column, bool *descending)
{
	const bool minus = *text == '-';
	for (size_t i = 0; i < ZD_TOP_NCOLUMNS; i++) {
		if (strcasecmp(text + minus, titles[i]) != 0)
			continue;
		*column = (enum zd_top_column)i;
		*descending = minus;
		return 0;
	}
	return ZEROD_E_INVALID;
}

#define COMPARE(x, y) (((x) > (y)) - ((x) < (y)))

static int compare(const struct zd_top_session *a, const struct zd_top_session *b, enum zd_top_column column)
{
	switch (column) {
	case ZD_TOP_ID:
		return COMPARE(a->id, b->id);
	case ZD_TOP_NAME:
		return strcmp(a->name, b->name);
	case ZD_TOP_USER:
		return strcmp(a->user, b->user);
	case ZD_TOP_PID:
		return COMPARE(a->pid, b->pid);
	case ZD_TOP_JOB:
		return strcmp(a->job, b->job);
	case ZD_TOP_RANK:
		return strverscmp(a->rank, b->rank); /* world/9 before world/10 */
	case ZD_TOP_HELD:
		return COMPARE(a->held_bytes, b->held_bytes);
	case ZD_TOP_RATE:
		return COMPARE(a->rate, b->rate);
	case ZD_TOP_WAITS:
		return strcmp(a->waits, b->waits);
	case ZD_TOP_NCOLUMNS:
		break;
	}
	return 0;
}

struct order {
	const struct zd_top_session *first; /* of all, in the order before */
	enum zd_top_column column;
	bool descending;
};

static int compare_places(const void *left, const void *right, void *arg)
{
	const size_t a = *(const size_t *)left, b = *(const size_t *)right;
	const struct order *order = arg;
	const int sign = compare(&order->first[a], &order->first[b], order->column);
	if (sign == 0)
		return COMPARE(a, b);
	return order->descending ? -sign : sign;
}

void zd_top_sort(struct zd_top_model *model, enum zd_top_column column, bool descending)
{
	const size_t count = model->nsessions;
	struct order order = {.first = model->sessions, .column = column, .descending = descending};
	size_t *places = zd_calloc(count + 1, sizeof(*places));
	struct zd_top_session *sorted = zd_calloc(count + 1, sizeof(*sorted));
	for (size_t i = 0; i < count; i++)
		places[i] = i;
	qsort_r(places, count, sizeof(*places), compare_places, &order);
	for (size_t i = 0; i < count; i++)
		sorted[i] = model->sessions[places[i]];
	free(places);
	free(model->sessions);
	model->sessions = sorted;
}

bool zd_top_matches(const char *filter, const char *name, const char *user, const char *job)
{
	return strcasestr(name, filter) || strcasestr(user, filter) || strcasestr(job, filter);
}
