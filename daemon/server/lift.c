/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lift.c - between messages and the core, which has them by value.
 *
 * Counts of lists are checked here. The core checks the rest.
 */
#include "server/lift.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"

#define MAX_LISTS 4u /* that are checked, of one message */

/* The longest lists. Other lists are as long as a request can be. */
static const struct bound {
	const ProtobufCMessageDescriptor *message; /* NULL: of every message without a bound of its own */
	const char *list;
	size_t most;
} bounds[] = {
        {&zd__units_resume__descriptor, "units", ZD_MAX_RESUMED},
        {NULL, "units", ZD_MAX_UNITS_PER_REQUEST},
        {NULL, "views", ZD_MAX_VIEWS},
        {NULL, "fences", ZD_MAX_FENCES},
        {NULL, "segments", ZD_MAX_RETIRED},
};

struct list {
	const ProtobufCFieldDescriptor *field;
	size_t most;
};

static struct plan {
	size_t bytes;
	unsigned nlists, nplaces;
	struct list lists[MAX_LISTS];
	const ProtobufCFieldDescriptor *body; /* of the reply; NULL: the reply is a status */
	const ProtobufCFieldDescriptor
	        *places[ZD_REPLY_PLACES];       /* of the body: Locations, and messages of these */
	const ProtobufCFieldDescriptor *fences; /* NULL: none */
} plans[ZD_NREQUESTS];

/* ---- Plans --------------------------------------------------------------------------------------------- */

static const struct bound *find_bound(const ProtobufCMessageDescriptor *message,
                                      const ProtobufCFieldDescriptor *field)
{
	for (size_t i = 0; i < ZD_ARRAY_LEN(bounds); i++)
		if ((!bounds[i].message || bounds[i].message == message) &&
		    strcmp(bounds[i].list, field->name) == 0)
			return &bounds[i];
	return NULL;
}

static void make_plan(struct plan *plan, unsigned body)
{
	const ProtobufCMessageDescriptor *message =
	        protobuf_c_message_descriptor_get_field(&zd__request__descriptor, body)->descriptor;

	*plan = (struct plan){.bytes = message->sizeof_message};
	zd_assert(plan->bytes <= sizeof(((struct zd_args *)0)->u));
	for (unsigned i = 0; i < message->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &message->fields[i];
		const struct bound *bound = find_bound(message, field);

		if (field->label != PROTOBUF_C_LABEL_REPEATED || !bound)
			continue;
		zd_assert(plan->nlists < MAX_LISTS);
		plan->lists[plan->nlists++] = (struct list){field, bound->most};
	}
}

static void plan_reply(struct plan *plan, const char *body)
{
	const ProtobufCMessageDescriptor *message;

	plan->body = protobuf_c_message_descriptor_get_field_by_name(&zd__reply__descriptor, body);
	message = plan->body->descriptor;
	zd_assert(message->sizeof_message <= sizeof(((struct zd_reply *)0)->u));
	for (unsigned i = 0; i < message->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &message->fields[i];

		if (field->type != PROTOBUF_C_TYPE_MESSAGE)
			continue;
		if (field->label == PROTOBUF_C_LABEL_REPEATED) {
			zd_assert(field->descriptor == &zd__fence__descriptor);
			plan->fences = field;
		} else {
			zd_assert(plan->nplaces < ZD_REPLY_PLACES);
			plan->places[plan->nplaces++] = field;
		}
	}
}

