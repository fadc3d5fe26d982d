/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user.c - the resources that all connections of one uid share.
 *
 * Invariant: a user is in `with_tasks` if and only if connections of it are to end, or it has tasks and is
 * below the limit of unsent bytes. While the list is not empty, the loop does not sleep.
 */
#include "server/user.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "server/loop.h"

/* A plain request takes from one to ten microseconds, a page of a listing about 25, an iteration without
 * events less than one. */
#define TURN_NS   20000u
#define SLICE_NS  4000u      /* about as long as a plain request and its reply take */
#define SHARED_NS 100000000u /* a user that asks once a second costs others a tenth of the system calls */
/* Plain requests between two looks at the clock, which costs a twentieth of such a request. */
#define CLOCK_COST ZD_USER_LONG_REQUEST
#define TELL_NS    1000000000u
#define NO_UID     ((uid_t)-1)

struct zd_user {
	struct zd_users *users;
	uid_t uid;
	unsigned refs;    /* connections, work channels, and a turn in progress */
	unsigned nesting; /* of begin and end */
	uint64_t began_ns;
	uint64_t iteration, used_ns; /* of the loop, and the user's time in it */
	unsigned unclocked_cost;     /* of the requests since the clock was read */
	uint64_t unsent_bytes;
	uint64_t told_ns; /* the time of the last log line about them; 0: none */
	TAILQ_HEAD(, zd_task) tasks, ends;
	bool listed;
	TAILQ_ENTRY(zd_user) link; /* in users->with_tasks */
	UT_hash_handle hh;
};

/* ---- Users --------------------------------------------------------------------------------------------- */

void zd_users_init(struct zd_users *users, struct zd_loop *loop)
{
	*users = (struct zd_users){.loop = loop,
	                           .turn_ns = TURN_NS,
	                           .slice_ns = SLICE_NS,
	                           .shared_ns = SHARED_NS,
	                           .last_uid = NO_UID};
	TAILQ_INIT(&users->with_tasks);
}

void zd_users_deinit(struct zd_users *users)
{
	zd_assert(!users->all && TAILQ_EMPTY(&users->with_tasks));
}

struct zd_user *zd_user_get(struct zd_users *users, uid_t uid)
{
	struct zd_user *user;

	HASH_FIND(hh, users->all, &uid, sizeof(uid), user);
	if (!user) {
		user = zd_calloc(1, sizeof(*user));
		user->users = users;
		user->uid = uid;
		TAILQ_INIT(&user->tasks);
		TAILQ_INIT(&user->ends);
		HASH_ADD(hh, users->all, uid, sizeof(user->uid), user);
	}
	user->refs++;
	return user;
}

void zd_user_put(struct zd_user *user)
{
	if (--user->refs > 0)
		return;
	zd_assert(TAILQ_EMPTY(&user->tasks) && TAILQ_EMPTY(&user->ends) && !user->listed &&
	          user->unsent_bytes == 0);
	HASH_DEL(user->users->all, user);
	free(user);
}

/* ---- Turns --------------------------------------------------------------------------------------------- */

static void run_round(void *arg);

static bool is_below_limit(const struct zd_user *user)
{
	uint64_t most_bytes = user->users->most_unsent_bytes;

	return most_bytes == 0 || user->unsent_bytes < most_bytes;
}

/* The user's time in this iteration, up to the last zd_user_end(). */
static uint64_t used_ns(const struct zd_user *user)
{
	return user->iteration == user->users->loop->iterations ? user->used_ns : 0;
}

/* The part of a turn that is not interrupted. */
static uint64_t slice_ns(const struct zd_users *users)
{
	return users->is_shared ? zd_min_u64(users->slice_ns, users->turn_ns) : users->turn_ns;
}

/* Whether the turn continues after a request or task. */
static bool turn_goes_on(const struct zd_user *user, uint64_t used)
{
	const struct zd_users *users = user->users;

	if (used < slice_ns(users))
		return true;
	return used < users->turn_ns && users->nwith_tasks == user->listed &&
	       !zd_loop_has_events(users->loop);
}

static void note_use(const struct zd_user *user)
{
	struct zd_users *users = user->users;

	if (users->last_uid != user->uid && users->last_uid != NO_UID) {
		users->was_shared = true;
		users->changed_ns = user->began_ns;
	}
	users->last_uid = user->uid;
	users->is_shared = users->was_shared && user->began_ns - users->changed_ns < users->shared_ns;
}

/* The task to run next; NULL: none may run. */
static struct zd_task *next_task(const struct zd_user *user)
{
	if (!TAILQ_EMPTY(&user->ends))
		return TAILQ_FIRST(&user->ends);
	return is_below_limit(user) ? TAILQ_FIRST(&user->tasks) : NULL;
}

/* To be called after each change of the user's tasks or bytes. */
static void update_listed(struct zd_user *user)
{
	struct zd_users *users = user->users;
	bool listed = next_task(user) != NULL;

	if (listed == user->listed)
		return;
	user->listed = listed;
	if (listed)
		TAILQ_INSERT_TAIL(&users->with_tasks, user, link);
	else
		TAILQ_REMOVE(&users->with_tasks, user, link);
	users->nwith_tasks += listed ? 1 : -1;
	if (TAILQ_EMPTY(&users->with_tasks))
		zd_loop_end_rounds(users->loop);
	else
		zd_loop_begin_rounds(users->loop, run_round, users);
}

