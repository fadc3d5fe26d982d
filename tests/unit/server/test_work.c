/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_work.c - works from the engine's command to its completion: sent, answered, refused, ended; and what a
 * client must not say. Clients are this test, by hand; the backend is the host's, where a wrapper counts what
 * it is given.
 */
#include "work_scene.h"

#include <math.h>

/* ---- The backend --------------------------------------------------------------------------------------- */

static struct zd_backend_ops counted; /* the host's, but for submit() and for what a test sets */
static unsigned nreduces, nwatches, nwatches_until_gone;

static void count_command(struct zd_backend *backend, const struct zd_command *command)
{
	nreduces += command->kind == ZD_CMD_REDUCE;
	nwatches += command->kind == ZD_CMD_WATCH && !command->u.watch.until_gone;
	nwatches_until_gone += command->kind == ZD_CMD_WATCH && command->u.watch.until_gone;
	zd_backend_host.submit(backend, command);
}

static int open_counted(void **state)
{
	counted = zd_backend_host;
	counted.submit = count_command;
	counted.owners_sum = true;
	nreduces = nwatches = nwatches_until_gone = 0;
	return scene_open_works(state, &counted);
}

#define COUNTED_TEST(name) FIXTURE_TEST(name, struct scene *scene, open_counted, scene_teardown)

/* A client whose gradient is `value`, and the sum that it is asked for. */
static Zd__WorkPacket *begin_sum(struct scene *scene, struct peer *peer, float value)
{
	greet(scene, peer, ZD_FEATURE_WORK);
	begin_backward(peer, "job");
	reduce(peer, peer->unit, value);
	return await_sum(peer);
}

static void end_sum(struct peer *peer, Zd__WorkPacket *packet)
{
	free_packet(packet);
	close_peer(peer);
}

/* ---- Tests: done --------------------------------------------------------------------------------------- */

COUNTED_TEST(test_process_sums)
{
	const Zd__StepBeginReply *info;
	const Zd__Sum *sum;
	Zd__WorkPacket *packet;
	struct peer peer;

	packet = begin_sum(scene, &peer, 3);
	sum = packet->works[0]->sum;
	assert_int_equal(sum->input_dtype, ZEROD_FLOAT32);
	assert_int_equal(sum->target_dtype, ZEROD_FLOAT32);
	assert_int_equal(sum->numel, NUMEL);
	assert_int_equal(sum->n_input_segments, 1);
	assert_int_equal(sum->n_input_offsets, 1);
	assert_int_equal(sum->n_fence_timelines + sum->n_fence_values, 0);
	assert_true(sum->prescale == 1 && sum->postscale == 1 && sum->overwrite); /* the window's first */
	sum_and_answer(&peer, packet->works[0], (struct zd_work_result){.sum_squares = 576}, 1);
	info = step(&peer);
	assert_true(info->norm_squared == 576 && !info->overflow);
	assert_true(at(&peer, info->target)[NUMEL - 1] == 3);
	assert_int_equal(nreduces, 0);
	end_sum(&peer, packet);
}

/* Nothing ends before its fence. */
COUNTED_TEST(test_fence_is_waited_for)
{
	Zd__Fence fence = fence_of(511, 7);
	Zd__WorkPacket *packet;
	Zd__WorkDone done;
	struct peer peer;
	uint64_t end;

	packet = begin_sum(scene, &peer, 3);
	done = begun(packet->works[0]->id, &fence);
	answer(&peer, &done);
	end = ask(&peer, RAW(BACKWARD_END, backward_end, BackwardEnd, .group = peer.group));
	while (nwatches == 0)
		(void)zd_loop_run_once(&peer.scene->loop, true);
	(void)call(&peer, RAW(ALLOC, alloc, Alloc, .job = RAW_TEXT("job"), .bytes = 64));
	assert_null(find_reply(&peer, end)); /* the device has zeroed something since */
	__atomic_store_n(&peer.client_page[511], 7, __ATOMIC_RELEASE);
	assert_int_equal(await_reply(&peer, end)->status, 0);
	end_sum(&peer, packet);
}

/* Nor is one watched that has passed when the answer comes. */
COUNTED_TEST(test_passed_fence_is_not_watched)
{
	Zd__Fence fence = fence_of(511, 7);
	const Zd__StepBeginReply *info;
	Zd__WorkPacket *packet;
	Zd__WorkDone done;
	struct peer peer;

	packet = begin_sum(scene, &peer, 3);
	done = begun(packet->works[0]->id, &fence);
	peer.results->slots[packet->works[0]->sum->slot] = (struct zd_work_result){.sum_squares = 12};
	__atomic_store_n(&peer.client_page[511], 7, __ATOMIC_RELEASE);
	answer(&peer, &done);
	info = step(&peer);
	assert_true(info->norm_squared == 12);
	assert_int_equal(nwatches, 0);
	assert_int_equal(nreduces, 0);
	end_sum(&peer, packet);
}

