/* SPDX-License-Identifier: Apache-2.0 */
/* test_conn.c - connections: collecting, backlog, descriptors, and every way to end. */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "proto/frame.h"
#include "server/conn.h"
#include "server/loop.h"
#include "tests/support/test.h"

/* One connection over a socketpair: `peer` is the client's end. */
struct scene {
	struct zd_loop loop;
	struct zd_conns conns;
	struct zd_conn *conn; /* NULL when it has ended */
	int peer;
	unsigned packets;         /* that the connection has handed up */
	unsigned nflushed, nseen; /* calls of look_when_flushed(), and packets that it found */
	size_t last_bytes;
	struct zd_err why;
	uint8_t received[ZD_MAX_PACKET_BYTES];
};

static size_t on_packet(void *arg, const uint8_t *bytes, size_t nbytes, bool resumed)
{
	struct scene *scene = arg;

	(void)bytes;
	assert_false(resumed);
	scene->packets++;
	scene->last_bytes = nbytes;
	return nbytes;
}

static void on_ended(void *arg, const struct zd_err *why)
{
	struct scene *scene = arg;

	scene->conn = NULL;
	scene->why = *why;
}

static const struct zd_conn_ops ops = {.packet = on_packet, .ended = on_ended};

static void adopt(struct scene *scene, int sock)
{
	struct zd_creds creds;
	struct zd_err err;

	assert_int_equal(zd_creds_get(sock, &creds, &err), 0);
	assert_int_equal(zd_conn_new(&scene->conns, sock, &creds, &ops, scene, &scene->conn, &err), 0);
}

static int count_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	assert_non_null(folder);
	while (readdir(folder))
		count++;
	(void)closedir(folder);
	return count;
}

static int fds_before;

static int setup(void **state)
{
	struct scene *scene = calloc(1, sizeof(*scene));
	int pair[2];
	struct zd_err err;

	assert_non_null(scene);
	fds_before = count_fds();
	assert_int_equal(zd_loop_init(&scene->loop, &err), 0);
	zd_conns_init(&scene->conns, &scene->loop);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
	scene->peer = pair[0];
	adopt(scene, pair[1]);
	zd_conn_welcome(scene->conn);
	*state = scene;
	return 0;
}

static int teardown(void **state)
{
	struct scene *scene = *state;
	struct zd_err why;

	(void)zd_err_set(&why, ZEROD_E_SHUTDOWN, "the test ends");
	zd_conns_refuse(&scene->conns, &why);
	zd_conns_flush(&scene->conns);
	zd_loop_deinit(&scene->loop);
	zd_conns_deinit(&scene->conns);
	if (scene->peer >= 0)
		(void)close(scene->peer);
	free(scene);
	assert_int_equal(count_fds(), fds_before);
	return 0;
}

#define SCENE_TEST(name) FIXTURE_TEST(name, struct scene *scene, setup, teardown)

/* Handles what is ready now. */
static void pump(struct scene *scene)
{
	for (int i = 0; i < 4; i++)
		(void)uv_run(&scene->loop.uv, UV_RUN_NOWAIT);
}

static void send_reply(struct scene *scene, uint64_t id, size_t text_bytes)
{
	static char text[ZD_MAX_PACKET_BYTES];
	Zd__Reply reply = ZD__REPLY__INIT;

	memset(text, 'x', text_bytes);
	text[text_bytes] = '\0';
	reply.id = id;
	reply.status = -1;
	reply.error = text;
	zd_conn_send(scene->conn, &reply, NULL, 0);
}

static int open_null(void)
{
	FILE *null = fopen("/dev/null", "r");
	int fd;

	assert_non_null(null);
	fd = dup(fileno(null));
	(void)fclose(null);
	return fd;
}

/* A reply with two descriptors, the second one announced. */
static void send_fds(struct scene *scene, uint64_t id)
{
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__Segment segment = ZD__SEGMENT__INIT;
	struct zd_attachment attachments[2] = {{.fd = open_null()}, {.fd = open_null(), .segment = &segment}};

	segment.id = UINT32_MAX;
	segment.device = UINT32_MAX;
	segment.bytes = UINT64_MAX;
	reply.id = id;
	zd_conn_send(scene->conn, &reply, attachments, 2);
}

/* The client's next packet; NULL when there is none. */
static Zd__DaemonPacket *receive(struct scene *scene, unsigned *nfds)
{
	int fds[ZD_MAX_PACKET_FDS];
	size_t nbytes;
	unsigned count;
	Zd__DaemonPacket *packet;

	if (zd_frame_recv(scene->peer, scene->received, sizeof(scene->received), &nbytes, fds, &count,
	                  NULL) != 0)
		return NULL;
	for (unsigned i = 0; i < count; i++)
		(void)close(fds[i]);
	if (nfds)
		*nfds = count;
	packet = zd__daemon_packet__unpack(NULL, nbytes, scene->received);
	assert_non_null(packet);
	return packet;
}

