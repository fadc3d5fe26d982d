/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work.h - reductions that the target's rank's own process sums, in its own context on its GPU.
 *
 * A session whose client takes work has a channel, and a page into which its GPUs write what sums have come
 * to. The bridge offers each REDUCE of the engine's; one that is taken here is sent as a work, and is over
 * when the fence that the client answers with has passed. What the client cannot begin goes to the backend,
 * which begins none with fences: the engine gives that again without.
 */
#ifndef ZD_API_WORK_H
#define ZD_API_WORK_H

#include <stdbool.h>
#include <stdint.h>

struct zd_api;
struct zd_api_session;
struct zd_command;
struct zd_completion;
struct zd_err;
struct zd_ring;
struct zd_works;

/* Gives an admitted session its channel. Both descriptors are the client's ends, and the caller's. `sums`:
 * its client is asked for sums; else it is told of segments alone. `ahead`: it knows ZD_FEATURE_WORK_AHEAD.
 * Errors: SYSTEM, NO_MEMORY. */
int zd_works_open(struct zd_api_session *session, bool sums, bool ahead, int *channel_fd, int *page_fd,
                  struct zd_err *err) __attribute__((warn_unused_result));
void zd_works_use_rings(struct zd_works *works, struct zd_ring *to_client, struct zd_ring *answers);
/* The engine has let the session go, the backend not yet. Its works end with ABORTED: now, or, where the
 * process may use its devices still, when it cannot any more. A session without a channel is allowed. */
void zd_works_close(struct zd_api_session *session);

/* As in struct zd_bridge_ops. */
bool zd_works_reduce(struct zd_api *api, const struct zd_command *command);
bool zd_works_are_ahead(struct zd_api *api, uint64_t session);
bool zd_works_is_summing(struct zd_api *api, uint64_t session);
void zd_works_completed(struct zd_api *api, struct zd_completion *completion);

/* A segment has been named on the session's connection to be unmapped: its process is to look there without a
 * call of anybody's. */
void zd_works_note_retired(struct zd_api_session *session);
/* All connections have been flushed: sends what is to follow. */
void zd_works_flush(struct zd_api *api);
/* At the end, when the engine is gone. */
void zd_works_free(struct zd_api *api);

#endif
