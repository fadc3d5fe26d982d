/* SPDX-License-Identifier: Apache-2.0 */
/* test_hostile_peers.c - clients that the daemon does not serve, or serves within limits only. */
#include <grp.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/raw_client.h"
#include "tests/support/test.h"

#define SOME_UID 12345
#define OTHERS   3
#define NGROUPS  64
#define CROWD    200 /* two lines each */
#define ROUNDS   4

static struct zd_daemon peers_daemon;
static struct raw_client raw = {.sock = -1};
static struct raw_client others[OTHERS] = {{.sock = -1}, {.sock = -1}, {.sock = -1}};

static int close_all(void **state)
{
	(void)state;
	raw_close(&raw);
	for (int i = 0; i < OTHERS; i++)
		raw_close(&others[i]);
	return zd_daemon_stop(&peers_daemon);
}

#define CLOSE_ALL_TEST(name) TEST_DEFINE(name, void, , name(), NULL, close_all)

static uint64_t send_hello(struct raw_client *client)
{
	return raw_send(client, RAW(HELLO, hello, Hello, .version_min = 1, .version_max = 1));
}

/* ---- Users ------------------------------------------------------------------------------------------- */

/* Connects as this user and group, of no other group. */
static void connect_as(struct raw_client *client, uid_t uid, gid_t gid)
{
	gid_t groups[NGROUPS];
	int ngroups = getgroups(NGROUPS, groups);

	assert_true(ngroups >= 0);
	assert_int_equal(setgroups(0, NULL), 0);
	assert_int_equal(setegid(gid), 0);
	assert_int_equal(seteuid(uid), 0);
	raw_connect(client, peers_daemon.socket_path);
	assert_int_equal(seteuid(0), 0);
	assert_int_equal(setegid(0), 0);
	assert_int_equal(setgroups((size_t)ngroups, groups), 0);
}

static void start_with(const char *config)
{
	const struct zd_daemon_options options = {.config = config};

	assert_int_equal(zd_daemon_start(&options, &peers_daemon), 0);
	assert_int_equal(chmod(peers_daemon.dir, 0755), 0);
}

static void start_for_users(const char *config)
{
	if (geteuid() != 0)
		skip();
	start_with(config);
}

static void expect_session(struct raw_client *client, uid_t uid, gid_t gid)
{
	connect_as(client, uid, gid);
	(void)raw_expect(client, send_hello(client), 0);
}

static gid_t find_group(const char *name)
{
	const struct group *group = getgrnam(name);

	assert_non_null(group);
	return group->gr_gid;
}

CLOSE_ALL_TEST(test_users_of_groups)
{
	start_for_users("[daemon]\nallow_groups = mail, daemon\n");
	connect_as(&raw, SOME_UID, SOME_UID);
	RAW_EXPECT_ERROR(&raw, send_hello(&raw), ZEROD_E_PERMISSION,
	                 "uid 12345 may not use this daemon: it is in no group of allow_groups");
	raw_expect_end(&raw);
	expect_session(&others[0], SOME_UID, find_group("daemon"));
	expect_session(&others[1], SOME_UID, find_group("mail"));
	/* Administrators need no group. */
	expect_session(&others[2], 0, 0);
}

/* Two sessions of root where a user may have one. */
CLOSE_ALL_TEST(test_root_is_an_administrator)
{
	start_for_users("[limits]\nmax_sessions_per_uid = 1\n");
	expect_session(&others[0], 0, 0);
	expect_session(&others[1], 0, 0);
}

CLOSE_ALL_TEST(test_root_is_a_user)
{
	start_for_users(
	        "[daemon]\nroot_is_admin = no\nadmin_group = daemon\n[limits]\nmax_sessions_per_uid = 1\n");
	expect_session(&others[0], 0, 0);
	connect_as(&raw, 0, 0);
	RAW_EXPECT_ERROR(&raw, send_hello(&raw), ZEROD_E_LIMIT, "uid 0 has 1 sessions open");
	expect_session(&others[1], 0, find_group("daemon"));
}

/* ---- Limits of a user ---------------------------------------------------------------------------------- */

static uint64_t send_join(struct raw_client *client, const char *job, bool durable)
{
	return raw_send(client, RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT(job),
	                            .group = RAW_TEXT("g"), .world_size = 1, .durable = durable));
}

