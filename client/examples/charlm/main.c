/* SPDX-License-Identifier: Apache-2.0 */
/*
 * charlm - trains a character-level language model over several processes, with zerod holding what is
 * sharded.
 *
 *   options.c    the command line
 *   text.c       the training text
 *   kernels.c    matrix products
 *   model.c      forward, backward, Adam
 *   rank*.c      one rank of the sharded training: all calls of libzerod are there
 *   reference.c  the same training in one process
 *   check.c      backpropagation against numerical derivatives
 *   crew.c       the processes
 *   report.c     progress and summary
 *   sample.c     text that the model writes
 *   svg.c        a picture of the run
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zerod.h>

#include "options.h"
#include "report.h"
#include "run.h"
#include "sample.h"
#include "svg.h"

struct program {
	struct charlm_options options;
	struct charlm_text text;
	struct charlm_model model;
	struct charlm_plan plan, full_plan;
	struct charlm_outcome outcome, ordered, full; /* of the run, and of the two references */
	struct charlm_progress progress;
	struct charlm_summary summary;
	FILE *svg; /* NULL: none */
};

/* Shows the daemon's live buffers, while all ranks stand still in the middle of a step. */
static int show_buffers(void *arg)
{
	struct program *p = arg;
	charlm_progress_break(&p->progress);
	if (!p->options.json)
		printf("\nThe daemon's live buffers in the middle of step %" PRIu32 ":\n",
		       p->plan.pause_step);
	(void)fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		if (p->options.json)
			(void)dup2(STDERR_FILENO, STDOUT_FILENO); /* stdout is for the summary alone */
		if (p->options.socket != NULL)
			(void)execlp(p->options.zeroctl, p->options.zeroctl, "buffers", "--socket",
			             p->options.socket, (char *)NULL);
		else
			(void)execlp(p->options.zeroctl, p->options.zeroctl, "buffers", (char *)NULL);
		fprintf(stderr, "charlm: %s: %s\n", p->options.zeroctl, strerror(errno));
		_exit(EXIT_FAILURE);
	}
	int status = 0;
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (pid < 0 || status != 0) {
		fprintf(stderr, "charlm: %s buffers failed\n", p->options.zeroctl);
		return EXIT_FAILURE;
	}
	if (!p->options.json)
		printf("\n");
	return 0;
}

static void heard(void *arg, const struct charlm_crew *crew, const struct charlm_worker *worker)
{
	struct program *p = arg;
	charlm_progress_heard(&p->progress, crew, worker);
}

/* Stores for each rank what its device has held, for itself and for ranks beside it. */
static int read_memory(struct program *p, const struct charlm_crew *crew)
{
	struct charlm_device_memory *memory = calloc(crew->count, sizeof(*memory));
	if (memory == NULL)
		return -ZEROD_E_SYSTEM;
	for (uint32_t i = 0; i < crew->count; i++) {
		const struct charlm_message *last = &crew->workers[i].last;
		memory[i].peak_bytes = last->peak_bytes;
		for (uint32_t k = 0; k < crew->count; k++)
			if (crew->workers[k].last.device == last->device)
				memory[i].shard_bytes += crew->workers[k].last.shard_bytes;
	}
	p->summary.memory = memory;
	return 0;
}

/* Runs the workers and takes down what the summary wants of a sharded or single run. */
static int run_crew(struct program *p, struct charlm_worker *workers, uint32_t count, const char *title)
{
	struct charlm_crew crew = {
	        .workers = workers, .count = count, .heard = heard, .paused = show_buffers, .arg = p};
	p->progress = (struct charlm_progress){
	        .quiet = p->options.json,
	        .terminal = isatty(STDOUT_FILENO) != 0,
	        .sharded = workers[0].work == charlm_rank,
	        .plan = workers[0].plan,
	        .outcome = workers[0].outcome,
	        .title = title,
	};
	int status = charlm_crew_run(&crew);
	if (status != 0 || p->summary.mode != NULL)
		return status;
	p->summary.mode = title;
	p->summary.sharded = p->progress.sharded;
	p->summary.seconds = p->progress.seconds;
	p->summary.skipped = workers[0].last.skipped;
	p->summary.gathers = charlm_crew_gathers(&crew);
	p->summary.peak_bytes = charlm_crew_peak_bytes(&crew);
	return p->summary.sharded ? read_memory(p, &crew) : 0;
}

static int run_sharded(struct program *p)
{
	struct charlm_worker *workers = calloc(p->plan.ranks, sizeof(*workers));
	if (workers == NULL)
		return -ZEROD_E_SYSTEM;
	for (uint32_t i = 0; i < p->plan.ranks; i++)
		workers[i] = (struct charlm_worker){.work = charlm_rank,
		                                    .plan = &p->plan,
		                                    .outcome = &p->outcome,
		                                    .title = "rank",
		                                    .index = i};
	int status = run_crew(p, workers, p->plan.ranks, "sharded");
	free(workers);
	return status;
}

static int run_reference(struct program *p, const struct charlm_plan *plan, const char *title)
{
	struct charlm_worker worker = {
	        .work = charlm_reference, .plan = plan, .outcome = &p->outcome, .title = "reference"};
	return run_crew(p, &worker, 1, title);
}

/* Both references, side by side. */
static int run_references(struct program *p)
{
	struct charlm_worker workers[] = {
	        {.work = charlm_reference, .plan = &p->plan, .outcome = &p->ordered, .title = "reference"},
	        {.work = charlm_reference,
	         .plan = &p->full_plan,
	         .outcome = &p->full,
	         .title = "reference",
	         .index = 1},
	};
	return run_crew(p, workers, 2, "unsharded");
}

