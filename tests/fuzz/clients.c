/* SPDX-License-Identifier: Apache-2.0 */
/* clients.c - clients of the real connections, dispatcher and engine, over fake devices. */
#include "tests/fuzz/clients.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "tests/fuzz/fake_backend.h"
#include "tests/support/core_check.h"

struct fuzz_scene fuzz_scene;

static bool has_feature(const Zd__HelloReply *hello, const char *feature)
{
	for (size_t i = 0; i < hello->n_features; i++)
		if (strcmp(hello->features[i], feature) == 0)
			return true;
	return false;
}

static void take_reply(struct fuzz_client *client, const Zd__Reply *reply)
{
	if (reply->id > 0 && reply->id < FUZZ_MAX_OPEN) {
		zd_assert(client->open[reply->id] > 0);
		client->open[reply->id]--;
	}
	zd_assert((reply->status == 0) == (reply->error[0] == '\0'));
	zd_assert(reply->status <= 0 && strcmp(zerod_status_name(reply->status), "UNKNOWN") != 0);
	if (reply->body_case == ZD__REPLY__BODY_HELLO) {
		client->session = reply->hello->session;
		client->ahead = has_feature(reply->hello, ZD_FEATURE_WORK_AHEAD);
	}
	if (fuzz_scene.reply)
		fuzz_scene.reply(client, reply);
}

void fuzz_turn_loop(void)
{
	/* Once for what is readable, once for what that has woken; then for what waits for a turn. */
	for (int i = 0; i < 2 || fuzz_scene.api.conns.users.nwith_tasks > 0; i++)
		(void)zd_loop_run_once(&fuzz_scene.loop, false);
}

void fuzz_drop_client(struct fuzz_client *client)
{
	if (client->sock >= 0)
		(void)close(client->sock);
	if (client->channel >= 0)
		(void)close(client->channel);
	memset(client, 0, sizeof(*client));
	client->sock = client->channel = -1;
}

/* Of the descriptors with the reply to the hello the third is the channel. */
static void take_fds(struct fuzz_client *client, const Zd__DaemonPacket *packet, const int *fds,
                     unsigned nfds)
{
	bool hello = packet->n_replies > 0 && packet->replies[0]->body_case == ZD__REPLY__BODY_HELLO;

	for (unsigned i = 0; i < nfds; i++) {
		if (hello && nfds - packet->n_segments == 4 && i == 2)
			client->channel = fds[i];
		else
			(void)close(fds[i]);
	}
}

static void read_works(struct fuzz_client *client)
{
	static uint8_t bytes[ZD_MAX_PACKET_BYTES];
	int fds[ZD_MAX_PACKET_FDS];
	unsigned nfds;
	size_t nbytes;

	while (client->channel >= 0 && !client->deaf &&
	       zd_frame_recv(client->channel, bytes, sizeof(bytes), &nbytes, fds, &nfds, NULL) == 0) {
		Zd__WorkPacket *packet = zd__work_packet__unpack(NULL, nbytes, bytes);

		zd_assert(packet && nfds == 0);
		for (size_t i = 0; i < packet->n_works; i++) {
			zd_assert(packet->works[i]->sum && client->nworks < FUZZ_MAX_WORKS);
			zd_assert(client->ahead || packet->works[i]->sum->n_fence_values == 0);
			zd_assert(packet->works[i]->sum->n_fence_values ==
			          packet->works[i]->sum->n_fence_timelines);
			zd_assert(packet->works[i]->sum->n_input_offsets ==
			          packet->works[i]->sum->n_input_segments);
			client->works[client->nworks++] = packet->works[i]->id;
		}
		zd__work_packet__free_unpacked(packet, NULL);
	}
}

static void read_replies(struct fuzz_client *client)
{
	static uint8_t bytes[ZD_MAX_PACKET_BYTES];
	int fds[ZD_MAX_PACKET_FDS], rc = 0;
	unsigned nfds;
	size_t nbytes;

	while (client->sock >= 0 && !client->deaf && rc == 0) {
		Zd__DaemonPacket *packet;

		rc = zd_frame_recv(client->sock, bytes, sizeof(bytes), &nbytes, fds, &nfds, NULL);
		if (rc < 0) {
			zd_assert(rc == ZEROD_E_DISCONNECTED);
			fuzz_drop_client(client);
		}
		if (rc != 0)
			return;
		packet = zd__daemon_packet__unpack(NULL, nbytes, bytes);
		zd_assert(packet);
		take_fds(client, packet, fds, nfds);
		if (fuzz_scene.packet)
			fuzz_scene.packet(client, packet);
		for (size_t i = 0; i < packet->n_replies; i++)
			take_reply(client, packet->replies[i]);
		zd__daemon_packet__free_unpacked(packet, NULL);
	}
}

void fuzz_read_all(void)
{
	for (unsigned i = 0; i < FUZZ_CLIENTS; i++) {
		read_replies(&fuzz_scene.clients[i]);
		read_works(&fuzz_scene.clients[i]);
	}
}

