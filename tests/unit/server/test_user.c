/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_user.c - turns of users, with turns of one request each; and users whose replies are not read.
 *
 * A user is a uid, and socket pairs have that of the process. So tests of several users change it, and need
 * root.
 */
#include "api_scene.h"
#include "base/mem.h"
#include "server/session.h"

#define OTHER_UID     12345u
#define NO_ALLOCATION UINT64_MAX

static int setup(void **state)
{
	int rc = scene_setup(state);
	struct scene *scene = *state;

	scene->api.conns.users.turn_ns = 0;
	return rc;
}

#define USER_TEST(name) FIXTURE_TEST(name, struct scene *scene, setup, scene_teardown)

static int session_of(struct scene *scene, uid_t uid)
{
	int sock;

	assert_int_equal(seteuid(uid), 0);
	sock = scene_session(scene);
	assert_int_equal(seteuid(0), 0);
	return sock;
}

/* A packet of `count` requests, each with an answer at once; ids from `first` on. */
static void send_batch(int sock, uint64_t first, size_t count)
{
	Zd__Request requests[ZD_MAX_BATCH], *batch[ZD_MAX_BATCH];
	Zd__Free body = ZD__FREE__INIT;

	body.allocation = NO_ALLOCATION;
	for (size_t i = 0; i < count; i++) {
		zd__request__init(&requests[i]);
		requests[i].id = first + i;
		requests[i].body_case = ZD__REQUEST__BODY_FREE;
		requests[i].free = &body;
		batch[i] = &requests[i];
	}
	scene_send(sock, batch, count);
}

/* Takes what has arrived. Returns the id of the last reply, or `last`; fails unless they ascend by one. */
static uint64_t take_replies(struct scene *scene, int sock, uint64_t last)
{
	Zd__DaemonPacket *packet;
	int fds[ZD_MAX_PACKET_FDS];
	unsigned nfds;
	size_t nbytes;

	while (zd_frame_recv(sock, scene->received, sizeof(scene->received), &nbytes, fds, &nfds, NULL) ==
	       0) {
		packet = zd__daemon_packet__unpack(NULL, nbytes, scene->received);
		assert_non_null(packet);
		for (size_t i = 0; i < packet->n_replies; i++)
			assert_int_equal(packet->replies[i]->id, ++last);
		zd__daemon_packet__free_unpacked(packet, NULL);
	}
	return last;
}

static void turn(struct scene *scene)
{
	(void)zd_loop_run_once(&scene->loop, false);
}

/* Runs the loop until no request waits for a turn. */
static void finish(struct scene *scene)
{
	do
		turn(scene);
	while (scene->api.conns.users.nwith_tasks > 0);
}

/* Further packets of a client are handled behind the rest of its first one. */
USER_TEST(test_order_of_one_client)
{
	int sock = scene_session(scene);

	send_batch(sock, 1, 20);
	turn(scene);
	send_batch(sock, 21, 1);
	send_batch(sock, 22, 20);
	finish(scene);
	finish(scene);
	assert_int_equal(take_replies(scene, sock, 0), 41);
	(void)close(sock);
}

USER_TEST(test_connections_take_turns)
{
	int socks[3];
	uint64_t last[3] = {0, 0, 0};

	for (int i = 0; i < 3; i++)
		socks[i] = scene_session(scene);
	for (int i = 0; i < 3; i++)
		send_batch(socks[i], 1, 30);
	for (int left = 90; left > 0; left--) {
		turn(scene);
		for (int i = 0; i < 3; i++) {
			last[i] = take_replies(scene, socks[i], last[i]);
			assert_true(last[i] <= last[0] + 2 && last[0] <= last[i] + 2);
		}
	}
	for (int i = 0; i < 3; i++) {
		assert_int_equal(last[i], 30);
		(void)close(socks[i]);
	}
}

