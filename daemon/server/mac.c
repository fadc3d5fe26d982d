/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mac.c - message authentication codes.
 *
 * libgcrypt's secure memory is not used: it would lock pages, and the key is in the daemon's memory all the
 * time.
 */
#include "server/mac.h"

#include <gcrypt.h>
#include <string.h>

#include "base/err.h"

static int init(struct zd_err *err)
{
	if (gcry_control(GCRYCTL_INITIALIZATION_FINISHED_P))
		return 0;
	if (!gcry_check_version(GCRYPT_VERSION))
		return zd_err_set(err, ZEROD_E_SYSTEM, "libgcrypt %s is older than " GCRYPT_VERSION,
		                  gcry_check_version(NULL));
	(void)gcry_control(GCRYCTL_DISABLE_SECMEM, 0);
	(void)gcry_control(GCRYCTL_INITIALIZATION_FINISHED, 0);
	return 0;
}

int zd_mac(const void *key, size_t key_bytes, const struct zd_mac_part *parts, size_t nparts,
           uint8_t mac[ZD_MAC_BYTES], struct zd_err *err)
{
	gcry_md_hd_t hash;
	int rc = init(err);

	if (rc)
		return rc;
	gcry_error_t failure = gcry_md_open(&hash, GCRY_MD_SHA256, GCRY_MD_FLAG_HMAC);
	if (failure)
		return zd_err_set(err, ZEROD_E_SYSTEM, "HMAC-SHA-256: %s", gcry_strerror(failure));
	failure = gcry_md_setkey(hash, key, key_bytes);
	for (size_t i = 0; !failure && i < nparts; i++)
		gcry_md_write(hash, parts[i].bytes, parts[i].count);
	if (!failure)
		memcpy(mac, gcry_md_read(hash, GCRY_MD_SHA256), ZD_MAC_BYTES);
	gcry_md_close(hash);
	if (failure)
		return zd_err_set(err, ZEROD_E_SYSTEM, "HMAC-SHA-256: %s", gcry_strerror(failure));
	return 0;
}

bool zd_mac_equal(const uint8_t a[ZD_MAC_BYTES], const uint8_t b[ZD_MAC_BYTES])
{
	volatile uint8_t differ = 0;

	for (size_t i = 0; i < ZD_MAC_BYTES; i++)
		differ |= a[i] ^ b[i];
	return differ == 0;
}
