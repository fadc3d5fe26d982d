/* SPDX-License-Identifier: Apache-2.0 */
/* model.h - clients as the simulator runs them, and what the model knows of shards and sums. */
#ifndef ZD_SIM_MODEL_H
#define ZD_SIM_MODEL_H

#include "config.h"

/* ---- Clients ------------------------------------------------------------------------------------------------------ */

enum zd_sim_item_kind {
	ZD_SIM_ITEM_WAIT,     /* for the daemon page's fences */
	ZD_SIM_ITEM_OWN_COPY, /* own shard -> own slice of the gathered buffer */
	ZD_SIM_ITEM_READ,     /* a gathered buffer must hold keys[] */
	ZD_SIM_ITEM_WRITE,    /* content `key` (shards, allocations) */
	ZD_SIM_ITEM_GRADIENT, /* elements begin .. end of a gradient */
	ZD_SIM_ITEM_CHECK,    /* content `key` must be there (allocations) */
	ZD_SIM_ITEM_TARGET,   /* reduced gradients must be as expected */
	ZD_SIM_ITEM_SIGNAL,   /* client page's counter = value */
};

/* One piece of work on a client's stream. */
struct zd_sim_item {
	enum zd_sim_item_kind kind;
	uint8_t group, unit;
	enum zerod_dtype dtype;
	struct zd_location at, from;
	uint64_t key, value, begin, end, inf_at;
	uint64_t keys[ZD_SIM_WORLD];
	uint32_t nfences;
	struct zd_fence fences[ZD_SIM_FENCES];
	uint64_t epoch; /* TARGET: the step it belongs to */
};

struct zd_sim_stream {
	struct zd_sim_item *items;
	uint32_t first, count, room;
	uint64_t submitted; /* highest value that a SIGNAL was queued for */
	bool scheduled;     /* an event will run the first item */
	bool garbage;       /* a wait was freed by an abort: what follows is not checked */
};

/* The last successful gather under one tag. */
struct zd_sim_lease {
	uint32_t uses;    /* releases that are owed */
	uint32_t pending; /* gathers without a reply */
	bool doubtful;    /* from before a reset: what is in it counts as garbage */
	uint8_t streams;  /* bits: which streams read since the last release */
	struct zd_location buffer, own_shard;
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
	struct zd_location slot_at;         /* where the slot was seen */
	uint8_t home;                       /* the stream that copied the own slice, and so reads */
	bool updating, publishing, written; /* written: since update_begin, by stream `writer` */
	uint8_t writer;
	struct zd_sim_lease leases[ZD_SIM_TAGS];
	struct zd_sim_entry entry;
};

/* A session's membership in a group. */
struct zd_sim_member {
	uint64_t id; /* 0: not joined */
	bool joining;
	struct zd_sim_handle handles[ZD_SIM_UNITS];
	uint64_t bucket;
	uint32_t backwards;  /* begun */
	uint32_t step_first; /* backward with which the running step began */
	bool in_backward, stepping;
	/* The group failed since its last backward began: its entries and target are abandoned, and its own until it
	 * gives them up. */
	bool lost;
	bool beginning; /* gives them up by the backward_begin that is being sent */
	struct zd_location target;
};

struct zd_sim_request {
	uint64_t id, deadline_ns, version, least_version;
	enum zd_request_kind kind;
	uint32_t op;
	uint8_t group, unit, tag, stream;
	uint32_t uses;
	bool prefetch, must_fail, noise;
	uint64_t bucket, bytes, alignment;
	uint64_t key, inf_at; /* BUCKET_COMMIT: what was written */
	uint32_t alloc;
	uint8_t units; /* bits: of an UPDATE_BEGIN or PUBLISH */
};

struct zd_sim_alloc {
	uint64_t id, key;
	struct zd_location at;
	bool pending;
};

struct zd_sim_session {
	uint64_t id;
	uint32_t actor, index;
	bool open, poisoned;
	uint64_t next_request, duplicate; /* duplicate: an id whose next reply is an error on top */
	struct zd_sim_request *requests;
	uint32_t nrequests, room;
	uint64_t client_page[ZD_SIM_STREAMS], *daemon_page;
	struct zd_sim_stream streams[ZD_SIM_STREAMS];
	struct zd_sim_member members[ZD_SIM_GROUPS];
	struct zd_sim_alloc allocs[ZD_SIM_ALLOCS];
};

struct zd_sim_actor {
	uint32_t next;                  /* operation */
	struct zd_sim_session *session; /* NULL: none open */
	uint64_t blocked_on;            /* request without whose reply nothing goes on; 0: none */
	uint64_t waiting_since_ns;      /* 0: not waiting */
	bool scheduled, done;
};

/* ---- The model (oracle.c) ------------------------------------------------------------------------------------------- */

/* One rank's shard of one unit. */
struct zd_sim_shard {
	bool exists, maybe; /* maybe: its register ended without a success */
	uint64_t version;
	uint64_t keys[ZD_SIM_VERSIONS]; /* content of each version */
	uint64_t next_key;              /* of the version under way */
	struct zd_location at;
	uint32_t device;
};

struct zd_sim_gradient {
	bool present;
	uint64_t key, inf_at; /* element that is inf; UINT64_MAX: none */
};

struct zd_sim_group {
	struct zd_sim_shard shards[ZD_SIM_UNITS][ZD_SIM_WORLD];
	struct zd_sim_gradient gradients[ZD_SIM_BACKWARDS][ZD_SIM_UNITS][ZD_SIM_WORLD];
	bool torn;    /* a durable rank went while it wrote, and nobody committed since */
	bool tainted; /* something failed on the way: sums are not predicted any more */
	/* what the running step must give, made when its first rank asks */
	uint32_t step_first, step_last; /* backwards */
	float *expected[ZD_SIM_UNITS];
	double norm_squared;
	bool overflow, overflow_once; /* in the sums; in them, or on the way to them */
};

#endif
