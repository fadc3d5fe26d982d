/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reconnect.c - clients with reconnect_ms go on with the next daemon, with the handles that they have.
 *
 * A rank is a client of this process. Both ranks of a group join again in threads of their own, since a join
 * waits for all ranks.
 */
#include "tests/it/reconnect_scene.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zerod_host.h>

#include "client/lib/base/inside.h"
#include "client/lib/conn/request.h"
#include "tests/support/options.h"

#define NRANKS      2
#define SHARD_BYTES 4096u
#define COMMITTED   0x11
#define UNDONE      0xEE
#define SHORT_MS    50u

static struct rank ranks[NRANKS];

/* ---- Ranks --------------------------------------------------------------------------------------------- */

static int join(struct rank *rank, uint32_t flags)
{
	struct zerod_group_options group = ZEROD_INIT(group);
	struct zerod_unit_options unit = ZEROD_INIT(unit);
	struct zerod_view view = ZEROD_INIT(view);
	int rc;

	group.job = "lm";
	group.world_size = NRANKS;
	group.rank = rank->rank;
	group.device = rank->rank;
	group.flags = flags;
	rc = zerod_group_join(rank->client, &group, &rank->group);
	unit.name = "w";
	unit.dtype = ZEROD_UINT8;
	unit.numel = NRANKS * (uint64_t)SHARD_BYTES;
	view.name = "all";
	view.ndim = 1;
	view.shape[0] = unit.numel;
	unit.views = &view;
	unit.nviews = 1;
	rc = rc ? rc : zerod_unit_register(rank->group, &unit, &rank->unit);
	unit.name = "frozen";
	rc = rc ? rc : zerod_unit_register(rank->group, &unit, &rank->frozen);
	return rc ? rc : zerod_shard_get(rank->unit, SIZED(&rank->shard));
}

static void *rank_joins(void *arg)
{
	struct rank *rank = arg;

	rank->status = open_client(rank, RECONNECT_MS);
	if (rank->status == 0)
		rank->status = join(rank, ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW);
	return NULL;
}

static int restore(struct rank *rank)
{
	struct zerod_group_info info = ZEROD_INIT(info);
	int rc = zerod_group_get(rank->group, &info);

	if (rc == 0 && (info.committed_step != 1 || info.torn))
		return ZEROD_E_STATE;
	return rc ? rc : zerod_shard_get(rank->unit, SIZED(&rank->shard));
}

static void *rank_restores(void *arg)
{
	struct rank *rank = arg;

	rank->status = restore(rank);
	return NULL;
}

static int update(struct rank *rank, uint8_t value)
{
	zerod_unit *const units[] = {rank->unit, rank->frozen};
	int rc = zerod_update_begin(units, 2, NULL, NULL);

	if (rc == 0)
		memset(rank->shard.data, value, SHARD_BYTES);
	return rc;
}

static int publish(struct rank *rank)
{
	zerod_unit *const units[] = {rank->unit, rank->frozen};

	return zerod_publish(units, 2, NULL, 0, NULL, NULL);
}

static void *rank_commits(void *arg)
{
	struct rank *rank = arg;
	struct zerod_group_info info = ZEROD_INIT(info);

	rank->status = zerod_group_get(rank->group, &info);
	if (rank->status == 0)
		rank->status = update(rank, (uint8_t)(COMMITTED + info.committed_step));
	if (rank->status == 0)
		rank->status = publish(rank);
	if (rank->status == 0)
		rank->status = zerod_commit(rank->group, info.committed_step + 1, NULL);
	return NULL;
}

static void all_ranks(void *(*fn)(void *))
{
	pthread_t threads[NRANKS];

	for (unsigned i = 0; i < NRANKS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, fn, &ranks[i]), 0);
	for (unsigned i = 0; i < NRANKS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	for (unsigned i = 0; i < NRANKS; i++) {
		if (ranks[i].status)
			print_error("rank %u: %s\n", i, zerod_status_name(ranks[i].status));
		assert_int_equal(ranks[i].status, 0);
	}
}

