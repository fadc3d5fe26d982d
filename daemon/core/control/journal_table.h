/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal_table.h - the last record of each object in a journal, for the restore.
 *
 * The records of hundreds of thousands of parts do not fit into the processor's caches. The objects are
 * therefore sorted arrays, built in a few passes over the journal. A hash table would miss the caches at each
 * record.
 */
#ifndef ZD_CORE_CONTROL_JOURNAL_TABLE_H
#define ZD_CORE_CONTROL_JOURNAL_TABLE_H

#include "core/engine/journal.h"

struct zd_err;

/* An object that exists according to the journal. */
struct zd_journal_object {
	const struct zd_record *record, *first; /* the last record; the first record after the object's
	                                           creation */
	void *made; /* the restored object; NULL: not restored yet, or its parent does not exist any more */
};

/* Objects of one type, by id and index. */
struct zd_journal_objects {
	struct zd_journal_object *at;
	size_t count, found; /* found: the result of the last search, whose neighbour is often the next */
};

struct zd_journal_table {
	struct zd_journal_objects of[ZD_NRECORDS];
};

/* Checks the form of all records, and builds the table. The table refers to `bytes`, which must be aligned as
 * a record. Errors: INVALID, with the reason. */
int zd_journal_table_init(struct zd_journal_table *table, const uint8_t *bytes, size_t nbytes,
                          struct zd_err *err) __attribute__((warn_unused_result));
void zd_journal_table_deinit(struct zd_journal_table *table);

/* Returns NULL if the object does not exist. Unknown types are allowed. */
struct zd_journal_object *zd_journal_table_find(struct zd_journal_table *table, uint32_t type, uint64_t id,
                                                uint32_t index);

/* Sets and returns INVALID, with the record's name and the reason. */
int zd_journal_bad(const struct zd_record *record, const char *what, struct zd_err *err);

#endif
