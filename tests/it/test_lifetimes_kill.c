/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lifetimes_kill.c - a client killed in any state leaves, within one second, no byte of its own behind.
 *
 * Each line of the table is a state: trainers get there, the test sees in the daemon's listing that they are,
 * and kills them.
 */
#include "tests/it/lifetimes.h"
#include "tests/it/program.h"

#define WORLD       2u
#define BIG_NUMEL   200000u /* the frames of two gathers fit the budget, of three they do not */
#define SLOT        1u
#define ALLOC_BYTES (3u << 20)

/* ---- Without a group ----------------------------------------------------------------------------------- */

static void connected(struct trainer *t)
{
	trainer_connect(t);
	trainer_ready(t);
}

static void allocated(struct trainer *t)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);
	zerod_allocation *buffer;
	void *data;

	trainer_connect(t);
	options.job = "other";
	options.bytes = ALLOC_BYTES;
	TRY(t, zerod_alloc(t->client, &options, &buffer, &data));
	memset(data, 1, ALLOC_BYTES);
	trainer_ready(t);
}

static void allocating(struct trainer *t)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);
	zerod_allocation *buffer;
	void *data;

	trainer_connect(t);
	options.job = "other";
	options.bytes = ALLOC_BYTES;
	for (unsigned i = 0;; i++) {
		TRY(t, zerod_alloc(t->client, &options, &buffer, &data));
		TRY(t, zerod_free(buffer, NULL, 0));
		if (i == 0)
			trainer_ready(t);
	}
}

static void freed_behind_a_stream(struct trainer *t)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);
	zerod_allocation *buffer;
	void *data;

	trainer_connect(t);
	trainer_make_stuck(t);
	options.job = "other";
	options.bytes = ALLOC_BYTES;
	TRY(t, zerod_alloc(t->client, &options, &buffer, &data));
	TRY(t, zerod_free(buffer, &t->stuck, 1));
	trainer_ready(t);
}

/* ---- Joining, units, updates --------------------------------------------------------------------------- */

static void joining(struct trainer *t)
{
	trainer_ready(t);
	t->world_size = WORLD + 1; /* nobody is the last */
	trainer_join(t);
}

static void joined(struct trainer *t)
{
	trainer_join(t);
	trainer_ready(t);
}

static void left(struct trainer *t)
{
	trainer_open(t);
	TRY(t, zerod_group_barrier(t->group, NULL, NULL));
	TRY(t, zerod_group_leave(t->group, NULL));
	trainer_ready(t);
}

static void registering(struct trainer *t)
{
	trainer_join(t);
	for (unsigned i = 0;; i++) {
		zerod_unit *unit = trainer_register(t, "u", 1u << 18, ZEROD_NO_SLOT);

		TRY(t, zerod_unit_unregister(unit, NULL));
		if (i == 0)
			trainer_ready(t);
	}
}

static void registered(struct trainer *t)
{
	trainer_open(t);
	trainer_ready(t);
}

static void updating(struct trainer *t)
{
	trainer_open(t);
	TRY(t, zerod_update_begin(&t->unit, 1, NULL, NULL));
	trainer_ready(t);
}

static void publishing(struct trainer *t)
{
	trainer_open(t);
	trainer_make_stuck(t);
	TRY(t, zerod_update_begin(&t->unit, 1, NULL, NULL));
	trainer_ready(t);
	TRY(t, zerod_publish(&t->unit, 1, &t->stuck, 1, NULL, NULL));
}

static void committing(struct trainer *t)
{
	trainer_open(t);
	trainer_ready(t);
	if (t->rank == 0)
		TRY(t, zerod_commit(t->group, 1, NULL));
}

/* ---- Gathering ----------------------------------------------------------------------------------------- */

