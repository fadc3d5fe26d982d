/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contract.h - what the contract's tests stand on: a private daemon, N ranks, streams that can be held up,
 * known bytes.
 *
 * The suite speaks of zerod.h alone, so that it holds for every backend; ZEROD_TEST_BACKEND names the
 * daemon's (host, cuda, or sim: see tests/simbackend). Memory that the daemon gave is written and read only
 * by contract_write() and contract_read(), in the order of a stream, and streams come from contract_stream():
 * the CPU need not reach that memory, and only contract_host.c and contract_cuda.c know how a backend's
 * streams run something. What cannot be seen through zerod.h is looked up in the daemon's listings, by a
 * client that is no rank.
 *
 * The scene hides where the ranks are:
 *
 *   ZEROD_TEST_DAEMONS=2         in two daemons, half of them and half of the devices in each, rank 0 in the
 *                                first
 *   ZEROD_TEST_COLLECTIVES=nccl  in one daemon whose gathers and reductions are NCCL's, compared before they
 *                                begin
 *
 * In both, gathers are collectives: all ranks gather the same in the same order, and a rank that has gone
 * ends its group. A test whose point is another says so by contract_needs(), and is skipped there. One that
 * looks at a single rank is helped by contract_gather(), which has the other ranks do the same, or calls
 * contract_others_gather() itself.
 *
 * With ZEROD_TEST_KEEP_DAEMON=1 a daemon serves the tests of a program that ask for the same one, each of
 * which leaves it empty: on GPUs its start takes longer than most tests.
 *
 * Each rank is a client of its own in this process. Calls that wait for all ranks run in contract_run(). A
 * slow stream is one that contract_block() has put a gate into. Nothing sleeps to wait for something; every
 * wait has a deadline. All checks may be made in any thread that is the test's or contract_start()'s.
 */
#ifndef ZD_TESTS_CONTRACT_H
#define ZD_TESTS_CONTRACT_H

#include <zerod.h>
#include <zerod_cuda.h>
#include <zerod_host.h>
#include "tests/support/options.h"
#include "tests/support/test.h"

#define CONTRACT_RANKS   8
#define CONTRACT_DAEMONS 2
#define CONTRACT_NAME    64
#define CONTRACT_TEXT    256

struct contract;

struct contract_rank {
	struct contract *world;
	uint32_t number;
	zerod_client *client; /* NULL once it has left */
	zerod_group *group;
};

struct contract {
	uint32_t world_size, devices; /* of all daemons */
	uint32_t daemons;
	struct contract_rank ranks[CONTRACT_RANKS];
	zerod_client *observers[CONTRACT_DAEMONS]; /* one in each, no member of any group */
};

struct contract_options {
	uint32_t world_size; /* 0: 2 */
	uint32_t devices;    /* 0: one a rank; at most what there are; see contract_device_of() */
	const char *arena;   /* of each device; NULL: 64M */
	const char *config;  /* lines of a configuration file; NULL: none */
	uint32_t flags;      /* enum zerod_group_flags */
	int strict;          /* of the ranks' clients */
	int poison;          /* of rank 0's client, too: */
	int (*interrupted)(void *context);
	void *interrupted_context;
	bool fresh; /* peaks are looked at: no other test has been on this daemon */
};

enum contract_need {
	CONTRACT_ONE_SIDED,   /* ranks gather or reduce in orders of their own; others take a rank's place */
	CONTRACT_ONE_DAEMON,  /* one daemon knows what all ranks say */
	CONTRACT_TWO_DAEMONS, /* the group spans daemons */
	CONTRACT_UNITS_ON_HOST, /* contract_on_host() */
};
/* Skips the test where the ranks cannot have that. Before contract_open(). */
void contract_needs(enum contract_need need);

/* Daemons with their ranks joined. One at a time. `options` may be NULL. Skips the test where the ranks
 * cannot be placed. */
