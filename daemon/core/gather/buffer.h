/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buffer.h - gathered buffers, the leases on them, and slots.
 *
  * A buffer has four life cycles. states.c has the tables of state, phase and poison. Only zd_buffer_view()
 * and zd_buffer_view_done() change `own`. tests/support/core_check.c asserts the invariants.
 *
 *   state     INFLIGHT <--> AVAILABLE        INFLIGHT: a transfer is in progress
 *                 |             |
 *                 +-------------+---> QUARANTINED ---> freed after its last operation
 *
 *   phase     PROMPT ---> EXCHANGED          of the last transfer; each one starts in the left column
 *             DEFERRED
 *             LANDING --> JOINED
 *
 *   own       COPIED                         of the rank's own part: VIEWED from the first lease until
 *             IN_PLACE <--> VIEWED           the last fence of past leases has passed
 *
 *   poison    NONE ---> DUE ---> FILLING     DUE from the first lease; NONE after the fill, or when an
 *              ^         |          |        heir of the same unit has the duty
 *              +---------+----------+
 */
#ifndef ZD_CORE_GATHER_BUFFER_H
#define ZD_CORE_GATHER_BUFFER_H

#include "core/gather/unit.h"
#include "core/plan/plan.h"

/* A slot of one rank: its memory, from the first gather into it on. */
struct zd_slot {
	uint32_t number;
	struct zd_space copy;   /* for whole copies; empty before the first copy */
	struct zd_space frames; /* for buffers in place; empty before the first one */
	/* the last buffer that received the slot, or a promise of it; NULL: no buffer has operations in it */
	struct zd_buffer *occupant;
	struct zd_device *device;
	bool orphan;                    /* its rank has left: it is freed with the occupant */
	const struct zd_member *member; /* the rank */
	TAILQ_ENTRY(zd_slot) link;
};

enum zd_buffer_state { ZD_BUFFER_INFLIGHT, ZD_BUFFER_AVAILABLE, ZD_BUFFER_QUARANTINED };

enum zd_transfer_phase {
	ZD_PHASE_PROMPT,    /* started with its request; also a buffer that had no transfer yet */
	ZD_PHASE_EXCHANGED, /* collective, with its exchange done: relays out of it can run */
	ZD_PHASE_DEFERRED,  /* starts, or started, after the reply; deferred.h */
	ZD_PHASE_LANDING,   /* as DEFERRED, through landings, which it has not joined; landing.h */
	ZD_PHASE_JOINED,    /* it has joined them */
};

enum zd_own_part {
	ZD_OWN_COPIED,   /* the buffer has a copy of the rank's shard */
	ZD_OWN_IN_PLACE, /* the buffer has frames around the shard itself; in_place.c */
	ZD_OWN_VIEWED,   /* as IN_PLACE, and the buffer counts among the part's viewers */
};

enum zd_poison {
	ZD_POISON_NONE,
	ZD_POISON_DUE, /* the buffer has had a lease: its memory is filled before it is reused */
	ZD_POISON_FILLING,
};

struct zd_lease {
	char tag[ZD_MAX_TAG_BYTES + 1];
	uint32_t uses; /* remaining releases */
	uint64_t since_ns;
	struct zd_buffer *buffer;
	struct zd_scope *scope; /* NULL: a client's own tag */
	TAILQ_ENTRY(zd_lease) link, scope_link;
	struct zd_hash_node by_tag;
};

