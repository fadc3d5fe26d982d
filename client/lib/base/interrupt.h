/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt.h - asks the program whether it gives up a wait. */
#ifndef ZD_CLIENT_INTERRUPT_H
#define ZD_CLIENT_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

#include <zerod.h>

/* Whether the program is asked in the calling thread. Not in threads of the library, nor under a lock. */
void zc_ask_never(bool never);
/* Returns the time from which a wait that begins now asks the program; UINT64_MAX: never. */
uint64_t zc_ask_from(const struct zerod_client *client);
/* Asks if the time has come, and returns whether the wait is given up. Without any lock. */
bool zc_ask(const struct zerod_client *client, uint64_t *due_ns);
/* The socket's receive timeout. */
int zc_ask_slice_ms(const struct zerod_client *client);

#endif
