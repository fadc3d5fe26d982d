/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - what the sessions of two users have, as their replies say, and requests that fit it.
 *
 * A place is where a group is or may be. Its names and parameters are constants, so that both sessions of a
 * user join alike. A valid request that fails breaks the place: its sessions leave the group, and join again.
 */
#ifndef ZD_TESTS_FUZZ_MODEL_H
#define ZD_TESTS_FUZZ_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/fuzz/script.h"

#define FUZZ_USERS       2u
#define FUZZ_RANKS       2u                        /* sessions of a user */
#define FUZZ_ACTORS      (FUZZ_USERS * FUZZ_RANKS) /* actor i is rank i % 2 of user i / 2 */
#define FUZZ_ADMIN       FUZZ_ACTORS               /* the client behind them is an administrator's */
#define FUZZ_PLACES      4u
#define FUZZ_UNITS       3u
#define FUZZ_TAGS        2u
#define FUZZ_ALLOCATIONS 3u

enum fuzz_window { FUZZ_CLOSED, FUZZ_BACKWARD, FUZZ_BETWEEN, FUZZ_STEPPING };

/* A unit of a rank. */
struct fuzz_unit {
	uint64_t id, version, entry, load; /* 0: none; load: an allocation with its elements */
	uint32_t leases[FUZZ_TAGS];
	bool updating, frozen, contributed, lent;
};

struct fuzz_member {
	uint64_t group, bucket, scope, claim, context, step;
	enum fuzz_window window;
	unsigned pending;             /* requests without a reply */
	const struct action *waiting; /* the last of them */
	unsigned generation;          /* replies to requests of former ones change nothing */
	bool broken;
	struct fuzz_unit units[FUZZ_UNITS];
};

struct fuzz_actor {
	uint64_t session; /* 0: not connected */
	struct fuzz_member members[FUZZ_PLACES];
	uint64_t allocations[FUZZ_ALLOCATIONS];
	uint64_t issued; /* the last value of timeline 0 that a fence has */
	bool poisoned;
};

struct fuzz_model {
	struct fuzz_actor actors[FUZZ_ACTORS + FUZZ_RANKS]; /* the last one has no client */
	uint64_t jobs[FUZZ_USERS][FUZZ_PLACES];             /* 0: none */
	uint64_t old_id;                                    /* of something that has ended */
	bool draining;
};
extern struct fuzz_model fuzz_model;

/* Numbers that the fuzzer chooses: 0 behind their end. */
struct fuzz_picks {
	const uint8_t *bytes;
	size_t nbytes;
};
uint32_t fuzz_pick(struct fuzz_picks *picks, uint32_t among);

/* A request of an actor, and what its reply is about. */
struct fuzz_call {
	Zd__Request request;
	union fuzz_body body;
	const struct action *action;
	unsigned actor, place, unit;
	unsigned generation;
	uint32_t mode;          /* the same for all ranks */
	uint64_t value;         /* a tag, a step, a mode */
	bool foreign;           /* another user's session sends it: it must fail */
	bool odd;               /* it may fail, or succeed at something else */
	bool in_group, answers; /* a member, and a reply that counts */
};

/* Makes a request that is valid now; with `same` one of that kind. A session of the other user sends it if it
 * is `foreign`. Returns false if there is none. */
bool fuzz_model_ask(struct fuzz_call *call, unsigned actor, struct fuzz_picks *picks, bool foreign,
                    const struct action *same);
/* Whether all ranks of the group send the request. */
bool fuzz_call_is_collective(const struct fuzz_call *call);
/* Whether the request names something by its id. */
bool fuzz_call_names_ids(const struct fuzz_call *call);
/* The call is sent. */
void fuzz_model_sent(const struct fuzz_call *call);
void fuzz_model_take(const struct fuzz_call *call, const Zd__Reply *reply);
/* The actor's session has ended. */
void fuzz_model_end(unsigned actor);

#endif
