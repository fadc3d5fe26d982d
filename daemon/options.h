/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - the command line, and the configuration that it and the file make together. */
#ifndef ZD_DAEMON_OPTIONS_H
#define ZD_DAEMON_OPTIONS_H

#include <stdbool.h>

struct zd_config;
struct zd_err;

/* Texts as given; NULL: not given. */
struct zd_options {
	const char *config_path;
	const char *socket, *backend, *devices, *gpus, *arena, *nccl;
	bool check_config, foreground;
};

/* Ends the program for --help and --version, and, with exit status 2, for what it does not understand. */
void zd_options_parse(int argc, char **argv, struct zd_options *options);

/* Defaults, then the file (the default one only if it exists), then the command line. At start and at each
 * reload. */
int zd_options_load(const struct zd_options *options, struct zd_config *config, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