/* Ten connections of one user have one request handled for each request of the other user's connection. */
USER_TEST(test_users_take_turns)
{
	int floods[10], other;
	uint64_t last[10] = {0}, total = 0, done = 0;

	if (geteuid() != 0)
		skip();
	for (int i = 0; i < 10; i++)
		floods[i] = scene_session(scene);
	other = session_of(scene, OTHER_UID);
	for (int i = 0; i < 10; i++)
		send_batch(floods[i], 1, ZD_MAX_BATCH);
	send_batch(other, 1, 50);
	for (int turns = 0; done < 50; turns++) {
		turn(scene);
		done = take_replies(scene, other, done);
		total = 0;
		for (int i = 0; i < 10; i++)
			total += last[i] = take_replies(scene, floods[i], last[i]);
		assert_true(total <= done + 1 && done <= total + 1);
	}
	for (int i = 0; i < 10; i++)
		(void)close(floods[i]);
	(void)close(other);
}

/* An interruption costs time, so a packet is interrupted only for others. */
USER_TEST(test_no_interruption_for_nobody)
{
	int sock = scene_session(scene), other = scene_session(scene);
	uint64_t last;

	turn(scene);
	scene->api.conns.users.turn_ns = 1;
	send_batch(sock, 1, ZD_MAX_BATCH);
	turn(scene);
	assert_int_equal(take_replies(scene, sock, 0), ZD_MAX_BATCH);
	send_batch(sock, 1, ZD_MAX_BATCH);
	send_batch(other, 1, 1);
	turn(scene);
	last = take_replies(scene, sock, 0);
	assert_in_range(last, 0, ZD_USER_LONG_REQUEST);
	finish(scene);
	finish(scene);
	assert_int_equal(take_replies(scene, sock, last), ZD_MAX_BATCH);
	assert_int_equal(take_replies(scene, other, 0), 1);
	(void)close(sock);
	(void)close(other);
}

static uint64_t handled_in_a_turn(struct scene *scene, Zd__Request *request)
{
	Zd__Request requests[ZD_MAX_BATCH], *batch[ZD_MAX_BATCH];
	int sock = scene_session(scene), second = scene_session(scene);
	uint64_t last;

	turn(scene);
	scene->api.conns.users.turn_ns = 1;
	for (size_t i = 0; i < ZD_MAX_BATCH; i++) {
		requests[i] = *request;
		requests[i].id = i + 1;
		batch[i] = &requests[i];
	}
	scene_send(sock, batch, 4ull * ZD_USER_LONG_REQUEST);
	send_batch(second, 1, 1);
	turn(scene); /* begins one packet, and leaves both to the user's tasks */
	last = take_replies(scene, sock, 0);
	finish(scene);
	assert_int_equal(take_replies(scene, sock, last), 4 * ZD_USER_LONG_REQUEST);
	(void)close(sock);
	(void)close(second);
	return last;
}

/* The clock is read after some plain requests, or after each one that may be long. */
USER_TEST(test_cost_of_requests)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Free plain = ZD__FREE__INIT;
	Zd__List list = ZD__LIST__INIT;
	Zd__UpdateBegin update = ZD__UPDATE_BEGIN__INIT;
	uint64_t units[ZD_MAX_UNITS_PER_REQUEST / 8] = {0};

	request.body_case = ZD__REQUEST__BODY_FREE;
	request.free = &plain;
	assert_int_equal(handled_in_a_turn(scene, &request), ZD_USER_LONG_REQUEST);
	request.body_case = ZD__REQUEST__BODY_LIST;
	request.list = &list;
	assert_int_equal(handled_in_a_turn(scene, &request), 1);
	request.body_case = ZD__REQUEST__BODY_UPDATE_BEGIN;
	request.update_begin = &update;
	update.n_units = ZD_ARRAY_LEN(units);
	update.units = units;
	assert_int_equal(handled_in_a_turn(scene, &request), 1);
}