COUNTED_TEST(test_results_are_the_clients_word)
{
	static const struct {
		struct zd_work_result result;
		bool overflow;
	} cases[] = {
	        {{.sum_squares = NAN}, true},
	        {{.sum_squares = INFINITY}, true},
	        {{.sum_squares = 1, .overflow = UINT64_MAX}, true},
	        {{.sum_squares = -5, .unused = {1, 2, 3}}, false},
	};

	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++) {
		Zd__WorkPacket *packet;
		struct peer peer;

		packet = begin_sum(scene, &peer, 1);
		sum_and_answer(&peer, packet->works[0], cases[i].result, 1);
		assert_int_equal(step(&peer)->overflow, cases[i].overflow);
		end_sum(&peer, packet);
	}
}

COUNTED_TEST(test_waits_name_the_process)
{
	static const char text[] = "unit 'w' is to be summed by rank 0's process";
	const Zd__ListReply *list;
	Zd__WorkPacket *packet;
	struct peer peer;

	packet = begin_sum(scene, &peer, 1);
	(void)ask(&peer, RAW(BACKWARD_END, backward_end, BackwardEnd, .group = peer.group));
	list = call(&peer, RAW(LIST, list, List, .table = ZD__TABLE__BUCKETS))->list;
	assert_string_equal(list->rows[0]->bucket->waits[0], text);
	list = call(&peer, RAW(LIST, list, List, .table = ZD__TABLE__SESSIONS))->list;
	assert_int_equal(list->n_rows, 2); /* the witness, and then this one */
	assert_non_null(strstr(list->rows[1]->session->waits[0], text));
	end_sum(&peer, packet);
}

/* As many as there are slots; the next one when a result has been read. */
COUNTED_TEST(test_no_more_than_there_are_slots)
{
	Zd__WorkPacket *packets[ZD_WORK_SLOTS + 1];
	uint64_t units[ZD_WORK_SLOTS + 1], slots = 0;
	struct peer peer;
	char name[16];

	greet(scene, &peer, ZD_FEATURE_WORK);
	peer.group = call(&peer, RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT("many"),
	                             .group = RAW_TEXT("world"), .world_size = 1))
	                     ->group_join->group;
	for (unsigned i = 0; i <= ZD_WORK_SLOTS; i++) {
		(void)snprintf(name, sizeof(name), "u%u", i);
		units[i] = register_unit(&peer, name);
	}
	(void)call(&peer, RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = peer.group, .stage = 3,
	                      .boundary = true, .target_dtype = ZEROD_FLOAT32));
	peer.bucket = call(&peer, RAW(BUCKET_CREATE, bucket_create, BucketCreate, .group = peer.group,
	                              .dtype = ZEROD_FLOAT32, .slot_bytes = SLOT_BYTES, .nslots = 1))
	                      ->bucket_create->bucket;
	for (unsigned i = 0; i <= ZD_WORK_SLOTS; i++)
		reduce(&peer, units[i], 2);
	for (unsigned i = 0; i < ZD_WORK_SLOTS; i++) {
		packets[i] = await_sum(&peer);
		slots |= 1ull << packets[i]->works[0]->sum->slot;
	}
	assert_true(slots == UINT64_MAX);
	turn(scene, 10);
	assert_null(read_channel(&peer));
	sum_and_answer(&peer, packets[5]->works[0], (struct zd_work_result){.sum_squares = 4}, 1);
	packets[ZD_WORK_SLOTS] = await_sum(&peer);
	assert_int_equal(packets[ZD_WORK_SLOTS]->works[0]->sum->slot, packets[5]->works[0]->sum->slot);
	for (unsigned i = 0, value = 2; i <= ZD_WORK_SLOTS; i++)
		if (i != 5)
			sum_and_answer(&peer, packets[i]->works[0], (struct zd_work_result){.sum_squares = 4},
			               value++);
	assert_true(step(&peer)->norm_squared == 4 * (ZD_WORK_SLOTS + 1.0));
	for (unsigned i = 0; i <= ZD_WORK_SLOTS; i++)
		free_packet(packets[i]);
	close_peer(&peer);
}

