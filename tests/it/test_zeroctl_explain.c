/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_zeroctl_explain.c - zeroctl explain: of a gather that waits, a buffer with leases, a rank that was
 * lost, and a session of a daemon that was killed.
 */
#include "tests/it/scope_scene.h"
#include "tests/it/zeroctl_scene.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <zerod_read.h>

static const char *const keep[] = {"--keep-state", "holder", NULL};
static const struct zd_daemon_options options_ = {.args = keep};

/* Two ranks of one group, in this process. */
static struct rank ranks[2];
static zerod_unit *units[2];

struct joining {
	unsigned rank;
	uint32_t flags;
	int status;
};

static void *join(void *arg)
{
	struct joining *joining = arg;
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options group = ZEROD_INIT(group);
	struct rank *rank = &ranks[joining->rank];
	char name[16];

	snprintf(name, sizeof(name), "rank%u", joining->rank);
	options.socket_path = daemon_.socket_path;
	options.deadline_ms = DEADLINE_MS;
	options.name = name;
	group.job = "two";
	group.world_size = 2;
	group.rank = joining->rank;
	group.device = joining->rank;
	group.flags = joining->flags;
	joining->status = zerod_connect(&options, &rank->client);
	if (joining->status == 0)
		joining->status = zerod_group_join(rank->client, &group, &rank->group);
	return NULL;
}

/* Both ranks join and register 'w'; none has published. */
static void two_ranks(uint32_t flags)
{
	struct joining joining[2] = {{.rank = 0, .flags = flags}, {.rank = 1, .flags = flags}};
	struct zerod_unit_options options = ZEROD_INIT(options);
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, join, &joining[1]), 0);
	(void)join(&joining[0]);
	assert_int_equal(pthread_join(thread, NULL), 0);
	options.name = "w";
	options.dtype = ZEROD_UINT8;
	options.numel = UNIT_BYTES;
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(joining[i].status, 0);
		assert_status(ranks[i].client, zerod_unit_register(ranks[i].group, &options, &units[i]),
		              ZEROD_OK);
	}
}

static void publish(unsigned rank)
{
	assert_status(ranks[rank].client, zerod_update_begin(&units[rank], 1, NULL, NULL), ZEROD_OK);
	assert_status(ranks[rank].client, zerod_publish(&units[rank], 1, NULL, 0, NULL, NULL), ZEROD_OK);
}

static void close_both(void)
{
	for (unsigned i = 0; i < 2; i++) {
		zerod_close(ranks[i].client);
		ranks[i].client = NULL;
	}
}

/* The job ends; a durable one by zeroctl. */
static int teardown(void **state)
{
	(void)state;
	close_both();
	struct program program = zeroctl_run(daemon_.socket_path, "end-job two");
	program_free(&program);
	return 0;
}

#define TEARDOWN_TEST(name) TEST_DEFINE(name, void, , name(), NULL, teardown)

/* Explains the object and expects the sentences, in this order. */
static void expect_explained(const char *object, const char *const *sentences)
{
	char line[128];

	snprintf(line, sizeof(line), "explain %s", object);
	struct program program = zeroctl_run(daemon_.socket_path, line);
	const char *from = program.out_text;
	assert_string_equal(program.err_text, "");
	assert_int_equal(program.status, 0);
	for (size_t i = 0; sentences[i]; i++) {
		from = strstr(from, sentences[i]);
		if (!from)
			fail_msg("zeroctl %s does not say \"%s\": %s", line, sentences[i], program.out_text);
	}
	program_free(&program);
}

#define EXPECT_EXPLAINED(object, ...) expect_explained(object, (const char *const[]){__VA_ARGS__, NULL})

/* The id of the session of that name and state; 0: none. */
static json_int_t find_session(const char *name, const char *state)
{
	json_t *object = zeroctl_listing(daemon_.socket_path, "sessions", "sessions");
	const json_t *row = row_where(object, "name", name);
	json_int_t id = 0;

	if (row && strcmp(json_string_value(json_object_get(row, "state")), state) == 0)
		id = integer(row, "id");
	json_decref(object);
	return id;
}

/* ---- Cases --------------------------------------------------------------------------------------------- */

