/* SPDX-License-Identifier: Apache-2.0 */
/* model.h - clients as the simulator runs them, and what the model knows of shards and sums. */
#ifndef ZD_SIM_MODEL_H
#define ZD_SIM_MODEL_H

#include "config.h"

/* ---- Clients ------------------------------------------------------------------------------------------- */

enum zd_sim_item_kind {
	ZD_SIM_ITEM_WAIT,  /* for the daemon page's fences; `at`: to write that shard, to read that target */
	ZD_SIM_ITEM_READ,  /* slices begin .. end of a gathered buffer must hold keys[] */
	ZD_SIM_ITEM_WRITE, /* content `key` (shards, allocations) */
	ZD_SIM_ITEM_GRADIENT, /* elements begin .. end of a gradient */
	ZD_SIM_ITEM_CHECK,    /* content `key` must be there (allocations) */
	ZD_SIM_ITEM_TARGET,   /* reduced gradients must be as expected */
	ZD_SIM_ITEM_LOAN,     /* so must one unit's before the step; may be written then */
	ZD_SIM_ITEM_RETURN,   /* terms are returned, with a fence behind this stream's work */
	ZD_SIM_ITEM_TERMS,    /* they must be as expected; `key` 0: the own term, 1: those of the others */
	ZD_SIM_ITEM_SIGNAL,   /* client page's counter = value */
};

/* A piece of work on a client's stream. */
struct zd_sim_item {
	enum zd_sim_item_kind kind;
	uint8_t group, unit;
	enum zerod_dtype dtype;
	struct zd_location at;
	uint64_t key, value, begin, end, inf_at;
	uint64_t sum_first;          /* LOAN: not before this backward, if that is behind `begin` */
	uint64_t keys[ZD_SIM_WORLD]; /* TARGET: of each unit its first element there */
	uint32_t nfences;
	struct zd_fence fences[ZD_SIM_FENCES];
	uint8_t units; /* TARGET: bits; those that were registered then */
};

struct zd_sim_stream {
	struct zd_sim_item *items;
	uint32_t first, count, room;
	uint64_t submitted; /* highest value that a SIGNAL was queued for */
	bool scheduled;     /* an event will run the first item */
	bool garbage;       /* a wait was freed by an abort: what follows is not checked */
};

/* The parts of a gathered buffer: a whole copy is at LOW; in place OWN is the shard, and frames may be
 * empty. */
enum { ZD_SIM_LOW, ZD_SIM_OWN, ZD_SIM_HIGH, ZD_SIM_PARTS };

/* The last successful gather under one tag or in one scope. */
struct zd_sim_lease {
	uint32_t uses;    /* releases that are owed */
	uint32_t pending; /* gathers without a reply */
	bool doubtful;    /* from before a reset: what is in it counts as garbage */
	uint8_t streams;  /* bits: which streams read since the last release */
	struct zd_location at[ZD_SIM_PARTS];
	uint64_t version, keys[ZD_SIM_WORLD];
	uint32_t nfences;
	struct zd_fence fences[ZD_SIM_FENCES];
};

struct zd_sim_entry {
	uint64_t id, bucket; /* id 0: none */
	struct zd_location at;
	bool pending, committed;
};

/* A session's handle of a unit. */
struct zd_sim_handle {
	uint64_t id; /* 0: not registered */
	bool registering;
	struct zd_location shard;
	uint64_t target_offset_numel;
	struct zd_location slot_at[2][ZD_SIM_PARTS]; /* where its copies and frames in the slot were seen */
	bool updating, publishing, written;          /* written: since update_begin, by stream `writer` */
	bool undone; /* the update was undone by a rank that went; its publish must be refused */
	uint8_t writer;
	struct zd_sim_lease leases[ZD_SIM_HOLDERS]; /* by tag, then by place of a scope */
	struct zd_sim_entry entry;
	bool lent;         /* its place in the target, before the step */
	uint32_t lending;  /* requests for that without a reply */
	uint8_t accessors; /* bits: streams with work there that no return of it has named */
	struct zd_location lent_at;
	bool untargeted, terms;    /* terms: its last contribution has no sum */
	uint32_t lent_end;         /* the backward behind the last one in the sum that is lent */
	uint32_t sum_first;        /* untargeted: the first backward whose gradients may be in a sum */
	struct zd_fence lent_from; /* value 0: at once */
};

