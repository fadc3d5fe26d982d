/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_work_ahead.c - sums that clients are asked for before their inputs are there. Clients are this test,
 * by hand; the backend is the host's behind a wrapper, which keeps copies until a test lets them go, and
 * begins no sum with fences.
 */
#include "work_scene.h"

#include "server/delegate.h"

#define RANKS 2u /* each of which sums NUMEL elements */

/* ---- The backend --------------------------------------------------------------------------------------- */

static struct zd_backend_ops wrapped; /* the host's, but for these: */
static struct zd_backend_config told;
static struct zd_command held[RANKS];
static unsigned nheld, nreduces, nrefused;

static int open_wrapped(const struct zd_backend_config *config, struct zd_backend **backend,
                        struct zd_err *err)
{
	told = *config;
	return zd_backend_host.open(config, backend, err);
}

static void submit_wrapped(struct zd_backend *backend, const struct zd_command *command)
{
	bool ahead = command->kind == ZD_CMD_REDUCE && command->u.reduce.nfences > 0;
	struct zd_completion completion = {.op = command->op, .result.not_begun = true};

	nrefused += ahead;
	nreduces += command->kind == ZD_CMD_REDUCE && !ahead;
	if (ahead) {
		told.done(told.done_arg, &completion);
	} else if (command->kind == ZD_CMD_COPY) {
		assert_true(nheld < RANKS);
		held[nheld++] = *command;
	} else {
		zd_backend_host.submit(backend, command);
	}
}

static void let_copies_go(struct scene *scene)
{
	for (unsigned i = 0; i < nheld; i++)
		zd_backend_host.submit(scene->api.bridge.backend, &held[i]);
	nheld = 0;
}

static int open_held(void **state)
{
	wrapped = zd_backend_host;
	wrapped.open = open_wrapped;
	wrapped.submit = submit_wrapped;
	wrapped.owners_sum = true;
	nheld = nreduces = nrefused = 0;
	return scene_open_works(state, &wrapped);
}

#define HELD_TEST(name) FIXTURE_TEST(name, struct scene *scene, open_held, scene_teardown)

/* ---- Two ranks ----------------------------------------------------------------------------------------- */

static const char *const both[] = {ZD_FEATURE_WORK, ZD_FEATURE_WORK_AHEAD};

static uint64_t session_of(const struct peer *peer)
{
	return find_reply(peer, 1)->hello->session;
}

typedef uint64_t ask_fn(struct peer *peer, uint32_t rank);

/* Sends the request for all ranks, and collects the replies. */
static void ask_all(struct peer *peers, ask_fn *ask_one, const Zd__Reply *replies[RANKS])
{
	uint64_t ids[RANKS];

	for (uint32_t i = 0; i < RANKS; i++)
		ids[i] = ask_one(&peers[i], i);
	for (uint32_t i = 0; i < RANKS; i++) {
		replies[i] = await_reply(&peers[i], ids[i]);
		assert_string_equal(replies[i]->error, "");
	}
}

static uint64_t ask_join(struct peer *peer, uint32_t rank)
{
	return ask(peer, RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT("job"),
	                     .group = RAW_TEXT("world"), .world_size = RANKS, .rank = rank, .device = rank));
}

static uint64_t ask_register(struct peer *peer, uint32_t rank)
{
	(void)rank;
	return ask(peer, RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = peer->group,
	                     .name = RAW_TEXT("w"), .dtype = ZEROD_FLOAT32, .numel = RANKS * NUMEL));
}

static uint64_t ask_backward(struct peer *peer, uint32_t rank)
{
	(void)rank;
	return ask(peer, RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = peer->group, .stage = 3,
	                     .boundary = true, .target_dtype = ZEROD_FLOAT32));
}

static uint64_t ask_end(struct peer *peer, uint32_t rank)
{
	(void)rank;
	return ask(peer, RAW(BACKWARD_END, backward_end, BackwardEnd, .group = peer->group));
}

static uint64_t ask_step(struct peer *peer, uint32_t rank)
{
	(void)rank;
	return ask(peer, RAW(STEP_BEGIN, step_begin, StepBegin, .group = peer->group));
}

/* Rank i's gradient is 2 + i everywhere; its pieces for others are held. */
static void reduce_held(struct scene *scene, struct peer *peers, const char *const *features, size_t count)
{
	const Zd__Reply *replies[RANKS];

	for (uint32_t i = 0; i < RANKS; i++)
		greet_with(scene, &peers[i], features, count);
	ask_all(peers, ask_join, replies);
	for (uint32_t i = 0; i < RANKS; i++)
		peers[i].group = replies[i]->group_join->group;
	ask_all(peers, ask_register, replies);
	for (uint32_t i = 0; i < RANKS; i++)
		peers[i].unit = replies[i]->unit_register->unit;
	ask_all(peers, ask_backward, replies);
	for (uint32_t i = 0; i < RANKS; i++) {
		struct peer *peer = &peers[i];

		peer->bucket = call(peer,
		                    RAW(BUCKET_CREATE, bucket_create, BucketCreate, .group = peer->group,
		                        .dtype = ZEROD_FLOAT32, .slot_bytes = SLOT_BYTES, .nslots = 1))
		                       ->bucket_create->bucket;
		reduce(peer, peer->unit, 2.0f + (float)i);
	}
	turn(scene, 10);
	assert_int_equal(nheld, RANKS);
}

static double end_step(struct peer *peers)
{
	const Zd__Reply *replies[RANKS];

	ask_all(peers, ask_end, replies);
	ask_all(peers, ask_step, replies);
	return replies[0]->step_begin->norm_squared;
}