/* ---- Scenes -------------------------------------------------------------------------------------------- */

/* All ranks have joined, and step 1 is committed. */
static void begin(void)
{
	memset(ranks, 0, sizeof(ranks));
	for (unsigned i = 0; i < NRANKS; i++)
		ranks[i].rank = i;
	assert_int_equal(zd_daemon_start(&keeps, &daemon_), 0);
	all_ranks(rank_joins);
	all_ranks(rank_commits);
}

/* Step 1 is there, both ranks make step 2, and the bytes can be gathered. Nothing is left of the former
 * daemon: the holder would not end. */
static void go_on_and_end(void)
{
	void *data;

	all_ranks(rank_restores);
	for (unsigned i = 0; i < NRANKS; i++)
		for (unsigned j = 0; j < SHARD_BYTES; j++)
			assert_int_equal(((uint8_t *)ranks[i].shard.data)[j], COMMITTED);
	all_ranks(rank_commits);
	for (unsigned i = 0; i < NRANKS; i++) {
		assert_status(ranks[i].client, zerod_gather(ranks[i].unit, NULL, ranks[i].stream, &data), 0);
		if (ranks[i].stream)
			assert_int_equal(zerod_stream_synchronize(ranks[i].stream), 0);
		for (unsigned j = 0; j < NRANKS * SHARD_BYTES; j++)
			assert_int_equal(((uint8_t *)data)[j], COMMITTED + 1);
		assert_int_equal(zerod_release(ranks[i].unit, &ranks[i].stream, 1, NULL, NULL), 0);
	}
	for (unsigned i = 0; i < NRANKS; i++)
		zerod_close(ranks[i].client);
	assert_int_equal(zd_daemon_zeroctl(&daemon_, "end-job lm"), 0);
	assert_int_equal(zd_daemon_stop(&daemon_), 0);
}

TEST(test_inside_an_update)
{
	begin();
	for (int i = 0; i < 3; i++) {
		assert_int_equal(update(&ranks[0], UNDONE), 0);
		assert_int_equal(update(&ranks[1], UNDONE), 0);
		assert_int_equal(publish(&ranks[1]), 0);
		restart(&keeps);
		assert_int_equal(publish(&ranks[0]), ZEROD_E_RESTARTED);
		assert_int_equal(update(&ranks[1], UNDONE), ZEROD_E_RESTARTED);
		assert_non_null(strstr(zerod_last_error(ranks[1].client), "zerod_group_get() reconnects"));
		all_ranks(rank_restores);
	}
	go_on_and_end();
}

/* The daemon is told to end, by a second signal at once, and the next one is started. */
static void stop_and_restart(void)
{
	siginfo_t ended;

	assert_int_equal(kill(daemon_.pid, SIGTERM), 0);
	assert_int_equal(zd_daemon_wait_notify(&daemon_, "STOPPING=1"), 0);
	assert_int_equal(kill(daemon_.pid, SIGTERM), 0);
	assert_int_equal(waitid(P_PID, (id_t)daemon_.pid, &ended, WEXITED | WNOWAIT), 0);
	restart(&keeps);
}

