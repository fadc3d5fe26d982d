/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_collectives.c - communicators through the backend's interface: what is exchanged, in which order,
 * and their ends in order; over the doubles of the driver and of NCCL. */
#include "tests/unit/executor/collective_scene.h"

/* ---- Ids ----------------------------------------------------------------------------------------------- */

SCENE_TEST(test_unique_ids, scene_open(s, 1, NULL), scene_close(s))
{
	static const unsigned char empty[ZD_UNIQUE_ID_BYTES];
	scene_make_ids(s);
	for (size_t i = 0; i < ZD_ARRAY_LEN(s->ids); i++) {
		assert_memory_not_equal(s->ids[i], empty, sizeof(empty));
		for (size_t j = 0; j < i; j++)
			assert_memory_not_equal(s->ids[i], s->ids[j], sizeof(empty));
	}
}

/* ---- What is exchanged --------------------------------------------------------------------------------- */

/* The byte of the pattern that rank `from` sends to rank `to`. */
static uint8_t byte_at(uint32_t from, uint32_t to, uint64_t index)
{
	return (uint8_t)(from * 37 + to * 11 + index * 3 + (index >> 8) + 1);
}

static void fill_rank(struct collective_scene *s, uint32_t rank, uint64_t bytes, uint64_t stride)
{
	memset(s->memory[rank], 0x77, SENT);
	memset(s->memory[rank] + SENT, UNTOUCHED, ROOM - SENT);
	for (uint32_t to = 0; to < s->world; to++)
		for (uint64_t i = 0; i < bytes; i++)
			s->memory[rank][to * stride + i] = byte_at(rank, stride ? to : 0, i);
}

/* All blocks that the rank was to receive; its own one only of an all-gather; and nothing in between or
 * behind. */
static void expect_rank(struct collective_scene *s, uint32_t rank, struct zd_exchange_desc desc)
{
	bool all = desc.send_stride == 0 && desc.receive_stride == desc.bytes;
	const uint8_t *received = s->memory[rank] + SENT;
	uint64_t end = s->world * desc.receive_stride;
	for (uint64_t i = 0; i <= end; i++) {
		uint32_t from = (uint32_t)(desc.receive_stride ? i / desc.receive_stride : 0);
		uint64_t index = desc.receive_stride ? i % desc.receive_stride : i;
		bool moved = i < end && index < desc.bytes && (all || from != rank);
		uint8_t expected = moved ? byte_at(from, desc.send_stride ? rank : 0, index) : UNTOUCHED;
		if (received[i] != expected)
			fail_msg("rank %u, byte %llu of %u's block: %u, not %u", rank,
			         (unsigned long long)index, from, received[i], expected);
	}
}

static void run_exchange(struct collective_scene *s, uint64_t bytes, uint64_t send_stride,
                         uint64_t receive_stride)
{
	struct zd_exchange_desc desc = {
	        .bytes = bytes, .send_stride = send_stride, .receive_stride = receive_stride};
	uint64_t ops_of[RANKS];
	for (uint32_t rank = 0; rank < s->world; rank++)
		fill_rank(s, rank, bytes, send_stride);
	for (uint32_t rank = 0; rank < s->world; rank++)
		ops_of[rank] = give(s, rank,
		                    exchange_of(s, rank, GATHERS, bytes, send_stride, receive_stride));
	for (uint32_t rank = 0; rank < s->world; rank++)
		(void)wait_ok(node_of(s, rank), ops_of[rank]);
	for (uint32_t rank = 0; rank < s->world; rank++)
		expect_rank(s, rank, desc);
}

static void exchange_everything(uint32_t each, const struct zd_backend_config *settings)
{
	struct collective_scene s;
	scene_open_both(&s, each, settings);
	run_exchange(&s, 100000, 100000, 100000);
	run_exchange(&s, 1, 256, 512);
	run_exchange(&s, 70001, 80000, 90000);
	run_exchange(&s, 100000, 0, 200000); /* a rail's part of a gather: the own block is there already */
	run_exchange(&s, 100000, 0, 100000); /* an all-gather */
	run_exchange(&s, 3, 0, 3);
	scene_close_both(&s);
}

CASE_TEST(test_exchanges_of_a_rail, "ZD_DOUBLE_LEAKS=1")
{
	exchange_everything(1, NULL);
}

