/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_driver.h - an engine with devices that do what a test says, when it says so.
 *
 * The driver is the engine's sink: it keeps every command, executes them on real bytes, and remembers every
 * reply. Commands run at once unless their kind is held; copies and fills of one device run in order; a watch
 * ends when its fences have passed on the session's client page, which core_pass() writes. The invariants are
 * checked after every call into the engine. core_end() closes what is left and fails unless everything was
 * given back.
 *
 * Everything fails the running cmocka test when it meets what it does not expect.
 */
#ifndef ZD_TESTS_CORE_DRIVER_H
#define ZD_TESTS_CORE_DRIVER_H

#include "core/engine.h"
#include "tests/support/core_check.h"
#include "tests/support/test.h"

#define CORE_ALICE    1000u /* uids */
#define CORE_BOB      1001u
#define CORE_TAG      "plan"
#define CORE_SEGMENTS 64 /* that one session may be told to unmap at once */
#define CORE_KIB      1024ull
#define CORE_MIB      (1024ull * 1024)

struct core_options {
	uint32_t ndevices;         /* 0: 2 */
	uint64_t arena_bytes;      /* of each device; 0: 4 MiB */
	uint64_t host_arena_bytes; /* of the host memory, which is device `ndevices`; 0: there is none */
	bool host_each;            /* each device has host memory of its own, from device `ndevices` on */
	uint64_t gather_budget_bytes, staging_bytes, segment_bytes, segment_align_bytes, uid_quota_bytes;
	uint64_t unreached; /* of each device: see struct zd_device_config */
	uint64_t reduction_cut_bytes, landing_chunk_bytes;
	bool sessions_linger; /* until core_gone() */
	bool no_frames;       /* core_open() opens sessions whose clients map no frames */
	bool strict_by_segment;
	bool copies; /* core_open() opens sessions whose gathers are copies, also of a shard that is alone */
	bool sums_ahead;   /* sessions' processes wait for sums' fences, until core_refuse_sums() */
	bool sessions_map; /* segments that replies name, until core_unmap() */
	bool no_bytes;     /* segments without memory, for sizes beyond any machine */
	bool unordered;  /* copies, fills and sums of a device in any order, but for those of one timeline */
	uint32_t events; /* that are kept; 0: 256, or none with no_events */
	bool no_events;
	uint32_t end_step_objects; /* ends take steps of so many, by core_end_step(); 0: each is one event */
	struct core_net *net;      /* core_net.h: with communicators. NULL: without */
	const char *host;
};

struct core_driver;
struct core_net;
struct zd_err;

/* `options` may be NULL. */
struct core_driver *core_new(const struct core_options *options);
/* Ends sessions and durable jobs, lets every command run, and expects that nothing is left. */
void core_end(struct core_driver *core);
/* All sessions, and their processes. */
void core_close_all(struct core_driver *core);
/* Frees the engine as it is, with whatever is under way, and expects no word from it. */
void core_abandon(struct core_driver *core);
struct zd_engine *core_engine(struct core_driver *core);

/* A test of `rig`, a structure that the call `start` fills and end(rig) ends. A failed test leaves its
 * engine, which may be inside of a call.
 * NOLINTBEGIN(bugprone-macro-parentheses): a type and the name of a parameter */
#define CORE_RIG_TEST(name, type, rig, start, end)                                                           \
	TEST_DEFINE(name, type *rig, type filled = {0}; type *rig = &filled;                                 \
	            start, (name(rig), end(rig)), NULL, NULL)
/* NOLINTEND(bugprone-macro-parentheses) */
/* A test of `core`, a driver with options such as ".copies = true". */
#define ENGINE_TEST(name, ...)                                                                               \
	TEST_DEFINE(name, struct core_driver *core,                                                          \
	            struct core_driver *core = core_new(&(struct core_options){__VA_ARGS__}),                \
	            (name(core), core_end(core)), NULL, NULL)
/* core_end() of the driver that a structure begins with a pointer to. */
void core_rig_end(void *rig);

/* ---- Restarts (core_restart.c) ------------------------------------------------------------------------- */

/* The engine records durable jobs from here on, and the driver stores the records after every call. */
void core_journal(struct core_driver *core);
/* The records stored so far. */
const uint8_t *core_journal_bytes(const struct core_driver *core, size_t *nbytes);
/* Ends the engine as SIGKILL does: its commands, those held too, never end. Another engine is restored from
 * the journal, over the segments that were kept. No session is open; their processes live on if sessions
 * linger. */
