/* SPDX-License-Identifier: Apache-2.0 */
/* test_daemon_life.c - the daemon as a process: starts, refusals to start, reload, drain, end. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zerod.h>

#include "../support/daemon_fixture.h"
#include "proto/limits.h"
#include "tests/support/test.h"

#define OUTPUT_BYTES 8192
#define MOST_SOCKETS 2

static int try_connect(const char *socket_path, zerod_client **client)
{
	struct zerod_options options = ZEROD_INIT(options);

	options.socket_path = socket_path;
	options.deadline_ms = 30000;
	return zerod_connect(&options, client);
}

static zerod_client *connect_to(const struct zd_daemon *daemon)
{
	zerod_client *client = NULL;

	assert_int_equal(try_connect(daemon->socket_path, &client), 0);
	return client;
}

static int ask(zerod_client *client)
{
	struct zerod_device_info info = ZEROD_INIT(info);

	return zerod_device_get(client, 0, &info);
}

static int reset(zerod_client *client)
{
	return zerod_session_reset(client, NULL);
}

/* Runs zerod to its end and expects this status, and this in what it says. */
static void expect_end(const char *const *args, int status, const char *text)
{
	char output[OUTPUT_BYTES];
	int found;

	assert_int_equal(zd_daemon_run(args, &found, output, sizeof(output)), 0);
	if (found != status || !strstr(output, text))
		fail_msg("expected status %d and '%s', found %d and '%s'", status, text, found, output);
}

TEST(test_twice)
{
	struct zd_daemon daemon;
	zerod_client *client;
	struct stat found;
	char text[64];

	assert_int_equal(zd_daemon_start(NULL, &daemon), 0);
	assert_int_equal(stat(daemon.socket_path, &found), 0);
	assert_int_equal(found.st_mode & 0777, 0666);
	client = connect_to(&daemon);
	(void)snprintf(text, sizeof(text), "already running (pid %d)", (int)daemon.pid);
	expect_end((const char *const[]){"--socket", daemon.socket_path, NULL}, 1, text);
	assert_int_equal(ask(client), 0);
	zerod_close(client);
	client = connect_to(&daemon);
	zerod_close(client);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

TEST(test_refuses_to_start)
{
	char folder[] = "/tmp/zerod-life-XXXXXX", path[64], config[64], longest[128] = "/tmp/";
	FILE *file;

	assert_non_null(mkdtemp(folder));
	(void)snprintf(path, sizeof(path), "%s/s", folder);
	(void)snprintf(config, sizeof(config), "%s/zerod.conf", folder);
	memset(longest + 5, 'x', 103);
	file = fopen(config, "w");
	assert_non_null(file);
	assert_int_equal(fchmod(fileno(file), 0644), 0);
	(void)fputs("[devices]\narena = lots\n", file);
	(void)fclose(file);
	expect_end((const char *const[]){"--socket", config, NULL}, 1, "exists and is not a socket");
	expect_end((const char *const[]){"--socket", "/nonexistent/s", NULL}, 1,
	           "the folder /nonexistent does not exist");
	expect_end((const char *const[]){"--socket", longest, NULL}, 2, "a path of 1 to 107 bytes");
	expect_end((const char *const[]){"--socket", path, "--devices", "64", "--arena", "512T", NULL}, 2,
	           "larger than memory");
	expect_end((const char *const[]){"--socket", path, "--config", config, NULL}, 2,
	           "zerod.conf:2: [devices] arena: expected a size such as 64G, at most 1024T, found 'lots'");
	expect_end((const char *const[]){"--check-config", "--config", config, NULL}, 2, "zerod.conf:2:");
	assert_int_equal(chmod(config, 0666), 0);
	expect_end((const char *const[]){"--socket", path, "--config", config, NULL}, 2,
	           "zerod.conf: expected a file that only its owner can write, found mode 0666");
	expect_end((const char *const[]){"--config", "/nonexistent/zerod.conf", NULL}, 2, "no such file");
	expect_end((const char *const[]){"--bogus", NULL}, 2, "unrecognized option");
	expect_end((const char *const[]){"--devices", "many", NULL}, 2,
	           "--devices: expected a number from 1 to 64");
	expect_end((const char *const[]){"stray", NULL}, 2, "unexpected argument 'stray'");
	assert_int_equal(unlink(config), 0);
	assert_int_equal(rmdir(folder), 0); /* none of them left a socket */
}

/* The packaged file as it is installed: the source's may belong to any user. */
static void install_config(char path[64])
{
	char text[OUTPUT_BYTES];
	FILE *file = fopen("packaging/zerod.conf", "r");
	size_t bytes;
	int fd;

	assert_non_null(file);
	bytes = fread(text, 1, sizeof(text), file);
	assert_true(bytes > 0 && feof(file));
	(void)fclose(file);
	strcpy(path, "/tmp/zerod-conf-XXXXXX");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, bytes), bytes);
	(void)close(fd);
}

