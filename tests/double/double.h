/* SPDX-License-Identifier: Apache-2.0 */
/*
 * double.h - the inside of the driver's double: a libcuda.so.1 on host memory with the real one's rules.
 *
 * What stands for a GPU's memory are memfds. The addresses that callers get are reserved and never readable
 * by the CPU, so that whoever follows a device pointer faults; the double itself works on a second mapping.
 * Streams' work runs on threads, one for each hardware queue of a context, in the order in which it was
 * submitted to that queue.
 *
 * One lock guards everything. An exported function takes it in double_enter() and gives it back in
 * double_leave(); queue threads drop it while they copy, sleep or poll. Devices are named by their ordinal,
 * among those that CUDA_VISIBLE_DEVICES leaves, unless a comment says "index".
 *
 * Where the real driver's answer is not known, the double is the stricter one.
 */
#ifndef ZD_DOUBLE_DOUBLE_H
#define ZD_DOUBLE_DOUBLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "driver/driver.h"
#include "tests/double/config.h"

#define DOUBLE_EXPORT      __attribute__((visibility("default")))
#define DOUBLE_GRANULARITY (2ull << 20)

/* Results beside those that driver.h names. */
enum {
	DOUBLE_INVALID_IMAGE = 200,
	DOUBLE_ILLEGAL_STATE = 401,
	DOUBLE_CONTEXT_IS_DESTROYED = 709,
	DOUBLE_HOST_MEMORY_NOT_REGISTERED = 713,
	DOUBLE_LAUNCH_FAILED = 719,
	DOUBLE_CAPTURE_MERGE = 902,
	DOUBLE_CAPTURE_UNMATCHED = 903,
	DOUBLE_CAPTURE_ISOLATION = 905,
	DOUBLE_CAPTURE_IMPLICIT = 906,
	DOUBLE_CAPTURED_EVENT = 907,
	DOUBLE_CAPTURE_WRONG_THREAD = 908,
};

/* A function of the table without its definition does not link, one of another type does not compile. */
#define DOUBLE_DECLARE(member, name, args) DOUBLE_EXPORT int name args;
ZD_CUDA_FUNCTIONS(DOUBLE_DECLARE)
ZD_CUDA_NEWER_FUNCTIONS(DOUBLE_DECLARE)
#undef DOUBLE_DECLARE
/* zerod makes no contexts; tests/several does. */
DOUBLE_EXPORT int cuCtxCreate_v2(struct CUctx_st **context, unsigned int flags, int device);
DOUBLE_EXPORT int cuCtxDestroy_v2(struct CUctx_st *context);

/* ---- Calls: call.c ------------------------------------------------------------------------------------- */

enum double_needs { DOUBLE_NEEDS_NOTHING, DOUBLE_NEEDS_INIT, DOUBLE_NEEDS_CONTEXT };

/* Counts the call, and takes the lock. Else the result to return: not initialised, no context, a context that
 * is lost, or a fault that the environment asks for. */
int double_enter(const char *function, enum double_needs needs);
/* How often the function has been called. */
unsigned long double_calls(const char *function);
/* See control.h. */
void double_fill_streams(bool full);
/* The same for calls that give something back: these do so whatever happens, and then return `after`. */
int double_enter_giving_back(const char *function, enum double_needs needs, int *after);
/* Drops the lock and returns `result`. */
int double_leave(int result);
void double_wait(pthread_cond_t *changed); /* with the lock held, which it drops meanwhile */
void double_lock(void);
void double_unlock(void);
void double_set_initialised(void);

/* ---- Contexts: context.c ------------------------------------------------------------------------------- */

/* How far a stream's work is: shared by the stream, its operations and whoever waits for it. */
struct double_line {
	int refs;
	uint64_t submitted, done;
};

struct double_op;
STAILQ_HEAD(double_ops, double_op);

/* A hardware queue, shared by streams. */
struct double_queue {
	struct CUctx_st *context;
	struct double_ops ops;
	pthread_cond_t work;
	pthread_t thread;
	bool started;
};

/* A device's primary context, or another one there. */
struct CUctx_st {
	int device;
	int retained; /* 0: there is none */
	int fault;    /* what every later call gives; read without the lock by waits */
	bool stopping;
	unsigned running; /* operations, which have dropped the lock */
	unsigned kernels; /* of them */
	unsigned freeing; /* calls that wait for these to end */
	int listed_fd;    /* -1: not listed */
	int next_queue;
	struct double_line *legacy; /* of the legacy default stream */
	struct double_queue queues[DOUBLE_MAX_QUEUES];
};

