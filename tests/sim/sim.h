/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.h - a simulator of everything around the core: clients, their streams, executors, time and faults.
 *
 * A seed gives a configuration and, for every trainer, a list of operations. The simulator runs them against
 * core/engine.h under virtual time, with real bytes in small segments, and compares what happens with a model
 * that knows nothing of how the engine works: which leases are held, which versions are published, which
 * bytes and sums must be where. Everything is drawn from the seed, so a seed repeats exactly; every operation
 * draws from a seed of its own, so that taking one out leaves the others as they were (shrink.c).
 */
#ifndef ZD_SIM_H
#define ZD_SIM_H

#include "model.h"
#include "config.h"
#include "tests/support/core_check.h"

/* ---- The world (driver.c) ------------------------------------------------------------------------------ */

enum zd_sim_event_kind {
	ZD_SIM_EVENT_ACTOR,
	ZD_SIM_EVENT_EXECUTOR,
	ZD_SIM_EVENT_DONE,
	ZD_SIM_EVENT_STREAM,
	ZD_SIM_EVENT_GONE,
	ZD_SIM_EVENT_UNMAP,
	ZD_SIM_EVENT_SUMS,
	ZD_SIM_EVENT_END_STEP
};

struct zd_sim_event {
	uint64_t at_ns, order;
	enum zd_sim_event_kind kind;
	uint32_t index, stream; /* END_STEP: index is the uid */
	uint64_t op, session; /* DONE (UNMAP: the segment); whose streams waited, 0: nobody's (SUMS: whose) */
	int status;
	struct zd_op_result result;
};

struct zd_sim_queued {
	struct zd_command command; /* arrays below instead of pointers */
	struct zd_location inputs[ZD_SIM_WORLD];
	bool fails, halfway;
};

struct zd_sim_executor {
	struct zd_sim_queued *queue;
	uint32_t count, room;
	uint64_t last_done_ns; /* completions of an ordered executor arrive in order */
};

struct zd_sim_watch {
	uint64_t op, session;
	bool until_gone;
	uint32_t nfences;
	struct zd_fence fences[ZD_MAX_FENCES];
};

/* A sum that a session's process was asked for, and whose fences it waits for. */
struct zd_sim_sum {
	struct zd_sim_queued queued;
	struct zd_fence fences[ZD_SIM_WORLD];
};

struct zd_sim_segment {
	uint32_t id, device;
	uint64_t bytes, job;
	uint8_t *data; /* NULL: not there yet, or gone */
	bool kept;     /* for a restored engine */
};

struct zd_sim_stats {
	uint64_t requests, ops, gathers_checked, reductions_checked, loans_checked, terms_checked, restores,
	        resumed, end_steps, moves, in_place;
};

struct zd_sim_world {
	struct zd_sim_config config;
	struct zd_sim_program program;
	const bool *removed;
	bool verbose;
	uint32_t calls;
	struct zd_engine *engine;
	struct zd_engine_config engine_config;
	uint8_t *journal; /* what the engine has recorded; NULL: it has not begun */
	size_t journal_bytes;
	uint8_t *next_journal; /* that replaces it when all is recorded; NULL: none is begun */
	size_t next_bytes;
	uint64_t now_ns, next_order;
	struct zd_sim_rng rng;
	struct zd_sim_event *events; /* a heap */
	uint32_t nevents, events_room;
	struct zd_sim_executor executors[ZD_SIM_DEVICES];
	struct zd_sim_watch *watches;
	uint32_t nwatches, watches_room;
	struct zd_sim_sum *sums;
	uint32_t nsums, sums_room;
	struct zd_sim_segment *segments;
	uint32_t nsegments, segments_room;
	struct zd_sim_session **sessions; /* all that ever were */
	uint32_t nsessions, sessions_room;
	struct zd_sim_actor actors[ZD_SIM_ACTORS];
	struct zd_sim_group groups[ZD_SIM_GROUPS];
	uint64_t budget_bytes[ZD_SIM_DEVICES], quota_bytes; /* highest ever in force; quota 0: none was */
	struct zd_sim_exposure *exposures;
	uint32_t nexposures, exposures_room;
	uint64_t pending_ops;
	uint64_t ending;    /* session that the running call may end, or take out of a group; 0: none */
	bool ending_all;    /* the running call may end any session */
	uint64_t fallbacks; /* leases that forward scopes have taken */
	struct {
		uint64_t session;
		uint32_t segment;
	} seen[32]; /* locations in replies of the running call, for zd_engine_may_map() */
	uint32_t nseen;
	struct zd_sim_stats stats;
};

