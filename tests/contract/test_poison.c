/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_poison.c - poison mode: released buffers of rank 0, whose client is in it, show NaN.
 */
#include <math.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "contract.h"

#define NUMEL 1000ull

/* Two ranks, and a unit in its first version. */
static struct contract *poison_open(int strict, struct contract_unit *unit)
{
	struct contract *c = contract_open(&(struct contract_options){.strict = strict, .poison = 1});

	contract_plain_unit(c, "w", NUMEL, unit);
	contract_publish_all(c, unit);
	return c;
}

/* Reads the bytes that a stale read of the view would find. */
static uint8_t *read_view(const struct contract_unit *unit, const void *view)
{
	uint8_t *bytes = zd_calloc(1, contract_padded_bytes(unit));

	contract_read(NULL, bytes, view, contract_padded_bytes(unit));
	return bytes;
}

static bool shows_nan(const struct contract_unit *unit, const void *view)
{
	uint8_t *bytes = read_view(unit, view);
	bool all = true;

	for (uint64_t i = 0; i < contract_padded_bytes(unit); i++)
		all = all && bytes[i] == 0xff;
	free(bytes);
	return all;
}

static bool shows_version(const struct contract_unit *unit, const void *view, uint64_t version)
{
	uint8_t *bytes = read_view(unit, view);
	bool same = contract_bytes_are(unit, bytes, version);

	free(bytes);
	return same;
}

/* All that was released has been filled, or is not to be. */
static void await_fills(struct contract *c)
{
	AWAIT(contract_devices(c).quarantine_bytes == 0);
}

/* ---- Stale views --------------------------------------------------------------------------------------- */

CONTRACT_TEST(test_released_view_shows_nan)
{
	struct contract_unit unit;
	struct contract *c = poison_open(0, &unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *slow = contract_stream(rank);
	struct contract_gate *gate = contract_block(rank, slow);
	const void *view = contract_gather(rank, &unit, NULL);
	float first;

	OK(rank->client, zerod_release(unit.at[0], &slow, 1, NULL, NULL));
	contract_others_release(rank, &unit, NULL);
	CHECK_BYTES(shows_version(&unit, view, 1)); /* the stream may still read it */
	contract_unblock(gate);
	contract_sync(rank, slow);
	await_fills(c);
	CHECK_BYTES(shows_nan(&unit, view));
	contract_read(NULL, &first, view, sizeof(first));
	CHECK_BYTES(isnan(first));
	contract_expect_version(rank, &unit, 1);
	contract_close(c);
}

/* The next unit has the slot's address while a stream still reads the former one. A view of that shows NaN
 * when the stream has passed, and the next one's bytes when they are published. */
CONTRACT_TEST(test_view_of_a_slots_former_unit)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract_unit unit, former, next;
	struct contract *c = poison_open(0, &unit);
	struct contract_rank *rank = &c->ranks[0], *other = &c->ranks[1];
	zerod_stream *slow = contract_stream(rank), *stream = contract_stream(rank);
	zerod_stream *writer = contract_stream(other);
	struct contract_gate *reads = contract_block(rank, slow), *writes = contract_block(other, writer);
	zerod_ticket publish;
	const void *view;
	void *data = NULL;

	contract_slot_unit(c, "former", NUMEL, 1, &former);
	contract_slot_unit(c, "next", NUMEL, 1, &next);
	view = contract_gather(rank, &former, NULL);
	contract_publish(rank, &next);
	OK(other->client, zerod_update_begin(&next.at[1], 1, NULL, NULL));
	contract_write_shard(other, &next, writer);
	OK(other->client, zerod_publish(&next.at[1], 1, &writer, 1, NULL, &publish));
	OK(rank->client, zerod_release(former.at[0], &slow, 1, NULL, NULL));
	OK(rank->client, zerod_gather(next.at[0], NULL, stream, &data));
	assert_ptr_equal(data, view);
	CHECK_BYTES(shows_version(&former, view, 1));
	contract_unblock(reads);
	AWAIT(shows_nan(&former, view));
	contract_unblock(writes);
	contract_sync(rank, stream);
	CHECK_BYTES(shows_version(&next, view, 2));
	OK(other->client, zerod_wait(other->client, publish, NULL, NULL));
	contract_release(rank, &next, NULL);
	contract_close(c);
}

/* The same byte is NaN in all floating-point dtypes. */
CONTRACT_TEST(test_every_floating_dtype)
{
	struct contract_unit unit;
	struct contract *c = poison_open(0, &unit);

	for (int dtype = ZEROD_FLOAT32; dtype <= ZEROD_FLOAT8_E5M2; dtype++) {
		struct zerod_unit_options options = ZEROD_INIT(options);
		struct contract_unit typed;
		const void *view;

		options.name = zerod_dtype_name((enum zerod_dtype)dtype);
		options.dtype = (enum zerod_dtype)dtype;
		options.numel = NUMEL;
		contract_unit(c, &options, &typed);
		contract_publish_all(c, &typed);
		view = contract_gather(&c->ranks[0], &typed, NULL);
		contract_release(&c->ranks[0], &typed, NULL);
		await_fills(c);
		CHECK_BYTES(shows_nan(&typed, view));
	}
	assert_true(isnan(zd_f16_to_f32(0xffff)) && isnan(zd_bf16_to_f32(0xffff)));
	assert_true(isnan(zd_e4m3_to_f32(0xff)) && isnan(zd_e5m2_to_f32(0xff)));
	contract_close(c);
}

/* ---- Beside others, and alone -------------------------------------------------------------------------- */

/* Access is taken away and the memory is filled; the slot's next unit gets both right. */
CONTRACT_TEST(test_with_strict)
{
	struct contract_unit unit, former, next;
	struct contract *c = poison_open(1, &unit);
	struct contract_rank *rank = &c->ranks[0];
	const void *view;

	contract_slot_unit(c, "former", NUMEL, 1, &former);
	contract_slot_unit(c, "next", NUMEL, 1, &next);
	for (int round = 0; round < 2; round++) {
		view = contract_gather(rank, &former, NULL);
		contract_expect_bytes(&former, view, 1);
		contract_release(rank, &former, NULL);
		assert_false(contract_can_touch(rank, view));
		assert_ptr_equal(contract_gather(rank, &next, NULL), view);
		contract_expect_bytes(&next, view, 1);
		contract_release(rank, &next, NULL);
	}
	contract_close(c);
}
