/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contract.c - the daemon and the ranks of a test, its threads, and how a check fails in any of them.
 *
 * cmocka's failures leave the test by a long jump, which only the test's own thread may do. A check that
 * fails in another thread ends that thread and leaves its words, with which contract_finish() fails the test.
 */
#include "contract.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/queue.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "contract_internal.h"
#include "tests/support/daemon_fixture.h"

#define DEADLINE_MS 20000 /* sanitizers and a busy machine included */
#define RETRY_NS    500000L
#define JOB         "contract"

#define DEFAULT_ARENA "64M"

struct contract_task {
	pthread_t thread;
	struct contract_rank *rank;
	contract_fn *fn;
	void *arg;
	char failure[2 * CONTRACT_TEXT]; /* "": none */
	LIST_ENTRY(contract_task) link;
};

static struct {
	bool open;
	bool keeps; /* the daemons, for the next test */
	struct zd_daemon daemons[CONTRACT_DAEMONS];
	char arena[CONTRACT_NAME];
	struct contract contract;
	struct zerod_unique_id id; /* of the test's group, where it spans daemons */
	uint32_t flags;
	int strict, poison;
	int (*interrupted)(void *context);
	void *interrupted_context;
	LIST_HEAD(, contract_task) tasks;
} scene;

static _Thread_local struct contract_task *this_task; /* NULL: the test's own thread */

/* ---- Checks -------------------------------------------------------------------------------------------- */

static uint32_t deadline_ms(void)
{
	const char *given = getenv("ZEROD_TEST_DEADLINE_MS");

	return given ? (uint32_t)strtoul(given, NULL, 10) : DEADLINE_MS;
}

