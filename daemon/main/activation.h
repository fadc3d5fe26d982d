/* SPDX-License-Identifier: Apache-2.0 */
/*
 * activation.h - a socket on which the service manager listens for the daemon: sd_listen_fds(3).
 */
#ifndef ZD_MAIN_ACTIVATION_H
#define ZD_MAIN_ACTIVATION_H

#include <stddef.h>

struct zd_bound;
struct zd_config;
struct zd_err;
struct zd_stored;

/*
 * Reads the passed descriptors. Must be called before the program can exit. If it exits with ZD_EXIT_CONFIG,
 * the connections that wait at the socket are closed. Otherwise they would make the manager start the program
 * again and again, until it closes the socket (systemd.socket(5), TriggerLimitIntervalSec=). Then no client
 * could start the daemon after the configuration was corrected.
 */
void zd_activation_open(void);

/* Returns the passed socket, which stays open until the program ends; bound->sock is -1 if none was passed.
 * Logs where the socket differs from `config`. INVALID: the descriptors are not one listening Unix socket. */
int zd_activation_adopt(const struct zd_config *config, struct zd_bound *bound, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Moves the descriptors of the manager's descriptor store to *found, an array that the caller frees; returns
 * how many. */
size_t zd_activation_take_stored(struct zd_stored **found);

#endif