/* Whether the running call may end this session. */
static inline bool zd_sim_may_end(const struct zd_sim_world *world, uint64_t session)
{
	return world->ending_all || world->ending == session;
}

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

/* executor.c, executor_check.c: executors */
void zd_sim_command_check(struct zd_sim_world *world, const struct zd_command *command);
struct zd_sim_segment *zd_sim_segment_find(struct zd_sim_world *world, uint32_t id); /* NULL: none */
void zd_sim_command(void *world, const struct zd_command *command);
void zd_sim_executor_run(struct zd_sim_world *world, uint32_t device);
void zd_sim_watches_run(struct zd_sim_world *world, uint64_t session);
/* Puts it behind the others of its device's. */
void zd_sim_executor_add(struct zd_sim_world *world, const struct zd_sim_queued *added);
/* The engine is told of it some time later. */
void zd_sim_command_end(struct zd_sim_world *world, uint64_t op, int status,
                        const struct zd_op_result *result);

/* ---- Sums ahead (ahead.c) ------------------------------------------------------------------------------ */

/* A reduction with fences. */
void zd_sim_sum_add(struct zd_sim_world *world, const struct zd_command *command);
/* The session's daemon page has changed, or its process is gone: looks at its sums soon. */
void zd_sim_sums_kick(struct zd_sim_world *world, uint64_t session);
void zd_sim_sums_run(struct zd_sim_world *world, uint64_t session);
uint8_t *zd_sim_memory(struct zd_sim_world *world, const struct zd_location *at, const char *what);
float zd_sim_float_load(enum zerod_dtype dtype, const uint8_t *bytes, uint64_t index);
void zd_sim_float_store(enum zerod_dtype dtype, uint8_t *bytes, uint64_t index, float value);

/* owner.c: nothing may write where a client has what it was given, or where its streams write and read
 * gradients */
bool zd_sim_overlap(const struct zd_location *a, const struct zd_location *b);
void zd_sim_owner_check(struct zd_sim_world *world, const struct zd_location *at,
                        const struct zd_command *by);
void zd_sim_streams_check(struct zd_sim_world *world, const struct zd_location *at,
                          const struct zd_command *by);
/* Nor read what streams still write; what is copied into a shard is the last commit, and nobody writes
 * there. */
void zd_sim_copy_check(struct zd_sim_world *world, const struct zd_command *command);
/* The rank may write its shard now: no stream reads the shard's version any more, and no lease may begin
 * to. */
void zd_sim_unread_check(struct zd_sim_world *world, const struct zd_sim_session *session, uint32_t group,
                         uint32_t unit);
/* Memory that is new to its client: no process that lingers may have it. */
void zd_sim_residue_check(struct zd_sim_world *world, const struct zd_location *at);
/* The entry is the rank's to write and to commit. */
bool zd_sim_entry_held(const struct zd_sim_member *member, const struct zd_sim_entry *entry);
/* Whether the member has entries or a target of a failed group that it has not given up. */
bool zd_sim_abandoned(const struct zd_sim_member *member);
/* The client uses nothing any more of what its backward or step gave it. */
void zd_sim_give_up(struct zd_sim_member *member);
/* The group has failed: what its members have is abandoned. */
void zd_sim_group_lost(struct zd_sim_world *world, uint32_t group);

/* poison.c: memory of poison sessions is filled between its readers and the next copies into it */
void zd_sim_expose(struct zd_sim_world *world, const struct zd_sim_session *session, uint32_t group,
                   uint32_t unit, const struct zd_sim_lease *lease);
void zd_sim_poison_check(struct zd_sim_world *world, const struct zd_command *command);
/* Whether one of the fences is of a copy that the engine has not submitted yet. */
/* Whether the session's command with that signal precedes the fences: one of them stands for it, or it is a
 * deferred copy, and one of them was promised and not submitted (owner.c). */
bool zd_sim_precedes(const struct zd_sim_session *session, const struct zd_fence *fences, uint32_t nfences,
                     const struct zd_signal *signal);
