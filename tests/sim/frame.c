/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.c - the part of a program that gathers outside its plan: eager frames in forward scopes, and user
 * contexts.
 *
 * A frame's forward ends in a claim, at once, or never: then the next outermost forward sweeps it, or the
 * update abandons it. Ranks that hold one unit at a time end what they begin before they go on. In a program
 * without mistakes scopes hold only units that share their slot with no other, since a conflict would be the
 * program's own.
 */
#include "generate.h"

static bool eligible(const struct zd_sim_generator *gen, uint32_t group, uint32_t unit)
{
	const struct zd_sim_group_config *g = &gen->config->groups[group];

	for (uint32_t u = 0; u < g->nunits && gen->config->clean && g->units[unit].slot; u++) {
		if (u != unit && g->units[u].slot == g->units[unit].slot)
			return false;
	}
	return true;
}

/* Some unit that is eligible and not in `without`, or ZD_SIM_UNITS. */
static uint32_t some_unit(struct zd_sim_generator *gen, uint32_t group, uint32_t without)
{
	uint32_t nunits = gen->config->groups[group].nunits,
	         first = (uint32_t)zd_sim_below(&gen->rng, nunits);

	for (uint32_t i = 0; i < nunits; i++) {
		uint32_t unit = (first + i) % nunits;
		if (!(without & (1u << unit)) && eligible(gen, group, unit))
			return unit;
	}
	return ZD_SIM_UNITS;
}

static uint32_t free_place(const struct zd_sim_generator *gen)
{
	uint32_t place = 0;

	while (place < ZD_SIM_SCOPES && gen->scopes[place].state != ZD_SIM_PLACE_FREE)
		place++;
	return place;
}

/* Ends open scopes as the engine does at an outermost forward, unless a claim is outstanding. */
static void sweep(struct zd_sim_generator *gen)
{
	for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
		if (gen->scopes[p].state == ZD_SIM_PLACE_CLAIM)
			return;
	}
	for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
		if (gen->scopes[p].state == ZD_SIM_PLACE_OPEN)
			gen->scopes[p].state = ZD_SIM_PLACE_FREE;
	}
}

static void gather_in(struct zd_sim_generator *gen, uint32_t group, uint32_t place, bool reads)
{
	uint32_t unit = some_unit(gen, group, 0);

	if (unit == ZD_SIM_UNITS)
		return;
	gen->scopes[place].units |= (uint8_t)(1u << unit);
	zd_sim_train(gen, ZD_SIM_GATHER, group, unit, ZD_SIM_TAGS + place, 0);
	if (reads && zd_sim_percent(&gen->rng, 50))
		zd_sim_train(gen, ZD_SIM_USE, group, unit, ZD_SIM_TAGS + place, 0);
}

static void end(struct zd_sim_generator *gen, enum zd_sim_op_kind kind, uint32_t group, uint32_t place,
                uint32_t arg)
{
	zd_sim_train(gen, kind, group, 0, place, arg);
	gen->scopes[place].state = arg & ZD_SIM_END_GRAD ? ZD_SIM_PLACE_CLAIM : ZD_SIM_PLACE_FREE;
}

/* ---- Forwards ------------------------------------------------------------------------------------------ */

/* Begins a forward, `parent` being a place + 1 or 0. ZD_SIM_SCOPES: there is no place for it. */
static uint32_t begin(struct zd_sim_generator *gen, uint32_t group, uint32_t parent)
{
	if (parent == 0)
		sweep(gen);
	uint32_t place = free_place(gen);
	if (place == ZD_SIM_SCOPES)
		return place;
	zd_sim_train(gen, ZD_SIM_FORWARD_BEGIN, group, 0, place, parent);
	gen->scopes[place].state = ZD_SIM_PLACE_OPEN;
	gen->scopes[place].parent = (uint8_t)parent;
	gen->scopes[place].units = 0;
	return place;
}

/* A rank that may hold one unit only. */
static void small_frame(struct zd_sim_generator *gen, uint32_t group)
{
	uint32_t place = begin(gen, group, 0);

	if (place == ZD_SIM_SCOPES)
		return;
	gather_in(gen, group, place, true);
	switch (zd_sim_below(&gen->rng, 3)) {
	case 0:
		end(gen, ZD_SIM_FORWARD_END, group, place, ZD_SIM_END_GRAD);
		end(gen, ZD_SIM_CLAIM_END, group, place, 0);
		break;
	case 1:
		end(gen, ZD_SIM_SCOPE_ABANDON, group, place, 0);
		break;
	default:
		end(gen, ZD_SIM_FORWARD_END, group, place, 0);
		break;
	}
}

