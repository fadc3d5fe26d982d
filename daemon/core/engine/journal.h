/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.h - the records from which another daemon restores durable jobs.
 *
 * The engine appends a record for each change of a durable job that must outlive the daemon. The driver
 * stores either all records of an event or none, before it sends the event's replies. The journal therefore
 * has everything that replies have reported. A record replaces the former one of the same type and object,
 * and GONE deletes one. A journal starts with the records of all existing objects, which are made in steps:
 * control/record.c. The restore is in control/restore.c.
 */
#ifndef ZD_CORE_ENGINE_JOURNAL_H
#define ZD_CORE_ENGINE_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

struct zd_engine;
struct zd_group;
struct zd_job;
struct zd_member;
struct zd_session;

struct zd_journal {
	bool on;
	uint8_t *bytes;
	size_t used, room;
	/* the next object that zd_engine_journal_step() records */
	uint32_t phase;
	uint64_t after_id;
};

/* These numbers and the structs below are the format: a change needs another ZD_JOURNAL_VERSION
 * (core/engine.h). */
enum zd_record_type {
	ZD_RECORD_DEVICE = 1,
	ZD_RECORD_JOB,
	ZD_RECORD_GROUP,
	ZD_RECORD_GROUP_STATE,
	ZD_RECORD_MEMBER,
	ZD_RECORD_COMMIT, /* all parts of the group are committed */
	ZD_RECORD_SEGMENT,
	ZD_RECORD_UNIT,
	ZD_RECORD_PART,
	ZD_RECORD_ALLOCATION,
	ZD_RECORD_GONE,
	ZD_RECORD_IDS,
	ZD_RECORD_HOLDS,
	ZD_RECORD_PART_STATE, /* of a part that has a record */
	ZD_NRECORDS
};

/* `id` and `index` name the object: of ids the uid and the kind, of a device its index, of a segment its
 * number, of a member the group and the local rank, of a part and its state the unit and the local rank, of
 * holds the session and a number. `bytes` counts the whole record, a multiple of 8. */
struct zd_record {
	uint16_t type;
	uint16_t gone; /* GONE: the type of the deleted object */
	uint32_t bytes;
	uint64_t id;
	uint32_t index, pad;
};

/* The uid's objects of this kind have no greater numbers. */
struct zd_record_ids {
	struct zd_record record;
	uint64_t prefix, mark;
};

struct zd_record_device {
	struct zd_record record;
	char name[64];
};

struct zd_record_job {
	struct zd_record record;
	uint32_t uid, had_group;
	uint64_t began_ns;
	char name[ZD_MAX_NAME_BYTES + 1];
};

struct zd_record_group {
	struct zd_record record;
	uint64_t job;
	uint32_t world_size, local_world_size, first_rank;
	uint8_t hybrid, shadow, nccl_collectives, pad;
	char name[ZD_MAX_NAME_BYTES + 1];
};

struct zd_record_group_state {
	struct zd_record record;
	uint64_t committed_step, voted_step;
	uint32_t torn, pad;
};

struct zd_record_commit {
	struct zd_record record;
	uint64_t step;
};

/* A session that holds a member or an allocation. `id` 0: none. `started`: see struct zd_peer. */
struct zd_record_session {
	uint64_t id, started;
	uint32_t uid, pid;
};

struct zd_record_member {
	struct zd_record record;
	struct zd_record_session session;
	uint32_t device, joined_before; /* joined_before: the rank's shards are on this device */
};

struct zd_record_segment {
	struct zd_record record;
	uint64_t job, bytes;
	uint32_t device, purpose;
};

struct zd_record_view {
	uint64_t offset_numel, shape[ZD_MAX_DIMS];
	uint32_t ndim, pad;
	char name[ZD_MAX_UNIT_NAME_BYTES + 1];
};

struct zd_record_unit {
	struct zd_record record;
	uint64_t group, numel, target_offset_numel;
	uint32_t dtype, slot, first_rank, nviews;
	uint8_t frozen, all_reduce, on_host;
	uint8_t targeted;              /* the unit has its place in the flat target */
	uint8_t first_on_host, placed; /* see struct zd_unit; the next three fields since version 6 */
	uint8_t copied : 1, unsaved : 1, in_place;
	char name[ZD_MAX_UNIT_NAME_BYTES + 1];
	struct zd_record_view views[];
};

struct zd_record_extent {
	uint32_t segment, pad;
	uint64_t offset, bytes;
};

struct zd_part_changes {
	uint64_t version;
	uint32_t uncommitted; /* versions published after the committed one */
	uint8_t written;      /* its rank can be writing the shard */
	uint8_t shadow;       /* enum zd_shadow_state */
	uint8_t pad[2];
};

struct zd_record_part {
	struct zd_record record;
	uint64_t group, first;
	struct zd_record_extent shard; /* with its shadow */
	struct zd_part_changes now;    /* until the part's first ZD_RECORD_PART_STATE */
};

/* Each update appends two of these for a part. They are small, because their cost is the memory that they
 * fill. */
struct zd_record_part_state {
	struct zd_record record;
	struct zd_part_changes now;
};

struct zd_record_allocation {
	struct zd_record record;
	uint64_t job;
	struct zd_record_session session;
	struct zd_record_extent extent;
	uint32_t device, pad;
	char name[ZD_MAX_NAME_BYTES + 1];
};

/* A part or an allocation. */
struct zd_record_hold {
	uint64_t id;
	uint32_t type, index; /* type 0: of no object that is recorded */
};

/* Objects that the process of a CLOSING session can still use. */
struct zd_record_holds {
	struct zd_record record;
	struct zd_record_session session;
	uint32_t nholds, pad;
	struct zd_record_hold holds[];
};

/* Appends a zeroed record of `bytes` bytes, rounded up to a multiple of 8; valid until the next call. */
void *zd_journal_add(struct zd_journal *journal, enum zd_record_type type, uint64_t id, uint32_t index,
                     size_t bytes);
void zd_journal_gone(struct zd_journal *journal, enum zd_record_type type, uint64_t id, uint32_t index);

/* Each records the object's state if its job has a journal. */
void zd_journal_device(struct zd_engine *e, uint32_t index);
void zd_journal_job(const struct zd_job *job);
void zd_journal_group_state(const struct zd_group *group);
void zd_journal_member(const struct zd_member *member);
void zd_journal_commit(const struct zd_group *group);

/* Returns the session's record; NULL: of none. */
struct zd_record_session zd_journal_session(const struct zd_session *session);

#endif