static void gathering(struct trainer *t)
{
	zerod_unit *big;

	trainer_open(t);
	big = trainer_register(t, "big", BIG_NUMEL, ZEROD_NO_SLOT);
	trainer_publish(t, big);
	for (unsigned i = 0;; i++) {
		trainer_gather(t, big, "t");
		TRY(t, zerod_release(big, NULL, 0, TAGGED("t"), NULL));
		if (i == 0)
			trainer_ready(t);
	}
}

static void holding(struct trainer *t)
{
	trainer_open(t);
	trainer_gather(t, t->unit, "one");
	trainer_gather(t, t->unit, "two");
	trainer_gather(t, t->unit, "two");
	trainer_ready(t);
}

static void persistent(struct trainer *t)
{
	trainer_open(t);
	TRY(t, zerod_unit_set_persistent(t->unit, 1));
	trainer_gather(t, t->unit, "t");
	TRY(t, zerod_release(t->unit, NULL, 0, TAGGED("t"), NULL));
	trainer_ready(t);
}

static void prefetched(struct trainer *t)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	zerod_ticket ticket;

	trainer_open(t);
	options.flags = ZEROD_GATHER_PREFETCH;
	TRY(t, zerod_gather_begin(t->unit, &options, &ticket));
	TRY(t, zerod_wait(t->client, ticket, NULL, NULL));
	trainer_ready(t);
}

static void quarantined(struct trainer *t)
{
	trainer_open(t);
	trainer_make_stuck(t);
	trainer_gather(t, t->unit, "t");
	TRY(t, zerod_release(t->unit, &t->stuck, 1, TAGGED("t"), NULL));
	trainer_ready(t);
}

static void waiting_for_a_version(struct trainer *t)
{
	trainer_open(t);
	TRY(t, zerod_update_begin(&t->unit, 1, NULL, NULL));
	trainer_ready(t);
	trainer_gather(t, t->unit, "t");
}

static void waiting_with_a_release(struct trainer *t)
{
	zerod_ticket gather, release;

	trainer_open(t);
	TRY(t, zerod_update_begin(&t->unit, 1, NULL, NULL));
	TRY(t, zerod_gather_begin(t->unit, NULL, &gather));
	TRY(t, zerod_release(t->unit, NULL, 0, NULL, &release));
	trainer_ready(t);
	TRY(t, zerod_wait(t->client, release, NULL, NULL));
}

static void waiting_for_room(struct trainer *t)
{
	trainer_open(t);
	for (unsigned i = 0; i < 3; i++) {
		char name[16];
		zerod_unit *unit;

		(void)snprintf(name, sizeof(name), "big%u", i);
		unit = trainer_register(t, name, BIG_NUMEL, ZEROD_NO_SLOT);
		trainer_publish(t, unit);
		if (i == 2)
			trainer_ready(t);
		trainer_gather(t, unit, "t");
	}
}

/* The slot is promised to the second unit while a stream still reads the first. */
static void ahead_in_a_slot(struct trainer *t)
{
	zerod_unit *first, *second;
	zerod_ticket ticket;

	trainer_open(t);
	trainer_make_stuck(t);
	first = trainer_register(t, "first", 1000, SLOT);
	second = trainer_register(t, "second", 1000, SLOT);
	trainer_publish(t, first);
	trainer_publish(t, second);
	trainer_gather(t, first, "t");
	TRY(t, zerod_release(first, &t->stuck, 1, TAGGED("t"), NULL));
	TRY(t, zerod_gather_begin(second, NULL, &ticket));
	trainer_ready(t);
	TRY(t, zerod_wait(t->client, ticket, NULL, NULL));
}

/* ---- Reducing ------------------------------------------------------------------------------------------ */

static void begin_backward(struct trainer *t)
{
	struct zerod_backward_options options = ZEROD_INIT(options);
	struct zerod_bucket_options bucket = ZEROD_INIT(bucket);

	trainer_open(t);
	t->second = trainer_register(t, "second", 1000, ZEROD_NO_SLOT);
	options.boundary = 1;
	TRY(t, zerod_backward_begin(t->group, &options));
	bucket.dtype = ZEROD_FLOAT32;
	bucket.slot_bytes = 4096;
	bucket.nslots = 1;
	TRY(t, zerod_bucket_create(t->group, &bucket, &t->bucket));
}

