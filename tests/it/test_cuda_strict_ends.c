/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_strict_ends.c - strict clients on GPUs: what is charged, many threads, and ends of all kinds - of
 * streams, clients, contexts, the daemon - while somebody holds a buffer.
 */
#include "cuda_strict_scene.h"

#include <zerod_cuda.h>

#include "tests/support/daemon_fixture.h"

/* A stream that is wrapped, and held up until the word is 1. */
struct held_stream {
	struct CUstream_st *handle;
	zerod_stream *stream;
	uint64_t *word;
};

static void hold_stream(struct contract_rank *rank, struct held_stream *held)
{
	held->handle = scene_stream((int)(rank->number % rank->world->devices));
	OK(rank->client, zerod_cuda_stream_wrap(rank->client, held->handle, &held->stream));
	held->word = scene_hold(held->handle);
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

CASE_TEST(test_whole_segments_are_charged)
{
	struct contract_unit unit, large;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];

	contract_plain_unit(c, "large", SEGMENT_BYTES / 4 + SCENE_NUMEL, &large);
	contract_publish_all(c, &large);
	(void)contract_gather(rank, &unit, NULL);
	assert_int_equal(contract_device(c, 0).gathered_bytes, SEGMENT_BYTES);
	assert_int_equal(contract_buffer(c, 0, "w").padded_bytes, SEGMENT_BYTES);
	(void)contract_gather(rank, &large, NULL);
	assert_int_equal(contract_device(c, 0).gathered_bytes, 3 * SEGMENT_BYTES);
	contract_release(rank, &unit, NULL);
	contract_release(rank, &large, NULL);
	assert_int_equal(contract_device(c, 0).gathered_bytes, 0);
	contract_close(c);
}

/* A segment that nobody may touch is unmapped when the device wants it back, and the next gather has
 * another. */
CASE_TEST(test_trimmed_segments_are_made_again)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	uint64_t freed = 0;
	const void *view;

	(void)contract_gather(rank, &unit, NULL);
	contract_release(rank, &unit, NULL);
	AWAIT(contract_device(c, 0).quarantine_bytes == 0);
	OK(rank->client, zerod_trim(rank->client, 0, 0, NULL, &freed));
	assert_int_equal(freed, SEGMENT_BYTES);
	view = contract_gather(rank, &unit, NULL);
	assert_true(contract_can_touch(rank, view));
	contract_expect_bytes(&unit, view, 1);
	contract_release(rank, &unit, NULL);
	assert_false(contract_can_touch(rank, view));
	contract_close(c);
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

static void gather(const struct scene_user *user, struct contract_rank *rank, unsigned round, void **data)
{
	struct zerod_gather_options options = ZEROD_INIT(options);

	(void)round;
	options.tag = user->tag;
	OK(rank->client, zerod_gather(user->unit->at[rank->number], &options, user->own, data));
}

/* Each under its own tag, so that the copy is joined, or ends and begins anew, as it comes. */
CASE_TEST(test_threads_come_and_go)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);

	scene_run_users(c, (struct contract_unit *const[]){&unit, &unit}, (const char *const[]){"a", "b"},
	                &(struct scene_user){.gather = gather, .rounds = 40});
	contract_close(c);
}

/* ---- Ends ---------------------------------------------------------------------------------------------- */

/* A release behind a stream does not need the stream's handle. */
CASE_TEST(test_handle_goes_before_its_stream_has_passed)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	struct held_stream held;
	const void *view = contract_gather(rank, &unit, NULL);

	hold_stream(rank, &held);
	release_behind(rank, &unit, NULL, held.stream);
	zerod_stream_destroy(held.stream);
	assert_true(contract_can_touch(rank, view));
	scene_let_go(held.word);
	AWAIT(!contract_can_touch(rank, view));
	AWAIT(contract_device(c, 0).quarantine_bytes == 0);
	contract_close(c);
}

/* The next rank's client begins where nothing is left of the former one's. */
CASE_TEST(test_client_ends_with_open_holds)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	struct held_stream held;

	(void)contract_gather(rank, &unit, "held");
	(void)contract_gather(rank, &unit, NULL);
	hold_stream(rank, &held);
	release_behind(rank, &unit, NULL, held.stream);
	scene_let_go(held.word);
	zerod_stream_destroy(held.stream);
	contract_leave(rank);
	assert_int_equal(scene_driver()->streamSynchronize(held.handle), 0);
	contract_close(c);
}

