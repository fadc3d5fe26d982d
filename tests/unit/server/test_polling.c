/* SPDX-License-Identifier: Apache-2.0 */
/* test_polling.c - what the loop looks at while it is awake: anything in memory, and the rings of connections
 * and channels. */
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "proto/endpoint.h"
#include "server/channel.h"
#include "server/conn.h"
#include "server/loop.h"
#include "tests/support/test.h"

#define LATE_MS 2000u /* for who sleeps and should not */

struct thing {
	struct zd_loop *loop;
	struct zd_poll_source poll_source;
	atomic_uint polling;
	bool pending;         /* something is there */
	bool when_unseen;     /* something comes as soon as it is not looked at any more */
	struct thing *others; /* to be dropped when it is taken, and itself */
	unsigned nothers, ntaken;
};

struct scene {
	struct zd_loop loop;
	struct zd_conns conns;
	struct zd_conn *conn; /* NULL when it has ended */
	struct zd_channel *channel;
	struct zd_rings *rings;
	struct zd_endpoint peer, worker; /* the client's ends */
	uv_timer_t late;
	bool slept;
	unsigned nrequests, nanswers, nbroken;
	char last[64];
	struct zd_err why;
	uint8_t in[ZD_MAX_PACKET_BYTES];
	size_t nbytes;
};

/* ---- The scene ----------------------------------------------------------------------------------------- */

static void keep(struct scene *scene, const uint8_t *bytes, size_t nbytes)
{
	assert_true(nbytes < sizeof(scene->last));
	memcpy(scene->last, bytes, nbytes);
	scene->last[nbytes] = '\0';
}

static size_t on_request(void *arg, const uint8_t *bytes, size_t nbytes, bool resumed)
{
	assert_false(resumed);
	keep(arg, bytes, nbytes);
	((struct scene *)arg)->nrequests++;
	return nbytes;
}

static void on_ended(void *arg, const struct zd_err *why)
{
	struct scene *scene = arg;

	scene->conn = NULL;
	scene->why = *why;
}

static void on_answer(void *arg, const uint8_t *bytes, size_t nbytes)
{
	keep(arg, bytes, nbytes);
	((struct scene *)arg)->nanswers++;
}

static void on_writable(void *arg)
{
	(void)arg;
}

static void on_broken(void *arg, const struct zd_err *why)
{
	struct scene *scene = arg;

	scene->nbroken++;
	scene->why = *why;
}

static const struct zd_conn_ops conn_ops = {.packet = on_request, .ended = on_ended};
static const struct zd_channel_ops channel_ops = {
        .packet = on_answer, .writable = on_writable, .broken = on_broken};

static void on_late(uv_timer_t *timer)
{
	((struct scene *)timer->data)->slept = true;
}

/* From here on, a sleep ends with `slept`. */
static void mind_sleep(struct scene *scene)
{
	scene->slept = false;
	assert_int_equal(uv_timer_start(&scene->late, on_late, LATE_MS, LATE_MS), 0);
}

static void open_conn(struct scene *scene)
{
	struct zd_creds creds;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
	scene->peer.sock = pair[0];
	assert_int_equal(zd_creds_get(pair[1], &creds, NULL), 0);
	assert_int_equal(zd_conn_new(&scene->conns, pair[1], &creds, &conn_ops, scene, &scene->conn, NULL),
	                 0);
	zd_conn_welcome(scene->conn);
	assert_int_equal(zd_channel_new(&scene->conns, geteuid(), &channel_ops, scene, &scene->channel,
	                                &scene->worker.sock, NULL),
	                 0);
}

static void use_rings(struct scene *scene)
{
	struct zd_rings *rings = scene->rings;

	scene->peer.out.ring = &rings->requests;
	scene->peer.in.ring = &rings->replies;
	scene->worker.out.ring = &rings->answers;
	scene->worker.in.ring = &rings->works;
	zd_conn_use_rings(scene->conn, &rings->requests, &rings->replies);
	zd_channel_use_rings(scene->channel, &rings->works, &rings->answers);
	zd_endpoint_start_polling(&scene->peer);
	zd_endpoint_start_polling(&scene->worker);
}

