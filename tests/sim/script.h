/* SPDX-License-Identifier: Apache-2.0 */
/*
 * script.h - fixed programs: what each rank does in a scenario of the contract, and what must be seen on the way.
 *
 * All ranks of one group run the same operations, or those that name them. Before the first one every rank has joined,
 * registered its units, made a bucket and published version 1, and has met the others. Sizes, dtypes, devices and delays
 * come from the seed, and so does whether clients copy their own slice and are strict.
 */
#ifndef ZD_SIM_SCRIPT_H
#define ZD_SIM_SCRIPT_H

#include "config.h"

#define ZD_SIM_ALL_RANKS 0xffffu

struct zd_sim_script_op {
	enum zd_sim_op_kind kind;
	uint32_t ranks; /* bits */
	uint32_t unit, tag, arg;
	int expect; /* status of the reply */
};

struct zd_sim_script {
	const char *name;
	uint32_t pull_request; /* of DeepSpeed, whose rule it is about */
	uint32_t world, nunits, nslots, stage;
	bool one_buffer; /* a device has room for one gathered copy a rank */
	bool one_slot;   /* all units are gathered into the same slot */
	bool frozen;     /* unit 0 */
	bool overflows;  /* every gradient has an inf */
	uint32_t repeats, nops;
	const struct zd_sim_script_op *ops;
};

extern const struct zd_sim_script *const zd_sim_scripts[]; /* NULL behind the last */

void zd_sim_script_config(const struct zd_sim_script *script, uint64_t seed, struct zd_sim_config *config);
void zd_sim_script_program(const struct zd_sim_script *script, const struct zd_sim_config *config,
                           struct zd_sim_program *program);

#endif
