/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marker.h - a file beside the socket that says what the store has of durable jobs. A daemon that finds
 * nothing in the store learns from the file whether there should be something.
 *
 * The file is at the path of the socket with ".kept" behind it, belongs to the daemon's user, and exists
 * while there are durable jobs that a store keeps. It names the place of the store, since another store may
 * still have them, and the boot, since no store outlives that.
 */
#ifndef ZD_MAIN_MARKER_H
#define ZD_MAIN_MARKER_H

#include "server/store.h"

struct zd_marker {
	char path[128];    /* "": none, as the path of the socket is too long */
	const char *place; /* a word */
};

void zd_marker_init(struct zd_marker *marker, const char *socket_path, const char *place);
/* Returns what the file says, if it is of this user, place and boot; otherwise ZD_KEPT_NOTHING. */
enum zd_kept zd_marker_read(const struct zd_marker *marker);
/* Replaces the file in one step, or removes it (ZD_KEPT_NOTHING). A failure is logged: the next daemon then
 * does not know of a loss. */
void zd_marker_write(const struct zd_marker *marker, enum zd_kept kept);

#endif
