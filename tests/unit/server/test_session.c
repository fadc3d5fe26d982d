/* SPDX-License-Identifier: Apache-2.0 */
/* test_session.c - sessions over their life: segments, batches, listings, limits, kills, draining. */
#include "api_scene.h"

#include "base/mem.h"
#include "server/session.h"
#include "tests/support/core_check.h"

#define UNITS 1500

/* One rank of a group of one. */
struct rank {
	int sock;
	uint64_t group, unit;
};

static uint64_t register_unit(struct scene *scene, int sock, uint64_t group, const char *name, unsigned *nfds)
{
	const Zd__Reply *reply;
	struct delivery delivery;
	uint64_t id;

	delivery = scene_call(scene, sock,
	                      RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = group,
	                          .name = (char *)name, .dtype = ZEROD_FLOAT32, .numel = 64));
	reply = delivery.packet->replies[0];
	assert_int_equal(reply->status, 0);
	assert_non_null(reply->unit_register->shard);
	assert_int_equal(delivery.packet->n_segments, delivery.nfds);
	if (delivery.nfds > 0)
		assert_int_equal(delivery.packet->segments[0]->id, reply->unit_register->shard->segment);
	id = reply->unit_register->unit;
	if (nfds)
		*nfds = delivery.nfds;
	delivery_free(&delivery);
	return id;
}

static void publish_unit(struct scene *scene, int sock, uint64_t unit)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__UpdateBegin update = ZD__UPDATE_BEGIN__INIT;
	Zd__Publish publish = ZD__PUBLISH__INIT;

	update.units = publish.units = &unit;
	update.n_units = publish.n_units = 1;
	request.body_case = ZD__REQUEST__BODY_UPDATE_BEGIN;
	request.update_begin = &update;
	assert_int_equal(scene_status(scene, sock, &request), 0);
	request.body_case = ZD__REQUEST__BODY_PUBLISH;
	request.publish = &publish;
	assert_int_equal(scene_status(scene, sock, &request), 0);
}

static struct rank make_rank(struct scene *scene)
{
	struct rank rank = {.sock = scene_session(scene)};

	rank.group = scene_join(scene, rank.sock, "job");
	rank.unit = register_unit(scene, rank.sock, rank.group, "layer", NULL);
	publish_unit(scene, rank.sock, rank.unit);
	return rank;
}

/* A segment's descriptor comes once, with the first reply that names it. */
SCENE_TEST(test_segments_come_once)
{
	struct rank rank = {.sock = scene_connect(scene)};
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Hello hello = ZD__HELLO__INIT;
	Zd__Gather gather = ZD__GATHER__INIT;
	struct delivery delivery;
	const Zd__Reply *reply;
	unsigned nfds;

	hello.version_min = hello.version_max = ZD_PROTOCOL_VERSION;
	hello.name = (char *)"test";
	hello.strict = true; /* else a rank that is alone gathers no copy */
	request.body_case = ZD__REQUEST__BODY_HELLO;
	request.hello = &hello;
	assert_int_equal(scene_status(scene, rank.sock, &request), 0);
	rank.group = scene_join(scene, rank.sock, "job");
	rank.unit = register_unit(scene, rank.sock, rank.group, "a", &nfds);
	assert_int_equal(nfds, 1);
	(void)register_unit(scene, rank.sock, rank.group, "b", &nfds);
	assert_int_equal(nfds, 0);
	publish_unit(scene, rank.sock, rank.unit);
	gather.unit = rank.unit;
	gather.tag = (char *)"t";
	request.body_case = ZD__REQUEST__BODY_GATHER;
	request.gather = &gather;
	for (unsigned round = 0; round < 2; round++) {
		delivery = scene_call(scene, rank.sock, &request);
		reply = delivery.packet->replies[0];
		assert_int_equal(reply->status, 0);
		assert_non_null(reply->gather->buffer);
		assert_int_equal(delivery.nfds, round == 0 ? 1 : 0);
		if (round == 0) {
			assert_int_equal(delivery.packet->segments[0]->id, reply->gather->buffer->segment);
			assert_int_equal(delivery.packet->segments[0]->device, 0);
			assert_true(delivery.packet->segments[0]->bytes >=
			            reply->gather->buffer->offset + reply->gather->buffer->bytes);
		}
		delivery_free(&delivery);
	}
	(void)close(rank.sock);
}