enum zd_sim_scope_state {
	ZD_SIM_SCOPE_NONE,
	ZD_SIM_SCOPE_PENDING,
	ZD_SIM_SCOPE_OPEN,
	ZD_SIM_SCOPE_CLAIM,
	ZD_SIM_SCOPE_CONTEXT
};

/* A place for a forward scope, a claim or a user context. PENDING: a context that is asked for. */
struct zd_sim_scope {
	enum zd_sim_scope_state state;
	uint64_t id;     /* while NONE: of the last one, which has ended; 0: there was none */
	uint64_t parent; /* its id; 0: none */
	uint8_t units;   /* bits: of a context, PENDING or not */
};

/* A session's membership in a group. */
struct zd_sim_member {
	uint64_t id; /* 0: not joined */
	bool joining;
	struct zd_sim_handle handles[ZD_SIM_UNITS];
	uint64_t buckets[ZD_SIM_BUCKETS]; /* 0: none */
	uint32_t backwards;               /* begun */
	uint32_t step_first;              /* backward with which the running step began */
	uint32_t steps;                   /* that it has taken */
	uint8_t made,
	        made_before; /* bits: units that it has submitted or skipped in its last backward; in the
	                            * window's former ones */
	bool in_backward, stepping;
	bool abandons,
	        has_left; /* its window: by the request that is being sent; and has not begun another */
	/* The group failed since its last backward began: its entries and target are abandoned, and its own
	 * until it gives them up. */
	bool lost;
	bool set_back;  /* what it published or wrote was undone, and it has not reset since */
	bool beginning; /* gives them up by the backward_begin that is being sent */
	struct zd_location lent_from[2]; /* the targets that places are lent of; segment 0: not known */
	struct zd_location targets[2];   /* on the device, and in host memory */
	struct zd_fence target_fence;    /* from when on they may be read; value 0: at once */
	struct zd_sim_scope scopes[ZD_SIM_SCOPES];
};

struct zd_sim_request {
	uint64_t id, deadline_ns, version, least_version;
	enum zd_request_kind kind;
	uint32_t op;
	uint8_t group, unit, tag, stream;
	uint32_t uses;
	bool prefetch, must_fail, noise;
	uint64_t bucket, bytes, alignment;
	uint64_t key, inf_at; /* BUCKET_SUBMIT: what was written */
	uint32_t alloc;
	uint8_t units;          /* bits: of an UPDATE_BEGIN, PUBLISH, CONTEXT_BEGIN or BACKWARD_ABANDON */
	bool held, unheld;      /* UPDATE_BEGIN, PUBLISH: success is no answer; BUSY is none */
	bool had;               /* BACKWARD_ABANDON: the window was abandoned already */
	bool grad;              /* FORWARD_END */
	bool terms;             /* REDUCE_WAIT */
	uint64_t scope, parent; /* of a gather; of what begins or ends scopes */
};

struct zd_sim_alloc {
	uint64_t id, key;
	struct zd_location at;
	bool pending;
};

/* A segment that a session was given. */
struct zd_sim_mapping {
	uint32_t segment;
	bool told; /* to unmap it */
};

/* A gathered buffer that a poison session was given, until it is filled. */
struct zd_sim_exposure {
	uint64_t session;
	uint8_t group, unit;
	struct zd_location at;
	uint32_t nfences;
	struct zd_fence fences[ZD_SIM_FENCES];
};

