/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt.h - calls the program's `interrupted` to ask whether a wait shall end. */
#ifndef ZD_CLIENT_INTERRUPT_H
#define ZD_CLIENT_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

#include <zerod.h>

/* Whether the program is never asked in the calling thread: in threads of the library, and under a lock.
 * Returns the former setting. */
bool zc_ask_never(bool never);
/* Returns the time from which a wait that starts now asks the program; UINT64_MAX: never. */
uint64_t zc_ask_from(const struct zerod_client *client);
/* Asks the program if the time has come, and returns whether the wait shall end. Without any lock. */
bool zc_ask(const struct zerod_client *client, uint64_t *due_ns);
/* The socket's receive timeout. */
int zc_ask_slice_ms(const struct zerod_client *client);

#endif
