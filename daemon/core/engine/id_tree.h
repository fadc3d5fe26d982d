/* SPDX-License-Identifier: Apache-2.0 */
/*
 * id_tree.h - objects by ascending id, for listings that start after any id.
 *
 * A client chooses the id after which its page starts, and the object with that id can have been freed.
 * Neither the hash by id nor a list finds the first object of a page without visiting the objects before it.
 * The nodes are part of their objects, and the tree allocates nothing. A removal and a search visit O(log n)
 * nodes, an insertion of the greatest id O(1) on average, and any other insertion O(log n). A node's priority
 * is a hash of its id, and the engine assigns the ids. To build a chain of n nodes, a client has to create
 * about n * n objects and free all but n of them.
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
/* Returns the node with the smallest id that is greater than `id`, or NULL. */
struct zd_id_node *zd_id_tree_after(const struct zd_id_tree *tree, uint64_t id);
/* Returns the node with the next greater id, or NULL. */
struct zd_id_node *zd_id_tree_next(const struct zd_id_node *node);

#endif