TEST(test_says)
{
	char config[64];

	install_config(config);
	expect_end((const char *const[]){"--version", NULL}, 0, "zerod 0.");
	expect_end((const char *const[]){"--help", NULL}, 0, "--check-config");
	expect_end((const char *const[]){"--check-config", "--config", config, NULL}, 0, "valid");
	assert_int_equal(unlink(config), 0);
}

static int write_config(const struct zd_daemon *daemon, const char *text)
{
	FILE *file = fopen(daemon->config_path, "w");

	return !file || fputs(text, file) < 0 || fclose(file) != 0 ? -1 : 0;
}

static int reload(struct zd_daemon *daemon)
{
	if (kill(daemon->pid, SIGHUP) != 0 || zd_daemon_wait_notify(daemon, "RELOADING=1") != 0)
		return -1;
	return zd_daemon_wait_notify(daemon, "READY=1");
}

TEST(test_reload)
{
	struct zd_daemon_options options = {.config = "[limits]\nmax_sessions = 1\n"};
	struct zd_daemon daemon;
	zerod_client *first, *second = NULL, *third = NULL;

	assert_int_equal(zd_daemon_start(&options, &daemon), 0);
	first = connect_to(&daemon);
	assert_int_equal(try_connect(daemon.socket_path, &second), ZEROD_E_LIMIT);
	assert_non_null(strstr(zerod_last_error(NULL), "max_sessions is 1"));
	assert_int_equal(write_config(&daemon, "[limits]\nmax_sessions = 2\n"), 0);
	assert_int_equal(reload(&daemon), 0);
	second = connect_to(&daemon);
	/* A mistake keeps what was. */
	assert_int_equal(write_config(&daemon, "[limits]\nmax_sessions = 3\nmax_sesions = 4\n"), 0);
	assert_int_equal(reload(&daemon), 0);
	assert_int_equal(zd_daemon_wait_log(&daemon, "zerod.conf:3: [limits] max_sesions: unknown key"), 0);
	assert_int_equal(try_connect(daemon.socket_path, &third), ZEROD_E_LIMIT);
	/* The daemon names settings that need a restart, and applies the others. */
	assert_int_equal(write_config(&daemon, "[limits]\nmax_sessions = 3\n[devices]\nsegment = 1M\n"), 0);
	assert_int_equal(reload(&daemon), 0);
	assert_int_equal(zd_daemon_wait_log(&daemon, "at the next start only"), 0);
	third = connect_to(&daemon);
	zerod_close(first);
	zerod_close(second);
	zerod_close(third);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

/* Of an arena that was not configured, which is the device's to say. */
TEST(test_parts_that_limit_nothing)
{
	struct zd_daemon_options options = {.arena = "0", .config = "[devices]\nstaging = 1024T\n"};
	struct zd_daemon daemon;

	assert_int_equal(zd_daemon_start(&options, &daemon), 0);
	assert_int_equal(zd_daemon_wait_log(&daemon, "staging, 1 PiB, has no effect on device 1"), 0);
	assert_int_equal(write_config(&daemon, "[devices]\ngather_budget = 512T\n"), 0);
	assert_int_equal(reload(&daemon), 0);
	assert_int_equal(zd_daemon_wait_log(&daemon, "gather_budget, 512 TiB, has no effect on device 0"), 0);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

static int join_alone(zerod_client *client)
{
	struct zerod_group_options options = ZEROD_INIT(options);
	zerod_group *group;

	options.job = "alone";
	options.world_size = 1;
	return zerod_group_join(client, &options, &group);
}

static void expect_told(zerod_client *client, const char *text)
{
	if (!strstr(zerod_last_error(client), text))
		fail_msg("expected '%s', found '%s'", text, zerod_last_error(client));
}

TEST(test_drain)
{
	struct zd_daemon_options options = {.config = "[daemon]\ndrain_timeout_s = 3600\n"};
	struct zd_daemon daemon;
	zerod_client *client, *late = NULL;

	assert_int_equal(zd_daemon_start(&options, &daemon), 0);
	client = connect_to(&daemon);
	assert_int_equal(kill(daemon.pid, SIGTERM), 0);
	assert_int_equal(zd_daemon_wait_notify(&daemon, "STOPPING=1"), 0);
	assert_int_equal(reset(client), 0); /* running jobs are served */
	assert_int_equal(join_alone(client), ZEROD_E_SHUTDOWN);
	expect_told(client, "the daemon is draining");
	assert_int_equal(try_connect(daemon.socket_path, &late), ZEROD_E_SHUTDOWN);
	assert_non_null(strstr(zerod_last_error(NULL), "the daemon is draining"));
	assert_int_equal(ask(client), 0);
	expect_end((const char *const[]){"--socket", daemon.socket_path, NULL}, 1, "already running");
	zerod_close(client);
	assert_int_equal(zd_daemon_finish(&daemon), 0);
}

/* The daemon does not end while a session is open, however long that takes. A reload keeps the time. */
TEST(test_idle)
{
	struct zd_daemon_options options = {.config = "[daemon]\nexit_when_idle_s = 1\n"};
	struct zd_daemon daemon;
	zerod_client *client;

	assert_int_equal(zd_daemon_start(&options, &daemon), 0);
	client = connect_to(&daemon);
	assert_int_equal(reset(client), 0);
	assert_int_equal(write_config(&daemon, "[daemon]\nexit_when_idle_s = 86400\n"), 0);
	assert_int_equal(reload(&daemon), 0);
	assert_int_equal(zd_daemon_wait_log(&daemon, "keep_state_ttl, exit_when_idle_s, events"), 0);
	zerod_close(client);
	assert_int_equal(zd_daemon_finish(&daemon), 0);
}

TEST(test_told_twice)
{
	struct zd_daemon_options options = {.config = "[daemon]\ndrain_timeout_s = 3600\n"};
	struct zd_daemon daemon;
	zerod_client *client;

	assert_int_equal(zd_daemon_start(&options, &daemon), 0);
	client = connect_to(&daemon);
	assert_int_equal(kill(daemon.pid, SIGINT), 0);
	assert_int_equal(zd_daemon_wait_notify(&daemon, "EXTEND_TIMEOUT_USEC=3610000000"), 0);
	assert_int_equal(kill(daemon.pid, SIGTERM), 0);
	assert_int_equal(zd_daemon_finish(&daemon), 0);
	assert_int_equal(ask(client), ZEROD_E_SHUTDOWN);
	expect_told(client, "the daemon ended: drained by SIGINT, and SIGTERM did not wait for the deadline");
	zerod_close(client);
}

TEST(test_drain_timeout)
{
	struct zd_daemon_options options = {.config = "[daemon]\ndrain_timeout_s = 0\n"};
	struct zd_daemon daemon;
	zerod_client *client;

	assert_int_equal(zd_daemon_start(&options, &daemon), 0);
	client = connect_to(&daemon);
	assert_int_equal(join_alone(client), 0);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
	assert_int_equal(ask(client), ZEROD_E_SHUTDOWN);
	expect_told(client, "the daemon ended: drained by SIGTERM, deadline of 0 s passed");
	zerod_close(client);
}

/* ---- What the log says of jobs ------------------------------------------------------------------------- */

/* A rank that does not say goodbye: the other end of a fork. */
static void die_as_rank(const struct zd_daemon *daemon)
{
	pid_t child = fork();
	int raw;

	if (child == 0) {
		zerod_client *client = NULL;

		if (try_connect(daemon->socket_path, &client) != 0 || join_alone(client) != 0)
			_exit(1);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &raw, 0), child);
	assert_int_equal(raw, 0);
}

static unsigned count_lines(const struct zd_daemon *daemon, const char *text)
{
	char line[1024];
	unsigned count = 0;
	FILE *log = fopen(daemon->log_path, "r");

	assert_non_null(log);
	while (fgets(line, sizeof(line), log))
		count += strstr(line, text) != NULL;
	(void)fclose(log);
	return count;
}

TEST(test_log_of_jobs)
{
	struct zd_daemon daemon;
	zerod_client *client;
	char text[256];

	assert_int_equal(zd_daemon_start(NULL, &daemon), 0);
	client = connect_to(&daemon);
	assert_int_equal(ask(client), 0);
	zerod_close(client); /* never a rank: no line */
	die_as_rank(&daemon);
	(void)snprintf(text, sizeof(text),
	               "uid %u: died without goodbye MESSAGE_ID=4cfa1a09266c48bdb0ca7aa3aa018621 "
	               "ZEROD_JOB=alone ZEROD_GROUP=world ZEROD_RANK=0 ZEROD_DEVICE=0 ZEROD_PID=",
	               (unsigned)getuid());
	assert_int_equal(zd_daemon_wait_log(&daemon, text), 0);
	assert_int_equal(
	        zd_daemon_wait_log(&daemon, "warning: job 'alone', group 'world', rank 0, device 0, pid "),
	        0);
	assert_int_equal(zd_daemon_wait_log(&daemon, "ZEROD_DURATION_NS="), 0);
	client = connect_to(&daemon);
	assert_int_equal(join_alone(client), 0);
	zerod_close(client);
	client = connect_to(&daemon);
	assert_int_equal(join_alone(client), 0); /* the daemon's end is no death of it */
	assert_int_equal(kill(daemon.pid, SIGTERM), 0);
	assert_int_equal(zd_daemon_wait_notify(&daemon, "STOPPING=1"), 0);
	assert_int_equal(kill(daemon.pid, SIGTERM), 0);
	assert_int_equal(zd_daemon_wait_log(&daemon, "ended, and with it durable jobs"), 0);
	assert_int_equal(count_lines(&daemon, "died without goodbye"), 1);
	assert_int_equal(count_lines(&daemon, "its session was ended"), 0);
	assert_int_equal(count_lines(&daemon, "info: job 'alone' (uid "), 6); /* three began and ended */
	assert_int_equal(count_lines(&daemon, "ZEROD_PEAK_BYTES="), 3);
	assert_int_equal(count_lines(&daemon, "info: session "), 3);
	assert_int_equal(zd_daemon_finish(&daemon), 0);
	zerod_close(client);
}

/* ---- Socket activation --------------------------------------------------------------------------------- */

/* As a service manager starts it: with the listening sockets as descriptors from 3 on. */
static pid_t start_with_sockets(const int *socks, int nsocks, const char *log_path, const char *arena,
                                const char *config)
{
	const char *build = getenv("BUILD");
	char program[256], number[16];
	pid_t child;

	(void)snprintf(program, sizeof(program), "%s/bin/zerod", build ? build : "build");
	child = fork();
	if (child == 0) {
		int copies[MOST_SOCKETS];

		(void)snprintf(number, sizeof(number), "%d", (int)getpid());
		(void)setenv("LISTEN_PID", number, 1);
		(void)snprintf(number, sizeof(number), "%d", nsocks);
		(void)setenv("LISTEN_FDS", number, 1);
		for (int i = 0; i < nsocks; i++)
			copies[i] = fcntl(socks[i], F_DUPFD_CLOEXEC, 3 + MOST_SOCKETS);
		for (int i = 0; i < nsocks; i++)
			(void)dup2(copies[i], 3 + i);
		(void)dup2(open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), STDERR_FILENO);
		(void)execl(program, "zerod", "--arena", arena, config ? "--config" : NULL, config,
		            (char *)NULL);
		_exit(127);
	}
	return child;
}