CASE_TEST(test_exchanges_of_a_world, "ZD_DOUBLE_LEAKS=1")
{
	exchange_everything(2, NULL);
}

CASE_TEST(test_exchanges_that_are_checked, "ZD_DOUBLE_LEAKS=1")
{
	exchange_everything(2, &(struct zd_backend_config){.check_collectives = true});
}

SCENE_TEST(test_exchange_of_nothing, scene_open_both(s, 1, NULL), scene_close_both(s))
{
	uint64_t ops_of[NODES];
	for (uint32_t rank = 0; rank < NODES; rank++) {
		struct zd_command command = exchange_of(s, rank, GATHERS, 0, 0, 0);
		command.u.exchange.send = command.u.exchange.receive = at(0, 0, 0);
		ops_of[rank] = give(s, rank, command);
	}
	for (uint32_t rank = 0; rank < NODES; rank++)
		(void)wait_ok(s->nodes[rank], ops_of[rank]);
}

/* The last rank's own block may end its memory: nobody touches it. */
SCENE_TEST(test_blocks_end_where_the_memory_does, scene_open_both(s, 1, NULL), scene_close_both(s))
{
	uint64_t ops_of[NODES];
	for (uint32_t rank = 0; rank < NODES; rank++) {
		struct zd_command command = exchange_of(s, rank, GATHERS, KIB, 2 * KIB, 2 * KIB);
		uint64_t bytes = rank == 0 ? 3 * KIB : KIB;
		command.u.exchange.send = at(1, 0, bytes);
		command.u.exchange.receive = at(1, ROOM - bytes, bytes);
		ops_of[rank] = give(s, rank, command);
	}
	for (uint32_t rank = 0; rank < NODES; rank++)
		(void)wait_ok(s->nodes[rank], ops_of[rank]);
}

/* Nothing to exchange, and an all-gather that moves the own block. */
SCENE_TEST(test_one_rank_alone, scene_open(s, 1, NULL), scene_close(s))
{
	static const char value[] = "alone";
	struct record record;
	scene_make_ids(s);
	s->world = 1;
	(void)wait_ok(s->nodes[0], open_comm(s, 0, GATHERS));
	run_exchange(s, 1000, 1000, 2000);
	run_exchange(s, 1000, 0, 1000);
	record = wait_ok(s->nodes[0], give_value(s, 0, GATHERS, value, sizeof(value)));
	assert_int_equal(record.completion.result.values_bytes, sizeof(value));
	assert_memory_equal(record.completion.result.values, value, sizeof(value));
	free(record.completion.result.values);
	scene_disconnect(s, GATHERS);
	s->world = NODES;
}

/* Many at a time: each has its ranks' values of its own. */
static void agree_on(struct collective_scene *s, uint32_t bytes)
{
	enum { ROUNDS = 5 };
	unsigned char value[ZD_AGREE_BYTES], expected[ZD_AGREE_BYTES];
	uint64_t ops_of[ROUNDS][RANKS];
	for (uint32_t round = 0; round < ROUNDS; round++)
		for (uint32_t rank = 0; rank < s->world; rank++) {
			memset(value, (int)(16 * round + rank + 1), sizeof(value));
			ops_of[round][rank] = give_value(s, rank, REDUCTIONS, value, bytes);
		}
	for (uint32_t round = 0; round < ROUNDS; round++)
		for (uint32_t rank = 0; rank < s->world; rank++) {
			struct zd_op_result result =
			        wait_ok(node_of(s, rank), ops_of[round][rank]).completion.result;
			assert_int_equal(result.values_bytes, s->world * bytes);
			for (uint32_t from = 0; from < s->world; from++) {
				memset(expected, (int)(16 * round + from + 1), sizeof(expected));
				assert_memory_equal(result.values + (size_t)from * bytes, expected, bytes);
			}
			free(result.values);
		}
}

static void agree(const struct zd_backend_config *settings)
{
	struct collective_scene s;
	scene_open_both(&s, 2, settings);
	agree_on(&s, ZD_AGREE_BYTES);
	agree_on(&s, 1);
	agree_on(&s, 16);
	scene_close_both(&s);
}

CASE_TEST(test_values_of_all_ranks, "ZD_DOUBLE_LEAKS=1")
{
	agree(NULL);
}