void core_restart(struct core_driver *core);
/* The next restart does not find the segment. */
void core_lose_segment(struct core_driver *core, uint32_t segment);

/* A throw-away engine. */
struct core_trial {
	const uint8_t *bytes; /* the journal */
	size_t nbytes;
	uint32_t ndevices;       /* 0: as the driver's engine has */
	uint64_t arena_bytes;    /* the same */
	const char *device_name; /* of device 0; NULL: as it is */
	bool damaged;            /* what is restored may break invariants */
};
/* Restores it, checks its invariants, and frees it. Returns the restore's status. The driver's engine is not
 * touched. */
int core_try_restore(struct core_driver *core, const struct core_trial *trial, struct zd_err *err);

/* ---- Sessions ------------------------------------------------------------------------------------------ */

uint64_t core_open_peer(struct core_driver *core, const struct zd_peer *peer);
uint64_t core_open(struct core_driver *core, uint32_t uid);
uint64_t core_open_admin(struct core_driver *core);
uint64_t core_open_strict(struct core_driver *core, uint32_t uid);
uint64_t core_open_poison(struct core_driver *core, uint32_t uid, bool strict);
/* As when the connection is lost: its watches end with ABORTED. */
void core_close(struct core_driver *core, uint64_t session);
/* The closed session's process has left the devices. */
void core_gone(struct core_driver *core, uint64_t session);
/* Goes on with the ends of the uid's sessions by one step; returns whether there is more. */
bool core_end_step(struct core_driver *core, uint32_t uid);
bool core_is_open(const struct core_driver *core, uint64_t session);
/* Why the engine ended the session by itself; "" if it did not. */
const char *core_killed_why(const struct core_driver *core, uint64_t session);
/* The nth notice for the log, from 0, in words: "job 1000/lm began"; "" if there were fewer. */
const char *core_notice(const struct core_driver *core, uint32_t n);

/* ---- Requests and replies ------------------------------------------------------------------------------ */

/* Returns the request's id, unique in this driver. */
uint64_t core_send(struct core_driver *core, uint64_t session, const struct zd_args *args);
uint64_t core_send_until(struct core_driver *core, uint64_t session, uint64_t deadline_ns,
                         const struct zd_args *args);
/* With an id of the test's choice. */
void core_send_as(struct core_driver *core, const struct zd_call *call, const struct zd_args *args);
/* The last reply to the request; NULL: none yet. Its arrays and texts live as long as the driver. */
const struct zd_reply *core_reply(struct core_driver *core, uint64_t request);
/* Fails unless the request was replied to with this status, and returns the reply. */
const struct zd_reply *core_expect(struct core_driver *core, uint64_t request, int status);
/* The same, with this text in the error. */
void core_expect_error(struct core_driver *core, uint64_t request, int status, const char *text);
/* Fails unless the request has no reply, and one of its session's waits in the listing has this text. */
void core_expect_waits(struct core_driver *core, uint64_t request, const char *text);
/* core_send() and core_expect(). */
const struct zd_reply *core_call(struct core_driver *core, uint64_t session, const struct zd_args *args,
                                 int status);

/* ---- Commands ------------------------------------------------------------------------------------------ */

/* How often commands for the device were said to follow. */
unsigned core_expected(const struct core_driver *core, uint32_t device);

/* Commands of this kind stay where they are, and what is behind them on their device as well. */
void core_hold(struct core_driver *core, enum zd_command_kind kind);
/* No more; those that were held run. */
void core_unhold(struct core_driver *core, enum zd_command_kind kind);
/* Lets the oldest held command of the kind run; fails if there is none. */
void core_run_one(struct core_driver *core, enum zd_command_kind kind);
/* The same for the oldest of a device. */
void core_run_on(struct core_driver *core, enum zd_command_kind kind, uint32_t device);
/* Lets the nth of all that may run do so, held or not; false if there are no more than n. */
bool core_run_nth(struct core_driver *core, uint32_t n);
/* Lets all run that may, and is not held; false if there is nothing. */
bool core_run_all(struct core_driver *core);
/* The next command of the kind that runs ends with this status, and does nothing. */
void core_fail_next(struct core_driver *core, enum zd_command_kind kind, int status, const char *error);
/* The oldest of a device, held or not, happens and stores its signal; the engine is told when it may run. */
void core_land(struct core_driver *core, enum zd_command_kind kind, uint32_t device);
/* Sets by whom sums are made, and how far processes are with them. At first executors make them. */
void core_set_sums(struct core_driver *core, enum zd_sums_state sums);
/* Sums with fences end at once from here on, and nothing of them is done. */
void core_refuse_sums(struct core_driver *core);
/* Not over yet. */
uint32_t core_pending(const struct core_driver *core, enum zd_command_kind kind);
/* Given so far. */
uint32_t core_count(const struct core_driver *core, enum zd_command_kind kind);
/* The last SIGNAL without a copy. */
struct zd_signal core_last_signal(const struct core_driver *core);

