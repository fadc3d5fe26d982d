/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_packet.c - three clients that say anything, to the real connections, dispatcher and engine, over fake
 * devices.
 *
 * An input is a list of records (script.h). After each of them the engine's invariants are checked, and every
 * reply must be a packet that answers a request of that client which is open. At the end, with all clients
 * gone and every command done, nothing may be left.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "server/api.h"
#include "server/loop.h"
#include "tests/fuzz/fake_backend.h"
#include "tests/fuzz/script.h"

#define DEVICES     2u
#define ARENA_BYTES (8u << 20)
#define MAX_OPEN    4096u /* requests of one connection whose replies are counted */
#define MAX_RECORDS 256u
#define MAX_WORKS   64u
#define AHEAD       1u /* the client that makes sums itself, ahead as well */
#define WORKER      2u /* and one that makes them when their inputs are there */
#define NAMED_IDS   8u /* ids up to that stand for the n-th unit, or group, that replies told of */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t nbytes, size_t room, unsigned seed);

struct client {
	int sock; /* -1: closed */
	bool deaf;
	uint64_t session; /* 0: has not said hello */
	uint64_t last_id;
	uint16_t open[MAX_OPEN]; /* requests without a reply, by id: the same one may be used twice */
	int channel;             /* -1: none */
	bool ahead;              /* sums may have fences */
	uint64_t works[MAX_WORKS];
	size_t nworks; /* of them: not answered yet */
};

/* Ids from replies, in order; requests name them by their index. */
struct learned {
	uint64_t ids[NAMED_IDS];
	size_t count;
};

static struct {
	struct zd_loop loop;
	struct zd_api api;
	struct client clients[FUZZ_CLIENTS];
	struct learned groups, units, buckets, entries, allocations;
} scene;

/* ---- What replies say ---------------------------------------------------------------------------------- */

static void learn(struct learned *learned, uint64_t id)
{
	for (size_t i = 0; i < learned->count; i++)
		if (learned->ids[i] == id)
			return;
	if (learned->count < NAMED_IDS)
		learned->ids[learned->count++] = id;
}

static bool has_feature(const Zd__HelloReply *hello, const char *feature)
{
	for (size_t i = 0; i < hello->n_features; i++)
		if (strcmp(hello->features[i], feature) == 0)
			return true;
	return false;
}

static void take_reply(struct client *client, const Zd__Reply *reply)
{
	if (reply->id > 0 && reply->id < MAX_OPEN) {
		zd_assert(client->open[reply->id] > 0);
		client->open[reply->id]--;
	}
	zd_assert((reply->status == 0) == (reply->error[0] == '\0'));
	zd_assert(reply->status <= 0 && strcmp(zerod_status_name(reply->status), "UNKNOWN") != 0);
	switch (reply->body_case) {
	case ZD__REPLY__BODY_HELLO:
		client->session = reply->hello->session;
		client->ahead = has_feature(reply->hello, ZD_FEATURE_WORK_AHEAD);
		break;
	case ZD__REPLY__BODY_GROUP_JOIN:
		learn(&scene.groups, reply->group_join->group);
		break;
	case ZD__REPLY__BODY_UNIT_REGISTER:
		learn(&scene.units, reply->unit_register->unit);
		break;
	case ZD__REPLY__BODY_BUCKET_CREATE:
		learn(&scene.buckets, reply->bucket_create->bucket);
		break;
	case ZD__REPLY__BODY_BUCKET_RESERVE:
		learn(&scene.entries, reply->bucket_reserve->entry);
		break;
	case ZD__REPLY__BODY_ALLOC:
		learn(&scene.allocations, reply->alloc->allocation);
		break;
	default:
		break;
	}
}

/* Groups are waited for by those who join, so that their ids are learned from the listing as well. */
static bool learn_group(const struct zd_row *row, void *arg)
{
	(void)arg;
	learn(&scene.groups, row->id);
	return true;
}