static void compare(struct program *p)
{
	const struct charlm_outcome *ours = &p->outcome, *ordered = &p->ordered;
	size_t nlosses = (size_t)ours->steps * ours->losses_per_step;
	p->summary.compared = true;
	p->summary.same_losses = memcmp(ours->losses, ordered->losses, nlosses * sizeof(double)) == 0;
	p->summary.same_params = memcmp(ours->params, ordered->params, ours->numel * sizeof(float)) == 0;
	for (uint32_t step = 1; step <= p->plan.steps; step++) {
		double full = charlm_outcome_loss(&p->full, step);
		/* Against one nat where the loss is less: a text that is easily learnt drives the loss to 0,
		 * and what float32 rounds away in the logits does not get smaller with it. */
		double difference = fabs(charlm_outcome_loss(ours, step) - full) / fmax(fabs(full), 1);
		if (!(difference <= p->summary.full_batch_difference)) /* also when it is nan */
			p->summary.full_batch_difference = difference;
	}
}

static int write_samples(struct program *p)
{
	if (charlm_sample_untrained(&p->plan, p->summary.before, sizeof(p->summary.before)) != 0 ||
	    charlm_sample(&p->plan, p->outcome.params, p->summary.after, sizeof(p->summary.after)) != 0) {
		fprintf(stderr, "charlm: no memory for a sample of text\n");
		return -ZEROD_E_SYSTEM;
	}
	return 0;
}

static int draw(struct program *p)
{
	const struct charlm_svg_memory memory = {
	        .unsharded_mib = (double)charlm_unsharded_bytes(&p->model) / (1 << 20),
	        .peak_mib = (double)p->summary.peak_bytes / (1 << 20),
	};
	if (charlm_svg_write(p->svg, &p->outcome, &memory) == 0)
		return 0;
	fprintf(stderr, "charlm: %s: %s\n", p->options.svg, strerror(errno));
	return EXIT_FAILURE;
}

static int run(struct program *p)
{
	int status;
	if (p->options.mode == CHARLM_SHARDED)
		status = run_sharded(p);
	else if (p->options.mode == CHARLM_REFERENCE)
		status = run_reference(p, &p->plan, "reference");
	else
		status = run_reference(p, &p->full_plan, "full-batch");
	if (status == 0 && p->options.compare) {
		status = run_references(p);
		if (status == 0)
			compare(p);
	}
	if (status != 0)
		return status;
	p->summary.plan = &p->plan;
	p->summary.text = &p->text;
	p->summary.first_loss = charlm_outcome_loss(&p->outcome, 1);
	p->summary.last_loss = charlm_outcome_loss(&p->outcome, p->plan.steps);
	status = write_samples(p);
	if (status != 0)
		return status;
	charlm_summary_print(&p->summary, p->options.json);
	if (p->svg != NULL)
		status = draw(p);
	return charlm_summary_good(&p->summary) ? status : EXIT_FAILURE;
}

/* Everything before the first fork, so that all processes share it. */
static int prepare(struct program *p)
{
	const struct charlm_options *o = &p->options;
	if (charlm_text_load(o->files, o->nfiles, &p->text) != 0)
		return 2;
	charlm_model_init(p->text.vocabulary, &p->model);
	if (p->text.count <= p->model.context) {
		fprintf(stderr, "charlm: %s: too short to train on, %zu of at least %u bytes\n",
		        o->nfiles == 1 ? o->files[0] : "the text", p->text.count, p->model.context + 1);
		return 2;
	}
	if (o->svg != NULL &&
	    (p->svg = fopen(o->svg, "w")) == NULL) { /* before the training, not behind it */
		fprintf(stderr, "charlm: %s: %s\n", o->svg, strerror(errno));
		return 2;
	}
	p->plan = (struct charlm_plan){
	        .model = &p->model,
	        .text = &p->text,
	        .ranks = o->ranks,
	        .batch = o->batch,
	        .accum = o->accum,
	        .steps = o->steps,
	        .seed = o->seed,
	        .rate = o->rate,
	        .socket = o->socket,
	        .pause_step = o->zeroctl != NULL ? o->steps / 2 + 1 : 0,
	};
	(void)snprintf(p->plan.job, sizeof(p->plan.job), "charlm-%d", (int)getpid());
	p->full_plan = charlm_plan_full_batch(&p->plan);
	bool full = o->mode == CHARLM_FULL_BATCH;
	if (charlm_outcome_init(full ? &p->full_plan : &p->plan, &p->outcome) != 0)
		return -ZEROD_E_SYSTEM;
	if (o->compare && (charlm_outcome_init(&p->plan, &p->ordered) != 0 ||
	                   charlm_outcome_init(&p->full_plan, &p->full) != 0))
		return -ZEROD_E_SYSTEM;
	return 0;
}

int main(int argc, char **argv)
{
	struct program p = {0};
	charlm_options_parse(argc, argv, &p.options);
	if (p.options.mode == CHARLM_CHECK_GRADIENTS)
		return charlm_check_gradients(p.options.seed);
	int status = prepare(&p);
	if (status == 0)
		status = run(&p);
	charlm_outcome_deinit(&p.outcome);
	charlm_outcome_deinit(&p.ordered);
	charlm_outcome_deinit(&p.full);
	charlm_text_free(&p.text);
	free(p.summary.memory);
	if (p.svg != NULL)
		(void)fclose(p.svg);
	return status;
}