/* A daemon that is told to end says so. */
TEST(test_a_stopped_daemon)
{
	begin();
	stop_and_restart();
	assert_int_equal(zd_daemon_wait_log(&daemon_, "durable jobs stored for the next daemon: 1"), 0);
	assert_int_equal(update(&ranks[0], UNDONE), ZEROD_E_RESTARTED);
	assert_non_null(strstr(zerod_last_error(ranks[0].client), "drained by SIGTERM"));
	go_on_and_end();
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

static atomic_uint nready;

/* Waits for rank 1, which does not publish. */
static void *gather_waits(void *arg)
{
	struct rank *rank = arg;
	zerod_ticket ticket;
	void *data;

	rank->status = zerod_gather_begin(rank->unit, NULL, &ticket);
	nready++;
	if (rank->status == 0)
		rank->status = zerod_wait(rank->client, ticket, NULL, &data);
	return NULL;
}

TEST(test_a_gather_waits)
{
	pthread_t thread;

	begin();
	nready = 0;
	assert_int_equal(update(&ranks[0], UNDONE), 0);
	assert_int_equal(publish(&ranks[0]), 0);
	assert_int_equal(pthread_create(&thread, NULL, gather_waits, &ranks[0]), 0);
	while (nready == 0)
		(void)sched_yield();
	restart(&keeps);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(ranks[0].status, ZEROD_E_RESTARTED);
	go_on_and_end();
}

/* Gathers and releases, whatever happens, until the end. */
static atomic_bool ends;
static const char *_Atomic wrong;

static void *gathers_on(void *arg)
{
	const struct rank *rank = arg;

	while (!ends) {
		void *data;
		int rc = zerod_gather(rank->unit, NULL, NULL, &data);

		if (rc == 0)
			rc = zerod_release(rank->unit, NULL, 0, NULL, NULL);
		if (rc && rc != ZEROD_E_RESTARTED)
			wrong = zerod_status_name(rc);
		nready++;
	}
	return NULL;
}

/* The second thread of each rank does not crash, and gets no bytes before the first one has restored the
 * group. */
TEST(test_two_threads)
{
	pthread_t threads[NRANKS];

	begin();
	ends = false;
	wrong = NULL;
	for (unsigned i = 0; i < NRANKS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, gathers_on, &ranks[i]), 0);
	for (int i = 0; i < 20 && !wrong; i++) {
		unsigned before = nready;

		while (nready < before + 100 && !wrong)
			(void)sched_yield();
		if (i % 2)
			restart(&keeps);
		else
			stop_and_restart();
		all_ranks(rank_restores);
	}
	ends = true;
	for (unsigned i = 0; i < NRANKS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	if (wrong)
		fail_msg("a gather returned %s", wrong);
	go_on_and_end();
}

/* Both threads of a rank restore its group: one does, the other waits. */
TEST(test_both_threads_restore)
{
	pthread_t threads[2 * NRANKS];
	struct rank twins[2 * NRANKS];

	begin();
	restart(&keeps);
	for (unsigned i = 0; i < 2 * NRANKS; i++) {
		twins[i] = ranks[i % NRANKS];
		assert_int_equal(pthread_create(&threads[i], NULL, rank_restores, &twins[i]), 0);
	}
	for (unsigned i = 0; i < 2 * NRANKS; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(twins[i].status, 0);
	}
	go_on_and_end();
}

static atomic_int asking_thread;

static void *asks_for_a_device(void *arg)
{
	struct zerod_device_info info = ZEROD_INIT(info);
	struct rank *rank = arg;

	asking_thread = gettid();
	rank->status = zerod_device_get(rank->client, 0, &info);
	return NULL;
}

static void *goes_on(void *arg)
{
	struct zerod_group_info info = ZEROD_INIT(info);
	struct rank *rank = arg;

	asking_thread = gettid();
	rank->status = zerod_group_get(rank->group, &info);
	return NULL;
}

static char state_of(pid_t thread)
{
	char path[64], line[256] = "";
	const char *end;
	FILE *file;

	(void)snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)thread);
	file = fopen(path, "r");
	assert_non_null(file);
	end = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
	(void)fclose(file);
	return end ? end[2] : '?';
}

/* Begins a call in another thread, and returns when that thread sleeps: it waits for a lock, or for the
 * daemon, which is stopped. */
static void begin_call(void *(*fn)(void *), struct rank *rank, pthread_t *thread)
{
	asking_thread = 0;
	assert_int_equal(pthread_create(thread, NULL, fn, rank), 0);
	while (asking_thread == 0 || state_of(asking_thread) != 'S')
		(void)sched_yield();
}