/* Each limit of the configuration is the engine's. The unit tests have what it counts. */
CLOSE_ALL_TEST(test_limits_of_the_configuration)
{
	const Zd__Reply *reply;
	uint64_t group;

	start_for_users("[limits]\nmax_jobs_per_uid = 2\nuid_metadata = 512K\nuid_quota = 256K\n"
	                "durable_groups = daemon\n");
	expect_session(&others[0], SOME_UID, find_group("daemon"));
	(void)raw_expect(&others[0], send_join(&others[0], "kept", true), 0);
	expect_session(&raw, SOME_UID, SOME_UID);
	RAW_EXPECT_ERROR(&raw, send_join(&raw, "other", true), ZEROD_E_PERMISSION, "uid 12345",
	                 "durable_groups");
	group = raw_expect(&raw, send_join(&raw, "one", false), 0)->group_join->group;
	RAW_EXPECT_ERROR(&raw, send_join(&raw, "three", false), ZEROD_E_LIMIT,
	                 "uid 12345 has 2 jobs already: max_jobs_per_uid is 2");
	RAW_EXPECT_ERROR(&raw,
	                 raw_send(&raw, RAW(ALLOC, alloc, Alloc, .job = RAW_TEXT("one"), .bytes = 1 << 20)),
	                 ZEROD_E_QUOTA, "uid 12345");
	for (unsigned n = 0;; n++) {
		char name[16];

		(void)snprintf(name, sizeof(name), "unit %u", n);
		reply = raw_answer(
		        &raw, raw_send(&raw, RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = group,
		                                 .name = name, .dtype = ZEROD_FLOAT32, .numel = 1)));
		assert_non_null(reply);
		if (reply->status)
			break;
	}
	assert_int_equal(reply->status, ZEROD_E_LIMIT);
	assert_non_null(strstr(reply->error, "uid_metadata is 524288"));
}

static uint64_t send_wait_of(struct raw_client *client, uint32_t uid)
{
	return raw_send(client, RAW(COMMIT_WAIT, commit_wait, CommitWait, .job = RAW_TEXT("j"),
	                            .group = RAW_TEXT("g"), .uid = uid));
}

CLOSE_ALL_TEST(test_readers_of_groups)
{
	start_for_users("[daemon]\nreader_groups = daemon\n");
	connect_as(&raw, SOME_UID, SOME_UID);
	(void)raw_expect(&raw, send_hello(&raw), 0);
	RAW_EXPECT_ERROR(&raw, send_wait_of(&raw, SOME_UID + 1), ZEROD_E_PERMISSION, "reader_groups");
	connect_as(&others[0], SOME_UID, find_group("daemon"));
	(void)raw_expect(&others[0], send_hello(&others[0]), 0);
	RAW_EXPECT_ERROR(&others[0], send_wait_of(&others[0], SOME_UID + 1), ZEROD_E_NOT_FOUND,
	                 "no group 'g'");
}

/* The daemon's own timer ends it, with nobody connected. */
CLOSE_ALL_TEST(test_durable_jobs_expire)
{
	start_with("[limits]\ndurable_ttl = 1s\n");
	raw_open(&raw, peers_daemon.socket_path);
	(void)raw_expect(&raw, send_join(&raw, "kept", true), 0);
	raw_close(&raw);
	assert_int_equal(zd_daemon_wait_log(&peers_daemon, "job 'kept': group 'g' has ended on this node: no "
	                                                   "session has used its durable job for 1 s"),
	                 0);
}

/* ---- The log ------------------------------------------------------------------------------------------- */

static bool log_has(const char *text)
{
	FILE *log = fopen(peers_daemon.log_path, "re");
	char line[4096];
	bool found = false;

	assert_non_null(log);
	while (!found && fgets(line, sizeof(line), log))
		found = strstr(line, text) != NULL;
	(void)fclose(log);
	return found;
}

/* Sessions that come and go by the hundred: the log says how many of their lines it lacks. */
CLOSE_ALL_TEST(test_lines_of_one_user)
{
	static struct raw_client crowd[CROWD];
	char text[64];

	start_with("[daemon]\nlog_level = debug\n");
	(void)snprintf(text, sizeof(text), "uid %u: ", (unsigned)geteuid());
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < CROWD; i++)
			raw_connect(&crowd[i], peers_daemon.socket_path);
		for (int i = 0; i < CROWD; i++)
			(void)raw_expect(&crowd[i], send_hello(&crowd[i]), 0);
		for (int i = 0; i < CROWD; i++)
			raw_close(&crowd[i]);
	}
	assert_int_equal(zd_daemon_wait_log(&peers_daemon, "lines of the log dropped, beyond 500 within"), 0);
	assert_true(log_has(text));
}

/* U+2028 is a line to some who read the log, U+202E turns the rest of the line around. */
CLOSE_ALL_TEST(test_name_of_a_session)
{
	start_with("[daemon]\nlog_level = debug\n");
	raw_connect(&raw, peers_daemon.socket_path);
	(void)raw_expect(&raw,
	                 raw_send(&raw, RAW(HELLO, hello, Hello, .version_min = 1, .version_max = 1,
	                                    .name = RAW_TEXT("a\xe2\x80\xa8z\xe2\x80\xae"))),
	                 0);
	assert_int_equal(zd_daemon_wait_log(&peers_daemon, "opened: a\\u2028z\\u202e"), 0);
	assert_false(log_has("\xe2\x80"));
}
