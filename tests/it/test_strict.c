/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_strict.c - strict clients of emulated devices: a page of a gathered buffer can be touched exactly
 * while somebody holds it. Who holds a buffer as a whole is the contract's (tests/contract/test_strict.c).
 */
#include "tests/it/client_scene.h"

#include <zerod_host.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/options.h"

#define PAGE_BYTES 4096ul

static struct zd_daemon daemon_;

/* One rank of a group of its own. */
struct rank {
	zerod_client *client;
	zerod_group *group;
};

static void rank_open(struct rank *rank, int strict)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options join = ZEROD_INIT(join);

	options.socket_path = daemon_.socket_path;
	options.deadline_ms = 20000;
	options.strict = strict;
	assert_status(NULL, zerod_connect(&options, &rank->client), ZEROD_OK);
	join.job = "strict";
	join.world_size = 1;
	assert_status(rank->client, zerod_group_join(rank->client, &join, &rank->group), ZEROD_OK);
}

static zerod_unit *new_unit(struct rank *rank, const char *name, uint64_t bytes, uint32_t slot)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	zerod_unit *unit;

	options.name = name;
	options.dtype = ZEROD_UINT8;
	options.numel = bytes;
	options.slot = slot;
	assert_status(rank->client, zerod_unit_register(rank->group, &options, &unit), ZEROD_OK);
	assert_status(rank->client, zerod_update_begin(&unit, 1, NULL, NULL), ZEROD_OK);
	assert_status(rank->client, zerod_publish(&unit, 1, NULL, 0, NULL, NULL), ZEROD_OK);
	return unit;
}

static uint8_t *gather(struct rank *rank, zerod_unit *unit)
{
	void *data;

	assert_status(rank->client, zerod_gather(unit, NULL, NULL, &data), ZEROD_OK);
	return data;
}

static void release(struct rank *rank, zerod_unit *unit, const char *tag, zerod_stream *stream)
{
	assert_status(rank->client, zerod_release(unit, &stream, stream ? 1 : 0, TAGGED(tag), NULL),
	              ZEROD_OK);
}

/* The kernel says EFAULT where a load would raise SIGSEGV. */
static bool can_touch(const uint8_t *data)
{
	int ends[2];
	ssize_t wrote;
	bool could;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	wrote = write(ends[1], data, 1);
	could = wrote == 1;
	assert_true(could || errno == EFAULT);
	close(ends[0]);
	close(ends[1]);
	return could;
}

/* ---- The promise --------------------------------------------------------------------------------------- */

