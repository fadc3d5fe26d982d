/* SPDX-License-Identifier: Apache-2.0 */
/* sample.h - text that the model writes, before and after training. */
#ifndef CHARLM_SAMPLE_H
#define CHARLM_SAMPLE_H

#include <stddef.h>

#include "run.h"

/* Write a line of line_bytes - 1 characters at most that continues the training text's beginning: by the
 * model with these parameters, all units one after the other, or with its initial values. The same line for
 * the same parameters and seed. Return -1 without memory. */
__attribute__((warn_unused_result)) int charlm_sample(const struct charlm_plan *plan, const float *params,
                                                      char *line, size_t line_bytes);
__attribute__((warn_unused_result)) int charlm_sample_untrained(const struct charlm_plan *plan, char *line,
                                                                size_t line_bytes);

#endif
