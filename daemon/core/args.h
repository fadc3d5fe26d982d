/* SPDX-License-Identifier: Apache-2.0 */
/*
 * args.h - requests as the core sees them: the kinds, their arguments and their replies.
 */
#ifndef ZD_CORE_ARGS_H
#define ZD_CORE_ARGS_H

#include "core/command.h"

struct zd_part;

enum zd_request_kind {
#define REQUEST(KIND, name) ZD_REQ_##KIND,
#include "core/requests.def"
	ZD_NREQUESTS
};

struct zd_view_args {
	const char *name;
	uint64_t offset_numel;
	uint32_t ndim;
	uint64_t shape[ZD_MAX_DIMS];
};

/* Where a unit is. A unit that was moved may be registered with either place: the rank then learns it. */
enum zd_placed { ZD_PLACED_AS_REGISTERED, ZD_PLACED_ON_DEVICE, ZD_PLACED_ON_HOST };

struct zd_resumed_unit {
	struct zd_location shard; /* segment 0: the unit is not registered */
	uint64_t version, target_offset_numel;
	enum zd_placed placed;
};

struct zd_fence_list {
	uint32_t count; /* at most ZD_MAX_FENCES; the engine checks */
	const struct zd_fence *fences;
};

/* The targets of a rank: on its device, and in the host memory beside the device, for units on the host. */
enum zd_target_memory { ZD_TARGET_ON_DEVICE, ZD_TARGET_ON_HOST, ZD_NTARGETS };

/* Shards that zd_engine_find_ahead() found for a request. All zero: none. */
struct zd_found {
	struct zd_part **parts; /* owned; the request takes them. NULL: the shard was not found */
	uint32_t nparts;
	uint64_t serial; /* engine->parts_serial then */
};

