/* SPDX-License-Identifier: Apache-2.0 */
/* handle_gather.c - gather and release, a trainer's most frequent requests. */
#include "server/handlers.h"

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

void zd_fill_release(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__ReleaseReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__release_reply__init(message);
	message->lease_ended = reply->u.release.lease_ended;
	answer->reply.body_case = ZD__REPLY__BODY_RELEASE;
	answer->reply.release = message;
}