static void learn_groups(void)
{
	const struct zd_list_query query = {.table = ZD_TABLE_GROUPS};

	(void)zd_engine_list(scene.api.bridge.engine, &query, learn_group, NULL);
}

/* ---- Clients ------------------------------------------------------------------------------------------- */

static void turn_loop(void)
{
	/* Once for what is readable, once for what that has woken; then for what waits for a turn. */
	for (int i = 0; i < 2 || scene.api.conns.users.nwith_tasks > 0; i++)
		(void)zd_loop_run_once(&scene.loop, false);
}

static void drop_client(struct client *client)
{
	if (client->sock >= 0)
		(void)close(client->sock);
	if (client->channel >= 0)
		(void)close(client->channel);
	memset(client, 0, sizeof(*client));
	client->sock = client->channel = -1;
}

/* Of the descriptors with the reply to the hello the third is the channel. */
static void take_fds(struct client *client, const Zd__DaemonPacket *packet, const int *fds, unsigned nfds)
{
	bool hello = packet->n_replies > 0 && packet->replies[0]->body_case == ZD__REPLY__BODY_HELLO;

	for (unsigned i = 0; i < nfds; i++) {
		if (hello && nfds - packet->n_segments == 4 && i == 2)
			client->channel = fds[i];
		else
			(void)close(fds[i]);
	}
}

static void read_works(struct client *client)
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
			zd_assert(packet->works[i]->sum && client->nworks < MAX_WORKS);
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

static void read_replies(struct client *client)
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
			drop_client(client);
		}
		if (rc != 0)
			return;
		packet = zd__daemon_packet__unpack(NULL, nbytes, bytes);
		zd_assert(packet);
		take_fds(client, packet, fds, nfds);
		for (size_t i = 0; i < packet->n_replies; i++)
			take_reply(client, packet->replies[i]);
		zd__daemon_packet__free_unpacked(packet, NULL);
	}
}

static void read_all(void)
{
	for (unsigned i = 0; i < FUZZ_CLIENTS; i++) {
		read_replies(&scene.clients[i]);
		read_works(&scene.clients[i]);
	}
}

