/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry.h - one rank's gradient of one unit (entry.c), its place in memory (entry_place.c), and circles of
 * reservations that wait for each other (capacity.c).
 */
#ifndef ZD_CORE_REDUCE_ENTRY_H
#define ZD_CORE_REDUCE_ENTRY_H

#include "base/sm.h"
#include "core/gather/unit.h"
#include "core/reduce/bucket.h"
#include "core/reduce/window.h"

struct zd_reduction;

enum zd_entry_state {
	ZD_ENTRY_WAITING,   /* the entry has no place yet */
	ZD_ENTRY_FILLING,   /* the reservation waits until the place can be written */
	ZD_ENTRY_RESERVED,  /* the trainer writes the entry */
	ZD_ENTRY_ABANDONED, /* the group has failed; the trainer can still write the entry */
	ZD_ENTRY_SUBMITTED, /* the producers' fences, or fills of the place, are awaited */
	ZD_ENTRY_READY,     /* the entry's pieces can be copied */
	ZD_ENTRY_DRAINED,   /* no operation reads the entry any more */
};

/* Whether an entry's place can be written. */
enum zd_entry_place {
	ZD_ENTRY_PLACE_NONE,   /* the entry has no place yet */
	ZD_ENTRY_PLACE_QUEUED, /* entries of an earlier generation of its slot are still read */
	ZD_ENTRY_PLACE_ZEROED, /* the parts that its trainer does not write are being zeroed */
	ZD_ENTRY_PLACE_THERE,
};

/* The event that a WAITING entry needs for its place. */
enum zd_entry_wait {
	ZD_ENTRY_WAIT_NONE,   /* the executors: a segment, quarantined memory */
	ZD_ENTRY_WAIT_SLOT,   /* a slot of its bucket must be reduced */
	ZD_ENTRY_WAIT_MEMORY, /* memory: anything that this rank has in buckets must be reduced */
};

struct zd_entry {
	uint64_t id;
	uint8_t state;
	uint8_t wait;              /* enum zd_entry_wait */
	uint8_t place;             /* enum zd_entry_place */
	bool ahead;                /* a stream, not the request, waits until the place can be written */
	bool zero_holes;           /* also zero the elements that no view of the unit covers */
	bool watched;              /* SUBMITTED: its fences have not passed */
	uint32_t nabsent, *absent; /* views that are zeroed after the fences, by index */
	uint32_t ops;              /* fills of its place and the watch of its fences, in progress */
	uint32_t fills;            /* of these, the fills */
	struct zd_bucket *bucket;  /* NULL: the entry has ended and remains only for these operations */
	struct zd_window *w;       /* window of its backward; NULL: the group has failed, or the entry has
	                              ended */
	struct zd_part *part;
	struct zd_reduction *reduction; /* NULL: the entry will not be reduced */
	struct zd_bucket_slot *slot;    /* NULL: the entry has a storage of its own */
	uint64_t generation;            /* of the slot */
	struct zd_storage *storage;
	uint64_t offset, bytes; /* in the storage; padded to 256 */
	struct zd_promise
	        *promise; /* promise that the place can be written, until place is THERE; NULL: none */
	struct zd_failure failure;  /* of the fills */
	char *refused;              /* text of a CAPACITY error for the waiting request */
	struct zd_fence *producers; /* SUBMITTED: fences of the streams that write the entry; NULL: none */
	uint32_t nproducers;
	TAILQ_ENTRY(zd_entry) waiting_link, slot_link;
	UT_hash_handle hh;
};

extern const struct zd_sm zd_sm_entry;

/* Ends the entry, which is drained, rejected or given up, and frees its place. */
void zd_entry_end(struct zd_engine *e, struct zd_entry *entry);
/* Changes an entry from RESERVED to ABANDONED. It retains its place, and leaves its reduction and its
 * window. */
void zd_entry_abandon(struct zd_engine *e, struct zd_entry *entry);
/* Removes an entry that is not submitted from its reduction, if it has one. */
void zd_entry_detach(struct zd_engine *e, struct zd_entry *entry);
/* Submits a RESERVED entry without its reduction: the entry ends when the fences have passed. */
void zd_entry_return(struct zd_engine *e, struct zd_entry *entry, const struct zd_fence_list *fences);
/* Whether executors, and streams whose fences the engine has, will drain the entry without a call of any
 * process. */
bool zd_entry_drains(const struct zd_engine *e, const struct zd_entry *entry);
/* Makes a SUBMITTED entry READY if its fences have passed and its place is zeroed. May end the entry. */
void zd_entry_try_ready(struct zd_engine *e, struct zd_entry *entry);
/* Frees the object of an entry that has ended and has no remaining operation. */
void zd_entry_free(struct zd_entry *entry);
/* Writes why the entry is not drained (reduce_text.c). */
void zd_entry_text(const struct zd_engine *e, const struct zd_entry *entry, char *out, size_t out_bytes);

/* ---- The place of an entry (entry_place.c) ---------------------------------------------------------- */

/* Zeroes the bytes that the trainer does not write. Called when no earlier entry uses the memory of the
 * place. */
void zd_entry_prepare(struct zd_engine *e, struct zd_entry *entry);
/* Called when the entry's fences have passed: zeroes the views that have no gradient. */
void zd_entry_zero_absent(struct zd_engine *e, struct zd_entry *entry);
/* Keeps the entry's promise when the entry ends or is abandoned, so that no stream waits for the place. */
void zd_entry_release_promise(struct zd_engine *e, struct zd_entry *entry);

/* ---- Circles of reservations (capacity.c) -------------------------------------------------------------- */

/*
 * Checks whether `entry` waits in a circle of reservations, none of which can proceed before another one.
 * Returns 0, or CAPACITY with a text that names ranks and units. The other reservations of the circle are
 * then rejected at their next attempt.
 */
int zd_capacity_check(struct zd_engine *e, struct zd_entry *entry, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