void zd_user_begin(struct zd_user *user)
{
	user->refs++;
	if (user->nesting++ > 0)
		return;
	user->used_ns = used_ns(user);
	user->iteration = user->users->loop->iterations;
	user->unclocked_cost = 0;
	user->began_ns = zd_loop_now_ns();
	note_use(user);
}

static void stop_measuring(struct zd_user *user)
{
	zd_assert(user->nesting > 0);
	if (--user->nesting == 0)
		user->used_ns += zd_loop_now_ns() - user->began_ns;
}

void zd_user_end(struct zd_user *user)
{
	stop_measuring(user);
	zd_user_put(user);
}

void zd_users_add_time(struct zd_users *users, uid_t uid, uint64_t began_ns)
{
	struct zd_user *user;

	HASH_FIND(hh, users->all, &uid, sizeof(uid), user);
	if (!user || user->nesting > 0)
		return;
	user->used_ns = used_ns(user) + zd_loop_now_ns() - began_ns;
	user->iteration = users->loop->iterations;
}

bool zd_user_may_go_on(struct zd_user *user, unsigned cost)
{
	struct zd_users *users = user->users;
	uint64_t now_ns;

	if (!is_below_limit(user) || !TAILQ_EMPTY(&user->ends))
		return false;
	user->unclocked_cost += cost;
	if (user->unclocked_cost < CLOCK_COST && users->turn_ns > 0)
		return true;
	user->unclocked_cost = 0;
	now_ns = zd_loop_now_ns();
	if (turn_goes_on(user, user->used_ns + (now_ns - user->began_ns)))
		return true;
	if (users->turn_ns == 0 || users->nwith_tasks > 0 || zd_loop_has_events(users->loop))
		return false;
	user->used_ns = 0;
	user->began_ns = now_ns;
	return true;
}

bool zd_user_shares(const struct zd_user *user)
{
	return user->users->is_shared;
}

bool zd_user_may_begin(const struct zd_user *user)
{
	uint64_t used = used_ns(user);

	return TAILQ_EMPTY(&user->tasks) && TAILQ_EMPTY(&user->ends) && is_below_limit(user) &&
	       (used == 0 || used < slice_ns(user->users));
}

bool zd_user_may_end(const struct zd_user *user)
{
	uint64_t used = used_ns(user);

	if (user->nesting > 0)
		used += zd_loop_now_ns() - user->began_ns;
	return TAILQ_EMPTY(&user->ends) && (used == 0 || used < slice_ns(user->users));
}

void zd_user_enqueue(struct zd_user *user, struct zd_task *task)
{
	zd_assert(!task->queued);
	task->queued = true;
	task->is_end = false;
	TAILQ_INSERT_TAIL(&user->tasks, task, link);
	update_listed(user);
}

void zd_user_enqueue_end(struct zd_user *user, struct zd_task *task)
{
	zd_assert(!task->queued);
	task->queued = task->is_end = true;
	TAILQ_INSERT_TAIL(&user->ends, task, link);
	update_listed(user);
}

void zd_user_dequeue(struct zd_user *user, struct zd_task *task)
{
	if (!task->queued)
		return;
	task->queued = false;
	if (task->is_end)
		TAILQ_REMOVE(&user->ends, task, link);
	else
		TAILQ_REMOVE(&user->tasks, task, link);
	update_listed(user);
}

/* Runs the user's next task. A task that enqueues itself again is queued after the others. Returns whether
 * the turn continues: then the user has tasks, which refer to it. */
static bool run_task(struct zd_user *user)
{
	struct zd_task *task = next_task(user);

	zd_user_dequeue(user, task);
	zd_user_begin(user);
	task->run(task->arg);
	stop_measuring(user);
	bool goes_on = user->listed && turn_goes_on(user, user->used_ns);
	zd_user_put(user);
	return goes_on;
}

static void run_round(void *arg)
{
	struct zd_users *users = arg;
	struct zd_user *user;

	for (unsigned left = users->nwith_tasks; left > 0 && (user = TAILQ_FIRST(&users->with_tasks));
	     left--) {
		TAILQ_REMOVE(&users->with_tasks, user, link); /* its next turn is after the others' */
		TAILQ_INSERT_TAIL(&users->with_tasks, user, link);
		while (run_task(user))
			continue;
	}
}

/* ---- Unsent replies ------------------------------------------------------------------------------------ */

/* Logs at most one line per second. */
static void tell_blocked(struct zd_user *user)
{
	uint64_t now_ns = zd_loop_now_ns();
	char bytes[ZD_BYTES_TEXT];

	if (user->told_ns && now_ns - user->told_ns < TELL_NS)
		return;
	user->told_ns = now_ns;
	zd_log(ZD_LOG_WARNING,
	       "clients of uid %u have %s of unread replies: the daemon handles none of their requests until "
	       "they are read",
	       (unsigned)user->uid, zd_bytes_text(user->unsent_bytes, bytes));
}

void zd_user_charge(struct zd_user *user, size_t unsent_bytes)
{
	bool was_below = is_below_limit(user);

	user->unsent_bytes += unsent_bytes;
	if (was_below && !is_below_limit(user))
		tell_blocked(user);
	update_listed(user);
}

void zd_user_uncharge(struct zd_user *user, size_t unsent_bytes)
{
	zd_assert(unsent_bytes <= user->unsent_bytes);
	user->unsent_bytes -= unsent_bytes;
	update_listed(user);
}

void zd_users_set_limit(struct zd_users *users, uint64_t most_unsent_bytes)
{
	users->most_unsent_bytes = most_unsent_bytes;
	for (struct zd_user *user = users->all; user; user = user->hh.next)
		update_listed(user);
}
