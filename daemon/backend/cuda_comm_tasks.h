/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm_tasks.h - what commands ask of a device's communicators: unique ids, opening and closing,
 * exchanges and agreements.
 *
 * Communicators go by the core's numbers. Each is in the queue of its role: what one of them launches late
 * holds up those of its role, and no other.
 *
 * A fence of an exchange is stored by the CPU, when NCCL has said that all is well: the GPU would make a
 * store behind the exchange after an abort too, and let go who waits for the bytes. Fences of one timeline
 * are stored in the order in which their exchanges were given, whatever communicators these are of. When a
 * communicator fails, who waits for what it had under way is freed at once; its exchanges end when nothing
 * can write or read their memory any more, since that is given on then.
 *
 * A SIGNAL of such a timeline stands for all that was given before it, in the core's words: that counts as
 * passed. So the exchanges before it store nothing any more, however late they end, and none takes back what
 * the SIGNAL has stored.
 *
 * Not thread-safe: cuda_comm_thread's own, with the device's context current.
 */
#ifndef ZD_BACKEND_CUDA_COMM_TASKS_H
#define ZD_BACKEND_CUDA_COMM_TASKS_H

#include "backend/cuda_comm_ids.h"
#include "backend/cuda_comm_queue.h"
#include "backend/cuda_task.h"

/* What is the same for all devices of a daemon. */
struct zd_cuda_comm_settings {
	const char *nccl_path; /* as in struct zd_backend_config, these three */
	bool checking;
	uint64_t timeout_ns;
	struct zd_cuda_comm_roster *roster;
	void (*done)(void *arg, const struct zd_completion *completion);
	void *done_arg;
};

struct zd_cuda_open_comm;
struct zd_cuda_waiting_comm;

struct zd_cuda_comms {
	const struct zd_cuda_comm_settings *settings;
	struct zd_cuda_device *device;
	const struct zd_nccl *nccl; /* NULL: not needed yet, and there are no queues */
	struct zd_cuda_comm_queue queues[ZD_NCOMM_ROLES];
	struct zd_cuda_id_makers makers;
	LIST_HEAD(, zd_cuda_open_comm) open;
	STAILQ_HEAD(, zd_cuda_waiting_comm) waiting; /* for room, in order */
	TAILQ_HEAD(, zd_cuda_exchange) under_way;    /* that are to store fences, as they were given */
	uint64_t ended;                              /* tasks so far */
	bool stopping;                               /* communicators go when they are over */
};

/* The settings stay where they are. */
void zd_cuda_comms_init(struct zd_cuda_comms *comms, struct zd_cuda_device *device,
                        const struct zd_cuda_comm_settings *settings);
/* Nothing is under way. */
void zd_cuda_comms_deinit(struct zd_cuda_comms *comms);

/* Takes the task over: UNIQUE_IDS, COMM_OPEN, COMM_CLOSE, EXCHANGE, AGREE; SIGNAL. The first one of a process
 * may take seconds, since NCCL is loaded. */
void zd_cuda_comms_run(struct zd_cuda_comms *comms, struct zd_cuda_task *task);
/* Ends one that has not run. */
void zd_cuda_comms_refuse(struct zd_cuda_comms *comms, struct zd_cuda_task *task, const struct zd_err *why);
/* Moves on and ends whatever can. True: something is under way, and only another poll will tell. */
bool zd_cuda_comms_poll(struct zd_cuda_comms *comms, uint64_t now_ns);
/* Do processes listen for ranks: then polls are to go on, now and then, when nothing is under way. */
bool zd_cuda_comms_listen(const struct zd_cuda_comms *comms);
/* Has a GPU's failure stopped what is under way: the next poll ends it. */
void zd_cuda_comms_check(struct zd_cuda_comms *comms);
/* Whatever is under way ends with these words: when nothing is, according to polls, communicators are
 * gone. */
void zd_cuda_comms_stop(struct zd_cuda_comms *comms, const struct zd_err *why);

#endif