/* Its counters are never written: nobody waits for them. */
CASE_TEST(test_context_is_lost_under_a_hold)
{
	struct contract *c = contract_open(&(struct contract_options){.strict = 1});
	struct contract_rank *rank = &c->ranks[0];
	struct CUstream_st *stream = scene_stream(0);
	struct contract_unit unit, other;
	struct held_stream held;
	const void *view;

	contract_plain_unit(c, "w", SCENE_NUMEL, &unit);
	contract_plain_unit(c, "other", SCENE_NUMEL, &other);
	publish_zeros(c, &unit);
	publish_zeros(c, &other);
	(void)contract_gather(rank, &unit, NULL);
	hold_stream(rank, &held);
	release_behind(rank, &unit, NULL, held.stream);
	view = contract_gather(rank, &other, NULL);
	contract_release(rank, &other, NULL);
	(void)scene_driver()->memsetD8Async((zd_cu_ptr)view, 1, 4, stream);
	assert_int_equal(scene_driver()->streamSynchronize(stream), ZD_CU_ILLEGAL_ADDRESS);
	FAILS(rank->client, zerod_stream_synchronize(held.stream), ZEROD_E_DEVICE, NULL);
	zerod_stream_destroy(held.stream);
	contract_close(c);
}

CASE_TEST(test_daemon_dies_under_a_hold)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	struct held_stream held;
	const void *view = contract_gather(rank, &unit, NULL);

	hold_stream(rank, &held);
	release_behind(rank, &unit, NULL, held.stream);
	assert_int_equal(zd_daemon_kill(contract_daemon()), 0);
	assert_true(contract_can_touch(rank, view));
	scene_let_go(held.word);
	AWAIT(!contract_can_touch(rank, view));
	zerod_stream_destroy(held.stream);
	assert_int_equal(contract_teardown(NULL), 0);
}

/* The child has neither the thread nor a context. */
CASE_TEST(test_forked_child_under_a_hold)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	struct held_stream held;
	const void *view = contract_gather(rank, &unit, NULL);
	int status = 0;
	pid_t pid;

	hold_stream(rank, &held);
	release_behind(rank, &unit, NULL, held.stream);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		zerod_close(rank->client);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	scene_let_go(held.word);
	OK(rank->client, zerod_stream_synchronize(held.stream));
	assert_false(contract_can_touch(rank, view));
	zerod_stream_destroy(held.stream);
	contract_close(c);
}

/* ---- A driver that refuses ----------------------------------------------------------------------------- */

/* In this process alone: its Nth call. Both ranks' shards are the first two, the buffer is mapped by the
 * third, opened by the fourth and closed by the fifth. */
static struct contract *open_with_fault(const char *fault, struct contract_unit *unit)
{
	assert_int_equal(setenv("ZD_DOUBLE_FAIL", fault, 1), 0);
	(void)scene_driver();
	assert_int_equal(unsetenv("ZD_DOUBLE_FAIL"), 0);
	return strict_open(unit);
}

CASE_TEST(test_access_cannot_be_given)
{
	struct contract_unit unit;
	struct contract *c = open_with_fault("cuMemSetAccess:4:1", &unit);
	struct contract_rank *rank = &c->ranks[0];
	const void *view;
	void *data = NULL;

	FAILS(rank->client, zerod_gather(unit.at[0], NULL, NULL, &data), ZEROD_E_DEVICE, "giving");
	contract_release(rank, &unit, NULL);
	view = contract_gather(rank, &unit, NULL);
	assert_true(contract_can_touch(rank, view));
	contract_release(rank, &unit, NULL);
	assert_false(contract_can_touch(rank, view));
	contract_close(c);
}

/* Nobody to tell but who waits next. */
CASE_TEST(test_access_cannot_be_taken)
{
	struct contract_unit unit;
	struct contract *c = open_with_fault("cuMemSetAccess:5:1", &unit);
	struct contract_rank *rank = &c->ranks[0];
	const void *view = contract_gather(rank, &unit, NULL);
	void *data = NULL;

	contract_release(rank, &unit, NULL);
	assert_true(contract_can_touch(rank, view));
	FAILS(rank->client, zerod_gather(unit.at[0], NULL, NULL, &data), ZEROD_E_DEVICE, "away");
	contract_close(c);
}

/* ---- main ---------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
	return scene_main(argc, argv);
}
