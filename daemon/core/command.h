/* SPDX-License-Identifier: Apache-2.0 */
/*
 * command.h - the interface of core and executors: commands, the places that they name, their results, and
 * devices.
 */
#ifndef ZD_CORE_COMMAND_H
#define ZD_CORE_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <zerod.h>

#include "proto/limits.h"

/* ---- Places and fences --------------------------------------------------------------------------------- */

/* A range of a segment. segment 0: nowhere. */
struct zd_location {
	uint32_t segment;
	uint64_t offset;
	uint64_t bytes;
};

#define ZD_MAX_ROWS_STRIDE_BYTES (16u << 20) /* of one command; an executor copies whole rows at once */

/* Rows of a place, of `bytes` bytes each, `stride` apart. bytes 0: the whole place. */
struct zd_rows {
	uint64_t bytes, stride;
};

/* The bytes from the first row to the end of the last one, if all rows together have `bytes`. */
static inline uint64_t zd_rows_span(struct zd_rows rows, uint64_t bytes)
{
	return rows.bytes ? (bytes / rows.bytes - 1) * rows.stride + rows.bytes : bytes;
}

/* A value on a timeline, either of a session's client page (releases and submits, which the client writes) or
 * of its daemon page (gathers, which executors write). Each use says which page. */
struct zd_fence {
	uint32_t timeline; /* < ZD_TIMELINES */
	uint64_t value;    /* 1 .. INT64_MAX-1 */
};

/* Whether the counter has reached the value, in a signed and cyclic comparison. */
static inline bool zd_fence_reached(uint64_t counter, uint64_t value)
{
	return (int64_t)(counter - value) >= 0;
}

/* ---- Commands ------------------------------------------------------------------------------------------ */

enum zd_command_kind {
	ZD_CMD_SEGMENT_CREATE,  /* allocate, zeroed. Result: ok or an error status */
	ZD_CMD_SEGMENT_DESTROY, /* frees a segment that is not used any more */
	ZD_CMD_COPY,            /* src, or rows of it -> dst, which can be on another device; then signals */
	ZD_CMD_FILL,            /* fills dst with one pattern; then signals */
	ZD_CMD_WATCH,           /* completes when all fences (client page of `session`) have passed */
	ZD_CMD_REDUCE,          /* sum of ninputs slices in float32 in input order, into the target */
	ZD_CMD_SIGNAL,          /* store `signal`. op 0: no completion */
	/* For communicators with ranks in other daemons, or on devices without another path between them: */
	ZD_CMD_UNIQUE_IDS, /* creates `ids` ids. Result: their bytes, concatenated */
	ZD_CMD_COMM_OPEN,  /* completes when all ranks have connected */
	ZD_CMD_COMM_CLOSE, /* after its operations have ended, or with `abort`. op 0: no completion */
	ZD_CMD_EXCHANGE,   /* sends blocks between all ranks; then signals */
	ZD_CMD_AGREE,      /* exchanges a value of each rank. Result: all values, in the order of the ranks */
};

/*
 * A store into the daemon page of a session at the end of a command, after its bytes are visible. session 0:
 * no store. A command that fails stores ZD_FENCE_ABORTED instead. Other commands then do not change the
 * aborted timeline until a ZD_CMD_SIGNAL stores another value, and exchanges that were in progress at the
 * abort store nothing more. An exchange that is going to fail can store ZD_FENCE_ABORTED before it ends,
 * because its end can take long. Only commands of one device store into a timeline.
 */
struct zd_signal {
	uint64_t session;
	uint32_t timeline;
	uint64_t value;
};

enum zd_purpose {
	ZD_PURPOSE_SHARDS,
	ZD_PURPOSE_GATHERS,
	ZD_PURPOSE_STRICT, /* one gathered buffer or slot, which fills the segment: see strict_by_segment */
	ZD_PURPOSE_GRADIENTS,
	ZD_PURPOSE_ALLOCATIONS,
	ZD_PURPOSE_OWN_PARTS, /* one shard, which fills the segment: clients map it into gathered buffers */
	ZD_PURPOSE_FRAMES,    /* one frame, which fills the segment */
	ZD_PURPOSE_SAVES,
	ZD_PURPOSE_HOST_COPIES,
	ZD_NPURPOSES
};

/* Whether a segment of the purpose has one block. */
static inline bool zd_purpose_is_single(enum zd_purpose purpose)
{
	return purpose == ZD_PURPOSE_STRICT || purpose == ZD_PURPOSE_OWN_PARTS ||
	       purpose == ZD_PURPOSE_FRAMES;
}

struct zd_reduce_desc {
	uint64_t session; /* of the target's rank, whose process can compute the sum */
	/* on its daemon page: the inputs are complete when all have passed. 0: they are already complete */
	uint32_t nfences;
	const struct zd_fence *fences;
	uint64_t numel; /* of every input and of the output */
	enum zerod_dtype input_dtype;
	enum zerod_dtype target_dtype;
	uint32_t ninputs; /* 0: fills with zeros, only with overwrite */
	const struct zd_location *inputs;
	struct zd_location target;
	float prescale;  /* the factor of each input, in float32 */
	float postscale; /* the factor of the sum */
	bool overwrite;  /* otherwise the sum is added to the target */
};

#define ZD_AGREE_BYTES 128u /* at most, of one rank */
#define ZD_WHAT_TEXT   64u  /* compared bytes of a `what` */

/* The purpose of a communicator. Communicators of one purpose launch their operations on each device in the
 * order of the commands. Communicators of different purposes do not wait for each other: a gather that was
 * requested after a reduction must not wait for its gradients. */
enum zd_comm_role { ZD_COMM_GATHERS, ZD_COMM_REDUCTIONS, ZD_NCOMM_ROLES };