static pid_t start_activated(int sock, const char *log_path, const char *arena)
{
	return start_with_sockets(&sock, 1, log_path, arena, NULL);
}

static int listen_at(const char *path, int type)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	assert_int_equal(bind(sock, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(sock, 16), 0);
	return sock;
}

static int wait_status(pid_t child)
{
	int raw;

	assert_int_equal(waitpid(child, &raw, 0), child);
	return WIFEXITED(raw) ? WEXITSTATUS(raw) : 128;
}

static void read_file(const char *path, char *text, size_t room_bytes)
{
	FILE *file = fopen(path, "r");

	assert_non_null(file);
	text[fread(text, 1, room_bytes - 1, file)] = '\0';
	(void)fclose(file);
}

static void leave_a_durable_job(zerod_client *client)
{
	struct zerod_group_options options = ZEROD_INIT(options);
	zerod_group *group;

	options.job = "durable";
	options.world_size = 1;
	options.flags = ZEROD_GROUP_DURABLE;
	assert_int_equal(zerod_group_join(client, &options, &group), 0);
}

TEST(test_activated)
{
	char folder[] = "/tmp/zerod-life-XXXXXX", path[64], log_path[64], log[4096];
	zerod_client *client = NULL;
	pid_t child;
	int sock;

	assert_non_null(mkdtemp(folder));
	(void)snprintf(path, sizeof(path), "%s/s", folder);
	(void)snprintf(log_path, sizeof(log_path), "%s/log", folder);
	sock = listen_at(path, SOCK_SEQPACKET);
	assert_int_equal(chmod(path, 0640), 0);
	for (int round = 0; round < 2; round++) {
		child = start_activated(sock, log_path, "16M");
		assert_int_equal(try_connect(path, &client), 0);
		assert_int_equal(ask(client), 0);
		leave_a_durable_job(client);
		zerod_close(client);
		assert_int_equal(kill(child, SIGTERM), 0);
		assert_int_equal(wait_status(child), 0);
		assert_int_equal(access(path, F_OK), 0); /* it is not the daemon's */
	}
	(void)close(sock);
	(void)unlink(path);
	sock = listen_at(path, SOCK_STREAM);
	assert_int_equal(wait_status(start_activated(sock, log_path, "16M")), 2);
	(void)close(sock);
	(void)unlink(path);
	read_file(log_path, log, sizeof(log));
	assert_non_null(strstr(log, "socket = " ZD_DEFAULT_SOCKET " is not used"));
	assert_non_null(strstr(log, "has mode 0640: socket_mode = 0666 is not used"));
	assert_non_null(strstr(log, "ended, and with it durable jobs: 1"));
	(void)unlink(log_path);
	assert_int_equal(rmdir(folder), 0);
}

