/* SPDX-License-Identifier: Apache-2.0 */
/* id_stamp.c - the stamp in front of unique ids. */
#include "server/id_stamp.h"

#include <endian.h>
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"

#define NAME_BYTES (ZD_MAX_NAME_BYTES + 1)

/* The format that is sent, without padding on any compiler. */
struct stamp {
	char magic[4];
	uint32_t nids;
	uint64_t made_s;
	uint32_t uid, shared;
	uint8_t key_name[ZD_ID_KEY_NAME_BYTES];
	char job[NAME_BYTES], group[NAME_BYTES];
	uint8_t mac[ZD_MAC_BYTES];
};

_Static_assert(sizeof(struct stamp) == ZD_ID_STAMP_BYTES, "id_stamp.h shows the format");
_Static_assert(offsetof(struct stamp, mac) == 160, "id_stamp.h shows the format");

static const char magic[4] = {'z', 'i', 'd', '1'};

static int compute_mac(const struct zd_id_key *key, const struct stamp *stamp, const void *ids,
                       size_t ids_bytes, uint8_t mac[ZD_MAC_BYTES], struct zd_err *err)
{
	const struct zd_mac_part parts[] = {{stamp, offsetof(struct stamp, mac)}, {ids, ids_bytes}};

	return zd_mac(key->secret, sizeof(key->secret), parts, ZD_ARRAY_LEN(parts), mac, err);
}

int zd_id_stamp_write(const struct zd_id_key *key, const struct zd_id_facts *facts, const void *ids,
                      uint32_t nids, uint8_t stamp[ZD_ID_STAMP_BYTES], struct zd_err *err)
{
	struct stamp made = {.nids = htole32(nids),
	                     .made_s = htole64(facts->now_s),
	                     .uid = htole32(facts->uid),
	                     .shared = htole32(key->shared)};

	memcpy(made.magic, magic, sizeof(magic));
	memcpy(made.key_name, key->name, sizeof(made.key_name));
	zd_assert(strlen(facts->job) < NAME_BYTES && strlen(facts->group) < NAME_BYTES);
	memcpy(made.job, facts->job, strlen(facts->job));
	memcpy(made.group, facts->group, strlen(facts->group));
	int rc = compute_mac(key, &made, ids, (size_t)nids * ZD_UNIQUE_ID_BYTES, made.mac, err);
	if (!rc)
		memcpy(stamp, &made, sizeof(made));
	return rc;
}

/* ---- Checks -------------------------------------------------------------------------------------------- */

/* The stamp is not authenticated yet: its statement about its key only chooses the text. */
static int check_key(const struct zd_id_key *key, const struct stamp *stamp, struct zd_err *err)
{
	static const char advice[] = "set key_file under [collectives] to the same key on all nodes";

	if (memcmp(stamp->key_name, key->name, sizeof(key->name)) == 0)
		return 0;
	if (!key->shared)
		return zd_err_set(err, ZEROD_E_PERMISSION,
		                  "the unique id was made on another node, or by another user's daemon; this "
		                  "daemon has no key_file and accepts only ids of its own node: %s",
		                  advice);
	if (!le32toh(stamp->shared))
		return zd_err_set(err, ZEROD_E_PERMISSION,
		                  "the unique id was made by a daemon without a key_file: %s", advice);
	return zd_err_set(err, ZEROD_E_PERMISSION,
	                  "the unique id was made with another key than this daemon's: %s", advice);
}

static int check_mac(const struct zd_id_key *key, const struct stamp *stamp, const void *ids,
                     size_t ids_bytes, struct zd_err *err)
{
	uint8_t mac[ZD_MAC_BYTES];
	int rc = compute_mac(key, stamp, ids, ids_bytes, mac, err);

	if (rc || zd_mac_equal(mac, stamp->mac))
		return rc;
	return zd_err_set(err, ZEROD_E_PERMISSION,
	                  "the unique id was made by no daemon, or was changed since: its MAC is wrong");
}

static int check_time(uint64_t made_s, uint64_t now_s, uint32_t ttl_s, struct zd_err *err)
{
	if (made_s > now_s && made_s - now_s > ZD_ID_CLOCK_SKEW_S)
		return zd_err_set(err, ZEROD_E_PERMISSION,
		                  "the unique id will be made in %" PRIu64 " s by this node's clock: the "
		                  "clocks of the nodes differ by more than %u s",
		                  made_s - now_s, ZD_ID_CLOCK_SKEW_S);
	if (now_s > made_s && now_s - made_s > ttl_s)
		return zd_err_set(err, ZEROD_E_PERMISSION,
		                  "the unique id has expired: it was made %" PRIu64 " s ago, and id_ttl is "
		                  "%u s; or the clocks of the nodes differ",
		                  now_s - made_s, ttl_s);
	return 0;
}

/* `made` has NAME_BYTES and ends with a zero: a daemon has written it. */
static int check_name(const char *what, const char *made, const char *used, struct zd_err *err)
{
	if (made[0] == '\0' || strcmp(made, used) == 0) /* "": for any */
		return 0;
	return zd_err_set(err, ZEROD_E_INVALID, "the unique id was made for %s '%s', not for '%s'", what,
	                  made, used);
}

int zd_id_stamp_check(const struct zd_id_key *key, const struct zd_id_facts *facts, uint32_t ttl_s,
                      const void *bytes, size_t nbytes, uint32_t *left_s, struct zd_err *err)
{
	const uint8_t *ids = (const uint8_t *)bytes + ZD_ID_STAMP_BYTES;
	struct stamp stamp;

	if (nbytes >= sizeof(stamp))
		memcpy(&stamp, bytes, sizeof(stamp));
	if (nbytes < sizeof(stamp) || memcmp(stamp.magic, magic, sizeof(magic)) != 0 ||
	    nbytes - sizeof(stamp) != (uint64_t)le32toh(stamp.nids) * ZD_UNIQUE_ID_BYTES)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "%zu bytes that are no unique id of a daemon, or did not arrive whole",
		                  nbytes);
	int rc = check_key(key, &stamp, err);
	if (!rc)
		rc = check_mac(key, &stamp, ids, nbytes - sizeof(stamp), err);
	if (rc)
		return rc;
	if (le32toh(stamp.uid) != facts->uid)
		return zd_err_set(err, ZEROD_E_PERMISSION,
		                  "the unique id was made for another user than uid %u", facts->uid);
	rc = check_time(le64toh(stamp.made_s), facts->now_s, ttl_s, err);
	if (!rc)
		rc = check_name("job", stamp.job, facts->job, err);
	if (!rc)
		rc = check_name("group", stamp.group, facts->group, err);
	if (!rc) /* of a stamp from a clock that is ahead, more than the ttl */
		*left_s = (uint32_t)(le64toh(stamp.made_s) + ttl_s - facts->now_s);
	return rc;
}