struct zd_args {
	enum zd_request_kind kind;
	union {
		struct {
			const char *job, *group;
			uint32_t world_size, rank, device;
			bool durable;
			bool shadow; /* durable groups only */
			/* The number of ranks in this daemon, which are consecutive from a multiple of it; 0:
			 * all. */
			uint32_t local_world_size;
			/* Every daemon has all shards: gathers are local, and only reductions span
			 * daemons. */
			bool hybrid;
			bool nccl_collectives; /* gathers and reductions use NCCL inside the daemon too */
			/* For groups that use communicators: the bytes of the reply to UNIQUE_IDS, the same
			 * on all ranks. The driver has checked that a daemon has made them. NULL: none */
			const unsigned char *ids;
			uint32_t ids_bytes;
			uint32_t ids_left_s; /* the driver accepts the ids for so long */
		} group_join;
		struct {
			uint32_t count;
			const char *job, *group; /* that the ids are for; repeated in the reply */
		} unique_ids;
		uint64_t request; /* CANCEL: the client's id of it */
		uint64_t group;   /* GROUP_LEAVE, GROUP_BARRIER, ABORT_GROUP */
		struct {
			uint64_t group;
			const char *name;
			uint32_t dtype;
			uint64_t numel;
			uint32_t nviews;
			const struct zd_view_args *views;
			uint32_t slot;
			bool persistent, frozen;
			bool all_reduce; /* every rank gets the whole reduced gradient */
			bool on_host;    /* the shards are in host memory */
			bool copied;     /* the unit is never gathered in place */
		} unit_register;
		struct {
			uint64_t group;
			uint32_t nunits;
			const uint64_t *units, *descriptions;
			const bool *persistent; /* NULL: none is */
		} units_resume;
		uint64_t unit; /* UNIT_UNREGISTER, REDUCE_SKIP */
		struct {
			uint32_t nunits;
			const uint64_t *units;
			struct zd_fence_list fences; /* PUBLISH only */
			bool force;                  /* PUBLISH only */
			/* UPDATE_BEGIN: the reply may carry a fence in place of waiting for readers */
			bool ahead, await_leases;
			struct zd_found *found; /* NULL: the request finds all of them */
		} publish;                      /* UPDATE_BEGIN, PUBLISH */
		struct {
			uint64_t group, step;
		} commit;
		struct {
			uint64_t unit;
			bool persistent;
		} set_persistent;
		struct {
			uint64_t unit;
			uint32_t slot;
		} set_slot;
		struct {
			uint64_t unit;
			bool frozen;
			uint32_t target; /* enum zd_target_change */
		} set_frozen;
		struct {
			uint64_t unit;
			uint64_t allocation;         /* has the unit's elements; 0: another rank has them */
			struct zd_fence_list fences; /* of the streams that write the allocation */
		} unit_load;
		struct {
			uint64_t unit;
			bool on_host;
		} unit_place;
		struct {
			uint64_t unit;
			const char *tag;  /* with a scope: NULL or "" */
			uint32_t uses;    /* 0: 1 */
			uint64_t version; /* 0: newest */
			bool prefetch;
			bool no_slot; /* a new buffer is placed outside the unit's slot */
			/* the forward scope, claim or context that gets the lease; 0: the tag */
			uint64_t scope;
		} gather;
		struct {
			uint64_t unit;
			const char *tag;
			struct zd_fence_list fences;
		} release;
		struct {
			uint64_t group, parent; /* parent 0: outermost */
			/* of streams that may use buffers of an abandoned forward */
			struct zd_fence_list fences;
		} forward_begin;
		struct {
			uint64_t scope;
			bool grad; /* FORWARD_END only */
			struct zd_fence_list fences;
		} scope_end; /* FORWARD_END, CLAIM_END, SCOPE_ABANDON, CONTEXT_END */
		struct {
			uint32_t nunits;
			const uint64_t *units;
		} context_begin;
		struct {
			uint64_t group;
			uint32_t stage;
			bool boundary;
			uint32_t target_dtype;
		} backward_begin;
		struct {
			uint64_t group;
			uint32_t op; /* enum zerod_agree_op */
			uint32_t count;
			const double *values;
		} group_agree;
		struct {
			uint64_t group;
			bool skip_rest; /* skips the units that other ranks reduce and this rank does not */
		} backward_end;
		struct {
			uint64_t group;
			struct zd_fence_list fences; /* of streams that may still write entries of the rank */
		} backward_abandon;
		struct {
			uint64_t group;
			uint32_t dtype;
			uint64_t slot_bytes;
			uint32_t nslots;
		} bucket_create;
		uint64_t bucket; /* BUCKET_DESTROY */
		struct {
			uint64_t bucket, unit;
			bool ahead;      /* the reply may carry a fence in place of waiting for the memory */
			bool zero_holes; /* also zeroes elements that no view covers */
		} bucket_reserve;
		struct {
			uint64_t bucket, entry;
			struct zd_fence_list fences;
			uint32_t op; /* enum zerod_reduce_op */
			float prescale;
			bool overwrite;
			uint32_t nabsent; /* views of the unit that contribute zeros, by index */
			const uint32_t *absent;
		} bucket_submit;
		struct {
			uint64_t unit;
			bool ahead; /* the reply may come before the target may be read */
		} reduce_wait;
		struct {
			uint32_t nunits; /* of one group */
			const uint64_t *units;
			struct zd_fence_list fences; /* of streams that may still access their targets */
		} target_return;
		struct {
			uint64_t group;
			bool ahead;   /* the reply may come before the target may be read */
			bool scalars; /* stores the result in memory for kernels */
		} step_begin;
		struct {
			uint64_t group;
			uint32_t nunits; /* whose norms are requested */
			const uint64_t *units;
		} step_get;
		struct {
			uint64_t group;
			struct zd_fence_list fences;
		} step_end;
		struct {
			const char *job, *name;
			uint32_t device;
			uint64_t bytes, alignment;
			bool durable;
			/* allocates for its elements, and ignores all other arguments; 0: none */
			uint64_t unit;
		} alloc;
		struct {
			uint64_t allocation;
			struct zd_fence_list fences;
		} free;
		uint64_t session; /* KILL_SESSION */
		uint64_t job;     /* END_JOB, KILL_JOB */
		struct {
			uint32_t device;
			uint64_t keep_bytes; /* that the device's segments may keep */
		} trim;
		struct {
			uint32_t count;
			const uint32_t *segments;
		} segments_unmapped; /* that segment_retire() named for the session */
	} u;
};

