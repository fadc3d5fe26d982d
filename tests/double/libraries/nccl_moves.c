/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_moves.c - the kernel: moves between ranks, in pieces, all of a work at once. What is sent is copied
 * first, so that it may be received in place. One that is aborted leaves rubbish where it was to receive.
 */
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "tests/double/kernel.h"
#include "tests/double/libraries/nccl_double.h"
#include "tests/support/pause.h"

#define RUBBISH 0xa5

/* ---- Works --------------------------------------------------------------------------------------------- */

struct nccl_work *nccl_work_new(struct ncclComm *comm)
{
	struct nccl_work *work = calloc(1, sizeof(*work));

	if (!work)
		abort();
	work->comm = comm;
	work->sums = -1;
	return work;
}

void nccl_work_free(struct nccl_work *work)
{
	for (int i = 0; work && i < work->nmoves; i++)
		free(work->moves[i].staged);
	free(work);
}

static void add(struct nccl_work *work, struct nccl_move move)
{
	if (work->nmoves == 2 * NCCL_RANKS)
		abort();
	move.staged = calloc(1, move.bytes + 1);
	if (!move.staged)
		abort();
	work->moves[work->nmoves++] = move;
}

void nccl_work_send(struct nccl_work *work, int peer, zd_cu_ptr at, size_t bytes)
{
	add(work, (struct nccl_move){.sends = true, .peer = peer, .at = at, .bytes = bytes});
}

void nccl_work_receive(struct nccl_work *work, int peer, zd_cu_ptr at, size_t bytes)
{
	add(work, (struct nccl_move){.peer = peer, .at = at, .bytes = bytes});
}

size_t nccl_type_bytes(int type)
{
	switch (type) {
	case ZD_NCCL_INT8:
		return 1;
	case ZD_NCCL_FLOAT16:
	case ZD_NCCL_BFLOAT16:
		return 2;
	case ZD_NCCL_FLOAT32:
		return 4;
	default:
		return 0;
	}
}

/* ---- Device memory ------------------------------------------------------------------------------------- */

static bool copy(struct double_reach *reach, zd_cu_ptr at, char *staged, size_t bytes, bool into_staged)
{
	for (size_t done = 0, some; done < bytes; done += some) {
		void *found;

		some = bytes - done;
		found = reach->at(reach, at + done, &some);
		if (!found)
			return false;
		memcpy(into_staged ? staged + done : found, into_staged ? found : staged + done, some);
	}
	return true;
}

static bool load(struct double_reach *reach, struct nccl_work *work)
{
	bool legal = true;

	for (int i = 0; i < work->nmoves; i++)
		if (work->moves[i].sends)
			legal &= copy(reach, work->moves[i].at, work->moves[i].staged, work->moves[i].bytes,
			              true);
	return legal;
}

static bool store(struct double_reach *reach, struct nccl_work *work)
{
	bool legal = true;

	for (int i = 0; i < work->nmoves; i++)
		if (!work->moves[i].sends)
			legal &= copy(reach, work->moves[i].at, work->moves[i].staged, work->moves[i].bytes,
			              false);
	return legal;
}

/* ---- Between ranks ------------------------------------------------------------------------------------- */

static bool send_some(struct nccl_channel *channel, struct nccl_move *move)
{
	size_t left = move->bytes - move->done;

	if (atomic_load(&channel->full))
		return false;
	channel->bytes = (uint32_t)(left < NCCL_CHUNK ? left : NCCL_CHUNK);
	memcpy(channel->data, move->staged + move->done, channel->bytes);
	move->done += channel->bytes;
	atomic_store(&channel->full, true);
	return true;
}

/* A chunk of another size belongs to another operation: the receiver waits for ever, as NCCL's would. */
static bool receive_some(struct nccl_channel *channel, struct nccl_move *move)
{
	size_t left = move->bytes - move->done;
	size_t some = left < NCCL_CHUNK ? left : NCCL_CHUNK;

	if (!atomic_load(&channel->full) || channel->bytes != some)
		return false;
	memcpy(move->staged + move->done, channel->data, some);
	move->done += some;
	atomic_store(&channel->full, false);
	return true;
}

static bool move_some(const struct nccl_work *work, struct nccl_move *move)
{
	struct nccl_shared *shared = work->comm->shared;
	int rank = work->comm->rank;

	if (move->done == move->bytes)
		return false;
	return move->sends ? send_some(&shared->channels[rank][move->peer], move)
	                   : receive_some(&shared->channels[move->peer][rank], move);
}

/* False: it was aborted. */
static bool move_all(struct nccl_work *work)
{
	unsigned turns = 0;

	for (;;) {
		bool moved = false, done = true;

		for (int i = 0; i < work->nmoves; i++) {
			moved |= move_some(work, &work->moves[i]);
			done &= work->moves[i].done == work->moves[i].bytes;
		}
		if (done)
			return true;
		if (atomic_load(&work->comm->aborted))
			return false;
		if (moved)
			turns = 0;
		else
			pause_for_others(&turns);
	}
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

static float get(const char *from, int type, size_t index)
{
	uint16_t half;
	float single;

	if (type == ZD_NCCL_FLOAT32) {
		memcpy(&single, from + index * sizeof(single), sizeof(single));
		return single;
	}
	memcpy(&half, from + index * sizeof(half), sizeof(half));
	return type == ZD_NCCL_FLOAT16 ? zd_f16_to_f32(half) : zd_bf16_to_f32(half);
}

static void set(char *to, int type, size_t index, float value)
{
	uint16_t half = type == ZD_NCCL_FLOAT16 ? zd_f32_to_f16(value) : zd_f32_to_bf16(value);

	if (type == ZD_NCCL_FLOAT32)
		memcpy(to + index * sizeof(value), &value, sizeof(value));
	else
		memcpy(to + index * sizeof(half), &half, sizeof(half));
}

/* In the order of ranks; each move then has the sum. */
static void sum(struct nccl_work *work)
{
	size_t count = work->moves[0].bytes / nccl_type_bytes(work->sums);

	for (size_t index = 0; index < count; index++) {
		float total = 0;

		for (int i = 0; i < work->nmoves; i++)
			if (!work->moves[i].sends)
				total += get(work->moves[i].staged, work->sums, index);
		for (int i = 0; i < work->nmoves; i++)
			if (!work->moves[i].sends)
				set(work->moves[i].staged, work->sums, index, total);
	}
}

/* ---- The kernel ---------------------------------------------------------------------------------------- */

static bool run(struct double_reach *reach, const uint64_t *args)
{
	struct nccl_work *work;
	struct ncclComm *comm;
	bool legal;

	memcpy(&work, &args[0], sizeof(work));
	comm = work->comm;
	(void)atomic_fetch_add(&comm->running, 1);
	legal = load(reach, work);
	if (legal && move_all(work)) {
		if (work->sums >= 0)
			sum(work);
	} else {
		for (int i = 0; i < work->nmoves; i++)
			memset(work->moves[i].staged, RUBBISH, work->moves[i].bytes);
	}
	legal = legal && store(reach, work);
	atomic_store(&work->ended, true);
	(void)atomic_fetch_sub(&comm->running, 1);
	(void)atomic_fetch_sub(&comm->kernels, 1);
	return legal;
}

DOUBLE_KERNEL(zd_nccl);
const struct double_kernel double_kernel_zd_nccl = {.nargs = 1, .run = run};
