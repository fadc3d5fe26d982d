/* SPDX-License-Identifier: Apache-2.0 */
/* handle_alloc.c - plain allocations. */
#include "server/handlers.h"

int zd_args_alloc(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                  struct zd_err *err)
{
	const Zd__Alloc *alloc = request->alloc;

	(void)arena;
	(void)err;
	args->kind = ZD_REQ_ALLOC;
	args->u.alloc.job = alloc->job;
	args->u.alloc.name = alloc->name;
	args->u.alloc.device = alloc->device;
	args->u.alloc.bytes = alloc->bytes;
	args->u.alloc.alignment = alloc->alignment;
	args->u.alloc.durable = alloc->durable;
	args->u.alloc.unit = alloc->unit;
	return 0;
}

void zd_fill_alloc(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__AllocReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__alloc_reply__init(message);
	message->allocation = reply->u.alloc.allocation;
	message->location = zd_answer_location(answer, &reply->u.alloc.location);
	answer->reply.body_case = ZD__REPLY__BODY_ALLOC;
	answer->reply.alloc = message;
}

int zd_args_free(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args, struct zd_err *err)
{
	const Zd__Free *free_request = request->free;

	args->kind = ZD_REQ_FREE;
	args->u.free.allocation = free_request->allocation;
	return zd_take_fences(free_request->fences, free_request->n_fences, arena, &args->u.free.fences, err);
}
