/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - charlm's command line. */
#ifndef CHARLM_OPTIONS_H
#define CHARLM_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define CHARLM_MAX_FILES 64

enum charlm_mode {
	CHARLM_SHARDED,         /* ranks and a daemon */
	CHARLM_REFERENCE,       /* one process, the ranks' gradients summed in rank order */
	CHARLM_FULL_BATCH,      /* one process, all samples of a step at once */
	CHARLM_CHECK_GRADIENTS, /* no training */
};

struct charlm_options {
	enum charlm_mode mode;
	bool compare; /* both references after the sharded run */
	bool json;
	uint32_t ranks, batch, accum, steps;
	uint64_t seed;
	float rate;
	const char *socket;  /* NULL: libzerod's default */
	const char *zeroctl; /* NULL: no snapshot */
	const char *svg;     /* NULL: no picture */
	uint32_t nfiles;     /* 0: the default text */
	const char *files[CHARLM_MAX_FILES];
};

/* Ends the program by itself for --help, and with status 2 for a wrong command line. */
void charlm_options_parse(int argc, char **argv, struct charlm_options *options);

#endif