static void send_bytes(struct client *client, const void *bytes, size_t nbytes)
{
	/* A full socket is the client's own fault: the packet is lost, and with it what it asked. */
	(void)!send(client->sock, bytes, nbytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void connect_client(struct client *client)
{
	int pair[2];
	struct zd_err err;
	int rc = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair);

	zd_assert(rc == 0);
	drop_client(client);
	client->sock = pair[0];
	rc = zd_api_accept(&scene.api, pair[1], &err);
	zd_assert(rc == 0);
}

static void say_hello(struct client *client)
{
	static const uint8_t hello[] = {0x0a, 0x08, 0x08, 0x01, 0x52, 0x04, 0x08, 0x01, 0x10, 0x01};
	static const uint8_t worker_hello[] = {0x0a, 0x0e, 0x08, 0x01, 0x52, 0x0a, 0x08, 0x01,
	                                       0x10, 0x01, 0x22, 0x04, 'w',  'o',  'r',  'k'};
	static const uint8_t ahead_hello[] = {0x0a, 0x1a, 0x08, 0x01, 0x52, 0x16, 0x08, 0x01, 0x10, 0x01,
	                                      0x22, 0x04, 'w',  'o',  'r',  'k',  0x22, 0x0a, 'w',  'o',
	                                      'r',  'k',  '_',  'a',  'h',  'e',  'a',  'd'};

	client->last_id = 1;
	client->open[1]++;
	if (client == &scene.clients[WORKER])
		send_bytes(client, worker_hello, sizeof(worker_hello));
	else if (client == &scene.clients[AHEAD])
		send_bytes(client, ahead_hello, sizeof(ahead_hello));
	else
		send_bytes(client, hello, sizeof(hello));
	turn_loop();
	read_replies(client);
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

static void name_id(const struct learned *learned, uint64_t *id)
{
	if (*id >= 1 && *id <= learned->count)
		*id = learned->ids[*id - 1];
}

static void name_units(uint64_t *units, size_t count)
{
	for (size_t i = 0; i < count; i++)
		name_id(&scene.units, &units[i]);
}

/* Replaces the small ids in a request by those of things that exist. */
static void name_ids(Zd__Request *request)
{
	switch (request->body_case) {
	case ZD__REQUEST__BODY_GROUP_LEAVE:
		name_id(&scene.groups, &request->group_leave->group);
		break;
	case ZD__REQUEST__BODY_GROUP_BARRIER:
		name_id(&scene.groups, &request->group_barrier->group);
		break;
	case ZD__REQUEST__BODY_GROUP_AGREE:
		name_id(&scene.groups, &request->group_agree->group);
		break;
	case ZD__REQUEST__BODY_UNIT_REGISTER:
		name_id(&scene.groups, &request->unit_register->group);
		break;
	case ZD__REQUEST__BODY_UNIT_UNREGISTER:
		name_id(&scene.units, &request->unit_unregister->unit);
		break;
	case ZD__REQUEST__BODY_UPDATE_BEGIN:
		name_units(request->update_begin->units, request->update_begin->n_units);
		break;
	case ZD__REQUEST__BODY_PUBLISH:
		name_units(request->publish->units, request->publish->n_units);
		break;
	case ZD__REQUEST__BODY_COMMIT:
		name_id(&scene.groups, &request->commit->group);
		break;
	case ZD__REQUEST__BODY_SET_PERSISTENT:
		name_id(&scene.units, &request->set_persistent->unit);
		break;
	case ZD__REQUEST__BODY_SET_SLOT:
		name_id(&scene.units, &request->set_slot->unit);
		break;
	case ZD__REQUEST__BODY_SET_FROZEN:
		name_id(&scene.units, &request->set_frozen->unit);
		break;
	case ZD__REQUEST__BODY_UNIT_LOAD:
		name_id(&scene.units, &request->unit_load->unit);
		if (request->unit_load->allocation)
			name_id(&scene.allocations, &request->unit_load->allocation);
		break;
	case ZD__REQUEST__BODY_GATHER:
		name_id(&scene.units, &request->gather->unit);
		break;
	case ZD__REQUEST__BODY_RELEASE:
		name_id(&scene.units, &request->release->unit);
		break;
	case ZD__REQUEST__BODY_FORWARD_BEGIN:
		name_id(&scene.groups, &request->forward_begin->group);
		break;
	case ZD__REQUEST__BODY_CONTEXT_BEGIN:
		name_units(request->context_begin->units, request->context_begin->n_units);
		break;
	case ZD__REQUEST__BODY_BACKWARD_BEGIN:
		name_id(&scene.groups, &request->backward_begin->group);
		break;
	case ZD__REQUEST__BODY_BUCKET_CREATE:
		name_id(&scene.groups, &request->bucket_create->group);
		break;
	case ZD__REQUEST__BODY_BUCKET_DESTROY:
		name_id(&scene.buckets, &request->bucket_destroy->bucket);
		break;
	case ZD__REQUEST__BODY_BUCKET_RESERVE:
		name_id(&scene.buckets, &request->bucket_reserve->bucket);
		name_id(&scene.units, &request->bucket_reserve->unit);
		break;
	case ZD__REQUEST__BODY_BUCKET_SUBMIT:
		name_id(&scene.buckets, &request->bucket_submit->bucket);
		name_id(&scene.entries, &request->bucket_submit->entry);
		break;
	case ZD__REQUEST__BODY_REDUCE_SKIP:
		name_id(&scene.units, &request->reduce_skip->unit);
		break;
	case ZD__REQUEST__BODY_REDUCE_WAIT:
		name_id(&scene.units, &request->reduce_wait->unit);
		break;
	case ZD__REQUEST__BODY_TARGET_RETURN:
		name_units(request->target_return->units, request->target_return->n_units);
		break;
	case ZD__REQUEST__BODY_BACKWARD_END:
		name_id(&scene.groups, &request->backward_end->group);
		break;
	case ZD__REQUEST__BODY_BACKWARD_ABANDON:
		name_id(&scene.groups, &request->backward_abandon->group);
		break;
	case ZD__REQUEST__BODY_STEP_BEGIN:
		name_id(&scene.groups, &request->step_begin->group);
		break;
	case ZD__REQUEST__BODY_STEP_GET:
		name_id(&scene.groups, &request->step_get->group);
		name_units(request->step_get->units, request->step_get->n_units);
		break;
	case ZD__REQUEST__BODY_STEP_END:
		name_id(&scene.groups, &request->step_end->group);
		break;
	case ZD__REQUEST__BODY_FREE:
		name_id(&scene.allocations, &request->free->allocation);
		break;
	case ZD__REQUEST__BODY_ABORT_GROUP:
		name_id(&scene.groups, &request->abort_group->group);
		break;
	default:
		break;
	}
}

/* Fresh ids, but for 0 and 1, which are wrong and taken; and whatever is open is noted. */
static void number_requests(struct client *client, Zd__ClientPacket *packet)
{
	for (size_t i = 0; i < packet->n_requests; i++) {
		Zd__Request *request = packet->requests[i];

		if (request->id > 1)
			request->id = ++client->last_id;
		if (request->id < MAX_OPEN)
			client->open[request->id]++;
		name_ids(request);
	}
}

static void send_requests(struct client *client, const uint8_t *bytes, size_t nbytes)
{
	static uint8_t packed[2 * ZD_MAX_PACKET_BYTES];
	Zd__ClientPacket *packet = zd__client_packet__unpack(NULL, nbytes, bytes);

	if (!packet || packet->n_requests > ZD_MAX_BATCH) {
		send_bytes(client, bytes, nbytes);
	} else {
		number_requests(client, packet);
		if (zd__client_packet__get_packed_size(packet) <= sizeof(packed))
			send_bytes(client, packed, zd__client_packet__pack(packet, packed));
	}
	if (packet)
		zd__client_packet__free_unpacked(packet, NULL);
}

/* The bytes may hold requests with any id, so a reply to any id is allowed from now on. */
static void send_raw(struct client *client, const uint8_t *bytes, size_t nbytes)
{
	memset(client->open, INT8_MAX, sizeof(client->open)); /* more than can come */
	send_bytes(client, bytes, nbytes);
}

/* ---- Answers ------------------------------------------------------------------------------------------- */

enum answer { BEGUN, CANNOT, FAILED, WRONG, ANSWERS };

/* To the oldest work; a wrong one is to none, or says what cannot be. */
static void send_answer(struct client *client, enum answer answer, uint64_t value)
{
	Zd__WorkAnswers answers = ZD__WORK_ANSWERS__INIT;
	Zd__WorkDone done = ZD__WORK_DONE__INIT, *all = &done;
	Zd__Fence fence = ZD__FENCE__INIT;
	uint8_t bytes[64];

	done.id = client->nworks > 0 ? client->works[0] : value;
	fence.value = value;
	done.fence = &fence;
	if (answer == CANNOT || answer == FAILED)
		done.status = ZEROD_E_DEVICE;
	done.launched = answer == FAILED;
	if (answer == WRONG)
		fence.timeline = UINT32_MAX;
	answers.n_done = 1;
	answers.done = &all;
	zd_assert(zd__work_answers__get_packed_size(&answers) <= sizeof(bytes));
	(void)!send(client->channel, bytes, zd__work_answers__pack(&answers, bytes),
	            MSG_DONTWAIT | MSG_NOSIGNAL);
	if (client->nworks > 0)
		memmove(client->works, client->works + 1, --client->nworks * sizeof(client->works[0]));
}

/* ---- Records ------------------------------------------------------------------------------------------- */

static void play(const struct fuzz_record *record)
{
	struct client *client = &scene.clients[record->who];

	switch (record->what) {
	case FUZZ_REQUESTS:
		if (client->sock < 0) {
			connect_client(client);
			say_hello(client);
		}
		if (client->sock >= 0)
			send_requests(client, record->bytes, record->nbytes);
		break;
	case FUZZ_BYTES:
		if (client->sock < 0)
			connect_client(client);
		send_raw(client, record->bytes, record->nbytes);
		break;
	case FUZZ_CLOSE:
		drop_client(client);
		break;
	case FUZZ_RUN:
		(void)fuzz_backend_run(record->nbytes > 0 ? record->bytes[0] : UINT8_MAX);
		break;
	case FUZZ_FAIL:
		fuzz_backend_fail_next();
		break;
	case FUZZ_SIGNAL:
		if (record->nbytes >= 2)
			fuzz_backend_signal(client->session, record->bytes[0],
			                    record->bytes[1] == UINT8_MAX ? ZD_FENCE_ABORTED
			                                                  : record->bytes[1]);
		break;
	case FUZZ_ANSWER:
		if (client->channel >= 0 && record->nbytes >= 2)
			send_answer(client, record->bytes[0] % ANSWERS, record->bytes[1]);
		break;
	default:
		client->deaf = !client->deaf;
		break;
	}
	turn_loop();
	read_all();
	learn_groups();
	zd_engine_check(scene.api.bridge.engine);
}

/* All clients go, all commands end: then durable jobs alone may be there. */
static void expect_nothing_left(void)
{
	struct zd_engine_totals totals;

	for (unsigned i = 0; i < FUZZ_CLIENTS; i++)
		drop_client(&scene.clients[i]);
	do
		turn_loop();
	while (zd_api_session_count(&scene.api) > 0 || fuzz_backend_run(UINT32_MAX) > 0);
	turn_loop();
	zd_engine_check(scene.api.bridge.engine);
	zd_engine_totals(scene.api.bridge.engine, &totals);
	zd_assert(totals.sessions == 0);
	zd_assert(totals.usage.gathered_bytes == 0 && totals.usage.bucket_bytes == 0 &&
	          totals.usage.staging_bytes == 0 && totals.usage.target_bytes == 0 &&
	          totals.usage.allocation_bytes == 0);
	zd_assert(totals.jobs > 0 || totals.usage.shard_bytes == 0);
}

/* ---- libFuzzer ----------------------------------------------------------------------------------------- */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
	const struct zd_bridge_config config = {.backend = &fuzz_backend,
	                                        .ndevices = DEVICES,
	                                        .arena_bytes = ARENA_BYTES,
	                                        .gather_budget_bytes = ARENA_BYTES / 8};
	const struct zd_api_limits limits = {
	        .max_sessions = FUZZ_CLIENTS + 1, .uid_quota_bytes = ARENA_BYTES, .id_ttl_s = UINT32_MAX};
	struct fuzz_record record;
	struct zd_err err;
	int rc;

	zd_log_set_level(ZD_LOG_ERROR);
	memset(&scene, 0, sizeof(scene));
	for (unsigned i = 0; i < FUZZ_CLIENTS; i++)
		scene.clients[i].sock = scene.clients[i].channel = -1;
	rc = zd_loop_init(&scene.loop, &err);
	zd_assert(rc == 0);
	rc = zd_api_open(&scene.api, &scene.loop, &config, &limits, &err);
	zd_assert(rc == 0);
	zd_api_set_id_key(&scene.api, &fuzz_id_key);
	scene.api.conns.users.turn_ns = 0; /* each packet is interrupted after each request, on any machine */
	for (unsigned i = 0; i < MAX_RECORDS && fuzz_script_next(&bytes, &nbytes, &record); i++)
		play(&record);
	expect_nothing_left();
	zd_api_close(&scene.api, "the test ends");
	zd_loop_deinit(&scene.loop);
	zd_api_deinit(&scene.api);
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t nbytes, size_t room, unsigned seed)
{
	/* Now and then without regard to what the bytes mean. */
	if (seed % 16 == 0)
		return LLVMFuzzerMutate(bytes, nbytes, room);
	return fuzz_script_mutate(bytes, nbytes, room, seed, fuzz_make_request);
}
