/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zerod_read.h - reads of a group's last commit by a process that is no rank of it. See docs/readers.md.
 *
 * The daemon copies the bytes, or the reader maps them. No rank takes part, and a reader that is slow,
 * stopped or dead delays none: an update waits for copies that are under way, or are made for a pin, and for
 * nothing else of a reader.
 */
#ifndef ZEROD_READ_H
#define ZEROD_READ_H

#include <zerod.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* The commit remains readable until this client's end, its next zerod_commit_wait() of the group, one with
 * this flag, or the pin's deadline. Updates save the shards, or the shadows that hold it, before they
 * overwrite them, in memory that is not needed otherwise. A group has one pinned commit at a time. Without
 * that memory, for units with ZEROD_UNIT_UNSAVED, or if another commit is pinned already, reads are as
 * without this flag. */
#define ZEROD_COMMIT_PIN 1u
/* The commit is the last one of which the group has a host copy: see zerod_commit_save(). This client then
 * reads it there, which holds up no update. Not with ZEROD_COMMIT_PIN. */
#define ZEROD_COMMIT_SAVED 2u

/* A group whose commits are read. */
struct zerod_commit_source {
	size_t struct_size;
	const char *job, *group; /* as in zerod_group_options */
	uint32_t uid;            /* the job's; 0: this process's */
	uint32_t deadline_ms;
	uint32_t flags;  /* ZEROD_COMMIT_* */
	uint32_t pin_ms; /* of ZEROD_COMMIT_PIN: the deadline, from this call's return on; 0: 10000 */
};

/* The last commit of a group. */
struct zerod_committed {
	size_t struct_size;
	uint64_t group; /* for zerod_unit_read(); another value when the group was formed anew */
	uint64_t step;  /* of zerod_commit() */
};

/* Waits until a step after `after` is committed, or with ZEROD_COMMIT_SAVED until it has a host copy; 0: any.
 * Errors: NOT_FOUND (no such group, or it has ended), PERMISSION (a job of another uid; see reader_groups in
 * zerod.conf), UNSUPPORTED (the group spans daemons, or its collectives are NCCL's; an older daemon),
 * DEADLINE (names a rank that has not committed), PEER_LOST and ABORTED (a rank of a job that is not durable
 * was lost, or the group was aborted). */
ZEROD_MUST_USE int zerod_commit_wait(zerod_client *client, const struct zerod_commit_source *source,
                                     uint64_t after, struct zerod_committed *committed);

typedef struct zerod_watch zerod_watch;

/* zerod_commit_wait() for an event loop: the call returns at once. The watch's descriptor becomes readable
 * when zerod_watch_take() has a result, and sometimes before. It is for poll(), epoll and the like, and the
 * program must not read or close it. Errors: INVALID, LIMIT (too many requests without an answer), SYSTEM. */
ZEROD_MUST_USE int zerod_commit_watch(zerod_client *client, const struct zerod_commit_source *source,
                                      uint64_t after, zerod_watch **watch);
/* -1 for NULL. */
int zerod_watch_fd(const zerod_watch *watch);
/* Does not wait for the commit. BUSY: there is no result yet. Otherwise the result of zerod_commit_wait(),
 * including DEADLINE and the errors of a lost connection, or STATE: the client was closed. A pin's deadline
 * counts from the daemon's answer on. One thread at a time uses a watch, and no thread uses it during
 * zerod_close(). */
ZEROD_MUST_USE int zerod_watch_take(zerod_watch *watch, struct zerod_committed *committed);
/* Cancels the wait, and closes the descriptor, which the program has removed from its loop. Each watch needs
 * this call, also after zerod_close(). NULL is allowed. In a child that was forked it does nothing. */
void zerod_watch_end(zerod_watch *watch);

/* Makes a *host copy* of the group's last commit, `step`: copies of all units in host memory, but of those
 * with ZEROD_UNIT_UNSAVED, and those that were not published before. Readers can read that step, whatever the
 * ranks do, until the host copy of another step is complete, or the group ends. Reads under way then end
 * first.
 *
 * Every rank calls it after the commit and before its next update. The first call begins the copy, and the
 * others share it. From the first call on, updates save what is not copied yet, as for ZEROD_COMMIT_PIN. With
 * a `ticket` the call returns at once, and the ranks train meanwhile. If not all ranks call it, an update of
 * another rank can come first. A step that has a host copy is not copied again. Step 0 drops the host copy,
 * and one rank calls it.
 *
 * The memory is charged to the job. A former host copy and the new one need it at once. Errors, after which
 * the former host copy remains: STALE_VERSION (another step was committed, or an update has overwritten what
 * could not be saved), STATE (`step` is not committed), BUSY (another step is being copied), NO_MEMORY and
 * QUOTA (names the unit, and the bytes of all), UNSUPPORTED (the daemon has no host memory, or is older; the
 * group spans daemons, or its collectives are NCCL's; a unit is on several NUMA nodes), LIMIT, TORN,
 * DEADLINE, PEER_LOST, ABORTED. */
