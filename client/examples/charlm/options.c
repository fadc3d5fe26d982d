/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - charlm's command line, checked to the last number: what comes out of here can be computed
 * with. */
#include "options.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include <zerod.h>

#define MAX_RANKS 64
#define MAX_STEP_SAMPLES                                                                                     \
	(1u << 16) /* ranks x micro-steps x batch: bounds the full-batch reference's memory */
#define MAX_STEPS 1000000

enum key {
	KEY_RANKS = 256,
	KEY_BATCH,
	KEY_ACCUM,
	KEY_STEPS,
	KEY_SEED,
	KEY_RATE,
	KEY_SOCKET,
	KEY_ZEROCTL,
	KEY_TEXT,
	KEY_COMPARE,
	KEY_REFERENCE,
	KEY_FULL_BATCH,
	KEY_CHECK,
	KEY_SVG,
	KEY_JSON,
};

static const struct argp_option table[] = {
        {"socket", KEY_SOCKET, "PATH", 0, "The daemon's socket (default: $ZEROD_SOCKET, else zerod's own)",
         1},
        {"ranks", KEY_RANKS, "N", 0, "Trainer processes, rank r on device r modulo the daemon's devices (4)",
         1},
        {"text", KEY_TEXT, "FILE", 0, "Train on this file; may be repeated (this machine's licence texts)",
         1},
        {"batch", KEY_BATCH, "N", 0, "Samples of a rank in one micro-step (64)", 1},
        {"accum", KEY_ACCUM, "N", 0, "Micro-steps whose gradients make one step (1)", 1},
        {"steps", KEY_STEPS, "N", 0, "Steps (300)", 1},
        {"lr", KEY_RATE, "X", 0, "Adam's highest learning rate (0.01)", 1},
        {"seed", KEY_SEED, "N", 0, "Of initial values and samples (1)", 1},
        {"compare", KEY_COMPARE, NULL, 0, "Repeat the run unsharded in one process, and compare", 2},
        {"reference", KEY_REFERENCE, NULL, 0, "Train unsharded in one process, without a daemon", 2},
        {"full-batch", KEY_FULL_BATCH, NULL, 0, "With --reference: the ranks' samples in one batch", 2},
        {"check-gradients", KEY_CHECK, NULL, 0, "Compare backpropagation with numerical derivatives", 2},
        {"zeroctl", KEY_ZEROCTL, "PROGRAM", 0,
         "Halfway, in the middle of a step, show PROGRAM's list of buffers", 3},
        {"svg", KEY_SVG, "FILE", 0, "Draw the loss and the memory of each step into FILE", 3},
        {"json", KEY_JSON, NULL, 0, "No progress; the summary as one JSON object", 3},
        {0},
};

static uint64_t number(struct argp_state *state, const char *name, const char *text, uint64_t least,
                       uint64_t most)
{
	char *end = NULL;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < least || value > most)
		argp_error(state, "--%s=%s: a number from %llu to %llu is expected", name, text,
		           (unsigned long long)least, (unsigned long long)most);
	return value;
}

static float rate(struct argp_state *state, const char *text)
{
	char *end = NULL;
	float value = strtof(text, &end);
	if (end == text || *end != '\0' || !isfinite(value) || value <= 0 || value > 1)
		argp_error(state, "--lr=%s: a number above 0 and up to 1 is expected", text);
	return value;
}

static void add_file(struct argp_state *state, struct charlm_options *options, const char *path)
{
	if (options->nfiles == CHARLM_MAX_FILES)
		argp_error(state, "at most %d files are read", CHARLM_MAX_FILES);
	options->files[options->nfiles++] = path;
}

static void check_together(struct argp_state *state, const struct charlm_options *options, bool full_batch)
{
	if (full_batch && options->mode != CHARLM_REFERENCE)
		argp_error(state, "--full-batch goes with --reference");
	if (options->compare && options->mode != CHARLM_SHARDED)
		argp_error(state, "--compare goes with a sharded run");
	if ((uint64_t)options->ranks * options->accum * options->batch > MAX_STEP_SAMPLES)
		argp_error(state, "%u ranks x %u micro-steps x %u samples: more than %u in one step",
		           options->ranks, options->accum, options->batch, MAX_STEP_SAMPLES);
}

struct parsing {
	struct charlm_options *options;
	bool full_batch;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct parsing *parsing = state->input;
	struct charlm_options *options = parsing->options;
	switch (key) {
	case KEY_RANKS:
		options->ranks = (uint32_t)number(state, "ranks", arg, 1, MAX_RANKS);
		return 0;
	case KEY_BATCH:
		options->batch = (uint32_t)number(state, "batch", arg, 1, MAX_STEP_SAMPLES);
		return 0;
	case KEY_ACCUM:
		options->accum = (uint32_t)number(state, "accum", arg, 1, MAX_STEP_SAMPLES);
		return 0;
	case KEY_STEPS:
		options->steps = (uint32_t)number(state, "steps", arg, 1, MAX_STEPS);
		return 0;
	case KEY_SEED:
		options->seed = number(state, "seed", arg, 0, UINT64_MAX);
		return 0;
	case KEY_RATE:
		options->rate = rate(state, arg);
		return 0;
	case KEY_SOCKET:
		options->socket = arg;
		return 0;
	case KEY_ZEROCTL:
		options->zeroctl = arg;
		return 0;
	case KEY_TEXT:
		add_file(state, options, arg);
		return 0;
	case KEY_COMPARE:
		options->compare = true;
		return 0;
	case KEY_REFERENCE:
		options->mode = CHARLM_REFERENCE;
		return 0;
	case KEY_CHECK:
		options->mode = CHARLM_CHECK_GRADIENTS;
		return 0;
	case KEY_FULL_BATCH:
		parsing->full_batch = true;
		return 0;
	case KEY_SVG:
		options->svg = arg;
		return 0;
	case KEY_JSON:
		options->json = true;
		return 0;
	case ARGP_KEY_END:
		check_together(state, options, parsing->full_batch);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

void charlm_options_parse(int argc, char **argv, struct charlm_options *options)
{
	static const struct argp argp = {
	        .options = table,
	        .parser = parse,
	        .doc = "Trains a character-level language model over several processes, with zerod holding "
	               "its parameters "
	               "and gradients."
	               "\vExit status: 0 when all went well, 1 when the runs that are compared differ, 2 for "
	               "a wrong command "
	               "line or text, otherwise zerod's status of what failed.",
	};
	*options = (struct charlm_options){
	        .ranks = 4, .batch = 64, .accum = 1, .steps = 300, .seed = 1, .rate = 0.01f};
	struct parsing parsing = {.options = options};
	argp_err_exit_status = 2;
	if (argp_parse(&argp, argc, argv, ARGP_NO_ARGS, NULL, &parsing) != 0)
		exit(-ZEROD_E_SYSTEM);
	if (parsing.full_batch)
		options->mode = CHARLM_FULL_BATCH;
}