TEARDOWN_TEST(a_gather_waits_for_a_version)
{
	char rank1[96], session[96], id[32];
	zerod_ticket ticket;

	two_ranks(0);
	EXPECT_EXPLAINED("two/world/w", "Unit 'w' of job 'two', group 'world': 4 KiB, versions 0 to 0",
	                 "registered by 2 of 2 ranks",
	                 "No rank has a gathered buffer of it, or waits for one.");
	assert_status(ranks[0].client, zerod_gather_begin(units[0], NULL, &ticket), ZEROD_OK);
	snprintf(rank1, sizeof(rank1), "Rank 1 is session %lld (pid %d, 'rank1').",
	         (long long)find_session("rank1", "OPEN"), (int)getpid());
	snprintf(session, sizeof(session), "a gather by session %lld (pid %d, 'rank0') has waited",
	         (long long)find_session("rank0", "OPEN"), (int)getpid());
	publish(0);
	EXPECT_EXPLAINED("two/world/w@0", "Rank 0, device 0: ", session,
	                 "It waits for rank 1 to publish version 1 of unit 'w' (has 0).", rank1);
	EXPECT_EXPLAINED("two/world/w@1", "Rank 1 has no gathered buffer of it, and does not wait for one.");
	EXPECT_EXPLAINED("two", "Job 'two' of uid ", " is not durable, with 2 sessions and 1 group.",
	                 "It is charged 4 KiB of shards.", "gathers that wait: 1.",
	                 " waits: gather: rank 1 to publish version 1", rank1,
	                 "`zeroctl kill-job two` ends.");
	snprintf(id, sizeof(id), "%lld", (long long)find_session("rank0", "OPEN"));
	EXPECT_EXPLAINED(id, "Session ", " is OPEN.",
	                 "It is rank 0 of group 'world' of job 'two', on device 0.",
	                 "It waits: gather: rank 1 to publish version 1", rank1, "`zeroctl kill-session ");
	publish(1);
	assert_status(ranks[0].client, zerod_wait(ranks[0].client, ticket, NULL, NULL), ZEROD_OK);
}

TEARDOWN_TEST(leases_and_scopes_hold_a_buffer)
{
	const zerod_scope none = {0};
	struct zerod_gather_options options = ZEROD_INIT(options);
	char id[32];
	zerod_scope scope;

	two_ranks(0);
	publish(0);
	publish(1);
	options.tag = "read";
	options.uses = 2;
	assert_status(ranks[1].client, zerod_gather(units[1], &options, NULL, NULL), ZEROD_OK);
	EXPECT_EXPLAINED(
	        "two/world/w@1", "Rank 1, device 1: a buffer of 4 KiB, version 1, has been AVAILABLE for",
	        "A lease of session ", "'rank1') under tag 'read' has held it for ", ": 2 releases free it.");
	snprintf(id, sizeof(id), "%lld", (long long)find_session("rank1", "OPEN"));
	EXPECT_EXPLAINED(id, "It holds unit 'w' of job 'two', 4 KiB, under tag 'read', for ");
	EXPECT_EXPLAINED("two", "Buffers with leases: 1; ", "The oldest lease is on unit 'w', by session ",
	                 " under tag 'read', for ");
	scope = forward(&ranks[0], none);
	(void)touch(&ranks[0], units[0], scope);
	EXPECT_EXPLAINED("two/world/w@0", "The scope '@scope ", ", which is OPEN, has held it for ",
	                 ": the end of the scope frees it.");
}

TEARDOWN_TEST(a_lost_rank_is_named)
{
	char line[64];

	two_ranks(ZEROD_GROUP_DURABLE);
	publish(0);
	publish(1);
	snprintf(line, sizeof(line), "kill-session %lld", (long long)find_session("rank1", "OPEN"));
	struct program program = zeroctl_run(daemon_.socket_path, line);
	assert_int_equal(program.status, 0);
	program_free(&program);
	EXPECT_EXPLAINED("two/world/w", "Rank 1, device 1: its shard of 2 KiB is DETACHED.",
	                 "The job retains it for the next process that joins as this rank",
	                 "Group 'world' of job 'two' is FAILED: it has lost ranks",
	                 "Ranks without a session: 1.");
	EXPECT_EXPLAINED("two/world/w@0", "Rank 0, device 0: its shard of 2 KiB is IDLE.");
	EXPECT_EXPLAINED("two", "is durable, with 1 session", "It is charged 4 KiB of shards.",
	                 "Ranks without a session: 1.",
	                 "Its shards and durable allocations remain when its sessions end.");
	close_both();
	EXPECT_EXPLAINED("two", "with 0 sessions", "is PARKED: all ranks have left",
	                 "No session uses it. `zeroctl end-job two` frees it");
}

