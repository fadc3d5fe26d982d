/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_trim.c - empty memory goes back to the device: by zerod_trim() and zeroctl, and not before every
 * process has let go.
 *
 * Two ranks on one device, this process and a child, have gathered a unit and released it. Neither makes a
 * call meanwhile. The child is stopped until it is told to go on.
 */
#include <pthread.h>
#include <stdatomic.h>

#include <zerod.h>

#include "tests/it/zeroctl_scene.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/options.h"

#define UNIT_BYTES  (4u << 20)
#define DEADLINE_MS 30000

static struct zd_daemon daemon_;

#define assert_ok(client, call)                                                                              \
	do {                                                                                                 \
		int status_ = (call);                                                                        \
		if (status_)                                                                                 \
			print_error("%s: %s: %s\n", #call, zerod_status_name(status_),                       \
			            zerod_last_error(client));                                               \
		assert_int_equal(status_, 0);                                                                \
	} while (0)

/* ---- Ranks --------------------------------------------------------------------------------------------- */

struct rank {
	zerod_client *client;
	zerod_unit *unit;
};

/* The first failure, 0: none. */
static int use_once(const struct rank *rank, uint8_t *first_byte)
{
	void *data;
	int status = zerod_gather(rank->unit, NULL, NULL, &data);

	if (status)
		return status;
	*first_byte = *(uint8_t *)data;
	return zerod_release(rank->unit, NULL, 0, NULL, NULL);
}

static int join(struct rank *rank, uint32_t number)
{
	struct zerod_group_options group_options = ZEROD_INIT(group_options);
	struct zerod_unit_options unit_options = ZEROD_INIT(unit_options);
	zerod_group *group;
	uint8_t byte;
	struct zerod_shard shard = ZEROD_INIT(shard);
	int status;

	group_options.job = "trim";
	group_options.world_size = 2;
	group_options.rank = number;
	status = zerod_group_join(rank->client, &group_options, &group);
	unit_options.name = "w";
	unit_options.dtype = ZEROD_UINT8;
	unit_options.numel = UNIT_BYTES;
	if (!status)
		status = zerod_unit_register(group, &unit_options, &rank->unit);
	if (!status)
		status = zerod_update_begin(&rank->unit, 1, NULL, NULL);
	if (!status)
		status = zerod_shard_get(rank->unit, &shard);
	if (status)
		return status;
	*(uint8_t *)shard.data = (uint8_t)(7 + number);
	status = zerod_publish(&rank->unit, 1, NULL, 0, NULL, NULL);
	return status ? status : use_once(rank, &byte);
}

static zerod_client *connect_client(uint32_t deadline_ms)
{
	struct zerod_options options = ZEROD_INIT(options);
	zerod_client *client;

	options.socket_path = daemon_.socket_path;
	options.deadline_ms = deadline_ms;
	assert_ok(NULL, zerod_connect(&options, &client));
	return client;
}

/* ---- The other process --------------------------------------------------------------------------------- */

struct other {
	pid_t pid;
	int from; /* a byte there says that it has released the unit */
};

static _Noreturn void live(int to)
{
	struct rank rank = {.client = connect_client(DEADLINE_MS)};
	int status = join(&rank, 0);
	char byte = 0;

	if (!status && write(to, &byte, 1) == 1)
		for (;;)
			(void)pause();
	_exit(1);
}

static struct other start_other(void)
{
	struct other other;
	int back[2];

	assert_int_equal(pipe2(back, O_CLOEXEC), 0);
	other.pid = fork();
	assert_true(other.pid >= 0);
	if (other.pid == 0)
		live(back[1]);
	(void)close(back[1]);
	other.from = back[0];
	return other;
}

static void await_other(const struct other *other)
{
	struct pollfd ready = {.fd = other->from, .events = POLLIN};
	char byte;

	assert_int_equal(poll(&ready, 1, DEADLINE_MS), 1);
	assert_int_equal(read(other->from, &byte, 1), 1);
}

static void stop_other(const struct other *other)
{
	int status;

	assert_int_equal(kill(other->pid, SIGSTOP), 0);
	assert_int_equal(waitpid(other->pid, &status, WUNTRACED), other->pid);
	assert_true(WIFSTOPPED(status));
}

static void let_go_on(const struct other *other)
{
	assert_int_equal(kill(other->pid, SIGCONT), 0);
}

static void kill_other(const struct other *other)
{
	int status;

	assert_int_equal(kill(other->pid, SIGKILL), 0);
	assert_int_equal(waitpid(other->pid, &status, 0), other->pid);
	(void)close(other->from);
}

/* ---- The scene ----------------------------------------------------------------------------------------- */

struct scene {
	struct other other;
	struct rank me;
};

static int start(void **state)
{
	const struct zd_daemon_options options = {.devices = 1};

	(void)state;
	return zd_daemon_start(&options, &daemon_);
}

static int stop(void **state)
{
	(void)state;
	return zd_daemon_stop(&daemon_);
}

/* A value of the device. */
static json_int_t device_value(const char *key)
{
	json_t *object = zeroctl_listing(daemon_.socket_path, "devices", "devices");
	json_int_t value = integer(json_array_get(json_object_get(object, "rows"), 0), key);

	json_decref(object);
	return value;
}

static json_int_t segment_bytes(void)
{
	return device_value("segment_bytes");
}

/* Transfers may end in the daemon some time after their bytes are there: until then no trim can have them. */
static void await_no_quarantine(void)
{
	long until_ms = program_now_ms() + DEADLINE_MS;

	while (device_value("quarantine_bytes") > 0)
		assert_true(program_now_ms() < until_ms);
}