/* The rest of a packet is checked as its begin is: a zero byte in a name. */
USER_TEST(test_rest_is_checked)
{
	static const char text[] = "jobXname";
	int sock = scene_session(scene);
	Zd__Request first = ZD__REQUEST__INIT, second = ZD__REQUEST__INIT, *batch[] = {&first, &second};
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;
	Zd__DaemonStatus status = ZD__DAEMON_STATUS__INIT;
	Zd__Alloc alloc = ZD__ALLOC__INIT;
	struct delivery delivery;
	uint8_t bytes[256], *name;
	size_t nbytes;

	first.id = 1;
	first.body_case = ZD__REQUEST__BODY_DAEMON_STATUS;
	first.daemon_status = &status;
	second.id = 2;
	second.body_case = ZD__REQUEST__BODY_ALLOC;
	second.alloc = &alloc;
	alloc.job = (char *)text;
	packet.requests = batch;
	packet.n_requests = 2;
	nbytes = zd__client_packet__pack(&packet, bytes);
	name = memmem(bytes, nbytes, text, strlen(text));
	assert_non_null(name);
	name[3] = '\0';
	scene_send_bytes(sock, bytes, nbytes);
	delivery = scene_receive(scene, sock);
	assert_int_equal(delivery.packet->replies[0]->id, 1);
	delivery_free(&delivery);
	delivery = scene_receive(scene, sock);
	assert_int_equal(delivery.packet->replies[0]->id, 2);
	assert_int_equal(delivery.packet->replies[0]->status, ZEROD_E_INVALID);
	assert_non_null(strstr(delivery.packet->replies[0]->error, "a zero byte"));
	delivery_free(&delivery);
	(void)close(sock);
}

/* A request with the id 0 ends the connection; what follows it in the packet is dropped. */
USER_TEST(test_rest_of_an_ended_connection)
{
	int sock = scene_session(scene);
	Zd__Request requests[3] = {ZD__REQUEST__INIT, ZD__REQUEST__INIT, ZD__REQUEST__INIT}, *batch[3];
	Zd__DaemonStatus status = ZD__DAEMON_STATUS__INIT;
	struct delivery delivery;

	for (int i = 0; i < 3; i++) {
		requests[i].id = i == 1 ? 0 : 7;
		requests[i].body_case = ZD__REQUEST__BODY_DAEMON_STATUS;
		requests[i].daemon_status = &status;
		batch[i] = &requests[i];
	}
	scene_send(sock, batch, 3);
	delivery = scene_receive(scene, sock);
	assert_int_equal(delivery.packet->replies[0]->id, 7);
	delivery_free(&delivery);
	scene_expect_refusal(scene, sock, ZEROD_E_PROTOCOL, "a request with the id 0");
}

/* The rest of its packet may be dropped, since no reply can be sent. Nothing of it is left behind. */
USER_TEST(test_client_closes_behind_its_packet)
{
	int sock = scene_session(scene);
	struct zd_engine_totals before, after;

	zd_engine_totals(scene->api.bridge.engine, &before);
	send_batch(sock, 1, 40);
	(void)close(sock);
	while (zd_api_session_count(&scene->api) > 1)
		turn(scene);
	zd_engine_totals(scene->api.bridge.engine, &after);
	assert_in_range(after.requests - before.requests, 1, 40);
	assert_int_equal(scene->api.conns.users.nwith_tasks, 0);
}

/* ---- Changes of what the loop polls for ---------------------------------------------------------------- */

static unsigned poll_changes;

/* The linker gives these to the daemon in place of libuv's (--wrap). */
int __wrap_uv_poll_start(uv_poll_t *handle, int events, uv_poll_cb cb);
int __real_uv_poll_start(uv_poll_t *handle, int events, uv_poll_cb cb);
int __wrap_uv_poll_stop(uv_poll_t *handle);
int __real_uv_poll_stop(uv_poll_t *handle);

int __wrap_uv_poll_start(uv_poll_t *handle, int events, uv_poll_cb cb)
{
	poll_changes++;
	return __real_uv_poll_start(handle, events, cb);
}

int __wrap_uv_poll_stop(uv_poll_t *handle)
{
	poll_changes++;
	return __real_uv_poll_stop(handle);
}

/* Each is a system call. The socket of a client that has sent its next packets before their turns is not
 * polled until a turn finds none. */
USER_TEST(test_busy_clients_are_not_polled)
{
	int sock = scene_session(scene);

	finish(scene);
	poll_changes = 0;
	for (uint64_t i = 0; i < 40; i++)
		send_batch(sock, 2 * i + 1, 2);
	finish(scene);
	finish(scene);
	assert_int_equal(take_replies(scene, sock, 0), 80);
	assert_int_equal(poll_changes, 2);
	(void)close(sock);
}

/* ---- Several users ------------------------------------------------------------------------------------- */