struct zd_call {
	uint64_t session;
	uint64_t request;     /* the client's id, not 0 */
	uint64_t deadline_ns; /* on zd_engine_tick()'s clock; 0: none */
};

struct zd_reply {
	uint64_t session, request;
	enum zd_request_kind kind;
	int status;        /* 0 or ZEROD_E_* */
	const char *error; /* "" when status is 0 */
	union {
		struct {
			uint32_t nsteps;
			const uint64_t *steps; /* groups whose target the session may read */
		} session_reset;
		struct {
			uint64_t group;
			bool torn;
			uint64_t committed_step;
		} group_join;
		struct {
			const unsigned char *bytes;
			uint32_t nbytes;
			const char *job, *group;
		} unique_ids;
		struct {
			uint64_t unit;
			struct zd_location shard;
			uint64_t shard_numel, true_numel, padded_numel, version, target_offset_numel;
			uint64_t description;
			enum zd_placed placed;
		} unit_register;
		struct {
			uint32_t nunits;
			const struct zd_resumed_unit *units;
		} units_resume;
		struct zd_fence update_begin; /* the shards may be written when it has passed; value 0: now */
		struct {
			uint64_t target_offset_numel;
			bool untargeted;
		} set_frozen;
		struct {
			struct zd_location shard;
			uint64_t target_offset_numel;
		} unit_place;
		struct {
			struct zd_location buffer; /* segment 0 for a prefetch */
			uint64_t version;
			/* the number of the transfer that fills the buffer: joined gathers have the same; not
			 * 0 */
			uint64_t transfer;
			uint32_t nfences;
			const struct zd_fence *fences; /* daemon page */
			/* instead of `buffer`: the client maps the three side by side. A frame may be empty.
			 * The low one begins where its slices do. */
			struct zd_frames {
				struct zd_location low, own, high;
			} frames;
		} gather;
		struct {
			bool lease_ended;
		} release;
		struct {
			uint64_t scope; /* that was begun, or that the request names */
			uint32_t nended;
			const uint64_t *ended; /* all scopes that the request has ended */
		} scope;                       /* FORWARD_BEGIN .. CONTEXT_END */
		struct {
			uint32_t count;
			const double *values;
		} group_agree;
		struct {
			uint64_t backward;
			bool first; /* of its window */
		} backward_begin;
		struct {
			uint64_t bucket;
		} bucket_create;
		struct {
			uint64_t entry;
			struct zd_location location;
			struct zd_fence fence; /* passes when the entry may be written; value 0: now */
		} bucket_reserve;
		struct {
			uint64_t step;
			bool overflow;
			double norm_squared;
			struct zd_location targets[ZD_NTARGETS]; /* segment 0: none */
			uint32_t target_dtype;
			bool abandoned; /* the window was abandoned, by `abandoned_rank` */
			uint32_t abandoned_rank;
			struct zd_location scalars; /* where the result is stored; segment 0: nowhere */
			/* passes when target and scalars may be read; value 0: now */
			struct zd_fence fence;
			uint32_t nnorms; /* STEP_GET: the number of units named */
			const double *norms_squared;
		} step_begin; /* also of STEP_GET, without target and fence */
		struct {
			struct zd_location target; /* the unit's place in it */
			uint32_t target_dtype;
			struct zd_fence fence; /* passes when it may be accessed; value 0: now */
		} reduce_wait;
		struct {
			uint64_t allocation;
			struct zd_location location;
		} alloc;
		struct {
			uint64_t freed_bytes; /* that retired segments have freed meanwhile */
		} trim;
	} u;
};

#endif
