/* SPDX-License-Identifier: Apache-2.0 */
/* read.h - mappings and watches of readers. */
#ifndef ZD_CLIENT_READ_H
#define ZD_CLIENT_READ_H

#include <sys/queue.h>

#include <zerod_read.h>

#include "client/lib/base/client.h"
#include "proto/zerod.pb-c.h"

struct zc_segment;

struct zerod_mapped {
	struct zerod_client *client;
	struct zc_segment *segment;
	Zd__UnitRead request; /* that zerod_unit_map_end() repeats; its unit is owned */
	LIST_ENTRY(zerod_mapped) link;
};

/* Frees a mapping at its client's end. */
void zc_mapped_free(struct zerod_mapped *mapped);

/* Makes the message of the source. Its strings are the caller's. Errors: INVALID. */
int zc_commit_wait_make(const struct zerod_commit_source *given, uint64_t after, Zd__CommitWait *wait,
                        uint32_t *deadline_ms, struct zd_err *err) __attribute__((warn_unused_result));
/* Takes the answer. `saved`: the message asked for a host copy. Errors: UNSUPPORTED, of an older daemon. */
int zc_commit_wait_take(const Zd__Reply *reply, bool saved, struct zerod_committed *made, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The client ends. Its watches remain, for zerod_watch_end(). */
void zc_watches_forget(struct zerod_client *client);

#endif
