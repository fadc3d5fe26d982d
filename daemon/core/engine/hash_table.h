/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_table.h - objects by a hash of their key, in a table that grows one bucket at a time.
 *
 * A group can have 10^5 units. A table that doubles would move all of them in one request. This table grows
 * by linear hashing: an insertion adds at most one bucket, and moves the objects of one other bucket. Each
 * chunk of buckets is as large as all chunks before it, and growth never copies a chunk. The nodes are part
 * of their objects. The table compares only hashes. If keys can share a hash, the caller compares the keys.
 */
#ifndef ZD_CORE_ENGINE_HASH_TABLE_H
#define ZD_CORE_ENGINE_HASH_TABLE_H

#include <stdint.h>

#define ZD_HASH_CHUNKS        20u
#define ZD_HASH_FIRST_BUCKETS 8u /* of the first chunk, and of the second */

struct zd_hash_node {
	uint64_t hash;
	struct zd_hash_node *next; /* in the bucket */
};

/* All zero: empty. An empty table has no memory. */
struct zd_hash_table {
	uint32_t nnodes, nbuckets;
	struct zd_hash_node **chunks[ZD_HASH_CHUNKS];
};

void zd_hash_insert(struct zd_hash_table *table, struct zd_hash_node *node, uint64_t hash);
void zd_hash_remove(struct zd_hash_table *table, struct zd_hash_node *node);
/* Returns the first node with the hash, or NULL. */
struct zd_hash_node *zd_hash_first(const struct zd_hash_table *table, uint64_t hash);
/* Returns the next node with the same hash, or NULL. */
struct zd_hash_node *zd_hash_next(const struct zd_hash_node *node);

#define ZD_HASH_MOST 32u
/* Finds the first node of each of up to ZD_HASH_MOST ids. The cache misses overlap, which those of single
 * calls do not. */
void zd_hash_first_of_ids(const struct zd_hash_table *table, const uint64_t *ids, uint32_t count,
                          struct zd_hash_node **nodes);

/* Hashes an id. Different ids have different hashes. */
uint64_t zd_hash_id(uint64_t id);

#endif