/* The daemon has not answered the hello yet: another thread sends nothing. */
TEST(test_calls_that_begin_meanwhile_wait)
{
	pthread_t going_on, asking;
	struct rank rank, twin;
	uint64_t before, after;

	begin_alone(&keeps, ZEROD_GROUP_DURABLE, RECONNECT_MS, &rank);
	twin = rank;
	restart(&keeps);
	assert_int_equal(kill(daemon_.pid, SIGSTOP), 0);
	before = zc_packets_sent(rank.client);
	assert_int_equal(pthread_create(&going_on, NULL, goes_on, &rank), 0);
	while (zc_packets_sent(rank.client) == before)
		(void)sched_yield();
	begin_call(asks_for_a_device, &twin, &asking);
	after = zc_packets_sent(rank.client);
	assert_int_equal(kill(daemon_.pid, SIGCONT), 0);
	assert_int_equal(after, before + 1); /* the hello */
	assert_int_equal(pthread_join(going_on, NULL), 0);
	assert_int_equal(pthread_join(asking, NULL), 0);
	assert_int_equal(rank.status, 0);
	assert_int_equal(twin.status, 0);
	end_alone(&rank);
}

/* As long as a thread is in a call, the client does not connect. */
TEST(test_calls_under_way_are_awaited)
{
	struct zc_inside inside;
	uint64_t before, after;
	pthread_t going_on;
	struct rank rank;

	begin_alone(&keeps, ZEROD_GROUP_DURABLE, RECONNECT_MS, &rank);
	restart(&keeps);
	assert_int_equal(kill(daemon_.pid, SIGSTOP), 0);
	before = zc_packets_sent(rank.client);
	inside = zc_inside_begin(rank.client);
	begin_call(goes_on, &rank, &going_on);
	after = zc_packets_sent(rank.client);
	zc_inside_end(&inside);
	assert_int_equal(kill(daemon_.pid, SIGCONT), 0);
	assert_int_equal(after, before);
	assert_int_equal(pthread_join(going_on, NULL), 0);
	assert_int_equal(rank.status, 0);
	end_alone(&rank);
}

/* ---- Handles ------------------------------------------------------------------------------------------- */

static void add_one(void *arg)
{
	++*(int *)arg;
}

/* Tickets, scopes and allocations end with their connection; streams and buckets go on. */
TEST(test_handles)
{
	struct zerod_alloc_options alloc = ZEROD_INIT(alloc);
	struct zerod_bucket_options bucket = ZEROD_INIT(bucket);
	struct zerod_unit_options extra = ZEROD_INIT(extra);
	zerod_allocation *allocation;
	zerod_ticket gathered, released;
	zerod_scope scope, next;
	zerod_unit *again;
	int ran = 0;
	void *data;

	begin();
	alloc.job = "lm";
	alloc.bytes = SHARD_BYTES;
	assert_int_equal(zerod_alloc(ranks[0].client, &alloc, &allocation, &data), 0);
	assert_int_equal(zerod_host_stream_create(ranks[0].client, &ranks[0].stream), 0);
	assert_int_equal(zerod_host_stream_launch(ranks[0].stream, add_one, &ran), 0);
	assert_int_equal(zerod_forward_begin(ranks[0].group, (zerod_scope){0}, NULL, 0, &scope), 0);
	assert_int_equal(zerod_gather_begin(ranks[0].unit, NULL, &gathered), 0);
	assert_int_equal(zerod_wait(ranks[0].client, gathered, ranks[0].stream, &data), 0);
	assert_int_equal(zerod_gather_begin(ranks[0].unit, OPTIONS_OF(zerod_gather_options, .tag = "second"),
	                                    &released),
	                 0);
	bucket.dtype = ZEROD_FLOAT32;
	assert_int_equal(zerod_bucket_create(ranks[0].group, &bucket, &ranks[0].bucket), 0);
	extra.name = "w";
	extra.dtype = ZEROD_UINT8;
	extra.numel = NRANKS * (uint64_t)SHARD_BYTES;
	assert_int_equal(zerod_unit_set_persistent(ranks[0].unit, 1), 0);
	assert_int_equal(zerod_unit_set_frozen(ranks[0].frozen, 1), 0);
	assert_int_equal(zerod_unit_set_frozen(ranks[1].frozen, 1), 0);
	zerod_cork(ranks[0].client);
	restart(&keeps);
	assert_int_equal(zerod_release(ranks[0].unit, &ranks[0].stream, 1, NULL, NULL), ZEROD_E_RESTARTED);
	all_ranks(rank_restores);
	assert_int_equal(zerod_uncork(ranks[0].client), ZEROD_E_RESTARTED); /* the release was in it */
	assert_int_equal(zerod_wait(ranks[0].client, gathered, NULL, &data), ZEROD_E_RESTARTED);
	assert_int_equal(zerod_wait(ranks[0].client, released, NULL, &data), ZEROD_E_RESTARTED);
	assert_int_equal(zerod_release(ranks[0].unit, NULL, 0, NULL, NULL), ZEROD_E_NOT_HELD);
	assert_int_equal(zerod_scope_abandon(ranks[0].client, scope, NULL, 0), ZEROD_E_RESTARTED);
	assert_int_equal(zerod_forward_begin(ranks[0].group, scope, NULL, 0, &next), ZEROD_E_RESTARTED);
	assert_int_equal(zerod_forward_begin(ranks[0].group, (zerod_scope){0}, NULL, 0, &next), 0);
	assert_int_equal(zerod_forward_end(ranks[0].client, next, 0, NULL, 0, NULL), 0);
	assert_int_equal(zerod_free(allocation, NULL, 0), ZEROD_E_RESTARTED);
	assert_int_equal(zerod_bucket_destroy(ranks[0].bucket), 0);
	extra.nviews = 0;
	assert_int_equal(zerod_unit_register(ranks[0].group, &extra, &again), ZEROD_E_MISMATCH);
	assert_int_equal(zerod_unit_set_persistent(ranks[0].unit, 0), 0);
	assert_int_equal(zerod_host_stream_launch(ranks[0].stream, add_one, &ran), 0);
	assert_int_equal(zerod_stream_synchronize(ranks[0].stream), 0);
	assert_int_equal(ran, 2);
	go_on_and_end();
}

