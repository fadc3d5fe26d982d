/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sockets.h - the sockets on which the daemon listens: its own, and those of [socket NAME].
 */
#ifndef ZD_MAIN_SOCKETS_H
#define ZD_MAIN_SOCKETS_H

#include <stdbool.h>

#include "main/config.h"
#include "server/api.h"
#include "server/bind.h"
#include "server/listener.h"

struct zd_served_socket {
	struct zd_bound bound; /* sock -1: not open */
	bool activated;        /* the service manager owns the socket */
	bool listening;
	struct zd_listener listener;
	struct zd_api_socket at; /* not used for the daemon's own socket */
};

struct zd_sockets {
	unsigned count;
	struct zd_served_socket all[1 + ZD_CONFIG_SOCKETS]; /* the daemon's own is the first */
};

/* Adopts the sockets that the service manager has passed, and binds the others. On failure the caller closes
 * nothing. */
int zd_sockets_open(struct zd_sockets *sockets, const struct zd_config *config, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Serves the sockets. On failure some can be served. */
int zd_sockets_listen(struct zd_sockets *sockets, struct zd_loop *loop, struct zd_api *api,
                      struct zd_err *err) __attribute__((warn_unused_result));
/* Stops accepting, and starts to close the handles. */
void zd_sockets_stop(struct zd_sockets *sockets);
/* Closes the sockets that the daemon has bound, and removes their files. */
void zd_sockets_close(struct zd_sockets *sockets);
/* The path of the daemon's own socket. */
const char *zd_sockets_path(const struct zd_sockets *sockets);

#endif
