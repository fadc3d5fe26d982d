/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.c - the model's shape, its forward and its backward.
 *
 * Each function reads and writes only what its name says, so that a caller may hold one layer's parameters at
 * a time and run a layer's two backward halves on two streams.
 */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#define CONTEXT 12
#define EMBED   16

static const size_t hidden_widths[] = {192, 160,
                                       224}; /* uneven, so that no layer's shard is like another's */

static struct charlm_layer dense_layer(const char *name, size_t inputs, size_t outputs)
{
	struct charlm_layer layer = {
	        .name = name,
	        .inputs = inputs,
	        .outputs = outputs,
	        .numel = inputs * outputs + outputs,
	        .weight = {"weight", 0, inputs, outputs, sqrtf(3.0f / (float)inputs)},
	        .bias = {"bias", inputs * outputs, 0, outputs, 0},
	};
	return layer;
}

void charlm_model_init(uint32_t vocabulary, struct charlm_model *model)
{
	size_t inputs = (size_t)CONTEXT * EMBED;
	*model = (struct charlm_model){.vocabulary = vocabulary, .context = CONTEXT, .embed = EMBED};
	model->layers[CHARLM_EMBEDDING] = (struct charlm_layer){
	        .name = "embedding",
	        .inputs = EMBED,
	        .outputs = vocabulary,
	        .numel = (size_t)vocabulary * EMBED + vocabulary,
	        .weight = {"weight", 0, vocabulary, EMBED, 0.5f},
	        .bias = {"bias", (size_t)vocabulary * EMBED, 0, vocabulary, 0},
	};
	model->layers[CHARLM_HIDDEN1] = dense_layer("hidden1", inputs, hidden_widths[0]);
	model->layers[CHARLM_HIDDEN2] = dense_layer("hidden2", hidden_widths[0], hidden_widths[1]);
	model->layers[CHARLM_HIDDEN3] = dense_layer("hidden3", hidden_widths[1], hidden_widths[2]);
	model->layers[CHARLM_OUTPUT] = dense_layer("output", hidden_widths[2], EMBED);
	for (size_t i = 0; i < CHARLM_UNITS; i++) {
		model->layers[i].offset_numel = model->numel;
		model->numel += model->layers[i].numel;
	}
}

void charlm_model_initial(const struct charlm_model *model, enum charlm_unit unit, uint64_t seed,
                          size_t offset_numel, size_t numel, float *values)
{
	const struct charlm_layer *layer = &model->layers[unit];
	for (size_t i = 0; i < numel; i++) {
		size_t index = offset_numel + i;
		float init = index < layer->bias.offset_numel ? layer->weight.init : layer->bias.init;
		/* 24 bits, the mantissa of a float, in [-1, 1). */
		int32_t random = (int32_t)(charlm_hash(seed, UINT64_MAX - unit, index) >> 40) - (1 << 23);
		values[i] = init * ((float)random / (float)(1 << 23));
	}
}

/* ---- Storage of a pass --------------------------------------------------------------------------------- */

/* The width of activations[index]. */
static size_t width(const struct charlm_model *model, size_t index)
{
	return index == 0 ? (size_t)model->context * model->embed : model->layers[index].outputs;
}

static size_t largest_layer(const struct charlm_model *model)
{
	size_t numel = 0;
	for (size_t i = 0; i < CHARLM_UNITS; i++)
		if (model->layers[i].numel > numel)
			numel = model->layers[i].numel;
	return numel;
}

int charlm_pass_init(const struct charlm_model *model, uint32_t rows, struct charlm_pass *pass)
{
	size_t numel = largest_layer(model) + (size_t)rows * model->vocabulary;
	for (size_t i = 0; i < CHARLM_UNITS; i++)
		numel += 2 * (size_t)rows * width(model, i);
	size_t bytes = numel * sizeof(float) + (size_t)rows * (model->context + 1);
	struct charlm_pass made = {.model = model, .rows = rows, .storage = calloc(1, bytes)};
	if (made.storage == NULL)
		return -1;
	float *next = made.storage;
	for (size_t i = 0; i < CHARLM_UNITS; i++) {
		made.activations[i] = next;
		made.gradients[i] = next + (size_t)rows * width(model, i);
		next += 2 * (size_t)rows * width(model, i);
	}
	made.logits = next;
	made.transposed = made.logits + (size_t)rows * model->vocabulary;
	made.inputs = (uint8_t *)(made.transposed + largest_layer(model));
	made.targets = made.inputs + (size_t)rows * model->context;
	*pass = made;
	return 0;
}

