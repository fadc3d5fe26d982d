/* SPDX-License-Identifier: Apache-2.0 */
/* processors.h - the number of processors that this process can keep busy. */
#ifndef ZD_BASE_PROCESSORS_H
#define ZD_BASE_PROCESSORS_H

/* Returns the number that the process's affinity and the CPU quotas of its control groups allow (cgroup v2:
 * cpu.max, a fraction rounded down); at least 1. A limit that cannot be read is ignored. `root` is a prefix
 * of /proc and /sys for tests; otherwise "". */
unsigned zd_processors(const char *root);

#endif
