/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holder.h - a process that holds descriptors of durable jobs while no daemon runs, if no service manager
 * does it.
 *
 * The daemon starts it as a child, `zerod --hold`, at the first descriptor. The process listens at the
 * daemon's socket path with ".state" appended, and serves one daemon at a time. It ends when it has neither a
 * daemon nor a descriptor, or has had no daemon for the time that the last one has set. It holds either all
 * descriptors that the daemon has sent, or none. If it is killed while the daemon runs, the daemon starts
 * another one.
 */
#ifndef ZD_MAIN_HOLDER_H
#define ZD_MAIN_HOLDER_H

#include <stdbool.h>
#include <uv.h>

#include "main/outbox.h"
#include "server/store.h"

#define ZD_HOLDER_PROGRAM_ARG "--hold"

struct zd_holder {
	struct zd_store store;
	char path[128];
	uint32_t ttl_s;       /* see zd_holder_open() */
	bool takes_ttl;       /* the process is of a version that does */
	int sock;             /* -1: closed */
	struct zd_outbox box; /* messages that the process has not received yet */
	uv_loop_t *loop;
	uv_poll_t *poll; /* NULL: not watched */
	void (*ended)(void *arg);
	void *ended_arg;
};

/* Connects to the holder of a daemon with this socket, or starts one, and receives its descriptors. After the
 * end of this daemon the holder waits `ttl_s` seconds for the next one; 0: for ever. Errors: SYSTEM, LIMIT:
 * the path is too long. */
int zd_holder_open(struct zd_holder *holder, const char *socket_path, uint32_t ttl_s, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Calls `ended` in the loop when the process has ended although it holds descriptors. The store can be
 * renewed then. Does nothing without a holder. */
void zd_holder_watch(struct zd_holder *holder, uv_loop_t *loop, void (*ended)(void *arg), void *arg);
/* Begins to close the watch's handle. */
void zd_holder_unwatch(struct zd_holder *holder);
void zd_holder_close(struct zd_holder *holder);

/* The holder's program. Its arguments are the number of its listening descriptor, and the path of the socket
 * for `zeroctl holders`. Returns its exit status. */
int zd_holder_main(int argc, char **argv);

#endif
