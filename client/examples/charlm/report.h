/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - what charlm prints: progress while a crew works, and the summary at the end. */
#ifndef CHARLM_REPORT_H
#define CHARLM_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "run.h"

struct charlm_progress {
	bool quiet, terminal, sharded;
	bool on_second_line; /* where the last picture left the cursor */
	const struct charlm_plan *plan;
	const struct charlm_outcome *outcome; /* whose losses are shown */
	const char *title;
	uint64_t begin_ns, shown_ns; /* 0: not yet */
	uint32_t shown_step;
	double seconds; /* of training, when the crew is done */
};

/* Fits charlm_crew.heard, with the progress as its argument. */
void charlm_progress_heard(void *arg, const struct charlm_crew *crew, const struct charlm_worker *worker);
/* Leaves the line that is rewritten, so that something else can be printed. */
void charlm_progress_break(struct charlm_progress *progress);

/* Return the sum of the workers' gathers, and the largest of their devices' peaks. */
uint64_t charlm_crew_gathers(const struct charlm_crew *crew);
uint64_t charlm_crew_peak_bytes(const struct charlm_crew *crew);

/* Bytes that one process without sharding needs for parameters, gradients and Adam's two moments. */
uint64_t charlm_unsharded_bytes(const struct charlm_model *model);

/* Of a rank's device, which other ranks may share. */
struct charlm_device_memory {
	uint64_t peak_bytes;
	uint64_t shard_bytes; /* of the parameters of all its ranks */
};

#define CHARLM_SAMPLE_BYTES 73 /* with the zero byte */

struct charlm_summary {
	const struct charlm_plan *plan;
	const struct charlm_text *text;
	const char *mode; /* "sharded", "reference", "full-batch" */
	double first_loss, last_loss, seconds;
	uint32_t skipped;
	bool sharded;
	uint64_t gathers, peak_bytes;        /* when sharded */
	struct charlm_device_memory *memory; /* of each rank; when sharded. Owned: free() */
	char before[CHARLM_SAMPLE_BYTES], after[CHARLM_SAMPLE_BYTES]; /* text by the model */
	bool compared;
	bool same_losses, same_params; /* bit for bit; when compared */
	double full_batch_difference;  /* the largest, relative to the loss or to one nat; when compared */
};

#define CHARLM_FULL_BATCH_LIMIT 1e-5

/* Whether the comparison, if there was one, has succeeded. */
bool charlm_summary_good(const struct charlm_summary *summary);
void charlm_summary_print(const struct charlm_summary *summary, bool json);

#endif
