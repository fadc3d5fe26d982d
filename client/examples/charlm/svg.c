/* SPDX-License-Identifier: Apache-2.0 */
/*
 * svg.c - a picture of a run: the loss of each step, and below it the bytes in use on rank 0's device.
 *
 * A curve has MAX_POINTS points at most; with more steps each point is one of several steps.
 */
#include "svg.h"

#include <inttypes.h>
#include <math.h>

#define WIDTH      720
#define PANEL      200 /* the height of a curve's panel */
#define GAP        50  /* around panels, for titles and numbers */
#define MAX_POINTS 600u

struct panel {
	FILE *file;
	double top;     /* of the panel in the picture */
	double highest; /* the value at the top; 0 is at the bottom */
	uint32_t steps;
};

static double x_of(const struct panel *panel, uint32_t step)
{
	return GAP + (double)(WIDTH - 2 * GAP) * (step - 1) / fmax(panel->steps - 1, 1);
}

static double y_of(const struct panel *panel, double value)
{
	return panel->top + PANEL * (1 - value / panel->highest);
}

static void print_panel(const struct panel *panel, const char *title, const char *unit)
{
	(void)fprintf(panel->file, "<text x=\"%d\" y=\"%.0f\" font-weight=\"bold\">%s</text>\n", GAP,
	              panel->top - 8, title);
	(void)fprintf(
	        panel->file,
	        "<rect x=\"%d\" y=\"%.0f\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#888\"/>\n", GAP,
	        panel->top, WIDTH - 2 * GAP, PANEL);
	(void)fprintf(panel->file, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\">%.2f</text>\n", GAP - 4,
	              panel->top + 12, panel->highest);
	(void)fprintf(panel->file, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\">0</text>\n", GAP - 4,
	              panel->top + PANEL);
	(void)fprintf(panel->file, "<text x=\"%d\" y=\"%.0f\">step 1</text>\n", GAP, panel->top + PANEL + 16);
	(void)fprintf(panel->file,
	              "<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\">step %" PRIu32 ", %s</text>\n",
	              WIDTH - GAP, panel->top + PANEL + 16, panel->steps, unit);
}

static void print_level(const struct panel *panel, double value, const char *color, const char *text)
{
	(void)fprintf(panel->file,
	              "<path d=\"M%d %.1fH%d\" stroke=\"%s\" stroke-dasharray=\"4\"/>\n"
	              "<text x=\"%d\" y=\"%.1f\" fill=\"%s\" text-anchor=\"end\">%s %.2f</text>\n",
	              GAP, y_of(panel, value), WIDTH - GAP, color, WIDTH - GAP - 4, y_of(panel, value) + 14,
	              color, text, value);
}

static double mib_at(const struct charlm_outcome *outcome, uint32_t step)
{
	return (double)outcome->live_bytes[step - 1] / (1 << 20);
}

static void print_curve(const struct panel *panel, const struct charlm_outcome *outcome,
                        double (*value)(const struct charlm_outcome *, uint32_t), const char *color)
{
	uint32_t stride = (panel->steps + MAX_POINTS - 1) / MAX_POINTS;

	(void)fprintf(panel->file, "<polyline fill=\"none\" stroke=\"%s\" points=\"", color);
	for (uint32_t step = 1; step <= panel->steps; step += stride) {
		double found = value(outcome, step);

		(void)fprintf(panel->file, "%.1f,%.1f ", x_of(panel, step),
		              y_of(panel, isfinite(found) ? found : panel->highest));
	}
	(void)fprintf(panel->file, "\"/>\n");
}

static double highest_loss(const struct charlm_outcome *outcome)
{
	double highest = 0;

	for (uint32_t step = 1; step <= outcome->steps; step++)
		if (isfinite(charlm_outcome_loss(outcome, step)))
			highest = fmax(highest, charlm_outcome_loss(outcome, step));
	return highest > 0 ? highest : 1;
}

int charlm_svg_write(FILE *file, const struct charlm_outcome *outcome, const struct charlm_svg_memory *memory)
{
	struct panel loss = {
	        .file = file, .top = GAP, .steps = outcome->steps, .highest = highest_loss(outcome)};
	struct panel bytes = {.file = file,
	                      .top = PANEL + 2 * GAP,
	                      .steps = outcome->steps,
	                      .highest = 1.1 * fmax(memory->unsharded_mib, memory->peak_mib)};

	(void)fprintf(file,
	              "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
	              "font-family=\"sans-serif\" "
	              "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
	              WIDTH, memory->peak_mib > 0 ? 2 * PANEL + 3 * GAP : PANEL + 2 * GAP);
	print_panel(&loss, "Loss", "nats a byte");
	print_curve(&loss, outcome, charlm_outcome_loss, "#1f77b4");
	if (memory->peak_mib > 0) {
		print_panel(&bytes, "Memory on rank 0's device, in the middle of each step", "MiB");
		print_level(&bytes, memory->unsharded_mib, "#888", "one process, unsharded:");
		print_level(&bytes, memory->peak_mib, "#d62728", "peak:");
		print_curve(&bytes, outcome, mib_at, "#2ca02c");
	}
	(void)fprintf(file, "</svg>\n");
	return fflush(file) != 0 || ferror(file) ? -1 : 0;
}