/* The calling thread's; NULL: none. */
struct CUctx_st *double_current(void);
bool double_is_context(const struct CUctx_st *context);
void double_context_fail(struct CUctx_st *context, int result);
/* Until nothing runs in it any more: who is told that it is lost may give memory back at once. */
void double_context_settle(const struct CUctx_st *context);
bool double_is_lost(int result); /* does a context end with it */
int double_count_contexts(void);

/* ---- Devices: device.c --------------------------------------------------------------------------------- */

bool double_is_device(int device);
int double_attribute(int device, int attribute, int *value);
bool double_has_attribute(int device, int attribute);
bool double_is_peer(int device, int peer);

/* ---- Processes on a device: listed.c ------------------------------------------------------------------- */

/* A descriptor that keeps this process in the list of the device with that index, -1 if nobody lists. */
int double_listed_add(int index);
bool double_listed_others(int index);
/* The error by which the device with that index was lost, 0 while it works: the number in
 * ZD_DOUBLE_DIR/lost-INDEX. */
int double_lost_to(int index);
/* Of a device's memory, taken by somebody outside of this process: the number in
 * ZD_DOUBLE_DIR/taken-INDEX. */
uint64_t double_taken_bytes(int index);

/* ---- Device memory: memory.c (handles), address.c (ranges and what is mapped there) -------------------- */

/* Physical memory, alive while it has a handle or a mapping. */
struct double_memory {
	TAILQ_ENTRY(double_memory) link;
	zd_cu_memory handle; /* 0 when released */
	int nhandles;        /* how often it is held by it */
	int refs;
	int device;
	int fd;
	bool exportable, imported;
	size_t bytes;
	unsigned char *alias; /* where the double reads and writes it */
};

struct double_mapping {
	TAILQ_ENTRY(double_mapping) link;
	zd_cu_ptr at;
	struct double_memory *memory;
	uint32_t access, writable; /* a bit for each device; kernels may write to all that they may read */
	int users;                 /* operations that read or write it just now */
	bool unmapped;
};

struct double_memory *double_memory_find(zd_cu_memory handle);
void double_memory_ref(struct double_memory *memory);
void double_memory_unref(struct double_memory *memory);
int double_count_memory(void);

/* A device address as a pointer. It is nothing to follow. */
static inline void *double_pointer(zd_cu_ptr at)
{
	void *pointer;

	memcpy(&pointer, &at, sizeof(pointer));
	return pointer;
}

/* The mapping that holds this address, NULL if none does. */
struct double_mapping *double_mapping_at(zd_cu_ptr at);
bool double_is_mapped(zd_cu_ptr at, size_t bytes);
bool double_is_reserved(zd_cu_ptr at);
void double_mapping_use(struct double_mapping *mapping);
/* False if it was unmapped meanwhile, or the device has no access any more. */
bool double_mapping_unuse(struct double_mapping *mapping, int device);
int double_count_mappings(void);
int double_count_ranges(void);

/* ---- Host memory: host.c ------------------------------------------------------------------------------- */

/* Registered, or allocated by the driver. */
struct double_host {
	TAILQ_ENTRY(double_host) link;
	unsigned char *at;
	zd_cu_ptr device_at; /* equal to `at`, unless CAN_USE_HOST_POINTER is off */
	size_t bytes;
	bool allocated;
	bool mapped; /* DEVICEMAP */
	int pending; /* operations on it that have not ended */
};

/* The whole range is in one registration; by its host address, by its device address. */
struct double_host *double_host_find(const void *at, size_t bytes);
struct double_host *double_host_find_device(zd_cu_ptr at, size_t bytes);
int double_count_hosts(void);

/* ---- Operations: queue.c ------------------------------------------------------------------------------- */

enum double_op_kind {
	DOUBLE_OP_COPY,
	DOUBLE_OP_FILL,
	DOUBLE_OP_WAIT,
	DOUBLE_OP_WRITE,
	DOUBLE_OP_MARK,
	DOUBLE_OP_JOIN,
	DOUBLE_OP_KERNEL,
	DOUBLE_OP_CALL,
};

struct double_kernel;

/* A source or target of a copy: CPU memory where `host` is set, else a mapped device address. */
struct double_place {
	zd_cu_ptr at;
	unsigned char *host;
	struct double_host *registered; /* NULL: device memory, or pageable */
	const struct CUctx_st *as;      /* whose access counts; NULL: that of the stream's context */
};

/* A recording of an event. */
struct double_mark {
	int refs;
	bool done;
	int fault;
	uint64_t done_ns;
};

struct double_join {
	struct double_line *line;
	uint64_t value;
};

