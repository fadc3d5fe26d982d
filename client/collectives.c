/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collectives.c - groups that span daemons, or use NCCL for all collectives: checks of their options, and the
 * ids by which their ranks connect.
 *
 * A struct zerod_unique_id holds the ids of as many communicators as the group needs, followed by zeros; no
 * id is all zeros. If there are too few ids, they were made for a group with fewer local ranks.
 */
#include "client/client.h"
#include "client/options.h"
#include "client/request.h"

#include <string.h>

#define MAX_LOCAL_RANKS ((uint32_t)ZEROD_MAX_LOCAL_RANKS)

_Static_assert(ZEROD_UNIQUE_ID_BYTES == ZD_MAX_UNIQUE_IDS * ZD_UNIQUE_ID_BYTES,
               "a unique id has room for the ids of all communicators");
_Static_assert(ZEROD_MAX_LOCAL_RANKS == ZD_MAX_UNIQUE_IDS / ZD_UNIQUE_IDS_PER_RANK,
               "the ids of all local ranks fit");

static int check_daemon(const struct zerod_client *client, struct zd_err *err)
{
	if (client->collectives)
		return 0;
	return zd_err_set(err, ZEROD_E_UNSUPPORTED,
	                  "this daemon has no communicators, which groups across daemons, and "
	                  "ZEROD_COLLECTIVES_NCCL, need: its devices are emulated");
}

static bool spans(const struct zerod_group_options *options)
{
	return options->local_world_size < options->world_size;
}

/* All ranks connect in one communicator, or the ranks with the same local rank in one each. */
static uint32_t ids_needed(const struct zerod_group_options *options)
{
	uint32_t rails = options->collectives == ZEROD_COLLECTIVES_NCCL ? 1 : options->local_world_size;

	return spans(options) ? rails * ZD_UNIQUE_IDS_PER_RANK : 0;
}

static bool has_id(const struct zerod_unique_id *id, uint32_t index)
{
	static const unsigned char none[ZD_UNIQUE_ID_BYTES];

	return memcmp(id->bytes + (size_t)index * ZD_UNIQUE_ID_BYTES, none, sizeof(none)) != 0;
}

static int check_unique_id(const struct zerod_group_options *options, struct zd_err *err)
{
	uint32_t needed = ids_needed(options);

	if (needed == 0 && options->unique_id)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "group '%s': unique_id is given, and all %u ranks are in this daemon: "
		                  "local_world_size says how many are",
		                  options->group, options->world_size);
	if (needed == 0)
		return 0;
	if (!options->unique_id)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "group '%s': unique_id is NULL, and %u of %u ranks are in other daemons: "
		                  "zerod_unique_id() makes one",
		                  options->group, options->world_size - options->local_world_size,
		                  options->world_size);
	if (!has_id(options->unique_id, needed - 1))
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "group '%s': unique_id was made for fewer than %u local ranks, or did not "
		                  "arrive whole",
		                  options->group, needed / ZD_UNIQUE_IDS_PER_RANK);
	return 0;
}

int zc_collectives_check(const struct zerod_client *client, struct zerod_group_options *options,
                         struct zd_err *err)
{
	if (options->local_world_size == 0)
		options->local_world_size = options->world_size;
	if (options->collectives != ZEROD_COLLECTIVES_COPIES &&
	    options->collectives != ZEROD_COLLECTIVES_NCCL)
		return zd_err_set(err, ZEROD_E_INVALID, "group '%s': unknown value %d of collectives",
		                  options->group, (int)options->collectives);
	if (options->world_size % options->local_world_size != 0)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "group '%s': world_size %u is no multiple of local_world_size %u",
		                  options->group, options->world_size, options->local_world_size);
	if (spans(options) && options->local_world_size > MAX_LOCAL_RANKS)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "group '%s': local_world_size %u, at most %u ranks of a group that spans "
		                  "daemons are in one",
		                  options->group, options->local_world_size, MAX_LOCAL_RANKS);
	if ((options->flags & ZEROD_GROUP_HYBRID) &&
	    (!spans(options) || options->collectives == ZEROD_COLLECTIVES_NCCL))
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "group '%s': ZEROD_GROUP_HYBRID is for ranks in several daemons, with "
		                  "ZEROD_COLLECTIVES_COPIES",
		                  options->group);
	if (spans(options) || options->collectives == ZEROD_COLLECTIVES_NCCL) {
		int rc = check_daemon(client, err);

		if (rc)
			return rc;
	}
	return check_unique_id(options, err);
}

void zc_collectives_pack(const struct zerod_group_options *options, Zd__GroupJoin *join)
{
	join->local_world_size = spans(options) ? options->local_world_size : 0;
	join->hybrid = (options->flags & ZEROD_GROUP_HYBRID) != 0;
	join->collectives = options->collectives == ZEROD_COLLECTIVES_NCCL ? ZD__COLLECTIVES__NCCL
	                                                                   : ZD__COLLECTIVES__COPIES;
	join->unique_ids.len = (size_t)ids_needed(options) * ZD_UNIQUE_ID_BYTES;
	join->unique_ids.data = join->unique_ids.len > 0 ? (uint8_t *)options->unique_id->bytes : NULL;
}

void zc_collectives_place(const struct zerod_group_options *options, struct zerod_group *group)
{
	bool hybrid = options->flags & ZEROD_GROUP_HYBRID;

	group->nshards = hybrid ? options->local_world_size : options->world_size;
	group->shard = options->rank % group->nshards;
}

/* ---- Making an id -------------------------------------------------------------------------------------- */

struct making {
	size_t expected_bytes;
	struct zerod_unique_id id;
	struct zd_err *err;
};

static int take_ids(const Zd__Reply *reply, void *arg)
{
	struct making *making = arg;
	int rc = zc_check_body(reply, ZD__REPLY__BODY_UNIQUE_IDS, making->err);

	if (rc)
		return rc;
	if (reply->unique_ids->ids.len != making->expected_bytes)
		return zd_err_set(making->err, ZEROD_E_PROTOCOL,
		                  "the daemon sent unique ids of %zu bytes, expected %zu",
		                  reply->unique_ids->ids.len, making->expected_bytes);
	memcpy(making->id.bytes, reply->unique_ids->ids.data, making->expected_bytes);
	return 0;
}

int zerod_unique_id(zerod_client *client, uint32_t local_world_size, const struct zerod_wait_options *options,
                    struct zerod_unique_id *id)
{
	uint32_t deadline_ms;
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__UniqueIds unique_ids = ZD__UNIQUE_IDS__INIT;
	struct making making = {.expected_bytes = 0};
	int rc = zc_enter(client, &making.err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, making.err);
	if (!rc && !id)
		rc = zd_err_set(making.err, ZEROD_E_INVALID, "id is NULL");
	if (!rc && (local_world_size == 0 || local_world_size > MAX_LOCAL_RANKS))
		rc = zd_err_set(making.err, ZEROD_E_INVALID, "local_world_size %u, expected 1 to %u",
		                local_world_size, MAX_LOCAL_RANKS);
	if (!rc)
		rc = check_daemon(client, making.err);
	if (rc)
		return rc;
	unique_ids.count = local_world_size * ZD_UNIQUE_IDS_PER_RANK;
	making.expected_bytes = (size_t)unique_ids.count * ZD_UNIQUE_ID_BYTES;
	request.body_case = ZD__REQUEST__BODY_UNIQUE_IDS;
	request.unique_ids = &unique_ids;
	rc = zc_call(client, &request, deadline_ms, take_ids, &making);
	if (rc)
		return rc;
	*id = making.id;
	return 0;
}
