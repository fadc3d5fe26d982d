/* SPDX-License-Identifier: Apache-2.0 */
/* handle_segment.c - segments that are released to their device. */
#include "server/handlers.h"

#include "proto/limits.h"

int zd_args_segments_unmapped(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                              struct zd_err *err)
{
	const Zd__SegmentsUnmapped *unmapped = request->segments_unmapped;
	int rc = zd_take_count(unmapped->n_segments, ZD_MAX_RETIRED, "segments", err);

	(void)arena;
	if (rc)
		return rc;
	args->kind = ZD_REQ_SEGMENTS_UNMAPPED;
	args->u.segments_unmapped.count = (uint32_t)unmapped->n_segments;
	args->u.segments_unmapped.segments = unmapped->segments;
	return 0;
}

int zd_args_trim(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args, struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_TRIM;
	args->u.trim.device = request->trim->device;
	args->u.trim.keep_bytes = request->trim->keep_bytes;
	return 0;
}

void zd_fill_trim(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__TrimReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__trim_reply__init(message);
	message->freed_bytes = reply->u.trim.freed_bytes;
	answer->reply.body_case = ZD__REPLY__BODY_TRIM;
	answer->reply.trim = message;
}
