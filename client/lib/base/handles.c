/* SPDX-License-Identifier: Apache-2.0 */
/* handles.c - queries of units and groups, for all rooms. */
#include "client/lib/base/handles.h"

#include <stdlib.h>

/* ---- Units --------------------------------------------------------------------------------------------- */

uint64_t zc_unit_shard_bytes(const struct zc_unit *unit)
{
	return unit->shard_numel * zerod_dtype_bytes(unit->dtype);
}

uint64_t zc_unit_bytes(const struct zc_unit *unit)
{
	return unit->numel * zerod_dtype_bytes(unit->dtype);
}

uint64_t zc_unit_padded_bytes(const struct zc_unit *unit)
{
	return unit->padded_numel * zerod_dtype_bytes(unit->dtype);
}

struct zerod_client *zc_unit_client(const struct zerod_unit *unit)
{
	return unit ? unit->group->client : NULL;
}

const struct zerod_group *zc_unit_group(const struct zerod_unit *unit)
{
	return unit ? unit->group : NULL;
}

void zc_unit_unref(struct zc_unit *unit)
{
	if (--unit->refs > 0)
		return;
	free(unit->registered);
	free(unit);
}

/* ---- Groups -------------------------------------------------------------------------------------------- */

struct zerod_client *zc_group_client(const struct zerod_group *group)
{
	return group ? group->client : NULL;
}

struct zerod_group *zc_group_find(const struct zerod_client *client, uint64_t id)
{
	struct zerod_group *group;

	LIST_FOREACH (group, &client->groups, link)
		if (group->id == id)
			break;
	return group;
}
