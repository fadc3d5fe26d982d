/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h - what a backend does for the daemon: segments, executors, fence pages.
 *
 * A backend executes the core's commands (core/engine.h) on its devices. `host` emulates devices with memfd
 * segments and one executor thread each; `cuda` drives GPUs. All functions are called from the loop's thread;
 * completions come from executor threads through `done`, which must be thread-safe and cheap.
 */
#ifndef ZD_BACKEND_BACKEND_H
#define ZD_BACKEND_BACKEND_H

#include <sys/types.h>

#include "core/engine.h"

struct zd_backend;
struct zd_err;

#define ZD_FAILURE_TEXT 128

/* Goes from thread to thread, and most have no text: small. Whoever is told frees what it owns. */
struct zd_completion {
	uint64_t op;
	int status;                 /* 0 or ZEROD_E_* */
	char *error;                /* owned; NULL: none */
	struct zd_op_result result; /* its values are owned */
};

/* Fills in status and error. */
void zd_completion_fail(struct zd_completion *completion, int status, const char *error);
void zd_completion_deinit(struct zd_completion *completion);

struct zd_backend_config {
	uint32_t ndevices; /* host: how many */
	const char
	        *devices; /* cuda: which, by UUID or index; NULL, "" or "all": all that this process sees */
	uint64_t arena_bytes; /* a device's; 0: the backend's default */
	/* cuda: of communicators. NCCL is loaded when the first one is asked for. */
	const char *nccl_path;  /* a file; NULL or "": libnccl.so.2 from where the dynamic linker looks */
	bool check_collectives; /* ranks compare what they are to run: all of a communicator's, or none */
	uint64_t collective_timeout_ns; /* for all ranks to meet, to run an operation, to part; 0: none */
	/* Called from executor threads, one completion a command that has an op; it is the callee's from then
	 * on. */
	void (*done)(void *arg, const struct zd_completion *completion);
	void *done_arg;
};

struct zd_backend_ops {
	const char *name;                        /* "host", "cuda" */
	bool sessions_linger, strict_by_segment; /* as in struct zd_engine_config */
	bool collectives; /* likewise: UNIQUE_IDS, COMM_OPEN, COMM_CLOSE, EXCHANGE and AGREE are done */
	bool owners_sum;  /* processes that take work may be asked for REDUCEs instead */
	bool is_prompt;   /* ends commands within microseconds: worth some spinning */

	int (*open)(const struct zd_backend_config *config, struct zd_backend **backend, struct zd_err *err);
	/* Stops the executors - what was submitted is finished or failed, nothing completes afterwards - and
	 * frees all. */
	void (*close)(struct zd_backend *backend);

	uint32_t (*device_count)(const struct zd_backend *backend);
	/* Name and usable bytes. */
	void (*device_info)(const struct zd_backend *backend, uint32_t device, struct zd_device_config *info);
	/* Has the device failed: then with these words. NULL: none ever does. */
	bool (*device_failure)(const struct zd_backend *backend, uint32_t device, char why[ZD_FAILURE_TEXT]);

	/* As in struct zd_engine_sink. NULL: never. */
	bool (*client_copies_own)(const struct zd_backend *backend, uint32_t device, uint64_t bytes);

	/* As in struct zd_engine_sink; never blocks. NULL: nobody has to. */
	void (*expect)(struct zd_backend *backend, uint32_t device);
	/* Never blocks. SEGMENT_CREATE completes through `done` as well. Arrays in the command are copied. */
	void (*submit)(struct zd_backend *backend, const struct zd_command *command);

	/* A descriptor of the segment to hand to a client; owned by the backend, valid until the segment is
	 * destroyed. -1 when there is none. */
	int (*segment_fd)(const struct zd_backend *backend, uint32_t segment);

	/* Makes the session's two fence pages, sealed, and registers them with the executors. The descriptors
	 * belong to the caller. `pid`: the client's process. */
	int (*session_open)(struct zd_backend *backend, uint64_t session, pid_t pid, int *client_fd,
	                    int *daemon_fd, struct zd_err *err);
	/* Watches of the session complete with ABORTED: now, or, where sessions linger and this one does not
	 * end in order, when its process can use no device any more. Its pages go when the last command that
	 * names them is done. */
	void (*session_close)(struct zd_backend *backend, uint64_t session, bool orderly);
	/* Reads a counter of the session's client page, acquire. UINT64_MAX/2 for unknown sessions or
	 * timelines. */
	uint64_t (*timeline_read)(const struct zd_backend *backend, uint64_t session, uint32_t timeline);
};

extern const struct zd_backend_ops zd_backend_host, zd_backend_cuda;

/* What "auto" stands for on this machine: cuda where a driver shows a GPU, else host, with the reason in
 * `why`. */
const struct zd_backend_ops *zd_backend_auto(struct zd_err *why);

#endif
