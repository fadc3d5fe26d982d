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
#include "tests/fuzz/clients.h"
#include "tests/fuzz/fake_backend.h"
#include "tests/fuzz/script.h"
#include "tests/support/core_check.h"

#define CLIENTS     3u
#define MAX_RECORDS 256u
#define AHEAD       1u /* the client that makes sums itself, ahead as well */
#define WORKER      2u /* and one that makes them when their inputs are there */
#define NAMED_IDS   8u /* ids up to that stand for the n-th unit, or group, that replies told of */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t nbytes, size_t room, unsigned seed);

/* Ids from replies, in order; requests name them by their index. */
struct learned {
	uint64_t ids[NAMED_IDS];
	size_t count;
};

static struct {
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

static void take_reply(struct fuzz_client *client, const Zd__Reply *reply)
{
	(void)client;
	switch (reply->body_case) {
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
static bool learn_group(uint64_t id, const Zd__Row *row, void *arg)
{
	(void)row;
	(void)arg;
	learn(&scene.groups, id);
	return true;
}

static void learn_groups(void)
{
	const Zd__List query = {.table = ZD__TABLE__GROUPS};

	(void)zd_engine_list(fuzz_scene.api.bridge.engine, 0, &query, 0, learn_group, NULL);
}

static void say_hello(struct fuzz_client *client)
{
	static char *features[] = {(char *)ZD_FEATURE_WORK, (char *)ZD_FEATURE_WORK_AHEAD};
	Zd__Hello hello = ZD__HELLO__INIT;

	hello.features = features;
	hello.n_features = client == &fuzz_scene.clients[AHEAD] ? 2 : client == &fuzz_scene.clients[WORKER];
	fuzz_say_hello(client, &hello);
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

static void name_id(const struct learned *learned, uint64_t *id)
{
	if (*id >= 1 && *id <= learned->count)
		*id = learned->ids[*id - 1];
}

/* Replaces the small ids in a request by those of things that exist. */
static void name_ids(Zd__Request *request)
{
	static const struct {
		const char *name;
		const struct learned *learned;
	} kinds[] = {{"group", &scene.groups},  {"unit", &scene.units},
	             {"units", &scene.units},   {"bucket", &scene.buckets},
	             {"entry", &scene.entries}, {"allocation", &scene.allocations}};
	const ProtobufCMessageDescriptor *message = request->hello->base.descriptor; /* any body's */
	uint8_t *body = (uint8_t *)request->hello;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		const ProtobufCFieldDescriptor *field =
		        protobuf_c_message_descriptor_get_field_by_name(message, kinds[i].name);

		if (!field || field->type != PROTOBUF_C_TYPE_UINT64)
			continue;
		uint64_t *ids = (void *)(body + field->offset);
		size_t count = 1;
		if (field->label == PROTOBUF_C_LABEL_REPEATED) {
			count = *(size_t *)(void *)(body + field->quantifier_offset);
			ids = *(uint64_t **)(void *)ids;
		}
		for (size_t n = 0; n < count; n++)
			name_id(kinds[i].learned, &ids[n]);
	}
}

/* Fresh ids, but for 0 and 1, which are wrong and taken; and whatever is open is noted. */
static void number_requests(struct fuzz_client *client, Zd__ClientPacket *packet)
{
	for (size_t i = 0; i < packet->n_requests; i++) {
		Zd__Request *request = packet->requests[i];

		if (request->id > 1)
			request->id = ++client->last_id;
		if (request->id < FUZZ_MAX_OPEN)
			client->open[request->id]++;
		if (request->body_case != ZD__REQUEST__BODY__NOT_SET)
			name_ids(request);
	}
}

/* The bytes may hold requests with any id, so a reply to any id is allowed from now on. */
static void send_raw(struct fuzz_client *client, const uint8_t *bytes, size_t nbytes)
{
	memset(client->open, INT8_MAX, sizeof(client->open)); /* more than can come */
	fuzz_send_bytes(client, bytes, nbytes);
}

static void send_requests(struct fuzz_client *client, const uint8_t *bytes, size_t nbytes)
{
	static uint8_t packed[2 * ZD_MAX_PACKET_BYTES];
	Zd__ClientPacket *packet = zd__client_packet__unpack(NULL, nbytes, bytes);

	if (!packet || packet->n_requests > ZD_MAX_BATCH) {
		send_raw(client, bytes, nbytes); /* with requests before the invalid one */
	} else {
		number_requests(client, packet);
		if (zd__client_packet__get_packed_size(packet) <= sizeof(packed))
			fuzz_send_bytes(client, packed, zd__client_packet__pack(packet, packed));
	}
	if (packet)
		zd__client_packet__free_unpacked(packet, NULL);
}

/* ---- Records ------------------------------------------------------------------------------------------- */

static void play(const struct fuzz_record *record)
{
	struct fuzz_client *client = &fuzz_scene.clients[record->who % CLIENTS];

	switch (record->what) {
	case FUZZ_REQUESTS:
		if (client->sock < 0) {
			fuzz_connect(client, NULL);
			say_hello(client);
		}
		if (client->sock >= 0)
			send_requests(client, record->bytes, record->nbytes);
		break;
	case FUZZ_BYTES:
		if (client->sock < 0)
			fuzz_connect(client, NULL);
		send_raw(client, record->bytes, record->nbytes);
		break;
	case FUZZ_CLOSE:
		fuzz_drop_client(client);
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
			fuzz_send_answer(client, record->bytes[0] % FUZZ_ANSWERS, record->bytes[1]);
		break;
	default:
		client->deaf = !client->deaf;
		break;
	}
	fuzz_turn_loop();
	fuzz_read_all();
	learn_groups();
	zd_engine_check(fuzz_scene.api.bridge.engine);
}

/* ---- libFuzzer ----------------------------------------------------------------------------------------- */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
	struct fuzz_record record;

	memset(&scene, 0, sizeof(scene));
	fuzz_scene_open(FUZZ_ARENA_BYTES, CLIENTS);
	fuzz_scene.reply = take_reply;
	/* Each packet is interrupted after each request, on any machine. */
	fuzz_scene.api.conns.users.turn_ns = 0;
	for (unsigned i = 0; i < MAX_RECORDS && fuzz_script_next(&bytes, &nbytes, &record); i++)
		play(&record);
	fuzz_scene_end_sessions();
	fuzz_scene_close();
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t nbytes, size_t room, unsigned seed)
{
	/* Now and then without regard to what the bytes mean. */
	if (seed % 16 == 0)
		return LLVMFuzzerMutate(bytes, nbytes, room);
	return fuzz_script_mutate(bytes, nbytes, room, seed, fuzz_make_request);
}