static void reserve(struct trainer *t, zerod_unit *unit, struct zerod_entry *entry)
{
	TRY(t, zerod_bucket_reserve(t->bucket, unit, NULL, SIZED(entry)));
	memset(entry->data, 0, 1000 * sizeof(float));
}

static void in_backward(struct trainer *t)
{
	begin_backward(t);
	trainer_ready(t);
}

static void reserved(struct trainer *t)
{
	struct zerod_entry entry = ZEROD_INIT(entry);

	begin_backward(t);
	reserve(t, t->unit, &entry);
	trainer_ready(t);
}

static void commit_stuck(struct trainer *t)
{
	struct zerod_entry entry = ZEROD_INIT(entry);

	begin_backward(t);
	trainer_make_stuck(t);
	reserve(t, t->unit, &entry);
	TRY(t, zerod_bucket_submit(t->bucket, entry.id, &t->stuck, 1, NULL, NULL));
}

static void committed(struct trainer *t)
{
	commit_stuck(t);
	trainer_ready(t);
}

static void ending_backward(struct trainer *t)
{
	commit_stuck(t);
	trainer_ready(t);
	TRY(t, zerod_backward_end(t->group, NULL, NULL));
}

static void waiting_for_a_bucket(struct trainer *t)
{
	struct zerod_entry entry = ZEROD_INIT(entry);

	commit_stuck(t);
	trainer_ready(t);
	reserve(t, t->second, &entry);
}

static void waiting_for_a_gradient(struct trainer *t)
{
	struct zerod_entry entry = ZEROD_INIT(entry);

	begin_backward(t);
	trainer_ready(t);
	if (t->rank > 0)
		return;
	reserve(t, t->unit, &entry);
	TRY(t, zerod_bucket_submit(t->bucket, entry.id, NULL, 0, NULL, NULL));
	TRY(t, zerod_backward_end(t->group, NULL, NULL));
}

static void reduce_all(struct trainer *t)
{
	struct zerod_entry entry = ZEROD_INIT(entry);

	begin_backward(t);
	reserve(t, t->unit, &entry);
	TRY(t, zerod_bucket_submit(t->bucket, entry.id, NULL, 0, NULL, NULL));
	TRY(t, zerod_backward_end(t->group, NULL, NULL));
}

static void beginning_the_step(struct trainer *t)
{
	reduce_all(t);
	trainer_ready(t);
	if (t->rank == 0)
		TRY(t, zerod_step_begin(t->group, NULL, OPTIONS_OF(zerod_step_info, .step = 0), NULL));
}

static void in_the_step(struct trainer *t)
{
	reduce_all(t);
	TRY(t, zerod_step_begin(t->group, NULL, OPTIONS_OF(zerod_step_info, .step = 0), NULL));
	trainer_ready(t);
}

static void ended_the_step_behind_a_stream(struct trainer *t)
{
	reduce_all(t);
	TRY(t, zerod_step_begin(t->group, NULL, OPTIONS_OF(zerod_step_info, .step = 0), NULL));
	trainer_make_stuck(t);
	TRY(t, zerod_step_end(t->group, &t->stuck, 1, NULL));
	trainer_ready(t);
}

/* ---- The table ----------------------------------------------------------------------------------------- */

struct life_state {
	trainer_fn *run;
	const char *waits; /* for what, in the listing; NULL: for nothing */
	bool holds;        /* memory, when it is killed; those in motion may or may not */
};

