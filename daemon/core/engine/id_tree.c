/* SPDX-License-Identifier: Apache-2.0 */
/*
 * id_tree.c - objects by ascending id: a treap.
 *
 * Invariant: a node's id is greater than all ids to its left and smaller than all ids to its right. Its
 * priority is not below its children's. The shape therefore depends only on the ids, and not on the order of
 * insertions and removals.
 */
#include <stddef.h>

#include "base/err.h"
#include "core/engine/id_tree.h"

/* The finalizer of MurmurHash3. Successive ids, and ids that differ by a constant, have unordered
 * priorities. */
static uint64_t priority(const struct zd_id_node *node)
{
	uint64_t x = node->id;
	x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
	x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
	return x ^ (x >> 33);
}

static struct zd_id_node **link_of(struct zd_id_tree *tree, const struct zd_id_node *node)
{
	struct zd_id_node *parent = node->parent;
	if (!parent)
		return &tree->root;
	return parent->left == node ? &parent->left : &parent->right;
}

static void attach(struct zd_id_node **link, struct zd_id_node *parent, struct zd_id_node *node)
{
	*link = node;
	if (node)
		node->parent = parent;
}

/* Puts the branch's nodes of smaller ids to the left of the node, and the others to its right. */
static void split(struct zd_id_node *branch, struct zd_id_node *node)
{
	struct zd_id_node *left = node, *right = node; /* nodes whose links are open */
	struct zd_id_node **smaller = &node->left, **greater = &node->right;
	while (branch) {
		zd_assert(branch->id != node->id);
		if (branch->id < node->id) {
			attach(smaller, left, branch);
			left = branch;
			smaller = &left->right;
			branch = *smaller;
		} else {
			attach(greater, right, branch);
			right = branch;
			greater = &right->left;
			branch = *greater;
		}
	}
	*smaller = *greater = NULL;
}

static void insert(struct zd_id_tree *tree, struct zd_id_node *node)
{
	struct zd_id_node **link = &tree->root, *above = NULL, *below;
	while (*link && priority(*link) >= priority(node)) {
		above = *link;
		zd_assert(above->id != node->id);
		link = node->id < above->id ? &above->left : &above->right;
	}
	below = *link;
	attach(link, above, node);
	split(below, node);
}

void zd_id_tree_insert(struct zd_id_tree *tree, struct zd_id_node *node, uint64_t id)
{
	struct zd_id_node *above = tree->last, *below = NULL;
	node->id = id;
	if (above && id <= above->id) {
		insert(tree, node);
		return;
	}
	node->right = NULL;
	/* The tree's last nodes, from below. The new node is put above those of a lower priority. */
	while (above && priority(above) < priority(node)) {
		below = above;
		above = above->parent;
	}
	attach(&node->left, node, below);
	attach(above ? &above->right : &tree->root, above, node);
	node->parent = above;
	tree->last = node;
}

static struct zd_id_node *rightmost(struct zd_id_node *node)
{
	while (node->right)
		node = node->right;
	return node;
}

void zd_id_tree_remove(struct zd_id_tree *tree, struct zd_id_node *node)
{
	struct zd_id_node **link = link_of(tree, node), *parent = node->parent;
	struct zd_id_node *left = node->left, *right = node->right;
	if (tree->last == node)
		tree->last = left ? rightmost(left) : parent;
	while (left && right) { /* merges the branches into the node's place */
		if (priority(left) > priority(right)) {
			attach(link, parent, left);
			parent = left;
			link = &left->right;
			left = left->right;
		} else {
			attach(link, parent, right);
			parent = right;
			link = &right->left;
			right = right->left;
		}
	}
	attach(link, parent, left ? left : right);
}

struct zd_id_node *zd_id_tree_after(const struct zd_id_tree *tree, uint64_t id)
{
	struct zd_id_node *node = tree->root, *found = NULL;
	while (node) {
		if (node->id > id) {
			found = node;
			node = node->left;
		} else {
			node = node->right;
		}
	}
	return found;
}

struct zd_id_node *zd_id_tree_next(const struct zd_id_node *node)
{
	if (node->right) {
		node = node->right;
		while (node->left)
			node = node->left;
		return (struct zd_id_node *)node;
	}
	while (node->parent && node->parent->right == node)
		node = node->parent;
	return node->parent;
}