static unsigned count_devices(zerod_client *client)
{
	struct zerod_device_info info = ZEROD_INIT(info);
	unsigned count = 0;

	while (zerod_device_get(client, count, &info) == 0)
		count++;
	return count;
}

/* Sockets are recognized by their paths, in whatever order they are passed. */
TEST(test_activated_sockets)
{
	char folder[] = "/tmp/zerod-life-XXXXXX", paths[3][64], log_path[64], config[64], log[4096];
	zerod_client *client = NULL;
	int socks[MOST_SOCKETS];
	struct stat before, after;
	pid_t child;
	FILE *file;

	assert_non_null(mkdtemp(folder));
	for (int i = 0; i < 3; i++)
		(void)snprintf(paths[i], sizeof(paths[i]), "%s/s%d", folder, i);
	(void)snprintf(log_path, sizeof(log_path), "%s/log", folder);
	(void)snprintf(config, sizeof(config), "%s/zerod.conf", folder);
	file = fopen(config, "w");
	assert_non_null(file);
	assert_int_equal(fchmod(fileno(file), 0644), 0);
	(void)fprintf(file, "[daemon]\nsocket = %s\n[devices]\ncount = 2\n", paths[0]);
	(void)fprintf(file, "[socket a]\npath = %s\nuid = 12345\n", paths[1]);
	(void)fprintf(file, "[socket b]\npath = %s\nuid = 12346\nmode = 0600\n", paths[2]);
	(void)fclose(file);
	socks[0] = listen_at(paths[1], SOCK_SEQPACKET);
	socks[1] = listen_at(paths[0], SOCK_SEQPACKET);
	assert_int_equal(stat(paths[1], &before), 0);
	child = start_with_sockets(socks, 2, log_path, "16M", config);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(try_connect(paths[i], &client), 0);
		assert_int_equal(count_devices(client), 2);
		zerod_close(client);
	}
	/* This one the daemon has bound, and takes away. */
	assert_int_equal(try_connect(paths[2], &client), 0);
	zerod_close(client);
	assert_int_equal(kill(child, SIGTERM), 0);
	assert_int_equal(wait_status(child), 0);
	assert_int_equal(stat(paths[1], &after), 0);
	assert_true(before.st_ino == after.st_ino);
	assert_int_not_equal(access(paths[2], F_OK), 0);
	(void)close(socks[1]);
	(void)unlink(paths[2]);
	socks[1] = listen_at(paths[2], SOCK_SEQPACKET);
	(void)unlink(paths[0]);
	file = fopen(config, "w");
	assert_non_null(file);
	(void)fprintf(file, "[socket a]\npath = %s\nuid = 12345\n", paths[1]);
	(void)fclose(file);
	assert_int_equal(wait_status(start_with_sockets(socks, 2, log_path, "16M", config)), 2);
	read_file(log_path, log, sizeof(log));
	assert_non_null(strstr(log, "s2: expected the path of [daemon] socket"));
	(void)close(socks[0]);
	(void)close(socks[1]);
	for (int i = 1; i < 3; i++)
		(void)unlink(paths[i]);
	(void)unlink(config);
	(void)unlink(log_path);
	assert_int_equal(rmdir(folder), 0);
}

