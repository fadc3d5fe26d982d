/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of control groups, read from files as the kernel has them. */
#include <stdio.h>
#include <sys/stat.h>

#include "executor/host/memory_limit.h"
#include "tests/support/test.h"

#define V1   "sys/fs/cgroup/memory"
#define V2   "sys/fs/cgroup"
#define NONE "9223372036854771712\n" /* version 1, where there is no limit */

static char root[64];

/* Writes a file below the root, and makes its folders. */
static void put(const char *name, const char *content)
{
	char path[256];
	FILE *file;

	(void)snprintf(path, sizeof(path), "%s/%s", root, name);
	for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		(void)mkdir(path, 0755);
		*slash = '/';
	}
	file = fopen(path, "w");
	assert_non_null(file);
	assert_true(fputs(content, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static int make_root(void **state)
{
	(void)state;
	(void)snprintf(root, sizeof(root), "/tmp/zerod-limit-XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
	char command[128];

	(void)state;
	(void)snprintf(command, sizeof(command), "rm -r %s", root);
	return system(command);
}

#define MAKE_ROOT_TEST(name) TEST_DEFINE(name, void, , name(), make_root, remove_root)

static void expect_allowed(uint64_t bytes, bool beside_used)
{
	struct zd_memory_limit limit;

	assert_false(zd_memory_limit_exceeded(root, bytes, beside_used, &limit));
}

static void expect_exceeded(uint64_t bytes, bool beside_used, uint64_t by, const char *file)
{
	struct zd_memory_limit limit;

	assert_true(zd_memory_limit_exceeded(root, bytes, beside_used, &limit));
	assert_int_equal(limit.bytes, by);
	assert_string_equal(limit.file + strlen(root) + 1, file);
}

MAKE_ROOT_TEST(test_version_2)
{
	put("proc/self/cgroup", "0::/system.slice/zerod.service\n");
	put(V2 "/system.slice/zerod.service/memory.high", "1000\n");
	put(V2 "/system.slice/zerod.service/memory.max", "2000\n");
	expect_allowed(1000, false);
	expect_exceeded(1001, false, 1000, V2 "/system.slice/zerod.service/memory.high");
	put(V2 "/system.slice/zerod.service/memory.high", "max\n");
	expect_allowed(2000, false);
	expect_exceeded(2001, false, 2000, V2 "/system.slice/zerod.service/memory.max");
}

MAKE_ROOT_TEST(test_what_is_used)
{
	put("proc/self/cgroup", "0::/a\n");
	put(V2 "/a/memory.max", "2000\n");
	put(V2 "/a/memory.current", "900\n");
	expect_allowed(2000, false);
	expect_allowed(1100, true);
	expect_exceeded(1101, true, 2000, V2 "/a/memory.max");
	put(V2 "/a/memory.stat", "anon 5\ninactive_anon 7\nactive_file 100\ninactive_file 200\n");
	expect_allowed(1400, true); /* the kernel frees its page cache */
	expect_exceeded(1401, true, 2000, V2 "/a/memory.max");
	put(V2 "/a/memory.current", "5000\n"); /* above the limit, which was lowered */
	expect_exceeded(1, true, 2000, V2 "/a/memory.max");
}

MAKE_ROOT_TEST(test_groups_above)
{
	put("proc/self/cgroup", "0::/a/b\n");
	put(V2 "/a/b/memory.max", "2000\n");
	put(V2 "/a/memory.max", "1000\n");
	put(V2 "/a/memory.current", "600\n");
	expect_exceeded(1500, false, 1000, V2 "/a/memory.max");
	expect_exceeded(500, true, 1000, V2 "/a/memory.max");
	expect_allowed(400, true);
}

/* A container's own group is the root of what is mounted, under whatever path the host has it. */
MAKE_ROOT_TEST(test_a_container)
{
	put("proc/self/cgroup", "0::/docker/abc\n");
	put(V2 "/memory.max", "1000\n");
	expect_exceeded(1001, false, 1000, V2 "/memory.max");
	put("proc/self/cgroup", "0::/\n");
	expect_exceeded(1001, false, 1000, V2 "//memory.max");
}

MAKE_ROOT_TEST(test_version_1)
{
	put("proc/self/cgroup", "9:name=systemd:/a\n4:cpu,memory:/a\n0::/\n");
	put(V1 "/a/memory.limit_in_bytes", "1000\n");
	put(V1 "/a/memory.usage_in_bytes", "900\n");
	put(V1 "/a/memory.stat", "active_file 1\ntotal_active_file 100\ntotal_inactive_file 200\n");
	put(V1 "/memory.limit_in_bytes", NONE);
	expect_allowed(400, true);
	expect_exceeded(401, true, 1000, V1 "/a/memory.limit_in_bytes");
	put(V1 "/a/memory.limit_in_bytes", NONE);
	expect_allowed(1ull << 50, true);
}

MAKE_ROOT_TEST(test_no_control_groups)
{
	expect_allowed(UINT64_MAX, true);
	put("proc/self/cgroup", "garbage\n0:\n::\n\n");
	expect_allowed(UINT64_MAX, true);
}
