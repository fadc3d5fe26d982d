/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keeper.h - preserves durable jobs across restarts of the daemon.
 *
 * The keeper writes the engine's journal into the registry, and puts the registry and the segments of durable
 * jobs into a store. The next daemon's keeper restores the engine from these, and waits for the ends of the
 * former daemon's sessions' processes.
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
	struct zd_store *store;  /* NULL: the keeper does not store anything */
	struct zd_store *opened; /* for notes, also after it has stopped to store jobs; NULL: none */
	enum zd_kept noted;
	char lost[ZD_ERR_TEXT_BYTES]; /* the former daemon's jobs that this daemon did not find; "": all were
	                                 found */
	uint32_t nlost_jobs;          /* not 0: all but these were found, and `lost` names one of them */
	struct zd_registry registry;
	struct zd_kept_segment *kept; /* the store's segments */
	size_t nkept, kept_room;
	bool has_dropped;
	LIST_HEAD(, zd_former) formers; /* processes that are awaited */
};

/* Restores the content of the store, and records from now on. Does nothing without a store. STATE, with the
 * reason: the content of the store cannot be restored as a whole. */
int zd_keeper_open(struct zd_keeper *keeper, struct zd_bridge *bridge, struct zd_store *store,
                   struct zd_err *err) __attribute__((warn_unused_result));
/* Ends the watches of processes. The store retains its content, unless no durable job remains. */
void zd_keeper_close(struct zd_keeper *keeper);

/* Called when the store has lost its content: puts everything into a new one. */
void zd_keeper_put_again(struct zd_keeper *keeper);
/* Writes all changes. Called before replies are sent. */
void zd_keeper_write(void *arg);

/* The engine's callbacks, see struct zd_engine_sink. */
bool zd_keeper_has_segment(const struct zd_keeper *keeper, uint32_t segment);
void zd_keeper_job_lost(struct zd_keeper *keeper, const struct zd_notice *notice);
int zd_keeper_restore_segment(struct zd_keeper *keeper, uint32_t device, uint32_t segment, uint64_t bytes,
                              struct zd_err *err) __attribute__((warn_unused_result));
void zd_keeper_keep_segment(struct zd_keeper *keeper, uint32_t segment, bool kept);

/* Accepts a WATCH of a former session's process, and delays the SEGMENT_DESTROY of a segment that the
 * registry still has. Returns false for any other command. */
bool zd_keeper_submit(struct zd_keeper *keeper, const struct zd_command *command);
/* Records that the process of these former sessions does not use their memory any more. Ignores other ids,
 * and ids of other processes. */
void zd_keeper_process_done(struct zd_keeper *keeper, const struct zd_creds *creds, const uint64_t *sessions,
                            size_t nsessions);

/* Returns the start time of the process, in clock ticks since the boot, or 0 if it does not exist. */
uint64_t zd_process_started(pid_t pid);

#endif