static uint64_t now_ms(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* A test that has failed: what its tasks use may be on its stack, so they end first. */
static void join_tasks(void)
{
	struct contract_task *task;

	contract_gates_open();
	while ((task = LIST_FIRST(&scene.tasks))) {
		LIST_REMOVE(task, link);
		(void)pthread_join(task->thread, NULL);
		free(task);
	}
}

__attribute__((format(printf, 1, 2))) static void give_up(const char *format, ...)
{
	char words[2 * CONTRACT_TEXT];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(words, sizeof(words), format, args);
	va_end(args);
	if (!this_task) {
		join_tasks();
		fail_msg("%s", words);
	}
	(void)snprintf(this_task->failure, sizeof(this_task->failure), "%s", words);
	pthread_exit(NULL);
}

void contract_expect(const zerod_client *client, int status, int expected, const char *text, const char *call,
                     int line)
{
	const char *said = zerod_last_error(client);

	if (status != expected)
		give_up("line %d: %.200s is %s, not %s: %.200s", line, call, zerod_status_name(status),
		        zerod_status_name(expected), status ? said : "");
	if (text && !strstr(said, text))
		give_up("line %d: %.200s says \"%.200s\", nothing of \"%s\"", line, call, said, text);
}

void contract_check(bool holds, const char *what, int line)
{
	if (!holds)
		give_up("line %d: not so: %.400s", line, what);
}

uint64_t contract_deadline_ms(void)
{
	return now_ms() + deadline_ms();
}

void contract_look_again(uint64_t until_ms, const char *what, int line)
{
	if (now_ms() >= until_ms)
		give_up("line %d: still not so: %.400s", line, what);
	(void)nanosleep(&(const struct timespec){.tv_nsec = RETRY_NS}, NULL);
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

static void *task_main(void *arg)
{
	this_task = arg;
	this_task->fn(this_task->rank, this_task->arg);
	return NULL;
}

struct contract_task *contract_start(struct contract_rank *rank, contract_fn *fn, void *arg)
{
	struct contract_task *task = zd_calloc(1, sizeof(*task));

	task->rank = rank;
	task->fn = fn;
	task->arg = arg;
	assert_int_equal(pthread_create(&task->thread, NULL, task_main, task), 0);
	LIST_INSERT_HEAD(&scene.tasks, task, link);
	return task;
}

void contract_finish(struct contract_task *task)
{
	uint32_t rank = task->rank->number;
	char words[2 * CONTRACT_TEXT];

	(void)pthread_join(task->thread, NULL);
	memcpy(words, task->failure, sizeof(words));
	LIST_REMOVE(task, link);
	free(task);
	if (words[0])
		give_up("rank %u, %s", rank, words);
}

void contract_run(struct contract *c, contract_fn *fn, void *arg)
{
	struct contract_task *tasks[CONTRACT_RANKS] = {NULL};

	for (uint32_t i = 0; i < c->world_size; i++)
		tasks[i] = contract_start(&c->ranks[i], fn, arg);
	for (uint32_t i = 0; i < CONTRACT_RANKS && tasks[i]; i++)
		contract_finish(tasks[i]);
}

struct contract *contract_current(void)
{
	return &scene.contract;
}

struct zd_daemon *contract_daemon(void)
{
	return &scene.daemons[0];
}

bool contract_in_task(void)
{
	return this_task != NULL;
}

/* ---- The daemon and its ranks -------------------------------------------------------------------------- */

static zerod_client *connect_client(uint32_t daemon, const char *name, int strict, bool first)
{
	struct zerod_options options = ZEROD_INIT(options);
	zerod_client *client = NULL;

	options.socket_path = scene.daemons[daemon].socket_path;
	options.name = name;
	options.strict = strict;
	if (first) {
		options.poison = scene.poison;
		options.interrupted = scene.interrupted;
		options.interrupted_context = scene.interrupted_context;
	}
	options.deadline_ms = deadline_ms();
	OK(NULL, zerod_connect(&options, &client));
	return client;
}

static zerod_client *connect_rank(const struct contract_rank *rank, const char *name)
{
	return connect_client(contract_daemon_of(rank), name, scene.strict, rank->number == 0);
}

static void join_group(struct contract_rank *rank, void *arg)
{
	struct zerod_group_options options = ZEROD_INIT(options);

	(void)arg;
	options.job = JOB;
	options.flags = scene.flags;
	contract_join_options(rank, &scene.id, &options);
	OK(rank->client, zerod_group_join(rank->client, &options, &rank->group));
}

/* Of a device on which so many of those that were wanted come together. */
static void fold_arena(const char *arena, uint32_t fold, char text[CONTRACT_NAME])
{
	char *unit;
	unsigned long count = strtoul(arena, &unit, 10);

	(void)snprintf(text, CONTRACT_NAME, "%lu%s", count * fold, unit);
}

/* The adversary: a daemon of its own, whose devices are the host backend's. */
static bool on_sim(void)
{
	const char *name = getenv("ZEROD_TEST_BACKEND");

	return name && strcmp(name, "sim") == 0;
}

/* ---- Keeping the daemon -------------------------------------------------------------------------------- */

/* The settings of the running daemon: a test that wants the same ones reuses it. */
static struct {
	bool running;
	char arena[CONTRACT_NAME];
	uint32_t devices;
} kept;

static int stop_daemons(void)
{
	int rc = 0;

	for (uint32_t i = 0; i < scene.contract.daemons; i++)
		rc |= zd_daemon_stop(&scene.daemons[i]);
	return rc;
}

static void stop_kept(void)
{
	if (!kept.running)
		return;
	kept.running = false;
	if (stop_daemons()) {
		(void)fflush(NULL);
		_exit(EXIT_FAILURE);
	}
}

static bool may_keep(const struct contract_options *options)
{
	const char *given = getenv("ZEROD_TEST_KEEP_DAEMON");

	return given && strcmp(given, "1") == 0 && !options->config && !options->fresh &&
	       !(options->flags & ZEROD_GROUP_DURABLE);
}

static bool is_kept(const struct contract_options *options)
{
	return kept.running && may_keep(options) && kept.devices == scene.contract.devices &&
	       strcmp(kept.arena, scene.arena) == 0;
}

/* At the test's end. */
static void keep(void)
{
	static bool registered;

	if (!registered)
		assert_int_equal(atexit(stop_kept), 0);
	registered = true;
	kept.running = true;
	kept.devices = scene.contract.devices;
	(void)snprintf(kept.arena, sizeof(kept.arena), "%s", scene.arena);
}

/* ---- Opening and closing ------------------------------------------------------------------------------- */

static void start_daemon(uint32_t number, const char *config)
{
	const struct contract *c = &scene.contract;
	const char *name = getenv("ZEROD_TEST_BACKEND");
	char gpus[CONTRACT_TEXT];
	const char *const args[] = {"--backend", name && !on_sim() ? name : "host", "--gpus", gpus, NULL};
	struct zd_daemon_options options = {.program = on_sim() ? "tests/zerod-sim" : NULL,
	                                    .devices = c->devices / c->daemons,
	                                    .arena = scene.arena,
	                                    .args = args};
	char lines[CONTRACT_CONFIG];

	contract_gpus_of(c, number, gpus);
	contract_config(config, lines);
	options.config = lines;
	assert_int_equal(zd_daemon_start(&options, &scene.daemons[number]), 0);
}

static void connect_ranks(struct contract *c)
{
	for (uint32_t i = 0; i < c->daemons; i++)
		c->observers[i] = connect_client(i, "observer", 0, 0);
	contract_count_from_here(c);
	for (uint32_t i = 0; i < c->world_size; i++) {
		struct contract_rank *rank = &c->ranks[i];

		rank->world = c;
		rank->number = i;
		rank->client = connect_rank(rank, "rank");
	}
	if (c->daemons > 1) {
		struct zerod_group_options group = ZEROD_INIT(group);

		group.job = JOB;
		contract_join_options(&c->ranks[0], NULL, &group);
		OK(c->ranks[0].client, zerod_group_unique_id(c->ranks[0].client, &group, NULL, &scene.id));
	}
}

struct contract *contract_open(const struct contract_options *given)
{
	static const struct contract_options defaults;
	const struct contract_options *options = given ? given : &defaults;
	uint32_t world_size = options->world_size ? options->world_size : 2;
	uint32_t wanted = options->devices ? options->devices : world_size;
	struct contract *c = &scene.contract;

	*c = (struct contract){.world_size = world_size};
	contract_place(c, wanted);
	fold_arena(options->arena ? options->arena : DEFAULT_ARENA, (wanted + c->devices - 1) / c->devices,
	           scene.arena);
	scene.flags = options->flags;
	scene.strict = options->strict;
	scene.poison = options->poison;
	scene.interrupted = options->interrupted;
	scene.interrupted_context = options->interrupted_context;
	scene.keeps = may_keep(options);
	if (!is_kept(options)) {
		stop_kept();
		for (uint32_t i = 0; i < c->daemons; i++)
			start_daemon(i, options->config);
	}
	kept.running = false;
	scene.open = true;
	connect_ranks(c);
	contract_run(c, join_group, NULL);
	return c;
}

void contract_leave(struct contract_rank *rank)
{
	contract_streams_end(rank);
	zerod_close(rank->client);
	rank->client = NULL;
	rank->group = NULL;
}

void contract_replace(struct contract_rank *rank)
{
	rank->client = connect_rank(rank, "replacement");
	join_group(rank, NULL);
}

static void close_observers(struct contract *c)
{
	for (uint32_t i = 0; i < c->daemons; i++) {
		zerod_close(c->observers[i]);
		c->observers[i] = NULL;
	}
}

/* Has all ended well. */
static bool leave_all(struct contract *c)
{
	contract_gates_open();
	for (uint32_t i = 0; i < c->world_size; i++)
		if (c->ranks[i].client)
			contract_leave(&c->ranks[i]);
	return contract_copies_free();
}

/* The end of a session is noticed by the daemon, not told to it. */
static bool holds_nothing(struct contract *c)
{
	struct contract_device all = contract_devices(c);

	return all.block_bytes + all.quarantine_bytes + all.segment_bytes == 0;
}

void contract_close(struct contract *c)
{
	assert_true(LIST_EMPTY(&scene.tasks));
	CHECK(leave_all(c));
	if (!(scene.flags & ZEROD_GROUP_DURABLE))
		AWAIT(holds_nothing(c));
	close_observers(c);
	scene.open = false;
	if (scene.keeps)
		keep();
	else
		assert_int_equal(stop_daemons(), 0);
}

int contract_teardown(void **state)
{
	struct contract *c = &scene.contract;

	(void)state;
	if (!scene.open)
		return 0;
	if (on_sim())
		print_error("to repeat: ZEROD_TEST_BACKEND=sim ZEROD_SIM_SEED=%s\n",
		            getenv("ZEROD_SIM_SEED") ? getenv("ZEROD_SIM_SEED") : "1");
	join_tasks();
	(void)leave_all(c);
	close_observers(c);
	scene.open = false;
	(void)stop_daemons();
	return 0;
}
