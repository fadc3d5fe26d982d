/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - the command line, and the configuration that results from it and the file. */
#ifndef ZD_MAIN_OPTIONS_H
#define ZD_MAIN_OPTIONS_H

#include <stdbool.h>
#include <stdio.h>

struct zd_config;
struct zd_err;

#define ZD_OPTIONS_SETTINGS 10u

/* Option values as text; NULL: not given. */
struct zd_options {
	const char *config_path;
	const char *settings[ZD_OPTIONS_SETTINGS]; /* of the options that override a key */
	bool check_config, foreground, discard_state;
};

/* Exits after --help and --version, and with status 2 after an invalid command line. */
void zd_options_parse(int argc, char **argv, struct zd_options *options);

/* Applies defaults, then the file (the default one only if it exists), then the command line; and reads the
 * key file. Called at the start and at each reload. `errors`: see zd_config_read(). */
int zd_options_load(const struct zd_options *options, FILE *errors, struct zd_config *config,
                    struct zd_err *err) __attribute__((warn_unused_result));

#endif
