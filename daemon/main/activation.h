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
struct zd_stored;

/*
 * Reads the passed descriptors. Must be called before the program can exit. If the program exits with
 * ZD_EXIT_CONFIG, it closes the connections that wait at the socket. Otherwise they would make the manager
 * start the program repeatedly, until the manager closes the socket (systemd.socket(5),
 * TriggerLimitIntervalSec=). Clients then could not start the daemon after the configuration was corrected.
 */
void zd_activation_open(void);

/*
 * Fills in the passed sockets, which remain open until the program ends: the daemon's own in bounds[0], the
 * one of config->sockets[i] in bounds[1 + i]. `sock` is -1 if the socket was not passed. A socket is
 * recognized by its path. If `config` has no other sockets, a single socket with another path is the daemon's
 * own. Logs differences of the daemon's own socket to `config`. INVALID: a descriptor is not a listening Unix
 * socket, or `config` does not have its path.
 */
int zd_activation_adopt(const struct zd_config *config, struct zd_bound bounds[], struct zd_err *err)
        __attribute__((warn_unused_result));

/* Moves the descriptors of the manager's descriptor store to *found, an array that the caller frees. Returns
 * their number. */
size_t zd_activation_take_stored(struct zd_stored **found);

#endif
