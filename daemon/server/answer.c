/* SPDX-License-Identifier: Apache-2.0 */
/* answer.c - conversions between the protocol's messages and the engine's structs. */
#include "server/answer.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"

char *zd_answer_text(struct zd_arena *arena, const char *text)
{
	size_t bytes = strlen(text) + 1;

	return memcpy(zd_arena_alloc(arena, bytes), text, bytes);
}
