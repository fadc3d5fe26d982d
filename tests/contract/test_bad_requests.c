/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bad_requests.c - what may not be asked: each is refused in words that name it, and changes nothing.
 *
 * "Nothing" is every figure of every device, its high-water marks and its counts of transfers included; who
 * is right goes on as if nobody had been wrong.
 */
#include "contract_reduce.h"

#define NUMEL 1000u

/* ---- Nothing has changed ------------------------------------------------------------------------------- */

/* When no freed block waits for its streams any more, which is for the daemon to notice. */
static struct contract_device figures(struct contract *c)
{
	struct contract_device all;

	AWAIT((all = contract_devices(c)).quarantine_bytes == 0);
	return all;
}

static void expect_unchanged(struct contract *c, const struct contract_device *before, int line)
{
	struct contract_device after = figures(c);

	contract_check(memcmp(before, &after, sizeof(after)) == 0, "all figures are what they were", line);
}

#define REFUSED(c, client, call, status, text)                                                               \
	do {                                                                                                 \
		const struct contract_device before_ = figures(c);                                           \
		FAILS(client, call, status, text);                                                           \
		expect_unchanged(c, &before_, __LINE__);                                                     \
	} while (0)

static void open_units(struct contract **c, struct contract_unit *unit, struct contract_unit *other)
{
	*c = contract_open(NULL);
	contract_plain_unit(*c, "w", NUMEL, unit);
	contract_plain_unit(*c, "v", NUMEL, other);
	contract_publish_all(*c, unit);
	contract_publish_all(*c, other);
}

/* ---- Releases ------------------------------------------------------------------------------------------ */

CONTRACT_TEST(test_detached_release_of_what_is_not_held)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_release_options options = ZEROD_INIT(options);
	struct zerod_device_info info = ZEROD_INIT(info);
	struct contract_unit unit, other;
	struct contract_rank *rank;
	struct contract *c;
	zerod_ticket ticket;
	void *data;

	open_units(&c, &unit, &other);
	rank = &c->ranks[0];
	options.flags = ZEROD_RELEASE_DETACHED;
	FAILS(rank->client, zerod_release(unit.at[0], NULL, 0, &options, &ticket), ZEROD_E_INVALID,
	      "a detached release has no ticket");
	OK(rank->client, zerod_gather_begin(unit.at[0], NULL, &ticket));
	zerod_cork(rank->client);
	OK(rank->client, zerod_release(other.at[0], NULL, 0, &options, NULL));
	OK(rank->client, zerod_release(unit.at[0], NULL, 0, &options, NULL));
	OK(rank->client, zerod_uncork(rank->client));
	OK(rank->client,
	   zerod_device_get(rank->client, 0, &info)); /* whose answer comes behind the refusal */
	FAILS(rank->client, zerod_gather(unit.at[0], NULL, NULL, &data), ZEROD_E_NOT_HELD,
	      "rank 0 does not hold unit 'v' under tag 'default'");
	OK(rank->client, zerod_gather(unit.at[0], NULL, NULL, &data));
	contract_expect_bytes(&unit, data, 1);
	OK(rank->client, zerod_release(unit.at[0], NULL, 0, &options, NULL));
	contract_close(c);
}

/* A call that ends or frees something does so, although a detached release was refused. The next call of
 * another kind tells. */
struct freeing {
	struct contract_rank *rank;
	struct contract_unit held, absent;
};

static void refuse_detached(const struct freeing *f)
{
	struct zerod_release_options detached = ZEROD_INIT(detached);
	struct zerod_device_info info = ZEROD_INIT(info);

	detached.flags = ZEROD_RELEASE_DETACHED;
	zerod_cork(f->rank->client);
	OK(f->rank->client, zerod_release(f->absent.at[0], NULL, 0, &detached, NULL));
	OK(f->rank->client, zerod_uncork(f->rank->client));
	OK(f->rank->client,
	   zerod_device_get(f->rank->client, 0, &info)); /* its answer is behind the refusal */
}

static void expect_told(const struct freeing *f)
{
	struct zerod_device_info info = ZEROD_INIT(info);

	FAILS(f->rank->client, zerod_device_get(f->rank->client, 0, &info), ZEROD_E_NOT_HELD,
	      "rank 0 does not hold unit 'v' under tag 'default'; the present call had no effect");
	OK(f->rank->client, zerod_device_get(f->rank->client, 0, &info));
}

