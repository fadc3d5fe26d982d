/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm_tasks.h - the commands of a device's communicators: unique ids, opening and closing, exchanges
 * and agreements.
 *
 * Commands name communicators by the core's numbers. Each communicator is in the queue of its role. A late
 * launch therefore delays only communicators of the same role.
 *
 * The CPU stores the fence of an exchange, after NCCL has reported success. A store by the GPU after the
 * exchange would also be executed after an abort, and would release streams that wait for the data. The
 * fences of one timeline are stored in the order in which their exchanges were submitted, also across
 * communicators. When a communicator fails, streams that wait for its exchanges are released at once. The
 * exchanges themselves complete only when no kernel can access their memory any more, because the core then
 * reuses the memory. A SIGNAL of such a timeline stands for all exchanges before it (struct zd_signal). These
 * exchanges therefore store no fence any more, however late they end, and cannot overwrite the value of the
 * SIGNAL.
 *
 * Not thread-safe: only cuda_comm_thread calls these functions, with the device's context current.
 */
#ifndef ZD_EXECUTOR_CUDA_COMM_TASKS_H
#define ZD_EXECUTOR_CUDA_COMM_TASKS_H

#include "executor/nccl/cuda_comm_command.h"
#include "executor/nccl/cuda_comm_ids.h"

/* Settings that all devices of a daemon share. */
struct zd_cuda_comm_settings {
	const char *nccl_path; /* this and the next two: see struct zd_backend_config */
	bool checking;
	uint64_t timeout_ns;
	struct zd_cuda_comm_local_ranks *local_ranks;
	void (*done)(void *arg, const struct zd_completion *completion);
	void *done_arg;
};

struct zd_cuda_open_comm;
struct zd_cuda_waiting_comm;

struct zd_cuda_comms {
	const struct zd_cuda_comm_settings *settings;
	struct zd_cuda_device *device;
	const struct zd_nccl *nccl; /* NULL: not loaded yet, and the queues are not initialised */
	struct zd_cuda_comm_queue queues[ZD_NCOMM_ROLES];
	struct zd_cuda_id_makers makers;
	LIST_HEAD(, zd_cuda_open_comm) open;
	STAILQ_HEAD(, zd_cuda_waiting_comm) waiting; /* for room, in order */
	TAILQ_HEAD(, zd_cuda_collective) under_way;  /* have a fence to store; in order */
	uint64_t ended;                              /* the number of tasks that have completed */
	bool stopping;                               /* communicators are freed as soon as they have ended */
};

/* Initialises the object. `settings` must outlive `comms`. */
void zd_cuda_comms_init(struct zd_cuda_comms *comms, struct zd_cuda_device *device,
                        const struct zd_cuda_comm_settings *settings);
/* Frees the object. No task may be in progress. */
void zd_cuda_comms_deinit(struct zd_cuda_comms *comms);

/* Takes ownership of the task and starts it: UNIQUE_IDS, COMM_OPEN, COMM_CLOSE, EXCHANGE, AGREE, SIGNAL. The
 * first COMM_OPEN can take seconds, because it loads NCCL. */
void zd_cuda_comms_run(struct zd_cuda_comms *comms, struct zd_cuda_task *task);
/* Fails a task that has not started. */
void zd_cuda_comms_refuse(struct zd_cuda_comms *comms, struct zd_cuda_task *task, const struct zd_err *why);
/* Advances all tasks, and completes those that have ended. Returns whether work is in progress. If so, the
 * caller has to poll again, because no event wakes it. */
bool zd_cuda_comms_poll(struct zd_cuda_comms *comms, uint64_t now_ns);
/* Returns whether processes of unique ids run. If so, the caller has to continue to poll at long
 * intervals. */
bool zd_cuda_comms_listen(const struct zd_cuda_comms *comms);
/* Asks the driver whether the GPU has failed; the next poll then ends the tasks. */
void zd_cuda_comms_check(struct zd_cuda_comms *comms);
/* Fails all tasks with the reason. Communicators are freed by the polls that follow, the last of which
 * returns false. */
void zd_cuda_comms_stop(struct zd_cuda_comms *comms, const struct zd_err *why);

#endif
