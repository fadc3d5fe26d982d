/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_table.c - linear hashing.
 *
 * Invariant: `mask` is the smallest 2^n - 1 that is not below nbuckets - 1. A node is in the bucket hash &
 * mask. If that bucket does not exist yet, the node is in hash & mask / 2: the bucket that is split when the
 * other is added.
 */
#include "core/engine/hash_table.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

#define MAX_BUCKETS (ZD_HASH_FIRST_BUCKETS << (ZD_HASH_CHUNKS - 1))

/* The MurmurHash3 finalizer, which is a bijection. */
uint64_t zd_hash_id(uint64_t id)
{
	id = (id ^ (id >> 33)) * 0xff51afd7ed558ccdull;
	id = (id ^ (id >> 33)) * 0xc4ceb9fe1a85ec53ull;
	return id ^ (id >> 33);
}

static uint32_t log2_floor(uint32_t n)
{
	return 31u - (uint32_t)__builtin_clz(n);
}

static uint32_t chunk_of(uint32_t bucket)
{
	return bucket < ZD_HASH_FIRST_BUCKETS ? 0 : log2_floor(bucket / ZD_HASH_FIRST_BUCKETS) + 1;
}

/* The number of the chunk's first bucket. Except for chunk 0, it is also the number of its buckets. */
static uint32_t first_of(uint32_t chunk)
{
	return chunk == 0 ? 0 : ZD_HASH_FIRST_BUCKETS << (chunk - 1);
}

static struct zd_hash_node **bucket_at(const struct zd_hash_table *table, uint32_t bucket)
{
	uint32_t chunk = chunk_of(bucket);
	return &table->chunks[chunk][bucket - first_of(chunk)];
}

static inline struct zd_hash_node **bucket_of(const struct zd_hash_table *table, uint64_t hash)
{
	uint32_t mask = table->nbuckets == 1 ? 0 : (2u << log2_floor(table->nbuckets - 1)) - 1;
	uint32_t bucket = (uint32_t)hash & mask;
	return bucket_at(table, bucket < table->nbuckets ? bucket : bucket & mask >> 1);
}

static void add_bucket(struct zd_hash_table *table)
{
	uint32_t added = table->nbuckets, chunk = chunk_of(added);
	if (added == first_of(chunk))
		table->chunks[chunk] = zd_calloc(chunk == 0 ? ZD_HASH_FIRST_BUCKETS : added,
		                                 sizeof(struct zd_hash_node *));
	table->nbuckets++;
	if (added == 0)
		return;
	uint32_t bit = 1u << log2_floor(added);
	struct zd_hash_node **from = bucket_at(table, added - bit), **to = bucket_at(table, added), *node;
	while ((node = *from)) {
		if (!(node->hash & bit)) {
			from = &node->next;
			continue;
		}
		*from = node->next;
		node->next = NULL;
		*to = node;
		to = &node->next;
	}
}

void zd_hash_insert(struct zd_hash_table *table, struct zd_hash_node *node, uint64_t hash)
{
	if (table->nnodes++ >= table->nbuckets && table->nbuckets < MAX_BUCKETS)
		add_bucket(table);
	struct zd_hash_node **bucket = bucket_of(table, hash);
	*node = (struct zd_hash_node){.hash = hash, .next = *bucket};
	*bucket = node;
}

void zd_hash_remove(struct zd_hash_table *table, struct zd_hash_node *node)
{
	struct zd_hash_node **link = bucket_of(table, node->hash);
	while (*link != node) {
		zd_assert(*link);
		link = &(*link)->next;
	}
	*link = node->next;
	if (--table->nnodes > 0)
		return;
	for (uint32_t chunk = 0; chunk < ZD_HASH_CHUNKS; chunk++)
		free(table->chunks[chunk]);
	*table = (struct zd_hash_table){0};
}

static struct zd_hash_node *first_with(struct zd_hash_node *node, uint64_t hash)
{
	while (node && node->hash != hash)
		node = node->next;
	return node;
}

struct zd_hash_node *zd_hash_first(const struct zd_hash_table *table, uint64_t hash)
{
	return table->nnodes == 0 ? NULL : first_with(*bucket_of(table, hash), hash);
}

void zd_hash_first_of_ids(const struct zd_hash_table *table, const uint64_t *ids, uint32_t count,
                          struct zd_hash_node **nodes)
{
	struct zd_hash_node **buckets[ZD_HASH_MOST], *empty = NULL;
	uint64_t hashes[ZD_HASH_MOST];
	zd_assert(count <= ZD_HASH_MOST);
	for (uint32_t i = 0; i < count; i++) {
		hashes[i] = zd_hash_id(ids[i]);
		buckets[i] = table->nnodes > 0 ? bucket_of(table, hashes[i]) : &empty;
		__builtin_prefetch(buckets[i]);
	}
	for (uint32_t i = 0; i < count; i++) {
		nodes[i] = *buckets[i];
		__builtin_prefetch(nodes[i]);
	}
	for (uint32_t i = 0; i < count; i++)
		nodes[i] = first_with(nodes[i], hashes[i]);
}

struct zd_hash_node *zd_hash_next(const struct zd_hash_node *node)
{
	return first_with(node->next, node->hash);
}
