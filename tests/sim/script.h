/* SPDX-License-Identifier: Apache-2.0 */
/*
 * script.h - fixed programs: what each rank does in a scenario of the contract, and what must be seen on the
 * way.
 *
 * All ranks of one group run the same operations, or those that name them. Before the first one every rank
 * has joined, registered its units, made a bucket and published version 1, and has met the others. Sizes,
 * dtypes, devices and delays come from the seed, and so does whether clients copy their own slice and are
 * strict, where the script does not say. The scripts of one file of tests/contract are in one file,
 * scripts_*.c, in the order of its tests.
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
	const char *says;
	bool ahead;
};

struct zd_sim_script {
	const char *name;
	const char *contract; /* the file of tests/contract that does the same */
	uint32_t world, nunits, nslots, stage;
	bool one_buffer; /* a device has room for one gathered copy a rank */
	bool one_slot;   /* all units are gathered into the same slot */
	bool frozen;     /* unit 0 */
	bool overflows;  /* every gradient has an inf */
	bool overwrites; /* each reduction takes the place of the former */
	bool mixes;      /* gradients of three dtypes */
	bool tiny;       /* units of fewer elements than ranks */
	bool large;      /* units of hundreds of elements on every rank */
	bool all_dtypes; /* units that follow each other have different dtypes */
	bool viewed;     /* every unit has two views */
	bool apart;      /* every rank has a device of its own */
	bool too_large;  /* the last unit is larger than the gather budget, the one before twice the others */
	bool too_wide;   /* an entry for unit 0 is larger than the device */
	bool copies;     /* sessions are strict: no gather is in place */
	bool full;       /* the device has room for the shards and for one copy of unit 0, and no more */
	uint32_t ncopies;   /* of a unit fit into the gather budget, all being of one size; 0: of all units */
	uint32_t backwards; /* of a window that a rank abandons; 0: none does */
	uint32_t repeats, nops;
	const struct zd_sim_script_op *ops;
};

/* Of one file of tests/contract each; NULL behind the last. */
extern const struct zd_sim_script *const zd_sim_scripts_pr8032[],
        *const zd_sim_scripts_pr8059[],
                *const zd_sim_scripts_pr8036[],
                        *const zd_sim_scripts_pr8080[],
                                *const zd_sim_scripts_known_failures[],
                                        *const zd_sim_scripts_bad_requests[],
                                                *const zd_sim_scripts_versions[],
                                                        *const zd_sim_scripts_sums[],
                                                                *const zd_sim_scripts_room[],
                                                                        *const zd_sim_scripts_many[];
extern const struct zd_sim_script *const zd_sim_scripts_windows[],
        *const zd_sim_scripts_ahead[], *const zd_sim_scripts_reduce_wait[];
const struct zd_sim_script *zd_sim_script_at(uint32_t index); /* of all; NULL behind the last */

void zd_sim_script_config(const struct zd_sim_script *script, uint64_t seed, struct zd_sim_config *config);
void zd_sim_script_program(const struct zd_sim_script *script, const struct zd_sim_config *config,
                           struct zd_sim_program *program);

#endif
