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

struct zd_fence_list {
	uint32_t count; /* at most ZD_MAX_FENCES; the engine checks */
	const struct zd_fence *fences;
};

/* The targets of a rank: on its device, and for units on the host in the host memory of the device. */
enum zd_target_memory { ZD_TARGET_ON_DEVICE, ZD_TARGET_ON_HOST, ZD_NTARGETS };

/* Shards that zd_engine_find_ahead() found for a request. All zero: no shards. */
struct zd_found {
	struct zd_part *
	        *parts; /* owned, until the request becomes the owner. NULL: the shard was not found */
	uint32_t nparts;
	uint64_t serial; /* engine->parts_serial then */
};

/*
 * The arguments of a request are its message, by value. Lists and texts in it belong to the caller and are
 * valid during the call. begin() copies the ones that the request needs later.
 */
struct zd_args {
	enum zd_request_kind kind;
	struct zd_fence_list fences; /* the message's */
	/* GROUP_JOIN: the time for which the driver still accepts the message's unique ids. The driver has
	 * checked that a daemon created them, and has removed the stamp. */
	uint32_t ids_left_s;
	struct zd_found *found; /* UPDATE_BEGIN, PUBLISH; NULL: the request finds all of the units */
	union {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): the name of a member */
#define REQUEST(KIND, name) __typeof__(*((Zd__Request *)0)->name) name;
#include "core/requests.def"
	} u;
};

struct zd_call {
	uint64_t session;
	uint64_t request;     /* the client's id, not 0 */
	uint64_t deadline_ns; /* on zd_engine_tick()'s clock; 0: none */
};

/* A buffer in place. The client maps its three places side by side. A frame can be empty. The low frame
 * starts at its slices. */
struct zd_frames {
	struct zd_location low, own, high;
};

#define ZD_REPLY_PLACES 4

/* The content of a reply is its message, by value. Lists in it belong to the core, and last as long as the
 * call. */
struct zd_reply {
	uint64_t session, request;
	enum zd_request_kind kind;
	int status;        /* 0 or ZEROD_E_* */
	const char *error; /* "" when status is 0 */
	/* The message's Locations, by field number, including those of a nested message. Segment 0: none. */
	union {
		struct zd_location places[ZD_REPLY_PLACES];
		struct {
			struct zd_location place; /* shard, buffer, entry, lent place or allocation */
			struct zd_frames frames;
		};
		struct {
			struct zd_location target, scalars, host_target; /* STEP_BEGIN */
		};
	};
	struct zd_fence_list fences; /* of a gather, on the daemon page */
	struct zd_fence
	        fence; /* other replies: their memory is in use until it passes; value 0: not in use */
	const char *job, *group; /* UNIQUE_IDS: the job and group of the ids */
	union {
#define REQUEST(KIND, name)
/* NOLINTNEXTLINE(bugprone-macro-parentheses): the name of a member */
#define REQUEST_FILLED(KIND, name, fill) __typeof__(*((Zd__Reply *)0)->fill) fill;
#define REQUEST_SAME(KIND, name, fill)
#include "core/requests.def"
	} u;
};

static inline const struct zd_location *zd_reply_target(const struct zd_reply *reply,
                                                        enum zd_target_memory memory)
{
	return memory == ZD_TARGET_ON_HOST ? &reply->host_target : &reply->target;
}

#endif