struct double_op {
	STAILQ_ENTRY(double_op) link;
	enum double_op_kind kind;
	struct double_line *line;
	uint64_t number; /* in its stream */
	struct double_place dst, src;
	size_t bytes;
	size_t row, pitch; /* COPY of rows of the source; 0: it is in one piece */
	uint64_t value;
	unsigned char *staged;              /* what the operation owns of CPU memory */
	const struct double_kernel *kernel; /* KERNEL; `staged` holds its arguments */
	void (*call)(void *arg);            /* CALL, with its argument */
	void *arg;
	struct double_mark *mark; /* MARK: what is set; JOIN: what is waited for, or NULL */
	int njoins;
	struct double_join *joins;
};

struct double_op *double_op_new(enum double_op_kind kind);
void double_op_free(struct double_op *op);
/* A function of the driver that only tests use. */
int cuLaunchHostFunc(struct CUstream_st *stream, void (*call)(void *arg), void *arg);
/* Gives it to the queue. */
void double_queue_push(struct double_queue *queue, struct double_op *op);
/* Stops a context's threads; what has not begun is dropped. Drops the lock meanwhile. */
void double_queues_stop(struct CUctx_st *context);
/* Until the line has come to `value`. What is dropped counts, so it ends when the context is lost, too. The
 * caller holds a reference. */
void double_line_wait(const struct double_line *line, uint64_t value);
/* The context is lost or ends: nothing runs any more. With or without the lock. */
bool double_is_over(const struct CUctx_st *context);
struct double_line *double_line_new(void);
void double_line_unref(struct double_line *line);
struct double_mark *double_mark_new(void);
void double_mark_unref(struct double_mark *mark);
/* Something has ended or failed: whoever waits looks again. */
extern pthread_cond_t double_moved;

/* Runs an operation (run.c). The caller holds the lock, which is released meanwhile. Returns 0, or the error
 * by which the context is lost. */
int double_run(struct CUctx_st *context, struct double_op *op);

/* ---- Kernels: kernel.c --------------------------------------------------------------------------------- */

int double_run_kernel(struct CUctx_st *context, const struct double_op *op); /* as double_run() */
int double_count_modules(void);
/* With the lock. What frees memory that kernels may use waits for those of the current context that run, and
 * keeps all other calls out of it meanwhile, if ZD_DOUBLE_FREES_WAIT is 1. */
void double_wait_for_kernels(void);
void double_wait_for_frees(void);

/* ---- Streams: stream.c --------------------------------------------------------------------------------- */

struct double_capture;

struct CUstream_st {
	TAILQ_ENTRY(CUstream_st) link;
	struct CUctx_st *context;
	struct double_queue *queue;
	struct double_line *line;
	struct double_capture *capture;
	bool non_blocking;
};

/* The meaning of a call's stream argument: `stream` is NULL for the legacy default stream. */
struct double_target {
	struct CUctx_st *context;
	struct CUstream_st *stream;
	struct double_queue *queue;
	struct double_line *line;
};

int double_target(struct CUstream_st *stream, struct double_target *target);
/* Takes the operation over. Onto a capturing stream it is recorded, that is dropped. */
int double_submit(const struct double_target *target, struct double_op *op);
/* Does a stream capture that the legacy default stream would wait for? */
bool double_blocking_capture(const struct CUctx_st *context);
void double_invalidate_blocking_captures(const struct CUctx_st *context);
/* Until all that the context's streams were given by now has run, or is dropped. Drops the lock meanwhile. */
void double_streams_wait(const struct CUctx_st *context);
void double_streams_leave_capture(const struct double_capture *capture);
/* Their context has ended: they are handles to be given back, and nothing else. */
void double_streams_orphan(const struct CUctx_st *context);
int double_count_streams(void);

/* ---- Events: event.c ----------------------------------------------------------------------------------- */

int double_count_events(void);
/* The capture is over: events recorded in it were never recorded. */
void double_events_leave_capture(const struct double_capture *capture);

/* ---- Capture: capture.c -------------------------------------------------------------------------------- */

/* 0, or what an unsafe call gives in this thread now; captures that forbid it are invalidated. */
int double_check_unsafe(void);
void double_capture_invalidate(struct double_capture *capture);
bool double_capture_is_valid(const struct double_capture *capture);
/* The result of enqueueing on the legacy stream: not 0 while a stream for which it would wait captures; that
 * capture is then invalidated. */
int double_check_legacy(const struct CUctx_st *context);
void double_capture_stream_gone(struct CUstream_st *stream);
int double_count_graphs(void);

#endif
