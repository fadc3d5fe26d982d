/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.c - a bump allocator for unpacked messages.
 *
 * One block serves nearly every packet; what does not fit spills into single allocations, chained so that a
 * reset finds them.
 */
#include "proto/frame.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define ARENA_ALIGN 16u

struct zd_arena_spill {
	struct zd_arena_spill *next;
	_Alignas(ARENA_ALIGN) uint8_t bytes[];
};

static void *spill(struct zd_arena *arena, size_t bytes)
{
	struct zd_arena_spill *piece = malloc(sizeof(*piece) + bytes);

	if (!piece)
		return NULL;
	piece->next = arena->spill;
	arena->spill = piece;
	return piece->bytes;
}

static void *arena_take(void *data, size_t bytes)
{
	struct zd_arena *arena = data;
	uint8_t *memory;

	if (bytes > SIZE_MAX / 2)
		return NULL;
	bytes = zd_align_up(bytes, ARENA_ALIGN);
	if (bytes > arena->block_bytes - arena->used_bytes)
		return spill(arena, bytes);
	memory = arena->block + arena->used_bytes;
	arena->used_bytes += bytes;
	return memory;
}

static void arena_leave(void *data, void *memory)
{
	(void)data;
	(void)memory;
}

void zd_arena_init(struct zd_arena *arena, size_t block_bytes)
{
	*arena = (struct zd_arena){
	        .allocator = {.alloc = arena_take, .free = arena_leave, .allocator_data = arena},
	        .block = zd_calloc(block_bytes, 1),
	        .block_bytes = block_bytes,
	};
}

void zd_arena_reset(struct zd_arena *arena)
{
	while (arena->spill) {
		struct zd_arena_spill *next = arena->spill->next;

		free(arena->spill);
		arena->spill = next;
	}
	arena->used_bytes = 0;
}

void zd_arena_deinit(struct zd_arena *arena)
{
	if (!arena)
		return;
	zd_arena_reset(arena);
	free(arena->block);
	*arena = (struct zd_arena){0};
}

void *zd_arena_alloc(struct zd_arena *arena, size_t bytes)
{
	void *memory = arena_take(arena, bytes);

	zd_assert(memory);
	return memset(memory, 0, bytes);
}
