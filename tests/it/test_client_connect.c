/* SPDX-License-Identifier: Apache-2.0 */
/* test_client_connect.c - finding the daemon, the hello, options of other versions, and fork. */
#include "tests/it/client_scene.h"

#include <zerod_host.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/limits.h"

static int connect_to(const char *path, zerod_client **client)
{
	struct zerod_options options = ZEROD_INIT(options);

	options.socket_path = path;
	options.deadline_ms = 5000;
	return zerod_connect(&options, client);
}

/* ---- Finding the daemon -------------------------------------------------------------------------------- */

static void hello_and_end(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_hello(peer);
	fake_expect_end(peer);
}

TEST(test_connect_and_close)
{
	struct scene scene = {0};

	scene_connect(&scene, hello_and_end, NULL, 0);
	assert_string_equal(zerod_last_error(scene.client), "");
	scene_close(&scene);
	zerod_close(NULL);
}

TEST(test_environment)
{
	zerod_client *client = NULL;
	struct fake_daemon fake;

	assert_int_equal(fake_start(&fake, hello_and_end, NULL), 0);
	setenv("ZEROD_SOCKET", fake.socket_path, 1);
	assert_status(NULL, zerod_connect(NULL, &client), ZEROD_OK);
	zerod_close(client);
	unsetenv("ZEROD_SOCKET");
	assert_int_equal(fake_stop(&fake), 0);
}

TEST(test_no_daemon)
{
	zerod_client *client = NULL;

	assert_int_equal(connect_to("/nonexistent/zerod.sock", &client), ZEROD_E_CONNECT);
	assert_non_null(strstr(zerod_last_error(NULL), "/nonexistent/zerod.sock"));
	assert_null(client);
}

TEST(test_path_too_long)
{
	char path[300];
	zerod_client *client = NULL;

	memset(path, 'x', sizeof(path) - 1);
	path[0] = '/';
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(connect_to(path, &client), ZEROD_E_INVALID);
	assert_int_equal(connect_to("", &client), ZEROD_E_INVALID);
}

/* Something else listens there: a stream socket. */
TEST(test_not_zerod)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	char dir[] = "/tmp/zd-other-XXXXXX";
	zerod_client *client = NULL;
	int sock = socket(AF_UNIX, SOCK_STREAM, 0);

	assert_non_null(mkdtemp(dir));
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/s", dir);
	assert_int_equal(bind(sock, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(sock, 1), 0);
	assert_int_equal(connect_to(addr.sun_path, &client), ZEROD_E_CONNECT);
	close(sock);
	/* A socket file that nobody listens on any more. */
	assert_int_equal(connect_to(addr.sun_path, &client), ZEROD_E_CONNECT);
	unlink(addr.sun_path);
	rmdir(dir);
}

TEST(test_bad_options)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct {
		struct zerod_options known;
		uint64_t later;
	} newer = {.known = {.struct_size = sizeof(newer), .socket_path = "/nonexistent/s"}};
	zerod_client *client = NULL;

	assert_int_equal(zerod_connect(&options, NULL), ZEROD_E_INVALID);
	options.name = "bad\nname";
	assert_int_equal(zerod_connect(&options, &client), ZEROD_E_INVALID);
	options.struct_size = 0;
	assert_int_equal(zerod_connect(&options, &client), ZEROD_E_INVALID);
	assert_non_null(strstr(zerod_last_error(NULL), "ZEROD_INIT"));
	options.struct_size = SIZE_MAX;
	assert_int_equal(zerod_connect(&options, &client), ZEROD_E_INVALID);
	/* A newer structure is fine as long as it sets nothing that is unknown here. */
	assert_int_equal(zerod_connect(&newer.known, &client), ZEROD_E_CONNECT);
	newer.later = 1;
	assert_int_equal(zerod_connect(&newer.known, &client), ZEROD_E_INVALID);
	/* An older one ends before the name. */
	options.struct_size = offsetof(struct zerod_options, name);
	options.socket_path = "/nonexistent/s";
	assert_int_equal(zerod_connect(&options, &client), ZEROD_E_CONNECT);
}

