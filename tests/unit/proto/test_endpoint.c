/* SPDX-License-Identifier: Apache-2.0 */
/* test_endpoint.c - packets by rings and by the socket: in order, none lost, and nobody left asleep. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "proto/endpoint.h"
#include "tests/support/rounds.h"
#include "tests/support/test.h"

struct scene {
	struct zd_rings *rings;
	struct zd_endpoint a, b;
	uint8_t in[ZD_MAX_PACKET_BYTES];
	size_t nbytes;
	int fds[ZD_MAX_PACKET_FDS];
	unsigned nfds;
	atomic_uint received; /* packets, by `b` */
};

/* `a` sends requests, `b` replies. */
static void use_rings(struct scene *scene)
{
	scene->a.out.ring = scene->b.in.ring = &scene->rings->requests;
	scene->a.in.ring = scene->b.out.ring = &scene->rings->replies;
	zd_endpoint_start_polling(&scene->a);
	zd_endpoint_start_polling(&scene->b);
}

static int setup(void **state)
{
	struct scene *scene = zd_calloc(1, sizeof(*scene));
	int ends[2];

	scene->rings = aligned_alloc(64, sizeof(*scene->rings));
	assert_non_null(scene->rings);
	memset(scene->rings, 0, sizeof(*scene->rings));
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	scene->a.sock = ends[0];
	scene->b.sock = ends[1];
	*state = scene;
	return 0;
}

static int setup_with_rings(void **state)
{
	int rc = setup(state);

	use_rings(*state);
	return rc;
}

static int teardown(void **state)
{
	struct scene *scene = *state;

	if (scene->a.sock >= 0)
		(void)close(scene->a.sock);
	(void)close(scene->b.sock);
	free(scene->rings);
	free(scene);
	return 0;
}

#define SETUP_TEST(name) FIXTURE_TEST(name, struct scene *scene, setup, teardown)

#define SCENE_TEST(name) FIXTURE_TEST(name, struct scene *scene, setup_with_rings, teardown)

static void send_text(struct zd_endpoint *link, const char *text)
{
	assert_int_equal(zd_endpoint_send(link, text, strlen(text), NULL, 0, NULL), 0);
}

static int try_recv(struct scene *scene, struct zd_endpoint *link)
{
	return zd_endpoint_try_recv(link, scene->in, sizeof(scene->in), &scene->nbytes, scene->fds,
	                            &scene->nfds, NULL);
}

static void expect_text(struct scene *scene, struct zd_endpoint *link, const char *text)
{
	assert_int_equal(try_recv(scene, link), 0);
	assert_int_equal(scene->nbytes, strlen(text));
	assert_memory_equal(scene->in, text, scene->nbytes);
	assert_int_equal(scene->nfds, 0);
}

static bool is_readable(const struct zd_endpoint *link)
{
	struct pollfd poll_for = {.fd = link->sock, .events = POLLIN};

	return poll(&poll_for, 1, 0) == 1;
}

SCENE_TEST(test_by_the_ring_to_who_looks)
{
	send_text(&scene->a, "one");
	send_text(&scene->a, "two");
	assert_false(is_readable(&scene->b));
	assert_true(zd_endpoint_is_due(&scene->b));
	send_text(&scene->b, "three");
	expect_text(scene, &scene->b, "one");
	expect_text(scene, &scene->b, "two");
	expect_text(scene, &scene->a, "three");
	assert_int_equal(try_recv(scene, &scene->b), ZD_FRAME_AGAIN);
	assert_false(zd_endpoint_is_due(&scene->b));
}

SCENE_TEST(test_by_the_socket_to_who_rests)
{
	assert_true(zd_endpoint_rest(&scene->b));
	send_text(&scene->a, "one");
	assert_true(is_readable(&scene->b));
	assert_false(zd_endpoint_is_due(&scene->b));
	zd_endpoint_start_polling(&scene->b);
	send_text(&scene->a, "two"); /* by the ring, and not due yet */
	assert_false(zd_endpoint_is_due(&scene->b));
	expect_text(scene, &scene->b, "one");
	assert_true(zd_endpoint_is_due(&scene->b));
	expect_text(scene, &scene->b, "two");
}