void charlm_pass_deinit(struct charlm_pass *pass)
{
	free(pass->storage);
	*pass = (struct charlm_pass){0};
}

void charlm_pass_sample(struct charlm_pass *pass, const struct charlm_text *text, uint64_t seed,
                        uint64_t step, uint64_t first_index)
{
	uint32_t context = pass->model->context;
	for (uint32_t row = 0; row < pass->rows; row++)
		charlm_text_sample(text, seed, step, first_index + row, context,
		                   pass->inputs + (size_t)row * context, pass->targets + row);
}

/* ---- Forward ------------------------------------------------------------------------------------------- */

static struct charlm_matrix plain(const float *data, size_t columns)
{
	return (struct charlm_matrix){data, columns, 1};
}

static struct charlm_matrix transposed(const float *data, size_t columns)
{
	return (struct charlm_matrix){data, 1, columns};
}

static void add_bias(float *values, const float *bias, size_t rows, size_t columns)
{
	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < columns; j++)
			values[i * columns + j] += bias[j];
}

void charlm_lookup_forward(struct charlm_pass *pass, const float *embedding)
{
	size_t embed = pass->model->embed;
	size_t places = (size_t)pass->rows * pass->model->context;
	for (size_t i = 0; i < places; i++)
		memcpy(pass->activations[0] + i * embed, embedding + pass->inputs[i] * embed,
		       embed * sizeof(float));
}

void charlm_layer_forward(struct charlm_pass *pass, enum charlm_unit unit, const float *params)
{
	const struct charlm_layer *layer = &pass->model->layers[unit];
	float *out = pass->activations[unit];
	charlm_matmul(plain(pass->activations[unit - 1], layer->inputs), params + layer->weight.offset_numel,
	              pass->rows, layer->outputs, layer->inputs, out);
	add_bias(out, params + layer->bias.offset_numel, pass->rows, layer->outputs);
	if (unit == CHARLM_OUTPUT)
		return; /* linear */
	for (size_t i = 0; i < pass->rows * layer->outputs; i++)
		out[i] = tanhf(out[i]);
}

void charlm_logits_forward(struct charlm_pass *pass, const float *embedding)
{
	const struct charlm_layer *layer = &pass->model->layers[CHARLM_EMBEDDING];
	charlm_transpose(embedding, layer->outputs, layer->inputs, pass->transposed);
	charlm_matmul(plain(pass->activations[CHARLM_OUTPUT], layer->inputs), pass->transposed, pass->rows,
	              layer->outputs, layer->inputs, pass->logits);
	add_bias(pass->logits, embedding + layer->bias.offset_numel, pass->rows, layer->outputs);
}

/* Softmax in place; returns minus the logarithm of the target's probability. */
static double softmax_row(float *logits, size_t columns, size_t target)
{
	float largest = logits[0];
	for (size_t j = 1; j < columns; j++)
		largest = fmaxf(largest, logits[j]);
	double own = (double)logits[target] - (double)largest;
	float sum = 0;
	for (size_t j = 0; j < columns; j++) {
		logits[j] = expf(logits[j] - largest);
		sum += logits[j];
	}
	for (size_t j = 0; j < columns; j++)
		logits[j] /= sum;
	return log((double)sum) - own;
}

double charlm_loss(struct charlm_pass *pass)
{
	size_t columns = pass->model->vocabulary;
	float scale = 1.0f / (float)pass->rows;
	double sum = 0;
	for (size_t row = 0; row < pass->rows; row++) {
		float *logits = pass->logits + row * columns;
		sum += softmax_row(logits, columns, pass->targets[row]);
		logits[pass->targets[row]] -= 1.0f;
		for (size_t j = 0; j < columns; j++)
			logits[j] *= scale;
	}
	return sum / pass->rows;
}

/* ---- Backward ------------------------------------------------------------------------------------------ */

void charlm_logits_backward_inputs(struct charlm_pass *pass, const float *embedding)
{
	const struct charlm_layer *layer = &pass->model->layers[CHARLM_EMBEDDING];
	charlm_matmul(plain(pass->logits, layer->outputs), embedding, pass->rows, layer->inputs,
	              layer->outputs, pass->gradients[CHARLM_OUTPUT]);
}

