/* SPDX-License-Identifier: Apache-2.0 */
/* generate.h - a program being made: what program.c and frame.c share. */
#ifndef ZD_SIM_GENERATE_H
#define ZD_SIM_GENERATE_H

#include "config.h"

/* The state of a place for a scope at this point of the program, if nothing fails. */
enum zd_sim_place { ZD_SIM_PLACE_FREE, ZD_SIM_PLACE_OPEN, ZD_SIM_PLACE_CLAIM, ZD_SIM_PLACE_CONTEXT };

struct zd_sim_generator {
	const struct zd_sim_config *config;
	struct zd_sim_program *program;
	struct zd_sim_rng rng;
	uint32_t actor;
	bool dead;
	struct {
		uint8_t unit, tag;
	} held[ZD_SIM_UNITS * ZD_SIM_TAGS]; /* leases of the current group, to be released later */
	uint32_t nheld;
	struct {
		enum zd_sim_place state;
		uint8_t parent;  /* place + 1; 0: outermost */
		uint8_t units;   /* bits: gathered in it */
	} scopes[ZD_SIM_SCOPES]; /* of the current group */
	uint32_t abandons_in;    /* operations of its backwards, the rank abandons the window; 0: never */
	bool has_abandoned, steps_over; /* the window; and begins its step all the same */
};

/* program.c: an operation of the training; noise, allocations and death may come before it. */
void zd_sim_train(struct zd_sim_generator *gen, enum zd_sim_op_kind kind, uint32_t group, uint32_t unit,
                  uint32_t tag, uint32_t arg);

/* frame.c: gathers that no plan knows of */
void zd_sim_frames_forward(struct zd_sim_generator *gen, uint32_t group);
void zd_sim_frames_backward(struct zd_sim_generator *gen, uint32_t group);
/* Before an update: all scopes, claims and contexts end. */
void zd_sim_frames_end(struct zd_sim_generator *gen, uint32_t group);

#endif
