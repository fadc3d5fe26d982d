/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.h - a simulator of everything around the core: clients, their streams, executors, time and faults.
 *
 * A seed gives a configuration and, for every trainer, a list of operations. The simulator runs them against
 * core/engine.h under virtual time, with real bytes in small segments, and compares what happens with a model that knows
 * nothing of how the engine works: which leases are held, which versions are published, which bytes and sums must be
 * where. Everything is drawn from the seed, so a seed repeats exactly; every operation draws from a seed of its own, so
 * that taking one out leaves the others as they were (shrink.c).
 */
#ifndef ZD_SIM_H
#define ZD_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/engine.h"

enum {
	ZD_SIM_JOBS = 3,
	ZD_SIM_GROUPS = 6, /* of all jobs */
	ZD_SIM_UNITS = 6,  /* of one group */
	ZD_SIM_WORLD = 8,  /* largest group */
	ZD_SIM_ACTORS = 20,
	ZD_SIM_STREAMS = 3,
	ZD_SIM_TAGS = 3,
	ZD_SIM_ALLOCS = 4,
	ZD_SIM_VERSIONS = 64,
	ZD_SIM_BACKWARDS = 32,
	ZD_SIM_OPS = 6144,
	ZD_SIM_FENCES = 16, /* fences that one gather's reply may carry here */
};

/* ---- Randomness and bytes (rng.c) ------------------------------------------------------------------------------- */

struct zd_sim_rng {
	uint64_t state;
};

uint64_t zd_sim_mix(uint64_t a, uint64_t b); /* a hash of both, never 0 */
void zd_sim_rng_init(struct zd_sim_rng *rng, uint64_t seed, uint64_t stream);
uint64_t zd_sim_next(struct zd_sim_rng *rng);
uint64_t zd_sim_below(struct zd_sim_rng *rng, uint64_t bound);                /* bound >= 1 */
uint64_t zd_sim_between(struct zd_sim_rng *rng, uint64_t low, uint64_t high); /* both included */
bool zd_sim_percent(struct zd_sim_rng *rng, uint32_t percent);
uint64_t zd_sim_delay(struct zd_sim_rng *rng, uint64_t scale_ns); /* mostly short, sometimes very long */

/* Content number `key` of a piece of memory; key 0 is all zeros. */
#define ZD_SIM_UNKNOWN UINT64_MAX /* half-written by somebody who died */
void zd_sim_pattern_write(uint64_t key, uint8_t *bytes, size_t nbytes);
/* The first byte that differs, or `nbytes`. */
size_t zd_sim_pattern_check(uint64_t key, const uint8_t *bytes, size_t nbytes);

/* ---- Configuration (world.c) ------------------------------------------------------------------------------------ */

struct zd_sim_unit_config {
	char name[16];
	enum zerod_dtype dtype;
	uint64_t numel;
	uint32_t slot, nviews;
	bool persistent, frozen;
};

/* What all ranks of a group do alike. */
struct zd_sim_plan {
	uint32_t steps, micro_steps, stage;
	enum zerod_dtype target_dtype, gradient_dtype;
	enum zerod_reduce_op op;
	float prescale;
	bool overwrite;
	bool same_order;    /* all ranks reduce in one order */
	bool one_at_a_time; /* a rank holds at most one unit */
	bool batched_publish, commits, prefetches;
	uint32_t inf_percent; /* of gradients that hold an inf */
};

struct zd_sim_group_config {
	char name[16];
	uint32_t job, world;
	bool reversed; /* ranks run against the actors' */
	uint32_t nunits;
	struct zd_sim_unit_config units[ZD_SIM_UNITS];
	struct zd_sim_plan plan;
};

struct zd_sim_job_config {
	char name[16];
	uint32_t uid, world, first_group, ngroups;
	bool durable;
};

struct zd_sim_actor_config {
	int job; /* -1: a stranger */
	uint32_t rank, device, uid;
	bool admin;
};

