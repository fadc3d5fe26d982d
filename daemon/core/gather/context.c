/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.c - user contexts: sets of units that a program gathers as a whole.
 *
 * context_begin is one request that gathers unit after unit under the context's tag. While it waits for the
 * rest, it keeps the buffers that it has. If one gather fails or the deadline expires, it releases all of
 * them: no context ever holds only some of its units. A unit is in at most one context of a rank, from the
 * start of the request on. Disjoint contexts can be nested. If two contexts overlap, the second fails and
 * changes nothing.
 *
 * The program receives addresses and fences from ordinary gathers that name the context and join its leases.
 */
#include "core/gather/buffer.h"
#include "core/gather/collective.h"
#include "core/gather/gather.h"
#include "core/gather/scope.h"

static void parts_leave(struct zd_request *req, bool context_lives)
{
	for (uint32_t i = 0; i < req->u.gather.nparts; i++) {
		struct zd_part *part = req->u.gather.parts[i];
		part->users--;
		if (!context_lives)
			part->context = NULL;
	}
	req->u.gather.nparts = 0;
}

static void context_cancel(struct zd_engine *e, struct zd_request *req)
{
	static const struct zd_fence_list none = {0, NULL};
	parts_leave(req, false);
	if (!req->u.gather.scope)
		return;
	/* The client has no addresses of the context's buffers: there are no fences to wait for. */
	req->u.gather.scope->ending = true;
	(void)zd_scopes_end(e, req->member, &none);
	req->u.gather.scope = NULL;
}

/* Checks that the part is of the request's member, in no context, and not given twice. */
static int part_check(const struct zd_request *req, const struct zd_part *part, struct zd_err *err)
{
	const struct zd_scope *other = part->context;
	if (zd_part_member(part) != req->member)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s' is of another group than the first",
		                  part->unit->name);
	if (other && other == req->u.gather.scope)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s' is given twice", part->unit->name);
	if (other)
		return zd_err_set(err, ZEROD_E_EXISTS, "unit '%s' is in context %llu of rank %u already",
		                  part->unit->name, ZD_ID_NUMBER(other->id),
		                  zd_world_rank(zd_part_member(part)));
	return 0;
}

static int parts_take(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                      uint64_t *padded_bytes, struct zd_err *err)
{
	uint32_t nunits = args->u.context_begin.n_units;
	int status = 0;
	size_t parts_bytes = nunits * sizeof(struct zd_part *), versions_bytes = nunits * sizeof(uint64_t);
	req->u.gather.parts = zd_request_own(req, zd_calloc(1, parts_bytes), parts_bytes);
	req->u.gather.versions = zd_request_own(req, zd_calloc(1, versions_bytes), versions_bytes);
	for (uint32_t i = 0; i < nunits && status == 0; i++) {
		struct zd_part *part;
		status = zd_part_find(e, req->session, args->u.context_begin.units[i], &part, err);
		if (status == 0 && i == 0) {
			req->member = zd_part_member(part);
			status = zd_scope_new(e, req->member, true, 0, &req->u.gather.scope, err);
		}
		if (status == 0)
			status = part_check(req, part, err);
		if (status != 0)
			break;
		part->users++;
		part->context = req->u.gather.scope;
		req->u.gather.versions[req->u.gather.nparts] = zd_gather_version(part);
		req->u.gather.parts[req->u.gather.nparts++] = part;
		*padded_bytes += zd_part_gathered_bytes(part);
	}
	return status;
}

static int context_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	uint32_t nunits = req->args->u.context_begin.n_units;
	uint64_t padded_bytes = 0;
	if (nunits == 0 || nunits > ZD_MAX_UNITS_PER_REQUEST)
		return zd_err_set(err, ZEROD_E_LIMIT, "%u units in one context; 1 to %u", nunits,
		                  ZD_MAX_UNITS_PER_REQUEST);
	int status = parts_take(e, req, req->args, &padded_bytes, err);
	if (status == 0) {
		const struct zd_device *device = req->device = req->member->device;
		uint64_t budget = device->config.gather_budget_bytes;
		if (padded_bytes > budget) { /* the request could never be granted */
			status = zd_err_set(
			        err, ZEROD_E_NO_MEMORY,
			        "%u units need %llu bytes; the gather budget of device %u is %llu", nunits,
			        (unsigned long long)padded_bytes, device->index, (unsigned long long)budget);
			req->u.gather.part = req->u.gather.parts[0];
			zd_collective_missed(e, req, status, err->text);
		}
	}
	if (status != 0) {
		context_cancel(e, req);
		return status;
	}
	req->u.gather.uses = 1;
	return 0;
}

static void context_given_up(struct zd_engine *e, struct zd_request *req)
{
	zd_collective_given_up(e, req);
	context_cancel(e, req);
}

static int context_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_scope *scope = req->u.gather.scope;
	while (req->u.gather.nheld < req->u.gather.nparts) {
		struct zd_buffer *buffer;
		req->u.gather.part = req->u.gather.parts[req->u.gather.nheld];
		req->u.gather.version = req->u.gather.versions[req->u.gather.nheld];
		int status = zd_gather_buffer(e, req, &buffer, err);
		if (status == ZD_WAIT)
			return status;
		if (status != 0) {
			context_cancel(e, req);
			return status;
		}
		(void)zd_scope_hold(e, scope, buffer);
		req->u.gather.nheld++;
	}
	parts_leave(req, true);
	zd_sm_move(&zd_sm_scope, &scope->state, ZD_SCOPE_OPEN);
	e->reply.u.scope.scope = scope->id;
	return 0;
}

const struct zd_request_type zd_req_context_begin = {
        .begin = context_begin, .attempt = context_attempt, .cancel = context_given_up, .gathers = true};