static void expect_refusal(struct scene *scene, int status)
{
	Zd__DaemonPacket *packet;
	char byte;

	assert_null(scene->conn);
	assert_int_equal(scene->why.status, status);
	/* A reset would come first. */
	assert_int_equal(recv(scene->peer, &byte, 1, MSG_PEEK), 1);
	packet = receive(scene, NULL);
	assert_non_null(packet);
	assert_int_equal(packet->n_replies, 1);
	assert_int_equal(packet->replies[0]->id, 0);
	assert_int_equal(packet->replies[0]->status, status);
	assert_string_equal(packet->replies[0]->error, scene->why.text);
	zd__daemon_packet__free_unpacked(packet, NULL);
	/* The end of the stream, not a reset. */
	assert_int_equal(recv(scene->peer, &byte, 1, 0), 0);
}

/* Receives as a client that polls when all has been flushed. */
static void look_when_flushed(void *arg)
{
	struct scene *scene = arg;
	Zd__DaemonPacket *packet = receive(scene, NULL);

	scene->nflushed++;
	if (packet)
		scene->nseen++;
	zd__daemon_packet__free_unpacked(packet, NULL);
}

/* A reply that the callback adds is flushed before the callback is called again, and it is called again. */
SCENE_TEST(test_flushed_comes_last)
{
	scene->conns.flushed = look_when_flushed;
	scene->conns.flushed_arg = scene;
	zd_conns_flush(&scene->conns);
	assert_int_equal(scene->nflushed, 1);
	assert_int_equal(scene->nseen, 0);
	send_reply(scene, 1, 1);
	zd_conns_flush(&scene->conns);
	assert_int_equal(scene->nflushed, 2);
	assert_int_equal(scene->nseen, 1);
}

/* Segments that nobody has asked for, more than one packet holds. Where a test waits for what a timer sends
 * the loop must not sleep: it runs timers that are due, and sleeps then, with nothing more to come. */
SCENE_TEST(test_announced_alone)
{
	unsigned nfds, total = 0;
	Zd__DaemonPacket *packet;

	for (uint32_t i = 0; i < ZD_MAX_PACKET_FDS + 3; i++) {
		Zd__Segment segment = ZD__SEGMENT__INIT;

		segment.id = i + 1;
		zd_conn_announce(scene->conn,
		                 &(struct zd_attachment){.fd = open_null(), .segment = &segment});
	}
	zd_conns_flush(&scene->conns);
	while (total < ZD_MAX_PACKET_FDS + 3) {
		packet = receive(scene, &nfds);
		if (!packet) { /* no more descriptors before these have been read */
			(void)uv_run(&scene->loop.uv, UV_RUN_NOWAIT);
			continue;
		}
		assert_int_equal(packet->n_replies, 0);
		assert_int_equal(packet->n_segments, nfds);
		for (unsigned i = 0; i < nfds; i++)
			assert_int_equal(packet->segments[i]->id, ++total);
		zd__daemon_packet__free_unpacked(packet, NULL);
	}
}

SCENE_TEST(test_as_few_packets_as_fit)
{
	Zd__DaemonPacket *packet;
	uint64_t id = 0;
	unsigned packets = 0;

	for (uint64_t sent = 1; sent <= 150; sent++)
		send_reply(scene, sent, 1000);
	zd_conns_flush(&scene->conns);
	while ((packet = receive(scene, NULL))) {
		for (size_t i = 0; i < packet->n_replies; i++)
			assert_int_equal(packet->replies[i]->id, ++id);
		packets++;
		zd__daemon_packet__free_unpacked(packet, NULL);
	}
	assert_int_equal(id, 150);
	assert_int_equal(packets, 3); /* of about 64 KiB */
}

/* The largest reply that fits one packet. */
SCENE_TEST(test_full_packet)
{
	Zd__DaemonPacket *packet;

	send_reply(scene, 1, ZD_MAX_PACKET_BYTES - 12);
	zd_conns_flush(&scene->conns);
	packet = receive(scene, NULL);
	assert_non_null(packet);
	assert_int_equal(strlen(packet->replies[0]->error), ZD_MAX_PACKET_BYTES - 12);
	zd__daemon_packet__free_unpacked(packet, NULL);
}