static int set_up(void **state, const char *spin)
{
	struct scene *scene = zd_calloc(1, sizeof(*scene));

	assert_int_equal(setenv("ZEROD_SPIN", spin, 1), 0);
	assert_int_equal(zd_loop_init(&scene->loop, NULL), 0);
	zd_loop_allow_spinning(&scene->loop);
	zd_conns_init(&scene->conns, &scene->loop);
	assert_int_equal(uv_timer_init(&scene->loop.uv, &scene->late), 0);
	scene->late.data = scene;
	scene->rings = aligned_alloc(64, sizeof(*scene->rings));
	assert_non_null(scene->rings);
	memset(scene->rings, 0, sizeof(*scene->rings));
	open_conn(scene);
	use_rings(scene);
	*state = scene;
	return 0;
}

static int setup(void **state)
{
	return set_up(state, "always");
}

static int setup_without_spinning(void **state)
{
	return set_up(state, "never");
}

static int teardown(void **state)
{
	struct scene *scene = *state;
	struct zd_err why;

	(void)zd_err_set(&why, ZEROD_E_SHUTDOWN, "the test ends");
	zd_conns_refuse(&scene->conns, &why);
	zd_conns_flush(&scene->conns);
	zd_channel_close(scene->channel);
	uv_close((uv_handle_t *)&scene->late, NULL);
	zd_loop_deinit(&scene->loop);
	zd_conns_deinit(&scene->conns);
	(void)close(scene->peer.sock);
	(void)close(scene->worker.sock);
	free(scene->rings);
	free(scene);
	return 0;
}

#define WITHOUT_SPINNING_TEST(name) FIXTURE_TEST(name, struct scene *scene, setup_without_spinning, teardown)

#define SCENE_TEST(name) FIXTURE_TEST(name, struct scene *scene, setup, teardown)

static void run_loop(struct scene *scene, unsigned times)
{
	while (times-- > 0)
		(void)zd_loop_run_once(&scene->loop, false);
}

/* Until the loop has slept: it may be busy for longer than the timer is. */
static void sleep_once(struct scene *scene)
{
	while (atomic_load(&scene->rings->requests.polling)) {
		assert_int_equal(uv_timer_start(&scene->late, on_late, 1, 1), 0);
		(void)zd_loop_run_once(&scene->loop, true);
	}
	(void)uv_timer_stop(&scene->late);
}

/* ---- Anything in memory -------------------------------------------------------------------------------- */

static bool has_thing(const void *arg)
{
	const struct thing *thing = arg;

	if (thing->when_unseen && !atomic_load(&thing->polling))
		((struct thing *)arg)->pending = true;
	return thing->pending;
}

static void take_thing(void *arg)
{
	struct thing *thing = arg;

	thing->pending = thing->when_unseen = false;
	thing->ntaken++;
	for (unsigned i = 0; i < thing->nothers; i++)
		zd_loop_drop(thing->loop, &thing->others[i].poll_source);
}

static void list_thing(struct scene *scene, struct thing *thing)
{
	thing->loop = &scene->loop;
	thing->poll_source = (struct zd_poll_source){
	        .has = has_thing, .take = take_thing, .arg = thing, .polling = &thing->polling};
	zd_loop_list(&scene->loop, &thing->poll_source);
}

SCENE_TEST(test_looked_at_until_the_loop_sleeps)
{
	struct thing thing = {.pending = true};

	list_thing(scene, &thing);
	zd_loop_list(&scene->loop, &thing.poll_source); /* once is enough */
	assert_int_equal(atomic_load(&thing.polling), 1);
	run_loop(scene, 2);
	assert_int_equal(thing.ntaken, 1);
	assert_int_equal(atomic_load(&thing.polling), 1);
	sleep_once(scene);
	assert_int_equal(atomic_load(&thing.polling), 0);
	thing.pending = true;
	run_loop(scene, 2);
	assert_int_equal(thing.ntaken, 1); /* who writes now wakes the loop */
	zd_loop_drop(&scene->loop, &thing.poll_source);
}

SCENE_TEST(test_what_comes_just_before_a_sleep)
{
	struct thing thing = {.when_unseen = true};

	list_thing(scene, &thing);
	mind_sleep(scene);
	while (thing.ntaken == 0 && !scene->slept)
		(void)zd_loop_run_once(&scene->loop, true);
	assert_false(scene->slept);
	assert_int_equal(thing.ntaken, 1);
	assert_int_equal(atomic_load(&thing.polling), 1); /* it looks again */
	zd_loop_drop(&scene->loop, &thing.poll_source);
}

