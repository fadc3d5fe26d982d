/* SPDX-License-Identifier: Apache-2.0 */
/* handle_gather.c - gather and release, a trainer's most frequent requests. */
#include "server/handlers.h"

/* Clients that need no tags send "". */
static const char *tag_or_default(const char *tag)
{
	return tag[0] ? tag : "default";
}

int zd_args_gather(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                   struct zd_err *err)
{
	const Zd__Gather *gather = request->gather;

	(void)arena;
	(void)err;
	args->kind = ZD_REQ_GATHER;
	args->u.gather.unit = gather->unit;
	args->u.gather.tag = gather->scope ? gather->tag : tag_or_default(gather->tag);
	args->u.gather.uses = gather->uses;
	args->u.gather.version = gather->version;
	args->u.gather.prefetch = gather->prefetch;
	args->u.gather.no_slot = gather->no_slot;
	args->u.gather.scope = gather->scope;
	return 0;
}

static Zd__Frames *frames_of(struct zd_answer *answer, const struct zd_frames *frames)
{
	Zd__Frames *message;

	if (frames->own.segment == 0)
		return NULL;
	message = zd_arena_alloc(answer->arena, sizeof(*message));
	zd__frames__init(message);
	message->low = zd_answer_location(answer, &frames->low);
	message->own = zd_answer_location(answer, &frames->own);
	message->high = zd_answer_location(answer, &frames->high);
	return message;
}

void zd_fill_gather(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__GatherReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__gather_reply__init(message);
	message->buffer = zd_answer_location(answer, &reply->u.gather.buffer);
	message->version = reply->u.gather.version;
	message->transfer = reply->u.gather.transfer;
	message->n_fences = reply->u.gather.nfences;
	message->fences = zd_answer_fences(answer, reply->u.gather.fences, reply->u.gather.nfences);
	message->frames = frames_of(answer, &reply->u.gather.frames);
	answer->reply.body_case = ZD__REPLY__BODY_GATHER;
	answer->reply.gather = message;
}

int zd_args_release(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                    struct zd_err *err)
{
	const Zd__Release *release = request->release;

	args->kind = ZD_REQ_RELEASE;
	args->u.release.unit = release->unit;
	args->u.release.tag = tag_or_default(release->tag);
	return zd_take_fences(release->fences, release->n_fences, arena, &args->u.release.fences, err);
}

void zd_fill_release(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__ReleaseReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__release_reply__init(message);
	message->lease_ended = reply->u.release.lease_ended;
	answer->reply.body_case = ZD__REPLY__BODY_RELEASE;
	answer->reply.release = message;
}
