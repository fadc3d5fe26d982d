/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_sessions.c - the sessions of two users and an administrator, most of whose requests are valid.
 *
 * The fuzzer's bytes choose among what is valid for the model (model.h). Few requests are made wrong on
 * purpose: sent by a session of the other user, with a changed field, or cut. At any time:
 *
 * - The engine's invariants hold, and the jobs' bytes add up to the daemon's.
 * - A user's listings and replies name nothing of the other user.
 * - A request by one user on an object of the other fails, and changes nothing.
 * - The durable jobs can be restored from the journal.
 *
 * At the end of an input nothing but durable jobs is left, and when these were killed nothing at all. The
 * program's last line is the share of requests that succeeded, of which run.sh expects half. ZD_FUZZ_COUNTS=1
 * prints it for each kind of request, ZD_FUZZ_TEXTS=1 prints each error.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tests/fuzz/clients.h"
#include "tests/fuzz/fake_backend.h"
#include "tests/fuzz/model.h"
#include "tests/fuzz/session_checks.h"
#include "tests/support/core_check.h"

#define MAX_RECORDS 256u
#define MAX_RETIRED 64u
#define QUOTA_BYTES (3u << 20)
#define FOREIGN     10u /* of 256 requests */
#define ALONE       12u /* that the group's other rank does not send as well */
#define MAX_CHANGES 16u

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t nbytes, size_t room, unsigned seed);

/* The clients' side, beside the model. */
static struct {
	struct fuzz_call calls[FUZZ_CLIENTS][FUZZ_MAX_OPEN]; /* by the request's id */
	uint32_t retired[FUZZ_CLIENTS][MAX_RETIRED];
	size_t nretired[FUZZ_CLIENTS];
} scene;

static struct zd_api_socket sockets[FUZZ_USERS]; /* one of each user */

/* ---- Counts -------------------------------------------------------------------------------------------- */

static uint64_t nsent, nsucceeded, sent_of[128], succeeded_of[128], failed_of[128][64];

static void print_counts(void)
{
	const ProtobufCFieldDescriptor *field;

	(void)fprintf(stderr, "sessions: %" PRIu64 " requests, %" PRIu64 " succeeded (%" PRIu64 " %%)\n",
	              nsent, nsucceeded, nsent ? nsucceeded * 100 / nsent : 0);
	for (unsigned i = 0; i < 128; i++) {
		field = protobuf_c_message_descriptor_get_field(&zd__request__descriptor, i);
		if (!getenv("ZD_FUZZ_COUNTS") || sent_of[i] == 0)
			continue;
		(void)fprintf(stderr, "%20s %8" PRIu64 " sent %8" PRIu64 " succeeded", field->name,
		              sent_of[i], succeeded_of[i]);
		for (int status = 1; status < 64; status++)
			if (failed_of[i][status] > 0)
				(void)fprintf(stderr, " %s %" PRIu64, zerod_status_name(-status),
				              failed_of[i][status]);
		(void)fprintf(stderr, "\n");
	}
}

/* ---- Replies ------------------------------------------------------------------------------------------- */

static unsigned index_of(const struct fuzz_client *client)
{
	return (unsigned)(client - fuzz_scene.clients);
}

static void take_packet(struct fuzz_client *client, const Zd__DaemonPacket *packet)
{
	unsigned index = index_of(client);

	for (size_t i = 0; i < packet->n_segments; i++)
		fuzz_check_segment(packet->segments[i]->id, index / FUZZ_RANKS);
	for (size_t i = 0; i < packet->n_retired && scene.nretired[index] < MAX_RETIRED; i++)
		scene.retired[index][scene.nretired[index]++] = packet->retired[i];
}

