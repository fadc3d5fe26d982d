/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sm.h - life cycles as tables of states and allowed moves.
 *
 * An object keeps its state in a uint8_t; zd_sm_move() is the only writer. A move that the table does not
 * allow is an error of zerod itself and aborts.
 */
#ifndef ZD_BASE_SM_H
#define ZD_BASE_SM_H

#include <stdint.h>

struct zd_sm {
	const char *name; /* of the life cycle, for the abort's message */
	unsigned nstates; /* at most 32 */
	const char *const *state_names;
	const uint32_t *allowed; /* allowed[from] has bit `to` set when from -> to is a move */
};

#define ZD_SM_TO(state) (1u << (state))

void zd_sm_move(const struct zd_sm *sm, uint8_t *state, unsigned to);
const char *zd_sm_name(const struct zd_sm *sm, uint8_t state);

#endif