/* ---- Tests: not done ----------------------------------------------------------------------------------- */

COUNTED_TEST(test_backend_sums_for_who_cannot)
{
	Zd__WorkDone done = ZD__WORK_DONE__INIT;
	Zd__WorkPacket *packet;
	struct peer peer;

	packet = begin_sum(scene, &peer, 2);
	done.id = packet->works[0]->id;
	done.status = ZEROD_E_UNSUPPORTED;
	answer(&peer, &done);
	assert_true(step(&peer)->norm_squared == 4 * NUMEL);
	assert_int_equal(nreduces, 1);
	end_sum(&peer, packet);
}

/* The target may hold a part of the sum. */
COUNTED_TEST(test_sum_that_failed_halfway)
{
	Zd__WorkDone done = ZD__WORK_DONE__INIT;
	const Zd__Reply *reply;
	Zd__WorkPacket *packet;
	struct peer peer;

	packet = begin_sum(scene, &peer, 2);
	done.id = packet->works[0]->id;
	done.status = ZEROD_E_DEVICE;
	done.error = RAW_TEXT("the GPU has\a gone");
	done.launched = true;
	answer(&peer, &done);
	reply = await_reply(&peer,
	                    ask(&peer, RAW(BACKWARD_END, backward_end, BackwardEnd, .group = peer.group)));
	assert_int_equal(reply->status, ZEROD_E_DEVICE);
	assert_non_null(strstr(reply->error, "rank 0 on device 0: the GPU has? gone"));
	assert_int_equal(nreduces, 0);
	end_sum(&peer, packet);
}

COUNTED_TEST(test_backend_sums_without_a_channel)
{
	static const char *const features[] = {NULL, "other", ZD_FEATURE_WORK};
	struct peer peer;

	for (unsigned i = 0; i < 3; i++) {
		/* The last one's backend asks nobody: its channel is for segments alone. */
		counted.owners_sum = i < 2;
		greet(scene, &peer, features[i]);
		assert_int_equal(peer.channel >= 0, i == 2);
		assert_int_equal(find_reply(&peer, 1)->hello->n_features, i == 2);
		begin_backward(&peer, "job");
		reduce(&peer, peer.unit, 2);
		assert_true(step(&peer)->norm_squared == 4 * NUMEL);
		assert_int_equal(nreduces, i + 1);
		close_peer(&peer);
	}
}

/* ---- Tests: what must not be said ---------------------------------------------------------------------- */

static void expect_end(struct peer *peer, const char *text)
{
	const Zd__Reply *farewell = await_reply(peer, 0);

	assert_int_equal(farewell->status, ZEROD_E_PROTOCOL);
	assert_non_null(strstr(farewell->error, text));
	while (!peer->ended)
		if (!read_connection(peer) && !peer->ended)
			(void)zd_loop_run_once(&peer->scene->loop, true);
	scene_check_witness(peer->scene);
	close_peer(peer);
}

COUNTED_TEST(test_answers_that_cannot_be)
{
	static const struct {
		int status;
		bool has_fence;
		uint32_t timeline;
		uint64_t id_more, value;
		const char *text;
	} cases[] = {
	        {.has_fence = true, .value = 1, .id_more = 1000, .text = "which the daemon has not sent"},
	        {.text = "started without a fence"},
	        {.has_fence = true, .timeline = ZD_TIMELINES, .value = 1, .text = "timeline 1024"},
	        {.has_fence = true, .value = 0, .text = "value 0 is not"},
	        {.has_fence = true, .value = INT64_MAX, .text = "is not in 1 .. 2^63-2"},
	        {.status = 5, .has_fence = true, .value = 1, .text = "the status 5"},
	};

	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++) {
		Zd__Fence fence = fence_of(cases[i].timeline, cases[i].value);
		Zd__WorkPacket *packet;
		Zd__WorkDone done;
		struct peer peer;

		packet = begin_sum(scene, &peer, 2);
		done = begun(packet->works[0]->id + cases[i].id_more, cases[i].has_fence ? &fence : NULL);
		done.status = cases[i].status;
		answer(&peer, &done);
		expect_end(&peer, cases[i].text);
		free_packet(packet);
	}
	assert_int_equal(nwatches, 0);
	assert_int_equal(nwatches_until_gone, ZD_ARRAY_LEN(cases));
}

