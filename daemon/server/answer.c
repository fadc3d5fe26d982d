/* SPDX-License-Identifier: Apache-2.0 */
/* answer.c - conversions between the protocol's messages and the engine's structs. */
#include "server/answer.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"

uint64_t *zd_answer_ids(struct zd_answer *answer, const uint64_t *ids, uint32_t count)
{
	uint64_t *copy;

	if (count == 0)
		return NULL;
	copy = zd_arena_alloc(answer->arena, count * sizeof(*copy));
	memcpy(copy, ids, count * sizeof(*copy));
	return copy;
}

Zd__Location *zd_answer_location(struct zd_answer *answer, const struct zd_location *location)
{
	Zd__Location *message;

	if (location->segment == 0)
		return NULL;
	zd_assert(answer->nsegments < ZD_ANSWER_SEGMENTS);
	answer->segments[answer->nsegments++] = location->segment;
	message = zd_arena_alloc(answer->arena, sizeof(*message));
	zd__location__init(message);
	message->segment = location->segment;
	message->offset = location->offset;
	message->bytes = location->bytes;
	return message;
}

Zd__Fence **zd_answer_fences(struct zd_answer *answer, const struct zd_fence *fences, uint32_t count)
{
	Zd__Fence **messages;

	if (count == 0)
		return NULL;
	messages = zd_arena_alloc(answer->arena, count * sizeof(Zd__Fence *));
	for (uint32_t i = 0; i < count; i++) {
		messages[i] = zd_arena_alloc(answer->arena, sizeof(Zd__Fence));
		zd__fence__init(messages[i]);
		messages[i]->timeline = fences[i].timeline;
		messages[i]->value = fences[i].value;
	}
	return messages;
}

char *zd_answer_text(struct zd_arena *arena, const char *text)
{
	size_t bytes = strlen(text) + 1;

	return memcpy(zd_arena_alloc(arena, bytes), text, bytes);
}