static int die_reading(const volatile uint8_t *view)
{
	const struct rlimit no_core = {0, 0};
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		(void)setrlimit(RLIMIT_CORE, &no_core);
		(void)signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would make it an exit */
		_exit(*view == 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

TEST(test_released_view_kills_its_reader)
{
	for (int strict = 0; strict < 2; strict++) {
		struct rank rank;
		zerod_unit *unit;
		uint8_t *view;

		rank_open(&rank, strict);
		unit = new_unit(&rank, "w", 1000, ZEROD_NO_SLOT);
		view = gather(&rank, unit);
		assert_int_equal(die_reading(view), 0);
		release(&rank, unit, NULL, NULL);
		if (strict)
			assert_true(WIFSIGNALED(die_reading(view)) && WTERMSIG(die_reading(view)) == SIGSEGV);
		else
			assert_int_equal(die_reading(view), 0);
		view = gather(&rank, unit); /* wherever it is now */
		assert_int_equal(die_reading(view), 0);
		zerod_close(rank.client);
	}
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

#define ROUNDS 50

struct waiting {
	struct rank *rank;
	zerod_ticket ticket;
	void *data;
	bool touched;
	int status;
};

static void *wait_and_touch(void *arg)
{
	struct waiting *waiting = arg;

	waiting->status = zerod_wait(waiting->rank->client, waiting->ticket, NULL, &waiting->data);
	waiting->touched = waiting->status == 0 && *(volatile uint8_t *)waiting->data == 0;
	return NULL;
}

TEST(test_one_ticket_waited_by_two_threads)
{
	struct rank rank;
	zerod_unit *unit;

	rank_open(&rank, 1);
	unit = new_unit(&rank, "w", 1000, 1);
	for (int round = 0; round < ROUNDS; round++) {
		struct waiting waiting[2] = {{.rank = &rank}, {.rank = &rank}};
		pthread_t threads[2];

		assert_status(rank.client, zerod_gather_begin(unit, NULL, &waiting[0].ticket), ZEROD_OK);
		waiting[1].ticket = waiting[0].ticket;
		for (int i = 0; i < 2; i++)
			assert_int_equal(pthread_create(&threads[i], NULL, wait_and_touch, &waiting[i]), 0);
		for (int i = 0; i < 2; i++) {
			pthread_join(threads[i], NULL);
			assert_int_equal(waiting[i].status, ZEROD_OK);
			assert_true(waiting[i].touched);
		}
		release(&rank, unit, NULL, NULL);
		assert_false(can_touch(waiting[0].data));
	}
	zerod_close(rank.client);
}

struct tagged {
	struct rank *rank;
	zerod_unit *unit;
	const char *tag;
	bool failed;
};

/* Each under its own tag, so that the copy is joined, or ends and begins anew, as it comes. */
static void *gather_touch_release(void *arg)
{
	struct tagged *tagged = arg;
	struct zerod_gather_options options = ZEROD_INIT(options);
	zerod_stream *stream = NULL;
	void *data;

	options.tag = tagged->tag;
	tagged->failed = zerod_host_stream_create(tagged->rank->client, &stream) != 0;
	for (int round = 0; round < ROUNDS && !tagged->failed; round++) {
		zerod_stream *const *named = round % 2 ? &stream : NULL;

		tagged->failed = zerod_gather(tagged->unit, &options, NULL, &data) != 0 ||
		                 *(volatile uint8_t *)data != 0 ||
		                 zerod_release(tagged->unit, named, named != NULL, TAGGED(tagged->tag),
		                               NULL) != 0;
	}
	zerod_stream_destroy(stream);
	return NULL;
}

TEST(test_threads_come_and_go)
{
	static const char *const tags[] = {"a", "b", "c"};
	struct tagged tagged[3];
	pthread_t threads[3];
	struct rank rank;
	zerod_unit *unit;

	rank_open(&rank, 1);
	unit = new_unit(&rank, "w", 2 * PAGE_BYTES, ZEROD_NO_SLOT);
	for (int i = 0; i < 3; i++) {
		tagged[i] = (struct tagged){.rank = &rank, .unit = unit, .tag = tags[i]};
		assert_int_equal(pthread_create(&threads[i], NULL, gather_touch_release, &tagged[i]), 0);
	}
	for (int i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		assert_false(tagged[i].failed);
	}
	zerod_close(rank.client);
}

/* ---- Pages that change hands --------------------------------------------------------------------------- */

#define NUNITS 12
#define MOVES  600

struct place {
	zerod_unit *unit;
	uint8_t *view; /* the last one; NULL: never gathered */
	uint64_t bytes;
	bool held;
};

static bool is_held(const struct place *places, const uint8_t *page)
{
	for (int i = 0; i < NUNITS; i++)
		if (places[i].held && page >= places[i].view && page < places[i].view + places[i].bytes)
			return true;
	return false;
}

/* Units of many sizes come and go: views of one lie inside another's buffer, and across its ends. */
TEST(test_any_unit_on_any_page)
{
	struct place places[NUNITS] = {{0}};
	uint64_t random = 42;
	struct rank rank;
	unsigned closed = 0;

	rank_open(&rank, 1);
	for (int i = 0; i < NUNITS; i++) {
		char name[8];

		(void)snprintf(name, sizeof(name), "w%d", i);
		places[i].bytes = (uint64_t)(1 + i % 5) * PAGE_BYTES;
		places[i].unit = new_unit(&rank, name, places[i].bytes - (uint64_t)i, ZEROD_NO_SLOT);
	}
	for (int move = 0; move < MOVES; move++) {
		struct place *place;

		random = random * 6364136223846793005u + 1442695040888963407u;
		place = &places[(random >> 33) % NUNITS];
		if (place->held)
			release(&rank, place->unit, NULL, NULL);
		else
			place->view = gather(&rank, place->unit);
		place->held = !place->held;
		for (int i = 0; i < NUNITS; i++)
			for (uint64_t at = 0; places[i].view && at < places[i].bytes; at += PAGE_BYTES) {
				bool held = is_held(places, places[i].view + at);

				assert_int_equal(can_touch(places[i].view + at), held);
				closed += !held;
			}
	}
	assert_true(closed > 0);
	zerod_close(rank.client);
}

/* ---- A daemon that does not do it ---------------------------------------------------------------------- */

static void plain_hello(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_hello(peer);
	fake_expect_end(peer);
}

TEST(test_daemon_without_strict)
{
	struct zerod_options options = ZEROD_INIT(options);
	zerod_client *client = NULL;
	struct fake_daemon fake;

	assert_int_equal(fake_start(&fake, plain_hello, NULL), 0);
	options.socket_path = fake.socket_path;
	options.strict = 1;
	assert_int_equal(zerod_connect(&options, &client), ZEROD_E_UNSUPPORTED);
	assert_non_null(strstr(zerod_last_error(NULL), "which strict needs"));
	assert_int_equal(fake_stop(&fake), 0);
}

/* ---- main ---------------------------------------------------------------------------------------------- */

static int setup(void **state)
{
	(void)state;
	return zd_daemon_start(NULL, &daemon_);
}

static int teardown(void **state)
{
	(void)state;
	return zd_daemon_stop(&daemon_);
}

int main(void)
{
	return test_run(setup, teardown);
}