/* Of a long turn only the first slice is safe from a user that has just been served. */
USER_TEST(test_slices)
{
	struct zd_users *users = &scene->api.conns.users;
	int flood, other;
	uint64_t last;

	if (geteuid() != 0)
		skip();
	flood = scene_session(scene);
	turn(scene);
	users->turn_ns = users->shared_ns = UINT64_MAX;
	users->slice_ns = 1;
	send_batch(flood, 1, ZD_MAX_BATCH);
	send_batch(scene->witness, 1, 1); /* an event, but there is no other user */
	turn(scene);
	assert_int_equal(take_replies(scene, flood, 0), ZD_MAX_BATCH);
	assert_int_equal(take_replies(scene, scene->witness, 0), 1);
	other = session_of(scene, OTHER_UID);
	send_batch(flood, 1, ZD_MAX_BATCH);
	finish(scene);
	assert_int_equal(take_replies(scene, flood, 0), ZD_MAX_BATCH); /* nobody waits */
	send_batch(flood, 1, ZD_MAX_BATCH);
	send_batch(other, 1, 1);
	turn(scene);
	last = take_replies(scene, flood, 0);
	assert_in_range(last, 0, ZD_USER_LONG_REQUEST);
	assert_int_equal(take_replies(scene, other, 0), 1);
	finish(scene);
	assert_int_equal(take_replies(scene, flood, last), ZD_MAX_BATCH);
	(void)close(flood);
	(void)close(other);
}

/* Returns the rows of the first page, and checks that the pages have `count` rows in all. */
static size_t rows_of_a_page(struct scene *scene, int sock, size_t count)
{
	size_t first = 0, listed = 0;
	Zd__Request *request = RAW(LIST, list, List, .table = ZD__TABLE__ALLOCATIONS);

	do {
		struct delivery delivery = scene_call(scene, sock, request);
		const Zd__ListReply *page = delivery.packet->replies[0]->list;

		assert_non_null(page);
		first = first ? first : page->n_rows;
		listed += page->n_rows;
		request->list->cursor = page->next;
		delivery_free(&delivery);
	} while (request->list->cursor);
	assert_int_equal(listed, count);
	return first;
}

/* A page of a listing is one request, which no turn divides. */
USER_TEST(test_pages_beside_another_user)
{
	int other;

	if (geteuid() != 0)
		skip();
	scene->api.conns.users.shared_ns = UINT64_MAX;
	for (unsigned i = 0; i < 70; i++)
		assert_int_equal(
		        scene_status(scene, scene->witness,
		                     RAW(ALLOC, alloc, Alloc, .job = (char *)"listed", .bytes = 256)),
		        0);
	assert_int_equal(rows_of_a_page(scene, scene->witness, 70), 64);
	other = session_of(scene, OTHER_UID);
	assert_int_equal(rows_of_a_page(scene, scene->witness, 70), 16);
	(void)close(other);
}

static void register_units(struct scene *scene, int sock, uint64_t *units, unsigned count)
{
	uint64_t group = scene_join(scene, sock, "large");
	char name[16];

	for (unsigned i = 0; i < count; i++) {
		struct delivery delivery;

		(void)snprintf(name, sizeof(name), "unit %u", i);
		delivery = scene_call(scene, sock,
		                      RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = group,
		                          .dtype = ZEROD_FLOAT32, .numel = 1, .name = name));
		units[i] = delivery.packet->replies[0]->unit_register->unit;
		delivery_free(&delivery);
	}
}

/* Sends a packet of an update of the units and their publish, and a request of the other user in the middle
 * of each. Returns the turns until both replies were there. */
