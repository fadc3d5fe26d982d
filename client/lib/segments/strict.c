/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strict.c - pages of gathered buffers, which a strict client may access only while they are held.
 *
 * On GPUs access is granted to whole segments, and each gathered buffer has its own: such a segment counts as
 * one page here.
 *
 * Each page of a segment has a count of its holders. Invariant: a page can be accessed exactly while its
 * count is not 0.
 *
 * Holders are a lease, from the first wait that returned its address until its last release; each stream that
 * a release names, until the stream has run all work that was in it then; a unit that is persistent; and a
 * thread that copies into the buffer. A location may be used again while a stream still holds it: by two
 * tags, two units of one slot, or two threads that wait for one ticket. All of them add to the counts,
 * independently of each other.
 *
 * The daemon cannot give the location to another unit too early either: a stream drops its holds before it
 * writes the value that the release has named as its fence (host_stream.c, cuda_strict.c).
 */
#include "client/lib/segments/strict.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "client/lib/segments/cuda_segment.h"

#define PAGE_BYTES ((uint64_t)ZD_STRICT_ALIGN_BYTES)

/* ---- Pages --------------------------------------------------------------------------------------------- */

static int protect(struct zerod_client *client, const struct zc_segment *segment, uint64_t page,
                   uint64_t npages, bool open, struct zd_err *err)
{
	if (!segment->map) /* the segment was retired */
		return 0;
	if (client->on_gpus)
		return zc_cuda_segment_protect(client, segment, open, err);
	if (mprotect((uint8_t *)segment->map + page * PAGE_BYTES, npages * PAGE_BYTES,
	             open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0)
		return 0;
	return zd_err_errno(err, errno,
	                    open ? "giving access to a gathered buffer's pages"
	                         : "taking the access to a released buffer's pages away");
}

/* With the pages' lock. */
static int take_pages(struct zerod_client *client, const struct zc_hold *hold, struct zd_err *err)
{
	uint32_t *holders = hold->segment->page_holders + hold->page;
	bool closed = false;
	int rc;

	for (uint64_t i = 0; i < hold->npages; i++)
		closed |= holders[i] == 0;
	rc = closed ? protect(client, hold->segment, hold->page, hold->npages, true, err) : 0;
	if (rc)
		return rc;
	for (uint64_t i = 0; i < hold->npages; i++)
		holders[i]++;
	return 0;
}

/* Revokes access to each run of pages without holders. This function cannot return a failure. The next wait
 * returns an error instead: stale views may not fault. With the pages' lock. */
static void give_pages(struct zerod_client *client, const struct zc_hold *hold)
{
	uint32_t *holders = hold->segment->page_holders + hold->page;
	uint64_t first = 0;
	struct zd_err err;

	for (uint64_t i = 0; i < hold->npages; i++) {
		if (--holders[i] > 0)
			first = i + 1;
		else if ((i + 1 == hold->npages || holders[i + 1] > 1) &&
		         protect(client, hold->segment, hold->page + first, i + 1 - first, false, &err) &&
		         !client->page_failure.status)
			client->page_failure = err;
	}
}

static int make_counts(const struct zerod_client *client, struct zc_segment *segment, struct zd_err *err)
{
	uint64_t npages = client->on_gpus ? 1 : (segment->bytes + PAGE_BYTES - 1) / PAGE_BYTES;

	if (!segment->page_holders)
		segment->page_holders = calloc(npages, sizeof(*segment->page_holders));
	return segment->page_holders ? 0 : zd_err_errno(err, ENOMEM, "holding a gathered buffer's pages");
}

/* ---- Holds --------------------------------------------------------------------------------------------- */

static int add_hold(struct zerod_client *client, struct zc_hold_list *list, const struct zc_hold *like,
                    struct zd_err *err)
{
	struct zc_hold *hold = malloc(sizeof(*hold));
	int rc;

	if (!hold)
		return zd_err_errno(err, ENOMEM, "holding a gathered buffer's pages");
	*hold = *like;
	pthread_mutex_lock(&client->page_lock);
	rc = make_counts(client, hold->segment, err);
	if (!rc)
		rc = take_pages(client, hold, err);
	if (!rc)
		hold->segment->nholds++;
	pthread_mutex_unlock(&client->page_lock);
	if (rc)
		free(hold);
	else
		LIST_INSERT_HEAD(list, hold, link);
	return rc;
}

void zc_holds_drop(struct zerod_client *client, struct zc_hold_list *list)
{
	struct zc_hold *hold;

	while ((hold = LIST_FIRST(list))) {
		LIST_REMOVE(hold, link);
		if (client->strict) {
			pthread_mutex_lock(&client->page_lock);
			give_pages(client, hold);
			hold->segment->nholds--;
			pthread_mutex_unlock(&client->page_lock);
		}
		free(hold);
	}
}

int zc_holds_copy(struct zerod_client *client, const struct zc_hold_list *from, struct zc_hold_list *to,
                  struct zd_err *err)
{
	const struct zc_hold *hold;
	int rc = 0;

	LIST_FOREACH (hold, from, link) {
		rc = add_hold(client, to, hold, err);
		if (rc)
			break;
	}
	if (rc)
		zc_holds_drop(client, to);
	return rc;
}

static bool same_pages(const struct zc_hold *a, const struct zc_hold *b)
{
	return a->segment == b->segment && a->page == b->page && a->npages == b->npages;
}

static int find_pages(struct zerod_client *client, const struct zc_unit *unit, const struct zc_location *part,
                      struct zc_hold *place, struct zd_err *err)
{
	uint64_t page = client->on_gpus ? 0 : part->offset / PAGE_BYTES;
	uint64_t end = client->on_gpus ? 1 : (part->offset + part->bytes + PAGE_BYTES - 1) / PAGE_BYTES;

	*place = (struct zc_hold){
	        .segment = zc_segment_find(client, part->segment), .page = page, .npages = end - page};
	if (place->segment)
		return 0;
	return zd_err_set(err, ZEROD_E_STALE, "segment %u of unit '%s' was released to its device",
	                  part->segment, unit->name);
}

int zc_strict_hold_segment(struct zerod_client *client, struct zc_segment *segment, struct zc_hold_list *list,
                           struct zd_err *err)
{
	const struct zc_hold whole = {.segment = segment, .npages = 1};

	return add_hold(client, list, &whole, err);
}

/* ---- Leases and units ---------------------------------------------------------------------------------- */

/* A persistent copy has one place. A former place is no longer one. */
int zc_strict_keep(struct zerod_client *client, struct zc_unit *unit, const struct zc_hold *place,
                   struct zd_err *err)
{
	struct zc_hold_list taken = LIST_HEAD_INITIALIZER(taken);
	struct zc_hold *hold;
	int rc;

	LIST_FOREACH (hold, &unit->kept, link)
		if (same_pages(hold, place))
			return 0;
	rc = add_hold(client, &taken, place, err);
	if (rc)
		return rc;
	zc_holds_drop(client, &unit->kept);
	hold = LIST_FIRST(&taken);
	LIST_REMOVE(hold, link);
	LIST_INSERT_HEAD(&unit->kept, hold, link);
	return 0;
}

int zc_strict_open(struct zerod_client *client, struct zc_unit *unit, const struct zc_location *place,
                   struct zc_hold_list *holds, struct zd_err *err)
{
	struct zc_hold *hold, pages;
	int rc = 0;

	if (!client->strict)
		return 0;
	if (!holds)
		return zd_err_set(err, ZEROD_E_STALE, "unit '%s' was released meanwhile", unit->name);
	pthread_mutex_lock(&client->page_lock);
	if (client->page_failure.status) {
		*err = client->page_failure;
		rc = err->status;
	}
	pthread_mutex_unlock(&client->page_lock);
	if (!rc)
		rc = find_pages(client, unit, place, &pages, err);
	if (!rc && unit->persistent)
		rc = zc_strict_keep(client, unit, &pages, err);
	if (rc)
		return rc;
	LIST_FOREACH (hold, holds, link)
		if (same_pages(hold, &pages))
			return 0;
	return add_hold(client, holds, &pages, err);
}