#define FREES(f, call)                                                                                       \
	do {                                                                                                 \
		refuse_detached(f);                                                                          \
		OK((f)->rank->client, call);                                                                 \
		expect_told(f);                                                                              \
	} while (0)

static void expect_leases_end(struct contract *c, const struct freeing *f)
{
	struct zerod_gather_options in_scope = ZEROD_INIT(in_scope);
	zerod_client *client = f->rank->client;
	zerod_unit *const unit = f->held.at[0];
	const zerod_scope none = {0};
	zerod_scope scope;

	OK(client, zerod_gather(unit, NULL, NULL, NULL));
	FREES(f, zerod_release(unit, NULL, 0, NULL, NULL));
	OK(client, zerod_gather(unit, NULL, NULL, NULL));
	FREES(f, zerod_release_many(&unit, 1, NULL, 0, NULL, NULL));
	for (int grad = 0; grad <= 1; grad++) {
		OK(client, zerod_forward_begin(f->rank->group, none, NULL, 0, &scope));
		in_scope.scope = scope;
		OK(client, zerod_gather(unit, &in_scope, NULL, NULL));
		FREES(f, zerod_forward_end(client, scope, grad, NULL, 0, NULL));
	}
	FREES(f, zerod_claim_end(client, scope, NULL, 0, NULL));
	OK(client, zerod_context_begin(&unit, 1, NULL, &scope));
	FREES(f, zerod_context_end(client, scope, NULL, 0, NULL));
	OK(client, zerod_unit_set_persistent(unit, 1));
	OK(client, zerod_gather(unit, NULL, NULL, NULL));
	FREES(f, zerod_release(unit, NULL, 0, NULL, NULL));
	FREES(f, zerod_unit_set_persistent(unit, 0));
	FREES(f, zerod_trim(client, 0, 0, NULL, NULL));
	CHECK(contract_device(c, 0).gathered_bytes == 0);
}

static void expect_windows_end(struct contract *c, const struct freeing *f)
{
	struct zerod_step_info info = ZEROD_INIT(info);
	zerod_client *client = f->rank->client;
	zerod_group *group = f->rank->group;
	zerod_bucket *bucket = contract_bucket(f->rank, 65536, 2);

	contract_backward_all(c, 3, true);
	contract_reduce(f->rank, bucket, &f->held, 1, NULL);
	OK(client, zerod_reduce_skip(f->absent.at[0], NULL, NULL));
	FREES(f, zerod_backward_end(group, NULL, NULL));
	OK(client, zerod_step_begin(group, NULL, &info, NULL));
	FREES(f, zerod_step_end(group, NULL, 0, NULL));
	contract_backward_all(c, 3, true);
	FREES(f, zerod_backward_abandon(group, NULL, 0, NULL));
	OK(client, zerod_step_begin(group, NULL, &info, NULL));
	CHECK(info.abandoned);
	OK(client, zerod_step_end(group, NULL, 0, NULL));
	FREES(f, zerod_bucket_destroy(bucket));
}

CONTRACT_TEST(test_what_frees_always_frees)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(&(struct contract_options){.world_size = 1, .devices = 1});
	struct freeing f = {.rank = &c->ranks[0]};

	contract_plain_unit(c, "w", NUMEL, &f.held);
	contract_plain_unit(c, "v", NUMEL, &f.absent);
	contract_publish_all(c, &f.held);
	expect_leases_end(c, &f);
	expect_windows_end(c, &f);
	FREES(&f, zerod_unit_unregister(f.held.at[0], NULL));
	contract_close(c);
}

/* ---- Gradients ----------------------------------------------------------------------------------------- */

/* Shards and target fit; the gradient in float32 is larger than the device. */
CONTRACT_TEST(test_reserve_larger_than_any_bucket)
{
	struct zerod_backward_options backward = ZEROD_INIT(backward);
	struct zerod_unit_options options = ZEROD_INIT(options);
	if (contract_on_host()) /* the arena has room then */
		skip();
	struct contract *c = contract_open(&(struct contract_options){.arena = "16M"});
	struct contract_rank *rank = &c->ranks[0];
	struct contract_unit huge;
	struct zerod_entry entry = {.struct_size = sizeof(entry), .id = 7};
	zerod_bucket *bucket;

	options.name = "huge";
	options.dtype = ZEROD_UINT8;
	options.numel = 5u << 20;
	contract_unit(c, &options, &huge);
	backward.target_dtype = ZEROD_BFLOAT16;
	for (uint32_t i = 0; i < 2; i++)
		OK(c->ranks[i].client, zerod_backward_begin(c->ranks[i].group, &backward));
	bucket = contract_bucket(rank, 65536, 2);
	REFUSED(c, rank->client, zerod_bucket_reserve(bucket, huge.at[0], NULL, &entry), ZEROD_E_NO_MEMORY,
	        "20971520 bytes");
	assert_int_equal(entry.id, 7);
	contract_backward_end_all(c); /* nothing is left open */
	contract_close(c);
}