struct connecting {
	const char *path;
	int status;
};

static void *connect_main(void *arg)
{
	struct connecting *connecting = arg;
	zerod_client *client = NULL;

	connecting->status = try_connect(connecting->path, &client);
	zerod_close(client);
	return NULL;
}

/* Nobody is left at the socket of whom the service manager would hear again at once. */
TEST(test_turns_away)
{
	static const char *const refused[] = {"1" /* too small */, "much"};
	char folder[] = "/tmp/zerod-life-XXXXXX", path[64], log_path[64];
	struct pollfd waiting = {.events = POLLIN};

	assert_non_null(mkdtemp(folder));
	(void)snprintf(path, sizeof(path), "%s/s", folder);
	(void)snprintf(log_path, sizeof(log_path), "%s/log", folder);
	waiting.fd = listen_at(path, SOCK_SEQPACKET);
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		struct connecting connecting = {.path = path};
		pthread_t thread;

		assert_int_equal(pthread_create(&thread, NULL, connect_main, &connecting), 0);
		assert_int_equal(poll(&waiting, 1, 30000), 1);
		assert_int_equal(wait_status(start_activated(waiting.fd, log_path, refused[i])), 2);
		assert_int_equal(pthread_join(thread, NULL), 0);
		assert_int_equal(connecting.status, ZEROD_E_DISCONNECTED);
		assert_int_equal(poll(&waiting, 1, 0), 0);
	}
	(void)close(waiting.fd);
	(void)unlink(path);
	(void)unlink(log_path);
	assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
	(void)alarm(240);
	return test_run(NULL, NULL);
}
