/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.h - passes requests of a packet to handlers, and the engine's replies to the connection. */
#ifndef ZD_SERVER_DISPATCH_H
#define ZD_SERVER_DISPATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct zd_api;
struct zd_api_session;
struct zd_reply;

/* Handles requests of a packet, or of the rest of one, in order. Returns the bytes of these: see struct
 * zd_conn_ops. */
size_t zd_api_dispatch(struct zd_api_session *session, const uint8_t *bytes, size_t nbytes, bool resumed);

/* Sends the engine's reply on the session's connection. */
void zd_api_reply(struct zd_api *api, const struct zd_reply *reply);

#endif