/* The session's stream has come to this value. */
void core_pass(struct core_driver *core, uint64_t session, uint32_t timeline, uint64_t value);
/* Of the daemon page. */
uint64_t core_timeline(const struct core_driver *core, uint64_t session, uint32_t timeline);
void core_tick(struct core_driver *core, uint64_t now_ns);

/* A segment that the session was told to unmap and has not; 0: none. */
uint32_t core_told(const struct core_driver *core, uint64_t session);
/* Reports that the session has unmapped all segments that it was told to unmap. */
void core_unmap(struct core_driver *core, uint64_t session);

/* The bytes at a location. */
uint8_t *core_bytes(struct core_driver *core, struct zd_location where);
bool core_segment_exists(const struct core_driver *core, uint32_t segment);

/* ---- Looking ------------------------------------------------------------------------------------------- */

#define CORE_ROW_ITEMS 8

/* A copy of a row, which lasts as long as the driver. */
struct core_row {
	uint64_t id;
	Zd__Row *row;
	char *job, *group, *name, *state; /* the message's; "": it has none */
};

/* The rows that the daemon itself may see. Returns how many there are and copies the first `room` of them. */
uint32_t core_rows(struct core_driver *core, Zd__Table table, struct core_row *rows, uint32_t room);
/* The rows that the session may see; 0: the daemon. `job` may be NULL. */
uint32_t core_rows_for(struct core_driver *core, uint64_t session, Zd__Table table, const char *job,
                       struct core_row *rows, uint32_t room);
/* The only row of this id; fails if there is none. */
void core_row(struct core_driver *core, Zd__Table table, uint64_t id, struct core_row *row);
/* Two messages have the same content. */
void core_expect_same(const void *one, const void *other);
Zd__Usage core_usage(struct core_driver *core);
uint64_t core_quarantine(struct core_driver *core, uint32_t device);
uint64_t core_copied_bytes(struct core_driver *core, uint32_t device);

/* ---- Requests in words --------------------------------------------------------------------------------- */

struct core_join {
	const char *job, *group; /* NULL: "job", "world" */
	uint32_t world_size, rank, device;
	bool durable, shadow;
	uint32_t local_world_size;
	bool hybrid, exchange;
	const unsigned char *ids;
	uint32_t ids_bytes;
};
uint64_t core_join(struct core_driver *core, uint64_t session, const struct core_join *join);

struct core_view {
	const char *name;
	uint64_t offset_numel;
	uint32_t ndim;
	uint64_t shape[ZD_MAX_DIMS];
};

struct core_unit {
	const char *name;
	uint32_t dtype; /* 0: float32 */
	uint64_t numel;
	uint32_t nviews;
	const struct core_view *views;
	uint32_t slot;
	bool persistent, frozen, all_reduce, on_host, copied, unsaved;
};
uint64_t core_register(struct core_driver *core, uint64_t session, uint64_t group,
                       const struct core_unit *unit);

uint64_t core_update(struct core_driver *core, uint64_t session, uint64_t unit);
uint64_t core_publish(struct core_driver *core, uint64_t session, uint64_t unit);
/* The session's next request about the group is refused, since a rank went; the one behind it is not. */
void core_expect_told(struct core_driver *core, uint64_t session, uint64_t group, const char *text);
uint64_t core_commit(struct core_driver *core, uint64_t session, uint64_t group, uint64_t step);
uint64_t core_set_persistent(struct core_driver *core, uint64_t session, uint64_t unit, bool persistent);
/* Gathers the newest version for one use under CORE_TAG. */
uint64_t core_gather(struct core_driver *core, uint64_t session, uint64_t unit);
uint64_t core_gather_tag(struct core_driver *core, uint64_t session, uint64_t unit, const char *tag,
                         uint32_t uses);