static const struct life_state states[] = {
        {connected, NULL, false},
        {allocated, NULL, true},
        {allocating, NULL, false},
        {freed_behind_a_stream, NULL, true},
        {joining, "1 rank to join", false},
        {joined, NULL, false},
        {left, NULL, false},
        {registering, NULL, false},
        {registered, NULL, true},
        {updating, NULL, true},
        {publishing, "the caller's own streams", true},
        {committing, "rank 1 to commit", true},
        {gathering, NULL, true},
        {holding, NULL, true},
        {persistent, NULL, true},
        {prefetched, NULL, true},
        {quarantined, NULL, true},
        {waiting_for_a_version, "to publish version 2 of unit 'u'", true},
        {waiting_with_a_release, "its own gather of unit 'u'", true},
        {waiting_for_room, "gather budget", true},
        {ahead_in_a_slot, NULL, true},
        {in_backward, NULL, true},
        {reserved, NULL, true},
        {committed, NULL, true},
        {ending_backward, "1 reduction, first unit 'u'", true},
        {waiting_for_a_bucket, "a slot of the bucket: unit 'u'", true},
        {waiting_for_a_gradient, "1 reduction, first unit 'u' (rank 1)", true},
        {beginning_the_step, "rank 1 to begin the step", true},
        {in_the_step, NULL, true},
        {ended_the_step_behind_a_stream, NULL, true},
};
#define STATES (sizeof(states) / sizeof(states[0]))

/* Two trainers in that state, as the ranks of one group. */
static void start_both(const struct life_state *at, struct trainer_process trainers[WORLD])
{
	for (uint32_t rank = 0; rank < WORLD; rank++)
		life_fork(at->run, rank, WORLD, &trainers[rank]);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		life_expect(&trainers[rank], "+ready");
	if (at->waits)
		life_expect_waits(at->waits);
	if (at->holds)
		assert_true(life_bytes() > 0);
	assert_false(life_is_empty());
}

LIFE_TEST(test_both_are_killed)
{
	for (size_t i = 0; i < STATES; i++) {
		struct trainer_process trainers[WORLD];
		int64_t killed_ms;

		start_both(&states[i], trainers);
		for (uint32_t rank = 0; rank < WORLD; rank++)
			life_kill(&trainers[rank]);
		killed_ms = life_now_ms();
		life_expect_gone(killed_ms);
		for (uint32_t rank = 0; rank < WORLD; rank++)
			life_reap(&trainers[rank]);
	}
}

/* Rows that name the rank, or its process. */
static bool is_something_left(uint32_t rank, pid_t pid)
{
	const Zd__ListReply *list = life_list(ZD__TABLE__BUFFERS);

	for (size_t i = 0; i < list->n_rows; i++)
		if (list->rows[i]->buffer->rank == rank)
			return true;
	list = life_list(ZD__TABLE__BUCKETS);
	for (size_t i = 0; i < list->n_rows; i++)
		if (list->rows[i]->bucket->rank == rank)
			return true;
	list = life_list(ZD__TABLE__SESSIONS);
	for (size_t i = 0; i < list->n_rows; i++)
		if (list->rows[i]->session->pid == (uint32_t)pid)
			return true;
	return false;
}

/* The other rank lives on; what the dead one had by itself goes all the same. */
LIFE_TEST(test_one_is_killed)
{
	for (size_t i = 0; i < STATES; i++) {
		struct trainer_process trainers[WORLD];
		int64_t killed_ms;
		bool left_some;

		start_both(&states[i], trainers);
		life_kill(&trainers[0]);
		killed_ms = life_now_ms();
		while ((left_some = is_something_left(0, trainers[0].pid)) &&
		       life_now_ms() - killed_ms < LIFE_GONE_MS)
			life_retry();
		if (left_some)
			print_error("state %zu: rank 0 was killed, and something of it is left\n", i);
		assert_false(left_some);
		life_kill(&trainers[1]);
		life_expect_gone(life_now_ms());
		for (uint32_t rank = 0; rank < WORLD; rank++)
			life_reap(&trainers[rank]);
	}
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

int main(void)
{
	return test_run(life_start, life_stop);
}