SCENE_TEST(test_list_is_paged)
{
	struct rank rank = {.sock = scene_session(scene)};
	uint64_t last_id = 0;
	unsigned rows = 0, pages = 0;
	char name[ZD_MAX_UNIT_NAME_BYTES + 1];

	rank.group = scene_join(scene, rank.sock, "job");
	memset(name, 'u', ZD_MAX_UNIT_NAME_BYTES);
	name[ZD_MAX_UNIT_NAME_BYTES] = '\0';
	for (unsigned i = 0; i < UNITS; i++) {
		(void)snprintf(name, 8, "%07u", i);
		name[7] = 'u';
		(void)register_unit(scene, rank.sock, rank.group, name, NULL);
	}
	Zd__Request *request = RAW(LIST, list, List);

	request->list->table = ZD__TABLE__UNITS;
	do {
		struct delivery delivery = scene_call(scene, rank.sock, request);
		const Zd__ListReply *reply = delivery.packet->replies[0]->list;

		assert_non_null(reply);
		assert_true(delivery.nbytes <= ZD_MAX_PACKET_BYTES);
		for (size_t i = 0; i < reply->n_rows; i++) {
			assert_non_null(reply->rows[i]->unit);
			assert_true(reply->rows[i]->unit->id > last_id);
			last_id = reply->rows[i]->unit->id;
		}
		rows += (unsigned)reply->n_rows;
		pages++;
		request->list->cursor = reply->next;
		delivery_free(&delivery);
	} while (request->list->cursor);
	assert_int_equal(rows, UNITS);
	assert_true(pages > 1);
	/* Of one job. */
	request->list->job = (char *)"another";
	{
		struct delivery delivery = scene_call(scene, rank.sock, request);

		assert_int_equal(delivery.packet->replies[0]->list->n_rows, 0);
		delivery_free(&delivery);
	}
	(void)close(rank.sock);
}

SCENE_TEST(test_every_table)
{
	struct rank rank = make_rank(scene);
	/* devices, jobs, sessions (the witness too), groups, units, the unit's segment; the rest is empty. */
	static const size_t rows[] = {2, 1, 2, 1, 1, 0, 0, 0, 0, 1, 0};
	Zd__Request *request = RAW(LIST, list, List);

	for (int table = ZD__TABLE__DEVICES; table <= ZD__TABLE__BLOCKS; table++) {
		struct delivery delivery;
		const Zd__ListReply *reply;

		request->list->table = (Zd__Table)table;
		delivery = scene_call(scene, rank.sock, request);
		reply = delivery.packet->replies[0]->list;
		assert_non_null(reply);
		assert_int_equal(reply->n_rows, rows[table - ZD__TABLE__DEVICES]);
		assert_int_equal(reply->next, 0);
		for (size_t i = 0; i < reply->n_rows; i++)
			assert_int_equal(reply->rows[i]->row_case, table);
		delivery_free(&delivery);
	}
	request->list->table = ZD__TABLE__TABLE_NONE;
	assert_int_equal(scene_status(scene, rank.sock, request), ZEROD_E_INVALID);
	request->list->table = (Zd__Table)(ZD__TABLE__BLOCKS + 1);
	assert_int_equal(scene_status(scene, rank.sock, request), ZEROD_E_INVALID);
	request->list->table = (Zd__Table)-1;
	assert_int_equal(scene_status(scene, rank.sock, request), ZEROD_E_INVALID);
	(void)close(rank.sock);
}

SCENE_TEST(test_status)
{
	const Zd__DaemonStatusReply *reply;
	struct delivery delivery;

	delivery = scene_call(scene, scene->witness, RAW(DAEMON_STATUS, daemon_status, DaemonStatus));
	reply = delivery.packet->replies[0]->daemon_status;
	assert_int_equal(reply->pid, getpid());
	assert_string_equal(reply->backend, "host");
	assert_string_equal(reply->state, "SERVING");
	assert_int_equal(reply->devices, 2);
	assert_int_equal(reply->sessions, 1);
	assert_true(reply->resident_bytes > 0);
	assert_non_null(reply->usage);
	delivery_free(&delivery);
}

static uint64_t session_id(struct scene *scene, int sock, const char *name)
{
	struct delivery delivery;
	const Zd__ListReply *reply;
	uint64_t id = 0;

	delivery = scene_call(scene, sock, RAW(LIST, list, List, .table = ZD__TABLE__SESSIONS));
	reply = delivery.packet->replies[0]->list;
	for (size_t i = 0; i < reply->n_rows; i++)
		if (strcmp(reply->rows[i]->session->name, name) == 0)
			id = reply->rows[i]->session->id;
	delivery_free(&delivery);
	return id;
}