bool zd_sim_is_promised(const struct zd_sim_session *session, const struct zd_fence *fences,
                        uint32_t nfences);
/* A request that is under way ends what the session holds of the unit under the tag, or in the scope. */
bool zd_sim_is_ending(const struct zd_sim_session *session, uint32_t group, uint32_t unit, uint32_t holder);
void zd_sim_poison_end(struct zd_sim_world *world, uint64_t session);

/* mapping.c: segments that sessions have mapped */
void zd_sim_map(struct zd_sim_world *world, uint64_t session, uint32_t segment);
void zd_sim_segment_retire(void *world, uint64_t session, uint32_t segment);
void zd_sim_unmap(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t segment);
/* The reply is to what zd_sim_unmap() has sent. */
bool zd_sim_is_answer(struct zd_sim_world *world, const struct zd_reply *reply);
void zd_sim_destroy_check(struct zd_sim_world *world, const struct zd_command *command);

/* ---- Moves of units (place.c) -------------------------------------------------------------------------- */

/* Whether the unit is in host memory. */
bool zd_sim_on_host(const struct zd_sim_world *world, uint32_t group, uint32_t unit);
/* Notes which memory the rank's shard is in, or will be when it is registered. */
void zd_sim_place_shard(struct zd_sim_world *world, uint32_t group, uint32_t unit, uint32_t rank);
/* A rank is about to register the unit: one that no rank has is where the registration says. */
void zd_sim_register_place(struct zd_sim_world *world, uint32_t group, uint32_t unit);
/* Checks what the reply to a registration says. */
void zd_sim_placed_check(struct zd_sim_world *world, uint32_t group, uint32_t unit, uint32_t rank,
                         Zd__Placed placed);
/* Whether a rank waits for a move of the unit. */
bool zd_sim_is_moving(const struct zd_sim_world *world, uint32_t group, uint32_t unit);
void zd_sim_reply_place(struct zd_sim_world *world, struct zd_sim_session *session,
                        const struct zd_sim_request *request, const struct zd_reply *reply);

/* ---- Places of targets that are lent before the step (loan.c) ------------------------------------------ */

/* Checks that the session's target is on its device, or in host memory. `memory`: enum zd_target_memory. */
void zd_sim_target_memory_check(struct zd_sim_world *world, const struct zd_sim_session *session,
                                const struct zd_location *at, uint32_t memory);

/* Whether places are lent to the rank. */
bool zd_sim_lends(const struct zd_sim_member *member);
/* Whether places are lent to the rank, and its next backward may end the lending, as its window may have
 * failed. */
bool zd_sim_loans_end_with(const struct zd_sim_world *world, const struct zd_sim_session *session,
                           uint32_t group);
/* Returns the streams, as bits, that work on lent places and that no return has named. The caller must name
 * them. */
uint32_t zd_sim_accessors(struct zd_sim_member *member);
/* Forgets the lent places of the rank, whose lending the engine has ended. */
void zd_sim_loans_forget(struct zd_sim_member *member);
/* Whether a rank has abandoned the window that begins with that backward. */
bool zd_sim_is_abandoned(const struct zd_sim_group *model, uint64_t first);
/* Whether promised sums of the window that begins with that backward may be undefined: their fence was freed
 * by an abort, or they have failed, and may be stored late. */
bool zd_sim_sums_are_void(const struct zd_sim_world *world, const struct zd_sim_session *session,
                          uint32_t group, uint64_t first);
/* Whether the location overlaps a place that is lent to the rank, and that the rank may use by now. */
bool zd_sim_loan_overlaps(const struct zd_sim_world *world, const struct zd_sim_session *session,
                          uint32_t group, uint32_t unit, const struct zd_location *at);
/* Fences behind what these streams have to do now; how many. */
uint32_t zd_sim_signal(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t streams,
                       struct zd_fence fences[ZD_SIM_STREAMS]);
/* Returns the place of the unit, or all of the request's group, if lent. */
void zd_sim_loans_end(struct zd_sim_world *world, struct zd_sim_session *session,
                      const struct zd_sim_request *request, uint32_t unit);
/* Submits or skips the operation's unit, of which nothing is lent behind it. */
void zd_sim_contribute(struct zd_sim_world *world, struct zd_sim_session *session, const struct zd_sim_op *op,
                       const struct zd_sim_request *request, const struct zd_args *args);
