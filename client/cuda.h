/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.h - what the rest of the library needs of GPUs, without a word of the driver's.
 *
 * The driver is loaded when a client first joins a GPU, allocates on one, or wraps a stream. For each GPU
 * that it uses the client then holds its primary context, which is also the one of PyTorch and of the runtime
 * API; both fence pages are registered with the driver, a thread watches the connection (cuda_watch.c), and
 * another makes sums that the daemon asks for (work.c); a strict client has a third one (cuda_strict.c).
 * Calls that concern a client on emulated devices, or one that has opened no GPU, do nothing.
 */
#ifndef ZD_CLIENT_CUDA_H
#define ZD_CLIENT_CUDA_H

#include "client/internal.h"

struct zc_conversion;
struct zc_fence_args;

/* ---- cuda_device.c ------------------------------------------------------------------------------------- */

/*
 * To be called before something on the daemon's device is asked for, without a lock. NOT_FOUND when this
 * process does not see that GPU (the text lists those that it sees) or there is no driver; UNSUPPORTED,
 * DEVICE.
 */
int zc_cuda_join(struct zerod_client *client, uint32_t device, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The end: nothing of ours is left in any GPU's stream, segments are unmapped, contexts given back. Without a
 * lock; no handle of a stream is left. False: a GPU may still use the daemon's memory. */
bool zc_cuda_close(struct zerod_client *client) __attribute__((warn_unused_result));
/* In a forked child: frees the memory and touches no GPU. */
void zc_cuda_forget(struct zerod_client *client);

/* ---- cuda_segment.c ------------------------------------------------------------------------------------ */

/* With the lock: imports and maps the segment, readable and writable by its own GPU. PROTOCOL when its
 * descriptor is no memory of a GPU, or it is of a device that was not joined. */
int zc_cuda_segment_map(struct zerod_client *client, struct zc_segment *segment, struct zd_err *err)
        __attribute__((warn_unused_result));

/* With the lock and the pages': nothing uses the segment's memory any more. */
void zc_cuda_segment_unmap(struct zerod_client *client, struct zc_segment *segment);
/* With the pages' lock: gives its GPU the access to a mapped segment, or takes it away. The bytes stay. */
int zc_cuda_segment_protect(struct zerod_client *client, const struct zc_segment *segment, bool open,
                            struct zd_err *err) __attribute__((warn_unused_result));

/* ---- cuda_copy.c --------------------------------------------------------------------------------------- */

/* Within one GPU. */
struct zc_copy {
	struct zc_segment *segment; /* of `to` */
	void *to;
	const void *from;
	uint64_t bytes;                         /* at `to` */
	const struct zc_conversion *conversion; /* instead; NULL: the bytes stay what they are */
	struct zc_fence copied;                 /* on the client's page; set once it is enqueued */
};

/* With the lock: 0, or UNSUPPORTED with the reason why the GPU of a mapped segment converts nothing. */
int zc_cuda_converts(const struct zc_segment *segment, struct zd_err *err)
        __attribute__((warn_unused_result));
/* With the lock: enqueues copies on streams of the library's, and one fence behind those of each GPU. After
 * an error none of them counts. */
int zc_cuda_copy(struct zerod_client *client, struct zc_copy *copies, unsigned count, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Without a lock: blocks the calling thread until the copies, or every copy, have ended. Copies of the
 * caller's streams may take as long as what is before them there: DEADLINE. */
int zc_cuda_copies_wait(struct zerod_client *client, const struct zc_fences *copied, uint64_t deadline_ns,
                        struct zd_err *err) __attribute__((warn_unused_result));
int zc_cuda_copies_finish(struct zerod_client *client, uint64_t deadline_ns, struct zd_err *err)
        __attribute__((warn_unused_result));
/* With or without the lock: adds a fence for each GPU on which copies have not ended. */
int zc_cuda_copies_fence(struct zerod_client *client, struct zc_fence_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- cuda_work.c --------------------------------------------------------------------------------------- */

/* A sum that the daemon asks for, of and into places of one GPU: as message Sum of proto/zerod.proto has
 * it. */
struct zc_sum {
	enum zerod_dtype input_dtype, target_dtype;
	uint64_t numel;
	float prescale, postscale;
	bool overwrite;
	uint32_t slot;    /* of the result page */
	uint32_t nfences; /* on the daemon's page: the inputs are there when all have passed */
	struct zc_fence fences[ZD_MAX_WORLD];
	struct zc_location target;
	uint32_t ninputs;
	struct zc_location inputs[ZD_MAX_WORLD];
};

/*
 * Without a lock, on the worker's thread: begins it. *fence, on the client's page, passes when the sum and
 * its result are there. On failure nothing of it runs; *launched: it has, and the target may have been
 * written.
 */
int zc_cuda_sum(struct zerod_client *client, const struct zc_sum *sum, struct zc_fence *fence, bool *launched,
                struct zd_err *err) __attribute__((warn_unused_result));

/* On the worker's thread: are there sums that have not ended? */
bool zc_cuda_sums_open(const struct zerod_client *client);
/* Without a lock, on the worker's thread: DEVICE when one never will, because its GPU's context is lost. */
int zc_cuda_sums_check(struct zerod_client *client, struct zd_err *err) __attribute__((warn_unused_result));

/* ---- cuda_waits.c -------------------------------------------------------------------------------------- */

/* With the lock: has an abort freed a wait of a stream whose handle has gone? And: that is settled. */
bool zc_cuda_left_aborted(struct zerod_client *client);
void zc_cuda_left_reset(struct zerod_client *client);

#endif