uint64_t core_gather_version(struct core_driver *core, uint64_t session, uint64_t unit, uint64_t version);
uint64_t core_prefetch(struct core_driver *core, uint64_t session, uint64_t unit);
uint64_t core_release(struct core_driver *core, uint64_t session, uint64_t unit);
uint64_t core_release_tag(struct core_driver *core, uint64_t session, uint64_t unit, const char *tag,
                          const struct zd_fence *fences, uint32_t nfences);
/* Held by a forward scope, claim or context. */
uint64_t core_gather_in(struct core_driver *core, uint64_t session, uint64_t unit, uint64_t scope);
/* `parent` 0: outermost. */
uint64_t core_forward_begin(struct core_driver *core, uint64_t session, uint64_t group, uint64_t parent,
                            const struct zd_fence *fences, uint32_t nfences);
uint64_t core_forward_end(struct core_driver *core, uint64_t session, uint64_t scope, bool grad);
/* claim_end, scope_abandon, context_end, forward_end without a gradient. */
uint64_t core_scope_end(struct core_driver *core, uint64_t session, enum zd_request_kind kind, uint64_t scope,
                        const struct zd_fence *fences, uint32_t nfences);
uint64_t core_context_begin(struct core_driver *core, uint64_t session, const uint64_t *units,
                            uint32_t nunits);
uint64_t core_alloc(struct core_driver *core, uint64_t session, const char *job, uint32_t device,
                    uint64_t bytes);
uint64_t core_publish_after(struct core_driver *core, uint64_t session, uint64_t unit, struct zd_fence fence);
/* `fence` may be NULL. */
uint64_t core_free(struct core_driver *core, uint64_t session, uint64_t allocation,
                   const struct zd_fence *fence);
/* A request whose first field is an id, and whose other fields are 0. Of a reset the id is 0, too. */
uint64_t core_simple(struct core_driver *core, uint64_t session, enum zd_request_kind kind, uint64_t id);

/* The same requests, which must get 0 at once. They return the group, the unit, and the allocation. */
void core_do(struct core_driver *core, uint64_t session, enum zd_request_kind kind, uint64_t id);
uint64_t core_join_ok(struct core_driver *core, uint64_t session, const struct core_join *join);
uint64_t core_register_ok(struct core_driver *core, uint64_t session, uint64_t group,
                          const struct core_unit *unit);
uint64_t core_alloc_ok(struct core_driver *core, uint64_t session, const char *job, uint32_t device,
                       uint64_t bytes);

/* ---- A team: all ranks of one group -------------------------------------------------------------------- */

#define CORE_TEAM 8

struct core_team {
	struct core_driver *core;
	uint32_t world_size;
	uint32_t nranks, first_rank; /* of this driver; `session` is by rank less first_rank */
	uint64_t session[CORE_TEAM];
	uint64_t group;
};

/* All ranks, of uid CORE_ALICE, rank r on device r modulo the devices. */
void core_team_join(struct core_team *team, struct core_driver *core, const struct core_join *options);
/* Ranks of the sessions, on device 0. */
void core_team_enter(struct core_team *team, struct core_driver *core, const uint64_t *sessions,
                     uint32_t nranks);
struct core_team core_team_new(struct core_driver *core, const char *job, uint32_t world_size, bool durable);
/* Registers on all ranks and returns the unit. */
uint64_t core_team_register(struct core_team *team, const struct core_unit *unit);
/* A unit of float32 with this padded size on every rank, at version 1. */
uint64_t core_team_unit(struct core_team *team, const char *name, uint64_t padded_bytes);
/* The same with a slot. */
uint64_t core_team_slot_unit(struct core_team *team, const char *name, uint64_t padded_bytes, uint32_t slot);
/* Every rank, or one, writes core_pattern() into its shard and publishes it. */
void core_team_publish(struct core_team *team, uint64_t unit);
void core_team_publish_rank(struct core_team *team, uint64_t unit, uint32_t rank);
/* Writes the pattern of the version after the rank's last published one. An update must be open. */
void core_team_write(struct core_team *team, uint64_t unit, uint32_t rank);
/* Every byte of a rank's shard at a version. */
uint8_t core_pattern(uint32_t rank, uint64_t version);
/* Fails unless the gathered buffer holds the pattern of this version of every shard. */
void core_team_check(struct core_team *team, const struct zd_reply *gather, uint64_t version);

#endif
