/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - where descriptors outlive the daemon: at the service manager, or at a process that holds them.
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
	ZD_KEPT_NOTHING, /* there are none */
	ZD_KEPT_JOBS,
	ZD_KEPT_LOST /* there are some, and the store could not keep them: its content is not all of theirs */
};

struct zd_store {
	/* The descriptors of the daemon before, which this one owns. They stay in the store, too. */
	struct zd_stored *found;
	size_t nfound;
	void *arg;
	uint32_t room; /* descriptors that it has room for; 0: any number */
	/* Puts a copy of the descriptor into the store, which may receive it later. Calls do not block. The
	 * store receives all of them in order, unless the daemon is killed before. */
	int (*put)(void *arg, const char *name, int fd, struct zd_err *err);
	void (*remove)(void *arg, const char *name);
	/* Returns errno if descriptors that were put are lost; 0: none. NULL: it reports that itself. */
	int (*error)(void *arg);
	/* Makes the store anew, empty, if it has been lost. NULL: it cannot be lost. */
	int (*renew)(void *arg, struct zd_err *err);
	enum zd_kept expected; /* as the daemon before has noted */
	void *note_arg;
	void (*note)(void *arg, enum zd_kept kept);
};

#endif
