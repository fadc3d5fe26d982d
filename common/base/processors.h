/* SPDX-License-Identifier: Apache-2.0 */
/* processors.h - how many processors this process may keep busy. */
#ifndef ZD_BASE_PROCESSORS_H
#define ZD_BASE_PROCESSORS_H

/* By its affinity, and by the CPU quotas of its control groups (cgroup v2: cpu.max, a fraction rounded down);
 * at least 1. What cannot be read limits nothing. `root` goes before /proc and /sys: "" but in tests. */
unsigned zd_processors(const char *root);

#endif
