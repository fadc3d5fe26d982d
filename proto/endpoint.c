/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endpoint.c - one side of a socket, and of the rings beside it.
 *
 * Invariant: a receiver reads the socket only if the next packet cannot be in the ring. So the receiver
 * checks the ring after it has seen that the socket is readable, since packets that were sent before are
 * visible by then. A receiver that rests may read the socket at once: a packet that is written into the ring
 * meanwhile is followed by the byte that wakes it.
 */
#include "proto/endpoint.h"

#include <poll.h>
#include <sys/socket.h>

#define WAKE_BYTES 1u /* no packet with a message is that short */

/* ---- Sending ------------------------------------------------------------------------------------------- */

/* Sends the byte that wakes the receiver; the packet is in the ring already. A full socket keeps the other
 * side awake anyway, and readers detect a closed socket. If there is no memory for a byte, the connection is
 * ended, since the other side might sleep although it has a packet. */
static void wake(struct zd_endpoint *endpoint)
{
	static const uint8_t byte;
	int rc = zd_frame_send(endpoint->sock, &byte, WAKE_BYTES, NULL, 0, NULL);

	if (rc < 0 && rc != ZEROD_E_DISCONNECTED)
		(void)shutdown(endpoint->sock, SHUT_RDWR);
}

int zd_endpoint_send(struct zd_endpoint *endpoint, const void *bytes, size_t nbytes, const int *fds,
                     unsigned nfds, struct zd_err *err)
{
	struct zd_ring *ring = endpoint->out.ring;
	int rc;

	if (ring && nfds == 0 && nbytes > 0 && atomic_load_explicit(&ring->polling, memory_order_relaxed) &&
	    zd_ring_write(&endpoint->out, bytes, nbytes, endpoint->nsent)) {
		if (!atomic_load(&ring->polling))
			wake(endpoint);
		return 0;
	}
	rc = zd_frame_send(endpoint->sock, bytes, nbytes, fds, nfds, err);
	if (rc == 0)
		endpoint->nsent++;
	return rc;
}

/* ---- Receiving ----------------------------------------------------------------------------------------- */

static int recv_ring(struct zd_endpoint *endpoint, void *buffer, size_t *nbytes, unsigned *nfds,
                     struct zd_err *err)
{
	if (!endpoint->in.ring)
		return ZD_FRAME_AGAIN;
	*nfds = 0;
	return zd_ring_read(&endpoint->in, endpoint->nreceived, buffer, nbytes, err);
}

/* Accounts for a packet that the socket delivered: a wake-up is dropped. */
static int taken(struct zd_endpoint *endpoint, size_t nbytes, unsigned nfds)
{
	if (endpoint->in.ring && nbytes == WAKE_BYTES && nfds == 0)
		return ZD_FRAME_AGAIN;
	endpoint->nreceived++;
	return 0;
}

int zd_endpoint_recv(struct zd_endpoint *endpoint, void *buffer, size_t buffer_bytes, size_t *nbytes,
                     int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
{
	int rc = recv_ring(endpoint, buffer, nbytes, nfds, err);

	if (rc != ZD_FRAME_AGAIN)
		return rc;
	rc = zd_frame_recv(endpoint->sock, buffer, buffer_bytes, nbytes, fds, nfds, err);
	return rc ? rc : taken(endpoint, *nbytes, *nfds);
}

int zd_endpoint_recv_wait(struct zd_endpoint *endpoint, void *buffer, size_t buffer_bytes, size_t *nbytes,
                          int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
{
	int rc = zd_frame_recv_wait(endpoint->sock, buffer, buffer_bytes, nbytes, fds, nfds, err);

	return rc ? rc : taken(endpoint, *nbytes, *nfds);
}

int zd_endpoint_try_recv(struct zd_endpoint *endpoint, void *buffer, size_t buffer_bytes, size_t *nbytes,
                         int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
{
	struct pollfd poll_for = {.fd = endpoint->sock, .events = POLLIN};

	if (endpoint->in.ring && !zd_endpoint_is_due(endpoint) && poll(&poll_for, 1, 0) <= 0)
		return ZD_FRAME_AGAIN;
	return zd_endpoint_recv(endpoint, buffer, buffer_bytes, nbytes, fds, nfds, err);
}

/* ---- Sleeping ------------------------------------------------------------------------------------------ */

bool zd_endpoint_is_due(const struct zd_endpoint *endpoint)
{
	return endpoint->in.ring && zd_ring_is_due(&endpoint->in, endpoint->nreceived);
}

bool zd_endpoint_rest(struct zd_endpoint *endpoint)
{
	if (!endpoint->in.ring)
		return true;
	atomic_store(&endpoint->in.ring->polling, 0);
	if (!zd_endpoint_is_due(endpoint))
		return true;
	zd_endpoint_start_polling(endpoint);
	return false;
}

void zd_endpoint_start_polling(struct zd_endpoint *endpoint)
{
	if (endpoint->in.ring)
		atomic_store_explicit(&endpoint->in.ring->polling, 1, memory_order_relaxed);
}
