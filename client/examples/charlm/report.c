/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - progress and summary.
 *
 * On a terminal progress is one line, or two where it is narrow, rewritten a few times a second; elsewhere it
 * is a line every tenth of the way.
 */
#include "report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define REDRAW_NS  100000000u
#define BAR        16
#define MEMORY_BAR 40
#define INDENT     9 /* of the second line: what the title takes */

static uint64_t now_ns(void)
{
	struct timespec now;
	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double mib(uint64_t bytes)
{
	return (double)bytes / (1 << 20);
}

/* ---- Progress ------------------------------------------------------------------------------------------ */

static uint32_t slowest_step(const struct charlm_crew *crew)
{
	uint32_t step = UINT32_MAX;
	for (uint32_t i = 0; i < crew->count; i++)
		if (crew->workers[i].last.step < step)
			step = crew->workers[i].last.step;
	return step;
}

static uint64_t largest_live_bytes(const struct charlm_crew *crew)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < crew->count; i++)
		if (crew->workers[i].last.live_bytes > bytes)
			bytes = crew->workers[i].last.live_bytes;
	return bytes;
}

static bool due(const struct charlm_progress *p, uint32_t step, uint64_t now)
{
	uint32_t steps = p->plan->steps;
	if (step == p->shown_step)
		return false;
	if (step == steps)
		return true;
	return p->terminal ? now - p->shown_ns >= REDRAW_NS
	                   : (uint64_t)step * 10 / steps > (uint64_t)p->shown_step * 10 / steps;
}

/* Columns that a rewritten line may fill: one that wraps cannot be rewritten. */
static int columns(void)
{
	struct winsize size;
	bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
	return known ? size.ws_col - 1 : 79;
}

/* On the terminal, over the last picture: in one line where it fits, else in two. */
static void redraw(struct charlm_progress *p, const char *head, const char *tail, const char *end)
{
	const int width = columns();
	const bool two = strlen(head) + strlen(tail) > (size_t)width;
	printf("%s\r", p->on_second_line ? "\033[A" : "");
	if (two && tail[0] != '\0')
		printf("%.*s\033[K\n%*s%.*s\033[K%s", width, head, INDENT, "", width - INDENT, tail, end);
	else
		printf("%.*s%s\033[K%s", width, head, two ? "" : tail, end);
	p->on_second_line = two && tail[0] != '\0';
}

static void draw(struct charlm_progress *p, const struct charlm_crew *crew, uint32_t step, uint64_t now)
{
	char head[128], tail[128] = "", bar[BAR + 1];
	uint32_t steps = p->plan->steps;
	memset(bar, '.', BAR);
	memset(bar, '#', (size_t)step * BAR / steps);
	bar[BAR] = '\0';
	double seconds = (double)(now - p->begin_ns) * 1e-9;
	double tokens = (double)charlm_plan_tokens(p->plan) * step / steps;
	(void)snprintf(head, sizeof(head), "%-9s [%s] %3" PRIu32 "/%" PRIu32 " loss %.4f %6.0f tokens/s",
	               p->title, bar, step, steps, charlm_outcome_loss(p->outcome, step),
	               seconds > 0 ? tokens / seconds : 0);
	if (p->sharded)
		(void)snprintf(tail, sizeof(tail), " %6" PRIu64 " gathers, live %.2f peak %.2f of %.2f MiB",
		               charlm_crew_gathers(crew), mib(largest_live_bytes(crew)),
		               mib(charlm_crew_peak_bytes(crew)),
		               mib(charlm_unsharded_bytes(p->plan->model)));
	if (p->terminal)
		redraw(p, head, tail, step == steps ? "\n" : "");
	else
		printf("%s%s\n", head, tail);
	(void)fflush(stdout);
}

void charlm_progress_heard(void *arg, const struct charlm_crew *crew, const struct charlm_worker *worker)
{
	struct charlm_progress *p = arg;
	uint64_t now = now_ns();
	if (worker->last.kind == CHARLM_READY && p->begin_ns == 0)
		p->begin_ns = now;
	uint32_t step = slowest_step(crew);
	if (step == p->plan->steps)
		p->seconds = (double)(now - p->begin_ns) * 1e-9;
	if (p->quiet || step == 0 || !due(p, step, now))
		return;
	draw(p, crew, step, now);
	p->shown_step = step;
	p->shown_ns = now;
}

void charlm_progress_break(struct charlm_progress *progress)
{
	if (!progress->quiet && progress->terminal && progress->shown_step > 0)
		printf("\n");
	progress->on_second_line = false;
	(void)fflush(stdout);
}

/* ---- Figures ------------------------------------------------------------------------------------------- */

uint64_t charlm_crew_gathers(const struct charlm_crew *crew)
{
	uint64_t gathers = 0;
	for (uint32_t i = 0; i < crew->count; i++)
		gathers += crew->workers[i].last.gathers;
	return gathers;
}

uint64_t charlm_crew_peak_bytes(const struct charlm_crew *crew)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < crew->count; i++)
		if (crew->workers[i].last.peak_bytes > bytes)
			bytes = crew->workers[i].last.peak_bytes;
	return bytes;
}

uint64_t charlm_unsharded_bytes(const struct charlm_model *model)
{
	return 4 * sizeof(float) * (uint64_t)model->numel;
}

/* ---- Summary ------------------------------------------------------------------------------------------- */

