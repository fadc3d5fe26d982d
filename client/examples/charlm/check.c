/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - backpropagation against numerical derivatives.
 *
 * For each tensor, the derivative of the loss along a direction d is (loss(p + d) - loss(p - d)) / 2, and has
 * to equal the gradient's product with d. Two directions are tried: along the gradient itself, where the
 * signal is strongest, and random signs, to which every element contributes, so that a part that is missing
 * shows.
 */
#include "run.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels.h"

#define ROWS       24
#define VOCABULARY 29
#define TEXT_BYTES 4096
#define CHANGE     0.02  /* of the loss by a step along the direction, about; small enough to be linear */
#define LONGEST    0.002 /* step of one element */
#define LIMIT      0.02  /* relative to the derivative; rounding and the curvature give a tenth of it */

struct check {
	struct charlm_model model;
	struct charlm_pass pass;
	uint64_t seed;
	float *params, *moved, *gradient, *direction; /* model.numel each */
	void *storage;
};

static int check_init(struct check *c, uint64_t seed)
{
	static uint8_t tokens[TEXT_BYTES];
	for (size_t i = 0; i < TEXT_BYTES; i++)
		tokens[i] = (uint8_t)(charlm_hash(seed, 0, i) % VOCABULARY);
	struct charlm_text text = {.tokens = tokens, .count = TEXT_BYTES, .vocabulary = VOCABULARY};
	*c = (struct check){.seed = seed};
	charlm_model_init(VOCABULARY, &c->model);
	size_t numel = c->model.numel;
	c->storage = calloc(4 * numel, sizeof(float));
	if (c->storage == NULL || charlm_pass_init(&c->model, ROWS, &c->pass) != 0)
		return -1;
	c->params = c->storage;
	c->moved = c->params + numel;
	c->gradient = c->moved + numel;
	c->direction = c->gradient + numel;
	for (unsigned i = 0; i < CHARLM_UNITS; i++)
		charlm_model_initial(&c->model, i, seed, 0, c->model.layers[i].numel,
		                     c->params + c->model.layers[i].offset_numel);
	charlm_pass_sample(&c->pass, &text, seed, 1, 0);
	(void)charlm_whole_backward(&c->pass, c->params, c->gradient);
	return 0;
}

static double loss_at(struct check *c, double distance)
{
	for (size_t i = 0; i < c->model.numel; i++)
		c->moved[i] = (float)(c->params[i] + distance * c->direction[i]);
	return charlm_whole_forward(&c->pass, c->moved);
}

/* Sets the direction to 0 outside the tensor. */
static void aim(struct check *c, size_t first, size_t numel, bool along_gradient)
{
	for (size_t i = 0; i < c->model.numel; i++) {
		float sign = (charlm_hash(c->seed, 2, i) & 1) != 0 ? 1.0f : -1.0f;
		bool inside = i >= first && i < first + numel;
		c->direction[i] = !inside ? 0 : along_gradient ? c->gradient[i] : sign;
	}
}

static bool check_direction(struct check *c, const char *unit, const struct charlm_tensor *tensor,
                            size_t first, size_t numel, bool along_gradient)
{
	aim(c, first, numel, along_gradient);
	double expected = 0, squares = 0;
	for (size_t i = 0; i < c->model.numel; i++) {
		expected += (double)c->gradient[i] * c->direction[i];
		if (c->direction[i] != 0)
			squares += (double)c->gradient[i] * c->gradient[i];
	}
	double distance = fmin(CHANGE / fabs(expected), LONGEST);
	double found = (loss_at(c, distance) - loss_at(c, -distance)) / (2 * distance);
	/* Along random signs the derivative is about the gradient's length, but may be next to nothing by
	 * chance. */
	double difference = fabs(found - expected) / (along_gradient ? fabs(expected) : sqrt(squares));
	bool good = difference <= LIMIT; /* false for a nan */
	printf("  %-4s %-9s %-6s %-18s backward % .6e  numerical % .6e  relative %.1e\n", good ? "ok" : "BAD",
	       unit, tensor->name, along_gradient ? "along the gradient" : "random signs", expected, found,
	       difference);
	return good;
}

int charlm_check_gradients(uint64_t seed)
{
	struct check c;
	if (check_init(&c, seed) != 0) {
		fprintf(stderr, "charlm: no memory\n");
		free(c.storage);
		return 1;
	}
	bool good = true;
	for (unsigned i = 0; i < CHARLM_UNITS; i++) {
		const struct charlm_layer *layer = &c.model.layers[i];
		const struct charlm_tensor *tensors[] = {&layer->weight, &layer->bias};
		const size_t numels[] = {layer->bias.offset_numel, layer->numel - layer->bias.offset_numel};
		for (size_t t = 0; t < 2; t++) {
			size_t first = layer->offset_numel + tensors[t]->offset_numel;
			for (int along_gradient = 0; along_gradient < 2; along_gradient++)
				good &= check_direction(&c, layer->name, tensors[t], first, numels[t],
				                        along_gradient != 0);
		}
	}
	charlm_pass_deinit(&c.pass);
	free(c.storage);
	return good ? 0 : 1;
}
