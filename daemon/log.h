/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - where log lines go: the journal, with their fields, or stderr. */
#ifndef ZD_DAEMON_LOG_H
#define ZD_DAEMON_LOG_H

#include <stdbool.h>

/* To the journal when stderr leads there and `foreground` does not forbid it; otherwise to stderr. */
void zd_log_open(bool foreground);

#endif