static void take_reply(struct fuzz_client *client, const Zd__Reply *reply)
{
	unsigned index = index_of(client);
	struct fuzz_call *call;

	if (reply->body_case == ZD__REPLY__BODY_HELLO) {
		fuzz_model.actors[index].session = reply->hello->session;
		fuzz_check_own(reply->hello->session, index / FUZZ_RANKS);
	}
	if (reply->id < 2 || reply->id >= FUZZ_MAX_OPEN)
		return;
	call = &scene.calls[index][reply->id];
	call->answers = true;
	nsucceeded += reply->status == 0;
	succeeded_of[call->request.body_case] += reply->status == 0;
	failed_of[call->request.body_case][-reply->status % 64]++;
	if (reply->status != 0 && getenv("ZD_FUZZ_TEXTS"))
		(void)fprintf(stderr, "%d%s: %s %s\n", (int)call->request.body_case,
		              call->foreign ? " foreign"
		              : call->odd   ? " odd"
		                            : "",
		              zerod_status_name(reply->status), reply->error);
	/* A session that a failed command has poisoned learns that from its next request. The daemon has then
	 * read no ids. */
	if (call->foreign)
		zd_assert(reply->status == ZEROD_E_NOT_FOUND || reply->status == ZEROD_E_PERMISSION ||
		          reply->status == ZEROD_E_POISONED);
	fuzz_check_ids(reply, index / FUZZ_RANKS);
	if (call->action)
		fuzz_model_take(call, reply);
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

static void connect_actor(unsigned index, uint32_t modes)
{
	static char *features[] = {(char *)ZD_FEATURE_WORK, (char *)ZD_FEATURE_WORK_AHEAD};
	struct fuzz_client *client = &fuzz_scene.clients[index];
	Zd__Hello hello = ZD__HELLO__INIT;

	if (client->sock >= 0)
		return;
	hello.features = features;
	hello.n_features = modes % 3;
	hello.strict = modes / 3 % 8 == 1;
	hello.poison = modes / 24 % 8 == 1;
	fuzz_connect(client, index == FUZZ_ADMIN ? NULL : &sockets[index / FUZZ_RANKS]);
	fuzz_say_hello(client, &hello);
}

/* Models of sessions that have ended end. */
static void read_all(void)
{
	fuzz_turn_loop();
	fuzz_read_all();
	for (unsigned i = 0; i <= FUZZ_ADMIN; i++) {
		if (fuzz_scene.clients[i].sock < 0 && fuzz_model.actors[i].session) {
			fuzz_model_end(i);
			scene.nretired[i] = 0;
		}
	}
}

/* `sender` is another user's if the call is foreign. */
static void send_call(struct fuzz_call *call, unsigned sender, size_t cut)
{
	struct fuzz_client *client = &fuzz_scene.clients[sender];
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;
	Zd__Request *requests[] = {&call->request};
	uint8_t bytes[FUZZ_PACKET_BYTES];
	size_t nbytes;

	if (client->sock < 0 || client->last_id + 1 >= FUZZ_MAX_OPEN)
		return;
	call->request.id = ++client->last_id;
	client->open[call->request.id]++;
	scene.calls[sender][call->request.id] = *call;
	packet.n_requests = 1;
	packet.requests = requests;
	nbytes = zd__client_packet__pack(&packet, bytes);
	if (call->action)
		fuzz_model_sent(call);
	nsent++;
	sent_of[call->request.body_case]++;
	fuzz_send_bytes(client, bytes, cut > 0 && cut < nbytes ? cut : nbytes);
	read_all();
	zd_engine_check(fuzz_scene.api.bridge.engine);
}

/* A number of the request becomes another one. */
static void change_field(struct fuzz_call *call, struct fuzz_picks *picks)
{
	const uint64_t odd[] = {0, 1, fuzz_model.old_id, UINT64_MAX, 1ull << 50, fuzz_pick(picks, 255)};
	const ProtobufCMessageDescriptor *type = call->body.hello.base.descriptor;
	const ProtobufCFieldDescriptor *field;
	void *at;
	uint64_t value = odd[fuzz_pick(picks, 6)];

	if (type->n_fields == 0)
		return;
	field = &type->fields[fuzz_pick(picks, type->n_fields)];
	at = (uint8_t *)&call->body + field->offset;
	if (field->label == PROTOBUF_C_LABEL_REPEATED)
		return;
	if (field->type == PROTOBUF_C_TYPE_UINT64)
		memcpy(at, &value, sizeof(value));
	else if (field->type == PROTOBUF_C_TYPE_UINT32)
		memcpy(at, &value, sizeof(uint32_t));
	call->odd = true;
}

/* A request by a session of the other user. */
static void send_foreign(struct fuzz_call *call, unsigned user)
{
	unsigned sender = (call->actor + FUZZ_RANKS) % FUZZ_ACTORS;
	uint64_t before, after;

	connect_actor(sender, 0);
	read_all();
	if (fuzz_scene.clients[sender].sock < 0)
		return;
	(void)fuzz_hash_user(user, &before);
	send_call(call, sender, 0);
	zd_assert(scene.calls[sender][call->request.id].answers);
	if (fuzz_hash_user(user, &after))
		zd_assert(before == after);
}

static void ask(unsigned index, struct fuzz_picks picks)
{
	uint32_t oddity = fuzz_pick(&picks, 256);
	bool foreign = oddity < FOREIGN && index < FUZZ_ADMIN;
	struct fuzz_picks others = picks;
	struct fuzz_call call;
	const struct action *action;

	if (!fuzz_model_ask(&call, index, &picks, foreign, NULL))
		return;
	action = call.action;
	call.foreign = foreign && fuzz_call_names_ids(&call);
	if (call.foreign) {
		send_foreign(&call, index / FUZZ_RANKS);
		return;
	}
	if (oddity == FOREIGN || oddity == FOREIGN + 1)
		change_field(&call, &picks);
	if (oddity == FOREIGN + 2)
		call.odd = true;
	send_call(&call, index, oddity == FOREIGN + 2 ? 1 + fuzz_pick(&picks, 16) : 0);
	if (!fuzz_call_is_collective(&call) || oddity > 256 - ALONE)
		return;
	connect_actor(index ^ 1, 0);
	if (fuzz_model_ask(&call, index ^ 1, &others, false, action))
		send_call(&call, index ^ 1, 0);
}

/* ---- The devices --------------------------------------------------------------------------------------- */

static bool answer_works(unsigned index, enum fuzz_answer answer)
{
	struct fuzz_client *client = &fuzz_scene.clients[index];
	bool any = client->nworks > 0 && client->channel >= 0;

	while (client->nworks > 0 && client->channel >= 0)
		fuzz_send_answer(client, answer, ++fuzz_model.actors[index].issued);
	return any;
}

static bool unmap_retired(unsigned index)
{
	struct fuzz_call call = {.request = ZD__REQUEST__INIT, .actor = index};

	if (scene.nretired[index] == 0)
		return false;
	zd__segments_unmapped__init(&call.body.segments_unmapped);
	call.body.segments_unmapped.n_segments = scene.nretired[index];
	call.body.segments_unmapped.segments = scene.retired[index];
	call.request.body_case = ZD__REQUEST__BODY_SEGMENTS_UNMAPPED;
	call.request.segments_unmapped = &call.body.segments_unmapped;
	send_call(&call, index, 0);
	scene.nretired[index] = 0;
	return true;
}

/* All streams and devices do what they can. */
static void settle(void)
{
	bool again = true;

	while (again) {
		again = false;
		for (unsigned i = 0; i <= FUZZ_ADMIN; i++) {
			again |= answer_works(i, FUZZ_BEGUN);
			fuzz_backend_signal(fuzz_model.actors[i].session, 0, fuzz_model.actors[i].issued);
			again |= unmap_retired(i);
		}
		again |= fuzz_backend_run(UINT32_MAX) > 0;
		read_all();
	}
}

static void play(const struct fuzz_record *record)
{
	struct fuzz_picks picks = {record->bytes, record->nbytes};
	uint32_t modes;

	switch (record->what) {
	case FUZZ_REQUESTS:
		modes = fuzz_pick(&picks, 256);
		connect_actor(record->who, modes);
		ask(record->who, picks);
		if (modes % 8 > 0)
			settle();
		break;
	case FUZZ_CLOSE:
		fuzz_drop_client(&fuzz_scene.clients[record->who]);
		break;
	case FUZZ_RUN:
		(void)fuzz_backend_run(fuzz_pick(&picks, 256));
		break;
	case FUZZ_FAIL:
		if (fuzz_pick(&picks, 4) == 1)
			fuzz_backend_fail_next();
		break;
	case FUZZ_ANSWER:
		(void)answer_works(record->who, fuzz_pick(&picks, 4) == 1 ? FUZZ_FAILED : FUZZ_CANNOT);
		break;
	default: /* SIGNAL, DEAF: pages are signalled by the model, and all clients read */
		fuzz_check_restore(fuzz_check());
		break;
	}
	read_all();
	(void)fuzz_check();
}

/* ---- The end ------------------------------------------------------------------------------------------- */

static void kill_jobs(void)
{
	connect_actor(FUZZ_ADMIN, 0);
	(void)fuzz_check();
	for (unsigned i = 0; i < FUZZ_USERS * FUZZ_PLACES; i++) {
		struct fuzz_call call = {.request = ZD__REQUEST__INIT, .actor = FUZZ_ADMIN};

		zd__kill_job__init(&call.body.kill_job);
		call.body.kill_job.job = fuzz_model.jobs[i / FUZZ_PLACES][i % FUZZ_PLACES];
		call.request.body_case = ZD__REQUEST__BODY_KILL_JOB;
		call.request.kill_job = &call.body.kill_job;
		if (call.body.kill_job.job)
			send_call(&call, FUZZ_ADMIN, 0);
	}
	settle();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
	static bool counting;
	struct fuzz_record record;

	if (!counting)
		(void)atexit(print_counts);
	counting = true;
	memset(&scene, 0, sizeof(scene));
	memset(&fuzz_model, 0, sizeof(fuzz_model));
	fuzz_scene_open(QUOTA_BYTES, FUZZ_CLIENTS);
	fuzz_scene.packet = take_packet;
	fuzz_scene.reply = take_reply;
	fuzz_checks_begin();
	for (unsigned i = 0; i < FUZZ_USERS; i++)
		sockets[i] = (struct zd_api_socket){
		        .name = "user", .has_tenant = true, .tenant_uid = fuzz_uids[i]};
	for (unsigned i = 0; i < MAX_RECORDS && fuzz_script_next(&bytes, &nbytes, &record); i++)
		play(&record);
	fuzz_scene_end_sessions();
	read_all();
	fuzz_check_restore(fuzz_check());
	kill_jobs();
	fuzz_checks_end();
	fuzz_scene_close();
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t nbytes, size_t room, unsigned seed)
{
	/* Some changes at once: sessions get far by many requests only. */
	for (unsigned i = 0; i <= seed % MAX_CHANGES; i++)
		nbytes = fuzz_script_mutate(bytes, nbytes, room, seed + i, fuzz_make_picks);
	return nbytes;
}
