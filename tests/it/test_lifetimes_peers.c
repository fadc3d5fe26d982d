/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lifetimes_peers.c - what the death of one rank means to the others, and how training goes on.
 *
 * Rank 0 is the test itself, through a raw client, so that it can wait for several things at once; rank 1 is
 * a process.
 */
#include "tests/it/lifetimes.h"

#define NUMEL 1000u
#define MINE  0.5f

static uint64_t group, unit, bucket;
static const Zd__UnitRegisterReply *registered;

static uint64_t call(Zd__Request *request)
{
	uint64_t id = raw_send(&raw, request);

	(void)raw_expect(&raw, id, 0);
	return id;
}

/* Rank 0 of the group that a trainer joins as rank 1. */
static void join_with(const struct trainer_process *peer)
{
	uint64_t id;

	raw_open(&raw, life_daemon.socket_path);
	id = call(RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT("job"), .group = RAW_TEXT("world"),
	              .world_size = 2));
	group = raw_find(&raw, id)->group_join->group;
	id = call(RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = group, .name = RAW_TEXT("u"),
	              .dtype = ZEROD_FLOAT32, .numel = NUMEL));
	registered = raw_find(&raw, id)->unit_register;
	unit = registered->unit;
	life_expect(peer, "+ready");
}

static void publish(float value)
{
	float *shard = (float *)(void *)raw_at(&raw, registered->shard);

	(void)call(RAW(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 1, .units = &unit));
	for (uint64_t i = 0; i < registered->true_numel; i++)
		shard[i] = value;
	(void)call(RAW(PUBLISH, publish, Publish, .n_units = 1, .units = &unit));
}

static Zd__Request *gather_request(void)
{
	static Zd__Gather body;
	static Zd__Request request;

	body = (Zd__Gather)ZD__GATHER__INIT;
	body.unit = unit;
	body.tag = RAW_TEXT("t");
	request = (Zd__Request)ZD__REQUEST__INIT;
	request.body_case = ZD__REQUEST__BODY_GATHER;
	request.gather = &body;
	return &request;
}

/* Gathers, looks at both ranks' values, and releases. */
static void expect_gathered(float mine, float theirs)
{
	const Zd__GatherReply *gathered = raw_find(&raw, call(gather_request()))->gather;
	const float *data = (const float *)(const void *)raw_at(&raw, gathered->buffer);

	raw_await_fences(&raw, gathered->n_fences, gathered->fences);
	for (uint64_t i = 0; i < NUMEL; i++)
		assert_true(data[i] == (i < registered->shard_numel ? mine : theirs));
	(void)call(RAW(RELEASE, release, Release, .unit = unit, .tag = RAW_TEXT("t")));
}

static void expect_lost(uint64_t id, const struct trainer_process *peer)
{
	char who[64];

	(void)snprintf(who, sizeof(who), "rank 1 (pid %d)", (int)peer->pid);
	RAW_EXPECT_ERROR(&raw, id, ZEROD_E_PEER_LOST, who);
}

/* Rank 1 was killed. */
static void end_all(const struct trainer_process *peer)
{
	life_reap(peer);
	raw_close(&raw);
	life_expect_gone(life_now_ms());
}

/* ---- Waiting for one who dies -------------------------------------------------------------------------- */

static void peer_registers(struct trainer *t)
{
	trainer_join(t);
	t->unit = trainer_register(t, "u", NUMEL, ZEROD_NO_SLOT);
	trainer_ready(t);
}

static void peer_publishes(struct trainer *t)
{
	trainer_join(t);
	t->unit = trainer_register(t, "u", NUMEL, ZEROD_NO_SLOT);
	trainer_publish(t, t->unit);
	trainer_ready(t);
}

/* Two requests that wait for rank 1, and what is asked when it is dead. */
LIFE_TEST(test_waiters_are_told)
{
	struct trainer_process peer;
	uint64_t gather, commit;

	life_fork(peer_registers, 1, 2, &peer);
	join_with(&peer);
	publish(1.0f);
	gather = raw_send(&raw, gather_request());
	commit = raw_send(&raw, RAW(COMMIT, commit, Commit, .group = group, .step = 1));
	life_expect_waits("rank 1 to publish");
	life_expect_waits("rank 1 to commit");
	life_kill(&peer);
	expect_lost(gather, &peer);
	expect_lost(commit, &peer);
	expect_lost(raw_send(&raw, gather_request()), &peer);
	expect_lost(raw_send(&raw, RAW(COMMIT, commit, Commit, .group = group, .step = 1)), &peer);
	expect_lost(raw_send(&raw, RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = group)),
	            &peer);
	end_all(&peer);
}

