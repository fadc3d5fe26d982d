/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets over a real socket pair. A peer that keeps to nothing is played by raw sendmsg(); that no
 * descriptor is left behind is seen by counting the process's own.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/mem.h"
#include "proto/frame.h"
#include "tests/support/test.h"

struct pair {
	int ours, theirs;
	int fds_before;
	uint8_t *buffer;
};

static int count_open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = -1; /* the directory's own */

	assert_non_null(dir);
	for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
		if (entry->d_name[0] != '.')
			count++;
	closedir(dir);
	return count;
}

static int setup(void **state)
{
	struct pair *pair = zd_calloc(1, sizeof(*pair));
	int ends[2];

	pair->fds_before = count_open_fds();
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	pair->ours = ends[0];
	pair->theirs = ends[1];
	pair->buffer = zd_calloc(2, ZD_MAX_PACKET_BYTES);
	*state = pair;
	return 0;
}

static void close_theirs(struct pair *pair)
{
	close(pair->theirs);
	pair->theirs = -1;
}

/* Every test ends with the descriptors it began with. */
static int teardown(void **state)
{
	struct pair *pair = *state;
	int before = pair->fds_before;

	close(pair->ours);
	if (pair->theirs >= 0)
		close(pair->theirs);
	free(pair->buffer);
	free(pair);
	assert_int_equal(count_open_fds(), before);
	return 0;
}

#define PAIR_TEST(name) FIXTURE_TEST(name, struct pair *pair, setup, teardown)

/* The result of a receive; descriptors are counted and closed. */
struct received {
	int rc;
	size_t nbytes;
	unsigned nfds;
	struct zd_err err;
};

static struct received receive(struct pair *pair)
{
	struct received got = {.nbytes = 12345, .nfds = 99};
	int fds[ZD_MAX_PACKET_FDS];

