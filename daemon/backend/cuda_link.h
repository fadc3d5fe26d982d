/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_link.h - whose turn it is on a link: the way into a device, or out of it.
 *
 * Pushes that meet at one device share the way into it; meanwhile what is queued behind them at their sources waits, and the ways
 * into other devices are idle. So a large push takes a turn on both of its ways first. A turn is a span of time, in which a link
 * carries the push if it carries nothing else. So nobody has to see a push land before the next turn begins, and nobody gives a turn
 * back: those of a device that fails pass like all others.
 */
#ifndef ZD_BACKEND_CUDA_LINK_H
#define ZD_BACKEND_CUDA_LINK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define ZD_CUDA_LINK_BYTES_NS 390u   /* what a link carries, of large pushes; one that is slower is shared by two now and then */
#define ZD_CUDA_LINK_AHEAD_NS 10000u /* a push is issued before its turn: so long until its bytes move */

struct zd_cuda_link {
	_Atomic uint64_t taken_ns; /* until then */
};

/* When the next turn may be taken. */
static inline uint64_t zd_cuda_link_opens_ns(const struct zd_cuda_link *link)
{
	uint64_t taken_ns = atomic_load_explicit(&link->taken_ns, memory_order_relaxed);
	return taken_ns > ZD_CUDA_LINK_AHEAD_NS ? taken_ns - ZD_CUDA_LINK_AHEAD_NS : 0;
}

/* Takes the next turn, for so many bytes; false: it is too early. From any thread. */
static inline bool zd_cuda_link_take(struct zd_cuda_link *link, uint64_t bytes, uint64_t now_ns)
{
	uint64_t taken_ns = atomic_load_explicit(&link->taken_ns, memory_order_relaxed), begin_ns;
	do {
		if (taken_ns > now_ns + ZD_CUDA_LINK_AHEAD_NS)
			return false;
		begin_ns = taken_ns > now_ns ? taken_ns : now_ns;
	} while (!atomic_compare_exchange_weak_explicit(&link->taken_ns, &taken_ns,
	                                                begin_ns + bytes / ZD_CUDA_LINK_BYTES_NS,
	                                                memory_order_relaxed, memory_order_relaxed));
	return true;
}

#endif