static unsigned turns_of_update(struct scene *scene, int sock, uint64_t *units, unsigned count, int other)
{
	Zd__UpdateBegin update = ZD__UPDATE_BEGIN__INIT;
	Zd__Publish publish = ZD__PUBLISH__INIT;
	Zd__Request requests[2] = {ZD__REQUEST__INIT, ZD__REQUEST__INIT};
	unsigned turns = 0;
	uint64_t last = 0;

	update.n_units = publish.n_units = count;
	update.units = publish.units = units;
	requests[0].id = 1;
	requests[0].body_case = ZD__REQUEST__BODY_UPDATE_BEGIN;
	requests[0].update_begin = &update;
	requests[1].id = 2;
	requests[1].body_case = ZD__REQUEST__BODY_PUBLISH;
	requests[1].publish = &publish;
	scene_send(sock, (Zd__Request *[]){&requests[0], &requests[1]}, 2);
	while (last < 2) {
		if (other >= 0)
			send_batch(other, turns + 1, 1);
		turn(scene);
		turns++;
		if (other >= 0)
			assert_int_equal(take_replies(scene, other, turns - 1), turns);
		last = take_replies(scene, sock, last);
	}
	return turns;
}

/* Their units are found in steps; the requests of a packet keep their order. */
USER_TEST(test_updates_beside_another_user)
{
	uint64_t units[600]; /* two steps find them */
	int other;

	if (geteuid() != 0)
		skip();
	scene->api.conns.users.shared_ns = UINT64_MAX;
	register_units(scene, scene->witness, units, ZD_ARRAY_LEN(units));
	assert_int_equal(turns_of_update(scene, scene->witness, units, ZD_ARRAY_LEN(units), -1), 2);
	other = session_of(scene, OTHER_UID);
	assert_int_equal(turns_of_update(scene, scene->witness, units, ZD_ARRAY_LEN(units), other), 6);
	assert_int_equal(turns_of_update(scene, scene->witness, units, 100, other), 2);
	(void)close(other);
}

/* A connection that is accepted uses up its user's turn. */
USER_TEST(test_accepts_are_charged)
{
	struct zd_user *user = zd_user_get(&scene->api.conns.users, geteuid());
	int accepted;

	zd_user_put(user); /* the witness has it */
	scene->api.conns.users.turn_ns = 1;
	turn(scene);
	assert_true(zd_user_may_begin(user));
	accepted = scene_connect(scene);
	assert_false(zd_user_may_begin(user));
	assert_false(zd_user_may_end(user));
	turn(scene);
	assert_true(zd_user_may_begin(user));
	(void)close(accepted);
}

/* Ends are tasks of the turn, so other users' requests are handled in between. */
USER_TEST(test_ends_take_turns)
{
	int ending[20], other;
	unsigned before, left;

	if (geteuid() != 0)
		skip();
	other = session_of(scene, OTHER_UID);
	for (int i = 0; i < 20; i++)
		ending[i] = scene_session(scene);
	before = left = zd_api_session_count(&scene->api);
	turn(scene);
	for (int i = 0; i < 20; i++)
		(void)close(ending[i]);
	while (left > before - 20) {
		send_batch(other, 1, 1);
		turn(scene);
		assert_int_equal(take_replies(scene, other, 0), 1);
		assert_in_range(left - zd_api_session_count(&scene->api), 0, 2);
		left = zd_api_session_count(&scene->api);
	}
	finish(scene);
	(void)close(other);
}

static uint64_t newest_session(const struct scene *scene)
{
	const struct zd_api_session *session;
	uint64_t newest = 0;

	for (session = scene->api.sessions; session; session = session->hh.next)
		newest = zd_max_u64(newest, session->id);
	return newest;
}

/* One event ends several connections: each has a turn. */
USER_TEST(test_ends_of_one_event)
{
	Zd__Request requests[ZD_USER_LONG_REQUEST], *batch[ZD_USER_LONG_REQUEST];
	Zd__KillSession kills[ZD_USER_LONG_REQUEST];
	int admin = scene_session(scene), ending[ZD_USER_LONG_REQUEST];
	unsigned before, i;

	for (i = 0; i < ZD_USER_LONG_REQUEST; i++) {
		ending[i] = scene_session(scene);
		zd__request__init(&requests[i]);
		zd__kill_session__init(&kills[i]);
		kills[i].session = newest_session(scene);
		requests[i].id = i + 1;
		requests[i].body_case = ZD__REQUEST__BODY_KILL_SESSION;
		requests[i].kill_session = &kills[i];
		batch[i] = &requests[i];
	}
	before = zd_api_session_count(&scene->api);
	turn(scene);
	scene->api.conns.users.turn_ns = 1;
	scene_send(admin, batch, ZD_USER_LONG_REQUEST);
	for (i = 0; i <= ZD_USER_LONG_REQUEST; i++) {
		turn(scene);
		assert_int_equal(zd_api_session_count(&scene->api), before - i);
	}
	assert_int_equal(take_replies(scene, admin, 0), ZD_USER_LONG_REQUEST);
	for (i = 0; i < ZD_USER_LONG_REQUEST; i++)
		(void)close(ending[i]);
	(void)close(admin);
}

