/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.c - the memory of the history: the ring, the longer history, and names of ended objects.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/engine/history.h"

void zd_history_init(struct zd_history *history, uint32_t nevents)
{
	uint64_t count = 1;
	zd_assert(nevents <= ZD_MAX_EVENTS);
	while (count < nevents)
		count *= 2;
	*history = (struct zd_history){.mask = count - 1, .on = nevents > 0};
	history->events = zd_calloc(count, sizeof(*history->events));
	history->moves = zd_calloc(count, sizeof(*history->moves));
	if (!history->on)
		return;
	history->nold = count / ZD_HISTORY_EVENTS_PER_OLD + 1;
	history->old = zd_calloc(history->nold, sizeof(*history->old));
	history->nnames = (uint32_t)(count / ZD_HISTORY_EVENTS_PER_NAME) + 1;
	history->names = zd_calloc(history->nnames, sizeof(*history->names));
}

void zd_history_deinit(struct zd_history *history)
{
	HASH_CLEAR(hh, history->by_id);
	free(history->names);
	free(history->old);
	free(history->moves);
	free(history->events);
	*history = (struct zd_history){0};
}

void zd_history_move(struct zd_history *history, uint64_t seq)
{
	history->moves[seq & history->mask] = false;
	if (history->nold == 0)
		return;
	history->old[history->old_count++ % history->nold] =
	        (struct zd_old_event){seq, history->events[seq & history->mask]};
}

static const struct zd_old_event *find_old(const struct zd_history *history, uint64_t after)
{
	uint64_t end = history->old_count, first = end > history->nold ? end - history->nold : 0;
	while (first < end) {
		uint64_t middle = first + (end - first) / 2;
		if (history->old[middle % history->nold].seq > after)
			end = middle;
		else
			first = middle + 1;
	}
	return first < history->old_count ? &history->old[first % history->nold] : NULL;
}

const struct zd_event *zd_history_find(const struct zd_history *history, uint64_t after, uint64_t *seq)
{
	uint64_t overwritten = zd_history_overwritten(history);
	const struct zd_old_event *old = after < overwritten ? find_old(history, after) : NULL;
	*seq = old ? old->seq : zd_max_u64(after, overwritten) + 1;
	return old ? &old->event : &history->events[*seq & history->mask];
}

void zd_history_keep_name(struct zd_history *history, uint64_t id, const char *name, const char *group)
{
	if (!history->on || (!name[0] && !group[0]))
		return;
	struct zd_ended_name *kept = &history->names[history->next_name];
	history->next_name = (history->next_name + 1) % history->nnames;
	if (kept->id)
		HASH_DELETE(hh, history->by_id, kept);
	kept->id = id;
	(void)snprintf(kept->name, sizeof(kept->name), "%s", name);
	(void)snprintf(kept->group, sizeof(kept->group), "%s", group);
	HASH_ADD(hh, history->by_id, id, sizeof(kept->id), kept);
}

const struct zd_ended_name *zd_history_ended(const struct zd_history *history, uint64_t id)
{
	struct zd_ended_name *kept;
	HASH_FIND(hh, history->by_id, &id, sizeof(id), kept);
	return kept;
}
