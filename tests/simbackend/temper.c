/* SPDX-License-Identifier: Apache-2.0 */
/* temper.c - what a seed makes of a backend. */
#include "tests/simbackend/temper.h"

#include "base/mem.h"

/* Beside the devices' numbers: */
#define BACKEND_STREAM UINT64_MAX
#define LOOP_STREAM    (UINT64_MAX - 1)

#define STALL_NS 2000000u
#define GONE_NS  2000000u

static uint64_t given_seed;

void zd_temper_set_seed(uint64_t seed)
{
	given_seed = seed;
}

/* Prompt, as GPUs are when they are idle, up to slower than a client's next request. */
static uint64_t draw_scale(struct zd_sim_rng *rng)
{
	static const uint64_t scales_ns[] = {1000, 20000, 100000, 400000, 1000000};

	return scales_ns[zd_sim_below(rng, ZD_ARRAY_LEN(scales_ns))];
}

void zd_temper_draw_backend(struct zd_temper_backend *backend)
{
	struct zd_sim_rng rng;

	zd_sim_rng_init(&rng, given_seed, BACKEND_STREAM);
	backend->sessions_linger = zd_sim_percent(&rng, 50);
	backend->strict_by_segment = zd_sim_percent(&rng, 50);
	backend->deny_percent = (uint32_t)zd_sim_below(&rng, 101);
}

void zd_temper_draw(uint32_t device, struct zd_temper *temper)
{
	struct zd_sim_rng rng;

	zd_sim_rng_init(&rng, given_seed, device);
	temper->begin_ns = draw_scale(&rng);
	temper->piece_ns = draw_scale(&rng);
	temper->end_ns = draw_scale(&rng);
	temper->tell_ns = draw_scale(&rng);
	temper->look_ns = draw_scale(&rng);
	temper->segment_ns = draw_scale(&rng);
	temper->scribble_percent = (uint32_t)zd_sim_below(&rng, 101);
	temper->gone_ns = GONE_NS;
	temper->stall_ns = STALL_NS;
	temper->stall_permille = (uint32_t)zd_sim_below(&rng, 20);
}

void zd_temper_command_rng(uint32_t device, uint64_t command, struct zd_sim_rng *rng)
{
	zd_sim_rng_init(rng, zd_sim_mix(given_seed, device), command);
}

void zd_temper_loop_rng(struct zd_sim_rng *rng)
{
	zd_sim_rng_init(rng, given_seed, LOOP_STREAM);
}
