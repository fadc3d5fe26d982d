/* SPDX-License-Identifier: Apache-2.0 */
/* svg.h - a picture of a run. */
#ifndef CHARLM_SVG_H
#define CHARLM_SVG_H

#include <stdio.h>

#include "run.h"

struct charlm_svg_memory {
	double unsharded_mib; /* of one process without sharding */
	double peak_mib;      /* of a device; 0: the run was not sharded, and there is no memory to draw */
};

/* Returns -1, with errno, if the file could not be written. */
__attribute__((warn_unused_result)) int charlm_svg_write(FILE *file, const struct charlm_outcome *outcome,
                                                         const struct charlm_svg_memory *memory);

#endif