COUNTED_TEST(test_second_answer)
{
	Zd__Fence fence = fence_of(3, 1);
	Zd__WorkPacket *packet;
	Zd__WorkDone done;
	struct peer peer;

	packet = begin_sum(scene, &peer, 2);
	done = begun(packet->works[0]->id, &fence);
	answer(&peer, &done);
	answer(&peer, &done);
	expect_end(&peer, "a second answer to work");
	free_packet(packet);
}

/* The session to which the work belongs is unharmed. */
COUNTED_TEST(test_answer_to_anothers_work)
{
	Zd__Fence fence = fence_of(3, 1);
	struct peer peer, other;
	Zd__WorkPacket *packet;
	Zd__WorkDone done;

	greet(scene, &peer, ZD_FEATURE_WORK);
	greet(scene, &other, ZD_FEATURE_WORK);
	begin_backward(&peer, "job");
	reduce(&peer, peer.unit, 2);
	packet = await_sum(&peer);
	done = begun(packet->works[0]->id, &fence);
	answer(&other, &done);
	expect_end(&other, "which the daemon has not sent to this session");
	sum_and_answer(&peer, packet->works[0], (struct zd_work_result){.sum_squares = 9}, 1);
	assert_true(step(&peer)->norm_squared == 9);
	end_sum(&peer, packet);
}

COUNTED_TEST(test_packet_that_is_none)
{
	struct peer peer;

	greet(scene, &peer, ZD_FEATURE_WORK);
	scene_send_bytes(peer.channel, "\xff\xff", 2);
	expect_end(&peer, "a packet of 2 bytes on the work channel");
}

/* ---- Tests: ends --------------------------------------------------------------------------------------- */

COUNTED_TEST(test_channel_ends_the_session)
{
	struct peer peer;

	greet(scene, &peer, ZD_FEATURE_WORK);
	(void)close(peer.channel);
	peer.channel = -1;
	while (!peer.ended)
		if (!read_connection(&peer) && !peer.ended)
			(void)zd_loop_run_once(&peer.scene->loop, true);
	scene_check_witness(scene);
	close_peer(&peer);
}

/* Not before the process can use no device any more, which the backend tells. */
COUNTED_TEST(test_session_ends_under_a_sum)
{
	struct zd_engine_totals totals;
	Zd__WorkPacket *packet;
	struct peer peer;

	for (unsigned answered = 0; answered < 2; answered++) {
		Zd__Fence fence = fence_of(3, 1);
		Zd__WorkDone done;

		packet = begin_sum(scene, &peer, 2);
		done = begun(packet->works[0]->id, &fence);
		if (answered)
			answer(&peer, &done);
		while (answered && nwatches == 0)
			(void)zd_loop_run_once(&scene->loop, true);
		assert_int_equal(nwatches_until_gone, answered ? 1 : 0);
		close_peer(&peer);
		do {
			(void)zd_loop_run_once(&scene->loop, true);
			zd_engine_totals(scene->api.bridge.engine, &totals);
		} while (totals.jobs > 0);
		assert_int_equal(nwatches_until_gone, 1); /* one that was answered is watched already */
		assert_null(scene->api.bridge.delegates.sums);
		free_packet(packet);
	}
}

/* Once the work channel announces a number of retired segments, the connection has announced those
 * segments. */
COUNTED_TEST(test_retired_segments_are_pointed_at)
{
	Zd__WorkPacket *packet;
	struct peer peer;
	uint64_t allocation, trim;

	greet(scene, &peer, ZD_FEATURE_WORK);
	for (unsigned round = 1; round <= 2; round++) {
		allocation = call(&peer, RAW(ALLOC, alloc, Alloc, .job = RAW_TEXT("job"), .bytes = 4096))
		                     ->alloc->allocation;
		(void)call(&peer, RAW(ALLOC, alloc, Alloc, .job = RAW_TEXT("job"), .device = 1,
		                      .bytes = 4096)); /* the job stays */
		(void)call(&peer, RAW(FREE, free, Free, .allocation = allocation));
		trim = ask(&peer, RAW(TRIM, trim, Trim, .keep_bytes = 0));
		packet = await_packet(&peer);
		assert_int_equal(packet->n_works, 0);
		assert_int_equal(packet->retired, round);
		assert_int_equal(peer.nretired, round);
		assert_null(find_reply(&peer, trim));
		(void)call(&peer, RAW(SEGMENTS_UNMAPPED, segments_unmapped, SegmentsUnmapped, .n_segments = 1,
		                      .segments = peer.packets[peer.npackets - 1]->retired));
		assert_int_equal(await_reply(&peer, trim)->status, 0);
		free_packet(packet);
	}
	close_peer(&peer);
}
