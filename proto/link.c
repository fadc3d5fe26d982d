/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - one side of a socket, and of the rings beside it.
 *
 * What must hold: who reads the socket knows that the next packet is there, not in the ring. So it looks into
 * the ring when it has seen that the socket has something, since whatever was sent before that is visible by
 * then; or it is at rest, and what is still written into the ring is followed by the byte that wakes it.
 */
#include "proto/link.h"

#include <poll.h>
#include <sys/socket.h>

#define WAKE_BYTES 1u /* no message that says anything is that short */

/* ---- Sending ------------------------------------------------------------------------------------------- */

/* The packet is sent already, whatever becomes of the byte. A socket without room has what keeps the other
 * side awake; of one that is closed the readers hear; and where there is no memory for a byte, the connection
 * ends, since the other side may sleep on the packet. */
static void wake(struct zd_link *link)
{
	static const uint8_t byte;
	int rc = zd_frame_send(link->sock, &byte, WAKE_BYTES, NULL, 0, NULL);

	if (rc < 0 && rc != ZEROD_E_DISCONNECTED)
		(void)shutdown(link->sock, SHUT_RDWR);
}

int zd_link_send(struct zd_link *link, const void *bytes, size_t nbytes, const int *fds, unsigned nfds,
                 struct zd_err *err)
{
	struct zd_ring *ring = link->out.ring;
	int rc;

	if (ring && nfds == 0 && nbytes > 0 && atomic_load_explicit(&ring->looks, memory_order_relaxed) &&
	    zd_ring_write(&link->out, bytes, nbytes, link->nsent)) {
		if (!atomic_load(&ring->looks))
			wake(link);
		return 0;
	}
	rc = zd_frame_send(link->sock, bytes, nbytes, fds, nfds, err);
	if (rc == 0)
		link->nsent++;
	return rc;
}

/* ---- Receiving ----------------------------------------------------------------------------------------- */

static int recv_ring(struct zd_link *link, void *buffer, size_t *nbytes, unsigned *nfds, struct zd_err *err)
{
	if (!link->in.ring)
		return ZD_FRAME_AGAIN;
	*nfds = 0;
	return zd_ring_read(&link->in, link->nreceived, buffer, nbytes, err);
}

/* Accounts for a packet that the socket delivered: a wake-up is dropped. */
static int taken(struct zd_link *link, size_t nbytes, unsigned nfds)
{
	if (link->in.ring && nbytes == WAKE_BYTES && nfds == 0)
		return ZD_FRAME_AGAIN;
	link->nreceived++;
	return 0;
}

int zd_link_recv(struct zd_link *link, void *buffer, size_t buffer_bytes, size_t *nbytes,
                 int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
{
	int rc = recv_ring(link, buffer, nbytes, nfds, err);

	if (rc != ZD_FRAME_AGAIN)
		return rc;
	rc = zd_frame_recv(link->sock, buffer, buffer_bytes, nbytes, fds, nfds, err);
	return rc ? rc : taken(link, *nbytes, *nfds);
}

int zd_link_recv_wait(struct zd_link *link, void *buffer, size_t buffer_bytes, size_t *nbytes,
                      int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
{
	int rc = zd_frame_recv_wait(link->sock, buffer, buffer_bytes, nbytes, fds, nfds, err);

	return rc ? rc : taken(link, *nbytes, *nfds);
}

int zd_link_try_recv(struct zd_link *link, void *buffer, size_t buffer_bytes, size_t *nbytes,
                     int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
{
	struct pollfd poll_for = {.fd = link->sock, .events = POLLIN};

	if (link->in.ring && !zd_link_is_due(link) && poll(&poll_for, 1, 0) <= 0)
		return ZD_FRAME_AGAIN;
	return zd_link_recv(link, buffer, buffer_bytes, nbytes, fds, nfds, err);
}

/* ---- Sleeping ------------------------------------------------------------------------------------------ */

bool zd_link_is_due(const struct zd_link *link)
{
	return link->in.ring && zd_ring_is_due(&link->in, link->nreceived);
}

bool zd_link_rest(struct zd_link *link)
{
	if (!link->in.ring)
		return true;
	atomic_store(&link->in.ring->looks, 0);
	if (!zd_link_is_due(link))
		return true;
	zd_link_look(link);
	return false;
}

void zd_link_look(struct zd_link *link)
{
	if (link->in.ring)
		atomic_store_explicit(&link->in.ring->looks, 1, memory_order_relaxed);
}
