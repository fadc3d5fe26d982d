/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_strict_scene.h - tests of strict clients on GPUs: two strict ranks, and what fills a segment. */
#ifndef ZD_TESTS_CUDA_STRICT_SCENE_H
#define ZD_TESTS_CUDA_STRICT_SCENE_H

#include "cuda_scene.h"
#include "tests/support/options.h"

#define SEGMENT_BYTES (2ull << 20) /* what a small unit fills */

/* Two strict ranks, each on a GPU of its own if there are two, and a unit in its first version. */
static inline struct contract *strict_open(struct contract_unit *unit)
{
	struct contract *c = contract_open(&(struct contract_options){.strict = 1});

	contract_plain_unit(c, "w", SCENE_NUMEL, unit);
	contract_publish_all(c, unit);
	return c;
}

/* Zeros, where no stream of the fixture's may be used: one of its context would be lost with that. */
static inline void publish_zeros(struct contract *c, struct contract_unit *unit)
{
	for (uint32_t i = 0; i < c->world_size; i++) {
		OK(c->ranks[i].client, zerod_update_begin(&unit->at[i], 1, NULL, NULL));
		OK(c->ranks[i].client, zerod_publish(&unit->at[i], 1, NULL, 0, NULL, NULL));
	}
}

/* All that was in the stream has run. */
static inline void pass(struct contract_rank *rank, zerod_stream *stream, struct contract_gate *gate)
{
	contract_unblock(gate);
	contract_sync(rank, stream);
}

static inline void release_behind(struct contract_rank *rank, struct contract_unit *unit, const char *tag,
                                  zerod_stream *stream)
{
	OK(rank->client, zerod_release(unit->at[rank->number], &stream, 1, TAGGED(tag), NULL));
}

#endif
