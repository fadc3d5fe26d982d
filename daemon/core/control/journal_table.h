/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal_table.h - the last record of each object in a journal, for the restore.
 *
 * The records of hundreds of thousands of parts do not fit the processor's caches. So the objects are sorted
 * arrays, made in a few passes over the journal: a hash table would miss the caches at each record.
 */
#ifndef ZD_CORE_CONTROL_JOURNAL_TABLE_H
#define ZD_CORE_CONTROL_JOURNAL_TABLE_H

#include "core/engine/journal.h"

struct zd_err;

/* An object that the journal has, and that is not gone. */
struct zd_journal_object {
	const struct zd_record *record, *first; /* the last one; the first one since the object was made */
	void *made; /* the restored object; NULL: not yet, or its parent does not exist any more */
};

/* Objects of one type, by id and index. */
struct zd_journal_objects {
	struct zd_journal_object *at;
	size_t count, found; /* found: by the last search, whose neighbour is often searched for next */
};

struct zd_journal_table {
	struct zd_journal_objects of[ZD_NRECORDS];
};

/* Checks the form of all records, and makes the table. The table points to `bytes`, which are aligned as a
 * record is. INVALID, with what is wrong. */
int zd_journal_table_init(struct zd_journal_table *table, const uint8_t *bytes, size_t nbytes,
                          struct zd_err *err) __attribute__((warn_unused_result));
void zd_journal_table_deinit(struct zd_journal_table *table);

/* NULL: there is none. Types that do not exist are allowed. */
struct zd_journal_object *zd_journal_table_find(struct zd_journal_table *table, uint32_t type, uint64_t id,
                                                uint32_t index);

/* Sets INVALID, with the record's name and what is wrong with it, and returns it. */
int zd_journal_bad(const struct zd_record *record, const char *what, struct zd_err *err);

#endif