bool zd_sim_issue_loan(struct zd_sim_world *world, struct zd_sim_session *session, const struct zd_sim_op *op,
                       const struct zd_sim_request *request);
void zd_sim_reply_loan(struct zd_sim_world *world, struct zd_sim_session *session,
                       const struct zd_sim_request *request, const struct zd_reply *reply);
void zd_sim_loan_run(struct zd_sim_world *world, const struct zd_sim_session *session,
                     const struct zd_sim_item *item, bool garbage);

/* ---- Terms in place of sums (terms.c) --------------------------------------------------------- */

/* loan.c: whether sums of the window's former backwards are there, without a place in the target. */
bool zd_sim_has_sum(const struct zd_sim_world *world, const struct zd_sim_session *session, uint32_t group,
                    uint32_t unit);
/* loan.c: the stream of all loans of the unit. */
uint32_t zd_sim_loan_stream(const struct zd_sim_world *world, uint32_t group, uint32_t unit);
/* Whether the rank submits the operation's unit with `terms`. */
bool zd_sim_wants_terms(const struct zd_sim_world *world, const struct zd_sim_session *session,
                        const struct zd_sim_op *op);
void zd_sim_ask_terms(struct zd_sim_world *world, struct zd_sim_session *session, const struct zd_sim_op *op);
void zd_sim_reply_terms(struct zd_sim_world *world, struct zd_sim_session *session,
                        const struct zd_sim_request *request, const struct zd_reply *reply);
void zd_sim_terms_return(struct zd_sim_world *world, struct zd_sim_session *session,
                         const struct zd_sim_item *item);
void zd_sim_terms_run(struct zd_sim_world *world, const struct zd_sim_session *session,
                      const struct zd_sim_item *item);

/* reply_reduce.c: what the rank has asked for the end of is over for it, whenever the reply comes. */
void zd_sim_backward_over(struct zd_sim_member *member);
void zd_sim_step_over(struct zd_sim_member *member);
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
/* Says that its process uses nothing any more, and closes it. */
void zd_sim_session_goodbye(struct zd_sim_world *world, struct zd_sim_session *session);
void zd_sim_session_close(struct zd_sim_world *world, struct zd_sim_session *session);
/* The process of a session that has ended is over. */
void zd_sim_process_gone(struct zd_sim_world *world, struct zd_sim_session *session);
void zd_sim_session_killed(void *world, uint64_t session, const char *why);
struct zd_sim_session *zd_sim_session_find(struct zd_sim_world *world, uint64_t id);
void zd_sim_member_gone(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t group,
                        bool ended);
/* The session starts anew with what it holds; what that has for bytes is not to be relied on. */
void zd_sim_reset(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t op);
void zd_sim_job_gone(struct zd_sim_world *world, uint32_t job);
struct zd_sim_request *zd_sim_request_find(struct zd_sim_session *session, uint64_t id);

/* regroup.c: what is left of a group waits for who comes in place of a rank that went */
/* The operation is to wait for that. Then what is left of the step is given up. */
bool zd_sim_regroups(struct zd_sim_world *world, struct zd_sim_actor *actor, const struct zd_sim_op *op);
/* The operation is left out, as a part of a step that was given up. */
bool zd_sim_is_given_up(struct zd_sim_actor *actor, const struct zd_sim_op *op);
/* Somebody has joined, or will not: whoever waits for that looks again. */
void zd_sim_regroup_wake(struct zd_sim_world *world);

/* actor.c, issue*.c: operations become requests */
void zd_sim_actor_run(struct zd_sim_world *world, uint32_t actor);
/* Frees an actor that waits when no event is left: closes its session. Returns whether there was one. */
bool zd_sim_actors_unblock(struct zd_sim_world *world);
void zd_sim_actor_wake(struct zd_sim_world *world, uint32_t actor);
/* False: the operation makes no sense now and was left out. */
bool zd_sim_issue(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t op);
bool zd_sim_issue_reduce(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t op);
bool zd_sim_issue_scope(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t op);
bool zd_sim_issue_other(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t op);
void zd_sim_issue_garbage(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t op);
void zd_sim_send(struct zd_sim_world *world, struct zd_sim_session *session,
                 const struct zd_sim_request *request, const struct zd_args *args);