/* Each group is asked for by itself; the connection is made once. */
TEST(test_two_groups)
{
	struct zerod_group_options options = ZEROD_INIT(options);
	struct zerod_group_info info = ZEROD_INIT(info);
	struct rank rank;
	zerod_group *other;

	begin_alone(&keeps, ZEROD_GROUP_DURABLE, RECONNECT_MS, &rank);
	options.job = "lm";
	options.group = "other";
	options.world_size = 1;
	options.flags = ZEROD_GROUP_DURABLE;
	assert_int_equal(zerod_group_join(rank.client, &options, &other), 0);
	assert_int_equal(zerod_commit(rank.group, 1, NULL), 0);
	assert_int_equal(zerod_commit(other, 2, NULL), 0);
	restart(&keeps);
	assert_int_equal(zerod_group_get(rank.group, &info), 0);
	assert_int_equal(info.committed_step, 1);
	assert_int_equal(zerod_commit(rank.group, 2, NULL), 0);
	assert_int_equal(zerod_commit(other, 3, NULL), ZEROD_E_RESTARTED);
	assert_int_equal(zerod_group_get(other, &info), 0);
	assert_int_equal(info.committed_step, 2);
	assert_int_equal(zerod_commit(other, 3, NULL), 0);
	end_alone(&rank);
}

/* ---- What is not restored ------------------------------------------------------------------------------ */

/* The group of a job that is not durable has ended; the client has not. */
TEST(test_other_jobs)
{
	struct zerod_group_info info = ZEROD_INIT(info);
	struct zerod_shard shard = ZEROD_INIT(shard);
	struct zerod_unit_options unit = ZEROD_INIT(unit);
	struct rank rank;

	begin_alone(&keeps, 0, RECONNECT_MS, &rank);
	unit.name = "w";
	unit.dtype = ZEROD_UINT8;
	unit.numel = SHARD_BYTES;
	assert_int_equal(zerod_unit_register(rank.group, &unit, &rank.unit), 0);
	restart(&keeps);
	assert_int_equal(zd_daemon_wait_log(&daemon_, "restored durable jobs of the former daemon: 0"), 0);
	assert_int_equal(zerod_group_barrier(rank.group, NULL, NULL), ZEROD_E_RESTARTED);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(zerod_group_get(rank.group, &info), ZEROD_E_RESTARTED);
		assert_non_null(strstr(zerod_last_error(rank.client), "leave the group"));
		assert_int_equal(zerod_shard_get(rank.unit, &shard), ZEROD_E_RESTARTED);
	}
	assert_int_equal(zerod_group_leave(rank.group, NULL), 0);
	assert_int_equal(join_alone(&rank, 0), 0);
	assert_int_equal(zerod_unit_register(rank.group, &unit, &rank.unit), 0);
	assert_int_equal(zerod_group_get(rank.group, &info), 0);
	zerod_close(rank.client);
	assert_int_equal(zd_daemon_stop(&daemon_), 0);
}