static void on_soon(uv_timer_t *timer)
{
	struct thing *thing = timer->data;

	thing->pending = true;
	zd_loop_list(thing->loop, &thing->poll_source);
}

/* Before the sleep that the loop had in mind when the turn began. */
SCENE_TEST(test_listed_by_a_timer)
{
	struct thing thing = {.loop = &scene->loop};
	uv_timer_t soon;

	sleep_once(scene);
	thing.poll_source = (struct zd_poll_source){
	        .has = has_thing, .take = take_thing, .arg = &thing, .polling = &thing.polling};
	assert_int_equal(uv_timer_init(&scene->loop.uv, &soon), 0);
	soon.data = &thing;
	assert_int_equal(uv_timer_start(&soon, on_soon, 0, 0), 0);
	mind_sleep(scene);
	while (thing.ntaken == 0 && !scene->slept)
		(void)zd_loop_run_once(&scene->loop, true);
	assert_false(scene->slept);
	zd_loop_drop(&scene->loop, &thing.poll_source);
	uv_close((uv_handle_t *)&soon, NULL);
	run_loop(scene, 1);
}

SCENE_TEST(test_taking_one_may_drop_all)
{
	struct thing things[3] = {{.pending = true}, {.pending = true}, {.pending = true}};

	for (unsigned i = 0; i < 3; i++) {
		things[i].others = things;
		things[i].nothers = 3;
		list_thing(scene, &things[i]);
	}
	run_loop(scene, 2);
	assert_int_equal(things[0].ntaken + things[1].ntaken + things[2].ntaken, 1);
}

WITHOUT_SPINNING_TEST(test_nothing_is_listed_where_nobody_spins)
{
	struct thing thing = {.pending = true};

	list_thing(scene, &thing);
	run_loop(scene, 2);
	assert_int_equal(atomic_load(&thing.polling), 0);
	assert_int_equal(thing.ntaken, 0);
	assert_int_equal(zd_endpoint_send(&scene->peer, "abc", 3, NULL, 0, NULL), 0);
	run_loop(scene, 2);
	assert_int_equal(scene->nrequests, 1); /* by the socket */
}

/* ---- Connections --------------------------------------------------------------------------------------- */

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
	zd_conns_flush(&scene->conns);
}

static void say(struct zd_endpoint *link, const char *text)
{
	assert_int_equal(zd_endpoint_send(link, text, strlen(text), NULL, 0, NULL), 0);
}

static int recv_one(struct scene *scene, struct zd_endpoint *link)
{
	int fds[ZD_MAX_PACKET_FDS];
	unsigned nfds;

	return zd_endpoint_try_recv(link, scene->in, sizeof(scene->in), &scene->nbytes, fds, &nfds, NULL);
}

SCENE_TEST(test_requests_and_replies)
{
	say(&scene->peer, "one");
	say(&scene->peer, "two");
	assert_int_equal(scene->peer.nsent, 0);
	run_loop(scene, 1);
	assert_int_equal(scene->nrequests, 1);
	assert_string_equal(scene->last, "one");
	run_loop(scene, 1);
	assert_string_equal(scene->last, "two");
	send_reply(scene, 1, 10);
	assert_true(zd_endpoint_is_due(&scene->peer));
	assert_int_equal(recv_one(scene, &scene->peer), 0);
	assert_true(scene->nbytes > 10);
}

/* A packet by the socket is the sign to look again. */
SCENE_TEST(test_after_a_sleep)
{
	sleep_once(scene);
	say(&scene->peer, "by the socket");
	assert_int_equal(scene->peer.nsent, 1);
	(void)zd_loop_run_once(&scene->loop, true);
	assert_int_equal(scene->nrequests, 1);
	say(&scene->peer, "by the ring");
	assert_int_equal(scene->peer.nsent, 1);
	run_loop(scene, 1);
	assert_string_equal(scene->last, "by the ring");
}