struct zd_sim_config {
	uint64_t seed;
	bool clean; /* no faults, no noise: every request must succeed and every program must end */
	bool client_copies;
	uint32_t noise_percent, death_percent;
	uint32_t create_fault_percent, device_fault_permille;
	uint64_t patience_ns;                  /* 0: actors wait as long as it takes */
	uint64_t lane_ns, stream_ns, actor_ns; /* scales of delays */
	uint64_t quota_bytes, segment_bytes;
	uint32_t ndevices, njobs, ngroups, nactors;
	struct zd_device_config devices[4];
	struct zd_sim_job_config jobs[ZD_SIM_JOBS];
	struct zd_sim_group_config groups[ZD_SIM_GROUPS];
	struct zd_sim_actor_config actors[ZD_SIM_ACTORS];
};

void zd_sim_config_derive(uint64_t seed, struct zd_sim_config *config);
void zd_sim_config_print(const struct zd_sim_config *config);
uint32_t zd_sim_rank(const struct zd_sim_config *config, uint32_t actor, uint32_t group);
uint64_t zd_sim_shard_numel(const struct zd_sim_group_config *group, uint32_t unit);
uint64_t zd_sim_true_numel(const struct zd_sim_group_config *group, uint32_t unit, uint32_t rank);

/* ---- Programs (program.c, print.c) -------------------------------------------------------------------------------- */

enum zd_sim_op_kind {
	ZD_SIM_OPEN,
	ZD_SIM_CLOSE,
	ZD_SIM_DIE, /* a close that waits for nothing */
	ZD_SIM_RESET,
	ZD_SIM_JOIN,
	ZD_SIM_LEAVE,
	ZD_SIM_REGISTER,
	ZD_SIM_UNREGISTER,
	ZD_SIM_UPDATE_BEGIN,
	ZD_SIM_PUBLISH,
	ZD_SIM_COMMIT,
	ZD_SIM_SET_PERSISTENT,
	ZD_SIM_GATHER,
	ZD_SIM_PREFETCH,
	ZD_SIM_USE, /* a stream reads the gathered buffer */
	ZD_SIM_RELEASE,
	ZD_SIM_BACKWARD_BEGIN,
	ZD_SIM_BUCKET_CREATE,
	ZD_SIM_BUCKET_DESTROY,
	ZD_SIM_RESERVE,
	ZD_SIM_BUCKET_COMMIT,
	ZD_SIM_SKIP,
	ZD_SIM_BACKWARD_END,
	ZD_SIM_STEP_BEGIN,
	ZD_SIM_STEP_END,
	ZD_SIM_ALLOC,
	ZD_SIM_FREE,
	ZD_SIM_KILL,
	ZD_SIM_ABORT,
	ZD_SIM_END_JOB,
	ZD_SIM_RELOAD,  /* quota and budget change */
	ZD_SIM_GARBAGE, /* a request that must fail */
	ZD_SIM_NOPS
};

#define ZD_SIM_ALL_UNITS 255u

struct zd_sim_op {
	uint8_t kind, actor;
	uint8_t group, unit, tag;
	bool noise;   /* not part of the training: does not wait until it makes sense */
	uint32_t arg; /* by kind: uses, boundary, step, ... */
};

struct zd_sim_program {
	uint32_t nops;
	struct zd_sim_op ops[ZD_SIM_OPS];
	uint32_t first[ZD_SIM_ACTORS + 1]; /* an actor's operations: first[a] .. first[a + 1] - 1 */
};

void zd_sim_program_generate(const struct zd_sim_config *config, struct zd_sim_program *program);
/* `removed[i]`: operation i is left out; NULL: none. */
void zd_sim_program_print(const struct zd_sim_config *config, const struct zd_sim_program *program,
                          const bool *removed);
void zd_sim_op_text(const struct zd_sim_config *config, const struct zd_sim_op *op, char *text,
                    size_t nbytes);

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
	bool overflow;
};