SCENE_TEST(test_no_rest_while_something_is_due)
{
	send_text(&scene->a, "one");
	assert_false(zd_endpoint_rest(&scene->b));
	send_text(&scene->a, "two"); /* it still looks */
	assert_false(is_readable(&scene->b));
	expect_text(scene, &scene->b, "one");
	expect_text(scene, &scene->b, "two");
	assert_true(zd_endpoint_rest(&scene->b));
}

SCENE_TEST(test_descriptors_by_the_socket)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	send_text(&scene->a, "one");
	assert_int_equal(zd_endpoint_send(&scene->a, "fd", 2, &fd, 1, NULL), 0);
	send_text(&scene->a, "two");
	(void)close(fd);
	expect_text(scene, &scene->b, "one");
	assert_int_equal(try_recv(scene, &scene->b), 0);
	assert_int_equal(scene->nfds, 1);
	(void)close(scene->fds[0]);
	expect_text(scene, &scene->b, "two");
}

SCENE_TEST(test_large_ones_by_the_socket)
{
	uint8_t *large = zd_calloc(1, ZD_MAX_PACKET_BYTES);

	send_text(&scene->a, "one");
	assert_int_equal(zd_endpoint_send(&scene->a, large, ZD_MAX_PACKET_BYTES, NULL, 0, NULL), 0);
	send_text(&scene->a, "two");
	expect_text(scene, &scene->b, "one");
	assert_int_equal(try_recv(scene, &scene->b), 0);
	assert_int_equal(scene->nbytes, ZD_MAX_PACKET_BYTES);
	expect_text(scene, &scene->b, "two");
	free(large);
}

SCENE_TEST(test_what_came_before_the_end)
{
	send_text(&scene->a, "one");
	assert_true(zd_endpoint_rest(&scene->a)); /* of the other direction: it changes nothing here */
	send_text(&scene->a, "two");
	(void)close(scene->a.sock);
	scene->a.sock = -1;
	expect_text(scene, &scene->b, "one");
	expect_text(scene, &scene->b, "two");
	assert_int_equal(try_recv(scene, &scene->b), ZEROD_E_DISCONNECTED);
}

SCENE_TEST(test_a_ring_that_makes_no_sense)
{
	struct zd_err err;

	atomic_store(&scene->rings->requests.tail, UINT64_MAX);
	assert_false(zd_endpoint_rest(&scene->b));
	assert_int_equal(zd_endpoint_try_recv(&scene->b, scene->in, sizeof(scene->in), &scene->nbytes,
	                                      scene->fds, &scene->nfds, &err),
	                 ZEROD_E_PROTOCOL);
}

SETUP_TEST(test_without_rings_it_is_a_socket)
{
	assert_true(zd_endpoint_rest(&scene->b));
	assert_int_equal(try_recv(scene, &scene->b), ZD_FRAME_AGAIN);
	send_text(&scene->a, "x"); /* one byte wakes nobody here: it is a packet */
	assert_true(is_readable(&scene->b));
	expect_text(scene, &scene->b, "x");
	zd_endpoint_start_polling(&scene->b);
}

/* ---- In whatever order --------------------------------------------------------------------------------- */

static uint32_t next_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*seed >> 33);
}

static void send_numbered(struct scene *scene, uint32_t number, uint64_t *seed)
{
	static uint32_t words[ZD_MAX_PACKET_BYTES / 4];
	uint32_t kind = next_random(seed) % 16;
	size_t nbytes = kind == 0 ? 20000 : 4 + 4 * (next_random(seed) % 600);
	int fd = 0;
	int rc;

	words[0] = number;
	rc = zd_endpoint_send(&scene->a, words, nbytes, &fd, kind == 1, NULL);
	assert_int_equal(rc, 0);
}

