/* SPDX-License-Identifier: Apache-2.0 */
/* text.h - the training text: read, its bytes numbered from 0, and drawn from. */
#ifndef CHARLM_TEXT_H
#define CHARLM_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct charlm_text {
	uint8_t *tokens; /* `count` numbers below `vocabulary`, one a byte of text */
	size_t count;
	uint32_t vocabulary; /* distinct bytes in the text */
	uint8_t bytes[256];  /* the byte of each number */
	uint32_t nfiles;
};

/* Reads the files named, or without any the licence and copyright texts of this machine, up to a limit.
 * Prints what is wrong and returns -1 on failure. */
__attribute__((warn_unused_result)) int charlm_text_load(const char *const *files, uint32_t nfiles,
                                                         struct charlm_text *text);
void charlm_text_free(struct charlm_text *text);

/*
 * Draws sample `index` of step `step`: the `context` tokens before a random place, and the one that follows.
 * A pure function, so that any rank, or one process alone, draws the same sample. The text has more than
 * `context` tokens.
 */
void charlm_text_sample(const struct charlm_text *text, uint64_t seed, uint64_t step, uint64_t index,
                        uint32_t context, uint8_t *inputs, uint8_t *target);

#endif
