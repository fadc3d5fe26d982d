/* SPDX-License-Identifier: Apache-2.0 */
/* placement.c - moves of units between the ranks' devices and host memory. */
#include "client/lib/base/enter.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/update.h"
#include "client/lib/conn/request.h"
#include "client/lib/gradients/step.h"
#include "client/lib/segments/segment.h"

struct placement {
	struct zerod_client *client;
	struct zc_unit *unit;
	bool on_host;
};

/* With the lock. */
static int take_place(const struct placement *placement, const Zd__UnitPlaceReply *reply, struct zd_err *err)
{
	struct zc_unit *unit = placement->unit;
	struct zc_location shard;
	int rc = zc_location_take(placement->client, reply->shard, zc_unit_shard_bytes(unit),
	                          zerod_dtype_bytes(unit->dtype), &shard, err);

	if (!rc && reply->target_offset_numel > ZD_MAX_BYTES / zerod_dtype_bytes(unit->dtype))
		rc = zd_err_set(err, ZEROD_E_PROTOCOL, "unit '%s': the daemon has its target at element %llu",
		                unit->name, (unsigned long long)reply->target_offset_numel);
	if (rc)
		return rc;
	unit->shard = shard;
	unit->on_host = placement->on_host;
	unit->target_offset_numel = reply->target_offset_numel;
	return 0;
}

static int take_reply(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	const struct placement *placement = object;
	ZC_LOCKED(&placement->client->lock);

	return take_place(placement, reply->unit_place, err);
}

static int call(struct placement *placement, uint64_t deadline_ns)
{
	Zd__UnitPlace unit_place = ZD__UNIT_PLACE__INIT;
	Zd__Request request = ZD_REQUEST(UNIT_PLACE, unit_place, &unit_place);

	unit_place.unit = placement->unit->id;
	unit_place.on_host = placement->on_host;
	return zc_call_take(placement->client, &request, zc_left_ms(deadline_ns), ZD__REPLY__BODY_UNIT_PLACE,
	                    take_reply, placement);
}

int zerod_unit_place(zerod_unit *unit, uint32_t flags, const struct zerod_wait_options *options)
{
	struct placement placement = {.client = zc_unit_client(unit),
	                              .on_host = (flags & ZEROD_UNIT_ON_HOST) != 0};
	uint32_t deadline_ms;
	uint64_t deadline_ns;
	struct zd_err *err;
	ZC_INSIDE(placement.client);
	int rc = zc_enter_group(zc_unit_group(unit), &err);

	if (!rc)
		rc = zc_flags(flags, ZEROD_UNIT_ON_HOST, "zerod_unit_place()", err);
	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (rc)
		return rc;
	deadline_ns = zc_until_ns(zc_deadline_ms(placement.client, deadline_ms));
	rc = zc_step_await(unit->group, 0, deadline_ns, err);
	if (!rc)
		rc = zc_publishes_await(placement.client, &unit, 1, deadline_ns, err);
	if (rc)
		return rc;
	placement.unit = unit->shared;
	return call(&placement, deadline_ns);
}
