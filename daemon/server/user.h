/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user.h - what all connections of one uid share: a part of the loop's time, and bytes of unsent replies.
 *
 * In one iteration of the loop a user's accepted connections, requests, answers on work channels, and ends of
 * connections may use the loop for `turn_ns`. The one that exceeds it is completed; later ones are put into
 * the user's queue of tasks. Ends of connections come before all requests that wait: what an ended session
 * holds is free before the same process asks for it again. Each iteration begins with a round:
 * every user with tasks has one turn. So a user waits for at most one turn of each other user, however many
 * connections and requests these have.
 *
 * While several users use the loop, which is so if two have within `shared_ns`, a turn that has lasted
 * `slice_ns` goes on only while no event and no other user's task waits. One user alone is not slowed down by
 * the system call that finds this out.
 *
 * While a user's unsent replies exceed `most_unsent_bytes`, none of its requests is handled, but its
 * connections end.
 */
#ifndef ZD_SERVER_USER_H
#define ZD_SERVER_USER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>
#include <uthash.h>

struct zd_loop;
struct zd_user;

/* Requests of one connection, answers of a work channel, a connection's end, or a step of an ended session's
 * teardown, waiting for their user's turn. Zeroed, with `run` and `arg`: not queued. */
struct zd_task {
	TAILQ_ENTRY(zd_task) link;
	bool queued, is_end;
	/* Handles one packet, or a part of it. It may enqueue the task again, and free any user. */
	void (*run)(void *arg);
	void *arg;
};

struct zd_users {
	struct zd_loop *loop;
	struct zd_user *all;              /* uthash by uid */
	TAILQ_HEAD(, zd_user) with_tasks; /* users that have a turn in the next round, in order */
	unsigned nwith_tasks;
	uint64_t turn_ns; /* tests set it: 0 ends a turn after each request */
	uint64_t slice_ns, shared_ns;
	uid_t last_uid;             /* of the user that used the loop last */
	bool was_shared, is_shared; /* ever, and in the last `shared_ns` */
	uint64_t changed_ns;        /* when another user used the loop after `last_uid` had */
	uint64_t most_unsent_bytes; /* 0: no limit */
};

void zd_users_init(struct zd_users *users, struct zd_loop *loop);
/* No user has a connection any more. */
void zd_users_deinit(struct zd_users *users);
/* Users that were above the former limit may go on. */
void zd_users_set_limit(struct zd_users *users, uint64_t most_unsent_bytes);

/* Finds or makes the user, and refers to it: each connection of the uid does so once. */
struct zd_user *zd_user_get(struct zd_users *users, uid_t uid);
void zd_user_put(struct zd_user *user);

/* Measures the time of a user's requests, from begin to end. The user may be put in between. Pairs nest. */
void zd_user_begin(struct zd_user *user);
void zd_user_end(struct zd_user *user);
#define ZD_USER_LONG_REQUEST 4u /* the cost of a request that may take much of a turn */
/* Between begin and end, after a request: whether the user's next one may be handled at once: no end
 * waits, and the turn has time left. `cost` is 1 for
 * a plain request; the turn's time is measured after each cost of 4. Where nobody waits, a new turn begins at
 * the end of one. */
bool zd_user_may_go_on(struct zd_user *user, unsigned cost);
/* Whether a request that has just arrived may be handled at once: no other of the user waits for a turn. */
bool zd_user_may_begin(const struct zd_user *user);

/* Between begin and end: whether several users use the loop, so that a request should take little more than
 * `slice_ns`. */
bool zd_user_shares(const struct zd_user *user);

/* Whether a connection of the user may end at once: its turn has time left, and no other end waits. */
bool zd_user_may_end(const struct zd_user *user);
/* Adds the time since `began_ns` to the turn of the uid's user, if it has connections. */
void zd_users_add_time(struct zd_users *users, uid_t uid, uint64_t began_ns);

void zd_user_enqueue(struct zd_user *user, struct zd_task *task);
/* The task is a connection's end. */
void zd_user_enqueue_end(struct zd_user *user, struct zd_task *task);
/* Harmless when it is not queued. */
void zd_user_dequeue(struct zd_user *user, struct zd_task *task);

/* A reply could not be sent; it was sent, or its connection has ended. */
void zd_user_charge(struct zd_user *user, size_t unsent_bytes);
void zd_user_uncharge(struct zd_user *user, size_t unsent_bytes);

#endif
