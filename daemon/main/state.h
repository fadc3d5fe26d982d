/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - the store for the state of durable jobs, according to the configuration's keep_state. */
#ifndef ZD_MAIN_STATE_H
#define ZD_MAIN_STATE_H

#include <stdbool.h>

#include "main/config.h"
#include "main/holder.h"
#include "main/marker.h"
#include "server/store.h"

struct zd_notify;

struct zd_state {
	struct zd_notify *notify;
	struct zd_store manager; /* the service manager's descriptor store */
	struct zd_holder holder;
	struct zd_marker marker;
};

/* Opens the store with the former daemon's state. Ignores that state with `discard`, or if that daemon has
 * recorded that it is incomplete. *store is NULL if no state is stored. Uses keep_state and
 * keep_state_ttl. */
int zd_state_open(struct zd_state *state, const struct zd_config *config, bool discard,
                  const char *socket_path, struct zd_notify *notify, struct zd_store **store,
                  struct zd_err *err) __attribute__((warn_unused_result));
/* Closes descriptors of the former daemon that were not taken, and the connection to the holder. */
void zd_state_close(struct zd_state *state);

#endif
