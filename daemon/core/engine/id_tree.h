/* SPDX-License-Identifier: Apache-2.0 */
/*
 * id_tree.h - objects by ascending id, so that a listing begins behind any id.
 *
 * A client chooses the id that its page begins behind, and the object with that id may have been freed. So
 * neither the hash by id nor a list finds the first object of a page without visiting those before it.
 *
 * The nodes are part of their objects: nothing is allocated. A removal and a search visit O(log n) nodes, an
 * insertion of the greatest id O(1) on average, and any other O(log n). A node's priority is a hash of its
 * id, and the ids are given out by the engine: a client that wants a chain of n nodes has to make about n * n
 * objects, and to free all but n of them.
 */
#ifndef ZD_CORE_ENGINE_ID_TREE_H
#define ZD_CORE_ENGINE_ID_TREE_H

#include <stdint.h>

struct zd_id_node {
	uint64_t id;
	struct zd_id_node *parent, *left, *right;
};

/* All zero: empty. */
struct zd_id_tree {
	struct zd_id_node *root, *last; /* last: of the greatest id */
};

/* `id` is not in the tree. */
void zd_id_tree_insert(struct zd_id_tree *tree, struct zd_id_node *node, uint64_t id);
void zd_id_tree_remove(struct zd_id_tree *tree, struct zd_id_node *node);
/* The node of the smallest id that is greater than `id`. NULL: none. */
struct zd_id_node *zd_id_tree_after(const struct zd_id_tree *tree, uint64_t id);
/* The node of the next greater id. NULL: none. */
struct zd_id_node *zd_id_tree_next(const struct zd_id_node *node);

#endif
