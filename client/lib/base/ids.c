/* SPDX-License-Identifier: Apache-2.0 */
/* ids.c - the ids that callers have of objects of the daemon, which are valid for one connection. */
#include "client/lib/base/ids.h"

#include "client/lib/base/client.h"

#define ID_BITS    (ZD_ID_NUMBER_BITS + ZD_ID_KIND_BITS) /* the others are the same in all ids of a session */
#define ID_MASK    ((1ull << ID_BITS) - 1)
#define GENERATION (UINT64_MAX >> ID_BITS)

uint64_t zc_id_give(const struct zerod_client *client, uint64_t id)
{
	if (id == 0 || client->reconnect_ms == 0)
		return id;
	return (id & ID_MASK) | (client->generation & GENERATION) << ID_BITS;
}

int zc_id_take(const struct zerod_client *client, uint64_t given, const char *what, uint64_t *id,
               struct zd_err *err)
{
	bool plain = client->reconnect_ms == 0 || given == 0;

	if (!plain && given >> ID_BITS != (client->generation & GENERATION))
		return zd_err_set(err, ZEROD_E_RESTARTED, "the %s ended with the daemon before", what);
	*id = plain ? given : (given & ID_MASK) | (client->session & ~ID_MASK);
	return 0;
}
