/* SPDX-License-Identifier: Apache-2.0 */
/* contract_internal.h - what the fixture's own files share. */
#ifndef ZD_TESTS_CONTRACT_INTERNAL_H
#define ZD_TESTS_CONTRACT_INTERNAL_H

#include "contract.h"

/* Every gate that is still shut. */
void contract_gates_open(void);
/* The rank's streams drain and go. */
void contract_streams_end(struct contract_rank *rank);
/* What copies have kept; no stream may be left. */
void contract_copies_free(void);

#endif
