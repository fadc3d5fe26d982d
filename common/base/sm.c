/* SPDX-License-Identifier: Apache-2.0 */
/* sm.c - life cycles as tables. A move that the table does not allow ends the process, with both states'
 * names. */
#include "base/sm.h"

#include <stdio.h>
#include <stdlib.h>

const char *zd_sm_name(const struct zd_sm *sm, uint8_t state)
{
	return state < sm->nstates ? sm->state_names[state] : "?";
}

void zd_sm_move(const struct zd_sm *sm, uint8_t *state, unsigned to)
{
	if (*state >= sm->nstates || to >= sm->nstates || !(sm->allowed[*state] & ZD_SM_TO(to))) {
		(void)fprintf(stderr, "%s: no move from %s (%u) to %s (%u)\n", sm->name,
		              zd_sm_name(sm, *state), *state, to < sm->nstates ? sm->state_names[to] : "?",
		              to);
		abort();
	}
	*state = (uint8_t)to;
}
