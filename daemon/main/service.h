/* SPDX-License-Identifier: Apache-2.0 */
/* service.h - the life cycle of the daemon: start, readiness, reload, drain, end. */
#ifndef ZD_MAIN_SERVICE_H
#define ZD_MAIN_SERVICE_H

#include <stdint.h>

struct zd_config;
struct zd_options;

enum zd_exit { ZD_EXIT_OK = 0, ZD_EXIT_FAILURE = 1, ZD_EXIT_CONFIG = 2 };

/* Serves until a signal ends it. `started_ns` is the start of the program (zd_loop_now_ns()); each reload
 * reads the options' file again. Returns an enum zd_exit. */
int zd_service_run(const struct zd_options *options, const struct zd_config *config, uint64_t started_ns);

#endif
