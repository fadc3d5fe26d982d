/* SPDX-License-Identifier: Apache-2.0 */
/* session_checks.h - what must hold for the sessions of two users, at any time. */
#ifndef ZD_TESTS_FUZZ_SESSION_CHECKS_H
#define ZD_TESTS_FUZZ_SESSION_CHECKS_H

#include "tests/fuzz/model.h"

extern const uint32_t fuzz_uids[FUZZ_USERS];

/* Begins to record durable jobs of an engine without any. */
void fuzz_checks_begin(void);
/* Asserts that nothing is left. */
void fuzz_checks_end(void);

/* Asserts that no other user was told of the id, or segment. Administrators see all, and do not count. */
void fuzz_check_own(uint64_t id, unsigned user);
void fuzz_check_segment(uint32_t segment, unsigned user);
/* The same for all that a reply to the user names. */
void fuzz_check_ids(const Zd__Reply *reply, unsigned user);

/* The engine's invariants, sums and listings; returns the number of durable jobs. */
uint32_t fuzz_check(void);
/* Hashes all that the user may see, without ages; false: none of its sessions is there to see it. */
bool fuzz_hash_user(unsigned user, uint64_t *hash);
/* Asserts that another engine can be restored, with so many durable jobs. */
void fuzz_check_restore(uint32_t durable_jobs);

#endif
