/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_endpoint_races.c - what the other side may do between two steps of endpoint.c.
 *
 * The steps are endpoint.c's calls of others, which are hooked here: a hook runs what a test says, once, and
 * then what was called.
 */
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/endpoint.h"
#include "tests/support/test.h"

static void (*before_poll)(void), (*behind_write)(void);
static int failure; /* of the socket; 0: none */

static void run_once(void (**hook)(void))
{
	void (*run)(void) = *hook;

	*hook = NULL;
	if (run)
		run();
}

static int hooked_poll(struct pollfd *fds, nfds_t nfds, int timeout_ms)
{
	run_once(&before_poll);
	return poll(fds, nfds, timeout_ms);
}

static bool hooked_write(struct zd_ring_end *end, const void *bytes, size_t nbytes, uint32_t after)
{
	bool written = zd_ring_write(end, bytes, nbytes, after);

	run_once(&behind_write);
	return written;
}

static int hooked_send(int sock, const void *bytes, size_t nbytes, const int *fds, unsigned nfds,
                       struct zd_err *err)
{
	return failure ? failure : zd_frame_send(sock, bytes, nbytes, fds, nfds, err);
}

#define poll          hooked_poll
#define zd_ring_write hooked_write
#define zd_frame_send hooked_send
#include "proto/endpoint.c" /* NOLINT(bugprone-suspicious-include): with the hooks */
#undef poll
#undef zd_ring_write
#undef zd_frame_send

static struct zd_ring *ring;
static struct zd_endpoint sender, receiver;
static uint8_t in[ZD_MAX_PACKET_BYTES];

static int setup(void **state)
{
	int ends[2];

	(void)state;
	ring = aligned_alloc(64, sizeof(*ring));
	assert_non_null(ring);
	memset(ring, 0, sizeof(*ring));
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	sender = (struct zd_endpoint){.sock = ends[0], .out.ring = ring};
	receiver = (struct zd_endpoint){.sock = ends[1], .in.ring = ring};
	zd_endpoint_start_polling(&receiver);
	before_poll = behind_write = NULL;
	failure = 0;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	(void)close(sender.sock);
	(void)close(receiver.sock);
	free(ring);
	return 0;
}

#define SETUP_TEST(name) TEST_DEFINE(name, void, , name(), setup, teardown)

static void say(const char *text)
{
	assert_int_equal(zd_endpoint_send(&sender, text, strlen(text), NULL, 0, NULL), 0);
}

static int receive(void)
{
	int fds[ZD_MAX_PACKET_FDS];
	unsigned nfds;
	size_t nbytes;
	int rc = zd_endpoint_try_recv(&receiver, in, sizeof(in), &nbytes, fds, &nfds, NULL);

	if (rc == 0)
		in[nbytes] = 0;
	return rc;
}

static void expect(const char *text)
{
	assert_int_equal(receive(), 0);
	assert_string_equal((const char *)in, text);
}

static void say_one_by_the_ring_and_two_by_the_socket(void)
{
	say("one");
	atomic_store(&ring->polling, 0);
	say("two");
	atomic_store(&ring->polling, 1);
}

/* The ring was empty when it was looked at, and the socket is readable now. */
SETUP_TEST(test_the_ring_first_when_the_socket_is_readable)
{
	before_poll = say_one_by_the_ring_and_two_by_the_socket;
	expect("one");
	expect("two");
	assert_int_equal(receive(), ZD_FRAME_AGAIN);
}

static void rest(void)
{
	atomic_store(&ring->polling, 0);
}

static bool is_readable(void)
{
	struct pollfd poll_for = {.fd = receiver.sock, .events = POLLIN};

	return poll(&poll_for, 1, 0) == 1;
}

/* It found the ring empty, and sleeps. */
SETUP_TEST(test_asleep_when_the_packet_is_written)
{
	behind_write = rest;
	say("one");
	assert_true(is_readable());
	zd_endpoint_start_polling(&receiver);
	expect("one");
	assert_int_equal(receive(), ZD_FRAME_AGAIN); /* the byte */
	assert_false(is_readable());
	say("two");
	expect("two");
}

/* The socket is full, and its content wakes the receiver: the packet is sent, and once. */
SETUP_TEST(test_no_room_for_the_byte)
{
	behind_write = rest;
	failure = ZD_FRAME_AGAIN;
	say("one");
	failure = 0;
	zd_endpoint_start_polling(&receiver);
	expect("one");
	assert_int_equal(receive(), ZD_FRAME_AGAIN);
}

/* It has taken the packet and ended: whoever reads hears of that, and of the packet's answer. */
SETUP_TEST(test_the_byte_finds_the_end)
{
	char answer[8];

	assert_int_equal(send(receiver.sock, "answer", 6, 0), 6);
	behind_write = rest;
	failure = ZEROD_E_DISCONNECTED;
	say("one");
	assert_int_equal(recv(sender.sock, answer, sizeof(answer), MSG_DONTWAIT), 6);
}

/* Nobody may be left asleep on the packet: both sides hear the end instead. */
SETUP_TEST(test_no_memory_for_the_byte)
{
	behind_write = rest;
	failure = ZEROD_E_SYSTEM;
	say("one");
	failure = 0;
	assert_true(is_readable());
	expect("one");
	assert_int_equal(receive(), ZEROD_E_DISCONNECTED);
	assert_int_equal(zd_endpoint_send(&sender, "two", 3, NULL, 0, NULL), ZEROD_E_DISCONNECTED);
}
