/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repeat.c - requests that were granted once, and that a client repeats to the next daemon (reconnect.c).
 *
 * A client can have registered tens of thousands of units. Their requests are therefore not sent one by one:
 * the thread corks, and sends full packets before the replies arrive. Invariants: at most AHEAD requests have
 * no reply, and the thread waits for each sent request, also after a failure. The client therefore knows
 * every object whose request was granted, and the next attempt does not repeat that request.
 */
#include "client/lib/conn/repeat.h"

#include <errno.h>
#include <stdlib.h>

#include "client/lib/base/handles.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"
#include "proto/frame.h"

#define AHEAD       ((size_t)2 * ZD_MAX_BATCH) /* the daemon has one packet while the next one is packed */
#define ARENA_BYTES 4096u /* holds an unpacked request, except for those with many views */

struct sent {
	struct zc_op op;
	uint64_t deadline_ns;
	void *object;
};

struct repeating {
	struct zerod_group *group;
	const struct zc_repeat *repeat;
	struct zd_arena arena; /* the request that is being packed */
	size_t first, count;   /* of the ring `sent` */
	struct sent sent[AHEAD];
};

struct zc_kept_request *zc_request_keep(const struct zerod_client *client, const Zd__Request *request)
{
	size_t nbytes = zd__request__get_packed_size(request);
	struct zc_kept_request *kept = client->reconnect_ms ? malloc(sizeof(*kept) + nbytes) : NULL;

	if (kept)
		kept->nbytes = zd__request__pack(request, kept->bytes);
	return kept;
}

static int send_next(struct repeating *repeating, void *object, struct zd_err *err)
{
	const struct zc_kept_request *kept = repeating->repeat->kept(object);
	struct zerod_group *group = repeating->group;
	struct sent *sent = &repeating->sent[(repeating->first + repeating->count) % AHEAD];
	Zd__Request *request;
	int rc;

	zd_arena_reset(&repeating->arena);
	request = kept ? zd__request__unpack(&repeating->arena.allocator, kept->nbytes, kept->bytes) : NULL;
	if (!request)
		return zd_err_errno(err, ENOMEM, "joining a group again");
	if (request->body_case == ZD__REQUEST__BODY_UNIT_REGISTER)
		request->unit_register->group = group->id;
	if (request->body_case == ZD__REQUEST__BODY_UNITS_RESUME)
		request->units_resume->group = group->id;
	if (request->body_case == ZD__REQUEST__BODY_BUCKET_CREATE)
		request->bucket_create->group = group->id;
	sent->op = (struct zc_op){.kind = ZC_OP_CALL};
	sent->object = object;
	request->deadline_ms = zc_deadline_ms(group->client, request->deadline_ms ? request->deadline_ms
	                                                                          : ZEROD_NO_DEADLINE);
	sent->deadline_ns = zc_until_ns(request->deadline_ms);
	rc = zc_call_begin(group->client, &sent->op, request, sent->deadline_ns, err);
	repeating->count += rc == 0;
	return rc;
}

/* Waits for the replies to the oldest requests. Returns the first failure. */
static int await_oldest(struct repeating *repeating, size_t count, struct zd_err *err)
{
	struct zd_err each;
	int failed = 0;

	zc_flush(repeating->group->client);
	for (; count > 0; count--) {
		struct sent *sent = &repeating->sent[repeating->first];
		int rc = zc_call_end(repeating->group->client, &sent->op, zc_answer_ns(sent->deadline_ns),
		                     repeating->repeat->body, repeating->repeat->take, sent->object, &each);

		repeating->first = (repeating->first + 1) % AHEAD;
		repeating->count--;
		if (!rc || failed)
			continue;
		failed = rc;
		*err = each;
		if (repeating->repeat->explain)
			repeating->repeat->explain(sent->object, err);
	}
	return failed;
}

static int repeat_all(struct repeating *repeating, void *const *objects, size_t count, struct zd_err *err)
{
	struct zd_err late;
	int rc = 0, failed;

	for (size_t i = 0; i < count && !rc; i++) {
		if (repeating->count == AHEAD)
			rc = await_oldest(repeating, ZD_MAX_BATCH, err);
		if (!rc)
			rc = send_next(repeating, objects[i], err);
	}
	failed = await_oldest(repeating, repeating->count, &late);
	if (rc || !failed)
		return rc;
	*err = late;
	return failed;
}

int zc_requests_repeat(struct zerod_group *group, const struct zc_repeat *repeat, void *const *objects,
                       size_t count, struct zd_err *err)
{
	struct repeating *repeating = count > 0 ? malloc(sizeof(*repeating)) : NULL;
	struct zd_err failure;
	int rc, uncorked;

	if (count == 0)
		return 0;
	if (!repeating)
		return zd_err_errno(err, ENOMEM, "joining a group again");
	repeating->group = group;
	repeating->repeat = repeat;
	repeating->first = repeating->count = 0;
	zd_arena_init(&repeating->arena, ARENA_BYTES);
	zerod_cork(group->client);
	rc = repeat_all(repeating, objects, count, &failure);
	uncorked = zerod_uncork(group->client);
	(void)uncorked; /* the batch is empty, and its failure is the requests' */
	if (rc)
		*err = failure;
	zd_arena_deinit(&repeating->arena);
	free(repeating);
	return rc;
}
