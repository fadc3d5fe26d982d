/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the store in which descriptors outlive the daemon: at the service manager, or at a holder
 * process.
 *
 * A descriptor has a name: "registry", or "segment-7".
 */
#ifndef ZD_SERVER_STORE_H
#define ZD_SERVER_STORE_H

#include <stddef.h>
#include <stdint.h>

struct zd_err;

#define ZD_STORE_NAME_BYTES 32u

struct zd_stored {
	char name[ZD_STORE_NAME_BYTES];
	int fd; /* -1: it was taken */
};

/* The content of a store, as a daemon notes it for the next one. */
enum zd_kept {
	ZD_KEPT_NOTHING, /* no durable jobs exist */
	ZD_KEPT_JOBS,
	ZD_KEPT_LOST /* durable jobs exist, and the store does not have all of them */
};

struct zd_store {
	/* The descriptors of the former daemon, which this daemon owns. They also remain in the store. */
	struct zd_stored *found;
	size_t nfound;
	void *arg;
	uint32_t room; /* maximum number of descriptors; 0: no limit */
	/* Puts a copy of the descriptor into the store, which can receive it later. Calls do not block. The
	 * store receives all of them in order, unless the daemon is killed before. */
	int (*put)(void *arg, const char *name, int fd, struct zd_err *err);
	void (*remove)(void *arg, const char *name);
	/* Returns errno if descriptors are lost, otherwise 0. NULL: the store reports the loss itself. */
	int (*error)(void *arg);
	/* Creates the store again, empty, if it has been lost. NULL: it cannot be lost. */
	int (*renew)(void *arg, struct zd_err *err);
	enum zd_kept expected; /* as the daemon before has noted */
	void *note_arg;
	void (*note)(void *arg, enum zd_kept kept);
};

#endif
