/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - the destination of log lines: the journal, with their fields, or stderr. */
#ifndef ZD_MAIN_LOG_H
#define ZD_MAIN_LOG_H

#include <stdbool.h>

/* Selects the journal if stderr is connected to it and `foreground` is false; otherwise stderr. */
void zd_log_open(bool foreground);

#endif