static void recv_numbered(struct scene *scene, uint32_t number)
{
	uint32_t got;

	assert_int_equal(try_recv(scene, &scene->b), 0);
	memcpy(&got, scene->in, sizeof(got));
	assert_int_equal(got, number);
	if (scene->nfds == 1)
		(void)close(scene->fds[0]);
}

SCENE_TEST(test_any_mixture_comes_in_order)
{
	for (uint64_t round = 0; round < 50; round++) {
		uint64_t seed = round;
		uint32_t nsent = 0, nreceived = 0;

		for (unsigned step = 0; step < 400; step++) {
			switch (next_random(&seed) % 4) {
			case 0:
				if (zd_endpoint_rest(&scene->b) && next_random(&seed) % 2)
					zd_endpoint_start_polling(&scene->b);
				break;
			case 1:
				zd_endpoint_start_polling(&scene->b);
				break;
			case 2:
				if (nsent - nreceived < 4)
					send_numbered(scene, nsent++, &seed);
				break;
			default:
				if (nreceived < nsent)
					recv_numbered(scene, nreceived++);
			}
		}
		while (nreceived < nsent)
			recv_numbered(scene, nreceived++);
		assert_int_equal(try_recv(scene, &scene->b), ZD_FRAME_AGAIN);
	}
}

/* ---- Nobody is left asleep ----------------------------------------------------------------------------- */

#define MOST_PACKETS 5000u
#define MOST_LOOKS   (500 * ROUNDS_LOOKS_EACH)
#define MOST_STEPS   1024u

/* Sends each packet about when the other side, having received the one before, comes to rest: a packet then
 * in the ring must wake that side. If it does not, the next packet arrives first, by the socket. */
static void *send_all(void *arg)
{
	struct rounds rounds = rounds_of(MOST_PACKETS);
	struct scene *scene = arg;
	unsigned number;

	do {
		for (unsigned looks = 0; looks < MOST_LOOKS && atomic_load(&scene->received) != rounds.begun;)
			rounds_look_again(&looks);
		number = rounds_next(&rounds) ? rounds.begun : ROUNDS_OVER;
		rounds_dally(rounds.begun % MOST_STEPS);
		while (zd_endpoint_send(&scene->a, &number, sizeof(number), NULL, 0, NULL) == ZD_FRAME_AGAIN)
			sched_yield();
	} while (number != ROUNDS_OVER);
	return NULL;
}

SCENE_TEST(test_who_sleeps_is_woken)
{
	unsigned got = 0;
	cpu_set_t allowed;
	pthread_t sender;

	assert_int_equal(pthread_create(&sender, NULL, send_all, scene), 0);
	rounds_pin(sender, &allowed);
	while (got != ROUNDS_OVER) {
		int rc;

		if (zd_endpoint_rest(&scene->b))
			rc = zd_endpoint_recv_wait(&scene->b, scene->in, sizeof(scene->in), &scene->nbytes,
			                           scene->fds, &scene->nfds, NULL);
		else
			rc = zd_endpoint_recv(&scene->b, scene->in, sizeof(scene->in), &scene->nbytes,
			                      scene->fds, &scene->nfds, NULL);
		zd_endpoint_start_polling(&scene->b);
		if (rc == ZD_FRAME_AGAIN)
			continue;
		assert_int_equal(rc, 0);
		memcpy(&got, scene->in, sizeof(got));
		if (got != ROUNDS_OVER) {
			assert_int_equal(got, scene->received + 1);
			scene->received++;
		}
		rounds_dally(MOST_STEPS);
	}
	rounds_unpin(&allowed);
	assert_int_equal(pthread_join(sender, NULL), 0);
	assert_true(scene->received > 0);
}
