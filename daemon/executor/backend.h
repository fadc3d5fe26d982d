/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h - the interface between the daemon and a backend: segments, executors, fence pages.
 *
 * A backend executes the core's commands (core/engine.h) on its devices. `host` emulates devices with memfd
 * segments and one executor thread each; `cuda` drives GPUs. The loop's thread calls all functions; executor
 * threads report completions through `done`, which must be thread-safe and cheap.
 */
#ifndef ZD_EXECUTOR_BACKEND_H
#define ZD_EXECUTOR_BACKEND_H

#include <sys/types.h>

#include "core/command.h"

struct zd_backend;
struct zd_err;

#define ZD_FAILURE_TEXT 128

/* A completion is copied from thread to thread. The struct is therefore small, and the text, which most
 * completions lack, is a pointer. The receiver of a completion frees the memory that it owns. */
struct zd_completion {
	uint64_t op;
	int status;                 /* 0 or ZEROD_E_* */
	char *error;                /* owned; NULL: none */
	struct zd_op_result result; /* `values` is owned */
};

/* Sets status and error. */
void zd_completion_fail(struct zd_completion *completion, int status, const char *error);
void zd_completion_deinit(struct zd_completion *completion);

struct zd_backend_config {
	uint32_t ndevices;    /* host: the number of devices */
	const char *devices;  /* cuda: UUIDs or indices; NULL, "" or "all": every visible GPU */
	uint64_t arena_bytes; /* of each device; 0: the backend's default */
	/* of each host memory; 0: no host memory. Devices of host memory have the numbers after the others */
	uint64_t host_arena_bytes;
	/* cuda, for communicators. The daemon loads NCCL when it opens the first one. */
	const char *nccl_path;  /* a file; NULL or "": libnccl.so.2, as the dynamic linker finds it */
	bool check_collectives; /* ranks compare operations before they launch them; the same on all ranks */
	uint64_t collective_timeout_ns; /* for connecting, each operation, and closing; 0: none */
	/* Called by an executor's thread, once for each command that has an op. The callee owns the
	 * completion. */
	void (*done)(void *arg, const struct zd_completion *completion);
	void *done_arg;
};

struct zd_backend_ops {
	const char *name;                        /* "host", "cuda" */
	bool sessions_linger, strict_by_segment; /* as in struct zd_engine_config */
	bool collectives; /* likewise; the backend implements the commands of communicators */
	bool owners_sum;  /* client processes can compute the sums of REDUCEs in place of the backend */
	bool is_prompt;   /* commands complete within microseconds: the loop busy-polls for a moment */

	int (*open)(const struct zd_backend_config *config, struct zd_backend **backend, struct zd_err *err);
	/* Stops the executors and frees everything. Each submitted command has completed or failed before the
	 * function returns, and `done` is not called afterwards. */
	void (*close)(struct zd_backend *backend);

	/* Host memory included. */
	uint32_t (*device_count)(const struct zd_backend *backend);
	/* Returns the device's name and usable bytes in *info. */
	void (*device_info)(const struct zd_backend *backend, uint32_t device, struct zd_device_config *info);
	/* Returns whether the device has failed, and then copies the reason to `why`. NULL: no device ever
	 * fails. */
	bool (*device_failure)(const struct zd_backend *backend, uint32_t device, char why[ZD_FAILURE_TEXT]);

	/* See struct zd_engine_sink; never blocks. NULL: the backend does not need the hint. */
	void (*expect)(struct zd_backend *backend, uint32_t device);
	/* Submits a command; never blocks. SEGMENT_CREATE completes through `done` as well. The backend
	 * copies arrays of the command. */
	void (*submit)(struct zd_backend *backend, const struct zd_command *command);
	/* collect() is submit() for one of several commands, which flush() must follow. NULL: the backend has
	 * only submit(). */
	void (*collect)(struct zd_backend *backend, const struct zd_command *command);
	void (*flush)(struct zd_backend *backend);

	/* Returns the descriptor of the segment, for clients. The backend owns the descriptor, which is valid
	 * until the segment is destroyed. -1: there is no such segment. */
	int (*segment_fd)(const struct zd_backend *backend, uint32_t segment);

	/* Adopts a segment of a daemon that has ended, with its bytes: `fd` is the descriptor that
	 * segment_fd() returned in that daemon. Takes ownership of `fd`, also on failure. Called before any
	 * command, and can block. NULL: not possible. */
	int (*segment_import)(struct zd_backend *backend, uint32_t device, uint32_t segment, uint64_t bytes,
	                      int fd, struct zd_err *err);

	/* Creates the session's two fence pages, sealed, and registers them with the executors. The caller
	 * owns the descriptors. `pid`, `pidfd`: the client's process. A backend that stores the pidfd
	 * duplicates it. */
	int (*session_open)(struct zd_backend *backend, uint64_t session, pid_t pid, int pidfd,
	                    int *client_fd, int *daemon_fd, struct zd_err *err);
	/* Closes the session: its watches complete with ABORTED, at once. In a backend whose sessions linger,
	 * unless `clean_exit`, they complete when the process can no longer use a device. The pages are freed
	 * with the last command that names them. */
	void (*session_close)(struct zd_backend *backend, uint64_t session, bool clean_exit);
	/* Reads a counter of the session's client page with acquire order. UINT64_MAX/2 for an unknown
	 * session or timeline. */
	uint64_t (*timeline_read)(const struct zd_backend *backend, uint64_t session, uint32_t timeline);
};

extern const struct zd_backend_ops zd_backend_host, zd_backend_cuda;

/* Returns the backend that "auto" selects on this machine: cuda if the driver finds a GPU, otherwise host,
 * with the reason in `why`. */
const struct zd_backend_ops *zd_backend_auto(struct zd_err *why);

#endif