/* ---- Limits -------------------------------------------------------------------------------------------- */

TEST(test_no_daemon_comes)
{
	struct zerod_group_info info = ZEROD_INIT(info);
	struct rank rank;

	begin_alone(&keeps, ZEROD_GROUP_DURABLE, SHORT_MS, &rank);
	assert_int_equal(zd_daemon_kill(&daemon_), 0);
	assert_int_equal(zerod_commit(rank.group, 1, NULL), ZEROD_E_RESTARTED);
	assert_int_equal(zerod_group_get(rank.group, &info), ZEROD_E_CONNECT);
	assert_non_null(strstr(zerod_last_error(rank.client), "no daemon listens on"));
	assert_non_null(strstr(zerod_last_error(rank.client), "reconnect_ms, 50 ms, have passed"));
	assert_int_equal(zerod_commit(rank.group, 1, NULL), ZEROD_E_RESTARTED);
	assert_int_equal(zd_daemon_restart(&keeps, &daemon_), 0);
	assert_int_equal(zerod_group_get(rank.group, &info), 0);
	assert_int_equal(zerod_commit(rank.group, 1, NULL), 0);
	end_alone(&rank);
}

/* Without reconnect_ms the client ends with its daemon; the environment has the default. A daemon that keeps
 * nothing begins the durable group anew. */
TEST(test_the_environment)
{
	struct zerod_group_info info = ZEROD_INIT(info);
	struct rank rank = {0};

	assert_int_equal(zd_daemon_start(NULL, &daemon_), 0);
	for (int on = 0; on < 2; on++) {
		assert_int_equal(setenv("ZEROD_RECONNECT_MS", on ? "20000" : "0", 1), 0);
		assert_int_equal(open_client(&rank, 0), 0);
		assert_int_equal(join_alone(&rank, ZEROD_GROUP_DURABLE), 0);
		assert_int_equal(zerod_commit(rank.group, 1, NULL), 0);
		restart(NULL);
		assert_int_equal(zerod_commit(rank.group, 2, NULL),
		                 on ? ZEROD_E_RESTARTED : ZEROD_E_DISCONNECTED);
		assert_int_equal(zerod_group_get(rank.group, &info), on ? 0 : ZEROD_E_DISCONNECTED);
		assert_int_equal(info.committed_step, 0);
		zerod_close(rank.client);
	}
	assert_int_equal(setenv("ZEROD_RECONNECT_MS", "-1", 1), 0);
	assert_int_equal(open_client(&rank, 0), ZEROD_E_INVALID);
	assert_string_equal(zerod_last_error(NULL),
	                    "ZEROD_RECONNECT_MS is '-1': milliseconds are expected, 0 to 4294967295");
	assert_int_equal(unsetenv("ZEROD_RECONNECT_MS"), 0);
	assert_int_equal(zd_daemon_stop(&daemon_), 0);
}

TEST(test_a_child)
{
	struct zerod_group_info info = ZEROD_INIT(info);
	pid_t child;
	int status;

	begin();
	restart(&keeps);
	assert_int_equal(update(&ranks[0], UNDONE), ZEROD_E_RESTARTED);
	child = fork();
	if (child == 0) {
		if (zerod_group_get(ranks[0].group, &info) == ZEROD_E_FORKED)
			(void)raise(SIGKILL);
		_exit(1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	go_on_and_end();
}
