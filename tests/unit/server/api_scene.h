/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api_scene.h - the protocol's side of the daemon in this process: a real engine and host backend behind it,
 * and clients over socketpairs in front. Included by one test program each.
 */
#ifndef ZD_TESTS_API_SCENE_H
#define ZD_TESTS_API_SCENE_H

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "server/api.h"
#include "server/loop.h"
#include "tests/support/raw_client.h"
#include "tests/support/test.h"

struct scene {
	struct zd_loop loop;
	struct zd_api api;
	int witness; /* a session that nothing else may disturb */
	uint64_t last_id;
	uint8_t received[ZD_MAX_PACKET_BYTES];
};

/* A packet as the client sees it. */
struct delivery {
	Zd__DaemonPacket *packet; /* NULL: the connection was closed */
	unsigned nfds;
	size_t nbytes;
};

static inline struct zd_api_limits default_limits(void)
{
	return (struct zd_api_limits){.max_sessions = ZD_MAX_SESSIONS, .id_ttl_s = 3600};
}

static inline int scene_connect(struct scene *scene)
{
	int pair[2];
	struct zd_err err;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(zd_api_accept(&scene->api, pair[1], &err), 0);
	return pair[0];
}

static inline void scene_send_bytes(int sock, const void *bytes, size_t nbytes)
{
	assert_int_equal(zd_frame_send(sock, bytes, nbytes, NULL, 0, NULL), 0);
}

static inline void scene_send(int sock, Zd__Request **requests, size_t count)
{
	static uint8_t bytes[ZD_MAX_PACKET_BYTES];
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;

	packet.requests = requests;
	packet.n_requests = count;
	assert_true(zd__client_packet__get_packed_size(&packet) <= sizeof(bytes));
	scene_send_bytes(sock, bytes, zd__client_packet__pack(&packet, bytes));
}

/* Waits for the next packet; the loop turns meanwhile. */
static inline struct delivery scene_receive(struct scene *scene, int sock)
{
	struct delivery delivery = {.packet = NULL};
	int fds[ZD_MAX_PACKET_FDS];
	int rc;

	while ((rc = zd_frame_recv(sock, scene->received, sizeof(scene->received), &delivery.nbytes, fds,
	                           &delivery.nfds, NULL)) == ZD_FRAME_AGAIN)
		(void)zd_loop_run_once(&scene->loop, true);
	if (rc != 0) {
		assert_int_equal(rc, ZEROD_E_DISCONNECTED);
		return (struct delivery){.packet = NULL};
	}
	for (unsigned i = 0; i < delivery.nfds; i++)
		(void)close(fds[i]);
	delivery.packet = zd__daemon_packet__unpack(NULL, delivery.nbytes, scene->received);
	assert_non_null(delivery.packet);
	return delivery;
}

static inline void delivery_free(struct delivery *delivery)
{
	zd__daemon_packet__free_unpacked(delivery->packet, NULL);
}

/* Sends one request and waits for a packet with its one reply. */
static inline struct delivery scene_call(struct scene *scene, int sock, Zd__Request *request)
{
	struct delivery delivery;

	request->id = ++scene->last_id;
	scene_send(sock, &request, 1);
	delivery = scene_receive(scene, sock);
	assert_non_null(delivery.packet);
	assert_int_equal(delivery.packet->n_replies, 1);
	assert_int_equal(delivery.packet->replies[0]->id, request->id);
	return delivery;
}

/* The same, for the status alone. */
static inline int scene_status(struct scene *scene, int sock, Zd__Request *request)
{
	struct delivery delivery = scene_call(scene, sock, request);
	int status = delivery.packet->replies[0]->status;

	assert_int_equal(delivery.packet->replies[0]->error[0] != '\0', status != 0);
	delivery_free(&delivery);
	return status;
}

static inline int scene_hello(struct scene *scene, int sock, const char *name)
{
	return scene_status(scene, sock,
	                    RAW(HELLO, hello, Hello, .version_min = ZD_PROTOCOL_VERSION,
	                        .version_max = ZD_PROTOCOL_VERSION, .name = (char *)name));
}

static inline int scene_session(struct scene *scene)
{
	int sock = scene_connect(scene);

	assert_int_equal(scene_hello(scene, sock, "test"), 0);
	return sock;
}

/* Joins a group as its only rank; `durable`: with shadows, too. */
static inline uint64_t scene_join_as(struct scene *scene, int sock, const char *job, bool durable)
{
	struct delivery delivery;
	uint64_t group;

	delivery = scene_call(scene, sock,
	                      RAW(GROUP_JOIN, group_join, GroupJoin, .job = (char *)job,
	                          .group = (char *)"world", .durable = durable, .shadow = durable,
	                          .world_size = 1));
	assert_int_equal(delivery.packet->replies[0]->status, 0);
	group = delivery.packet->replies[0]->group_join->group;
	delivery_free(&delivery);
	return group;
}

static inline uint64_t scene_join(struct scene *scene, int sock, const char *job)
{
	return scene_join_as(scene, sock, job, false);
}

static inline void scene_check_witness(struct scene *scene)
{
	assert_int_equal(scene_status(scene, scene->witness, RAW(DAEMON_STATUS, daemon_status, DaemonStatus)),
	                 0);
}

/* The reply to no request, then the end of the connection. */
static inline void scene_expect_refusal(struct scene *scene, int sock, int status, const char *text)
{
	struct delivery delivery = scene_receive(scene, sock);

	assert_non_null(delivery.packet);
	assert_int_equal(delivery.packet->n_replies, 1);
	assert_int_equal(delivery.packet->replies[0]->id, 0);
	assert_int_equal(delivery.packet->replies[0]->status, status);
	assert_non_null(strstr(delivery.packet->replies[0]->error, text));
	delivery_free(&delivery);
	delivery = scene_receive(scene, sock);
	assert_null(delivery.packet);
	scene_check_witness(scene);
	(void)close(sock);
}

static inline int scene_setup(void **state)
{
	struct scene *scene = calloc(1, sizeof(*scene));
	struct zd_bridge_config config = {
	        .backend = &zd_backend_host, .ndevices = 2, .arena_bytes = 64 << 20, .events = 16384};
	struct zd_api_limits limits = default_limits();
	struct zd_err err;

	assert_non_null(scene);
	assert_int_equal(zd_loop_init(&scene->loop, &err), 0);
	assert_int_equal(zd_api_open(&scene->api, &scene->loop, &config, &limits, &err), 0);
	scene->api.conns.users.turn_ns = scene->api.conns.users.slice_ns =
	        UINT64_MAX; /* no packet is interrupted, however slow the machine is */
	scene->witness = scene_session(scene);
	*state = scene;
	return 0;
}

static inline int scene_teardown(void **state)
{
	struct scene *scene = *state;

	zd_api_close(&scene->api, "the test ends");
	zd_loop_deinit(&scene->loop);
	zd_api_deinit(&scene->api);
	(void)close(scene->witness);
	free(scene);
	return 0;
}

#define SCENE_TEST(name) FIXTURE_TEST(name, struct scene *scene, scene_setup, scene_teardown)

#endif
