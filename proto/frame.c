/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.c - one packet of a SOCK_SEQPACKET socket, with descriptors.
 *
 * What must hold: a descriptor that arrived is either handed to the caller or closed, on every path; only
 * zd_frame_recv_wait() blocks; a peer can cause errors on its own socket and nothing else.
 */
#include "proto/frame.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Room for one SCM_RIGHTS message, aligned as the macros of <sys/socket.h> need it. */
union fd_control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(ZD_MAX_PACKET_FDS * sizeof(int))];
};

/* The descriptors of one packet while they are not the caller's yet. */
struct fd_set_in {
	int fds[ZD_MAX_PACKET_FDS];
	unsigned count;
};

int zd_frame_address(const char *path, struct sockaddr_un *addr, struct zd_err *err)
{
	size_t bytes = path ? strlen(path) : 0;

	if (bytes == 0)
		return zd_err_set(err, ZEROD_E_INVALID, "the socket's path is empty");
	if (bytes >= sizeof(addr->sun_path))
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "the socket's path has %zu bytes, the limit is %zu: %s", bytes,
		                  sizeof(addr->sun_path) - 1, path);
	memset(addr, 0, sizeof(*addr));
	addr->sun_family = AF_UNIX;
	memcpy(addr->sun_path, path, bytes);
	return 0;
}

/* Translates the errno of a failed sendmsg() or recvmsg() for the connection; callers handle EINTR. */
static int socket_error(int errno_value, const char *doing, struct zd_err *err)
{
	switch (errno_value) {
	case EAGAIN: /* the same number as EWOULDBLOCK on Linux */
		return ZD_FRAME_AGAIN;
	case EPIPE:
	case ECONNRESET:
	case ECONNREFUSED: /* from older kernels, when the peer closes at this very moment */
	case ENOTCONN:
		return zd_err_set(err, ZEROD_E_DISCONNECTED,
		                  "%s a packet: the other side closed the connection", doing);
	default:
		return zd_err_errno(err, errno_value, "%s a packet", doing);
	}
}

/* ---- Sending ------------------------------------------------------------------------------------------- */

static void attach_fds(struct msghdr *msg, union fd_control *control, const int *fds, unsigned nfds)
{
	struct cmsghdr *cmsg;

	memset(control, 0, sizeof(*control));
	msg->msg_control = control->bytes;
	msg->msg_controllen = CMSG_SPACE(nfds * sizeof(int));
	cmsg = CMSG_FIRSTHDR(msg);
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(nfds * sizeof(int));
	memcpy(CMSG_DATA(cmsg), fds, nfds * sizeof(int));
}

int zd_frame_send(int sock, const void *bytes, size_t nbytes, const int *fds, unsigned nfds,
                  struct zd_err *err)
{
	struct iovec iov = {.iov_base = (void *)bytes, .iov_len = nbytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	union fd_control control;
	ssize_t sent;

	/* The other side could not tell an empty packet from the end of the connection. */
	if (nbytes == 0 || nbytes > ZD_MAX_PACKET_BYTES)
		return zd_err_set(err, ZEROD_E_LIMIT, "a packet of %zu bytes: 1 to %u are allowed", nbytes,
		                  ZD_MAX_PACKET_BYTES);
	if (nfds > ZD_MAX_PACKET_FDS)
		return zd_err_set(err, ZEROD_E_LIMIT, "a packet with %u descriptors, the limit is %u", nfds,
		                  ZD_MAX_PACKET_FDS);
	if (nfds > 0)
		attach_fds(&msg, &control, fds, nfds);
	do
		sent = sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent < 0)
		return socket_error(errno, "sending", err);
	return 0;
}

/* ---- Receiving ----------------------------------------------------------------------------------------- */

static void take_fds(struct msghdr *msg, struct fd_set_in *in)
{
	in->count = 0;
	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
		size_t count;

		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		/* The control buffer holds no more than these. */
		count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		zd_assert(count <= ZD_MAX_PACKET_FDS - in->count);
		memcpy(in->fds + in->count, CMSG_DATA(cmsg), count * sizeof(int));
		in->count += (unsigned)count;
	}
}

static void close_fds(struct fd_set_in *in)
{
	for (unsigned i = 0; i < in->count; i++)
		(void)close(in->fds[i]);
	in->count = 0;
}

/* recvmsg with the descriptors taken out of it: what recvmsg returns, or -1 with errno. */
static ssize_t receive_frame(int sock, void *buffer, size_t buffer_bytes, bool wait, struct fd_set_in *in,
                             int *flags)
{
	struct iovec iov = {.iov_base = buffer, .iov_len = buffer_bytes};
	union fd_control control;
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	bool reset_seen = false;
	ssize_t got;

	for (;;) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = sizeof(control.bytes);
		got = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
		if (got >= 0)
			break;
		/* A reset is reported once and before the packets that the peer sent ahead of it. They are
		 * its last words, perhaps the reason: read on, and the end follows. */
		if (errno == ECONNRESET && !reset_seen)
			reset_seen = true;
		else if (errno != EINTR || wait)
			return -1;
	}
	take_fds(&msg, in);
	*flags = msg.msg_flags;
	return got;
}

/* Checks that the packet is complete. MSG_CTRUNC means either too many descriptors, or that this process
 * cannot open any more. */
static int check_whole(size_t nbytes, unsigned nfds, int flags, struct zd_err *err)
{
	if (nbytes == 0)
		return zd_err_set(err, ZEROD_E_DISCONNECTED,
		                  "receiving a packet: the other side closed the connection");
	if (flags & MSG_TRUNC)
		return zd_err_set(err, ZEROD_E_LIMIT, "a packet of more than %u bytes", ZD_MAX_PACKET_BYTES);
	if (flags & MSG_CTRUNC && nfds == ZD_MAX_PACKET_FDS)
		return zd_err_set(err, ZEROD_E_LIMIT, "a packet with more than %u descriptors",
		                  ZD_MAX_PACKET_FDS);
	if (flags & MSG_CTRUNC)
		return zd_err_errno(err, EMFILE, "receiving a packet's descriptors");
	return 0;
}

static int receive_whole(int sock, void *buffer, size_t buffer_bytes, bool wait, size_t *nbytes,
                         int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
{
	struct fd_set_in in;
	ssize_t got;
	int flags, rc;

	zd_assert(buffer_bytes >= ZD_MAX_PACKET_BYTES);
	got = receive_frame(sock, buffer, ZD_MAX_PACKET_BYTES, wait, &in, &flags);
	if (got < 0 && errno == EINTR)
		return ZD_FRAME_AGAIN;
	if (got < 0)
		return socket_error(errno, "receiving", err);
	rc = check_whole((size_t)got, in.count, flags, err);
	if (rc) {
		close_fds(&in);
		return rc;
	}
	memcpy(fds, in.fds, in.count * sizeof(int));
	*nfds = in.count;
	*nbytes = (size_t)got;
	return 0;
}

int zd_frame_recv(int sock, void *buffer, size_t buffer_bytes, size_t *nbytes, int fds[ZD_MAX_PACKET_FDS],
                  unsigned *nfds, struct zd_err *err)
{
	return receive_whole(sock, buffer, buffer_bytes, false, nbytes, fds, nfds, err);
}

int zd_frame_recv_wait(int sock, void *buffer, size_t buffer_bytes, size_t *nbytes,
                       int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
{
	return receive_whole(sock, buffer, buffer_bytes, true, nbytes, fds, nfds, err);
}
