/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_fences.c - the host backend's watches, signals and fence pages, and who may write which. */
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/unit/executor/backend_fixture.h"
#include "tests/unit/executor/fence_cases.h"

/* ---- Watches ------------------------------------------------------------------------------------------- */

/* The fence passes while a long command runs; its watch must not wait for the command's end. Whether the
 * fence was written in time is a matter of luck, so this is tried until it was. */
BACKEND_TEST(test_lane_does_not_hold_up_a_watch, open_two)
{
	struct client c = open_session(f, SESSION);
	const uint64_t bytes = 32 * MIB;
	assert_int_equal(create(f, 0, 1, bytes).completion.status, 0);
	uint8_t *seen = map_segment(f, 1, bytes);
	bool overtaken = false;
	for (uint64_t attempt = 1; attempt <= 100 && !overtaken; attempt++) {
		struct zd_fence fence = {0, attempt};
		uint64_t watch_op = submit(f, watch(0, SESSION, 1, &fence));
		atomic_store((_Atomic uint8_t *)seen, 0xff);
		uint64_t long_op = submit(f, fill(0, at(1, 0, bytes)));
		while (atomic_load((_Atomic uint8_t *)seen) && times_completed(f, long_op) == 0)
			; /* it begins with the first byte */
		atomic_store(&c.client_page[0], attempt);
		overtaken = wait_op(f, watch_op).order < wait_op(f, long_op).order;
	}
	assert_true(overtaken);
	munmap(seen, bytes);
	forget_session(&c);
}

/* ---- Fence pages --------------------------------------------------------------------------------------- */

BACKEND_TEST(test_client_cannot_write_the_daemon_page, open_two)
{
	struct client c = open_session(f, SESSION);
	uint64_t value = 1;
	void *mapped = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, c.daemon_fd, 0);
	assert_ptr_equal(mapped, MAP_FAILED);
	assert_int_equal(errno, EPERM);
	assert_int_equal(mprotect(c.daemon_page, PAGE_BYTES, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(pwrite(c.daemon_fd, &value, sizeof(value), 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(fallocate(c.daemon_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE_BYTES),
	                 -1);
	/* The daemon still can. */
	struct zd_command signal = {.kind = ZD_CMD_SIGNAL, .signal = {SESSION, 2, 77}};
	wait_op(f, submit(f, signal));
	assert_int_equal(atomic_load(&c.daemon_page[2]), 77);
	forget_session(&c);
}

/* The client may keep its mapping. Without a goodbye it may also read its counters. */
BACKEND_TEST(test_pages_are_freed_behind_a_goodbye, open_two)
{
	struct stat found;
	for (int goodbye = 0; goodbye < 2; goodbye++) {
		struct client c = open_session(f, SESSION);
		ops->session_close(f->backend, SESSION, goodbye);
		assert_int_equal(fstat(c.client_fd, &found), 0);
		assert_int_equal(found.st_blocks == 0, goodbye);
		forget_session(&c);
	}
}
