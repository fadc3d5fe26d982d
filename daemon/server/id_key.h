/* SPDX-License-Identifier: Apache-2.0 */
/* id_key.h - the key that authenticates unique ids: from the file that all nodes share, or this node's
 * own. */
#ifndef ZD_SERVER_ID_KEY_H
#define ZD_SERVER_ID_KEY_H

#include <stdbool.h>
#include <stdint.h>

#include "server/mac.h"

#define ZD_ID_KEY_LEAST_BYTES 32u
#define ZD_ID_KEY_MOST_BYTES  4096u
#define ZD_ID_KEY_NAME_BYTES  8u

struct zd_id_key {
	uint8_t secret[ZD_MAC_BYTES];
	/* Distinguishes keys, and reveals nothing about the secret. */
	uint8_t name[ZD_ID_KEY_NAME_BYTES];
	bool shared; /* read from the configured file; false: only this node has it */
};

/* Derives the key from the file's bytes. Errors: NOT_FOUND; PERMISSION if the file belongs to another user
 * than root and the daemon's, or others than its owner may access it; INVALID if it is no regular file, or
 * has too few or too many bytes, or one byte repeated; SYSTEM. */
int zd_id_key_read(const char *path, struct zd_id_key *key, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns the key that daemons of this user on this node share: from zerod-ids-UID.key in $XDG_RUNTIME_DIR,
 * or in /tmp. The first daemon creates the file, with random bytes. If that is not possible, only this daemon
 * has the key. SYSTEM if the kernel returns no random bytes. */
int zd_id_key_make(struct zd_id_key *key, struct zd_err *err) __attribute__((warn_unused_result));

#endif
