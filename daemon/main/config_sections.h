/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_sections.h - the sections with names or keys that the administrator chooses: [socket NAME] and
 * [grants].
 */
#ifndef ZD_MAIN_CONFIG_SECTIONS_H
#define ZD_MAIN_CONFIG_SECTIONS_H

#include <stdbool.h>

struct zd_config;
struct zd_err;

#define ZD_GRANTS_SECTION "grants"

/* Returns whether this is "socket NAME", with a valid name. */
bool zd_config_is_socket(const char *section);
/* These functions apply one setting. The first setting of a socket adds the socket. INVALID, with the
 * expected and the found value. */
int zd_config_set_socket(struct zd_config *config, const char *section, const char *key, const char *value,
                         struct zd_err *err) __attribute__((warn_unused_result));
int zd_config_add_grant(struct zd_config *config, const char *key, const char *value, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Checks that each socket has a path of its own. */
int zd_config_check_sockets(const struct zd_config *config, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