/* ---- The world (driver.c) --------------------------------------------------------------------------------------------- */

enum zd_sim_event_kind { ZD_SIM_EVENT_ACTOR, ZD_SIM_EVENT_LANE, ZD_SIM_EVENT_DONE, ZD_SIM_EVENT_STREAM };

struct zd_sim_event {
	uint64_t at_ns, order;
	enum zd_sim_event_kind kind;
	uint32_t index, stream;
	uint64_t op; /* DONE */
	int status;
	struct zd_op_result result;
};

struct zd_sim_queued {
	struct zd_command command; /* arrays below instead of pointers */
	struct zd_location inputs[ZD_SIM_WORLD];
	bool fails;
};

struct zd_sim_lane {
	struct zd_sim_queued *queue;
	uint32_t first, count, room;
	bool halfway;
	uint64_t last_done_ns; /* completions of one executor arrive in order */
};

struct zd_sim_watch {
	uint64_t op, session;
	uint32_t nfences;
	struct zd_fence fences[ZD_MAX_FENCES];
};

struct zd_sim_segment {
	uint32_t id, device;
	uint64_t bytes, job;
	uint8_t *data; /* NULL: not there yet, or gone */
};

struct zd_sim_stats {
	uint64_t requests, ops, gathers_checked, reductions_checked;
};

struct zd_sim_world {
	struct zd_sim_config config;
	struct zd_sim_program program;
	const bool *removed;
	bool verbose;
	uint32_t calls;
	struct zd_engine *engine;
	uint64_t now_ns, next_order;
	struct zd_sim_rng rng;
	struct zd_sim_event *events; /* a heap */
	uint32_t nevents, events_room;
	struct zd_sim_lane lanes[4];
	struct zd_sim_watch *watches;
	uint32_t nwatches, watches_room;
	struct zd_sim_segment *segments;
	uint32_t nsegments, segments_room;
	struct zd_sim_session **sessions; /* all that ever were */
	uint32_t nsessions, sessions_room;
	struct zd_sim_actor actors[ZD_SIM_ACTORS];
	struct zd_sim_group groups[ZD_SIM_GROUPS];
	uint64_t budget_bytes[4], quota_bytes; /* highest ever in force; quota 0: none was */
	uint64_t pending_ops;
	struct {
		uint64_t session;
		uint32_t segment;
	} seen[32]; /* locations in replies of the running call, for zd_engine_may_map() */
	uint32_t nseen;
	struct zd_sim_stats stats;
};

/* Runs one seed to its end; returns only when all held. `removed`: as for zd_sim_program_print(). */
void zd_sim_run(uint64_t seed, bool verbose, const bool *removed, struct zd_sim_stats *stats);

