/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.h - the tables that the core lists for administrators: a row for each object.
 */
#ifndef ZD_CORE_ROWS_H
#define ZD_CORE_ROWS_H

#include "core/args.h"

enum zd_table {
	ZD_TABLE_DEVICES,
	ZD_TABLE_JOBS,
	ZD_TABLE_SESSIONS,
	ZD_TABLE_GROUPS,
	ZD_TABLE_UNITS,
	ZD_TABLE_BUFFERS,
	ZD_TABLE_BUCKETS,
	ZD_TABLE_ALLOCATIONS,
	ZD_TABLE_SCOPES,
	ZD_TABLE_SEGMENTS,
	ZD_TABLE_BLOCKS, /* of one segment, by offset, free ones too; id: offset + 1 */
	ZD_NTABLES
};

/* Charged bytes. Quotas limit the sum of all but the peaks. */
struct zd_usage {
	uint64_t shard_bytes, gathered_bytes, bucket_bytes, staging_bytes, target_bytes, allocation_bytes;
	uint64_t peak_bytes, peak_gathered_bytes;
};

#define ZD_WAIT_TEXT 192

struct zd_holder_row {
	uint64_t session;
	const char *tag;
	uint32_t uses;
	uint64_t age_ns;
};

struct zd_member_row {
	uint32_t rank, device;
	uint64_t session; /* 0: none */
	uint32_t pid;
};

struct zd_row {
	enum zd_table table;
	uint64_t id;                            /* ascending within a table; the cursor */
	uint64_t owner;                         /* uid + 1; 0: a device */
	const char *job, *group, *name, *state; /* "" where they do not apply */
	union {
		struct {
			uint64_t arena_bytes, segment_bytes, block_bytes, quarantine_bytes,
			        gather_budget_bytes;
			struct zd_usage usage;
			uint64_t gathers, joined_gathers, fallback_gathers;
			uint64_t gathered_bytes;           /* of all transfers since the start */
			uint64_t copied_bytes, copying_ns; /* see struct zd_device */
			uint32_t index, waiting;
			bool host_memory, has_host; /* see struct zd_device_config */
			uint32_t host;
			const char *model, *pci_address; /* "": none */
			bool denied;                     /* the session that lists it may not use it */
		} device;
		struct {
			uint32_t uid, sessions, groups;
			bool durable;
			struct zd_usage usage;
			uint64_t uid_metadata_bytes; /* of all that the uid has */
		} job;
		struct {
			uint32_t uid, pid, outstanding, nwaits;
			uint64_t age_ns, idle_ns, requests;
			const char *const *waits;
		} session;
		struct {
			uint32_t world_size, units, nmembers; /* nmembers: in this daemon */
			uint64_t committed_step;
			uint64_t doubt_step; /* that other daemons may have committed; 0: none */
			bool torn, shadow;
			bool spans;                    /* ranks are in other daemons */
			bool nccl_collectives, hybrid; /* see group_join */
			/* of an ABORTED group that failed by itself; "" otherwise */
			const char *why;
			const struct zd_member_row *members;
		} group;
		struct {
			uint32_t dtype, slot, views, registered, gathered;
			uint64_t numel, padded_bytes, version_min, version_max;
			bool frozen, all_reduce, on_host, copied;
		} unit;
		struct {
			uint32_t rank, device, nholders;
			uint64_t true_bytes, padded_bytes, version, age_ns;
			bool persistent, prefetched, in_place;
			const struct zd_holder_row *holders;
			const char *waits_for;
		} buffer;
		struct {
			uint32_t rank, device, dtype, nslots, reserved, submitted, nwaits;
			uint64_t slot_bytes, held_bytes;
			const char *const *slots; /* nslots state names */
			const char *const *waits;
		} bucket;
		struct {
			uint64_t session, bytes, age_ns;
			uint32_t device;
			bool durable; /* session 0: no session has it */
		} allocation;
		struct {
			bool context;
			uint32_t rank, device, units;
			uint64_t session, parent, bytes, age_ns; /* bytes: padded, of its leased buffers */
		} scope;                                         /* name is its tag */
		/* Of other uids' segments and blocks the texts are "". */
		struct {
			uint32_t device, mappings; /* sessions that may have it mapped */
			uint64_t bytes, used_bytes;
			const char *purpose;
			const char *pins; /* what it waits for before it is released */
		} segment;
		struct {
			bool free;
			uint32_t rank;
			uint64_t offset, bytes;
			const char *purpose;
			const char *pins; /* what it waits for before it is free */
		} block;
	} u;
};

struct zd_list_query {
	enum zd_table table;
	uint64_t
	        /* the asking session, which sees its own uid's rows, an admin all rows; 0: the daemon, all
	         * rows */
	        session;
	uint64_t cursor;    /* rows with a greater id */
	const char *job;    /* NULL or "": all */
	uint64_t job_owner; /* beside `job`: only jobs of this uid + 1; 0: of all */
	uint32_t segment;   /* BLOCKS: its id */
	/* Ends the page after about so many objects, shown or not; what a row is made from counts, too. 0: no
	 * limit. */
	uint32_t most_visits;
};

#endif
