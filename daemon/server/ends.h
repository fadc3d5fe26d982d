/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ends.h - ends of sessions, and of ranks that leave, that need several steps of the engine.
 *
 * The steps are tasks of the sessions' user, and precede all waiting requests of the user. The backend closes
 * a session after the last step, because commands can name the session until then.
 */
#ifndef ZD_SERVER_ENDS_H
#define ZD_SERVER_ENDS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct zd_api;

/* The engine has incomplete ends of the uid's sessions. */
void zd_ends_begin(struct zd_api *api, uid_t uid);
/* Closes the session, which has ended, in the backend: at once, or when the engine has freed its objects. */
void zd_ends_close_session(struct zd_api *api, uid_t uid, uint64_t session, bool clean_exit);
/* Completes all ends: the backend will be closed. */
void zd_ends_finish(struct zd_api *api);

#endif