/* The process lives, and may still use what it had mapped. */
TEARDOWN_TEST(a_former_session_is_awaited)
{
	char leave[64], id[32];

	two_ranks(ZEROD_GROUP_DURABLE);
	publish(0);
	publish(1);
	assert_int_equal(zd_daemon_kill(&daemon_), 0);
	assert_int_equal(zd_daemon_restart(&options_, &daemon_), 0);
	snprintf(leave, sizeof(leave), "process %d to leave device ", (int)getpid());
	json_t *object = zeroctl_listing(daemon_.socket_path, "sessions --job two", "sessions");
	const json_t *row = json_array_get(json_object_get(object, "rows"), 0);
	assert_string_equal(json_string_value(json_object_get(row, "state")), "CLOSING");
	snprintf(id, sizeof(id), "%lld", (long long)integer(row, "id"));
	json_decref(object);
	EXPECT_EXPLAINED(id, "of job 'two', is CLOSING.", leave, "Its connection has ended.",
	                 "freed when the process has left the devices");
	EXPECT_EXPLAINED("two", "is PARKED", "Memory of session ", "although its connection has ended",
	                 leave);
	EXPECT_EXPLAINED("two/world/w", "Rank 0, device 0: its shard of 2 KiB is DETACHED.",
	                 "In use: copies, fills and holds: 1.", "Ranks without a session: 0, 1.",
	                 "Memory of session ", leave);
}

/* A trainer of this user that joins the job and stops. */
static pid_t start_stopped(const char *job, uid_t uid)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options group = ZEROD_INIT(group);
	zerod_client *client;
	zerod_group *joined;
	int info;
	const pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		options.socket_path = daemon_.socket_path;
		options.name = "sleeper";
		group.job = job;
		group.world_size = 1;
		if (setuid(uid) || zerod_connect(&options, &client) ||
		    zerod_group_join(client, &group, &joined))
			_exit(1);
		(void)raise(SIGSTOP);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &info, WUNTRACED), pid);
	assert_true(WIFSTOPPED(info));
	return pid;
}