static void refuse(struct peer *peer, const Zd__Work *work)
{
	Zd__WorkDone done = ZD__WORK_DONE__INIT;

	done.id = work->id;
	done.status = ZEROD_E_UNSUPPORTED;
	answer(peer, &done);
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

HELD_TEST(test_features)
{
	static const struct {
		const char *features[3];
		size_t count;
		bool alone; /* the backend asks nobody */
		size_t nlisted;
	} cases[] = {
	        {{NULL}, 0, false, 0},
	        {{ZD_FEATURE_WORK}, 1, false, 1},
	        {{ZD_FEATURE_WORK_AHEAD}, 1, false, 0},
	        {{ZD_FEATURE_WORK, ZD_FEATURE_WORK_AHEAD}, 2, false, 2},
	        {{ZD_FEATURE_WORK_AHEAD, "other", ZD_FEATURE_WORK}, 3, false, 2},
	        {{ZD_FEATURE_WORK, ZD_FEATURE_WORK_AHEAD}, 2, true, 1},
	};

	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++) {
		const Zd__HelloReply *hello;
		struct peer peer;

		wrapped.owners_sum = !cases[i].alone;
		greet_with(scene, &peer, cases[i].features, cases[i].count);
		hello = find_reply(&peer, 1)->hello;
		assert_int_equal(hello->n_features, cases[i].nlisted);
		for (size_t k = 0; k < hello->n_features; k++)
			assert_string_equal(hello->features[k], both[k]);
		assert_int_equal(peer.channel >= 0, cases[i].nlisted > 0);
		assert_int_equal(zd_delegates_sum_ahead(&scene->api.bridge.delegates, hello->session),
		                 cases[i].nlisted == 2);
		close_peer(&peer);
	}
	assert_false(zd_delegates_sum_ahead(&scene->api.bridge.delegates, 12345));
}

/* One fence each: that of the copy which brings the other rank's piece. */
HELD_TEST(test_fences_are_those_of_the_pieces)
{
	struct peer peers[RANKS];

	reduce_held(scene, peers, both, 2);
	for (uint32_t i = 0; i < RANKS; i++) {
		const struct zd_command *copy =
		        &held[held[0].signal.session == session_of(&peers[i]) ? 0 : 1];
		Zd__WorkPacket *packet = await_sum(&peers[i]);
		const Zd__Sum *sum = packet->works[0]->sum;
		const uint64_t *counter;

		assert_int_equal(copy->signal.session, session_of(&peers[i]));
		assert_int_equal(sum->n_fence_timelines, 1);
		assert_int_equal(sum->fence_timelines[0], copy->signal.timeline);
		assert_int_equal(sum->fence_values[0], copy->signal.value);
		assert_int_equal(sum->numel, NUMEL);
		assert_int_equal(sum->n_input_segments, RANKS);
		counter = &peers[i].daemon_page[sum->fence_timelines[0]];
		assert_int_equal(__atomic_load_n(counter, __ATOMIC_ACQUIRE), 0);
		zd_backend_host.submit(scene->api.bridge.backend, copy);
		while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < sum->fence_values[0])
			turn(scene, 1);
		for (uint32_t k = 0; k < RANKS; k++)
			assert_true(input_at(&peers[i], sum, k)[NUMEL - 1] == 2.0f + (float)k);
		sum_and_answer(&peers[i], packet->works[0], (struct zd_work_result){.sum_squares = 7}, 1);
		free_packet(packet);
	}
	assert_true(end_step(peers) == 7.0 * RANKS);
	assert_int_equal(nreduces + nrefused, 0);
	for (uint32_t i = 0; i < RANKS; i++)
		close_peer(&peers[i]);
}

/* A client without the feature for fences gets its sums when the pieces have arrived. */
HELD_TEST(test_nobody_else_is_asked_ahead)
{
	struct peer peers[RANKS];

	reduce_held(scene, peers, both, 1);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_null(read_channel(&peers[i]));
	let_copies_go(scene);
	for (uint32_t i = 0; i < RANKS; i++) {
		Zd__WorkPacket *packet = await_sum(&peers[i]);

		assert_int_equal(packet->works[0]->sum->n_fence_timelines, 0);
		sum_and_answer(&peers[i], packet->works[0], (struct zd_work_result){.sum_squares = 7}, 1);
		free_packet(packet);
	}
	assert_true(end_step(peers) == 7.0 * RANKS);
	for (uint32_t i = 0; i < RANKS; i++)
		close_peer(&peers[i]);
}

/* Not by the backend, which has nobody who would wait: it is asked for again when the pieces are there. */
HELD_TEST(test_refused_sum_comes_again)
{
	struct peer peers[RANKS];
	Zd__WorkPacket *packet;

	reduce_held(scene, peers, both, 2);
	for (uint32_t i = 0; i < RANKS; i++) {
		packet = await_sum(&peers[i]);
		assert_int_equal(packet->works[0]->sum->n_fence_timelines, 1);
		refuse(&peers[i], packet->works[0]);
		free_packet(packet);
	}
	while (nrefused < RANKS)
		(void)zd_loop_run_once(&scene->loop, true);
	turn(scene, 10);
	assert_int_equal(nreduces, 0);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_null(read_channel(&peers[i]));
	let_copies_go(scene);
	for (uint32_t i = 0; i < RANKS; i++) {
		packet = await_sum(&peers[i]);
		assert_int_equal(packet->works[0]->sum->n_fence_timelines, 0);
		refuse(&peers[i], packet->works[0]);
		free_packet(packet);
	}
	assert_true(end_step(peers) == 25.0 * RANKS * NUMEL);
	assert_int_equal(nreduces, RANKS);
	assert_int_equal(nrefused, RANKS);
	for (uint32_t i = 0; i < RANKS; i++)
		close_peer(&peers[i]);
}