void zd_lift_plan(void)
{
#define REQUEST(KIND, name) make_plan(&plans[ZD_REQ_##KIND], ZD__REQUEST__BODY_##KIND);
#define REQUEST_FILLED(KIND, name, fill)                                                                     \
	make_plan(&plans[ZD_REQ_##KIND], ZD__REQUEST__BODY_##KIND);                                          \
	plan_reply(&plans[ZD_REQ_##KIND], #fill);
#include "core/requests.def"
}

/* ---- Lists of messages --------------------------------------------------------------------------------- */

static struct zd_fence_list take_fences(Zd__Fence *const *messages, size_t count, struct zd_arena *arena)
{
	struct zd_fence *fences = zd_arena_alloc(arena, count * sizeof(*fences));

	for (size_t i = 0; i < count; i++)
		fences[i] = (struct zd_fence){.timeline = messages[i]->timeline, .value = messages[i]->value};
	return (struct zd_fence_list){.count = (uint32_t)count, .fences = fences};
}

static int check_views(Zd__View *const *views, size_t count, struct zd_err *err)
{
	for (size_t i = 0; i < count; i++) {
		if (views[i]->n_shape > ZD_MAX_DIMS)
			return zd_err_set(err, ZEROD_E_LIMIT, "a view with %zu dimensions; at most %u",
			                  views[i]->n_shape, ZD_MAX_DIMS);
	}
	return 0;
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

static int take_list(const struct list *list, struct zd_arena *arena, struct zd_args *args,
                     struct zd_err *err)
{
	const char *message = (const char *)&args->u;
	size_t count = *(const size_t *)(message + list->field->quantifier_offset);
	const void *items = *(void *const *)(message + list->field->offset);

	if (count > list->most)
		return zd_err_set(err, ZEROD_E_LIMIT, "%zu %s in one request, at most %zu are allowed", count,
		                  list->field->name, list->most);
	if (count > 0 && list->field->descriptor == &zd__fence__descriptor)
		args->fences = take_fences(items, count, arena);
	if (count > 0 && list->field->descriptor == &zd__view__descriptor)
		return check_views(items, count, err);
	return 0;
}

int zd_lift(const Zd__Request *request, enum zd_request_kind kind, struct zd_arena *arena,
            struct zd_args *args, struct zd_err *err)
{
	const struct plan *plan = &plans[kind];
	int rc = 0;

	args->kind = kind;
	args->fences = (struct zd_fence_list){0};
	args->ids_left_s = 0;
	args->found = NULL;
	memcpy(&args->u, request->cancel, plan->bytes); /* whichever body it is */
	for (unsigned i = 0; i < plan->nlists && rc == 0; i++)
		rc = take_list(&plan->lists[i], arena, args, err);
	return rc;
}

/* ---- Replies ------------------------------------------------------------------------------------------- */

static void *new_message(struct zd_arena *arena, const ProtobufCMessageDescriptor *type, const void *content)
{
	ProtobufCMessage *message = zd_arena_alloc(arena, type->sizeof_message);

	if (content)
		memcpy(message, content, type->sizeof_message);
	else
		memset(message, 0, type->sizeof_message);
	message->descriptor = type;
	return message;
}

/* Returns NULL for segment 0. */
static Zd__Location *location(struct zd_answer *answer, const struct zd_location *place)
{
	if (place->segment == 0)
		return NULL;
	zd_assert(answer->nsegments < ZD_ANSWER_SEGMENTS);
	answer->segments[answer->nsegments++] = place->segment;
	Zd__Location *message = new_message(answer->arena, &zd__location__descriptor, NULL);
	message->segment = place->segment;
	message->offset = place->offset;
	message->bytes = place->bytes;
	return message;
}

/* Returns NULL if none of its places has a segment. */
static Zd__Frames *frames(struct zd_answer *answer, const struct zd_location place[3])
{
	if (place[0].segment == 0 && place[1].segment == 0 && place[2].segment == 0)
		return NULL;
	Zd__Frames *message = new_message(answer->arena, &zd__frames__descriptor, NULL);
	message->low = location(answer, &place[0]);
	message->own = location(answer, &place[1]);
	message->high = location(answer, &place[2]);
	return message;
}

static void put_places(const struct plan *plan, const struct zd_reply *reply, struct zd_answer *answer,
                       char *message)
{
	const struct zd_location *place = reply->places;

	for (unsigned i = 0; i < plan->nplaces; i++) {
		void **at = (void **)(message + plan->places[i]->offset);

		if (plan->places[i]->descriptor == &zd__location__descriptor)
			*at = location(answer, place++);
		else
			*at = frames(answer, place);
	}
}

static void put_fences(const struct plan *plan, const struct zd_fence_list *list, struct zd_arena *arena,
                       char *message)
{
	Zd__Fence **fences = zd_arena_alloc(arena, list->count * sizeof(Zd__Fence *));

	for (uint32_t i = 0; i < list->count; i++) {
		fences[i] = new_message(arena, &zd__fence__descriptor, NULL);
		fences[i]->timeline = list->fences[i].timeline;
		fences[i]->value = list->fences[i].value;
	}
	*(size_t *)(message + plan->fences->quantifier_offset) = list->count;
	*(void **)(message + plan->fences->offset) = fences;
}

void zd_lower(const struct zd_reply *reply, struct zd_answer *answer)
{
	const struct plan *plan = &plans[reply->kind];
	const struct zd_fence_list fence = {1, &reply->fence};
	bool has_fence = reply->fence.value != 0;

	if (!plan->body || (reply->kind == ZD_REQ_UPDATE_BEGIN && !has_fence))
		return;
	void *message = new_message(answer->arena, plan->body->descriptor, &reply->u);
	put_places(plan, reply, answer, message);
	if (has_fence || reply->fences.count > 0)
		put_fences(plan, has_fence ? &fence : &reply->fences, answer->arena, message);
	answer->reply.body_case = (Zd__Reply__BodyCase)plan->body->id;
	answer->reply.gather = message; /* whichever body it is */
}