TEARDOWN_TEST(a_stopped_rank_looks_stopped)
{
	char says[64], named[64], line[64];
	const pid_t pid = start_stopped("one", getuid());

	json_t *object = zeroctl_listing(daemon_.socket_path, "sessions --job one", "sessions");
	const json_t *row = row_where(object, "name", "sleeper");
	assert_string_equal(json_string_value(json_object_get(row, "process")), "stopped");
	assert_true(integer(row, "idle_ns") <= integer(row, "age_ns"));
	snprintf(says, sizeof(says), "Rank 0 (pid %d) is stopped (SIGSTOP), and made its last", (int)pid);
	snprintf(named, sizeof(named), "`kill -CONT %d` continues it.", (int)pid);
	EXPECT_EXPLAINED("one", says, named);
	snprintf(line, sizeof(line), "%lld", (long long)integer(row, "id"));
	EXPECT_EXPLAINED(line, "'sleeper', stopped) of uid ", "Its process (pid ", ") is stopped (SIGSTOP)");
	json_decref(object);
	object = zeroctl_listing(daemon_.socket_path, "sessions", "sessions"); /* zeroctl itself runs */
	assert_string_equal(
	        json_string_value(json_object_get(row_where(object, "name", "zeroctl"), "process")),
	        "running");
	json_decref(object);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static size_t count_rows(const char *line, const char *verb)
{
	json_t *object = zeroctl_listing(daemon_.socket_path, line, verb);
	const size_t count = json_array_size(json_object_get(object, "rows"));

	json_decref(object);
	return count;
}

TEARDOWN_TEST(jobs_of_one_name_are_told_apart)
{
	static const char *const lines[] = {"units --job mine",  "explain mine",
	                                    "kill-job mine",     "end-job mine",
	                                    "events --job mine", "abort-group mine/world"};
	pid_t pids[2];

	if (getuid() != 0)
		skip(); /* only root is another user, too */
	char *folder = strdup(daemon_.socket_path);
	*strrchr(folder, '/') = '\0';
	assert_int_equal(chmod(folder, 0755) | chmod(daemon_.socket_path, 0666), 0);
	free(folder);
	pids[0] = start_stopped("mine", 0);
	pids[1] = start_stopped("mine", 65534);
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		zeroctl_fails(daemon_.socket_path, lines[i], 1, " names 2 jobs: nobody/mine, root/mine");
	json_t *object = zeroctl_listing(daemon_.socket_path, "sessions --job nobody/mine", "sessions");
	assert_int_equal(json_array_size(json_object_get(object, "rows")), 1);
	assert_int_equal(integer(row_where(object, "user", "nobody"), "pid"), pids[1]);
	json_decref(object);
	assert_int_equal(count_rows("groups --job 65534/mine", "groups"), 1);
	EXPECT_EXPLAINED("nobody/mine", "Job 'mine' of uid 65534 is not durable");
	EXPECT_EXPLAINED("root/mine/world", "Group 'world' of job 'mine' is READY, with 0 units.",
	                 "Rank 0 is session ", "Rank 0 (pid ");
	struct program program = zeroctl_run(daemon_.socket_path, "events --job nobody/mine");
	const char *begin = strstr(program.out_text, "job begin");
	assert_true(begin && !strstr(begin + 1, "job begin"));
	program_free(&program);
	program = zeroctl_run(daemon_.socket_path, "kill-job nobody/mine");
	assert_int_equal(program.status, 0);
	program_free(&program);
	assert_int_equal(count_rows("jobs --job mine", "jobs"), 1);
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(kill(pids[i], SIGKILL), 0);
		assert_int_equal(waitpid(pids[i], NULL, 0), pids[i]);
	}
}

/* ---- Readers ------------------------------------------------------------------------------------------- */

#define READ_BYTES (16u << 20) /* copied in some milliseconds */

struct reading {
	zerod_client *client;
	zerod_allocation *into;
	uint64_t after, step; /* read, and committed */
	atomic_bool repeats, trains;
};

/* Reads a commit of a later step, or one after the other. */
static void *read_commits(void *arg)
{
	struct reading *reading = arg;
	struct zerod_commit_source source = ZEROD_INIT(source);
	struct zerod_unit_read_options options = ZEROD_INIT(options);
	struct zerod_committed committed = ZEROD_INIT(committed);

	source.job = "two";
	options.unit = "large";
	options.bytes = READ_BYTES;
	options.into = reading->into;
	do {
		assert_status(reading->client,
		              zerod_commit_wait(reading->client, &source, reading->after, &committed), 0);
		options.group = committed.group;
		options.step = reading->after = committed.step;
		int status = zerod_unit_read(reading->client, &options, NULL);
		assert_true(status == 0 || status == ZEROD_E_STALE_VERSION);
	} while (reading->repeats);
	return NULL;
}

static void *train(void *arg)
{
	struct reading *reading = arg;

	do {
		publish(0);
		assert_status(ranks[0].client, zerod_commit(ranks[0].group, ++reading->step, NULL), 0);
	} while (reading->trains);
	return NULL;
}

