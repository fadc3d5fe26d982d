/* SPDX-License-Identifier: Apache-2.0 */
/* test_processors.c - how many processors a process may keep busy: quotas of control groups in a tree of
 * files. */
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/processors.h"
#include "tests/support/test.h"

/* Made in this order, removed in the other one. */
static const char *const directories[] = {
        "",        "/proc",          "/proc/self",          "/sys",
        "/sys/fs", "/sys/fs/cgroup", "/sys/fs/cgroup/pods", "/sys/fs/cgroup/pods/one"};
static const char *const files[] = {"/proc/self/cgroup", "/sys/fs/cgroup/cpu.max",
                                    "/sys/fs/cgroup/pods/cpu.max", "/sys/fs/cgroup/pods/one/cpu.max"};
#define NDIRECTORIES (sizeof(directories) / sizeof(directories[0]))
#define NFILES       (sizeof(files) / sizeof(files[0]))

struct tree {
	char root[32];
	unsigned all; /* without any quota */
};

static const char *in_tree(const struct tree *tree, const char *name, char path[PATH_MAX])
{
	snprintf(path, PATH_MAX, "%s%s", tree->root, name);
	return path;
}

static void put(const struct tree *tree, const char *name, const char *text)
{
	char path[PATH_MAX];
	FILE *file = fopen(in_tree(tree, name, path), "w");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

/* The process is in the group pods/one, and no group has a quota. */
static int setup(void **state)
{
	static struct tree tree;
	char path[PATH_MAX];

	tree = (struct tree){.root = "/tmp/zerod-test-XXXXXX"};
	assert_non_null(mkdtemp(tree.root));
	for (size_t i = 1; i < NDIRECTORIES; i++)
		assert_int_equal(mkdir(in_tree(&tree, directories[i], path), 0700), 0);
	tree.all = zd_processors(tree.root);
	assert_true(tree.all >= 1);
	put(&tree, files[0], "1:name=systemd:/elsewhere\n0::/pods/one\n");
	*state = &tree;
	return 0;
}

static int teardown(void **state)
{
	const struct tree *tree = *state;
	char path[PATH_MAX];

	for (size_t i = 0; i < NFILES; i++)
		(void)unlink(in_tree(tree, files[i], path));
	for (size_t i = NDIRECTORIES; i-- > 0;)
		assert_int_equal(rmdir(in_tree(tree, directories[i], path)), 0);
	return 0;
}

#define TREE_TEST(name) FIXTURE_TEST(name, const struct tree *tree, setup, teardown)

TREE_TEST(test_quotas)
{
	static const struct {
		const char *text;
		unsigned most; /* 0: no limit */
	} quotas[] = {
	        {"100000 100000\n", 1},
	        {"250000 100000\n", 2},
	        {"20000 100000\n", 1},
	        {"50000 50000", 1},
	        {"max 100000\n", 0},
	        {"99999999999 100000\n", 0},
	        {"", 0},
	        {"100000\n", 0},
	        {"many\n", 0},
	        {"100000 none\n", 0},
	        {"100000 0\n", 0},
	};

	for (size_t i = 0; i < sizeof(quotas) / sizeof(quotas[0]); i++) {
		unsigned most = quotas[i].most;

		put(tree, "/sys/fs/cgroup/pods/one/cpu.max", quotas[i].text);
		assert_int_equal(zd_processors(tree->root), most && most < tree->all ? most : tree->all);
	}
}

TREE_TEST(test_the_tightest_group_binds)
{
	for (size_t i = 1; i < NFILES; i++) {
		for (size_t j = 1; j < NFILES; j++)
			put(tree, files[j], i == j ? "100000 100000\n" : "max 100000\n");
		assert_int_equal(zd_processors(tree->root), 1);
	}
}

/* A container sees its own group as the top one, and the path from the host's. */
TREE_TEST(test_a_path_that_is_not_there)
{
	static const char *const lines[] = {"0::/\n", "0::/machine/of/the/host\n", "0::/../pods\n",
	                                    "0::/pods/one/inner\n"};

	put(tree, "/sys/fs/cgroup/cpu.max", "100000 100000\n");
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		put(tree, files[0], lines[i]);
		assert_int_equal(zd_processors(tree->root), 1);
	}
}

/* Only version 2 of control groups is looked at. */
TREE_TEST(test_no_group)
{
	static const char *const lines[] = {"", "4:cpu,cpuacct:/pods/one\n", "0:", "0::"};

	put(tree, "/sys/fs/cgroup/pods/one/cpu.max", "100000 100000\n");
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		put(tree, files[0], lines[i]);
		assert_int_equal(zd_processors(tree->root), tree->all);
	}
}
