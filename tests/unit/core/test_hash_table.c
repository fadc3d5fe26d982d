/* SPDX-License-Identifier: Apache-2.0 */
/* test_hash_table.c - objects by a hash: found in any size of the table, which moves few at a time. */
#include "base/mem.h"
#include "core/engine/hash_table.h"
#include "tests/support/core_driver.h"

#define NODES 5000u
#define TWINS 3u /* nodes that share a hash */

struct scene {
	struct zd_hash_table table;
	struct zd_hash_node nodes[NODES];
	bool there[NODES];
};

#define SCENE_TEST(name)                                                                                     \
	TEST_DEFINE(name, struct scene *scene, struct scene *scene = zd_calloc(1, sizeof(*scene)),           \
	            (name(scene), free(scene)), NULL, NULL)

static uint64_t hash_of(uint32_t i)
{
	return zd_hash_id(i / TWINS);
}

static void check_many(const struct scene *scene, uint64_t first)
{
	struct zd_hash_node *nodes[ZD_HASH_MOST];
	uint64_t ids[ZD_HASH_MOST];
	for (uint32_t i = 0; i < ZD_HASH_MOST; i++)
		ids[i] = first + i;
	zd_hash_first_of_ids(&scene->table, ids, ZD_HASH_MOST, nodes);
	for (uint32_t i = 0; i < ZD_HASH_MOST; i++)
		assert_ptr_equal(nodes[i], zd_hash_first(&scene->table, zd_hash_id(ids[i])));
}

static void check(const struct scene *scene)
{
	for (uint64_t id = 0; id < NODES / TWINS + ZD_HASH_MOST; id += ZD_HASH_MOST)
		check_many(scene, id);
	for (uint32_t i = 0; i < NODES; i += TWINS) {
		const struct zd_hash_node *node = zd_hash_first(&scene->table, hash_of(i));
		uint32_t nfound = 0, nwanted = 0;
		for (; node; node = zd_hash_next(node)) {
			uint32_t found = (uint32_t)(node - scene->nodes);
			assert_true(found / TWINS == i / TWINS && scene->there[found]);
			nfound++;
		}
		for (uint32_t twin = i; twin < i + TWINS && twin < NODES; twin++)
			nwanted += scene->there[twin];
		assert_int_equal(nfound, nwanted);
	}
}

static void add(struct scene *scene, uint32_t i)
{
	zd_hash_insert(&scene->table, &scene->nodes[i], hash_of(i));
	scene->there[i] = true;
}

static void drop(struct scene *scene, uint32_t i)
{
	zd_hash_remove(&scene->table, &scene->nodes[i]);
	memset(&scene->nodes[i], 0xA5, sizeof(scene->nodes[i])); /* as freed memory */
	scene->there[i] = false;
}

SCENE_TEST(nodes_are_found_in_every_size)
{
	check(scene);
	for (uint32_t i = 0; i < NODES; i++) {
		add(scene, i);
		if (i < 100 || i % 501 == 0)
			check(scene);
	}
	for (uint32_t i = 0; i < NODES; i += 2)
		drop(scene, i);
	check(scene);
	for (uint32_t i = 0; i < NODES; i += 4)
		add(scene, i);
	check(scene);
	for (uint32_t i = 0; i < NODES; i++) {
		if (scene->there[i])
			drop(scene, i);
	}
	check(scene);
	for (uint32_t chunk = 0; chunk < ZD_HASH_CHUNKS; chunk++)
		assert_null(scene->table.chunks[chunk]);
}

/* A whole table that doubles would add many. */
SCENE_TEST(an_insertion_adds_one_bucket)
{
	for (uint32_t i = 0; i < NODES; i++) {
		uint32_t before = scene->table.nbuckets;
		add(scene, i);
		assert_true(scene->table.nbuckets == before + 1);
	}
	for (uint32_t i = 0; i < NODES; i++)
		drop(scene, i);
}