static void begin_backward(void)
{
	uint64_t id;

	(void)call(RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = group, .boundary = true));
	id = call(RAW(BUCKET_CREATE, bucket_create, BucketCreate, .group = group, .dtype = ZEROD_FLOAT32,
	              .slot_bytes = 8192));
	bucket = raw_find(&raw, id)->bucket_create->bucket;
}

static void reduce_own(float value)
{
	uint64_t id =
	        call(RAW(BUCKET_RESERVE, bucket_reserve, BucketReserve, .bucket = bucket, .unit = unit));
	const Zd__BucketReserveReply *entry = raw_find(&raw, id)->bucket_reserve;
	float *data = (float *)(void *)raw_at(&raw, entry->location);

	for (uint64_t i = 0; i < NUMEL; i++)
		data[i] = value;
	(void)call(RAW(BUCKET_SUBMIT, bucket_submit, BucketSubmit, .bucket = bucket, .entry = entry->entry));
}

LIFE_TEST(test_reductions_are_told)
{
	struct trainer_process peer;
	uint64_t end;

	life_fork(peer_publishes, 1, 2, &peer);
	join_with(&peer);
	publish(1.0f);
	begin_backward();
	reduce_own(1.0f);
	end = raw_send(&raw, RAW(BACKWARD_END, backward_end, BackwardEnd, .group = group));
	life_expect_waits("(rank 1)");
	life_kill(&peer);
	expect_lost(end, &peer);
	expect_lost(raw_send(&raw, RAW(STEP_BEGIN, step_begin, StepBegin, .group = group)), &peer);
	/* Nothing of the backward is kept: no target, no bucket's memory, no staging. */
	for (size_t i = 0; i < life_list(ZD__TABLE__BUCKETS)->n_rows; i++)
		assert_int_equal(life_list(ZD__TABLE__BUCKETS)->rows[i]->bucket->held_bytes, 0);
	assert_int_equal(life_list(ZD__TABLE__DEVICES)->rows[0]->device->usage->target_bytes, 0);
	end_all(&peer);
}

static void peer_ends_backward(struct trainer *t)
{
	struct zerod_backward_options options = ZEROD_INIT(options);

	trainer_join(t);
	t->unit = trainer_register(t, "u", NUMEL, ZEROD_NO_SLOT);
	trainer_ready(t);
	options.boundary = 1;
	TRY(t, zerod_backward_begin(t->group, &options));
	TRY(t, zerod_reduce_skip(t->unit, NULL, NULL));
	TRY(t, zerod_backward_end(t->group, NULL, NULL));
	trainer_say(t, "+ended");
}

LIFE_TEST(test_steps_are_told)
{
	struct trainer_process peer;
	uint64_t step;

	life_fork(peer_ends_backward, 1, 2, &peer);
	join_with(&peer);
	begin_backward();
	reduce_own(1.0f);
	(void)call(RAW(BACKWARD_END, backward_end, BackwardEnd, .group = group));
	life_expect(&peer, "+ended");
	step = raw_send(&raw, RAW(STEP_BEGIN, step_begin, StepBegin, .group = group));
	life_expect_waits("rank 1 to begin the step");
	life_kill(&peer);
	expect_lost(step, &peer);
	end_all(&peer);
}

/* ---- Replacements -------------------------------------------------------------------------------------- */

/* Publishes its pid's last digits, and takes part in one step. */
static void peer_trains(struct trainer *t)
{
	struct zerod_backward_options options = ZEROD_INIT(options);
	struct zerod_bucket_options bucket_options = ZEROD_INIT(bucket_options);
	struct zerod_entry entry = ZEROD_INIT(entry);
	struct zerod_shard shard = ZEROD_INIT(shard);

	trainer_join(t);
	t->unit = trainer_register(t, "u", NUMEL, ZEROD_NO_SLOT);
	trainer_ready(t);
	TRY(t, zerod_update_begin(&t->unit, 1, NULL, NULL));
	TRY(t, zerod_shard_get(t->unit, &shard));
	for (uint64_t i = 0; i < shard.true_numel; i++)
		((float *)shard.data)[i] = (float)(getpid() % 1000);
	TRY(t, zerod_publish(&t->unit, 1, NULL, 0, NULL, NULL));
	options.boundary = 1;
	TRY(t, zerod_backward_begin(t->group, &options));
	bucket_options.dtype = ZEROD_FLOAT32;
	bucket_options.slot_bytes = 8192;
	TRY(t, zerod_bucket_create(t->group, &bucket_options, &t->bucket));
	TRY(t, zerod_bucket_reserve(t->bucket, t->unit, NULL, &entry));
	for (uint64_t i = 0; i < NUMEL; i++)
		((float *)entry.data)[i] = (float)(getpid() % 1000);
	TRY(t, zerod_bucket_submit(t->bucket, entry.id, NULL, 0, NULL, NULL));
	TRY(t, zerod_backward_end(t->group, NULL, NULL));
	TRY(t, zerod_step_begin(t->group, NULL, OPTIONS_OF(zerod_step_info, .step = 0), NULL));
	TRY(t, zerod_step_end(t->group, NULL, 0, NULL));
	trainer_say(t, "+stepped");
}

