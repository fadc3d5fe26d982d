/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_comm_call.c - the description of a collective operation, and the comparison between ranks. */
#include "executor/nccl/cuda_comm_call.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/err.h"
#include "base/mem.h"
#include "proto/limits.h"

#define MAGIC 0x7a64636du

_Static_assert(sizeof(struct zd_cuda_comm_description) == 128, "the same for all ranks");

static const char *const kinds[] = {
        [ZD_CUDA_COMM_ALL_GATHER] = "all_gather", [ZD_CUDA_COMM_REDUCE_SCATTER] = "reduce_scatter",
        [ZD_CUDA_COMM_ALL_REDUCE] = "all_reduce", [ZD_CUDA_COMM_BROADCAST] = "broadcast",
        [ZD_CUDA_COMM_ALL_TO_ALL] = "all_to_all", [ZD_CUDA_COMM_EXCHANGE] = "exchange",
        [ZD_CUDA_COMM_AGREE] = "agree",
};

static const char *kind_name(uint32_t kind)
{
	return kind < ZD_ARRAY_LEN(kinds) && kinds[kind] ? kinds[kind] : "unknown";
}

int zd_cuda_comm_call_check(const struct zd_cuda_comm_call *call, uint32_t nranks, struct zd_err *err)
{
	const char *name = kind_name(call->kind);
	size_t bytes = zerod_dtype_bytes(call->dtype);
	if (call->kind >= ZD_ARRAY_LEN(kinds) || !kinds[call->kind])
		return zd_err_set(err, ZEROD_E_INVALID, "%d is no collective operation", (int)call->kind);
	if (bytes == 0 ||
	    ((call->kind == ZD_CUDA_COMM_REDUCE_SCATTER || call->kind == ZD_CUDA_COMM_ALL_REDUCE) &&
	     !zd_dtype_holds_sums(call->dtype)))
		return zd_err_set(err, ZEROD_E_INVALID, "%s of %s", name, zerod_dtype_name(call->dtype));
	if (call->numel > ZD_MAX_BYTES / bytes / nranks)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "%s of %" PRIu64 " %s over %" PRIu32 " ranks: more than %llu bytes", name,
		                  call->numel, zerod_dtype_name(call->dtype), nranks, ZD_MAX_BYTES);
	if (call->kind == ZD_CUDA_COMM_AGREE && call->numel * bytes > ZD_CUDA_COMM_VALUE_BYTES)
		return zd_err_set(err, ZEROD_E_INVALID, "%s of %" PRIu64 " bytes, at most %u", name,
		                  call->numel * bytes, ZD_CUDA_COMM_VALUE_BYTES);
	if (call->root >= nranks || (call->root != 0 && call->kind != ZD_CUDA_COMM_BROADCAST))
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "%s from rank %" PRIu32 " in a group of %" PRIu32 " ranks", name,
		                  call->root, nranks);
	return 0;
}

/* ---- Texts --------------------------------------------------------------------------------------------- */

static const char *ordinal_end(uint64_t number)
{
	static const char *const ends[] = {"th", "st", "nd", "rd"};
	uint64_t tens = number % 100 / 10, units = number % 10;
	return tens != 1 && units < ZD_ARRAY_LEN(ends) ? ends[units] : ends[0];
}

const char *zd_cuda_comm_call_text(const struct zd_cuda_comm_call *call, uint64_t number,
                                   char text[ZD_CUDA_COMM_TEXT])
{
	bool has_what = call->what && *call->what;
	char from[32] = "";
	if (call->kind == ZD_CUDA_COMM_BROADCAST)
		(void)snprintf(from, sizeof(from), " from rank %" PRIu32, call->root);
	(void)snprintf(text, ZD_CUDA_COMM_TEXT, "%" PRIu64 "%s operation %s of %" PRIu64 " %s%s%s%.*s%s",
	               number, ordinal_end(number), kind_name(call->kind), call->numel,
	               zerod_dtype_name(call->dtype), from, has_what ? " (" : "", (int)ZD_CUDA_COMM_WHAT - 1,
	               has_what ? call->what : "", has_what ? ")" : "");
	return text;
}

/* ---- Descriptions -------------------------------------------------------------------------------------- */

/* The FNV-1a hash. */
static uint64_t hash_name(const char *name)
{
	uint64_t hash = 0xcbf29ce484222325ull;
	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 0x100000001b3ull;
	return hash;
}

void zd_cuda_comm_describe(const struct zd_cuda_comm_call *call, uint64_t number, const char *group,
                           struct zd_cuda_comm_description *description)
{
	*description = (struct zd_cuda_comm_description){
	        .magic = MAGIC,
	        .kind = call->kind,
	        .number = number,
	        .numel = call->numel,
	        .group = hash_name(group),
	        .dtype = call->dtype,
	        .root = call->root,
	};
	if (call->what)
		(void)snprintf(description->what, sizeof(description->what), "%s", call->what);
}

bool zd_cuda_comm_is_described(const struct zd_cuda_comm_description *description, uint64_t number)
{
	return description->magic == MAGIC && description->number == number;
}

/* Another process wrote the description: `what` can lack its terminating zero. */
static const char *described(const struct zd_cuda_comm_description *description, char text[ZD_CUDA_COMM_TEXT])
{
	char what[ZD_CUDA_COMM_WHAT];
	const struct zd_cuda_comm_call call = {
	        .kind = description->kind,
	        .dtype = description->dtype,
	        .numel = description->numel,
	        .root = description->root,
	        .what = what,
	};
	(void)snprintf(what, sizeof(what), "%.*s", (int)sizeof(what) - 1, description->what);
	return zd_cuda_comm_call_text(&call, description->number, text);
}

static int mismatch(const struct zd_cuda_comm_description *all, uint32_t rank,
                    const struct zd_cuda_comm_rank *self, struct zd_err *err)
{
	uint32_t first_rank = zd_cuda_comm_world_rank(self, 0),
	         other_rank = zd_cuda_comm_world_rank(self, rank);
	const struct zd_cuda_comm_description *first = &all[0], *other = &all[rank];
	char first_text[ZD_CUDA_COMM_TEXT], other_text[ZD_CUDA_COMM_TEXT];
	if (first->magic != MAGIC || other->magic != MAGIC)
		return zd_err_set(
		        err, ZEROD_E_MISMATCH,
		        "group '%s': rank %" PRIu32
		        " did not describe its operation: set checking mode on all ranks or on none",
		        self->group, first->magic != MAGIC ? first_rank : other_rank);
	return zd_err_set(err, ZEROD_E_MISMATCH,
	                  "group '%s': rank %" PRIu32 " runs its %s, rank %" PRIu32 " its %s%s", self->group,
	                  first_rank, described(first, first_text), other_rank, described(other, other_text),
	                  first->group == other->group ? "" : " in a group of another name");
}

int zd_cuda_comm_compare(const struct zd_cuda_comm_description *all, const struct zd_cuda_comm_rank *self,
                         struct zd_err *err)
{
	for (uint32_t rank = 0; rank < self->nranks; rank++) {
		if (all[rank].magic != MAGIC || memcmp(&all[rank], &all[0], sizeof(all[0])) != 0)
			return mismatch(all, rank, self, err);
	}
	return 0;
}
