/* SPDX-License-Identifier: Apache-2.0 */
/*
 * activation.h - the socket that a service manager listens on for the daemon: sd_listen_fds(3).
 */
#ifndef ZD_DAEMON_ACTIVATION_H
#define ZD_DAEMON_ACTIVATION_H

struct zd_bound;
struct zd_config;
struct zd_err;

/*
 * Finds what was passed, before anything else may end the program. Should that end with ZD_EXIT_CONFIG, the
 * connections that wait at the socket are closed: while they wait, the manager starts the program again and
 * again, until it gives the socket up (systemd.socket(5), TriggerLimitIntervalSec=), and no client can bring
 * the daemon back when the configuration is mended.
 */
void zd_activation_open(void);

/* The socket, which stays open until the program ends; with none passed, bound->sock is -1. What it has
 * otherwise than `config` would have it, is logged. INVALID: what was passed is no such socket. */
int zd_activation_adopt(const struct zd_config *config, struct zd_bound *bound, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
