/* SPDX-License-Identifier: Apache-2.0 */
/*
 * args.h - requests as the core sees them: the kinds, their arguments and their replies.
 */
#ifndef ZD_CORE_ARGS_H
#define ZD_CORE_ARGS_H

#include "core/command.h"
#include "proto/zerod.pb-c.h"

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

/*
 * The arguments of a request are its message, by value. Lists and texts in it belong to the caller, and last as
 * long as its call: begin() copies what the request needs later.
 */
struct zd_args {
	enum zd_request_kind kind;
	struct zd_fence_list fences;      /* the message's */
	const struct zd_view_args *views; /* UNIT_REGISTER: the message's */
	/* GROUP_JOIN: the driver accepts the message's unique ids for so long. It has checked that a daemon
	 * has made them, and has removed the stamp. */
	uint32_t ids_left_s;
	struct zd_found *found; /* UPDATE_BEGIN, PUBLISH; NULL: the request finds all of the units */
	union {
#define REQUEST(KIND, name) __typeof__(*((Zd__Request *)0)->name) name;
#include "core/requests.def"
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