/* A rank's gathered buffer. It is charged until it is QUARANTINED. Then it belongs to no part any more. */
struct zd_buffer {
	uint64_t id;
	uint8_t state, phase, own, poison; /* the enums above */
	/* without a lease: a gather can join it, and other gathers can evict it; set by
	 * zd_buffer_set_prefetched() */
	bool prefetched;
	bool stale; /* the transfer failed, or a shard in it was dropped or undone: no gather joins it */
	struct zd_unit *unit;
	struct zd_part *part;
	struct zd_device *device;
	struct zd_space space; /* can also be the slot's or heir's */
	struct zd_slot *slot;
	/* QUARANTINED in the same memory: the transfer starts when its last operation has ended */
	struct zd_buffer *former;
	struct zd_buffer *heir; /* the buffer that has been promised the memory */
	LIST_HEAD(, zd_await) awaits;
	uint32_t era; /* of the unit's shards, at the transfer's request */
	uint64_t version, since_ns;
	uint64_t asked_ns;   /* the arrival of the request that started its last transfer */
	uint64_t connection; /* the connection of the group through which it was filled; see cluster.h */
	uint64_t transfer;   /* the number of its last transfer */
	uint64_t session;    /* the session whose timelines the transfer signals, and the session's resets at
	                        that time: */
	uint32_t resets;
	struct zd_plan plan; /* the transfer; its remaining steps write the memory, or have a promise of it */
	uint32_t watches;    /* watches of fences of past leases in progress, and the hold for its process */
	uint32_t leaving_pid; /* the process of that hold; 0: none */
	uint32_t nfences;     /* daemon-page fences of its transfer */
	struct zd_fence *fences;
	struct zd_promise *promise; /* without frames: promise of the part's version; NULL: the part has it */
	struct {                    /* of collective gathers: plan_rail_gathers.c */
		uint64_t ordinal;   /* N: the transfer is the Nth of the unit on its rank */
		uint32_t waiting;   /* relays into it that were not run */
		uint32_t expected;  /* relays out of it that have not run, including relays of ranks that are
		                      behind */
		uint32_t running;   /* relays out of it */
		TAILQ_ENTRY(zd_buffer) taker_link, source_link;
	} relay;
	TAILQ_HEAD(, zd_lease) leases;
	uint32_t nleases;
	struct zd_hash_table *tags; /* the leases by tag, if it has many; owned */
	TAILQ_ENTRY(zd_buffer) device_link, deferred_link;
	TAILQ_ENTRY(zd_buffer) use_link; /* of `prefetched` or `formers` */
	struct zd_id_node listed;
};

/* Whether operations are in progress on the buffer's memory: the buffer's own, or those of its former
 * buffer. */
static inline bool zd_buffer_is_in_use(const struct zd_buffer *buffer)
{
	return buffer->plan.left > 0 || buffer->watches > 0 || buffer->former ||
	       buffer->poison == ZD_POISON_FILLING;
}

static inline bool zd_buffer_is_in_place(const struct zd_buffer *buffer)
{
	return buffer->own != ZD_OWN_COPIED;
}

/* Whether the last transfer starts, or started, after the reply. */
static inline bool zd_transfer_is_deferred(const struct zd_buffer *buffer)
{
	return buffer->phase >= ZD_PHASE_DEFERRED;
}

/* Whether the last transfer can use landings. */
static inline bool zd_transfer_lands(const struct zd_buffer *buffer)
{
	return buffer->phase >= ZD_PHASE_LANDING;
}

/* Returns the bytes of its own memory, without the rank's part if that is the shard. */
static inline uint64_t zd_buffer_bytes(const struct zd_buffer *buffer)
{
	return zd_space_bytes(&buffer->space);
}

/* Returns the place of slice `index`. */
struct zd_location zd_buffer_slice(const struct zd_buffer *buffer, uint32_t index);
/* Returns the place of a whole copy. For a buffer in place, returns the place of the slices below the own
 * part, which follows their frame. */
struct zd_location zd_buffer_low(const struct zd_buffer *buffer);

/* Drops a buffer without leases: its bytes are uncharged at once, its block is freed when the last op has
 * ended. */
void zd_buffer_drop(struct zd_engine *e, struct zd_buffer *buffer);
/* Drops a prefetched buffer because its memory is needed. */
void zd_buffer_evict(struct zd_engine *e, struct zd_buffer *buffer);
/* Ends leases of the buffer, which count against the budget, until one remains. Returns false if more
 * remain. */
bool zd_buffer_thin_out(struct zd_engine *e, struct zd_buffer *buffer, uint32_t *budget);
/* Ends all leases of the buffer, and drops the buffer. */
void zd_buffer_revoke(struct zd_engine *e, struct zd_buffer *buffer);
void zd_buffer_set_prefetched(struct zd_buffer *buffer, bool prefetched);
/* Returns the bytes of all its memory. */
uint64_t zd_slot_bytes(const struct zd_slot *slot);
/* Frees a slot without an occupant. */
void zd_slot_free(struct zd_engine *e, struct zd_slot *slot);
/* Writes the tags of the buffer's leases: "'plan', 'fallback'". */
void zd_buffer_tags(const struct zd_buffer *buffer, char *out, size_t out_bytes);

extern const struct zd_sm zd_sm_buffer, zd_sm_transfer, zd_sm_poison;

#endif
