/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_backend.h - devices without memory and without threads, for fuzzing what is above them.
 *
 * Commands are kept until the fuzzer lets them be done, in the order of their device; a watch is done when
 * the page, which the fuzzer writes, says so. Every place that a command names must lie in a segment that
 * exists.
 */
#ifndef ZD_TESTS_FUZZ_FAKE_BACKEND_H
#define ZD_TESTS_FUZZ_FAKE_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "executor/backend.h"

extern const struct zd_backend_ops fuzz_backend;

/* Ends up to `most` commands that can end; returns how many. */
unsigned fuzz_backend_run(unsigned most);
/* The next command that ends, ends with DEVICE. */
void fuzz_backend_fail_next(void);
/* Writes the client's page of a session; nothing when there is none. */
void fuzz_backend_signal(uint64_t session, uint32_t timeline, uint64_t value);

#endif
