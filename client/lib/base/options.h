/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - checks of options, results and deadlines that callers pass. */
#ifndef ZD_CLIENT_OPTIONS_H
#define ZD_CLIENT_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include <zerod.h>

#include "base/err.h"
#include "proto/zerod.pb-c.h"

/* Copies options of the caller's struct_size into `copy` of `known_bytes`, and zeroes members beyond the
 * caller's structure. INVALID if a longer structure sets members that this library does not have. `given`
 * NULL: all zero. */
int zc_options(void *copy, size_t known_bytes, const void *given, const char *what, struct zd_err *err)
        __attribute__((warn_unused_result));
/* As zc_options(), for element `i` of an array, `what`. The first element's struct_size is the stride and
 * must be that of all elements. The elements before `i` must have been read. */
int zc_element(void *copy, size_t known_bytes, const void *array, uint32_t i, const char *what,
               struct zd_err *err) __attribute__((warn_unused_result));
/* Checks that a field that has no meaning yet is 0. Errors: INVALID. */
int zc_reserved(uint32_t reserved, const char *what, struct zd_err *err) __attribute__((warn_unused_result));
/* Returns the caller's deadline and flags in `options`; 0 for NULL. */
int zc_wait_flags(const struct zerod_wait_options *options, uint32_t known, uint32_t *flags,
                  uint32_t *deadline_ms, struct zd_err *err) __attribute__((warn_unused_result));
/* As zc_wait_flags(), without known flags. */
int zc_wait_options(const struct zerod_wait_options *options, uint32_t *deadline_ms, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Checks a result structure. Errors: INVALID for NULL and for a struct_size that was not set. `what` is the
 * parameter. */
int zc_result_check(const void *given, const char *what, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Fills the caller's structure up to its struct_size, and zeroes members that this library does not have. */
void zc_result_fill(void *given, const void *made, size_t known_bytes);
/* Checks that no bits beyond `known` are set. Errors: INVALID, with these bits. */
int zc_flags(uint32_t flags, uint32_t known, const char *what, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns the deadline for a message: milliseconds, 0 for none. */
uint32_t zc_deadline_ms(const struct zerod_client *client, uint32_t option_ms);
/* Returns the time at which this deadline passes, for the library's own waits (CLOCK_MONOTONIC). UINT64_MAX:
 * never. */
uint64_t zc_until_ns(uint32_t wire_ms);
/* Returns the remaining time until the deadline, for the option of a later part of the same call: at least
 * 1. */
uint32_t zc_left_ms(uint64_t deadline_ns);
/* Returns the time until which the library waits for an answer of the daemon, which enforces the deadline
 * itself: ZC_GRACE_NS later. */
uint64_t zc_answer_ns(uint64_t deadline_ns);
/* Returns the time at which the client's default deadline passes if it starts now. */
uint64_t zc_default_ns(const struct zerod_client *client);
uint64_t zc_now_ns(void);

#endif
