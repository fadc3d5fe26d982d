/* SPDX-License-Identifier: Apache-2.0 */
/*
 * activation.h - sockets on which the service manager listens for the daemon, by the protocol of
 * sd_listen_fds(3).
 */
#ifndef ZD_MAIN_ACTIVATION_H
#define ZD_MAIN_ACTIVATION_H

#include <stddef.h>

#include "server/bind.h"

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

/*
 * Fills in the passed sockets, which stay open until the program ends: the daemon's own in bounds[0], that
 * of config->sockets[i] in bounds[1 + i]. `sock` is -1 where none was passed. A socket is recognized by its
 * path; a single one of another path is the daemon's own where `config` has no other sockets. Logs where the
 * daemon's own differs from `config`. INVALID: a descriptor is no listening Unix socket, or `config` has no
 * such path.
 */
int zd_activation_adopt(const struct zd_config *config, struct zd_bound bounds[], struct zd_err *err)
        __attribute__((warn_unused_result));

/* Moves the descriptors of the manager's descriptor store to *found, an array that the caller frees; returns
 * how many. */
size_t zd_activation_take_stored(struct zd_stored **found);

#endif