/* The daemon closes before the ends' turns. */
USER_TEST(test_close_before_ends)
{
	int ending[20];

	for (int i = 0; i < 20; i++)
		ending[i] = scene_session(scene);
	turn(scene);
	for (int i = 0; i < 20; i++)
		(void)close(ending[i]);
	turn(scene);
	assert_in_range(zd_api_session_count(&scene->api), 2, 21);
}

/* ---- Unread replies ------------------------------------------------------------------------------------ */

/* Pages of a listing, which together are more than a socket holds. */
static void send_listings(struct scene *scene, int sock)
{
	static Zd__Request requests[ZD_MAX_BATCH], *batch[ZD_MAX_BATCH];
	Zd__List list = ZD__LIST__INIT;

	(void)scene;
	list.table = ZD__TABLE__ALLOCATIONS;
	for (size_t i = 0; i < ZD_MAX_BATCH; i++) {
		zd__request__init(&requests[i]);
		requests[i].id = i + 1;
		requests[i].body_case = ZD__REQUEST__BODY_LIST;
		requests[i].list = &list;
		batch[i] = &requests[i];
	}
	scene_send(sock, batch, ZD_MAX_BATCH);
}

static void make_allocations(struct scene *scene, int sock)
{
	for (int i = 0; i < 64; i++)
		assert_int_equal(scene_status(scene, sock,
		                              RAW(ALLOC, alloc, Alloc, .job = (char *)"job",
		                                  .name = (char *)"an allocation with a name that makes a "
		                                                  "page of a listing long",
		                                  .bytes = 256)),
		                 0);
}

static bool is_answered(struct scene *scene, int sock)
{
	send_batch(sock, 1, 1);
	for (int i = 0; i < 10; i++)
		turn(scene);
	return take_replies(scene, sock, 0) == 1;
}

/* None of the user's connections is served above the limit, others' are. Nothing is lost. */
USER_TEST(test_unread_replies_block_their_user)
{
	int sock = scene_session(scene), second = scene_session(scene), other = -1;
	uint64_t last = 0;

	if (geteuid() == 0)
		other = session_of(scene, OTHER_UID);
	zd_users_set_limit(&scene->api.conns.users, 1);
	make_allocations(scene, sock);
	assert_true(is_answered(scene, second));
	send_listings(scene, sock);
	finish(scene);
	assert_false(is_answered(scene, second));
	if (other >= 0)
		assert_true(is_answered(scene, other));
	while (last < ZD_MAX_BATCH) {
		turn(scene);
		last = take_replies(scene, sock, last);
	}
	finish(scene);
	assert_int_equal(take_replies(scene, second, 0), 1);
	(void)close(sock);
	(void)close(second);
	(void)close(other);
}

USER_TEST(test_user_goes_on_above_the_limit)
{
	struct zd_api_limits limits = default_limits();
	int sock = scene_session(scene), second = scene_session(scene), third = scene_session(scene);

	make_allocations(scene, sock);
	limits.uid_unsent_bytes = 1;
	zd_api_set_limits(&scene->api, &limits);
	send_listings(scene, sock);
	finish(scene);
	assert_false(is_answered(scene, second));
	/* With a higher limit. */
	limits.uid_unsent_bytes = 1 << 20;
	zd_api_set_limits(&scene->api, &limits);
	finish(scene);
	assert_int_equal(take_replies(scene, second, 0), 1);
	/* When the connection has ended. */
	limits.uid_unsent_bytes = 1;
	zd_api_set_limits(&scene->api, &limits);
	assert_false(is_answered(scene, third));
	(void)close(sock);
	while (take_replies(scene, third, 0) == 0)
		turn(scene);
	(void)close(second);
	(void)close(third);
}
