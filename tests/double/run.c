/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c - what an operation does to memory.
 *
 * Addresses are looked up when the operation runs, as a GPU does it: what is not mapped then, or not for this
 * device, or is taken from under its hands, ends the context with an illegal address.
 */
#include "tests/double/double.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "tests/double/control.h"

#define POLLS_AT_ONCE 50
#define SHORTEST_NS   10000
#define LONGEST_NS    500000

/* The part of a place that one mapping covers, and that can be accessed at once. */
struct piece {
	unsigned char *at;
	size_t bytes;
	struct double_mapping *mapping; /* NULL: CPU memory */
	int device;                     /* whose access counts */
};

static bool begin(const struct CUctx_st *context, const struct double_place *place, bool writes,
                  size_t offset, size_t bytes, struct piece *piece)
{
	int device = place->as ? place->as->device : context->device;
	struct double_mapping *mapping;
	size_t inside;

	*piece = (struct piece){.at = place->host + offset, .bytes = bytes, .device = device};
	if (place->host)
		return true;
	mapping = double_mapping_at(place->at + offset);
	if (!mapping || !((writes ? mapping->writable : mapping->access) & (1u << device)))
		return false;
	inside = place->at + offset - mapping->at;
	piece->at = mapping->memory->alias + inside;
	if (mapping->memory->bytes - inside < bytes)
		piece->bytes = mapping->memory->bytes - inside;
	piece->mapping = mapping;
	double_mapping_use(mapping);
	return true;
}

static bool end(const struct piece *piece)
{
	return !piece->mapping || double_mapping_unuse(piece->mapping, piece->device);
}

static void sleep_ns(uint64_t ns)
{
	struct timespec time = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

	(void)nanosleep(&time, NULL);
}

/* ---- Copies and fills ---------------------------------------------------------------------------------- */

#define REPEATS 64u

/*
 * A copy that changes nothing writes nothing: of the same bytes to the same place there may be two at once,
 * as there may on a GPU. The lock is for those, so that sanitizers look at all others as before.
 */
static void copy_bytes(unsigned char *dst, const unsigned char *src, size_t bytes)
{
	static pthread_mutex_t locks[REPEATS] = {[0 ... REPEATS - 1] = PTHREAD_MUTEX_INITIALIZER};
	pthread_mutex_t *lock = &locks[((uintptr_t)dst / 256 + (uintptr_t)src / 256 * 7 + bytes) % REPEATS];

	(void)pthread_mutex_lock(lock);
	if (memcmp(dst, src, bytes) != 0)
		memmove(dst, src, bytes);
	(void)pthread_mutex_unlock(lock);
}

static bool copy_some(const struct CUctx_st *context, const struct double_op *op, size_t offset,
                      size_t *copied)
{
	struct piece dst, src;
	size_t row = op->row ? op->row : op->bytes, within = offset % row;
	bool done;

	if (!begin(context, &op->dst, true, offset, row - within, &dst))
		return false;
	if (!begin(context, &op->src, false, offset / row * op->pitch + within, dst.bytes, &src)) {
		(void)end(&dst);
		return false;
	}
	*copied = src.bytes;
	double_unlock();
	copy_bytes(dst.at, src.at, src.bytes);
	double_lock();
	done = end(&dst);
	return end(&src) && done;
}

#define PAGE 4096u
#define HOLE (16 * PAGE) /* as large at least */

/*
 * Pages of zeros are taken out of the memory's file: they read as zeros, and cost nothing until somebody
 * touches them. The thread sanitizer is to see bytes that are written.
 */
static void fill_bytes(const struct piece *dst, int value)
{
#ifndef __SANITIZE_THREAD__
	if (value == 0 && dst->mapping && dst->bytes >= HOLE) {
		const struct double_memory *memory = dst->mapping->memory;
		size_t at = (size_t)(dst->at - memory->alias), first = zd_align_up(at, PAGE);
		size_t last = (at + dst->bytes) / PAGE * PAGE;

		if (fallocate(memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)first,
		              (off_t)(last - first)) == 0) {
			memset(dst->at, 0, first - at);
			memset(memory->alias + last, 0, at + dst->bytes - last);
			return;
		}
	}
#endif
	memset(dst->at, value, dst->bytes);
}

static bool fill_some(const struct CUctx_st *context, const struct double_op *op, size_t offset,
                      size_t *filled)
{
	struct piece dst;

	if (!begin(context, &op->dst, true, offset, op->bytes - offset, &dst))
		return false;
	*filled = dst.bytes;
	double_unlock();
	fill_bytes(&dst, (int)op->value);
	double_lock();
	return end(&dst);
}

static atomic_int held = -1;

static void hold_copies(int device)
{
	atomic_store(&held, device);
}

DOUBLE_EXPORT const struct double_control double_control = {
        .hold_copies = hold_copies, .fill_streams = double_fill_streams, .calls = double_calls};

typedef bool some_fn(const struct CUctx_st *context, const struct double_op *op, size_t offset,
                     size_t *bytes);

static int run_all(const struct CUctx_st *context, const struct double_op *op, some_fn *some)
{
	size_t bytes = 0;

	if (double_config()->copy_us || atomic_load(&held) == context->device) {
		double_unlock();
		sleep_ns(double_config()->copy_us * 1000);
		while (atomic_load(&held) == context->device)
			sleep_ns(SHORTEST_NS);
		double_lock();
	}
	for (size_t offset = 0; offset < op->bytes; offset += bytes)
		if (!some(context, op, offset, &bytes))
			return ZD_CU_ILLEGAL_ADDRESS;
	return ZD_CU_SUCCESS;
}

/* ---- Words --------------------------------------------------------------------------------------------- */

static void poll_word(const struct CUctx_st *context, const uint64_t *word, uint64_t value)
{
	uint64_t ns = SHORTEST_NS;

	for (int i = 0; !double_is_over(context); i++) {
		if ((int64_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) >= 0)
			return;
		if (i < POLLS_AT_ONCE)
			continue;
		sleep_ns(ns);
		ns = ns * 2 > LONGEST_NS ? LONGEST_NS : ns * 2;
	}
}

static int run_word(const struct CUctx_st *context, const struct double_op *op)
{
	struct piece piece;
	uint64_t *word;

	if (!begin(context, &op->dst, true, 0, sizeof(*word), &piece))
		return ZD_CU_ILLEGAL_ADDRESS;
	word = (uint64_t *)(void *)piece.at;
	double_unlock();
	if (op->kind == DOUBLE_OP_WAIT)
		poll_word(context, word, op->value);
	else
		__atomic_store_n(word, op->value, __ATOMIC_RELEASE);
	double_lock();
	return end(&piece) ? ZD_CU_SUCCESS : ZD_CU_ILLEGAL_ADDRESS;
}

int double_run(struct CUctx_st *context, struct double_op *op)
{
	switch (op->kind) {
	case DOUBLE_OP_COPY:
		return run_all(context, op, copy_some);
	case DOUBLE_OP_FILL:
		return run_all(context, op, fill_some);
	case DOUBLE_OP_WAIT:
	case DOUBLE_OP_WRITE:
		return run_word(context, op);
	case DOUBLE_OP_CALL:
		double_unlock();
		op->call(op->arg);
		double_lock();
		return ZD_CU_SUCCESS;
	case DOUBLE_OP_KERNEL:
		return double_run_kernel(context, op);
	case DOUBLE_OP_MARK:
	case DOUBLE_OP_JOIN:
		break;
	}
	return ZD_CU_SUCCESS;
}