static void frame(struct zd_sim_generator *gen, uint32_t group, uint32_t parent)
{
	uint32_t place = begin(gen, group, parent), draw;
	bool nests = !parent && zd_sim_percent(&gen->rng, 30);
	uint32_t after = !nests && zd_sim_percent(&gen->rng, 25)
	                         ? ZD_SIM_END_AHEAD
	                         : 0; /* the inner one must have ended before the outer one may */

	if (place == ZD_SIM_SCOPES)
		return;
	for (uint32_t n = (uint32_t)zd_sim_below(&gen->rng, 3); n > 0; n--)
		gather_in(gen, group, place, !after);
	if (nests)
		frame(gen, group, place + 1);
	for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
		if (gen->scopes[p].state == ZD_SIM_PLACE_OPEN && gen->scopes[p].parent == place + 1)
			end(gen, ZD_SIM_SCOPE_ABANDON, group, p, 0);
	}
	draw = (uint32_t)zd_sim_below(&gen->rng, 100);
	if (draw < 55)
		end(gen, ZD_SIM_FORWARD_END, group, place, ZD_SIM_END_GRAD | after);
	else if (draw < 75)
		end(gen, ZD_SIM_FORWARD_END, group, place, after);
}

/* ---- Contexts ------------------------------------------------------------------------------------------ */

static void context(struct zd_sim_generator *gen, uint32_t group)
{
	bool one = gen->config->groups[group].plan.one_at_a_time;
	uint32_t place = free_place(gen), units = 0, taken = 0;

	for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
		if (gen->scopes[p].state == ZD_SIM_PLACE_CONTEXT)
			taken |= gen->scopes[p].units;
	}
	for (uint64_t n = one ? 1 : zd_sim_between(&gen->rng, 1, 3); n > 0; n--) {
		uint32_t unit = some_unit(gen, group, units | taken);
		units |= unit < ZD_SIM_UNITS ? 1u << unit : 0;
	}
	if (place == ZD_SIM_SCOPES || !units)
		return;
	zd_sim_train(gen, ZD_SIM_CONTEXT_BEGIN, group, 0, place, units);
	gen->scopes[place].state = ZD_SIM_PLACE_CONTEXT;
	gen->scopes[place].units = (uint8_t)units;
	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++) {
		if (units & (1u << u) && zd_sim_percent(&gen->rng, 60))
			zd_sim_train(gen, ZD_SIM_GATHER, group, u, ZD_SIM_TAGS + place, 0);
	}
	if (one || zd_sim_percent(&gen->rng, 50))
		end(gen, ZD_SIM_CONTEXT_END, group, place, 0);
}

/* ---- Parts of a step ----------------------------------------------------------------------------------- */

void zd_sim_frames_forward(struct zd_sim_generator *gen, uint32_t group)
{
	bool one = gen->config->groups[group].plan.one_at_a_time;

	if (one && gen->nheld > 0)
		return;
	if (zd_sim_percent(&gen->rng, 40)) {
		if (one)
			small_frame(gen, group);
		else
			frame(gen, group, 0);
	}
	if (zd_sim_percent(&gen->rng, 15))
		context(gen, group);
}

/* Backwards read again what their claims hold, and end some of them. */
void zd_sim_frames_backward(struct zd_sim_generator *gen, uint32_t group)
{
	for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
		if (gen->scopes[p].state != ZD_SIM_PLACE_CLAIM || zd_sim_percent(&gen->rng, 40))
			continue;
		if (zd_sim_percent(&gen->rng, 60))
			gather_in(gen, group, p, true);
		end(gen, ZD_SIM_CLAIM_END, group, p, 0);
	}
}

void zd_sim_frames_end(struct zd_sim_generator *gen, uint32_t group)
{
	for (uint32_t p = ZD_SIM_SCOPES; p-- > 0;) {
		if (gen->scopes[p].state == ZD_SIM_PLACE_CONTEXT)
			end(gen, ZD_SIM_CONTEXT_END, group, p, 0);
		else if (gen->scopes[p].state == ZD_SIM_PLACE_CLAIM && zd_sim_percent(&gen->rng, 80))
			end(gen, ZD_SIM_CLAIM_END, group, p, 0);
		else if (gen->scopes[p].state != ZD_SIM_PLACE_FREE)
			end(gen, ZD_SIM_SCOPE_ABANDON, group, p, 0);
	}
}