	got.rc = zd_frame_recv(pair->ours, pair->buffer, ZD_MAX_PACKET_BYTES, &got.nbytes, fds, &got.nfds,
	                       &got.err);
	if (got.rc != 0) { /* out-parameters are untouched */
		assert_int_equal(got.nbytes, 12345);
		assert_int_equal(got.nfds, 99);
		return got;
	}
	for (unsigned i = 0; i < got.nfds; i++) {
		assert_true(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
		close(fds[i]);
	}
	return got;
}

/* A peer that keeps to no limits. */
static ssize_t send_raw(int sock, const void *bytes, size_t nbytes, unsigned nfds)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(64 * sizeof(int))];
	} control = {0};
	struct iovec iov = {.iov_base = (void *)bytes, .iov_len = nbytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (nfds > 0) {
		struct cmsghdr *cmsg;

		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		for (unsigned i = 0; i < nfds; i++)
			memcpy(CMSG_DATA(cmsg) + i * sizeof(int), &sock, sizeof(int));
	}
	return sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* ---- Packets ------------------------------------------------------------------------------------------- */

PAIR_TEST(packets_keep_their_bounds)
{
	struct received got;

	assert_int_equal(zd_frame_send(pair->theirs, "first", 5, NULL, 0, NULL), 0);
	assert_int_equal(zd_frame_send(pair->theirs, "second!", 7, NULL, 0, NULL), 0);
	got = receive(pair);
	assert_int_equal(got.rc, 0);
	assert_int_equal(got.nbytes, 5);
	assert_int_equal(got.nfds, 0);
	assert_memory_equal(pair->buffer, "first", 5);
	got = receive(pair);
	assert_int_equal(got.nbytes, 7);
	assert_memory_equal(pair->buffer, "second!", 7);
	assert_int_equal(receive(pair).rc, ZD_FRAME_AGAIN);
}

PAIR_TEST(largest_packet_passes)
{
	uint8_t *bytes = zd_calloc(ZD_MAX_PACKET_BYTES, 1);
	struct received got;

	for (size_t i = 0; i < ZD_MAX_PACKET_BYTES; i++)
		bytes[i] = (uint8_t)(i * 7);
	assert_int_equal(zd_frame_send(pair->theirs, bytes, ZD_MAX_PACKET_BYTES, NULL, 0, NULL), 0);
	got = receive(pair);
	assert_int_equal(got.rc, 0);
	assert_int_equal(got.nbytes, ZD_MAX_PACKET_BYTES);
	assert_memory_equal(pair->buffer, bytes, ZD_MAX_PACKET_BYTES);
	free(bytes);
}

PAIR_TEST(sender_refuses_what_nobody_may_send)
{
	struct zd_err err = ZD_ERR_NONE;
	int fds[ZD_MAX_PACKET_FDS + 1] = {0};

	assert_int_equal(zd_frame_send(pair->theirs, pair->buffer, ZD_MAX_PACKET_BYTES + 1, NULL, 0, &err),
	                 ZEROD_E_LIMIT);
	assert_string_equal(err.text, "a packet of 65537 bytes: 1 to 65536 are allowed");
	assert_int_equal(zd_frame_send(pair->theirs, pair->buffer, 0, NULL, 0, &err), ZEROD_E_LIMIT);
	assert_int_equal(zd_frame_send(pair->theirs, "x", 1, fds, ZD_MAX_PACKET_FDS + 1, &err),
	                 ZEROD_E_LIMIT);
	assert_string_equal(err.text, "a packet with 9 descriptors, the limit is 8");
	assert_int_equal(receive(pair).rc, ZD_FRAME_AGAIN);
}

/* Also when the caller's buffer had room for it; and the next packet is unharmed. */
PAIR_TEST(oversize_packet_is_refused)
{
	struct received got;
	int fds[ZD_MAX_PACKET_FDS];

	assert_true(send_raw(pair->theirs, pair->buffer, ZD_MAX_PACKET_BYTES + 1, 3) > 0);
	assert_true(send_raw(pair->theirs, pair->buffer, ZD_MAX_PACKET_BYTES + 1, 0) > 0);
	assert_true(send_raw(pair->theirs, "next", 4, 0) > 0);
	got = receive(pair);
	assert_int_equal(got.rc, ZEROD_E_LIMIT);
	assert_string_equal(got.err.text, "a packet of more than 65536 bytes");
	got.nbytes = 12345;
	got.rc = zd_frame_recv(pair->ours, pair->buffer, 2ul * ZD_MAX_PACKET_BYTES, &got.nbytes, fds,
	                       &got.nfds, NULL);
	assert_int_equal(got.rc, ZEROD_E_LIMIT);
	assert_int_equal(got.nbytes, 12345);
	got = receive(pair);
	assert_int_equal(got.rc, 0);
	assert_memory_equal(pair->buffer, "next", 4);
}

/* ---- Descriptors --------------------------------------------------------------------------------------- */

PAIR_TEST(descriptors_arrive_in_order)
{
	int sent[ZD_MAX_PACKET_FDS], came[ZD_MAX_PACKET_FDS];
	unsigned nfds = 0;
	size_t nbytes = 0;

	for (unsigned i = 0; i < ZD_MAX_PACKET_FDS; i++) {
		sent[i] = memfd_create("frame", MFD_CLOEXEC);
		assert_int_equal(pwrite(sent[i], &i, sizeof(i), 0), sizeof(i));
	}
	assert_int_equal(zd_frame_send(pair->theirs, "fds", 3, sent, ZD_MAX_PACKET_FDS, NULL), 0);
	assert_int_equal(
	        zd_frame_recv(pair->ours, pair->buffer, ZD_MAX_PACKET_BYTES, &nbytes, came, &nfds, NULL), 0);
	assert_int_equal(nbytes, 3);
	assert_int_equal(nfds, ZD_MAX_PACKET_FDS);
	for (unsigned i = 0; i < nfds; i++) {
		unsigned content = 77;

		assert_int_equal(pread(came[i], &content, sizeof(content), 0), sizeof(content));
		assert_int_equal(content, i);
		assert_true(fcntl(came[i], F_GETFD) & FD_CLOEXEC);
		close(came[i]);
		close(sent[i]); /* stayed the sender's */
	}
}

PAIR_TEST(too_many_descriptors_are_refused_and_closed)
{
	int before = count_open_fds();
	struct received got;

	for (unsigned nfds = ZD_MAX_PACKET_FDS + 1; nfds <= 64; nfds += 11) {
		assert_true(send_raw(pair->theirs, "x", 1, nfds) > 0);
		got = receive(pair);
		assert_int_equal(got.rc, ZEROD_E_LIMIT);
		assert_string_equal(got.err.text, "a packet with more than 8 descriptors");
		assert_int_equal(count_open_fds(), before);
	}
}

/* An empty packet looks like the end of the connection; its descriptors must not stay. */
PAIR_TEST(empty_packet_with_descriptors)
{
	int before = count_open_fds();

	assert_int_equal(send_raw(pair->theirs, "", 0, 5), 0);
	assert_int_equal(receive(pair).rc, ZEROD_E_DISCONNECTED);
	assert_int_equal(count_open_fds(), before);
}

/* Room for `spare` more descriptors in this process, then none. */
static struct rlimit allow_more_fds(int spare)
{
	struct rlimit before, tight;
	int lowest_free = dup(0);

	assert_true(lowest_free >= 0);
	close(lowest_free);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	tight = before;
	tight.rlim_cur = (rlim_t)lowest_free + (rlim_t)spare;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
	return before;
}

/* valgrind keeps a limit of its own, which recvmsg does not meet. */
static bool under_valgrind(void)
{
	const char *preload = getenv("LD_PRELOAD");

	return preload && strstr(preload, "vgpreload");
}

PAIR_TEST(descriptors_exhausted)
{
	int before = count_open_fds();

	if (under_valgrind())
		skip();
	for (int spare = 0; spare < 4; spare++) {
		struct rlimit usual;
		struct received got;

		assert_true(send_raw(pair->theirs, "x", 1, 4) > 0);
		usual = allow_more_fds(spare);
		got = receive(pair);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
		assert_int_equal(got.rc, ZEROD_E_SYSTEM);
		assert_string_equal(got.err.text, "receiving a packet's descriptors: Too many open files");
		assert_int_equal(count_open_fds(), before);
	}
	/* The connection lives on. */
	assert_true(send_raw(pair->theirs, "x", 1, 4) > 0);
	assert_int_equal(receive(pair).nfds, 4);
}

/* ---- Connections --------------------------------------------------------------------------------------- */

PAIR_TEST(peer_closed)
{
	struct zd_err err = ZD_ERR_NONE;

	assert_int_equal(zd_frame_send(pair->theirs, "bye", 3, NULL, 0, NULL), 0);
	close_theirs(pair);
	assert_int_equal(receive(pair).rc, 0);
	assert_int_equal(receive(pair).rc, ZEROD_E_DISCONNECTED);
	assert_int_equal(receive(pair).rc, ZEROD_E_DISCONNECTED);
	assert_int_equal(zd_frame_send(pair->ours, "x", 1, NULL, 0, &err), ZEROD_E_DISCONNECTED);
	assert_non_null(strstr(err.text, "the other side closed the connection"));
}

/* The peer closed without having read what we sent: the kernel reports a reset ahead of the peer's last
 * packets. */
PAIR_TEST(last_words_before_a_reset)
{
	assert_int_equal(zd_frame_send(pair->ours, "unread", 6, NULL, 0, NULL), 0);
	assert_int_equal(zd_frame_send(pair->theirs, "because", 7, NULL, 0, NULL), 0);
	close_theirs(pair);
	assert_int_equal(receive(pair).rc, 0);
	assert_memory_equal(pair->buffer, "because", 7);
	assert_int_equal(receive(pair).rc, ZEROD_E_DISCONNECTED);
}

PAIR_TEST(full_socket_says_again)
{
	unsigned sent = 0, came = 0;
	int rc;

	while ((rc = zd_frame_send(pair->ours, pair->buffer, ZD_MAX_PACKET_BYTES, NULL, 0, NULL)) == 0)
		sent++;
	assert_int_equal(rc, ZD_FRAME_AGAIN);
	assert_true(sent > 0);
	while (recv(pair->theirs, pair->buffer, ZD_MAX_PACKET_BYTES, MSG_DONTWAIT) > 0)
		came++;
	assert_int_equal(came, sent);
	assert_int_equal(zd_frame_send(pair->ours, "x", 1, NULL, 0, NULL), 0);
}

PAIR_TEST(not_a_socket)
{
	struct zd_err err = ZD_ERR_NONE;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	(void)pair;
	assert_int_equal(zd_frame_send(null, "x", 1, NULL, 0, &err), ZEROD_E_SYSTEM);
	assert_string_equal(err.text, "sending a packet: Socket operation on non-socket");
	close(null);
}

TEST(addresses)
{
	struct sockaddr_un addr;
	struct zd_err err = ZD_ERR_NONE;
	char path[sizeof(addr.sun_path) + 1];

	assert_int_equal(zd_frame_address("/run/zerod/zerod.sock", &addr, &err), 0);
	assert_int_equal(addr.sun_family, AF_UNIX);
	assert_string_equal(addr.sun_path, "/run/zerod/zerod.sock");
	assert_int_equal(zd_frame_address("", &addr, &err), ZEROD_E_INVALID);
	assert_int_equal(zd_frame_address(NULL, &addr, &err), ZEROD_E_INVALID);
	memset(path, 'p', sizeof(path));
	path[sizeof(path) - 2] = '\0';
	assert_int_equal(zd_frame_address(path, &addr, &err), 0);
	assert_string_equal(addr.sun_path, path);
	path[sizeof(path) - 2] = 'p';
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(zd_frame_address(path, &addr, &err), ZEROD_E_INVALID);
	assert_non_null(strstr(err.text, "has 108 bytes, the limit is 107"));
}

static void *send_one(void *arg)
{
	const struct pair *pair = arg;

	return zd_frame_send(pair->theirs, "a", 1, NULL, 0, NULL) ? arg : NULL;
}

static int receive_waiting(struct pair *pair)
{
	int fds[ZD_MAX_PACKET_FDS];
	size_t nbytes = 0;
	unsigned nfds = 0;
	int rc = zd_frame_recv_wait(pair->ours, pair->buffer, ZD_MAX_PACKET_BYTES, &nbytes, fds, &nfds, NULL);

	assert_int_equal(nbytes, rc == 0);
	return rc;
}

/* As the socket blocks: for ever, for a while, not at all. */
PAIR_TEST(waiting_for_a_packet)
{
	const struct timeval soon = {.tv_usec = 1000};
	pthread_t thread;
	void *sent;

	assert_int_equal(pthread_create(&thread, NULL, send_one, pair), 0);
	assert_int_equal(receive_waiting(pair), 0);
	assert_int_equal(pthread_join(thread, &sent), 0);
	assert_null(sent);
	assert_int_equal(setsockopt(pair->ours, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon)), 0);
	assert_int_equal(receive_waiting(pair), ZD_FRAME_AGAIN);
	assert_int_equal(fcntl(pair->ours, F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(receive_waiting(pair), ZD_FRAME_AGAIN);
	close_theirs(pair);
	assert_int_equal(receive_waiting(pair), ZEROD_E_DISCONNECTED);
}
