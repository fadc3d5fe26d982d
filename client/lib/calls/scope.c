/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scope.c - forward scopes, claims and user contexts.
 *
 * The daemon's reply lists the scopes that have ended with a request, because a request can end several:
 * scopes that are swept, or nested in an abandoned scope. Only then do their tickets become stale.
 */
#include "client/lib/base/enter.h"
#include "client/lib/base/ids.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/lease.h"
#include "client/lib/calls/update.h"
#include "client/lib/segments/strict.h"
#include "client/lib/streams/stream.h"

struct scoping {
	struct zerod_client *client;
	zerod_scope *scope; /* the new scope; NULL: the call starts none */
};

static int take_scope(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	const struct scoping *scoping = object;
	struct zerod_client *client = scoping->client;

	if (scoping->scope && reply->scope->scope == 0)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon's scope has no id");
	pthread_mutex_lock(&client->lock);
	for (size_t i = 0; i < reply->scope->n_ended; i++)
		zc_scope_leases_end(client, reply->scope->ended[i]);
	pthread_mutex_unlock(&client->lock);
	if (scoping->scope)
		scoping->scope->id = zc_id_give(client, reply->scope->scope);
	return 0;
}

/* Makes fences after all work now in the streams, which also hold the pages of the scope's buffers (0: of all
 * scopes). */
static int fence_scope(struct zerod_client *client, uint64_t scope, zerod_stream *const *streams,
                       uint32_t nstreams, struct zc_fence_args *fences, struct zd_err *err)
{
	struct zc_hold_list holds = LIST_HEAD_INITIALIZER(holds);
	int rc;

	pthread_mutex_lock(&client->lock);
	rc = zc_scope_holds(client, scope, &holds, err);
	if (!rc)
		rc = zc_streams_fence_holding(client, streams, nstreams, &holds, fences, err);
	pthread_mutex_unlock(&client->lock);
	zc_holds_drop(client, &holds);
	return rc;
}

int zerod_forward_begin(zerod_group *group, zerod_scope parent, zerod_stream *const *streams,
                        uint32_t nstreams, zerod_scope *scope)
{
	struct scoping scoping = {.client = zc_group_client(group), .scope = scope};
	struct zd_err *err;
	Zd__ForwardBegin forward = ZD__FORWARD_BEGIN__INIT;
	Zd__Request request = ZD_REQUEST(FORWARD_BEGIN, forward_begin, &forward);
	struct zc_fence_args fences;
	ZC_INSIDE(scoping.client);
	int rc = zc_enter_group(group, &err);

	if (!rc && !scope)
		rc = zd_err_set(err, ZEROD_E_INVALID, "scope is NULL");
	if (!rc)
		rc = zc_id_take(scoping.client, parent.id, "parent scope", &parent.id, err);
	if (!rc)
		rc = fence_scope(scoping.client, 0, streams, nstreams, &fences, err);
	if (rc)
		return rc;
	forward.group = group->id;
	forward.parent = parent.id;
	forward.n_fences = fences.count;
	forward.fences = fences.pointers;
	return zc_call_take(scoping.client, &request, 0, ZD__REPLY__BODY_SCOPE, take_scope, &scoping);
}

int zerod_forward_end(zerod_client *client, zerod_scope scope, int grad, zerod_stream *const *streams,
                      uint32_t nstreams, const struct zerod_wait_options *options)
{
	uint32_t deadline_ms;
	struct scoping scoping = {.client = client};
	struct zd_err *err;
	Zd__ForwardEnd forward = ZD__FORWARD_END__INIT;
	Zd__Request request = ZD_REQUEST(FORWARD_END, forward_end, &forward);
	struct zc_fence_args fences;
	ZC_INSIDE(client);
	int rc = zc_enter_quietly(client, &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (!rc)
		rc = zc_id_take(client, scope.id, "scope", &scope.id, err);
	if (!rc)
		rc = fence_scope(client, scope.id, streams, nstreams, &fences, err);
	if (rc)
		return rc;
	forward.scope = scope.id;
	forward.grad = grad != 0;
	forward.n_fences = fences.count;
	forward.fences = fences.pointers;
	return zc_call_take(client, &request, deadline_ms, ZD__REPLY__BODY_SCOPE, take_scope, &scoping);
}

/* The requests that are a ScopeEnd. `nested`: other scopes may end with this one. */
static int end_scope(zerod_client *client, Zd__Request__BodyCase body, zerod_scope scope, bool nested,
                     zerod_stream *const *streams, uint32_t nstreams,
                     const struct zerod_wait_options *options)
{
	uint32_t deadline_ms;
	struct scoping scoping = {.client = client};
	struct zd_err *err;
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__ScopeEnd end = ZD__SCOPE_END__INIT;
	struct zc_fence_args fences;
	ZC_INSIDE(client);
	int rc = zc_enter_quietly(client, &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (!rc)
		rc = zc_id_take(client, scope.id, "scope", &scope.id, err);
	if (!rc)
		rc = fence_scope(client, nested ? 0 : scope.id, streams, nstreams, &fences, err);
	if (rc)
		return rc;
	end.scope = scope.id;
	end.n_fences = fences.count;
	end.fences = fences.pointers;
	request.body_case = body;
	request.claim_end = &end; /* all bodies share one place */
	return zc_call_take(client, &request, deadline_ms, ZD__REPLY__BODY_SCOPE, take_scope, &scoping);
}

int zerod_claim_end(zerod_client *client, zerod_scope claim, zerod_stream *const *streams, uint32_t nstreams,
                    const struct zerod_wait_options *options)
{
	return end_scope(client, ZD__REQUEST__BODY_CLAIM_END, claim, false, streams, nstreams, options);
}

int zerod_scope_abandon(zerod_client *client, zerod_scope scope, zerod_stream *const *streams,
                        uint32_t nstreams)
{
	return end_scope(client, ZD__REQUEST__BODY_SCOPE_ABANDON, scope, true, streams, nstreams, NULL);
}

int zerod_context_end(zerod_client *client, zerod_scope context, zerod_stream *const *streams,
                      uint32_t nstreams, const struct zerod_wait_options *options)
{
	return end_scope(client, ZD__REQUEST__BODY_CONTEXT_END, context, false, streams, nstreams, options);
}

int zerod_context_begin(zerod_unit *const *units, uint32_t count, const struct zerod_wait_options *options,
                        zerod_scope *context)
{
	uint32_t deadline_ms;
	struct scoping scoping = {.scope = context};
	struct zd_err *err;
	Zd__ContextBegin begin = ZD__CONTEXT_BEGIN__INIT;
	Zd__Request request = ZD_REQUEST(CONTEXT_BEGIN, context_begin, &begin);
	struct zc_unit_list list;
	ZC_INSIDE(units && count > 0 ? zc_unit_client(units[0]) : NULL);
	int rc = zc_units_take(units, count, &list, &err);

	if (!rc && !context)
		rc = zd_err_set(err, ZEROD_E_INVALID, "context is NULL");
	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (rc)
		return rc;
	scoping.client = list.client;
	begin.n_units = list.count;
	begin.units = list.ids;
	return zc_call_take(list.client, &request, deadline_ms, ZD__REPLY__BODY_SCOPE, take_scope, &scoping);
}