SCENE_TEST(test_not_read_from_while_it_does_not_read)
{
	unsigned nreplies = 0;

	for (uint64_t id = 1; id <= 100; id++)
		send_reply(scene, id, 20000); /* too large for the ring */
	say(&scene->peer, "one");
	assert_int_equal(scene->peer.nsent, 0);
	run_loop(scene, 4);
	assert_int_equal(scene->nrequests, 0);
	sleep_once(scene); /* and is not looked at any more */
	assert_int_equal(atomic_load(&scene->rings->requests.polling), 0);
	while (nreplies < 100) {
		while (recv_one(scene, &scene->peer) == 0)
			nreplies++;
		run_loop(scene, 1);
	}
	mind_sleep(scene);
	while (scene->nrequests == 0 && !scene->slept)
		(void)zd_loop_run_once(&scene->loop, true);
	assert_int_equal(scene->nrequests, 1);
}

SCENE_TEST(test_a_ring_that_makes_no_sense)
{
	atomic_store(&scene->rings->requests.tail, UINT64_MAX);
	run_loop(scene, 2);
	assert_null(scene->conn);
	assert_int_equal(scene->why.status, ZEROD_E_PROTOCOL);
	assert_non_null(strstr(scene->why.text, "a ring with"));
	run_loop(scene, 4); /* nobody looks at what is gone */
	assert_int_equal(scene->nrequests, 0);
}

SCENE_TEST(test_closed_with_requests_in_the_ring)
{
	say(&scene->peer, "one");
	say(&scene->peer, "two");
	(void)shutdown(scene->peer.sock, SHUT_RDWR);
	run_loop(scene, 6);
	assert_null(scene->conn);
	assert_int_equal(scene->nrequests, 2);
	assert_int_equal(scene->why.status, ZEROD_E_DISCONNECTED);
}

/* ---- Channels ------------------------------------------------------------------------------------------ */

SCENE_TEST(test_works_and_answers)
{
	/* The first comes by the socket: nobody has listed the ring yet. */
	say(&scene->worker, "one");
	assert_int_equal(scene->worker.nsent, 1);
	run_loop(scene, 1);
	say(&scene->worker, "two");
	assert_int_equal(scene->worker.nsent, 1);
	run_loop(scene, 1);
	assert_int_equal(scene->nanswers, 2);
	assert_string_equal(scene->last, "two");
	assert_int_equal(zd_channel_send(scene->channel, (const uint8_t *)"work", 4, NULL), 0);
	assert_true(zd_endpoint_is_due(&scene->worker));
	assert_int_equal(recv_one(scene, &scene->worker), 0);
	assert_int_equal(scene->nbytes, 4);
}

SCENE_TEST(test_a_channel_that_is_closed)
{
	say(&scene->worker, "one");
	run_loop(scene, 1);
	say(&scene->worker, "two");
	assert_int_equal(scene->worker.nsent, 1);
	zd_channel_close(scene->channel);
	scene->channel = NULL;
	assert_int_equal(atomic_load(&scene->rings->answers.polling), 0);
	run_loop(scene, 4);
	assert_int_equal(scene->nanswers, 1);
}

SCENE_TEST(test_a_channel_that_makes_no_sense)
{
	say(&scene->worker, "one");
	run_loop(scene, 1);
	atomic_store(&scene->rings->answers.tail, UINT64_MAX);
	run_loop(scene, 4);
	assert_int_equal(scene->nbroken, 1);
	assert_int_equal(scene->why.status, ZEROD_E_PROTOCOL);
	assert_int_equal(atomic_load(&scene->rings->answers.polling), 0);
}

/* Its owner may empty the rings at once. */
SCENE_TEST(test_last_words_by_the_socket)
{
	int fds[ZD_MAX_PACKET_FDS];
	unsigned nfds;
	struct zd_err why;

	(void)zd_err_set(&why, ZEROD_E_ABORTED, "the test says so");
	zd_conn_refuse(scene->conn, &why);
	zd_conns_flush(&scene->conns);
	assert_null(scene->conn);
	assert_int_equal(atomic_load(&scene->rings->replies.tail), 0);
	assert_int_equal(zd_endpoint_try_recv(&scene->peer, scene->in, sizeof(scene->in), &scene->nbytes, fds,
	                                      &nfds, NULL),
	                 0);
}