static struct scene scene_open(void)
{
	struct scene scene = {.other = start_other()};
	uint8_t byte;

	scene.me.client = connect_client(DEADLINE_MS);
	assert_ok(scene.me.client, join(&scene.me, 1));
	assert_ok(scene.me.client, use_once(&scene.me, &byte));
	assert_int_equal(byte, 7);
	await_other(&scene.other);
	await_no_quarantine();
	stop_other(&scene.other);
	return scene;
}

static void await_text(const char *text)
{
	long until_ms = program_now_ms() + DEADLINE_MS;
	bool seen = false;

	while (!seen) {
		struct program program = zeroctl_run(daemon_.socket_path, "sessions");

		seen = strstr(program.out_text, text) != NULL;
		program_free(&program);
		if (!seen && program_now_ms() >= until_ms)
			fail_msg("zeroctl sessions shows nothing of \"%s\"", text);
	}
}

static void await_wait(pid_t pid)
{
	char text[64];

	(void)snprintf(text, sizeof(text), "(pid %d) to unmap segment", (int)pid);
	await_text(text);
}

struct trimming {
	zerod_client *client;
	uint64_t freed_bytes;
	int status;
};

static void *trim_thread(void *arg)
{
	struct trimming *trimming = arg;

	trimming->status = zerod_trim(trimming->client, 0, 0, NULL, &trimming->freed_bytes);
	return NULL;
}

static pthread_t start_trim(struct trimming *trimming, zerod_client *client)
{
	pthread_t thread;

	*trimming = (struct trimming){.client = client, .status = 1};
	assert_int_equal(pthread_create(&thread, NULL, trim_thread, trimming), 0);
	return thread;
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

TEST(zeroctl_trims)
{
	struct scene scene = scene_open();
	const char *const args[] = {"zeroctl", "--socket", daemon_.socket_path, "trim", "--json", NULL};
	json_int_t before = segment_bytes();
	struct program program;

	program = zeroctl_run(daemon_.socket_path, "trim --keep 1G");
	assert_int_equal(program.status, 0);
	assert_non_null(strstr(program.out_text, "FREED"));
	program_free(&program);
	program_start(&program, args, NULL);
	await_wait(scene.other.pid);
	let_go_on(&scene.other);
	program_wait(&program);
	assert_int_equal(program.status, 0);
	json_t *object = json_loads(program.out_text, 0, NULL);
	assert_non_null(object);
	json_t *row = json_array_get(json_object_get(object, "rows"), 0);
	assert_int_equal(integer(row, "index"), 0);
	assert_int_equal(segment_bytes(), before - integer(row, "freed_bytes"));
	json_decref(object);
	program_free(&program);
	zerod_close(scene.me.client);
	kill_other(&scene.other);
}

#define THREADS 3
#define ROUNDS  60

struct user {
	struct rank *rank;
	char tag[16];
	int status;
	bool right;
	atomic_bool *stop;
};

static void *use_thread(void *arg)
{
	struct user *user = arg;
	struct zerod_gather_options options = ZEROD_INIT(options);
	void *data;

	options.tag = user->tag;
	user->right = true;
	while (!user->status && !atomic_load(user->stop)) {
		user->status = zerod_gather(user->rank->unit, &options, NULL, &data);
		if (user->status)
			break;
		user->right &= *(uint8_t *)data == 7 && ((uint8_t *)data)[UNIT_BYTES / 2] == 8;
		user->status = zerod_release(user->rank->unit, NULL, 0, TAGGED(user->tag), NULL);
	}
	return NULL;
}

/* The client answers for retired segments while one of its threads reads the socket, another sends and a
 * third is idle. */
TEST(threads_gather_while_another_trims)
{
	struct scene scene = scene_open();
	zerod_client *trimmer = connect_client(DEADLINE_MS);
	struct trimming first;
	pthread_t thread = start_trim(&first, trimmer), threads[THREADS];
	struct user users[THREADS];
	atomic_bool stop = false;

	await_text("to unmap segment"); /* what both have mapped goes first */
	let_go_on(&scene.other);
	for (unsigned i = 0; i < THREADS; i++) {
		users[i] = (struct user){.rank = &scene.me, .stop = &stop};
		(void)snprintf(users[i].tag, sizeof(users[i].tag), "thread%u", i);
		assert_int_equal(pthread_create(&threads[i], NULL, use_thread, &users[i]), 0);
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(first.status, 0);
	for (unsigned i = 0; i < ROUNDS; i++)
		assert_ok(trimmer, zerod_trim(trimmer, 0, 0, NULL, NULL));
	atomic_store(&stop, true);
	for (unsigned i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(users[i].status, 0);
		assert_true(users[i].right);
	}
	zerod_close(trimmer);
	zerod_close(scene.me.client);
	kill_other(&scene.other);
}

static void expect_refused(const char *line, int status, const char *text)
{
	struct program program = zeroctl_run(daemon_.socket_path, line);

	assert_int_equal(program.status, status);
	assert_non_null(strstr(program.err_text, text));
	program_free(&program);
}

TEST(zeroctl_checks_what_is_asked)
{
	expect_refused("trim --device 7", 3, "no device 7; there are 1");
	expect_refused("trim --device all", 2, "--device: expected a number below 64, found 'all'");
	expect_refused("trim --keep much", 2, "--keep: ");
	expect_refused("devices --keep 1", 2, "devices takes no --keep");
}

int main(void)
{
	return test_run(start, stop);
}