bool charlm_summary_good(const struct charlm_summary *s)
{
	return !s->compared ||
	       (s->same_losses && s->same_params && s->full_batch_difference <= CHARLM_FULL_BATCH_LIMIT);
}

static double tokens_per_second(const struct charlm_summary *s)
{
	return s->seconds > 0 ? (double)charlm_plan_tokens(s->plan) / s->seconds : 0;
}

static void print_json(const struct charlm_summary *s)
{
	const struct charlm_plan *plan = s->plan;
	printf("{\"schema\": 1, \"mode\": \"%s\", \"ranks\": %u, \"steps\": %u, \"batch\": %u, \"accum\": "
	       "%u, \"seed\": "
	       "%" PRIu64
	       ", \"parameters\": %zu, \"text_bytes\": %zu, \"loss_first\": %.9g, \"loss_last\": %.9g, "
	       "\"skipped_steps\": %u, \"seconds\": %.3f, \"tokens_per_second\": %.0f, \"unsharded_bytes\": "
	       "%" PRIu64,
	       s->mode, plan->ranks, plan->steps, plan->batch, plan->accum, plan->seed, plan->model->numel,
	       s->text->count, s->first_loss, s->last_loss, s->skipped, s->seconds, tokens_per_second(s),
	       charlm_unsharded_bytes(plan->model));
	if (s->sharded)
		printf(", \"gathers\": %" PRIu64 ", \"peak_device_bytes\": %" PRIu64, s->gathers,
		       s->peak_bytes);
	if (s->compared)
		printf(", \"same_losses\": %s, \"same_parameters\": %s, \"full_batch_difference\": %.3g, "
		       "\"full_batch_limit\": %.3g",
		       s->same_losses ? "true" : "false", s->same_params ? "true" : "false",
		       s->full_batch_difference, CHARLM_FULL_BATCH_LIMIT);
	printf("}\n");
}

static void print_comparison(const struct charlm_summary *s)
{
	const struct charlm_plan *plan = s->plan;
	bool same = s->same_losses && s->same_params;
	printf("  equal to unsharded     %s, bit for bit (%" PRIu64 " losses%s, %zu parameters%s)\n",
	       same ? "yes" : "NO", (uint64_t)plan->steps * plan->ranks * plan->accum,
	       s->same_losses ? "" : " DIFFER", plan->model->numel, s->same_params ? "" : " DIFFER");
	printf("  in another sum order   losses differ by at most %.1e, %s %.0e of them\n",
	       s->full_batch_difference,
	       s->full_batch_difference <= CHARLM_FULL_BATCH_LIMIT ? "within" : "BEYOND",
	       CHARLM_FULL_BATCH_LIMIT);
}

/* Appends a part of a bar, up to the character at which `bytes` of `all` end. */
static void fill_bar(char bar[MEMORY_BAR + 1], char letter, uint64_t bytes, uint64_t all)
{
	size_t end = (size_t)((double)bytes * MEMORY_BAR / (double)all + 0.5);
	for (size_t at = strlen(bar); at < end && at < MEMORY_BAR; at++) {
		bar[at] = letter;
		bar[at + 1] = '\0';
	}
}

static void print_memory(const struct charlm_summary *s)
{
	uint64_t unsharded = charlm_unsharded_bytes(s->plan->model);
	printf("\n  memory at its peak     of %.2f MiB that an unsharded process needs\n", mib(unsharded));
	for (uint32_t i = 0; i < s->plan->ranks; i++) {
		const struct charlm_device_memory *memory = &s->memory[i];
		char bar[MEMORY_BAR + 1] = "";
		fill_bar(bar, 'P', memory->shard_bytes, unsharded);
		fill_bar(bar, 'A', 3 * memory->shard_bytes, unsharded);
		fill_bar(bar, '+', memory->peak_bytes, unsharded);
		printf("  device of rank %-6u  [%-*s] %.2f MiB, %.0f %%\n", i, MEMORY_BAR, bar,
		       mib(memory->peak_bytes), 100.0 * (double)memory->peak_bytes / (double)unsharded);
	}
	printf("  P: own shard of the parameters, A: of Adam's moments, +: gathered layers and gradients, "
	       "for a "
	       "moment\n");
}

void charlm_summary_print(const struct charlm_summary *s, bool json)
{
	if (json) {
		print_json(s);
		return;
	}
	const struct charlm_plan *plan = s->plan;
	printf("\n  text                   %zu bytes, %u of them distinct, from %u files\n", s->text->count,
	       s->text->vocabulary, s->text->nfiles);
	printf("  model                  %zu parameters in %d layers\n", plan->model->numel, CHARLM_UNITS);
	printf("  run                    %s: %u ranks, %u steps of %u x %u x %u samples\n", s->mode,
	       plan->ranks, plan->steps, plan->ranks, plan->accum, plan->batch);
	printf("  loss                   %.4f -> %.4f (of %.4f by guessing)\n", s->first_loss, s->last_loss,
	       log(s->text->vocabulary));
	printf("  writes before          %s\n", s->before);
	printf("  writes after           %s\n", s->after);
	if (s->compared)
		print_comparison(s);
	if (s->skipped > 0)
		printf("  overflow               %u steps without an update\n", s->skipped);
	printf("  time                   %.1f s, %.0f tokens/s\n", s->seconds, tokens_per_second(s));
	if (!s->sharded)
		return;
	printf("  gathers                %" PRIu64 "\n", s->gathers);
	print_memory(s);
}