void charlm_logits_backward_params(struct charlm_pass *pass, float *gradient)
{
	const struct charlm_layer *layer = &pass->model->layers[CHARLM_EMBEDDING];
	charlm_matmul(transposed(pass->logits, layer->outputs), pass->activations[CHARLM_OUTPUT],
	              layer->outputs, layer->inputs, pass->rows, gradient);
	charlm_column_sums(pass->logits, pass->rows, layer->outputs, gradient + layer->bias.offset_numel);
}

void charlm_layer_backward_inputs(struct charlm_pass *pass, enum charlm_unit unit, const float *params)
{
	const struct charlm_layer *layer = &pass->model->layers[unit];
	const float *below = pass->activations[unit - 1];
	float *out = pass->gradients[unit - 1];
	charlm_transpose(params + layer->weight.offset_numel, layer->inputs, layer->outputs,
	                 pass->transposed);
	charlm_matmul(plain(pass->gradients[unit], layer->outputs), pass->transposed, pass->rows,
	              layer->inputs, layer->outputs, out);
	if (unit == CHARLM_HIDDEN1)
		return; /* the embedding has no tanh */
	for (size_t i = 0; i < pass->rows * layer->inputs; i++)
		out[i] *= 1.0f - below[i] * below[i];
}

void charlm_layer_backward_params(struct charlm_pass *pass, enum charlm_unit unit, float *gradient)
{
	const struct charlm_layer *layer = &pass->model->layers[unit];
	charlm_matmul(transposed(pass->activations[unit - 1], layer->inputs), pass->gradients[unit],
	              layer->inputs, layer->outputs, pass->rows, gradient + layer->weight.offset_numel);
	charlm_column_sums(pass->gradients[unit], pass->rows, layer->outputs,
	                   gradient + layer->bias.offset_numel);
}

void charlm_lookup_backward_params(struct charlm_pass *pass, float *gradient)
{
	size_t embed = pass->model->embed;
	size_t places = (size_t)pass->rows * pass->model->context;
	for (size_t i = 0; i < places; i++) {
		float *row = gradient + pass->inputs[i] * embed;
		for (size_t j = 0; j < embed; j++)
			row[j] += pass->gradients[0][i * embed + j];
	}
}

/* ---- All of it ----------------------------------------------------------------------------------------- */

double charlm_whole_forward(struct charlm_pass *pass, const float *params)
{
	const struct charlm_layer *layers = pass->model->layers;
	const float *embedding = params + layers[CHARLM_EMBEDDING].offset_numel;
	charlm_lookup_forward(pass, embedding);
	for (unsigned i = CHARLM_HIDDEN1; i <= CHARLM_OUTPUT; i++)
		charlm_layer_forward(pass, i, params + layers[i].offset_numel);
	charlm_logits_forward(pass, embedding);
	return charlm_loss(pass);
}

double charlm_whole_backward(struct charlm_pass *pass, const float *params, float *gradient)
{
	const struct charlm_layer *layers = pass->model->layers;
	double loss = charlm_whole_forward(pass, params);
	charlm_logits_backward_inputs(pass, params + layers[CHARLM_EMBEDDING].offset_numel);
	charlm_logits_backward_params(pass, gradient + layers[CHARLM_EMBEDDING].offset_numel);
	for (unsigned i = CHARLM_OUTPUT; i >= CHARLM_HIDDEN1; i--) {
		charlm_layer_backward_inputs(pass, i, params + layers[i].offset_numel);
		charlm_layer_backward_params(pass, i, gradient + layers[i].offset_numel);
	}
	charlm_lookup_backward_params(pass, gradient + layers[CHARLM_EMBEDDING].offset_numel);
	return loss;
}

/* ---- Optimizer ----------------------------------------------------------------------------------------- */

#define ADAM_BETA1   0.9f
#define ADAM_BETA2   0.99f
#define ADAM_EPSILON 1e-8f

void charlm_adam(float *params, const float *gradient, float *moments, size_t numel, uint64_t step,
                 float rate)
{
	float *first = moments, *second = moments + numel;
	float unbias1 = (float)(1.0 / (1.0 - pow((double)ADAM_BETA1, (double)step)));
	float unbias2 = (float)(1.0 / (1.0 - pow((double)ADAM_BETA2, (double)step)));
	for (size_t i = 0; i < numel; i++) {
		first[i] = ADAM_BETA1 * first[i] + (1.0f - ADAM_BETA1) * gradient[i];
		second[i] = ADAM_BETA2 * second[i] + (1.0f - ADAM_BETA2) * gradient[i] * gradient[i];
		params[i] -= rate * (first[i] * unbias1) / (sqrtf(second[i] * unbias2) + ADAM_EPSILON);
	}
}