/* The world ranks of a communicator, for texts: rank i is `first` + i * (1 + `between`). All zero: the ranks
 * have the same numbers in the world. */
struct zd_comm_world {
	uint32_t first, between;
};

/* A rank of a communicator, on the command's device. */
struct zd_comm_desc {
	uint64_t comm;     /* the id in commands; never reused */
	const char *group; /* for texts */
	enum zd_comm_role role;
	uint32_t nranks, rank;
	struct zd_comm_world world;
	unsigned char id[ZD_UNIQUE_ID_BYTES]; /* the same on all ranks */
};

/*
 * Every rank sends a block to every other rank. Block i goes to rank i, from `send` + i * `send_stride`. The
 * block from rank i arrives at `receive` + i * `receive_stride`. A rank does not copy its block for itself,
 * with one exception: if all ranks receive the same block (send_stride 0) and the received blocks have no
 * gaps, the exchange is an all-gather, which also writes the rank's own block. All ranks submit the exchanges
 * and agreements of a communicator in one order, with equal bytes.
 */
struct zd_exchange_desc {
	uint64_t comm;
	uint64_t bytes; /* of a block */
	struct zd_location send, receive;
	uint64_t send_stride, receive_stride;
	const char *what; /* "gather of 'h.3', version 7": the same on all ranks */
};

/*
 * A copy, fill, exchange or reduction does not depend on commands that are pending at its submission. Only a
 * WATCH and a REDUCE with fences wait. A device can therefore run commands in any order or concurrently. The
 * exception are commands that signal the same timeline, which end and complete in the order of submission. A
 * backend need not wait for a REDUCE's fences: it can complete the command at once, with `not_begun`.
 */
struct zd_command {
	enum zd_command_kind kind;
	uint64_t op; /* 0: no completion */
	/* of the executor that runs it: the target's device for FILL and REDUCE, for a COPY see
	 * zd_copy_device() */
	uint32_t device;
	struct zd_signal signal;
	union {
		struct {
			uint32_t segment;
			uint64_t bytes;
			uint64_t job;
			enum zd_purpose purpose;
		} segment;
		struct {
			struct zd_location src;
			uint32_t dst_device;
			struct zd_location dst;
			struct zd_rows rows; /* of src; dst has them without gaps */
		} copy;
		struct {
			struct zd_location dst;
			/* 0, ZD_FILL_NAN, or any value for an aligned dst of 8 bytes. */
			uint64_t pattern;
		} fill;
		struct {
			uint64_t session;
			uint32_t nfences;
			const struct zd_fence *fences;
			/* completes when the process has left, regardless of fences: see sessions_linger */
			bool until_gone;
		} watch;
		struct zd_reduce_desc reduce;
		struct {
			uint32_t count, uid; /* the requesting uid */
		} ids;
		struct zd_comm_desc comm_open;
		struct {
			uint64_t comm;
			bool abort; /* ends the communicator's operations with ABORTED */
		} comm_close;
		struct zd_exchange_desc exchange;
		struct {
			uint64_t comm;
			uint32_t bytes; /* the same on all ranks */
			unsigned char value[ZD_AGREE_BYTES];
			const char *what; /* as for an exchange */
		} agree;
	} u;
};

#define ZD_FILL_NAN UINT64_MAX /* a NaN in every floating-point dtype */

/* Executes a FILL of the CPU's memory: writes the pattern to `bytes` bytes of dst, from `offset` on. */
static inline void zd_fill(uint8_t *dst, uint64_t offset, uint64_t bytes, uint64_t pattern)
{
	if (pattern == 0 || pattern == ZD_FILL_NAN)
		memset(dst + offset, (int)(pattern & 0xff), bytes);
	else
		memcpy(dst + offset, (const uint8_t *)&pattern + offset, bytes);
}

/* Executes a COPY by the CPU: copies `bytes` bytes to dst, from `offset` on. */
static inline void zd_copy(uint8_t *dst, const uint8_t *src, struct zd_rows rows, uint64_t offset,
                           uint64_t bytes)
{
	uint64_t end = offset + bytes, some;
	if (rows.bytes == 0)
		rows.bytes = end;
	for (; offset < end; offset += some) {
		uint64_t within = offset % rows.bytes;
		some = rows.bytes - within < end - offset ? rows.bytes - within : end - offset;
		memcpy(dst + offset, src + offset / rows.bytes * rows.stride + within, some);
	}
}

struct zd_op_result {
	/* REDUCE, for the target's content afterwards: */
	double sum_squares;
	bool overflow;  /* the target has an inf or nan */
	bool not_begun; /* a REDUCE with fences was not executed */
	/* UNIQUE_IDS and AGREE. The engine reads them during the call and does not free them */
	unsigned char *values;
	uint32_t values_bytes;
};

/* ---- Devices ------------------------------------------------------------------------------------------- */

/* A device as its backend describes it, within the limits of the configuration. */
struct zd_device_config {
	char name[64];
	char model[64];       /* of a GPU, "" otherwise */
	char pci_address[16]; /* "0000:1b:00.0"; "" if it has none, or the driver does not report it */
	uint64_t arena_bytes; /* limit of all segments together */
	uint64_t segment_align_bytes; /* segment sizes are multiples of it, a power of two; 0: 4 KiB */
	uint64_t gather_budget_bytes; /* limit of charged gathered bytes; 0: the arena */
	/* limit of reductions in progress; 0: an eighth of the arena. One reduction can always run */
	uint64_t staging_bytes;
	/* The device is memory of the host, on which no rank computes. It has only shards, targets and plain
	 * allocations. */
	bool host_memory;
	bool has_host; /* units of ranks on this device can be in host memory, on device `host` */
	uint32_t host;
	uint64_t unreached; /* bit i: this device has no access to the memory of device i */
};

#endif