CASE_TEST(test_values_that_are_checked, "ZD_DOUBLE_LEAKS=1")
{
	agree(&(struct zd_backend_config){.check_collectives = true});
}

/* ---- Order --------------------------------------------------------------------------------------------- */

/* Node 0 asks for a gather and then for a reduction, node 1 for the reduction first, and for the gather only
 * when that has been done on both. Also when these are the first, for which ranks connect. */
SCENE_TEST(test_roles_do_not_wait_for_each_other, scene_open_both(s, 1, NULL), scene_close_both(s))
{
	uint64_t gathers[NODES], reductions[NODES];
	gathers[0] = give_small(s, 0, GATHERS, 0);
	reductions[0] = give_small(s, 0, REDUCTIONS, 0);
	reductions[1] = give_small(s, 1, REDUCTIONS, 0);
	for (uint32_t rank = 0; rank < NODES; rank++)
		(void)wait_ok(s->nodes[rank], reductions[rank]);
	assert_int_equal(times_completed(s->nodes[0], gathers[0]), 0);
	gathers[1] = give_small(s, 1, GATHERS, 0);
	for (uint32_t rank = 0; rank < NODES; rank++)
		(void)wait_ok(s->nodes[rank], gathers[rank]);
}
CASE_AGAIN(test_roles_do_not_wait_for_each_other, again,
           .env = {"ZD_DOUBLE_LEAKS=1", "ZD_DOUBLE_NCCL_CONNECTS=1"})

/* Nor while one of them still connects: the other rank's has not come. */
SCENE_TEST(test_roles_connect_by_themselves, scene_open(s, 1, NULL), scene_close_both(s))
{
	uint64_t late[NODES], early, ops_of[NODES];
	scene_make_ids(s);
	late[0] = open_comm(s, 0, GATHERS);
	early = give_small(s, 0, GATHERS, 0);
	scene_connect(s, REDUCTIONS);
	for (uint32_t rank = 0; rank < NODES; rank++)
		ops_of[rank] = give_small(s, rank, REDUCTIONS, 0);
	for (uint32_t rank = 0; rank < NODES; rank++)
		(void)wait_ok(s->nodes[rank], ops_of[rank]);
	assert_int_equal(times_completed(s->nodes[0], late[0]), 0);
	late[1] = open_comm(s, 1, GATHERS);
	(void)give_small(s, 1, GATHERS, 0);
	(void)wait_ok(s->nodes[0], early);
	for (uint32_t rank = 0; rank < NODES; rank++)
		(void)wait_ok(s->nodes[rank], late[rank]);
}

/* The fence says that the bytes are there, to whoever maps them. */
SCENE_TEST(test_fence_behind_the_bytes, scene_open_both(s, 1, NULL), scene_close_both(s))
{
	enum { ROUNDS = 20 };
	struct client c[NODES];
	for (uint32_t rank = 0; rank < NODES; rank++)
		c[rank] = open_session(s->nodes[rank], SESSION);
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		for (uint32_t rank = 0; rank < NODES; rank++) {
			memset(s->memory[rank], (int)(2 * round + rank), 4 * KIB);
			(void)give_small(s, rank, GATHERS, round);
		}
		for (uint32_t rank = 0; rank < NODES; rank++) {
			wait_counter(&c[rank].daemon_page[TIMELINE], round);
			assert_int_equal(s->memory[rank][SENT + (1 - rank) * 2 * KIB + KIB - 1],
			                 2 * round + (1 - rank));
		}
	}
	for (uint32_t rank = 0; rank < NODES; rank++)
		forget_session(&c[rank]);
}

/* Executors and the thread for communicators store into counters of one page, each into its own. */
SCENE_TEST(test_counters_side_by_side, scene_open_both(s, 1, NULL), scene_close_both(s))
{
	enum { ROUNDS = 50 };
	struct client c;
	c = open_session(s->nodes[0], SESSION);
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		struct zd_command relay = copy(0, at(1, 0, KIB), 0, at(1, KIB, KIB));
		relay.signal = (struct zd_signal){SESSION, 2 * ZD_MAX_DEVICES, round};
		(void)give_small(s, 0, GATHERS, round);
		(void)submit(s->nodes[0], relay);
		relay.signal.timeline = 0;
		(void)submit(s->nodes[0], relay);
		(void)give_small(s, 1, GATHERS, 0);
	}
	wait_counter(&c.daemon_page[0], ROUNDS);
	wait_counter(&c.daemon_page[TIMELINE], ROUNDS);
	wait_counter(&c.daemon_page[2 * ZD_MAX_DEVICES], ROUNDS);
	forget_session(&c);
}

