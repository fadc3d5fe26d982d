/* SPDX-License-Identifier: Apache-2.0 */
/* ring.c - packets from one process to another through memory that both have mapped. */
#include "proto/ring.h"

#include <string.h>

#define ALIGN 8u

struct header {
	uint32_t nbytes, after;
};
_Static_assert(sizeof(struct header) == ALIGN && ZD_RING_BYTES % ALIGN == 0, "a header does not wrap");

static uint64_t padded(uint64_t nbytes)
{
	return (nbytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void put(struct zd_ring *ring, uint64_t place, const void *bytes, size_t nbytes)
{
	size_t at = place % ZD_RING_BYTES;
	size_t first = nbytes < ZD_RING_BYTES - at ? nbytes : ZD_RING_BYTES - at;

	memcpy(ring->data + at, bytes, first);
	memcpy(ring->data, (const uint8_t *)bytes + first, nbytes - first);
}

static void copy_out(const struct zd_ring *ring, uint64_t place, void *bytes, size_t nbytes)
{
	size_t at = place % ZD_RING_BYTES;
	size_t first = nbytes < ZD_RING_BYTES - at ? nbytes : ZD_RING_BYTES - at;

	memcpy(bytes, ring->data + at, first);
	memcpy((uint8_t *)bytes + first, ring->data, nbytes - first);
}

bool zd_ring_write(struct zd_ring_end *end, const void *bytes, size_t nbytes, uint32_t after)
{
	struct zd_ring *ring = end->ring;
	struct header header = {.nbytes = (uint32_t)nbytes, .after = after};
	uint64_t used = end->place - atomic_load_explicit(&ring->head, memory_order_acquire);

	if (used > ZD_RING_BYTES || nbytes > ZD_RING_BYTES - ALIGN ||
	    ALIGN + padded(nbytes) > ZD_RING_BYTES - used)
		return false;
	put(ring, end->place, &header, sizeof(header));
	put(ring, end->place + ALIGN, bytes, nbytes);
	end->place += ALIGN + padded(nbytes);
	atomic_store(&ring->tail, end->place); /* before the writer checks whether the reader sleeps */
	return true;
}

/* The number of unread bytes, and the header of the first packet, which is read only once: its writer may
 * change it at any time. False: nothing is unread, or the ring was emptied meanwhile and the bytes read may
 * be zeros. */
static bool peek(const struct zd_ring_end *end, uint64_t *there, struct header *header)
{
	uint64_t tail = atomic_load(&end->ring->tail);

	*there = tail - end->place;
	if (tail == 0 || *there == 0)
		return false;
	const uint64_t *place = (const uint64_t *)(end->ring->data + end->place % ZD_RING_BYTES);
	uint64_t word = __atomic_load_n(place, __ATOMIC_ACQUIRE);
	memcpy(header, &word, sizeof(*header));
	return atomic_load_explicit(&end->ring->tail, memory_order_relaxed) != 0;
}

/* Packets of the socket come first that have not been read yet. */
static bool is_early(const struct header *header, uint32_t after)
{
	return (int32_t)(header->after - after) > 0;
}

bool zd_ring_is_due(const struct zd_ring_end *end, uint32_t after)
{
	struct header header;
	uint64_t there;

	return peek(end, &there, &header) && !is_early(&header, after);
}

int zd_ring_read(struct zd_ring_end *end, uint32_t after, void *buffer, size_t *nbytes, struct zd_err *err)
{
	struct header header;
	uint64_t there;

	if (!peek(end, &there, &header) || is_early(&header, after))
		return 1;
	if (there > ZD_RING_BYTES || there < ALIGN || header.after != after || header.nbytes == 0 ||
	    header.nbytes > there - ALIGN || padded(header.nbytes) > there - ALIGN)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "a ring with %llu bytes to read begins with a packet of %u behind %u",
		                  (unsigned long long)there, header.nbytes, header.after);
	copy_out(end->ring, end->place + ALIGN, buffer, header.nbytes);
	if (atomic_load_explicit(&end->ring->tail, memory_order_acquire) == 0)
		return 1; /* emptied meanwhile */
	*nbytes = header.nbytes;
	end->place += ALIGN + padded(header.nbytes);
	atomic_store_explicit(&end->ring->head, end->place, memory_order_release);
	return 0;
}
