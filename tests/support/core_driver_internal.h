/* SPDX-License-Identifier: Apache-2.0 */
/* core_driver_internal.h - what a driven engine is made of, for the files of core_driver.h only. */
#ifndef ZD_TESTS_CORE_DRIVER_INTERNAL_H
#define ZD_TESTS_CORE_DRIVER_INTERNAL_H

#include <sys/queue.h>
#include <uthash.h>

#include "core_driver.h"
#include "proto/frame.h"

#define KINDS (ZD_CMD_AGREE + 1)

struct pending { /* a command that is not over */
	struct zd_command command;
	struct zd_fence fences[ZD_MAX_FENCES];
	struct zd_location inputs[CORE_TEAM];
	bool landed; /* it has happened, with this status: */
	int status;
	const char *error;
	TAILQ_ENTRY(pending) link;
};

#define CORE_NOTICES     32
#define CORE_NOTICE_TEXT 160

struct segment {
	uint32_t id;
	uint64_t bytes;
	uint8_t *data; /* NULL without bytes */
	bool kept;     /* outlives its engine */
	bool restored; /* the engine has asked for it */
	bool lost;     /* of what was kept */
	TAILQ_ENTRY(segment) link;
};

struct session {
	uint64_t id;
	bool open;
	bool gone;                    /* its process too: at once, unless sessions linger */
	uint32_t told[CORE_SEGMENTS]; /* segments that it is to unmap, and has not */
	uint32_t ntold;
	char killed_why[128];
	uint64_t client_page[ZD_TIMELINES], daemon_page[ZD_TIMELINES];
	TAILQ_ENTRY(session) link;
};

struct call {
	uint64_t session, request;
	uint32_t sent, replied;
	struct zd_reply reply;
	char error[ZD_ERR_TEXT_BYTES];
	struct zd_fence fences[ZD_MAX_DEVICES];
	ProtobufCMessage *message; /* the reply's, whose lists it has; NULL: none */
	UT_hash_handle hh;
};

struct failure {
	int status;
	const char *error;
};

struct core_driver {
	struct zd_engine *engine;
	struct zd_engine_config config; /* from which the next engine is made */
	struct zd_device_config devices[ZD_MAX_DEVICES];
	struct zd_engine_sink sink;
	uint8_t *journal; /* what the engine has recorded so far; NULL: it records nothing */
	size_t journal_bytes;
	uint64_t now_ns;
	struct core_net *net;
	bool copies, no_bytes, abandoned, sessions_linger, sessions_map, no_frames, unordered, refuses_sums;
	enum zd_sums_state sums;
	unsigned expected[ZD_MAX_DEVICES];
	uint64_t next_request;
	bool held[KINDS];
	uint32_t count[KINDS];
	struct failure failures[KINDS];
	struct zd_signal last_signal;
	char notices[CORE_NOTICES][CORE_NOTICE_TEXT]; /* the first ones, in words */
	uint32_t nnotices;
	TAILQ_HEAD(, pending) commands; /* in the order in which they were given */
	TAILQ_HEAD(, segment) segments;
	TAILQ_HEAD(, session) sessions;
	struct call *calls; /* by `request` */
	struct zd_arena rows;
};

/* NULL: there is none. */
struct session *core_session(const struct core_driver *core, uint64_t id);
struct call *core_find_call(const struct core_driver *core, uint64_t request);
/* After every call into the engine: whatever may run does. */
void core_settle(struct core_driver *core);
/* After every call into the engine: stores its records. */
void core_journal_store(struct core_driver *core);
/* Adds the functions that restarts need. */
void core_restart_sink(struct zd_engine_sink *sink);
/* NULL: there is none. */
struct segment *core_segment(const struct core_driver *core, uint32_t id);

#endif