/* ---- Lists of units ------------------------------------------------------------------------------------ */

/* No client is known then, so that the text is for every client. */
CONTRACT_TEST(test_no_units)
{
	struct contract_unit unit, other;
	struct contract_rank *rank;
	struct contract *c;

	open_units(&c, &unit, &other);
	rank = &c->ranks[0];
	FAILS(rank->client, zerod_publish(unit.at, 1, NULL, 0, NULL, NULL), ZEROD_E_STATE, "unit 'w'");
	FAILS(rank->client, zerod_update_begin(NULL, 0, NULL, NULL), ZEROD_E_INVALID,
	      "units is NULL, count is 0");
	FAILS(rank->client, zerod_publish(unit.at, 1, NULL, 0, NULL, NULL), ZEROD_E_STATE, "unit 'w'");
	FAILS(rank->client, zerod_update_begin(unit.at, 0, NULL, NULL), ZEROD_E_INVALID,
	      "units is given, count is 0");
	FAILS(rank->client, zerod_publish(NULL, 0, NULL, 0, NULL, NULL), ZEROD_E_INVALID,
	      "units is NULL, count is 0");
	FAILS(rank->client, zerod_publish_from(NULL, 0, ZEROD_FLOAT32, NULL, NULL, NULL), ZEROD_E_INVALID,
	      "sources is NULL, count is 0");
	contract_close(c);
}

/* ---- Reserved fields ----------------------------------------------------------------------------------- */

/* A later version may give them a meaning, which a program that sets one expects. */
CONTRACT_TEST(test_reserved_fields)
{
	struct zerod_wait_options wait = ZEROD_INIT(wait);
	struct zerod_group_options join = ZEROD_INIT(join);
	struct zerod_view view = ZEROD_INIT(view);
	struct zerod_unit_options seen = ZEROD_INIT(seen), layer = ZEROD_INIT(layer);
	struct zerod_gather_options gather = ZEROD_INIT(gather);
	struct zerod_reduce_options reduce = ZEROD_INIT(reduce);
	struct zerod_alloc_options alloc = ZEROD_INIT(alloc);
	struct contract_unit unit, other;
	zerod_allocation *allocation;
	struct contract *c;
	zerod_client *client;
	zerod_group *group;
	zerod_unit *handle;
	void *data;

	open_units(&c, &unit, &other);
	client = c->ranks[0].client;
	group = c->ranks[0].group;
	wait.flags = join.reserved = view.reserved = layer.reserved = 1;
	gather.reserved = reduce.reserved = alloc.reserved = 1;
	join.job = alloc.job = "j";
	join.world_size = 1;
	view.name = "v";
	layer.name = seen.name = "layer";
	layer.dtype = seen.dtype = ZEROD_FLOAT32;
	layer.numel = seen.numel = 1;
	seen.nviews = 1;
	seen.views = &view;
	alloc.bytes = 256;
	REFUSED(c, client, zerod_group_barrier(group, &wait, NULL), ZEROD_E_INVALID,
	        "wait_options: unknown flags 0x1");
	REFUSED(c, client, zerod_group_join(client, &join, &group), ZEROD_E_INVALID,
	        "group_options: reserved");
	REFUSED(c, client, zerod_unit_register(group, &layer, &handle), ZEROD_E_INVALID,
	        "unit_options: reserved");
	REFUSED(c, client, zerod_unit_register(group, &seen, &handle), ZEROD_E_INVALID, "view: reserved");
	REFUSED(c, client, zerod_gather(unit.at[0], &gather, NULL, &data), ZEROD_E_INVALID,
	        "gather_options: reserved");
	REFUSED(c, client,
	        zerod_bucket_submit(contract_bucket(&c->ranks[0], 65536, 2), 1, NULL, 0, &reduce, NULL),
	        ZEROD_E_INVALID, "reduce_options: reserved");
	REFUSED(c, client, zerod_alloc(client, &alloc, &allocation, &data), ZEROD_E_INVALID,
	        "alloc_options: reserved");
	contract_close(c);
}
