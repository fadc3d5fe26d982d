/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_control.h - what a test asks of NCCL's double in its own process: which call fails, how long calls are
 * in progress, an error that comes later, what a configuration file says. The double exports one `struct
 * double_nccl_control double_nccl`, which dlsym() finds.
 */
#ifndef ZD_DOUBLE_NCCL_CONTROL_H
#define ZD_DOUBLE_NCCL_CONTROL_H

struct ncclComm;

struct double_nccl_control {
	/*
	 * From now on the Nth call of that function gives `result`; of all functions if it is NULL; none if
	 * `nth` is 0. Calls of ncclCommGetAsyncError count for nobody but those who name it. A call that
	 * fails so does nothing, but that what gives something back does so.
	 */
	void (*fail_call)(const char *function, unsigned nth, int result);
	/* The number of calls that the last fail_call() has counted. */
	unsigned (*calls)(void);
	/* How many times a nonblocking call is in progress before it is done; 2 at first. */
	void (*polls)(unsigned count);
	/* As of now, whatever asks the communicator is told `result`. What it runs goes on, or does not. */
	void (*set_async_error)(struct ncclComm *comm, int result);
	/* Communicators that were not given back, kernels of all that have not ended, and of these, those
	 * that have begun. */
	unsigned (*comms)(void);
	unsigned (*kernels)(void);
	unsigned (*running)(void);
	/* Blocks that a kernel of each of them may have, all together; 32 for one that was not told. */
	unsigned (*blocks)(void);
	/* NCCL's configuration file says NAME=VALUE: the next ncclCommInitRankConfig puts that into the
	 * environment. */
	void (*configure)(const char *name, const char *value);
	/* While it is held, no abort does anything, nor returns: kernels run on. */
	void (*hold_aborts)(int held);
};

#endif
