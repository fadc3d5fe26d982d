/* SPDX-License-Identifier: Apache-2.0 */
/* test_notify.c - a service manager that does not read holds nothing up, and misses no state. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "main/notify.h"
#include "server/loop.h"
#include "tests/support/test.h"

struct scene {
	struct zd_loop loop;
	struct zd_notify notify;
	int manager;
};

static int setup(void **state)
{
	struct scene *scene = calloc(1, sizeof(*scene));
	struct sockaddr_un address = {
	        .sun_family = AF_UNIX}; /* named by the kernel, in the abstract namespace */
	socklen_t bytes = sizeof(address);
	char name[sizeof(address.sun_path) + 1] = "";

	scene->manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(scene->manager, (struct sockaddr *)&address, sizeof(address.sun_family)), 0);
	assert_int_equal(getsockname(scene->manager, (struct sockaddr *)&address, &bytes), 0);
	memcpy(name, address.sun_path, bytes - offsetof(struct sockaddr_un, sun_path));
	name[0] = '@';
	assert_int_equal(setenv("NOTIFY_SOCKET", name, 1), 0);
	assert_int_equal(zd_loop_init(&scene->loop, NULL), 0);
	zd_notify_open(&scene->notify, &scene->loop);
	*state = scene;
	return 0;
}

static int teardown(void **state)
{
	struct scene *scene = *state;

	zd_notify_close(&scene->notify);
	zd_loop_deinit(&scene->loop);
	(void)close(scene->manager);
	free(scene);
	return unsetenv("NOTIFY_SOCKET");
}

#define SCENE_TEST(name) FIXTURE_TEST(name, struct scene *scene, setup, teardown)

static bool read_note(const struct scene *scene, char note[ZD_NOTIFY_BYTES + 1])
{
	ssize_t bytes = recv(scene->manager, note, ZD_NOTIFY_BYTES, MSG_DONTWAIT);

	note[bytes > 0 ? bytes : 0] = '\0';
	return bytes > 0;
}

SCENE_TEST(test_states)
{
	char note[ZD_NOTIFY_BYTES + 1];

	zd_notify_state(&scene->notify, "READY=1\nSTATUS=%s %d", "devices", 4);
	zd_notify_alive(&scene->notify);
	assert_true(read_note(scene, note));
	assert_string_equal(note, "READY=1\nSTATUS=devices 4\n");
	assert_true(read_note(scene, note));
	assert_string_equal(note, "WATCHDOG=1\n");
	assert_false(read_note(scene, note));
}

/* The watchdog's variables are for the process that they name. */
TEST(test_watchdog)
{
	char pid[16];

	(void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
	assert_int_equal(zd_notify_watchdog_us(), 0);
	(void)setenv("WATCHDOG_USEC", "3000000", 1);
	assert_int_equal(zd_notify_watchdog_us(), 3000000);
	(void)setenv("WATCHDOG_PID", pid, 1);
	assert_int_equal(zd_notify_watchdog_us(), 3000000);
	(void)setenv("WATCHDOG_PID", "1", 1);
	assert_int_equal(zd_notify_watchdog_us(), 0);
	(void)unsetenv("WATCHDOG_USEC");
	(void)unsetenv("WATCHDOG_PID");
}

SCENE_TEST(test_manager_does_not_read)
{
	char note[ZD_NOTIFY_BYTES + 1], all[4 * ZD_NOTIFY_BYTES] = "";

	/* More than any queue holds. */
	for (int i = 0; i < 5000; i++)
		zd_notify_alive(&scene->notify);
	zd_notify_state(&scene->notify, "RELOADING=1");
	zd_notify_state(&scene->notify, "READY=1");
	assert_true(scene->notify.box.count > 0);
	while (read_note(scene, note))
		assert_string_equal(note, "WATCHDOG=1\n");
	while (scene->notify.box.count > 0)
		(void)uv_run(&scene->loop.uv, UV_RUN_ONCE);
	while (read_note(scene, note))
		strcat(all, note);
	assert_string_equal(all, "RELOADING=1\nREADY=1\n");
}

/* However many states there are, what waits is bounded. */
SCENE_TEST(test_manager_is_stuck)
{
	for (int i = 0; i < 5000; i++)
		zd_notify_state(&scene->notify, "STATUS=state number %d", i);
	assert_true(scene->notify.box.count > 0);
	assert_true(scene->notify.box.count <= 64);
}

/* Descriptors wait in order, as far as they are not removed meanwhile. */
SCENE_TEST(test_descriptors_wait)
{
	char note[ZD_NOTIFY_BYTES + 1], name[32], wanted[64];
	unsigned count = 0;

	for (unsigned i = 0; i < 200; i++) {
		(void)snprintf(name, sizeof(name), "segment-%u", i);
		assert_int_equal(zd_notify_store(&scene->notify, name, STDIN_FILENO), 0);
	}
	assert_true(scene->notify.box.count > 0);
	zd_notify_remove(&scene->notify, "segment-199");
	while (count < 199) {
		(void)uv_run(&scene->loop.uv, UV_RUN_NOWAIT);
		if (!read_note(scene, note))
			continue;
		(void)snprintf(wanted, sizeof(wanted), "FDSTORE=1\nFDNAME=segment-%u\nFDPOLL=0", count++);
		assert_string_equal(note, wanted);
	}
	assert_int_equal(scene->notify.box.count, 0);
	assert_false(read_note(scene, note));
}

/* Descriptors that waited are lost: the daemon must know. */
SCENE_TEST(test_manager_goes_with_descriptors_that_wait)
{
	while (scene->notify.box.count == 0)
		assert_int_equal(zd_notify_store(&scene->notify, "segment-1", STDIN_FILENO), 0);
	(void)close(scene->manager);
	scene->manager = -1;
	while (scene->notify.box.count > 0)
		(void)uv_run(&scene->loop.uv, UV_RUN_ONCE);
	assert_int_equal(scene->notify.error, ECONNREFUSED);
}

SCENE_TEST(test_manager_is_gone)
{
	(void)close(scene->manager);
	zd_notify_state(&scene->notify, "READY=1");
	zd_notify_alive(&scene->notify);
	assert_int_equal(scene->notify.box.count, 0);
	scene->manager = -1;
}

TEST(test_nobody_asked)
{
	static const char *const names[] = {"", "@", "relative", "/"};
	struct zd_loop loop;

	assert_int_equal(zd_loop_init(&loop, NULL), 0);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct zd_notify notify;

		assert_int_equal(setenv("NOTIFY_SOCKET", names[i], 1), 0);
		zd_notify_open(&notify, &loop);
		assert_int_equal(notify.sock, -1);
		zd_notify_state(&notify, "READY=1");
		zd_notify_alive(&notify);
		assert_int_equal(notify.box.count, 0);
		zd_notify_close(&notify);
		(void)uv_run(&loop.uv, UV_RUN_NOWAIT);
	}
	zd_loop_deinit(&loop);
	assert_int_equal(unsetenv("NOTIFY_SOCKET"), 0);
}

int main(void)
{
	(void)alarm(60);
	return test_run(NULL, NULL);
}