TEARDOWN_TEST(readers_are_named)
{
	struct reading reading = {.after = 1, .step = 1};
	struct zerod_unit_options large = ZEROD_INIT(large);
	struct zerod_alloc_options alloc = ZEROD_INIT(alloc);
	pthread_t reader, trainer;
	struct rank engine;
	bool seen = false;
	void *data;

	rank_open(&ranks[0], "two", 0);
	rank_open(&engine, "engine", 0);
	large.name = "large";
	large.dtype = ZEROD_UINT8;
	large.numel = alloc.bytes = READ_BYTES;
	alloc.job = "engine";
	assert_status(ranks[0].client, zerod_unit_register(ranks[0].group, &large, &units[0]), 0);
	assert_status(engine.client, zerod_alloc(engine.client, &alloc, &reading.into, &data), 0);
	reading.client = engine.client;
	assert_int_equal(pthread_create(&reader, NULL, read_commits, &reading), 0);
	zeroctl_wait_table(daemon_.socket_path, "readers", "rank 0 to commit a step after 1", true);
	EXPECT_EXPLAINED("two/world", " reads group 'world' of job 'two': step 0 last, 0 B in all, 0 copies",
	                 "  It waits: commit_wait: rank 0 to commit a step after 1.", "  Rank 0 is session ");
	EXPECT_EXPLAINED("engine/world",
	                 "  It reads group 'world' of job 'two': ", "  It waits: commit_wait: ");
	EXPECT_EXPLAINED("engine", " reads group 'world' of job 'two': ", " waits: commit_wait: rank 0 ");
	(void)train(&reading);
	assert_int_equal(pthread_join(reader, NULL), 0);
	EXPECT_EXPLAINED("two", " reads group 'world' of job 'two': step 2 last, 16 MiB in all, 0 copies");
	reading.repeats = reading.trains = true;
	assert_int_equal(pthread_create(&trainer, NULL, train, &reading), 0);
	assert_int_equal(pthread_create(&reader, NULL, read_commits, &reading), 0);
	while (!seen) { /* an update waits for copies */
		struct program program = zeroctl_run(daemon_.socket_path, "explain two/world");
		const char *wait = strstr(program.out_text,
		                          " that reads the shard of rank 0 of unit 'large'");
		seen = wait && strstr(wait, "  Copies to session ");
		program_free(&program);
	}
	reading.repeats = false;
	assert_int_equal(pthread_join(reader, NULL), 0);
	reading.trains = false;
	assert_int_equal(pthread_join(trainer, NULL), 0);
	zerod_close(engine.client);
}

TEARDOWN_TEST(sentences_and_near_names)
{
	two_ranks(0);
	json_t *object = zeroctl_listing(daemon_.socket_path, "explain two", "explain");
	const json_t *first = json_array_get(json_object_get(object, "rows"), 0);
	assert_non_null(strstr(json_string_value(json_object_get(first, "text")), "Job 'two' of uid "));
	assert_true(json_is_false(json_object_get(first, "detail")));
	json_decref(object);
	zeroctl_fails(daemon_.socket_path, "explain twi", 3, "did you mean 'two'?");
	zeroctl_fails(daemon_.socket_path, "explain two/wrld/w", 3, "did you mean 'two/world/w'?");
	zeroctl_fails(daemon_.socket_path, "explain two/worl", 3, "did you mean 'two/world'?");
	zeroctl_fails(daemon_.socket_path, "buffers --job twp", 3, "did you mean 'two'?");
	zeroctl_fails(daemon_.socket_path, "abort-group two/word", 3, "did you mean 'two/world'?");
	zeroctl_fails(daemon_.socket_path, "end-job tw", 3, "no job is called 'tw'; did you mean 'two'?");
}

TEARDOWN_TEST(what_does_not_exist_is_not_found)
{
	static const char *const names[] = {"no",           "two/world/v",   "two/other/w", "4000000000/two",
	                                    "two/world/w@", "two/world/w@x", "999999"};

	two_ranks(0);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char line[64];

		snprintf(line, sizeof(line), "explain %s", names[i]);
		struct program program = zeroctl_run(daemon_.socket_path, line);
		assert_int_equal(program.status, 3);
		assert_non_null(strstr(program.err_text, "NOT_FOUND: '"));
		assert_string_equal(program.out_text, "");
		program_free(&program);
	}
	struct program program = zeroctl_run(daemon_.socket_path, "explain two/world/w@2");
	assert_int_equal(program.status, 3);
	assert_string_equal(program.err_text, "zeroctl: NOT_FOUND: group 'world' has no rank 2 here\n");
	program_free(&program);
}

static int start(void **state)
{
	(void)state;
	return zd_daemon_start(&options_, &daemon_);
}

int main(void)
{
	return test_run(start, scene_stop);
}