ZEROD_MUST_USE int zerod_commit_save(zerod_group *group, uint64_t step,
                                     const struct zerod_wait_options *options, zerod_ticket *ticket);

struct zerod_unit_read_options {
	size_t struct_size;
	uint64_t group, step;   /* of zerod_commit_wait() */
	const char *unit;       /* its name */
	uint64_t offset_bytes;  /* in the flat unit, without padding */
	uint64_t bytes;         /* of a row; 0: nothing is copied */
	zerod_allocation *into; /* of this client, on any device; no stream uses the range meanwhile */
	uint64_t into_offset_bytes;
	uint32_t deadline_ms;
	uint32_t reserved;
	/* Several rows, such as columns of a matrix, are copied one after the other, without gaps. */
	uint64_t rows;         /* 0: 1 */
	uint64_t stride_bytes; /* from row to row in the unit; only for several rows */
};

struct zerod_unit_info {
	size_t struct_size;
	uint64_t numel;
	enum zerod_dtype dtype;
	uint32_t reserved;
};

/* Copies bytes of a unit, as of the last commit, a pinned one or the host copy, and returns when they are
 * there. All reads of one `step` belong to one commit. `info` may be NULL. Errors: STALE_VERSION (the step is
 * neither pinned nor in the host copy, or not any more, and another one was committed, or a rank has joined
 * since, or updated its shard and the group has no shadows: wait for the next commit; the unit is not in the
 * host copy), STATE (`step` is not committed; the unit was not published before it), BUSY (a shard is saved
 * or moved until the deadline), UNSUPPORTED (as above; host memory of another NUMA node; several rows, and
 * the daemon is older), NOT_FOUND (group, unit), INVALID (a range; rows that overlap), TORN,
 * RESTARTED. After an error the range of the allocation has any content, and nothing writes it any more. */
ZEROD_MUST_USE int zerod_unit_read(zerod_client *client, const struct zerod_unit_read_options *options,
                                   struct zerod_unit_info *info);

struct zerod_unit_map_options {
	size_t struct_size;
	uint64_t group, step;  /* of zerod_commit_wait() */
	const char *unit;      /* its name */
	uint64_t offset_bytes; /* in the flat unit, without padding */
	uint64_t bytes;        /* at least 1 */
	uint32_t device;       /* in whose memory the bytes are to be */
	uint32_t deadline_ms;
};

typedef struct zerod_mapped zerod_mapped;

/*
 * Maps bytes of a unit, as of the last commit or a pinned one, without a copy. *bytes are the first bytes of
 * the range that are in one rank's shard: a range of several shards needs several calls. *data is their
 * address, on the GPU or for the CPU. A write to them faults, except in the memory of a job of which this
 * client is a rank. *mapped and *data are NULL if these bytes are in memory of another device, in a save or
 * in a host copy: zerod_unit_read() copies them.
 *
 * An update of the shard does not wait for the reader, which can then read bytes of no commit. The bytes are
 * valid only if zerod_unit_map_end() returns 0. Bytes that ranks free remain mapped until then, and a request
 * that needs their memory waits until then. After 30 s the daemon ends the session. On GPUs the memory then
 * returns when the process has ended.
 *
 * Errors: as zerod_unit_read(), and PERMISSION (a job of another uid; a device that was not granted),
 * NOT_FOUND (device), STALE (the bytes were freed just now), UNSUPPORTED (also a driver that cannot give
 * read-only access).
 */
ZEROD_MUST_USE int zerod_unit_map(zerod_client *client, const struct zerod_unit_map_options *options,
                                  zerod_mapped **mapped, const void **data, uint64_t *bytes);
/* Ends the mapping, after the last read: the caller has synchronized the streams that read. Returns 0 if the
 * bytes were those of the commit from zerod_unit_map() until now. Errors: STALE_VERSION (an update of the
 * shard has begun, or it has moved or gone), NOT_FOUND (the group has ended), STATE, TORN, and those of a
 * lost connection. The mapping ends in any case, except after INVALID (NULL) and FORKED. */
ZEROD_MUST_USE int zerod_unit_map_end(zerod_mapped *mapped);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
