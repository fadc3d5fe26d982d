/* SPDX-License-Identifier: Apache-2.0 */
/* test_listener.c - accepting, and what happens when descriptors run out. */
#include <errno.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "server/listener.h"
#include "server/loop.h"
#include "tests/support/test.h"

#define CLIENTS 20

struct scene {
	struct zd_loop loop;
	struct zd_listener listener;
	int sock;
	struct sockaddr_un address;
	socklen_t address_bytes;
	int accepted[CLIENTS];
	int naccepted;
	int refuse; /* what the callback answers */
};

static int log_lines;

static void count_line(const struct zd_log_line *line)
{
	(void)line;
	log_lines++;
}

static int on_accepted(void *arg, int sock, struct zd_err *err)
{
	struct scene *scene = arg;

	if (scene->refuse) {
		(void)close(sock);
		return zd_err_set(err, scene->refuse, "full");
	}
	scene->accepted[scene->naccepted++] = sock;
	return 0;
}

static int setup(void **state)
{
	struct scene *scene = calloc(1, sizeof(*scene));
	struct zd_err err;

	scene->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	scene->address.sun_family = AF_UNIX; /* named by the kernel, in the abstract namespace */
	scene->address_bytes = sizeof(scene->address);
	assert_int_equal(
	        bind(scene->sock, (struct sockaddr *)&scene->address, sizeof(scene->address.sun_family)), 0);
	assert_int_equal(listen(scene->sock, CLIENTS), 0);
	assert_int_equal(getsockname(scene->sock, (struct sockaddr *)&scene->address, &scene->address_bytes),
	                 0);
	assert_int_equal(zd_loop_init(&scene->loop, &err), 0);
	assert_int_equal(
	        zd_listener_open(&scene->listener, &scene->loop, scene->sock, on_accepted, scene, &err), 0);
	log_lines = 0;
	zd_log_set_sink(count_line);
	*state = scene;
	return 0;
}

static int teardown(void **state)
{
	struct scene *scene = *state;

	zd_listener_close(&scene->listener);
	zd_loop_deinit(&scene->loop);
	for (int i = 0; i < scene->naccepted; i++)
		(void)close(scene->accepted[i]);
	(void)close(scene->sock);
	zd_log_set_sink(NULL);
	free(scene);
	return 0;
}

#define SCENE_TEST(name) FIXTURE_TEST(name, struct scene *scene, setup, teardown)

static int dial(const struct scene *scene)
{
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	assert_true(sock >= 0);
	assert_int_equal(connect(sock, (const struct sockaddr *)&scene->address, scene->address_bytes), 0);
	return sock;
}

static bool closed_by_peer(int sock)
{
	char byte;

	return recv(sock, &byte, 1, MSG_DONTWAIT) == 0;
}

/* An iteration accepts at least one connection. */
static void pump(struct scene *scene)
{
	for (int i = 0; i < 4 + CLIENTS; i++)
		(void)uv_run(&scene->loop.uv, UV_RUN_NOWAIT);
}

/* No descriptor is left but the spare one: each connection is closed, and the next served when there are some
 * again. */
SCENE_TEST(test_descriptors_run_out)
{
	struct rlimit before, low;
	int socks[CLIENTS], late, probe;

	for (int i = 0; i < CLIENTS - 1; i++)
		socks[i] = dial(scene);
	late = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	/* The lowest free number is the limit. */
	probe = dup(late);
	(void)close(probe);
	low = (struct rlimit){.rlim_cur = (rlim_t)probe, .rlim_max = before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	for (int i = 0; i < CLIENTS; i++)
		pump(scene);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(scene->naccepted, 0);
	for (int i = 0; i < CLIENTS - 1; i++) {
		assert_true(closed_by_peer(socks[i]));
		(void)close(socks[i]);
	}
	assert_int_equal(log_lines, 1);
	assert_true(scene->listener.spare >= 0);
	assert_int_equal(connect(late, (const struct sockaddr *)&scene->address, scene->address_bytes), 0);
	pump(scene);
	assert_int_equal(scene->naccepted, 1);
	(void)close(late);
}

/* The spare one is lost too: the loop does not spin, and accepts when it can again. */
SCENE_TEST(test_spare_is_lost)
{
	struct rlimit before, none;
	int sock = dial(scene);

	assert_int_equal(close(scene->listener.spare), 0);
	scene->listener.spare = -1;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	pump(scene);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(scene->naccepted, 0);
	assert_false(uv_is_active((uv_handle_t *)&scene->listener.readiness));
	while (scene->naccepted == 0)
		(void)uv_run(&scene->loop.uv, UV_RUN_ONCE);
	assert_true(scene->listener.spare >= 0);
	(void)close(sock);
}

SCENE_TEST(test_refused_above)
{
	int socks[CLIENTS];

	scene->refuse = ZEROD_E_LIMIT;
	for (int i = 0; i < CLIENTS; i++)
		socks[i] = dial(scene);
	pump(scene);
	for (int i = 0; i < CLIENTS; i++) {
		assert_true(closed_by_peer(socks[i]));
		(void)close(socks[i]);
	}
	assert_int_equal(log_lines, 1);
}

int main(void)
{
	(void)alarm(60);
	return test_run(NULL, NULL);
}