SCENE_TEST(test_killed_session)
{
	int victim = scene_connect(scene);

	assert_int_equal(scene_hello(scene, victim, "victim"), 0);
	Zd__Request *request = RAW(KILL_SESSION, kill_session, KillSession,
	                           .session = session_id(scene, scene->witness, "victim"));

	assert_int_equal(scene_status(scene, scene->witness, request), 0);
	scene_expect_refusal(scene, victim, ZEROD_E_ABORTED, "ended by session");
	assert_int_equal(scene_status(scene, scene->witness, request), ZEROD_E_NOT_FOUND);
}

SCENE_TEST(test_deadline)
{
	int sock = scene_session(scene);
	Zd__Request *request = RAW(GROUP_JOIN, group_join, GroupJoin, .job = (char *)"job",
	                           .group = (char *)"world", .world_size = 2);

	request->deadline_ms = 20;
	assert_int_equal(scene_status(scene, sock, request), ZEROD_E_DEADLINE);
	/* An earlier deadline behind a later one. */
	request->deadline_ms = 60000;
	request->group_join->group = (char *)"second";
	{
		Zd__Request *batch[] = {request};

		request->id = 1000000;
		scene_send(sock, batch, 1);
	}
	request->deadline_ms = 20;
	request->group_join->group = (char *)"third";
	assert_int_equal(scene_status(scene, sock, request), ZEROD_E_DEADLINE);
	(void)close(sock);
}

SCENE_TEST(test_max_sessions)
{
	struct zd_api_limits limits = default_limits();
	int first = scene_session(scene), second = scene_connect(scene);

	limits.max_sessions = 2;
	zd_api_set_limits(&scene->api, &limits);
	assert_int_equal(scene_hello(scene, second, "second"), ZEROD_E_LIMIT);
	assert_null(scene_receive(scene, second).packet);
	(void)close(second);
	limits.max_sessions = 3;
	zd_api_set_limits(&scene->api, &limits);
	second = scene_connect(scene);
	assert_int_equal(scene_hello(scene, second, "second"), 0);
	(void)close(first);
	(void)close(second);
}

/* So that one can come in and end others. */
TEST(test_room_for_administrators)
{
	static const uint32_t rooms[][2] = {{1, 1}, {2, 1},   {7, 6},     {8, 7},
	                                    {9, 7}, {64, 56}, {200, 192}, {1024, 1016}};

	for (size_t i = 0; i < ZD_ARRAY_LEN(rooms); i++) {
		struct zd_api_limits limits = {.max_sessions = rooms[i][0]};

		assert_int_equal(zd_api_session_room(&limits, true), rooms[i][0]);
		assert_int_equal(zd_api_session_room(&limits, false), rooms[i][1]);
	}
}

static int send_drain(struct scene *scene, int sock, bool undrain)
{
	return scene_status(scene, sock, RAW(DRAIN, drain, Drain, .undrain = undrain));
}

static int try_join(struct scene *scene, int sock)
{
	return scene_status(scene, sock,
	                    RAW(GROUP_JOIN, group_join, GroupJoin, .job = (char *)"late",
	                        .group = (char *)"world", .world_size = 1));
}

static int gather(struct scene *scene, const struct rank *rank)
{
	return scene_status(scene, rank->sock,
	                    RAW(GATHER, gather, Gather, .unit = rank->unit, .tag = (char *)"t"));
}

/* The status names who asked for the drain, "" if nobody has, and says whether the daemon ends. */
static void expect_drained(struct scene *scene, const char *by, bool ends)
{
	struct delivery delivery;
	const Zd__DaemonStatusReply *reply;

	delivery = scene_call(scene, scene->witness, RAW(DAEMON_STATUS, daemon_status, DaemonStatus));
	reply = delivery.packet->replies[0]->daemon_status;
	assert_string_equal(reply->state, *by ? "DRAINING" : "SERVING");
	assert_int_equal(strncmp(reply->drained_by, by, *by ? strlen(by) : 1), 0);
	assert_int_equal(reply->ends_in_ns > 0, ends);
	delivery_free(&delivery);
}

/* Sessions open during a drain, to look and to end it. */
SCENE_TEST(test_drained_by_a_session)
{
	struct zd_api_session *witness = zd_api_session_find(&scene->api,
	                                                     session_id(scene, scene->witness, "test"));
	struct rank rank = make_rank(scene);
	int late;

	witness->admin = false;
	assert_int_equal(send_drain(scene, scene->witness, false), ZEROD_E_PERMISSION);
	expect_drained(scene, "", false);
	witness->admin = true;
	assert_int_equal(send_drain(scene, scene->witness, false), 0);
	expect_drained(scene, "session ", false);
	late = scene_session(scene);
	assert_int_equal(try_join(scene, late), ZEROD_E_SHUTDOWN);
	assert_int_equal(gather(scene, &rank), 0);
	assert_int_equal(send_drain(scene, late, true), 0);
	expect_drained(scene, "", false);
	assert_int_equal(try_join(scene, late), 0);
	(void)close(late);
	(void)close(rank.sock);
}

