/* SPDX-License-Identifier: Apache-2.0 */
/* cluster_program.h - what all ranks of a group do, at random: gathers, updates, commits, and training
 * steps. */
#ifndef ZD_TESTS_SPAN_PROGRAM_H
#define ZD_TESTS_SPAN_PROGRAM_H

#include "tests/support/core_driver.h"

#define UNITS   4
#define STEPS   120 /* of a program, or some more */
#define MORE    64
#define WINDOWS STEPS
#define LIVE    3 /* units that a rank has copies of at once */

enum step_kind {
	GATHER,
	RELEASE, /* when its copy is there, and has been compared */
	PREFETCH,
	PERSIST,
	FORGET, /* no longer persistent */
	UPDATE,
	PUBLISH,
	COMMIT,
	BACKWARD,
	REDUCE, /* or skip */
	BACKWARD_END,
	STEP, /* when all have come: the targets are compared */
	STEP_END,
};

static const char *const step_names[] = {"gather",       "release", "prefetch", "persist",  "forget",
                                         "update",       "publish", "commit",   "backward", "reduce",
                                         "backward_end", "step",    "step_end"};

struct step {
	enum step_kind kind;
	uint32_t unit;
	uint64_t version; /* RELEASE: of what is compared; COMMIT: the step */
	uint32_t which;   /* BACKWARD: boundary; REDUCE: the ranks that contribute; STEP: the window */
};

/* From one step to the next: how often a rank has contributed. */
struct window {
	uint8_t times[UNITS][CORE_TEAM];
};

struct program {
	uint64_t *random;
	uint32_t world;
	struct step steps[STEPS + MORE];
	uint32_t nsteps;
	struct window windows[WINDOWS];
	uint32_t nwindows;
};

/* The state of the program at this point. */
struct units {
	bool held[UNITS], copied[UNITS], persistent[UNITS]; /* copied: by a prefetch, or for good */
	uint64_t version[UNITS], committed;
};

/* splitmix64 */
static inline uint32_t draw(uint64_t *random, uint32_t n)
{
	uint64_t z = *random += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (uint32_t)((z ^ z >> 31) % n);
}

static inline void program_add(struct program *program, enum step_kind kind, uint32_t unit, uint64_t version,
                               uint32_t which)
{
	program->steps[program->nsteps++] = (struct step){kind, unit, version, which};
}

static inline uint32_t program_live(const struct units *units)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < UNITS; i++)
		n += units->held[i] || units->copied[i];
	return n;
}

static inline void program_commit(struct program *program, struct units *units)
{
	program_add(program, COMMIT, 0, ++units->committed, 0);
}

/* Between two commits, so that no rank writes what another still wants to gather. */
static inline void program_publish(struct program *program, struct units *units, uint32_t unit)
{
	if (units->held[unit])
		return;
	program_commit(program, units);
	program_add(program, UPDATE, unit, 0, 0);
	program_add(program, PUBLISH, unit, 0, 0);
	units->version[unit]++;
	units->copied[unit] = units->copied[unit] && units->persistent[unit];
	program_commit(program, units);
}

static inline void program_release(struct program *program, struct units *units, uint32_t unit)
{
	program_add(program, RELEASE, unit, units->version[unit], 0);
	units->held[unit] = false;
	units->copied[unit] = units->persistent[unit];
}

static inline void program_add_random(struct program *program, struct units *units, uint32_t dice)
{
	uint32_t unit = draw(program->random, UNITS);
	bool room = units->copied[unit] || program_live(units) < LIVE;
	if (units->held[unit] && dice < 60) {
		program_release(program, units, unit);
	} else if (!units->held[unit] && dice < 60 && room) {
		program_add(program, GATHER, unit, 0, 0);
		units->held[unit] = true;
	} else if (!units->held[unit] && dice < 75 && room && !units->persistent[unit]) {
		program_add(program, PREFETCH, unit, 0, 0);
		units->copied[unit] = true;
	} else if (dice >= 75 && dice < 82) {
		program_add(program, PERSIST, unit, 0, 0);
		units->persistent[unit] = true;
	} else if (dice >= 82 && dice < 88 && units->persistent[unit]) {
		program_add(program, FORGET, unit, 0, 0);
		units->persistent[unit] = false;
		units->copied[unit] = false;
	} else if (dice >= 96) {
		program_publish(program, units, unit);
	}
}

static inline void program_add_backward(struct program *program, struct units *units, bool boundary)
{
	uint32_t first = draw(program->random, UNITS);
	program_add(program, BACKWARD, 0, 0, boundary);
	for (uint32_t i = 0; i < UNITS; i++) {
		uint32_t unit = (first + i) % UNITS,
		         contributors = draw(program->random, 3) ? UINT32_MAX : draw(program->random, 256);
		program_add(program, REDUCE, unit, 0, contributors);
		for (uint32_t rank = 0; rank < program->world; rank++)
			program->windows[program->nwindows].times[unit][rank] += contributors >> rank & 1;
		program_add_random(program, units, draw(program->random, 60));
	}
	program_add(program, BACKWARD_END, 0, 0, 0);
}

static inline void program_train(struct program *program, struct units *units)
{
	for (uint32_t micro = draw(program->random, 2); micro > 0; micro--)
		program_add_backward(program, units, false);
	program_add_backward(program, units, true);
	program_add(program, STEP, 0, 0, program->nwindows++);
	program_add(program, STEP_END, 0, 0, 0);
}

/* From there on where the units are. */
static inline void program_new(struct program *program, struct units units)
{
	while (program->nsteps < STEPS) {
		uint32_t dice = draw(program->random, 106);
		if (dice < 100)
			program_add_random(program, &units, dice);
		else
			program_train(program, &units);
	}
	for (uint32_t i = 0; i < UNITS; i++) {
		if (units.held[i])
			program_release(program, &units, i);
	}
	program_commit(program, &units);
}

#endif
