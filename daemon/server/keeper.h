/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keeper.h - keeps durable jobs over the end of the daemon.
 *
 * The keeper writes the engine's journal into the registry, and puts the registry and the segments of durable
 * jobs into a store. The next daemon's keeper restores the engine from these, and awaits the processes of the
 * former daemon's sessions.
 */
#ifndef ZD_SERVER_KEEPER_H
#define ZD_SERVER_KEEPER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "base/err.h"
#include "server/registry.h"
#include "server/store.h"

struct zd_bridge;
struct zd_command;
struct zd_creds;
struct zd_former;
struct zd_kept_segment;
struct zd_notice;

struct zd_keeper {
	struct zd_bridge *bridge;
	struct zd_store *store;  /* NULL: nothing is kept */
	struct zd_store *opened; /* for notes, also when it keeps nothing any more; NULL: none */
	enum zd_kept noted;
	char lost[ZD_ERR_TEXT_BYTES]; /* what the daemon before kept and this one did not find; "": nothing */
	uint32_t nlost_jobs;          /* not 0: all but these were found, and `lost` names one of them */
	struct zd_registry registry;
	struct zd_kept_segment *kept; /* the store's segments */
	size_t nkept, kept_room;
	bool has_dropped;
	LIST_HEAD(, zd_former) formers; /* processes that are awaited */
};

/* Restores what is in the store, and records from now on. Without a store it does nothing. STATE, with the
 * reason: what is in the store cannot be restored as a whole. */
int zd_keeper_open(struct zd_keeper *keeper, struct zd_bridge *bridge, struct zd_store *store,
                   struct zd_err *err) __attribute__((warn_unused_result));
/* Ends the watches of processes. The store keeps what it has, unless no durable job is left. */
void zd_keeper_close(struct zd_keeper *keeper);

/* The store has lost what it had: puts everything into a new one. */
void zd_keeper_put_again(struct zd_keeper *keeper);
/* Writes what has changed. Called before replies are sent. */
void zd_keeper_write(void *arg);

/* The engine's callbacks, see struct zd_engine_sink. */
bool zd_keeper_has_segment(const struct zd_keeper *keeper, uint32_t segment);
void zd_keeper_job_lost(struct zd_keeper *keeper, const struct zd_notice *notice);
int zd_keeper_restore_segment(struct zd_keeper *keeper, uint32_t device, uint32_t segment, uint64_t bytes,
                              struct zd_err *err) __attribute__((warn_unused_result));
void zd_keeper_keep_segment(struct zd_keeper *keeper, uint32_t segment, bool kept);

/* Takes a WATCH that awaits the process of a former session, and delays the SEGMENT_DESTROY of a segment that
 * the registry still has; returns false for any other command. */
bool zd_keeper_submit(struct zd_keeper *keeper, const struct zd_command *command);
/* The process of these former sessions says that it uses nothing of theirs any more. Ignores other ids, and
 * those of other processes. */
void zd_keeper_process_done(struct zd_keeper *keeper, const struct zd_creds *creds, const uint64_t *sessions,
                            size_t nsessions);

/* Returns the time at which the process was started, in clock ticks since the boot; 0: there is no such
 * process. */
uint64_t zd_process_started(pid_t pid);

#endif