/* Of two communicators that store into one timeline the second exchange is done first: its fence, and its
 * end, wait. */
SCENE_TEST(test_one_timeline_over_two_communicators, scene_open_both(s, 1, NULL), scene_close_both(s))
{
	struct client c;
	c = open_session(s->nodes[0], SESSION);
	uint64_t first = give_small(s, 0, GATHERS, 1), second = give_small(s, 0, REDUCTIONS, 2);
	uint64_t behind = give_small(s, 0, REDUCTIONS, 0);
	(void)give_small(s, 1, REDUCTIONS, 0);
	(void)give_small(s, 1, REDUCTIONS, 0);
	(void)wait_ok(s->nodes[0], behind);
	assert_int_equal(times_completed(s->nodes[0], second), 0);
	assert_int_equal(atomic_load(&c.daemon_page[TIMELINE]), 0);
	(void)give_small(s, 1, GATHERS, 0);
	assert_true(wait_ok(s->nodes[0], first).order < wait_ok(s->nodes[0], second).order);
	assert_int_equal(atomic_load(&c.daemon_page[TIMELINE]), 2);
	forget_session(&c);
}

/* ---- Ends in order ------------------------------------------------------------------------------------- */

/* Node 1 does its part only when node 0 has given all and the close behind it. */
SCENE_TEST(test_close_behind_exchanges, scene_open_both(s, 1, NULL), scene_close(s))
{
	enum { EXCHANGES = 5 };
	uint64_t ops_of[NODES][EXCHANGES], closes[NODES];
	for (uint32_t rank = 0; rank < NODES; rank++) {
		for (int i = 0; i < EXCHANGES; i++)
			ops_of[rank][i] = give_small(s, rank, GATHERS, 0);
		closes[rank] = close_comm(s, rank, GATHERS, false);
		wait_for_thread(s, rank);
	}
	for (uint32_t rank = 0; rank < NODES; rank++) {
		unsigned closed = wait_ok(s->nodes[rank], closes[rank]).order;
		for (int i = 0; i < EXCHANGES; i++)
			assert_true(wait_ok(s->nodes[rank], ops_of[rank][i]).order < closed);
	}
	scene_disconnect(s, REDUCTIONS);
}

/* A command behind a close, or for an unknown communicator, fails with that reason. */
SCENE_TEST(test_what_is_not_open, scene_open_both(s, 1, NULL), scene_close(s))
{
	struct record record;
	uint64_t closes[NODES], late;
	(void)give_small(s, 0, GATHERS, 0);
	closes[0] = close_comm(s, 0, GATHERS, false);
	late = give_small(s, 0, GATHERS, 0);
	record = wait_op(s->nodes[0], late);
	assert_int_equal(record.completion.status, ZEROD_E_STATE);
	expect_text(record.completion.error, "group 'world': its communicator is being closed");
	(void)give_small(s, 1, GATHERS, 0);
	closes[1] = close_comm(s, 1, GATHERS, false);
	for (uint32_t rank = 0; rank < NODES; rank++)
		(void)wait_ok(s->nodes[rank], closes[rank]);
	record = wait_op(s->nodes[0], give_small(s, 0, GATHERS, 0));
	assert_int_equal(record.completion.status, ZEROD_E_STATE);
	expect_text(record.completion.error, "communicator 17 is not open");
	(void)wait_ok(s->nodes[0], close_comm(s, 0, GATHERS, true));
	scene_disconnect(s, REDUCTIONS);
}

/* Communicators come and go, and each id serves one. */
SCENE_TEST(test_opened_again, scene_open(s, 2, NULL), scene_close(s))
{
	for (int round = 0; round < 3; round++) {
		scene_make_ids(s);
		scene_connect(s, GATHERS);
		run_exchange(s, 1000, 1000, 1000);
		scene_disconnect(s, GATHERS);
	}
}

int main(int argc, char **argv)
{
	ID_PROGRAM(argc, argv);
	return case_run_all(argc, argv);
}
