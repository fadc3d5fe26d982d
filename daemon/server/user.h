/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user.h - the resources that all connections of one uid share: a part of the loop's time, and bytes of
 * unsent replies.
 *
 * In one iteration of the loop a user's accepted connections, requests, answers on work channels, and ends of
 * connections can use the loop for `turn_ns`. The daemon completes the one that exceeds this time, and puts
 * later ones into the user's queue of tasks. Ends of connections precede all waiting requests: the objects of
 * an ended session are freed before the same process requests them again. Each iteration starts with a round,
 * in which every user with tasks has one turn. A user therefore waits for at most one turn of each other
 * user, regardless of their numbers of connections and requests.
 *
 * Several users use the loop if two have used it within `shared_ns`. A turn that has lasted `slice_ns` then
 * continues only while no event and no other user's task waits. The system call that detects this does not
 * slow down a single user.
 *
 * While a user's unsent replies exceed `most_unsent_bytes`, the daemon handles none of its requests, but its
 * connections can end.
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
	/* Handles one packet, or a part of it. It can enqueue the task again, and free any user. */
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
/* Sets the limit. Users above the former limit can continue. */
void zd_users_set_limit(struct zd_users *users, uint64_t most_unsent_bytes);

/* Finds or creates the user, and adds a reference. Each connection of the uid does so once. */
struct zd_user *zd_user_get(struct zd_users *users, uid_t uid);
void zd_user_put(struct zd_user *user);

/* These two measure the time of a user's requests, from begin to end. zd_user_put() can come in between.
 * Pairs nest. */
void zd_user_begin(struct zd_user *user);
void zd_user_end(struct zd_user *user);
#define ZD_USER_LONG_REQUEST 4u /* the cost of a request that can use much of a turn */
/* Called between begin and end, after a request. Returns whether the user's next request can be handled at
 * once: no end waits, and the turn has time left. `cost` is 1 for a plain request. The turn's time is
 * measured after each cost of 4. If no user waits, a new turn starts at the end of one. */
bool zd_user_may_go_on(struct zd_user *user, unsigned cost);
/* Whether a request that has just arrived can be handled at once: no other request of the user waits for a
 * turn. */
bool zd_user_may_begin(const struct zd_user *user);

/* Called between begin and end. Returns whether several users use the loop. If so, a request should not take
 * much longer than `slice_ns`. */
bool zd_user_shares(const struct zd_user *user);

/* Whether a connection of the user can end at once: its turn has time left, and no other end waits. */
bool zd_user_may_end(const struct zd_user *user);
/* Adds the time since `began_ns` to the turn of the uid's user, if it has connections. */
void zd_users_add_time(struct zd_users *users, uid_t uid, uint64_t began_ns);

void zd_user_enqueue(struct zd_user *user, struct zd_task *task);
/* The task is a connection's end. */
void zd_user_enqueue_end(struct zd_user *user, struct zd_task *task);
/* Harmless when it is not queued. */
void zd_user_dequeue(struct zd_user *user, struct zd_task *task);

/* Charge and uncharge a reply that could not be sent, and later was sent or lost with its connection. */
void zd_user_charge(struct zd_user *user, size_t unsent_bytes);
void zd_user_uncharge(struct zd_user *user, size_t unsent_bytes);

#endif