/* A client that makes no call for long loses nothing. */
SCENE_TEST(test_a_long_backlog_is_kept)
{
	Zd__DaemonPacket *packet;
	uint64_t sent = 0, received = 0;

	for (; sent < ZD_MAX_OUTSTANDING + ZD_RELEASE_ROOM; sent++) {
		send_reply(scene, sent + 1, 1000);
		zd_conns_flush(&scene->conns);
	}
	assert_non_null(scene->conn);
	while (received < sent) {
		packet = receive(scene, NULL);
		if (!packet) {
			pump(scene);
			continue;
		}
		for (size_t i = 0; i < packet->n_replies; i++)
			assert_int_equal(packet->replies[i]->id, ++received);
		zd__daemon_packet__free_unpacked(packet, NULL);
	}
	assert_non_null(scene->conn);
}

/* Five packets of two descriptors: the fifth waits until the client has read the others. */
SCENE_TEST(test_unread_descriptors)
{
	Zd__DaemonPacket *packet;
	unsigned packets = 0, nfds;

	for (uint64_t id = 1; id <= 5; id++) {
		send_fds(scene, id);
		zd_conns_flush(&scene->conns);
	}
	/* A packet without descriptors does not overtake it. */
	send_reply(scene, 6, 10);
	zd_conns_flush(&scene->conns);
	pump(scene);
	while ((packet = receive(scene, &nfds))) {
		assert_int_equal(nfds, 2);
		zd__daemon_packet__free_unpacked(packet, NULL);
		packets++;
	}
	assert_int_equal(packets, 4);
	while (!(packet = receive(scene, &nfds)))
		(void)uv_run(&scene->loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(nfds, 2);
	assert_int_equal(packet->replies[0]->id, 5);
	zd__daemon_packet__free_unpacked(packet, NULL);
	packet = receive(scene, &nfds);
	assert_non_null(packet);
	assert_int_equal(packet->replies[0]->id, 6);
	zd__daemon_packet__free_unpacked(packet, NULL);
	/* And it goes on reading. */
	assert_int_equal(zd_frame_send(scene->peer, "abc", 3, NULL, 0, NULL), 0);
	pump(scene);
	assert_int_equal(scene->packets, 1);
}

/* In one event: eight to a packet. */
SCENE_TEST(test_many_descriptors_at_once)
{
	unsigned total = 0, nfds;

	for (uint64_t id = 1; id <= 10; id++)
		send_fds(scene, id);
	zd_conns_flush(&scene->conns);
	while (total < 20) {
		Zd__DaemonPacket *packet = receive(scene, &nfds);

		if (!packet) {
			(void)uv_run(&scene->loop.uv, UV_RUN_NOWAIT);
			continue;
		}
		total += nfds;
		assert_in_range(nfds, 1, ZD_MAX_PACKET_FDS);
		assert_int_equal(nfds, 2 * packet->n_replies);
		zd__daemon_packet__free_unpacked(packet, NULL);
	}
	assert_int_equal(total, 20);
}

/* They are closed with the packets that wait (teardown counts). */
SCENE_TEST(test_end_with_descriptors_waiting)
{
	for (uint64_t id = 1; id <= 10; id++) {
		send_fds(scene, id);
		zd_conns_flush(&scene->conns);
	}
	(void)close(scene->peer);
	scene->peer = -1;
	while (scene->conn)
		(void)uv_run(&scene->loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(scene->why.status, ZEROD_E_DISCONNECTED);
}

SCENE_TEST(test_client_sends_descriptors)
{
	int fds[2] = {0, 0};

	assert_int_equal(zd_frame_send(scene->peer, "abc", 3, fds, 2, NULL), 0);
	pump(scene);
	assert_int_equal(scene->packets, 0);
	expect_refusal(scene, ZEROD_E_PROTOCOL);
}

SCENE_TEST(test_oversize_packet)
{
	char *bytes = calloc(1, ZD_MAX_PACKET_BYTES + 1);

	assert_int_equal(send(scene->peer, bytes, ZD_MAX_PACKET_BYTES + 1, 0), ZD_MAX_PACKET_BYTES + 1);
	/* Bytes behind the packet do not turn the last reply into a connection reset. */
	assert_int_equal(send(scene->peer, bytes, 100, 0), 100);
	free(bytes);
	pump(scene);
	assert_int_equal(scene->packets, 0);
	expect_refusal(scene, ZEROD_E_LIMIT);
}

/* A client that ends with replies unread resets the socket; its last packets count all the same. */
SCENE_TEST(test_peer_closes_with_packets_unread)
{
	send_reply(scene, 1, 10);
	zd_conns_flush(&scene->conns);
	assert_int_equal(send(scene->peer, "hello", 5, 0), 5);
	assert_int_equal(send(scene->peer, "good-bye", 8, 0), 8);
	(void)close(scene->peer);
	scene->peer = -1;
	pump(scene);
	assert_null(scene->conn);
	assert_int_equal(scene->packets, 2);
	assert_int_equal(scene->last_bytes, 8);
	assert_int_equal(scene->why.status, ZEROD_E_DISCONNECTED);
	assert_string_equal(scene->why.text, "the client closed the connection");
}

SCENE_TEST(test_end_is_not_at_once)
{
	Zd__DaemonPacket *packet;
	struct zd_err why;

	(void)zd_err_set(&why, ZEROD_E_ABORTED, "killed");
	send_reply(scene, 1, 10);
	zd_conn_end(scene->conn, &why);
	assert_non_null(scene->conn);
	assert_false(zd_conn_is_open(scene->conn));
	zd_conns_flush(&scene->conns);
	assert_null(scene->conn);
	assert_int_equal(scene->why.status, ZEROD_E_ABORTED);
	packet = receive(scene, NULL);
	assert_int_equal(packet->n_replies, 1);
	zd__daemon_packet__free_unpacked(packet, NULL);
}

/* The process that connected ends, while a child of it keeps the socket open. */
/* For another user's newcomer, since the one who says nothing has more connections than that user. */
SCENE_TEST(test_silent_ones_make_way)
{
	int pair[2];

	assert_false(zd_conns_make_way(&scene->conns, getuid() + 1)); /* that one has said hello */
	(void)close(scene->peer);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(zd_creds_uid(pair[1]), getuid());
	scene->peer = pair[0];
	adopt(scene, pair[1]);
	assert_false(zd_conns_make_way(&scene->conns, getuid()));
	assert_true(zd_conns_make_way(&scene->conns, getuid() + 1));
	expect_refusal(scene, ZEROD_E_LIMIT);
	assert_non_null(strstr(scene->why.text, "has not sent a hello"));
	assert_false(zd_conns_make_way(&scene->conns, getuid() + 1));
}

SCENE_TEST(test_process_ends)
{
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct sockaddr_un address = {
	        .sun_family = AF_UNIX}; /* bound by the kernel, in the abstract namespace */
	socklen_t bytes = sizeof(address);
	int keep[2], ready[2], sock, raw;
	pid_t child;
	char byte = 0;

	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address.sun_family)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &bytes), 0);
	assert_int_equal(pipe(keep), 0);
	assert_int_equal(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		if (connect(sock, (struct sockaddr *)&address, bytes) != 0)
			_exit(1);
		(void)close(keep[1]);
		if (fork() == 0) {
			(void)!write(ready[1], &byte, 1);
			(void)!read(keep[0], &byte, 1); /* until the test closes its end */
			_exit(0);
		}
		for (;;)
			(void)pause();
	}
	sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	assert_true(sock >= 0);
	adopt(scene, sock);
	assert_int_equal(zd_conn_creds(scene->conn)->pid, child);
	assert_int_equal(zd_conn_creds(scene->conn)->uid, getuid());
	pump(scene);
	assert_non_null(scene->conn);
	assert_int_equal(read(ready[0], &byte, 1), 1); /* the socket has a second holder */
	assert_int_equal(kill(child, SIGKILL), 0);
	while (scene->conn)
		(void)uv_run(&scene->loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(scene->why.status, ZEROD_E_DISCONNECTED);
	assert_non_null(strstr(scene->why.text, "ended"));
	assert_int_equal(waitpid(child, &raw, 0), child);
	(void)close(keep[0]);
	(void)close(keep[1]);
	(void)close(ready[0]);
	(void)close(ready[1]);
	(void)close(listener);
}

SCENE_TEST(test_groups)
{
	const struct zd_creds *creds = zd_conn_creds(scene->conn);
	int sock = zd_conn_socket(scene->conn);
	gid_t groups[64];
	int count = getgroups(64, groups);

	assert_true(zd_creds_in_group(sock, creds, getgid()));
	for (int i = 0; i < count; i++)
		assert_true(zd_creds_in_group(sock, creds, groups[i]));
	assert_false(zd_creds_in_group(sock, creds, (gid_t)-2));
}

/* libuv opens descriptors of its own with the first loop, once. */
static int warm_up(void **state)
{
	struct zd_loop loop;

	(void)state;
	if (zd_loop_init(&loop, NULL) != 0)
		return -1;
	zd_loop_deinit(&loop);
	return 0;
}

int main(void)
{
	(void)alarm(120);
	return test_run(warm_up, NULL);
}
