/* SPDX-License-Identifier: Apache-2.0 */
/* errors.h - the text of the last failure, per client and thread. */
#ifndef ZD_CLIENT_ERRORS_H
#define ZD_CLIENT_ERRORS_H

#include <stdint.h>

#include <zerod.h>

#include "base/err.h"

/* Returns the calling thread's last error on the client (NULL: without a client). Never NULL; valid until the
 * thread's next zc_err() for another client. */
struct zd_err *zc_err(const struct zerod_client *client);
/* Returns a number of the calling thread that no other thread ever has. */
uint64_t zc_thread_serial(void);

#endif