/* A socket that a service manager listens on, of a daemon that does not start. */
TEST(test_nobody_answers)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	char dir[] = "/tmp/zd-silent-XXXXXX";
	zerod_client *client = NULL;
	int sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	assert_non_null(mkdtemp(dir));
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/s", dir);
	assert_int_equal(bind(sock, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(sock, 1), 0);
	options.socket_path = addr.sun_path;
	options.deadline_ms = 1;
	assert_int_equal(zerod_connect(&options, &client), ZEROD_E_DEADLINE);
	assert_non_null(strstr(zerod_last_error(NULL), addr.sun_path));
	assert_non_null(strstr(zerod_last_error(NULL), "no first answer within 1 ms"));
	close(sock);
	unlink(addr.sun_path);
	rmdir(dir);
}

/* ---- Hellos that go wrong ------------------------------------------------------------------------------ */

enum hello_fault {
	HELLO_REFUSED,
	HELLO_FULL,
	HELLO_OTHER_VERSION,
	HELLO_NO_PAGES,
	HELLO_ONE_PAGE,
	HELLO_THREE_PAGES,
	HELLO_UNSEALED,
	HELLO_SHORT_PAGE,
	HELLO_NOT_MEMFD,
	HELLO_NO_TIMELINES,
	HELLO_MANY_TIMELINES,
	HELLO_WRONG_BODY,
	HELLO_GARBAGE,
	HELLO_CLOSE,
	HELLO_FAULTS
};

static const int hello_expected[HELLO_FAULTS] = {
        [HELLO_REFUSED] = ZEROD_E_VERSION,         [HELLO_FULL] = ZEROD_E_LIMIT,
        [HELLO_OTHER_VERSION] = ZEROD_E_VERSION,   [HELLO_NO_PAGES] = ZEROD_E_PROTOCOL,
        [HELLO_ONE_PAGE] = ZEROD_E_PROTOCOL,       [HELLO_THREE_PAGES] = ZEROD_E_PROTOCOL,
        [HELLO_UNSEALED] = ZEROD_E_PROTOCOL,       [HELLO_SHORT_PAGE] = ZEROD_E_PROTOCOL,
        [HELLO_NOT_MEMFD] = ZEROD_E_PROTOCOL,      [HELLO_NO_TIMELINES] = ZEROD_E_PROTOCOL,
        [HELLO_MANY_TIMELINES] = ZEROD_E_PROTOCOL, [HELLO_WRONG_BODY] = ZEROD_E_PROTOCOL,
        [HELLO_GARBAGE] = ZEROD_E_PROTOCOL,        [HELLO_CLOSE] = ZEROD_E_DISCONNECTED,
};

static void faulty_welcome(struct fake_peer *peer, uint64_t id, enum hello_fault fault)
{
	Zd__DaemonPacket packet = ZD__DAEMON_PACKET__INIT;
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__Reply *replies = &reply;
	Zd__HelloReply hello = ZD__HELLO_REPLY__INIT;
	unsigned nfds = fault == HELLO_NO_PAGES      ? 0
	                : fault == HELLO_ONE_PAGE    ? 1
	                : fault == HELLO_THREE_PAGES ? 3
	                                             : 2;
	int fds[3];

	for (unsigned i = 0; i < 3; i++)
		fds[i] = fake_memfd(fault == HELLO_SHORT_PAGE ? 64 : ZD_FENCE_PAGE_BYTES,
		                    fault == HELLO_UNSEALED ? 0 : FAKE_SEALS, NULL);
	if (fault == HELLO_NOT_MEMFD) {
		close(fds[0]);
		fds[0] = open("/dev/null", O_RDWR | O_CLOEXEC);
	}
	hello.version = fault == HELLO_OTHER_VERSION ? 99 : ZD_PROTOCOL_VERSION;
	hello.timelines = fault == HELLO_NO_TIMELINES     ? 0
	                  : fault == HELLO_MANY_TIMELINES ? ZD_TIMELINES + 1
	                                                  : ZD_TIMELINES;
	reply.id = id;
	reply.body_case = ZD__REPLY__BODY_HELLO;
	reply.hello = &hello;
	packet.n_replies = 1;
	packet.replies = &replies;
	fake_send(peer, &packet, fds, nfds);
	for (unsigned i = 0; i < 3; i++)
		close(fds[i]);
}