void zd_sim_schedule(struct zd_sim_world *world, struct zd_sim_event event, uint64_t delay_ns);
void zd_sim_called(struct zd_sim_world *world); /* after every call into the engine: all that must hold now */
/* Says what is wrong and ends the process with status 1. */
_Noreturn void zd_sim_fail(struct zd_sim_world *world, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
void zd_sim_trace(struct zd_sim_world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Grows `array` of `each` bytes to hold one more than `count`. */
void *zd_sim_grow(void *array, uint32_t count, uint32_t *room, size_t each);

/* lane.c: executors */
void zd_sim_command(void *world, const struct zd_command *command);
void zd_sim_lane_run(struct zd_sim_world *world, uint32_t device);
void zd_sim_watches_run(struct zd_sim_world *world, uint64_t session);
uint8_t *zd_sim_memory(struct zd_sim_world *world, const struct zd_location *at, const char *what);
float zd_sim_float_load(enum zerod_dtype dtype, const uint8_t *bytes, uint64_t index);
void zd_sim_float_store(enum zerod_dtype dtype, uint8_t *bytes, uint64_t index, float value);

/* stream.c: the clients' streams */
struct zd_sim_item *zd_sim_stream_append(struct zd_sim_world *world, struct zd_sim_session *session,
                                         uint32_t stream, enum zd_sim_item_kind kind);
struct zd_fence zd_sim_stream_signal(struct zd_sim_world *world, struct zd_sim_session *session,
                                     uint32_t stream);
void zd_sim_stream_run(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t stream);
void zd_sim_streams_kick(struct zd_sim_world *world, struct zd_sim_session *session);
bool zd_sim_streams_idle(const struct zd_sim_session *session);
void zd_sim_streams_drop(struct zd_sim_session *session);

/* session.c: sessions come and go */
void zd_sim_session_open(struct zd_sim_world *world, uint32_t actor);
void zd_sim_session_close(struct zd_sim_world *world, struct zd_sim_session *session);
void zd_sim_session_killed(void *world, uint64_t session, const char *why);
struct zd_sim_session *zd_sim_session_find(struct zd_sim_world *world, uint64_t id);
void zd_sim_member_gone(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t group);
void zd_sim_job_gone(struct zd_sim_world *world, uint32_t job);
struct zd_sim_request *zd_sim_request_find(struct zd_sim_session *session, uint64_t id);

/* actor.c, issue*.c: operations become requests */
void zd_sim_actor_run(struct zd_sim_world *world, uint32_t actor);
/* Nothing will happen by itself any more: true if an actor was freed from its wait. */
bool zd_sim_actors_unblock(struct zd_sim_world *world);
void zd_sim_actor_wake(struct zd_sim_world *world, uint32_t actor);
/* False: the operation makes no sense now and was left out. */
bool zd_sim_issue(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t op);
bool zd_sim_issue_reduce(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t op);
bool zd_sim_issue_other(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t op);
void zd_sim_issue_garbage(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t op);
void zd_sim_send(struct zd_sim_world *world, struct zd_sim_session *session,
                 const struct zd_sim_request *request, const struct zd_args *args);

/* reply*.c: replies, and what the client does with them */
void zd_sim_reply(void *world, const struct zd_reply *reply);
void zd_sim_reply_reduce(struct zd_sim_world *world, struct zd_sim_session *session,
                         const struct zd_sim_request *request, const struct zd_reply *reply);
/* Queues a read of the gathered buffer on the stream. A client that copies its own slice does so once, by `copies`. */
void zd_sim_lease_read(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t group,
                       uint32_t unit, struct zd_sim_lease *lease, uint32_t stream, bool copies);
/* A location that a reply gave to the session: it must be mapped by it. */
void zd_sim_location_seen(struct zd_sim_world *world, const struct zd_sim_session *session,
                          const struct zd_location *at);

/* oracle.c: the model */
void zd_sim_gather_check(struct zd_sim_world *world, const struct zd_sim_item *item);
void zd_sim_target_check(struct zd_sim_world *world, const struct zd_sim_session *session,
                         const struct zd_sim_item *item);
void zd_sim_expect_step(struct zd_sim_world *world, uint32_t group, uint32_t first, uint32_t last);
float zd_sim_gradient_value(uint64_t key, uint64_t inf_at, uint64_t index);
void zd_sim_taint(struct zd_sim_world *world, uint32_t group);

/* rows.c: what the engine's tables say against the model */
void zd_sim_rows_check(struct zd_sim_world *world);
void zd_sim_budget_check(struct zd_sim_world *world);
void zd_sim_waits_check(struct zd_sim_world *world);
void zd_sim_empty_check(struct zd_sim_world *world);
uint64_t zd_sim_job_id(struct zd_sim_world *world, uint32_t job); /* 0: there is none */
uint64_t zd_sim_durable_job(struct zd_sim_world *world);          /* any; 0: there is none */

/* shrink.c */
/* Prints the seed's configuration and the smallest program found within `seconds` that fails in the same way. */
void zd_sim_shrink(uint64_t seed, uint32_t seconds);

#endif
