/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_text.c - texts about the waits of gradients, for zeroctl and for errors.
 *
 * A text names the rank that has not contributed, or the streams of a rank whose fences have not passed.
 */
#include <stdio.h>

#include "core/reduce/reduce.h"
#include "core/reduce/slice.h"

/* Writes how many fences of a submitted entry's producers have not passed, and the first one's timeline. */
static void producers_text(const struct zd_engine *e, const struct zd_entry *entry, char *out,
                           size_t out_bytes)
{
	const struct zd_member *member = entry->bucket->mr->member;
	const char *unit = entry->part->unit->name;
	uint32_t nopen = 0, first = 0;
	for (uint32_t i = entry->nproducers; i-- > 0;) {
		if (e->sink.fence_passed(e->sink.arg, member->session->id, entry->producers[i]))
			continue;
		first = entry->producers[i].timeline;
		nopen++;
	}
	if (nopen > 0)
		(void)snprintf(out, out_bytes, "unit '%.64s': %u of rank %u's %u streams, timeline %u first",
		               unit, nopen, zd_world_rank(member), entry->nproducers, first);
	else /* all fences have passed by now, or the reservation was cancelled */
		(void)snprintf(out, out_bytes, "unit '%.64s': rank %u's own work", unit,
		               zd_world_rank(member));
}

/* Describes the awaited slice's sum, if its rank's process makes it. Otherwise returns NULL. */
static const char *sum_text(const struct zd_engine *e, const struct zd_reduction *r, uint32_t mine)
{
	uint32_t rank = zd_reduction_waits_for(r, mine);
	if (r->state != ZD_REDUCTION_RUNNING || !zd_slice_awaits_sum(&r->slices[rank]) || !e->sink.sums)
		return NULL;
	switch (e->sink.sums(e->sink.arg, r->group->members[rank].session->id)) {
	case ZD_SUMS_ASKED:
		return "is to be summed by";
	case ZD_SUMS_LAUNCHED:
		return "is being summed by";
	default:
		return NULL;
	}
}

static int terms_text(const struct zd_reduction *r, uint32_t rank, char *out, size_t out_bytes)
{
	bool returned = r->slices[rank].returned;
	return snprintf(out, out_bytes, "unit '%.64s' has terms that %srank %u %s",
	                r->unit ? r->unit->name : "", returned ? "streams of " : "",
	                r->group->first_rank + rank, returned ? "still read" : "has not returned");
}

static void reduction_text(const struct zd_engine *e, const struct zd_reduction *r, uint32_t mine, char *out,
                           size_t out_bytes)
{
	uint32_t rank = zd_reduction_waits_for(r, mine), shown = r->group->first_rank + rank;
	const char *unit = r->unit ? r->unit->name : "";
	if (r->state == ZD_REDUCTION_COLLECTING)
		(void)snprintf(out, out_bytes, "unit '%.64s' waits for rank %u", unit, shown);
	else if (r->state != ZD_REDUCTION_RUNNING)
		(void)snprintf(out, out_bytes, "unit '%.64s' was given up", unit);
	else if (zd_reduction_lends(r, rank))
		(void)terms_text(r, rank, out, out_bytes);
	else if (sum_text(e, r, mine))
		(void)snprintf(out, out_bytes, "unit '%.64s' %s rank %u's process", unit,
		               sum_text(e, r, mine), shown);
	else if (r->ranks[rank].state == ZD_CONTRIBUTION_SUBMITTED && r->ranks[rank].entry)
		producers_text(e, r->ranks[rank].entry, out, out_bytes);
	else
		(void)snprintf(out, out_bytes, "unit '%.64s': %s of rank %u", unit,
		               r->slices[rank].state == ZD_SLICE_WAITING ? "staging memory" : "the slice",
		               shown);
}

void zd_entry_text(const struct zd_engine *e, const struct zd_entry *entry, char *out, size_t out_bytes)
{
	const char *unit = entry->part->unit->name;
	static const char *const before_submit[] = {
	        [ZD_ENTRY_WAITING] = "has no place yet",
	        [ZD_ENTRY_FILLING] = "its place is being zeroed",
	        [ZD_ENTRY_RESERVED] = "not submitted yet",
	        [ZD_ENTRY_ABANDONED] = "abandoned, not given back yet",
	};
	if (entry->state < ZD_ENTRY_SUBMITTED)
		(void)snprintf(out, out_bytes, "unit '%.64s': %s", unit, before_submit[entry->state]);
	else if (entry->state == ZD_ENTRY_SUBMITTED)
		producers_text(e, entry, out, out_bytes);
	else
		reduction_text(e, entry->reduction, entry->part->rank, out, out_bytes);
}

int zd_reductions_text(const struct zd_engine *e, const struct zd_request *req, char *out, size_t out_bytes)
{
	const struct zd_wait *wait = &req->wait;
	uint32_t mine = req->member->rank;
	const struct zd_window *w = zd_reduce_request_lost(req) ? NULL : zd_window_of(req);
	const struct zd_reduction *r = w ? zd_reduction_first_open(w) : NULL;
	int used = snprintf(out, out_bytes, "%llu reduction%s, first ", (unsigned long long)wait->a,
	                    wait->a == 1 ? "" : "s");
	if (r && zd_reduction_lends(r, mine))
		return used + terms_text(r, mine, out + used, out_bytes - (size_t)used);
	if (r && sum_text(e, r, mine))
		return used + snprintf(out + used, out_bytes - (size_t)used,
		                       "unit '%.64s' %s rank %u's process", r->unit->name,
		                       sum_text(e, r, mine),
		                       r->group->first_rank + zd_reduction_waits_for(r, mine));
	return used + snprintf(out + used, out_bytes - (size_t)used, "unit '%.64s' (rank %u)",
	                       wait->unit ? wait->unit->name : "",
	                       req->member->group->first_rank + wait->rank);
}