static void faulty_hello(struct fake_peer *peer, void *arg)
{
	enum hello_fault fault = *(enum hello_fault *)arg;
	const Zd__Request *request;

	if (!fake_accept(peer))
		return;
	request = fake_expect(peer, ZD__REQUEST__BODY_HELLO);
	if (!request)
		return;
	switch (fault) {
	case HELLO_CLOSE:
		return;
	case HELLO_REFUSED:
		fake_error(peer, request->id, ZEROD_E_VERSION, "versions 7 to 9 are spoken here");
		break;
	case HELLO_FULL:
		fake_error(peer, 0, ZEROD_E_LIMIT, "1024 sessions are open");
		break;
	case HELLO_WRONG_BODY:
		fake_ok(peer, request->id);
		break;
	case HELLO_GARBAGE:
		fake_send_bytes(peer, "\xff\xff\xff\xff garbage", 12, NULL, 0);
		break;
	default:
		faulty_welcome(peer, request->id, fault);
		break;
	}
	fake_expect_end(peer);
}

static unsigned open_descriptors(void)
{
	unsigned count = 0;

	for (int fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

TEST(test_faulty_hellos)
{
	unsigned before = open_descriptors();

	for (enum hello_fault fault = 0; fault < HELLO_FAULTS; fault++) {
		zerod_client *client = NULL;
		struct fake_daemon fake;
		int rc;

		assert_int_equal(fake_start(&fake, faulty_hello, &fault), 0);
		rc = connect_to(fake.socket_path, &client);
		if (rc != hello_expected[fault])
			print_error("fault %d: %s: %s\n", (int)fault, zerod_status_name(rc),
			            zerod_last_error(NULL));
		assert_int_equal(rc, hello_expected[fault]);
		assert_null(client);
		assert_string_not_equal(zerod_last_error(NULL), "");
		if (fault == HELLO_CLOSE) {
			assert_non_null(strstr(zerod_last_error(NULL), fake.socket_path));
			assert_non_null(strstr(zerod_last_error(NULL), "before its first answer"));
		}
		assert_int_equal(fake_stop(&fake), 0);
	}
	assert_int_equal(open_descriptors(), before);
}

/* ---- Poison mode --------------------------------------------------------------------------------------- */

/* Of a daemon that knows it, or not. */
struct poison_script {
	bool knows;
	bool asked; /* the hello said so */
};

static void poison_hello(struct fake_peer *peer, void *arg)
{
	struct poison_script *script = arg;

	peer->poison = script->knows;
	fake_hello(peer);
	script->asked = peer->packet && peer->packet->n_requests == 1 &&
	                peer->packet->requests[0]->hello->poison;
	fake_expect_end(peer);
}

static int connect_poison(int option, const char *environment, struct poison_script *script)
{
	struct zerod_options options = ZEROD_INIT(options);
	zerod_client *client = NULL;
	struct fake_daemon fake;
	int rc;

	assert_int_equal(fake_start(&fake, poison_hello, script), 0);
	options.socket_path = fake.socket_path;
	options.poison = option;
	if (environment)
		assert_int_equal(setenv("ZEROD_POISON", environment, 1), 0);
	rc = zerod_connect(&options, &client);
	assert_int_equal(unsetenv("ZEROD_POISON"), 0);
	zerod_close(client);
	assert_int_equal(fake_stop(&fake), 0);
	return rc;
}

TEST(test_poison_is_asked_for)
{
	static const struct {
		int option;
		const char *environment;
		bool asks;
	} cases[] = {
	        {0, NULL, false}, {0, "", false}, {0, "0", false}, {0, "1", true},
	        {1, NULL, true},  {1, "0", true}, {1, "1", true},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		for (int knows = 0; knows < 2; knows++) {
			struct poison_script script = {.knows = knows};
			int rc = connect_poison(cases[i].option, cases[i].environment, &script);

			assert_int_equal(script.asked, cases[i].asks);
			assert_int_equal(rc, cases[i].asks && !knows ? ZEROD_E_UNSUPPORTED : ZEROD_OK);
			if (rc)
				assert_non_null(strstr(zerod_last_error(NULL),
				                       "the daemon does not fill released buffers"));
		}
	}
}

static void expect_refused(const char *name, const char *value, const char *text)
{
	struct zerod_options options = ZEROD_INIT(options);
	zerod_client *client = NULL;

	options.socket_path = "/nonexistent/s";
	assert_int_equal(setenv(name, value, 1), 0);
	assert_int_equal(zerod_connect(&options, &client), ZEROD_E_INVALID);
	assert_string_equal(zerod_last_error(NULL), text);
	assert_int_equal(unsetenv(name), 0);
}

TEST(test_environment_is_checked)
{
	struct zerod_options options = ZEROD_INIT(options);
	zerod_client *client = NULL;

	expect_refused("ZEROD_LAG", "late",
	               "ZEROD_LAG is 'late': expected a seed, or 0 for streams that do not lag");
	expect_refused("ZEROD_POISON", "yes", "ZEROD_POISON is 'yes': 0 or 1 is expected");
	options.socket_path = "/nonexistent/s";
	/* An older program's structure ends before it. */
	options.struct_size = offsetof(struct zerod_options, poison);
	assert_int_equal(zerod_connect(&options, &client), ZEROD_E_CONNECT);
}

/* ---- Fork ---------------------------------------------------------------------------------------------- */

static void serve_after_fork(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request;

	(void)arg;
	fake_serve_unit(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_SET_PERSISTENT);
	if (request)
		fake_ok(peer, request->id);
	fake_expect_end(peer);
}

/* In the child: every call is refused, and closing neither disturbs the parent nor waits for threads that are
 * not there. */
static int use_in_child(struct scene *scene, zerod_stream *stream)
{
	struct zerod_shard shard = ZEROD_INIT(shard);
	zerod_ticket ticket;

	if (zerod_shard_get(scene->unit, &shard) != ZEROD_E_FORKED)
		return 1;
	if (zerod_gather_begin(scene->unit, NULL, &ticket) != ZEROD_E_FORKED)
		return 2;
	if (zerod_stream_synchronize(stream) != ZEROD_E_FORKED ||
	    zerod_uncork(scene->client) != ZEROD_E_FORKED)
		return 3;
	if (!strstr(zerod_last_error(scene->client), "fork"))
		return 4;
	if (zerod_group_leave(scene->group, NULL) != ZEROD_E_FORKED)
		return 5;
	zerod_stream_destroy(stream);
	zerod_close(scene->client);
	return 0;
}

TEST(test_fork)
{
	struct scene scene = {0};
	zerod_stream *stream = NULL;
	int status;
	pid_t pid;

	scene_open(&scene, serve_after_fork, NULL);
	assert_status(scene.client, zerod_host_stream_create(scene.client, &stream), ZEROD_OK);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(use_in_child(&scene, stream));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_status(scene.client, zerod_unit_set_persistent(scene.unit, 1), ZEROD_OK);
	scene_close(&scene);
}

/* The library that runs, and the header of this program. */
TEST(test_version)
{
	assert_int_equal(zerod_version(),
	                 ZEROD_VERSION_MAJOR * 1000000 + ZEROD_VERSION_MINOR * 1000 + ZEROD_VERSION_PATCH);
}
