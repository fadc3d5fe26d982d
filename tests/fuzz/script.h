/* SPDX-License-Identifier: Apache-2.0 */
/*
 * script.h - what a fuzzer feeds in: a list of records, each one thing that a client, a device or a daemon
 * does.
 *
 * A record is four bytes - what, who, and the length of the rest, low byte first - and the rest. Anything is
 * a list: the last record may be cut. So bytes mutate into lists, and lists are mutated as lists too:
 * fuzz_script_mutate().
 */
#ifndef ZD_TESTS_FUZZ_SCRIPT_H
#define ZD_TESTS_FUZZ_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/zerod.pb-c.h"
#include "server/id_key.h"

/* libFuzzer's. */
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t nbytes, size_t room);

#define FUZZ_HEADER_BYTES 4u
#define FUZZ_CLIENTS      5u /* at most; a target may have fewer */

enum fuzz_what {
	FUZZ_REQUESTS, /* a packet whose ids are made to fit; each fuzzer says how */
	FUZZ_BYTES,    /* a packet, as it is */
	FUZZ_CLOSE,    /* the client closes its socket; it connects anew with its next packet */
	FUZZ_RUN,      /* so many of the devices' commands are done (one byte; none: all) */
	FUZZ_FAIL,     /* the next command fails */
	FUZZ_SIGNAL,   /* the client's page: timeline, value; 255 is the abort's */
	FUZZ_DEAF,     /* the client reads no more, until its next record of this kind */
	FUZZ_ANSWER,   /* to the oldest work that the client was sent: how, and the fence's value */
	FUZZ_KINDS
};

struct fuzz_record {
	enum fuzz_what what;
	unsigned who; /* < FUZZ_CLIENTS */
	const uint8_t *bytes;
	size_t nbytes;
};

/* Takes the next record; false at the end. */
bool fuzz_script_next(const uint8_t **at, size_t *left, struct fuzz_record *record);
/* Appends a record; returns the bytes written, 0 without room. */
size_t fuzz_script_put(uint8_t *at, size_t room, enum fuzz_what what, unsigned who, const void *bytes,
                       size_t nbytes);

/* Makes a packet out of a number; returns its size. */
#define FUZZ_PACKET_BYTES 1024u
typedef size_t fuzz_make_fn(unsigned seed, uint8_t bytes[FUZZ_PACKET_BYTES]);

/* Makes a change to the list in `bytes`, which has room for `room`: adds, removes, repeats, moves or modifies
 * a record. `make` makes the content of a new FUZZ_REQUESTS. Returns the new size. */
size_t fuzz_script_mutate(uint8_t *bytes, size_t nbytes, size_t room, unsigned seed, fuzz_make_fn *make);

/* The body of any request. */
union fuzz_body {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): the name of a member */
#define REQUEST(KIND, name) __typeof__(*((Zd__Request *)0)->name) name;
#include "core/requests.def"
	Zd__ScopeEnd scope_end; /* of claims, abandoned scopes and contexts */
	Zd__Hello hello;
	Zd__List list;
	Zd__DaemonStatus daemon_status;
	Zd__Events events;
	Zd__Drain drain;
};

/* Numbers that choose a request of fuzz_sessions.c. */
#define FUZZ_PICKS_BYTES 12u
fuzz_make_fn fuzz_make_picks;
/* A ClientPacket with one request that makes sense at some time. */
fuzz_make_fn fuzz_make_request;
/* The same of one kind. */
size_t fuzz_request(unsigned seed, Zd__Request__BodyCase body, uint8_t bytes[FUZZ_PACKET_BYTES]);
/* A DaemonPacket with one reply, whose id is 1, and perhaps a segment. */
fuzz_make_fn fuzz_make_reply;
/* The same of one kind. */
size_t fuzz_reply(unsigned seed, Zd__Reply__BodyCase body, uint8_t bytes[FUZZ_PACKET_BYTES]);

/* The key of unique ids, the same in the fuzzer and in its corpus. */
extern const struct zd_id_key fuzz_id_key;
/* Writes a stamp before the ids, as a daemon with that key makes it for this user, at time 0. */
void fuzz_stamp(const char *job, const char *group, uint32_t nids, uint8_t *ids);

#endif
