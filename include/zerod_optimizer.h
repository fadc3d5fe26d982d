/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zerod_optimizer.h - the update of shards by an optimizer, with float32 masters in two halves. See
 * docs/optimizer.md.
 *
 * The master of a bfloat16 unit consists of two halves. The upper half is the shard. The lower half has 16
 * more bits per element. Together they are exactly the float32, for every value except NaN: all NaNs become
 * the same one. The upper half is the master rounded to nearest, ties away from zero. The shard of a float32
 * unit is its master.
 */
#ifndef ZEROD_OPTIMIZER_H
#define ZEROD_OPTIMIZER_H

#include <zerod.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* The rule for an element: docs/optimizer.md has the formulas. */
enum zerod_rule {
	ZEROD_RULE_ADAMW = 1, /* decay separate from the gradient */
	ZEROD_RULE_ADAM = 2,  /* decay added to the gradient */
	ZEROD_RULE_SGD = 3,   /* decay added to the gradient; with momentum if beta1 is not 0 */
};

enum zerod_optimizer_flags {
	ZEROD_OPTIMIZER_MAXIMIZE = 1u << 0,
	ZEROD_OPTIMIZER_NESTEROV = 1u << 1, /* SGD */
};

/* A step of a parameter group. */
struct zerod_optimizer_step {
	size_t struct_size;
	uint32_t rule;  /* enum zerod_rule */
	uint32_t flags; /* enum zerod_optimizer_flags */
	uint64_t step;  /* 1 for the first step, which does not read `m` of SGD */
	double lr, weight_decay;
	double beta1, beta2, eps; /* beta1: SGD's momentum; the others: Adam's */
	double dampening;         /* SGD's */
	/* A float32 each, read when the update runs; on GPUs in memory that they can access. NULL: none. */
	const float *scale;    /* factor of the gradients: 1 / the loss's scale, a clipping coefficient */
	const float *overflow; /* if not 0, the update changes nothing */
};

#define ZEROD_MOST_TERMS 64u

/* The terms of the sum that is this rank's slice of a unit's gradient: one for each rank that has submitted,
 * in rank order. The sum of an element is ((0 + term[0] * prescale) + term[1] * prescale + ...) * postscale,
 * each operation rounded to float32. */
struct zerod_terms {
	size_t struct_size;
	uint64_t shard_numel;   /* elements of each term */
	uint64_t true_numel;    /* of these, elements without padding */
	enum zerod_dtype dtype; /* of the terms */
	uint32_t count;         /* 1 to ZEROD_MOST_TERMS */
	float prescale, postscale;
	const void *each[ZEROD_MOST_TERMS]; /* the first `count`, on this rank's device, to be read */
};

/* A range of this rank's shard of a unit under update, and the data of its elements. The arrays have one
 * element per element of the range. On GPUs they are in memory that the shard's GPU can access. */
struct zerod_optimizer_part {
	size_t struct_size;
	zerod_unit *unit;             /* bfloat16 or float32 */
	uint64_t offset_numel, numel; /* within the shard's true_numel elements */
	uint16_t *low;                /* the lower halves; NULL for float32 */
	float *m, *v;                 /* the optimizer's state; NULL if the rule does not use it */
	float *values;                /* update: the gradients; split and join: the masters */
	/* update, in place of `values`: the terms of the whole shard's gradients, float32 or bfloat16 */
	const struct zerod_terms *terms;
};

/* Updates the masters and the state of `count` parts (1..1024) by one step, after the work now in `stream`.
 * NULL: the calling thread updates them, for emulated devices and for units on the host. The result has the
 * same bits on GPUs and CPUs, except for NaN.
 * Errors, without any change: INVALID (a range beyond the shard, a missing or misaligned array, numbers out
 * of range, memory that the GPU or the CPU cannot access, a stream of another GPU), UNSUPPORTED (another
 * dtype, or why no kernel runs), STATE (the unit is not under update, or the stream accepts no work). After
 * DEVICE, parts can have been updated. */
ZEROD_MUST_USE int zerod_optimizer_update(const struct zerod_optimizer_part *parts, uint32_t count,
                                          const struct zerod_optimizer_step *step, zerod_stream *stream);

/* Writes the masters in `values` to the shards and the lower halves. Errors as above. */
ZEROD_MUST_USE int zerod_optimizer_split(const struct zerod_optimizer_part *parts, uint32_t count,
                                         zerod_stream *stream);

/* Reads the masters into `values`. The units need not be under update. Errors as above. */
ZEROD_MUST_USE int zerod_optimizer_join(const struct zerod_optimizer_part *parts, uint32_t count,
                                        zerod_stream *stream);

/* Removes the unit's place in this rank's target (0), or restores it as registered (1). Without a place, each
 * sum has its own memory. zerod_reduce_wait() lends this memory and zerod_target_return() frees it: an
 * optimizer in the backward does not need memory for all sums at once. All ranks call it for the same units,
 * at the times of zerod_unit_set_frozen(). Errors: STATE (a window is open), LIMIT, UNSUPPORTED (ALL_REDUCE,
 * a durable job, several daemons, an older daemon). */
ZEROD_MUST_USE int zerod_unit_set_target(zerod_unit *unit, int target);

/* Ends a loan of zerod_reduce_wait() or zerod_reduce_terms() after the work now in the streams that have
 * waited for it. If the sum has no place in the target, it is freed, and the window's next sum of the unit
 * starts from zero. Does nothing if nothing is lent. Errors: those of the group and its streams. */
ZEROD_MUST_USE int zerod_target_return(zerod_unit *unit);

/* Lends the terms of a sum that is not made, so that one kernel sums them and updates the shard. This rank
 * has submitted its gradient with ZEROD_REDUCE_TERMS, for a unit without a place in its target, with shards
 * on its device. That submission returns STATE while the rank has a sum of the unit from an earlier backward.
 * The call returns when all terms are there. `stream` reads them afterwards; NULL: the calling
 * thread. The unit's entry and the other ranks' terms remain until zerod_target_return(), which the rank
 * calls in the same backward even if it does not use them: zerod_backward_end() waits for it, and
 * bucket_reserve() for room in the bucket. The step's norm and overflow flag do not include these sums.
 * Errors: STATE (submitted without that flag, or returned), those of zerod_reduce_wait(), UNSUPPORTED (an
 * older daemon), LIMIT (more ranks than ZEROD_MOST_TERMS). */
ZEROD_MUST_USE int zerod_reduce_terms(zerod_unit *unit, const struct zerod_wait_options *options,
                                      zerod_stream *stream, struct zerod_terms *terms);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
