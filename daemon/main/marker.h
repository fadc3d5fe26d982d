/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marker.h - a file next to the socket that says which durable jobs the store should have.
 *
 * A daemon that finds an empty store learns from the file whether durable jobs are missing. The file is at
 * the path of the socket with ".kept" appended, belongs to the daemon's user, and exists while a store has
 * durable jobs. It names the place of the store, because another store can still have them, and the boot,
 * because no store outlives the boot.
 */
#ifndef ZD_MAIN_MARKER_H
#define ZD_MAIN_MARKER_H

#include "server/store.h"

struct zd_marker {
	char path[128];    /* "": none, because the path of the socket is too long */
	const char *place; /* a word */
};

void zd_marker_init(struct zd_marker *marker, const char *socket_path, const char *place);
/* Returns the content of the file if it is of this user, place and boot, otherwise ZD_KEPT_NOTHING. */
enum zd_kept zd_marker_read(const struct zd_marker *marker);
/* Replaces the file in one step, or removes it (ZD_KEPT_NOTHING). A failure is logged: the next daemon then
 * does not know of a loss. */
void zd_marker_write(const struct zd_marker *marker, enum zd_kept kept);

#endif
