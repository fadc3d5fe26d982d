/* SPDX-License-Identifier: Apache-2.0 */
/*
 * id_stamp.h - the stamp in front of unique ids: for whom, for which group and when a daemon has made them,
 * authenticated by the key that the daemons of all nodes share.
 *
 * NCCL connects to the address in an id, and parses the answer inside the daemon. A daemon therefore uses
 * only ids that a daemon has made, and only for the user and the group for which they were made.
 *
 * A stamp, of ZD_ID_STAMP_BYTES, numbers in little-endian order:
 *
 *     0  "zid1"
 *     4  number of ids, 32 bits
 *     8  when they were made: seconds since 1970, 64 bits
 *    16  uid, 32 bits
 *    20  1 if the key was read from a file, else 0; 32 bits
 *    24  the key's name, 8 bytes
 *    32  job, filled up to 64 bytes with zeros
 *    96  group, likewise
 *   160  HMAC-SHA-256 of the 160 bytes above and of all ids
 */
#ifndef ZD_SERVER_ID_STAMP_H
#define ZD_SERVER_ID_STAMP_H

#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"
#include "server/id_key.h"

struct zd_err;

/* The largest accepted difference between the clocks of nodes. */
#define ZD_ID_CLOCK_SKEW_S 60u

struct zd_id_facts {
	uint32_t uid;
	const char *job, *group; /* at most ZD_MAX_NAME_BYTES each */
	uint64_t now_s;          /* seconds since 1970 */
};

/* Writes the stamp of the `nids` consecutive ids at `ids`. SYSTEM: see zd_mac(). */
int zd_id_stamp_write(const struct zd_id_key *key, const struct zd_id_facts *facts, const void *ids,
                      uint32_t nids, uint8_t stamp[ZD_ID_STAMP_BYTES], struct zd_err *err)
        __attribute__((warn_unused_result));

/* Checks a stamp with its ids, `nbytes` together, against their user and purpose. Returns in *left_s the time
 * for which they are still accepted. Errors: INVALID if the bytes are not stamped ids, or were made for
 * another job or group; PERMISSION if they were made with another key, not by a daemon, for another user,
 * more than `ttl_s` seconds ago, or in the future; SYSTEM. */
int zd_id_stamp_check(const struct zd_id_key *key, const struct zd_id_facts *facts, uint32_t ttl_s,
                      const void *bytes, size_t nbytes, uint32_t *left_s, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