void fuzz_send_bytes(struct fuzz_client *client, const void *bytes, size_t nbytes)
{
	/* A full socket is the client's own fault: the packet is lost, and with it what it asked. */
	(void)!send(client->sock, bytes, nbytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void fuzz_connect(struct fuzz_client *client, struct zd_api_socket *at)
{
	int pair[2];
	struct zd_err err;
	int rc = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair);

	zd_assert(rc == 0);
	fuzz_drop_client(client);
	client->sock = pair[0];
	if (at)
		at->api = &fuzz_scene.api;
	rc = at ? zd_api_accept_at(at, pair[1], &err) : zd_api_accept(&fuzz_scene.api, pair[1], &err);
	zd_assert(rc == 0);
}

void fuzz_say_hello(struct fuzz_client *client, const Zd__Hello *modes)
{
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;
	Zd__Request request = ZD__REQUEST__INIT, *requests[] = {&request};
	Zd__Hello hello = *modes;
	uint8_t bytes[FUZZ_PACKET_BYTES];

	client->last_id = 1;
	client->open[1]++;
	hello.version_min = hello.version_max = 1;
	request.id = 1;
	request.body_case = ZD__REQUEST__BODY_HELLO;
	request.hello = &hello;
	packet.n_requests = 1;
	packet.requests = requests;
	fuzz_send_bytes(client, bytes, zd__client_packet__pack(&packet, bytes));
	fuzz_turn_loop();
	read_replies(client);
}

/* ---- Answers ------------------------------------------------------------------------------------------- */

void fuzz_send_answer(struct fuzz_client *client, enum fuzz_answer answer, uint64_t value)
{
	Zd__WorkAnswers answers = ZD__WORK_ANSWERS__INIT;
	Zd__WorkDone done = ZD__WORK_DONE__INIT, *all = &done;
	Zd__Fence fence = ZD__FENCE__INIT;
	uint8_t bytes[64];

	done.id = client->nworks > 0 ? client->works[0] : value;
	fence.value = value;
	done.fence = &fence;
	if (answer == FUZZ_CANNOT || answer == FUZZ_FAILED)
		done.status = ZEROD_E_DEVICE;
	done.launched = answer == FUZZ_FAILED;
	if (answer == FUZZ_WRONG)
		fence.timeline = UINT32_MAX;
	answers.n_done = 1;
	answers.done = &all;
	zd_assert(zd__work_answers__get_packed_size(&answers) <= sizeof(bytes));
	(void)!send(client->channel, bytes, zd__work_answers__pack(&answers, bytes),
	            MSG_DONTWAIT | MSG_NOSIGNAL);
	if (client->nworks > 0)
		memmove(client->works, client->works + 1, --client->nworks * sizeof(client->works[0]));
}

/* ---- The daemon ---------------------------------------------------------------------------------------- */

void fuzz_scene_open(uint64_t uid_quota_bytes, unsigned nclients)
{
	const struct zd_bridge_config config = {.backend = &fuzz_backend,
	                                        .ndevices = FUZZ_DEVICES,
	                                        .arena_bytes = FUZZ_ARENA_BYTES,
	                                        .gather_budget_bytes = FUZZ_ARENA_BYTES / 8};
	const struct zd_api_limits limits = {
	        .max_sessions = nclients + 1, .uid_quota_bytes = uid_quota_bytes, .id_ttl_s = UINT32_MAX};
	struct zd_err err;
	int rc;

	zd_log_set_level(ZD_LOG_ERROR);
	memset(&fuzz_scene, 0, sizeof(fuzz_scene));
	for (unsigned i = 0; i < FUZZ_CLIENTS; i++)
		fuzz_scene.clients[i].sock = fuzz_scene.clients[i].channel = -1;
	rc = zd_loop_init(&fuzz_scene.loop, &err);
	zd_assert(rc == 0);
	rc = zd_api_open(&fuzz_scene.api, &fuzz_scene.loop, &config, &limits, &err);
	zd_assert(rc == 0);
	zd_api_set_id_key(&fuzz_scene.api, &fuzz_id_key);
}

static void drop_clients(void)
{
	for (unsigned i = 0; i < FUZZ_CLIENTS; i++)
		fuzz_drop_client(&fuzz_scene.clients[i]);
}

void fuzz_scene_close(void)
{
	drop_clients();
	zd_api_close(&fuzz_scene.api, "the test ends");
	zd_loop_deinit(&fuzz_scene.loop);
	zd_api_deinit(&fuzz_scene.api);
}

void fuzz_scene_end_sessions(void)
{
	struct zd_engine_totals totals;

	drop_clients();
	do
		fuzz_turn_loop();
	while (zd_api_session_count(&fuzz_scene.api) > 0 || fuzz_backend_run(UINT32_MAX) > 0);
	fuzz_turn_loop();
	zd_engine_check(fuzz_scene.api.bridge.engine);
	zd_engine_totals(fuzz_scene.api.bridge.engine, &totals);
	zd_assert(totals.sessions == 0);
	zd_assert(totals.usage.gathered_bytes == 0 && totals.usage.bucket_bytes == 0 &&
	          totals.usage.staging_bytes == 0 && totals.usage.target_bytes == 0);
	zd_assert(totals.jobs > 0 || (totals.usage.shard_bytes == 0 && totals.usage.allocation_bytes == 0));
}
