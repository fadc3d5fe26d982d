/* SPDX-License-Identifier: Apache-2.0 */
/* raw_client.c - a client of the daemon that says whatever a test wants it to say. */
#include "raw_client.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"

/* ---- Time ---------------------------------------------------------------------------------------------- */

static int64_t now_ms(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* False when the socket does not become ready in time. */
static bool await(int sock, short events, int64_t deadline_ms)
{
	struct pollfd poll_for = {.fd = sock, .events = events};
	int64_t left_ms = deadline_ms - now_ms();
	int polled;

	do
		polled = poll(&poll_for, 1, left_ms > 0 ? (int)left_ms : 0);
	while (polled < 0 && errno == EINTR);
	return polled > 0;
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

void raw_connect(struct raw_client *raw, const char *socket_path)
{
	struct sockaddr_un address;

	memset(raw, 0, sizeof(*raw));
	assert_int_equal(zd_frame_address(socket_path, &address, NULL), 0);
	raw->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_true(raw->sock >= 0);
	assert_int_equal(connect(raw->sock, (const struct sockaddr *)&address, sizeof(address)), 0);
}

void raw_hello(struct raw_client *raw)
{
	uint64_t id = raw_send(
	        raw, RAW(HELLO, hello, Hello, .version_min = 1, .version_max = 1, .name = RAW_TEXT("raw")));
	const Zd__Reply *reply = raw_expect(raw, id, 0);

	assert_int_equal(reply->body_case, ZD__REPLY__BODY_HELLO);
	assert_non_null(raw->client_page);
	assert_non_null(raw->daemon_page);
	raw->session = reply->hello->session;
}

void raw_open(struct raw_client *raw, const char *socket_path)
{
	raw_connect(raw, socket_path);
	raw_hello(raw);
}

void raw_forget(struct raw_client *raw)
{
	for (size_t i = 0; i < raw->npackets; i++)
		zd__daemon_packet__free_unpacked(raw->packets[i], NULL);
	raw->npackets = 0;
}

void raw_close(struct raw_client *raw)
{
	if (raw->sock >= 0)
		(void)close(raw->sock);
	raw->sock = -1;
	raw_forget(raw);
	if (raw->client_page)
		(void)munmap(raw->client_page, ZD_FENCE_PAGE_BYTES);
	if (raw->daemon_page)
		(void)munmap((void *)raw->daemon_page, ZD_FENCE_PAGE_BYTES);
	raw->client_page = NULL;
	raw->daemon_page = NULL;
}

/* ---- Out ----------------------------------------------------------------------------------------------- */

static ssize_t send_once(const struct raw_client *raw, const void *bytes, size_t nbytes, const int *fds,
                         unsigned nfds)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * 2 * ZD_MAX_PACKET_FDS)];
	} control = {.bytes = {0}};
	struct iovec iov = {.iov_base = (void *)bytes, .iov_len = nbytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (nfds > 0) {
		struct cmsghdr *cmsg = &control.align;

		assert_true(nfds <= 2 * ZD_MAX_PACKET_FDS);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, nfds * sizeof(int));
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
	}
	return sendmsg(raw->sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void raw_send_bytes(struct raw_client *raw, const void *bytes, size_t nbytes, const int *fds, unsigned nfds)
{
	int64_t deadline_ms = now_ms() + RAW_DEADLINE_MS;
	ssize_t sent;

	while ((sent = send_once(raw, bytes, nbytes, fds, nfds)) < 0 && errno == EAGAIN) {
		raw_drain(raw); /* the daemon reads no more from who does not read */
		assert_true(await(raw->sock, POLLOUT, deadline_ms));
	}
	assert_int_equal(sent, nbytes);
}

bool raw_try_send(struct raw_client *raw, const void *bytes, size_t nbytes)
{
	return send_once(raw, bytes, nbytes, NULL, 0) == (ssize_t)nbytes;
}

size_t raw_pack(Zd__Request *request, uint8_t *bytes, size_t room)
{
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;

	packet.n_requests = 1;
	packet.requests = &request;
	assert_true(zd__client_packet__get_packed_size(&packet) <= room);
	return zd__client_packet__pack(&packet, bytes);
}

uint64_t raw_send(struct raw_client *raw, Zd__Request *request)
{
	static uint8_t bytes[ZD_MAX_PACKET_BYTES];

	if (request->id == 0)
		request->id = ++raw->last_id;
	raw_send_bytes(raw, bytes, raw_pack(request, bytes, sizeof(bytes)), NULL, 0);
	return request->id;
}

/* ---- In ------------------------------------------------------------------------------------------------ */

static void *map_fd(int fd, size_t nbytes, int protection)
{
	void *map = mmap(NULL, nbytes, protection, MAP_SHARED, fd, 0);

	assert_ptr_not_equal(map, MAP_FAILED);
	(void)close(fd);
	return map;
}

static void take_fds(struct raw_client *raw, const Zd__DaemonPacket *packet, const int *fds, unsigned nfds)
{
	unsigned used = 0;

	if (!raw->client_page && nfds >= 2 && packet->n_replies > 0 &&
	    packet->replies[0]->body_case == ZD__REPLY__BODY_HELLO) {
		raw->client_page = map_fd(fds[0], ZD_FENCE_PAGE_BYTES, PROT_READ | PROT_WRITE);
		raw->daemon_page = map_fd(fds[1], ZD_FENCE_PAGE_BYTES, PROT_READ);
		used = 2;
	}
	assert_int_equal(nfds - used, packet->n_segments);
	for (; used < nfds; used++)
		(void)close(fds[used]);
}

/* 0, ZD_FRAME_AGAIN, or DISCONNECTED. */
static int receive(struct raw_client *raw)
{
	static uint8_t bytes[ZD_MAX_PACKET_BYTES];
	struct zd_err err = ZD_ERR_NONE;
	int fds[ZD_MAX_PACKET_FDS];
	Zd__DaemonPacket *packet;
	unsigned nfds;
	size_t nbytes;
	int rc = zd_frame_recv(raw->sock, bytes, sizeof(bytes), &nbytes, fds, &nfds, &err);

	if (rc == ZD_FRAME_AGAIN || rc == ZEROD_E_DISCONNECTED)
		return rc;
	if (rc)
		print_error("raw client: %s\n", err.text);
	assert_int_equal(rc, 0);
	packet = zd__daemon_packet__unpack(NULL, nbytes, bytes);
	assert_non_null(packet);
	assert_true(raw->npackets < RAW_MAX_PACKETS);
	raw->packets[raw->npackets++] = packet;
	take_fds(raw, packet, fds, nfds);
	return 0;
}

void raw_drain(struct raw_client *raw)
{
	while (receive(raw) == 0)
		continue;
}

const Zd__Reply *raw_find(const struct raw_client *raw, uint64_t id)
{
	for (size_t i = raw->npackets; i-- > 0;)
		for (size_t j = raw->packets[i]->n_replies; j-- > 0;)
			if (raw->packets[i]->replies[j]->id == id)
				return raw->packets[i]->replies[j];
	return NULL;
}

const Zd__Reply *raw_answer(struct raw_client *raw, uint64_t id)
{
	int64_t deadline_ms = now_ms() + RAW_DEADLINE_MS;
	const Zd__Reply *reply;

	while (!(reply = raw_find(raw, id))) {
		int rc = receive(raw);

		if (rc == ZEROD_E_DISCONNECTED)
			return NULL;
		if (rc == ZD_FRAME_AGAIN && !await(raw->sock, POLLIN, deadline_ms))
			fail_msg("no reply to request %llu within %d s", (unsigned long long)id,
			         RAW_DEADLINE_MS / 1000);
	}
	return reply;
}

static void check_status(const Zd__Reply *reply, uint64_t id, int status)
{
	if (!reply)
		print_error("request %llu: no reply, expected %s\n", (unsigned long long)id,
		            zerod_status_name(status));
	else if (reply->status != status)
		print_error("request %llu: %s: %s, expected %s\n", (unsigned long long)id,
		            zerod_status_name(reply->status), reply->error, zerod_status_name(status));
	assert_non_null(reply);
	assert_int_equal(reply ? reply->status : 0, status);
}

static void check_texts(const Zd__Reply *reply, const char *const *texts)
{
	for (; *texts; texts++) {
		if (!strstr(reply->error, *texts))
			print_error("'%s' does not say '%s'\n", reply->error, *texts);
		assert_non_null(strstr(reply->error, *texts));
	}
}

const Zd__Reply *raw_expect(struct raw_client *raw, uint64_t id, int status)
{
	const Zd__Reply *reply = raw_answer(raw, id);

	check_status(reply, id, status);
	return reply;
}

void raw_expect_error(struct raw_client *raw, uint64_t id, int status, const char *const *texts)
{
	check_texts(raw_expect(raw, id, status), texts);
}

void raw_expect_farewell(struct raw_client *raw, int status, const char *const *texts)
{
	raw_expect_error(raw, 0, status, texts);
	raw_expect_end(raw);
}

void raw_expect_end(struct raw_client *raw)
{
	int64_t deadline_ms = now_ms() + RAW_DEADLINE_MS;
	int rc;

	while ((rc = receive(raw)) != ZEROD_E_DISCONNECTED)
		if (rc == ZD_FRAME_AGAIN)
			assert_true(await(raw->sock, POLLIN, deadline_ms));
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

void raw_signal(struct raw_client *raw, uint32_t timeline, uint64_t value)
{
	__atomic_store_n(&raw->client_page[timeline], value, __ATOMIC_RELEASE);
}