/* One step of rank 0; the sums are looked at. */
static void expect_step(float mine, float theirs)
{
	const Zd__StepBeginReply *step;
	const float *target;

	begin_backward();
	reduce_own(mine);
	(void)call(RAW(BACKWARD_END, backward_end, BackwardEnd, .group = group));
	step = raw_find(&raw, call(RAW(STEP_BEGIN, step_begin, StepBegin, .group = group)))->step_begin;
	target = (const float *)(const void *)raw_at(&raw, step->target);
	for (uint64_t i = 0; i < registered->true_numel; i++)
		assert_true(target[registered->target_offset_numel + i] == mine + theirs);
	(void)call(RAW(STEP_END, step_end, StepEnd, .group = group));
	(void)call(RAW(BUCKET_DESTROY, bucket_destroy, BucketDestroy, .bucket = bucket));
}

/* Rank 1 dies again and again. Each time another takes its place, one version behind, so that what it
 * publishes first goes with what rank 0 has; the values are the living one's. */
LIFE_TEST(test_replaced)
{
	struct trainer_process peer;

	life_fork(peer_trains, 1, 2, &peer);
	join_with(&peer);
	publish(MINE);
	for (int round = 0; round < 4; round++) {
		float theirs = (float)(peer.pid % 1000);

		expect_gathered(MINE, theirs);
		expect_step((float)round, theirs);
		life_expect(&peer, "+stepped");
		life_kill(&peer);
		life_reap(&peer);
		/* It waits until the daemon has noticed, if it has not yet. */
		expect_lost(raw_send(&raw, RAW(COMMIT, commit, Commit, .group = group, .step = 100)), &peer);
		life_fork(peer_trains, 1, 2, &peer);
		life_expect(&peer, "+ready");
	}
	life_kill(&peer);
	end_all(&peer);
}

/* ---- Odd ends ------------------------------------------------------------------------------------------ */

static void holds_and_forks(struct trainer *t)
{
	char line[32];
	pid_t child;

	trainer_open(t);
	trainer_gather(t, t->unit, "t");
	child = fork();
	if (child == 0) {
		(void)prctl(PR_SET_PDEATHSIG, 0);
		(void)alarm(LIFE_WAIT_MS / 1000); /* should the test not end it */
		trainer_stay();
	}
	(void)snprintf(line, sizeof(line), "+%d", (int)child);
	trainer_say(t, line);
}

/* A session belongs to the process that opened it, not to whoever still has its socket. */
LIFE_TEST(test_child_keeps_the_socket)
{
	struct trainer_process trainer;
	char line[32];
	ssize_t got;
	pid_t child;

	life_fork(holds_and_forks, 0, 1, &trainer);
	got = read(trainer.says, line, sizeof(line) - 1);
	assert_true(got > 1 && line[0] == '+');
	line[got] = '\0';
	child = (pid_t)strtol(line + 1, NULL, 10);
	assert_true(child > 0);
	life_kill(&trainer);
	life_expect_gone(life_now_ms());
	assert_int_equal(kill(child, 0), 0);
	assert_int_equal(kill(child, SIGKILL), 0);
	life_reap(&trainer);
}

static void holds_and_exits(struct trainer *t)
{
	trainer_open(t);
	trainer_make_stuck(t);
	trainer_gather(t, t->unit, "t");
	TRY(t, zerod_release(t->unit, &t->stuck, 1, TAGGED("t"), NULL));
	trainer_gather(t, t->unit, "again");
	_exit(0);
}

LIFE_TEST(test_exits_without_a_word)
{
	struct trainer_process trainer;

	life_fork(holds_and_exits, 0, 1, &trainer);
	life_reap(&trainer);
	life_expect_gone(life_now_ms());
}

/* A rank that hangs holds up who waits for it, and nobody else; killed, it goes like any other. */
LIFE_TEST(test_stopped)
{
	struct trainer_process peer;
	Zd__Request *gather;

	life_fork(peer_registers, 1, 2, &peer);
	join_with(&peer);
	publish(1.0f);
	assert_int_equal(kill(peer.pid, SIGSTOP), 0);
	gather = gather_request();
	gather->deadline_ms = 20;
	RAW_EXPECT_ERROR(&raw, raw_send(&raw, gather), ZEROD_E_DEADLINE, "rank 1 to publish version 1");
	life_kill(&peer);
	expect_lost(raw_send(&raw, RAW(COMMIT, commit, Commit, .group = group, .step = 1)), &peer);
	end_all(&peer);
}

int main(void)
{
	return test_run(life_start, life_stop);
}
