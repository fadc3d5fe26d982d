/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - a character-level language model with hand-written backpropagation.
 *
 *   context bytes -> embedding -> hidden 1, 2, 3 (tanh) -> output -> times the same embedding -> next byte
 *
 * The parameters are five flat units, one a layer; the embedding is used at both ends (tied). Every function
 * takes the one unit that it needs as a pointer and no other, which is all that a sharded run has at a time.
 * Nothing here knows of ranks or of zerod.
 */
#ifndef CHARLM_MODEL_H
#define CHARLM_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "text.h"

enum charlm_unit {
	CHARLM_EMBEDDING, /* weight (vocabulary, embed) and the logits' bias (vocabulary) */
	CHARLM_HIDDEN1,   /* weight (inputs, outputs) and bias (outputs), as all that follow */
	CHARLM_HIDDEN2,
	CHARLM_HIDDEN3,
	CHARLM_OUTPUT,
	CHARLM_UNITS
};

/* A tensor of a unit: rows x columns elements, row-major; rows 0 is a vector of `columns`. */
struct charlm_tensor {
	const char *name;
	size_t offset_numel, rows, columns;
	float init; /* the initial values are uniform in [-init, init] */
};

struct charlm_layer {
	const char *name;
	size_t inputs, outputs;
	size_t numel;
	size_t offset_numel; /* where it lies when all units are stored one after the other */
	struct charlm_tensor weight, bias;
};

struct charlm_model {
	uint32_t vocabulary, context, embed;
	struct charlm_layer layers[CHARLM_UNITS];
	size_t numel; /* of all units */
};

void charlm_model_init(uint32_t vocabulary, struct charlm_model *model);

/* Computes the initial values of elements offset .. offset+numel-1 of a unit. Slices are independent. */
void charlm_model_initial(const struct charlm_model *model, enum charlm_unit unit, uint64_t seed,
                          size_t offset_numel, size_t numel, float *values);

/* Memory for one forward and backward over `rows` samples, beside parameters. Index 0 of the arrays is the
 * embedded context, 1 .. 4 are the layers' outputs. */
struct charlm_pass {
	const struct charlm_model *model;
	uint32_t rows;
	uint8_t *inputs;  /* rows x context */
	uint8_t *targets; /* rows */
	float *activations[CHARLM_UNITS];
	float *gradients[CHARLM_UNITS]; /* of the loss by the activations */
	float *logits;                  /* rows x vocabulary; after charlm_loss() their gradient */
	float *transposed;              /* scratch for one weight; only for activations and their gradients */
	void *storage;
};

/* Returns -1 without memory. */
__attribute__((warn_unused_result)) int charlm_pass_init(const struct charlm_model *model, uint32_t rows,
                                                         struct charlm_pass *pass);
void charlm_pass_deinit(struct charlm_pass *pass);

/* Fills the samples first_index .. first_index+rows-1 of the step. */
void charlm_pass_sample(struct charlm_pass *pass, const struct charlm_text *text, uint64_t seed,
                        uint64_t step, uint64_t first_index);

/* ---- Forward, in this order ---------------------------------------------------------------------------- */
void charlm_lookup_forward(struct charlm_pass *pass, const float *embedding);
void charlm_layer_forward(struct charlm_pass *pass, enum charlm_unit unit,
                          const float *params); /* HIDDEN1 .. OUTPUT */
void charlm_logits_forward(struct charlm_pass *pass, const float *embedding);
/* Returns the mean cross-entropy over the rows, in nats. The logits become their gradient. */
double charlm_loss(struct charlm_pass *pass);

/* ---- Backward, in this order ------------------------------------------------------------------------------
 * *_inputs need the parameters and produce the gradient of the layer below; *_params produce the parameters'
 * gradient and do not need the parameters. The two of one layer may run at the same time. */
void charlm_logits_backward_inputs(struct charlm_pass *pass, const float *embedding);
void charlm_logits_backward_params(struct charlm_pass *pass, float *gradient); /* overwrites */
void charlm_layer_backward_inputs(struct charlm_pass *pass, enum charlm_unit unit, const float *params);
void charlm_layer_backward_params(struct charlm_pass *pass, enum charlm_unit unit,
                                  float *gradient);                            /* overwrites */
void charlm_lookup_backward_params(struct charlm_pass *pass, float *gradient); /* adds to the logits' */

/* ---- The whole pass, with all parameters: every unit at its offset_numel ------------------------------- */
double charlm_whole_forward(struct charlm_pass *pass, const float *params);
/* Makes forward and backward: returns the loss, overwrites `gradient`. */
double charlm_whole_backward(struct charlm_pass *pass, const float *params, float *gradient);

/* ---- Optimizer --------------------------------------------------------------------------------------------
 * One step of Adam over any slice of parameters: `moments` are 2 x numel values that begin as zeros, `step`
 * counts from 1. */
void charlm_adam(float *params, const float *gradient, float *moments, size_t numel, uint64_t step,
                 float rate);

#endif