struct contract *contract_open(const struct contract_options *options);
/* Opens the gates, ends the streams and the ranks, and expects that the daemon holds nothing any more. */
void contract_close(struct contract *c);
/* Ends what a failed test left. */
int contract_teardown(void **state);
#define CONTRACT_TEST(name) TEST_DEFINE(name, void, , name(), NULL, contract_teardown)

uint32_t contract_daemon_of(const struct contract_rank *rank);
/* The index of the rank's device in its daemon. */
uint32_t contract_device_of(const struct contract_rank *rank);
/* The device with the rank's shards and targets: its own, or the host memory if contract_on_host(). */
uint32_t contract_memory_of(const struct contract_rank *rank);
/* Do all ranks gather, or none. */
bool contract_gathers_together(void);
/* Whether the units are in host memory: $ZEROD_TEST_PLACEMENT is "host". */
bool contract_on_host(void);

/* The rank's session ends. */
void contract_leave(struct contract_rank *rank);
/* Another client takes the rank's place: to be called when it has left, with nobody else missing. */
void contract_replace(struct contract_rank *rank);

/* ---- Checks -------------------------------------------------------------------------------------------- */

void contract_expect(const zerod_client *client, int status, int expected, const char *text, const char *call,
                     int line);
void contract_check(bool holds, const char *what, int line);

/* A call on a client that returns 0. */
#define OK(client, call) contract_expect(client, call, ZEROD_OK, NULL, #call, __LINE__)
/* A call on a client that returns this status, with `text` in its error text; NULL: any text. */
#define FAILS(client, call, status, text) contract_expect(client, call, status, text, #call, __LINE__)
#define CHECK(condition)                  contract_check(condition, #condition, __LINE__)

/* The same of what is in memory. When it does not hold, calls have returned 0 and have not done what they
 * say: whatever else may fail when the driver does, that may not. */
#define CHECK_BYTES(condition) contract_check(condition, "wrong bytes, " #condition, __LINE__)