/* Places of scopes, as bits: those that the rank's next outermost forward ends, or a request that ends
 * one. */
uint32_t zd_sim_scopes_swept(const struct zd_sim_member *member);
uint32_t zd_sim_scopes_ended(const struct zd_sim_member *member, enum zd_request_kind kind, uint32_t place,
                             bool grad);
/* Whether a request was sent that will end the scope. */
bool zd_sim_scope_ending(const struct zd_sim_session *session, uint64_t scope);

/* reply*.c: replies, and what the client does with them */
void zd_sim_reply(void *world, const struct zd_reply *reply);
void zd_sim_reply_gather(struct zd_sim_world *world, struct zd_sim_session *session,
                         const struct zd_sim_request *request, const struct zd_reply *reply);
void zd_sim_reply_reduce(struct zd_sim_world *world, struct zd_sim_session *session,
                         const struct zd_sim_request *request, const struct zd_reply *reply);
void zd_sim_reply_scope(struct zd_sim_world *world, struct zd_sim_session *session,
                        const struct zd_sim_request *request, const struct zd_reply *reply);
/* Queues a read of the gathered buffer on the stream. */
void zd_sim_lease_read(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t group,
                       uint32_t unit, struct zd_sim_lease *lease, uint32_t stream);
bool zd_sim_same_place(const struct zd_location *a, const struct zd_location *b);
/* A location that a reply gave to the session: it must be mapped by it. */
void zd_sim_location_seen(struct zd_sim_world *world, const struct zd_sim_session *session,
                          const struct zd_location *at);

/* oracle.c: the model */
void zd_sim_gather_check(struct zd_sim_world *world, const struct zd_sim_item *item);
void zd_sim_target_check(struct zd_sim_world *world, const struct zd_sim_session *session,
                         const struct zd_sim_item *item);
void zd_sim_expect_step(struct zd_sim_world *world, uint32_t group, uint32_t first, uint32_t last);
/* The bytes that all ranks' places hold when the rank of a LOAN reads its own. */
void zd_sim_expect_unit(const struct zd_sim_world *world, const struct zd_sim_item *item, float *expected);
float zd_sim_gradient_value(uint64_t key, uint64_t inf_at, uint64_t index);
void zd_sim_taint(struct zd_sim_world *world, uint32_t group);

/* shadow.c: the last commit */
void zd_sim_committed(struct zd_sim_world *world, uint32_t group, uint64_t step);
/* A rank goes: what the group of a job with shadows has written since is undone. */
void zd_sim_roll_back(struct zd_sim_world *world, uint32_t group);
/* A copy into a shard failed: its content is known to nobody. */
void zd_sim_restore_failed(struct zd_sim_world *world, const struct zd_location *shard);
/* Checks that a shard that is neither being written nor set back has the bytes of its version. */
void zd_sim_shards_check(struct zd_sim_world *world, const struct zd_sim_session *session);

/* rows*.c: what the engine's tables say against the model */
void zd_sim_rows_check(struct zd_sim_world *world);
void zd_sim_budget_check(struct zd_sim_world *world);
void zd_sim_waits_check(struct zd_sim_world *world);
enum zd_sim_holder { ZD_SIM_HOLDER_NONE, ZD_SIM_HOLDER_KNOWN, ZD_SIM_HOLDER_PENDING };
/* The model's holder under the tag of a scope; PENDING: a context that was requested. */
enum zd_sim_holder zd_sim_scope_holder(const struct zd_sim_member *member, uint32_t unit, const char *tag);
void zd_sim_scopes_check(struct zd_sim_world *world);
void zd_sim_sight_check(struct zd_sim_world *world, const struct zd_sim_session *asker);
void zd_sim_empty_check(struct zd_sim_world *world);
uint64_t zd_sim_job_id(struct zd_sim_world *world, uint32_t job); /* 0: there is none */
uint64_t zd_sim_durable_job(struct zd_sim_world *world);          /* any; 0: there is none */

/* restore.c: engines restored from the journal */
void zd_sim_segment_kept(void *world, uint32_t segment, bool kept);
/* After every call into the engine. */
void zd_sim_restore_check(struct zd_sim_world *world);

/* shrink.c */
/* Prints the seed's configuration and the smallest program found within `seconds` that fails in the same
 * way. */
void zd_sim_shrink(uint64_t seed, uint32_t seconds);

#endif
