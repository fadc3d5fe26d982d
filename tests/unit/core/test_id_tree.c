/* SPDX-License-Identifier: Apache-2.0 */
/* test_id_tree.c - objects by ascending id: order, begin behind any id, and height. */
#include "base/mem.h"
#include "core/engine/id_tree.h"
#include "tests/support/core_driver.h"

#define NODES       20000u
#define MOST_HEIGHT 60u /* 2.1 times that of a balanced tree is usual, four times is never seen */

struct scene {
	struct zd_id_tree tree;
	struct zd_id_node nodes[NODES + 1]; /* by id; 0 is not used */
	bool there[NODES + 1];
};

static struct scene *setup(void)
{
	struct scene *scene = zd_calloc(1, sizeof(*scene));
	for (uint64_t id = 1; id <= NODES; id++) {
		zd_id_tree_insert(&scene->tree, &scene->nodes[id], id);
		scene->there[id] = true;
	}
	return scene;
}

#define SCENE_TEST(name)                                                                                     \
	TEST_DEFINE(name, struct scene *scene, struct scene *scene = setup(), (name(scene), free(scene)),    \
	            NULL, NULL)

static void drop(struct scene *scene, uint64_t id)
{
	zd_id_tree_remove(&scene->tree, &scene->nodes[id]);
	memset(&scene->nodes[id], 0xA5, sizeof(scene->nodes[id])); /* as freed memory */
	scene->there[id] = false;
}

static unsigned depth(const struct zd_id_node *node)
{
	unsigned count = 0;
	for (; node; node = node->parent)
		count++;
	return count;
}

/* Every id, there or not, is one that a page may begin behind. */
static void check(const struct scene *scene)
{
	const struct zd_id_node *behind = NULL;
	for (uint64_t id = NODES + 1; id-- > 0;) {
		assert_ptr_equal(zd_id_tree_after(&scene->tree, id), behind);
		if (!scene->there[id])
			continue;
		assert_ptr_equal(zd_id_tree_next(&scene->nodes[id]), behind);
		assert_true(depth(&scene->nodes[id]) <= MOST_HEIGHT);
		behind = &scene->nodes[id];
	}
	assert_null(zd_id_tree_after(&scene->tree, UINT64_MAX));
}

SCENE_TEST(test_ascending)
{
	check(scene);
}

SCENE_TEST(test_strides)
{
	static const uint64_t strides[] = {2, 3, 8, 13, 55};
	for (size_t i = 0; i < ZD_ARRAY_LEN(strides); i++) {
		for (uint64_t id = 1; id <= NODES; id++) {
			if (scene->there[id] && id % strides[i] != 0)
				drop(scene, id);
		}
		check(scene);
	}
}

SCENE_TEST(test_first_and_last_leave)
{
	for (uint64_t id = 1; id <= NODES / 3; id++)
		drop(scene, id);
	check(scene);
	for (uint64_t id = NODES; id > 2 * NODES / 3; id--)
		drop(scene, id);
	check(scene);
	for (uint64_t id = NODES / 3 + 1; id <= 2 * NODES / 3; id++)
		drop(scene, id);
	assert_null(scene->tree.root);
	assert_null(scene->tree.last);
	check(scene);
}

/* Ids leave and greater ones come, as those of gathered buffers do. */
SCENE_TEST(test_random)
{
	uint64_t seed = 1;
	for (uint64_t id = 1; id <= NODES; id++)
		drop(scene, id);
	for (uint64_t id = 1; id <= NODES; id++) {
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		uint64_t other = 1 + (seed >> 33) % id;
		zd_id_tree_insert(&scene->tree, &scene->nodes[id], id);
		scene->there[id] = true;
		if (scene->there[other])
			drop(scene, other);
	}
	check(scene);
}

/* Ids of several users come in any order. */
SCENE_TEST(test_any_order)
{
	for (uint64_t id = 1; id <= NODES; id++)
		drop(scene, id);
	for (uint64_t i = 1; i <= NODES; i++) {
		uint64_t id = 1 + i * 7919 % NODES; /* a prime: each of them once */
		zd_id_tree_insert(&scene->tree, &scene->nodes[id], id);
		scene->there[id] = true;
		if (i % 5000 == 0)
			check(scene);
	}
	assert_ptr_equal(scene->tree.last, &scene->nodes[NODES]);
}
