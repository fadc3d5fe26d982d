/* SPDX-License-Identifier: Apache-2.0 */
/* mac.h - message authentication codes: HMAC-SHA-256 (RFC 2104, FIPS 180-4), computed by libgcrypt. */
#ifndef ZD_SERVER_MAC_H
#define ZD_SERVER_MAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct zd_err;

#define ZD_MAC_BYTES 32u

struct zd_mac_part {
	const void *bytes;
	size_t count;
};

/* Computes the code of the concatenated `nparts` parts under the key. SYSTEM if libgcrypt cannot, for example
 * in its FIPS mode with a key of fewer than 14 bytes. */
int zd_mac(const void *key, size_t key_bytes, const struct zd_mac_part *parts, size_t nparts,
           uint8_t mac[ZD_MAC_BYTES], struct zd_err *err) __attribute__((warn_unused_result));

/* Compares in a time that does not depend on the bytes, so that a forger cannot guess a code byte by byte. */
bool zd_mac_equal(const uint8_t a[ZD_MAC_BYTES], const uint8_t b[ZD_MAC_BYTES]);

#endif
