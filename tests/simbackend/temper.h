/* SPDX-License-Identifier: Apache-2.0 */
/*
 * temper.h - what a seed makes of a backend: what it does of all that a backend may do, and how long each
 * kind of step is held back, on each device.
 *
 * Every command has random numbers of its own, by the seed, its device and how many commands the device was
 * given before it. So what is drawn for it does not depend on the machine's timing, only on what the core
 * asks for.
 */
#ifndef ZD_TESTS_SIMBACKEND_TEMPER_H
#define ZD_TESTS_SIMBACKEND_TEMPER_H

#include <stdint.h>

#include "tests/sim/config.h"

/* Properties that all devices have in common. */
struct zd_temper_backend {
	bool sessions_linger, strict_by_segment; /* as in struct zd_backend_ops */
	uint32_t deny_percent;                   /* of fences that have passed: they are told of by a watch */
};

/* Of one device; scales for zd_sim_delay(). */
struct zd_temper {
	uint64_t begin_ns;         /* from the command to the first piece */
	uint64_t piece_ns;         /* between two pieces */
	uint64_t end_ns;           /* from the last piece to the store */
	uint64_t tell_ns;          /* from the store to the completion */
	uint64_t look_ns;          /* between two looks at the fences of a watch */
	uint64_t gone_ns;          /* between two looks at whether a process is gone */
	uint64_t segment_ns;       /* that a segment takes to be there, or to be gone */
	uint32_t scribble_percent; /* of copies and fills lose what was there when they begin */
	uint64_t stall_ns;         /* nothing at all moves on the device */
	uint32_t stall_permille;   /* of the commands come with a stall */
};

/* Before the first executor starts. */
void zd_temper_set_seed(uint64_t seed);

void zd_temper_draw_backend(struct zd_temper_backend *backend);
void zd_temper_draw(uint32_t device, struct zd_temper *temper);
void zd_temper_command_rng(uint32_t device, uint64_t command, struct zd_sim_rng *rng);
/* For what the loop's thread asks. */
void zd_temper_loop_rng(struct zd_sim_rng *rng);

#endif
