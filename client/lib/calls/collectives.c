/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collectives.c - groups that span daemons, or use NCCL for all collectives: checks of their options, and the
 * ids with which their ranks connect.
 *
 * A struct zerod_unique_id has the daemon's stamp, then the ids of as many communicators as the group needs,
 * then zeros. No id is all zeros. If it has fewer or more ids, they were made for a group with other local
 * ranks. The stamp authenticates all of them. They are therefore sent unchanged.
 */
#include <string.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/group.h"
#include "client/lib/conn/request.h"

#define MAX_LOCAL_RANKS ((uint32_t)ZEROD_MAX_LOCAL_RANKS)

_Static_assert(ZEROD_UNIQUE_ID_BYTES == ZD_ID_STAMP_BYTES + ZD_MAX_UNIQUE_IDS * ZD_UNIQUE_ID_BYTES,
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

static size_t id_bytes(uint32_t nids)
{
	return ZD_ID_STAMP_BYTES + (size_t)nids * ZD_UNIQUE_ID_BYTES;
}

static bool has_id(const struct zerod_unique_id *id, uint32_t index)
{
	static const unsigned char none[ZD_UNIQUE_ID_BYTES];

	return index < ZD_MAX_UNIQUE_IDS && memcmp(id->bytes + id_bytes(index), none, sizeof(none)) != 0;
}

static int check_unique_id(const struct zerod_group_options *options, struct zd_err *err)
{
	uint32_t needed = ids_needed(options);

	if (needed == 0 && options->unique_id)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "group '%s': unique_id is set, and all %u ranks are in this daemon: "
		                  "local_world_size is the number of ranks in each daemon",
		                  options->group, options->world_size);
	if (needed == 0)
		return 0;
	if (!options->unique_id)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "group '%s': unique_id is NULL, and %u of %u ranks are in other daemons: "
		                  "zerod_group_unique_id() creates one",
		                  options->group, options->world_size - options->local_world_size,
		                  options->world_size);
	if (!has_id(options->unique_id, needed - 1))
		return zd_err_set(
		        err, ZEROD_E_INVALID,
		        "group '%s': unique_id was made for fewer than %u local ranks, or is incomplete",
		        options->group, needed / ZD_UNIQUE_IDS_PER_RANK);
	if (has_id(options->unique_id, needed))
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "group '%s': unique_id was made for more than %u local ranks, or for other "
		                  "collectives",
		                  options->group, needed / ZD_UNIQUE_IDS_PER_RANK);
	return 0;
}

static int check_sizes(const struct zerod_client *client, struct zerod_group_options *options,
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
		return check_daemon(client, err);
	}
	return 0;
}

int zc_collectives_check(const struct zerod_client *client, struct zerod_group_options *options,
                         struct zd_err *err)
{
	int rc = check_sizes(client, options, err);

	return rc ? rc : check_unique_id(options, err);
}

void zc_collectives_pack(const struct zerod_group_options *options, Zd__GroupJoin *join)
{
	join->local_world_size = spans(options) ? options->local_world_size : 0;
	join->hybrid = (options->flags & ZEROD_GROUP_HYBRID) != 0;
	join->collectives = options->collectives == ZEROD_COLLECTIVES_NCCL ? ZD__COLLECTIVES__NCCL
	                                                                   : ZD__COLLECTIVES__COPIES;
	if (!spans(options))
		return;
	join->unique_ids.len = id_bytes(ids_needed(options));
	join->unique_ids.data = (uint8_t *)options->unique_id->bytes;
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
};

static int take_ids(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct making *making = object;

	if (reply->unique_ids->ids.len != making->expected_bytes)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the daemon sent unique ids of %zu bytes, expected %zu",
		                  reply->unique_ids->ids.len, making->expected_bytes);
	memcpy(making->id.bytes, reply->unique_ids->ids.data, making->expected_bytes);
	return 0;
}

/* Copies and checks the options of the group that the id is for. */
static int take_group(const struct zerod_client *client, const struct zerod_group_options *given,
                      struct zerod_group_options *options, struct zd_err *err)
{
	int rc;

	if (!given)
		return zd_err_set(err, ZEROD_E_INVALID, "group is NULL");
	rc = zc_group_options(given, options, err);
	if (!rc)
		rc = check_sizes(client, options, err);
	if (!rc && !spans(options))
		rc = zd_err_set(err, ZEROD_E_INVALID,
		                "group '%s': all %u ranks are in this daemon: it has no unique id",
		                options->group, options->world_size);
	return rc;
}

static int make_id(zerod_client *client, Zd__UniqueIds *unique_ids, uint32_t deadline_ms,
                   struct zerod_unique_id *id)
{
	Zd__Request request = ZD_REQUEST(UNIQUE_IDS, unique_ids, unique_ids);
	struct making making = {.expected_bytes = id_bytes(unique_ids->count)};
	int rc = zc_call_take(client, &request, deadline_ms, ZD__REPLY__BODY_UNIQUE_IDS, take_ids, &making);

	if (rc == 0)
		*id = making.id;
	return rc;
}

int zerod_group_unique_id(zerod_client *client, const struct zerod_group_options *given,
                          const struct zerod_wait_options *wait, struct zerod_unique_id *id)
{
	uint32_t deadline_ms;
	Zd__UniqueIds unique_ids = ZD__UNIQUE_IDS__INIT;
	struct zerod_group_options group;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter(client, &err);

	if (!rc)
		rc = zc_wait_options(wait, &deadline_ms, err);
	if (!rc && !id)
		rc = zd_err_set(err, ZEROD_E_INVALID, "id is NULL");
	if (!rc)
		rc = take_group(client, given, &group, err);
	if (rc)
		return rc;
	unique_ids.count = ids_needed(&group);
	unique_ids.job = (char *)group.job;
	unique_ids.group = (char *)group.group;
	return make_id(client, &unique_ids, deadline_ms, id);
}

int zerod_unique_id(zerod_client *client, uint32_t local_world_size, const struct zerod_wait_options *options,
                    struct zerod_unique_id *id)
{
	uint32_t deadline_ms;
	Zd__UniqueIds unique_ids = ZD__UNIQUE_IDS__INIT;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter(client, &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (!rc && !id)
		rc = zd_err_set(err, ZEROD_E_INVALID, "id is NULL");
	if (!rc && (local_world_size == 0 || local_world_size > MAX_LOCAL_RANKS))
		rc = zd_err_set(err, ZEROD_E_INVALID, "local_world_size %u, expected 1 to %u",
		                local_world_size, MAX_LOCAL_RANKS);
	if (!rc)
		rc = check_daemon(client, err);
	if (rc)
		return rc;
	unique_ids.count = local_world_size * ZD_UNIQUE_IDS_PER_RANK;
	return make_id(client, &unique_ids, deadline_ms, id);
}
