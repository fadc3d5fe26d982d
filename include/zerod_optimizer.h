/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zerod_optimizer.h - the update of shards by an optimizer, with float32 masters in two halves. See
 * docs/optimizer.md.
 *
 * The master of a bfloat16 unit is its shard, the upper half, and 16 more bits an element, the lower half.
 * Together they are the float32 exactly, for every value but nan, of which one is kept. The upper half is the
 * master rounded to nearest, ties away from zero. The shard of a float32 unit is its master.
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
	ZEROD_RULE_ADAMW = 1, /* decay apart from the gradient */
	ZEROD_RULE_ADAM = 2,  /* decay added to the gradient */
	ZEROD_RULE_SGD = 3,   /* decay added to the gradient; with momentum where beta1 is not 0 */
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
	uint64_t step;  /* 1 for the first one, which does not read `m` of SGD */
	double lr, weight_decay;
	double beta1, beta2, eps; /* beta1: SGD's momentum; the others: Adam's */
	double dampening;         /* SGD's */
	/* A float32 each, read when the update runs; on GPUs in memory that the GPU reaches. NULL: none. */
	const float *scale; /* gradients are multiplied by it: 1 / the loss's scale, a clipping coefficient */
	const float *overflow; /* not 0: nothing is changed */
};

/* A range of this rank's shard of a unit under update, and what belongs to its elements. The arrays have one
 * element for each of the range's. On GPUs they are in memory that the shard's GPU reaches. */
struct zerod_optimizer_part {
	size_t struct_size;
	zerod_unit *unit;             /* bfloat16 or float32 */
	uint64_t offset_numel, numel; /* within the shard's true_numel elements */
	uint16_t *low;                /* the lower halves; NULL for float32 */
	float *m, *v;                 /* the optimizer's state; NULL where the rule has none */
	float *values;                /* of update: the gradients; of split and join: the masters */
};

/* Updates the masters and the state of `count` parts (1..1024) by one step, behind the work that is in
 * `stream` now. NULL: the calling thread does, for emulated devices and for units on the host. The result has
 * the same bits on GPUs and CPUs, but for nan.
 * Errors, and nothing is changed: INVALID (a range beyond the shard, a missing or misaligned array, numbers
 * out of range, memory that the GPU or the CPU cannot reach, a stream of another GPU), UNSUPPORTED (another
 * dtype, or why no kernel runs), STATE (the unit is not under update, or the stream takes no work). DEVICE:
 * parts may have been updated. */
ZEROD_MUST_USE int zerod_optimizer_update(const struct zerod_optimizer_part *parts, uint32_t count,
                                          const struct zerod_optimizer_step *step, zerod_stream *stream);

/* Writes the masters in `values` to the shards and the lower halves. Errors as above. */
ZEROD_MUST_USE int zerod_optimizer_split(const struct zerod_optimizer_part *parts, uint32_t count,
                                         zerod_stream *stream);

/* Reads the masters into `values`. The units need not be under update. Errors as above. */
ZEROD_MUST_USE int zerod_optimizer_join(const struct zerod_optimizer_part *parts, uint32_t count,
                                        zerod_stream *stream);

/* Takes the unit's place in this rank's target away (0), or gives it back (1, as registered). Without a place
 * each sum has memory of its own, which zerod_reduce_wait() lends and zerod_target_return() frees: an
 * optimizer in the backward needs no memory for all sums. Called like zerod_unit_set_frozen(), by all ranks
 * for the same units. Errors: STATE (a window is open), LIMIT, UNSUPPORTED (ALL_REDUCE, a durable job,
 * several daemons, an older daemon). */
ZEROD_MUST_USE int zerod_unit_set_target(zerod_unit *unit, int target);

/* Ends a loan of zerod_reduce_wait() behind the work that is now in the streams that have waited for it. A
 * sum without a place in the target is freed then, and the window's next one begins anew. Does nothing if
 * nothing is lent. Errors: those of the group and its streams. */
ZEROD_MUST_USE int zerod_target_return(zerod_unit *unit);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