/* Looks again and again until it holds. */
#define AWAIT(condition)                                                                                     \
	for (uint64_t until_ms_ = contract_deadline_ms(); !(condition);)                                     \
	contract_look_again(until_ms_, #condition, __LINE__)
uint64_t contract_deadline_ms(void);
void contract_look_again(uint64_t until_ms, const char *what, int line);

/* ---- Threads ------------------------------------------------------------------------------------------- */

typedef void contract_fn(struct contract_rank *rank, void *arg);

struct contract_task;
struct contract_task *contract_start(struct contract_rank *rank, contract_fn *fn, void *arg);
/* Waits for its end; fails with what it failed with. */
void contract_finish(struct contract_task *task);
/* Runs fn once for each rank, all at the same time. */
void contract_run(struct contract *c, contract_fn *fn, void *arg);

/* ---- Streams and memory -------------------------------------------------------------------------------- */

/* Lives as long as the rank. */
zerod_stream *contract_stream(struct contract_rank *rank);
void contract_sync(struct contract_rank *rank, zerod_stream *stream);

struct contract_gate;
/* Work that is appended to the stream from now on waits for the gate. */
struct contract_gate *contract_block(struct contract_rank *rank, zerod_stream *stream);
/* Whether the stream has reached the gate: all work in front of the gate has run. */
bool contract_is_blocked(struct contract_gate *gate);
void contract_unblock(struct contract_gate *gate);

/* Copies when the stream comes to it; `from` is kept until then. NULL: now, by the calling thread. */
void contract_write(zerod_stream *stream, void *to, const void *from, size_t bytes);
/* The same from memory of the daemon; `to` has it after contract_sync(). */
void contract_read(zerod_stream *stream, void *to, const void *from, size_t bytes);

/* Would an access of the rank's to the address succeed: it is not made. */
bool contract_can_touch(struct contract_rank *rank, const void *at);
/* Would a write of the client's succeed. */
bool contract_can_write(zerod_client *client, const void *at);

/* ---- Units of known bytes ------------------------------------------------------------------------------ */

/* Byte i of a unit at a version: of its name, so that no unit is taken for another. */
struct contract_unit {
	char name[CONTRACT_NAME];
	size_t element_bytes;
	uint64_t numel, shard_numel, padded_numel;
	zerod_unit *at[CONTRACT_RANKS];
	uint64_t version[CONTRACT_RANKS]; /* published by the rank */
	zerod_ticket others[CONTRACT_RANKS];
};

/* Registers the unit, in host memory if contract_on_host(). */
int contract_register(zerod_group *group, const struct zerod_unit_options *options, zerod_unit **unit);
/* Registers on all ranks. */
void contract_unit(struct contract *c, const struct zerod_unit_options *options, struct contract_unit *unit);
void contract_unit_of(struct contract *c, const char *name, enum zerod_dtype dtype, uint64_t numel,
                      struct contract_unit *unit);
/* float32, in the slot, published once. */
void contract_slot_unit(struct contract *c, const char *name, uint64_t numel, uint32_t slot,
                        struct contract_unit *unit);
/* float32, without anything else. */
void contract_plain_unit(struct contract *c, const char *name, uint64_t numel, struct contract_unit *unit);
/* The same, on the ranks' devices even if contract_on_host(). */
void contract_device_unit(struct contract *c, const char *name, uint64_t numel, struct contract_unit *unit);
/* The rank writes the bytes of its next version; an update must be open. */
void contract_write_shard(struct contract_rank *rank, struct contract_unit *unit, zerod_stream *stream);
/* The rank's next version: begin, write, publish. */
void contract_publish(struct contract_rank *rank, struct contract_unit *unit);
void contract_publish_all(struct contract *c, struct contract_unit *unit);
uint64_t contract_padded_bytes(const struct contract_unit *unit);
/* Checks that a gathered buffer, which the calling thread has waited for, holds one version: the unit's
 * bytes, and zeros behind them. */
void contract_expect_bytes(const struct contract_unit *unit, const void *data, uint64_t version);
/* Whether these padded bytes, which were read from a buffer, hold that version. */
bool contract_bytes_are(const struct contract_unit *unit, const uint8_t *bytes, uint64_t version);

/* Gathers the unit for one use under the tag (NULL: default), and waits in the calling thread. In the test's
 * own thread, where gathers are collectives, the other ranks do the same, and release with the rank. */
void *contract_gather(struct contract_rank *rank, struct contract_unit *unit, const char *tag);
void contract_release(struct contract_rank *rank, struct contract_unit *unit, const char *tag);
/* The others' part where gathers are collectives, nothing elsewhere: for a rank that calls zerod_gather() and
 * zerod_release() itself. The first returns at once. */
void contract_others_gather(struct contract_rank *rank, struct contract_unit *unit, const char *tag);
void contract_others_release(struct contract_rank *rank, struct contract_unit *unit, const char *tag);
/* On all ranks. */
void contract_set_persistent(struct contract *c, struct contract_unit *unit, int persistent);
/* Gathers, expects the version, releases. */
void contract_expect_version(struct contract_rank *rank, struct contract_unit *unit, uint64_t version);

/* ---- Looking ------------------------------------------------------------------------------------------- */

struct contract_device {
	uint64_t shard_bytes, gathered_bytes, bucket_bytes, staging_bytes, target_bytes, allocation_bytes;
	uint64_t peak_bytes, peak_gathered_bytes, quarantine_bytes, block_bytes, segment_bytes;
	uint64_t transfers, joined, fallbacks;
};
struct contract_device contract_device(struct contract *c, uint32_t device);
/* Of all devices. */
struct contract_device contract_devices(struct contract *c);

struct contract_buffer {
	char state[16]; /* NOT_AVAILABLE when there is none */
	uint64_t padded_bytes, version;
	uint32_t holders, uses;
	bool persistent, prefetched;
	char waits_for[CONTRACT_TEXT];
};
/* Quarantined ones are not looked at. */
struct contract_buffer contract_buffer(struct contract *c, uint32_t rank, const char *unit);
/* Does a request of some session wait for that. */
bool contract_somebody_waits(struct contract *c, const char *text);

#endif
