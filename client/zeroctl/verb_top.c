// SPDX-License-Identifier: Apache-2.0
/*
 * verb_top.c - zeroctl top: devices, sessions and what they wait for, live on a terminal.
 *
 * One thread requests the daemon's tables, draws, and waits for a key until the next sample is due. The title
 * reports a daemon that has gone, or that drains in order to end. The connection is then closed, because a
 * remaining session would delay the daemon's end. Each later sample connects again.
 */
#include "ctl.h"
#include "top.h"

#include "base/mem.h"

#define REQUEST_DEADLINE_MS 2000 /* keys are not read while a request is in progress */

struct top {
	struct zd_ctl *ctl;
	struct zd_top_model model;
	struct zd_top_view view;
	uint64_t next_ns; /* when the next sample is due */
};

/* ---- Samples ------------------------------------------------------------------------------------------- */

static int fetch(struct zd_ctl *ctl, struct zd_top_sample *sample)
{
	const struct {
		const struct zd_ctl_listing *listing;
		json_t **rows;
	} all[] = {
	        {&zd_ctl_devices_listing, &sample->devices},
	        {&zd_ctl_sessions_listing, &sample->sessions},
	        {&zd_ctl_groups_listing, &sample->groups},
	        {&zd_ctl_buffers_listing, &sample->buffers},
	        {&zd_ctl_allocations_listing, &sample->allocations},
	};
	int status = zd_ctl_status_fetch(ctl, &sample->status);
	if (!status && zd_ctl_status_ends(sample->status))
		status = zd_ctl_fail(ZEROD_E_SHUTDOWN, "it drains in order to end");
	for (size_t i = 0; !status && i < ZD_ARRAY_LEN(all); i++)
		status = zd_ctl_list_fetch(ctl, all[i].listing, all[i].rows);
	sample->at_ns = zd_ctl_now_ns();
	return status;
}

static void take_sample(struct top *top)
{
	struct zd_top_sample sample = {.status = NULL};
	if (fetch(top->ctl, &sample)) {
		zd_top_set_trouble(&top->model, zd_ctl_kept_failure());
		zerod_close(top->ctl->client);
		top->ctl->client = NULL;
	} else {
		zd_top_set_trouble(&top->model, NULL);
		zd_top_update(&top->model, &sample);
	}
	top->next_ns = sample.at_ns + (uint64_t)(top->view.delay_s * 1e9);
	json_decref(sample.status);
	json_decref(sample.devices);
	json_decref(sample.sessions);
	json_decref(sample.groups);
	json_decref(sample.buffers);
	json_decref(sample.allocations);
}

/* ---- The loop ------------------------------------------------------------------------------------------ */

static void draw(struct top *top)
{
	struct zd_top_picture picture;
	size_t columns, nlines;
	zd_top_sort(&top->model, top->view.sort, top->view.descending);
	zd_top_screen_size(&columns, &nlines);
	zd_top_layout(&top->model, &top->view, columns, nlines, &picture);
	zd_top_screen_draw(&picture);
	zd_top_picture_deinit(&picture);
}

/* Waits until a key arrives or the next sample is due; returns the key. */
static int wait_for_key(const struct top *top)
{
	const uint64_t now = zd_ctl_now_ns();
	if (top->view.paused)
		return zd_top_screen_wait(-1);
	return zd_top_screen_wait(top->next_ns > now ? (int64_t)(top->next_ns - now) : 0);
}

/* Returns whether the terminal still exists. */
static bool run(struct top *top)
{
	for (;;) {
		if (!top->view.paused && zd_ctl_now_ns() >= top->next_ns)
			take_sample(top);
		draw(top);
		const int key = wait_for_key(top);
		const double delay_s = top->view.delay_s;
		if (key == ZD_TOP_KEY_GONE)
			return false;
		if (!zd_top_press(&top->view, key))
			return true;
		if (top->view.delay_s != delay_s)
			top->next_ns = zd_ctl_now_ns() + (uint64_t)(top->view.delay_s * 1e9);
	}
}

int zd_ctl_top(struct zd_ctl *ctl)
{
	struct top top = {
	        .ctl = ctl,
	        .model = {.user_of = zd_ctl_user_text},
	        .view = {.sort = ZD_TOP_ID, .delay_s = ctl->interval_s},
	};
	ctl->deadline_ms = REQUEST_DEADLINE_MS;
	if (ctl->sort && zd_top_parse_sort(ctl->sort, &top.view.sort, &top.view.descending))
		return zd_ctl_fail(ZD_CTL_USAGE,
		                   "--sort: no column '%s'; there are "
		                   "ID,NAME,USER,PID,JOB,RANK,HELD,REQ/S,WAITS",
		                   ctl->sort);
	int status = zd_ctl_connect(ctl);
	if (!status)
		status = zd_ctl_check_job(ctl);
	if (!status)
		status = zd_top_screen_open();
	if (status)
		return status;
	zd_ctl_keep_failures(true);
	const bool there = run(&top);
	zd_ctl_keep_failures(false);
	zd_top_screen_close();
	zd_top_model_deinit(&top.model);
	return there ? 0 : zd_ctl_fail(ZEROD_E_SYSTEM, "the terminal has closed");
}