static void wait_at_barrier(int sock, uint64_t group)
{
	Zd__Request *request = RAW(GROUP_BARRIER, group_barrier, GroupBarrier, .group = group);
	Zd__Request *batch[] = {request};

	request->id = 2000000;
	scene_send(sock, batch, 1);
}

static void count_call(void *arg)
{
	(*(int *)arg)++;
}

SCENE_TEST(test_drain)
{
	struct rank rank = make_rank(scene);
	int late = scene_connect(scene), drained = 0;

	zd_api_drain_and_end(&scene->api, "SIGTERM", 3600, count_call, &drained);
	assert_int_equal(scene_hello(scene, late, "late"), ZEROD_E_SHUTDOWN);
	assert_null(scene_receive(scene, late).packet);
	(void)close(late);
	expect_drained(scene, "SIGTERM", true);
	assert_int_equal(send_drain(scene, scene->witness, true), ZEROD_E_STATE);
	assert_int_equal(send_drain(scene, scene->witness, false), 0);
	expect_drained(scene, "SIGTERM", true);
	assert_int_equal(gather(scene, &rank), 0);
	assert_int_equal(try_join(scene, rank.sock), ZEROD_E_SHUTDOWN);
	scene_check_witness(scene);
	(void)close(rank.sock);
	while (zd_api_session_count(&scene->api) > 1)
		(void)zd_loop_run_once(&scene->loop, true);
	assert_int_equal(drained, 0);
	(void)close(scene->witness);
	while (zd_api_session_count(&scene->api) > 0)
		(void)zd_loop_run_once(&scene->loop, true);
	assert_int_equal(drained, 1);
	scene->witness = scene_connect(scene);
}

/* A rank that waits for another one is told of the daemon's end, not of the other one's. */
SCENE_TEST(test_end_is_told_to_all)
{
	int sock = scene_session(scene);
	Zd__Request *request = RAW(GROUP_JOIN, group_join, GroupJoin, .job = (char *)"job",
	                           .group = (char *)"world", .world_size = 2);
	Zd__Request *batch[] = {request};
	int socks[2] = {scene->witness, sock};

	for (uint32_t rank = 0; rank < 2; rank++) {
		request->id = 1000000;
		request->group_join->rank = rank;
		scene_send(socks[rank], batch, 1);
	}
	for (unsigned i = 0; i < 2; i++) {
		struct delivery joined = scene_receive(scene, socks[i]);

		assert_int_equal(joined.packet->replies[0]->status, 0);
		if (i == 0)
			wait_at_barrier(scene->witness, joined.packet->replies[0]->group_join->group);
		delivery_free(&joined);
	}
	scene_check_witness(scene);
	zd_api_close(&scene->api, "the daemon ended: drained by SIGTERM");
	for (unsigned i = 0; i < 2; i++) {
		struct delivery told = scene_receive(scene, socks[i]);

		assert_non_null(told.packet);
		assert_int_equal(told.packet->replies[0]->id, 0);
		assert_int_equal(told.packet->replies[0]->status, ZEROD_E_SHUTDOWN);
		assert_string_equal(told.packet->replies[0]->error, "the daemon ended: drained by SIGTERM");
		delivery_free(&told);
	}
	(void)close(sock);
}

SCENE_TEST(test_drain_without_sessions)
{
	int drained = 0;

	(void)close(scene->witness);
	while (zd_api_session_count(&scene->api) > 0)
		(void)zd_loop_run_once(&scene->loop, true);
	scene->witness = scene_connect(scene);
	zd_api_drain_and_end(&scene->api, "SIGTERM", 3600, count_call, &drained);
	assert_int_equal(drained, 1);
}

/* Connections that say nothing are bounded too. */
SCENE_TEST(test_connections_without_hello)
{
	struct zd_api_limits limits = default_limits();
	int socks[200], accepted = 0;

	limits.max_sessions = 1;
	zd_api_set_limits(&scene->api, &limits);
	for (int i = 0; i < 200; i++) {
		int pair[2];
		struct zd_err err;

		assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair),
		                 0);
		socks[i] = pair[0];
		if (zd_api_accept(&scene->api, pair[1], &err) == 0)
			accepted++;
		else
			assert_int_equal(err.status, ZEROD_E_LIMIT);
	}
	assert_int_equal(accepted, 64);
	for (int i = 0; i < 200; i++)
		(void)close(socks[i]);
	scene_check_witness(scene);
}

int main(void)
{
	(void)alarm(120);
	return test_run(NULL, NULL);
}
