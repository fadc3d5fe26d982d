/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h - the engine's listing rows as messages. */
#ifndef ZD_SERVER_ROWS_H
#define ZD_SERVER_ROWS_H

#include "core/engine.h"
#include "proto/frame.h"
#include "proto/zerod.pb-c.h"

/* Longer lists inside a row are cut, and the last entry says so: every row fits a packet. */
#define ZD_ROW_MAX_WAITS   64u
#define ZD_ROW_MAX_HOLDERS 256u

/* Returns a copy of the row in the arena, strings included. */
Zd__Row *zd_rows_message(const struct zd_row *row, struct zd_arena *arena);

void zd_rows_usage(const struct zd_usage *usage, Zd__Usage *message);

#endif
