/* SPDX-License-Identifier: Apache-2.0 */
/* sample.c - text that the model writes, byte by byte, each drawn from what the model predicts. */
#include "sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#define TEMPERATURE 0.7f /* below 1: likely bytes become more likely */
#define MOST_DRAWS  500u /* for one line: several blanks in a row are shown as one */

static uint8_t draw(const float *logits, size_t columns, uint64_t random)
{
	float largest = logits[0], sum = 0, left;
	size_t token = 0;

	for (size_t i = 1; i < columns; i++)
		largest = fmaxf(largest, logits[i]);
	for (size_t i = 0; i < columns; i++)
		sum += expf((logits[i] - largest) / TEMPERATURE);
	left = sum * (float)(random >> 40) / (float)(1 << 24);
	while (token + 1 < columns && (left -= expf((logits[token] - largest) / TEMPERATURE)) >= 0)
		token++;
	return (uint8_t)token;
}

/* Line ends and bytes that a terminal may not show become blanks. */
static char shown(uint8_t byte)
{
	return byte > ' ' && byte < 0x7F ? (char)byte : ' ';
}

int charlm_sample(const struct charlm_plan *plan, const float *params, char *line, size_t line_bytes)
{
	const struct charlm_model *model = plan->model;
	const float *embedding = params + model->layers[CHARLM_EMBEDDING].offset_numel;
	struct charlm_pass pass;
	size_t length = 0;

	if (charlm_pass_init(model, 1, &pass) != 0)
		return -1;
	memcpy(pass.inputs, plan->text->tokens, model->context);
	for (size_t i = 0; i < MOST_DRAWS && length + 1 < line_bytes; i++) {
		uint8_t token;
		char byte;

		charlm_lookup_forward(&pass, embedding);
		for (unsigned unit = CHARLM_HIDDEN1; unit <= CHARLM_OUTPUT; unit++)
			charlm_layer_forward(&pass, unit, params + model->layers[unit].offset_numel);
		charlm_logits_forward(&pass, embedding);
		token = draw(pass.logits, model->vocabulary, charlm_hash(plan->seed, 3, i));
		memmove(pass.inputs, pass.inputs + 1, model->context - 1);
		pass.inputs[model->context - 1] = token;
		byte = shown(plan->text->bytes[token]);
		if (byte != ' ' || (length > 0 && line[length - 1] != ' '))
			line[length++] = byte;
	}
	line[length] = '\0';
	charlm_pass_deinit(&pass);
	return 0;
}

int charlm_sample_untrained(const struct charlm_plan *plan, char *line, size_t line_bytes)
{
	const struct charlm_model *model = plan->model;
	float *params = calloc(model->numel, sizeof(float));
	int rc = params == NULL ? -1 : 0;

	for (unsigned i = 0; rc == 0 && i < CHARLM_UNITS; i++)
		charlm_model_initial(model, i, plan->seed, 0, model->layers[i].numel,
		                     params + model->layers[i].offset_numel);
	if (rc == 0)
		rc = charlm_sample(plan, params, line, line_bytes);
	free(params);
	return rc;
}