struct zd_sim_session {
	uint64_t id;
	uint32_t actor, index;
	bool open, poisoned;
	bool clean_exit; /* it has said goodbye: its process does not linger */
	bool lingers;    /* not open any more, but its process runs on */
	bool told;       /* that it was set back to the last commit */
	bool aborted;    /* bytes that it was to get will never come; since its reset */
	bool strict, poison;
	bool broken; /* an abort may have freed its streams, ever: gathered bytes need not come any more */
	struct zd_location *residue; /* while it lingers: what its process may still write */
	uint32_t nresidue, residue_room;
	uint64_t quarantined[ZD_SIM_DEVICES]; /* bytes of it, of each device, that must be quarantined */
	struct zd_sim_mapping *mappings;
	uint32_t nmappings, mappings_room;
	uint64_t next_request, duplicate; /* duplicate: an id whose next reply is an error on top */
	struct zd_sim_request *requests;
	uint32_t nrequests, room;
	uint64_t client_page[ZD_SIM_STREAMS], *daemon_page;
	uint64_t *
	        told_ns; /* of each timeline: when the engine is told of the last command that signalled it */
	uint64_t *given; /* of each timeline: the value of the last copy that was given; poison.c */
	struct zd_sim_stream streams[ZD_SIM_STREAMS];
	struct zd_sim_member members[ZD_SIM_GROUPS];
	struct zd_sim_alloc allocs[ZD_SIM_ALLOCS];
};

struct zd_sim_actor {
	uint32_t next;                  /* operation */
	struct zd_sim_session *session; /* NULL: none open */
	uint64_t blocked_on;            /* request without whose reply nothing goes on; 0: none */
	uint64_t waiting_since_ns;      /* 0: not waiting */
	uint32_t gives_up;              /* bits: groups whose running step it gives up (regroup.c) */
	bool scheduled, done;
};

/* ---- The model (oracle.c) ------------------------------------------------------------------------------ */

/* A rank's shard of a unit. */
struct zd_sim_shard {
	bool exists, maybe;   /* maybe: its register ended without a success */
	bool kept;            /* its rank ended normally: it stays while another one can gather it */
	bool owed;            /* it was undone, and nothing was copied back yet */
	uint32_t restored_in; /* call in which that copy was given */
	uint64_t version, committed;
	uint64_t keys[ZD_SIM_VERSIONS]; /* content of each version */
	uint64_t next_key;              /* of the version under way */
	struct zd_location at;          /* segment 0: its unit was moved, and it is not known where it is */
	uint32_t device;
};

struct zd_sim_gradient {
	bool present;
	uint64_t key, inf_at; /* element that is inf; UINT64_MAX: none */
	uint64_t edit;        /* what its rank has written over its slice of the sum; 0: nothing */
};

struct zd_sim_group {
	struct zd_sim_shard shards[ZD_SIM_UNITS][ZD_SIM_WORLD];
	struct zd_sim_gradient gradients[ZD_SIM_BACKWARDS][ZD_SIM_UNITS][ZD_SIM_WORLD];
	bool torn; /* a durable rank went while it wrote, and nobody committed since */
	uint64_t committed_step;
	bool kept[ZD_SIM_UNITS];  /* the unit has been persistent */
	bool moved[ZD_SIM_UNITS]; /* it is not where its registration says */
	/* as the last registration's reply has them; 0: there was none */
	uint64_t ids[ZD_SIM_UNITS], descriptions[ZD_SIM_UNITS];
	bool tainted; /* something failed on the way: sums are not predicted any more */
	uint32_t abandoned[ZD_SIM_BACKWARDS]; /* windows, each by its first backward + 1 */
	/* what the running step must give, made when its first rank asks */
	uint32_t step_first, step_last; /* backwards */
	float *expected[ZD_SIM_UNITS];
	double norm_squared;
	bool overflow_once; /* in the sums, or on the way to them */
};

#endif
