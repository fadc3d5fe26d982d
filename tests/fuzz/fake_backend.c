/* SPDX-License-Identifier: Apache-2.0 */
/* fake_backend.c - devices without memory and without threads. */
#include "tests/fuzz/fake_backend.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

#define TIMELINES 8u /* that the fuzzer writes; the others stay 0 */

struct command {
	TAILQ_ENTRY(command) link;
	struct zd_command as_given;
	struct zd_fence fences[ZD_MAX_FENCES];
};

struct segment {
	LIST_ENTRY(segment) link;
	uint32_t id, device;
	uint64_t bytes;
};

struct comm {
	LIST_ENTRY(comm) link;
	uint64_t id;
	uint32_t nranks;
};

struct page {
	LIST_ENTRY(page) link;
	uint64_t session;
	uint64_t timelines[TIMELINES];
};

struct zd_backend {
	struct zd_backend_config config;
	TAILQ_HEAD(, command) commands;
	LIST_HEAD(, segment) segments;
	LIST_HEAD(, page) pages;
	LIST_HEAD(, comm) comms; /* that are not closed */
	int null;                /* stands for every descriptor */
	bool fail_next;
};

static struct zd_backend *current;

/* ---- Segments and pages -------------------------------------------------------------------------------- */

static struct segment *find_segment(const struct zd_backend *backend, uint32_t id)
{
	struct segment *segment;

	LIST_FOREACH (segment, &backend->segments, link)
		if (segment->id == id)
			break;
	return segment;
}

static struct page *find_page(const struct zd_backend *backend, uint64_t session)
{
	struct page *page;

	LIST_FOREACH (page, &backend->pages, link)
		if (page->session == session)
			break;
	return page;
}

static struct comm *find_comm(const struct zd_backend *backend, uint64_t id)
{
	struct comm *comm;

	LIST_FOREACH (comm, &backend->comms, link)
		if (comm->id == id)
			break;
	return comm;
}

static void check_place(const struct zd_backend *backend, const struct zd_location *place, uint32_t device)
{
	const struct segment *segment = find_segment(backend, place->segment);

	zd_assert(segment && segment->device == device && place->bytes > 0);
	zd_assert(place->offset <= segment->bytes && place->bytes <= segment->bytes - place->offset);
}

/* A neighbour's device may copy within the memory of a rank's (plan_copies.c). */
static void check_source(const struct zd_backend *backend, const struct zd_command *command)
{
	const struct segment *source = find_segment(backend, command->u.copy.src.segment);
	uint32_t target = command->u.copy.dst_device;

	check_place(backend, &command->u.copy.src,
	            source && source->device == target ? target : command->device);
}

static void check_fences(const struct zd_reduce_desc *reduce)
{
	zd_assert(reduce->nfences <= reduce->ninputs);
	for (uint32_t i = 0; i < reduce->nfences; i++)
		zd_assert(reduce->fences[i].timeline < ZD_TIMELINES && reduce->fences[i].value > 0 &&
		          reduce->fences[i].value < ZD_FENCE_ABORTED);
}

/* Checks that must hold for every command, whatever a client has requested. */
static void check_command(const struct zd_backend *backend, const struct zd_command *command)
{
	const struct zd_reduce_desc *reduce = &command->u.reduce;

	zd_assert(command->device < backend->config.ndevices);
	zd_assert(command->op != 0 || command->kind == ZD_CMD_SIGNAL || command->kind == ZD_CMD_COMM_CLOSE);
	switch (command->kind) {
	case ZD_CMD_COPY:
		check_source(backend, command);
		check_place(backend, &command->u.copy.dst, command->u.copy.dst_device);
		zd_assert(command->u.copy.src.bytes ==
		          zd_rows_span(command->u.copy.rows, command->u.copy.dst.bytes));
		break;
	case ZD_CMD_FILL:
		check_place(backend, &command->u.fill.dst, command->device);
		break;
	case ZD_CMD_WATCH:
		zd_assert(command->u.watch.nfences <= ZD_MAX_FENCES &&
		          find_page(backend, command->u.watch.session));
		break;
	case ZD_CMD_REDUCE:
		check_fences(reduce);
		check_place(backend, &reduce->target, command->device);
		zd_assert(reduce->target.bytes == reduce->numel * zerod_dtype_bytes(reduce->target_dtype));
		for (uint32_t i = 0; i < reduce->ninputs; i++) {
			check_place(backend, &reduce->inputs[i], command->device);
			zd_assert(reduce->inputs[i].bytes ==
			          reduce->numel * zerod_dtype_bytes(reduce->input_dtype));
		}
		break;
	case ZD_CMD_EXCHANGE:
		zd_assert(find_comm(backend, command->u.exchange.comm));
		check_place(backend, &command->u.exchange.send, command->device);
		check_place(backend, &command->u.exchange.receive, command->device);
		break;
	case ZD_CMD_AGREE:
		zd_assert(find_comm(backend, command->u.agree.comm) &&
		          command->u.agree.bytes <= ZD_AGREE_BYTES);
		break;
	default:
		break;
	}
}

/* ---- Communicators ------------------------------------------------------------------------------------- */

static void open_comm(struct zd_backend *backend, const struct zd_comm_desc *desc)
{
	struct comm *comm = zd_calloc(1, sizeof(*comm));

	zd_assert(!find_comm(backend, desc->comm) && desc->rank < desc->nranks);
	comm->id = desc->comm;
	comm->nranks = desc->nranks;
	LIST_INSERT_HEAD(&backend->comms, comm, link);
}

static void close_comm(struct zd_backend *backend, uint64_t id)
{
	struct comm *comm = find_comm(backend, id);

	zd_assert(comm);
	LIST_REMOVE(comm, link);
	free(comm);
}

/* The values that a communicator's command results in: all other ranks, if there are any, give the same
 * value. NULL: the communicator was aborted. */
static unsigned char *make_values(const struct zd_backend *backend, const struct zd_command *command,
                                  uint32_t *nbytes)
{
	const struct comm *comm;
	unsigned char *values;

	if (command->kind == ZD_CMD_UNIQUE_IDS) {
		*nbytes = command->u.ids.count * ZD_UNIQUE_ID_BYTES;
		return zd_calloc(1, *nbytes);
	}
	comm = find_comm(backend, command->u.agree.comm);
	if (!comm)
		return NULL;
	*nbytes = comm->nranks * command->u.agree.bytes;
	values = zd_calloc(1, *nbytes);
	for (uint32_t i = 0; i < comm->nranks; i++)
		memcpy(values + (size_t)i * command->u.agree.bytes, command->u.agree.value,
		       command->u.agree.bytes);
	return values;
}

/* ---- Commands ------------------------------------------------------------------------------------------ */

static void fake_submit(struct zd_backend *backend, const struct zd_command *command)
{
	struct command *kept;

	check_command(backend, command);
	if (command->kind == ZD_CMD_SEGMENT_CREATE) {
		struct segment *segment = zd_calloc(1, sizeof(*segment));

		zd_assert(!find_segment(backend, command->u.segment.segment));
		*segment = (struct segment){.id = command->u.segment.segment,
		                            .device = command->device,
		                            .bytes = command->u.segment.bytes};
		LIST_INSERT_HEAD(&backend->segments, segment, link);
	} else if (command->kind == ZD_CMD_SEGMENT_DESTROY) {
		struct segment *segment = find_segment(backend, command->u.segment.segment);

		zd_assert(segment);
		LIST_REMOVE(segment, link);
		free(segment);
	} else if (command->kind == ZD_CMD_COMM_OPEN) {
		open_comm(backend, &command->u.comm_open);
	} else if (command->kind == ZD_CMD_COMM_CLOSE) {
		close_comm(backend, command->u.comm_close.comm);
	}
	if (command->op == 0)
		return;
	kept = zd_calloc(1, sizeof(*kept));
	kept->as_given = *command;
	if (command->kind == ZD_CMD_WATCH && command->u.watch.nfences > 0)
		memcpy(kept->fences, command->u.watch.fences,
		       command->u.watch.nfences * sizeof(kept->fences[0]));
	TAILQ_INSERT_TAIL(&backend->commands, kept, link);
}

/* 0: may end, 1: not yet, or the status with which it ends. */
static int judge_watch(const struct zd_backend *backend, const struct command *command)
{
	const struct page *page = find_page(backend, command->as_given.u.watch.session);

	if (!page)
		return ZEROD_E_ABORTED;
	for (uint32_t i = 0; i < command->as_given.u.watch.nfences; i++) {
		const struct zd_fence *fence = &command->fences[i];

		if (fence->timeline >= TIMELINES ||
		    !zd_fence_reached(page->timelines[fence->timeline], fence->value))
			return 1;
	}
	return 0;
}

/* The memory of a command exists until the command has ended. */
static void check_still_there(const struct zd_backend *backend, const struct zd_command *command)
{
	if (command->kind == ZD_CMD_COPY) {
		check_source(backend, command);
		check_place(backend, &command->u.copy.dst, command->u.copy.dst_device);
	} else if (command->kind == ZD_CMD_FILL) {
		check_place(backend, &command->u.fill.dst, command->device);
	} else if (command->kind == ZD_CMD_REDUCE) {
		check_place(backend, &command->u.reduce.target, command->device);
	}
}

static void end_command(struct zd_backend *backend, struct command *command, int status)
{
	struct zd_completion completion = {.op = command->as_given.op, .status = status};

	check_still_there(backend, &command->as_given);
	if (status == 0 && backend->fail_next) {
		completion.status = ZEROD_E_DEVICE;
		backend->fail_next = false;
	}
	if (completion.status && command->as_given.kind == ZD_CMD_SEGMENT_CREATE) {
		struct segment *segment = find_segment(backend, command->as_given.u.segment.segment);

		LIST_REMOVE(segment, link);
		free(segment);
	}
	completion.result.sum_squares = 1.0;
	completion.result.not_begun = completion.status == 0 && command->as_given.kind == ZD_CMD_REDUCE &&
	                              command->as_given.u.reduce.nfences > 0;
	if (completion.status == 0 &&
	    (command->as_given.kind == ZD_CMD_UNIQUE_IDS || command->as_given.kind == ZD_CMD_AGREE)) {
		completion.result.values = make_values(backend, &command->as_given,
		                                       &completion.result.values_bytes);
		if (!completion.result.values)
			completion.status = ZEROD_E_ABORTED;
	}
	if (completion.status)
		zd_completion_fail(&completion, completion.status, "the fuzzer wants it so");
	TAILQ_REMOVE(&backend->commands, command, link);
	free(command);
	backend->config.done(backend->config.done_arg, &completion);
}

unsigned fuzz_backend_run(unsigned most)
{
	struct command *command = TAILQ_FIRST(&current->commands);
	unsigned done = 0;

	while (command && done < most) {
		struct command *next = TAILQ_NEXT(command, link);
		int status = command->as_given.kind == ZD_CMD_WATCH ? judge_watch(current, command) : 0;

		if (status != 1) {
			end_command(current, command, status);
			done++;
		}
		command = next;
	}
	return done;
}

void fuzz_backend_fail_next(void)
{
	current->fail_next = true;
}

void fuzz_backend_signal(uint64_t session, uint32_t timeline, uint64_t value)
{
	struct page *page = find_page(current, session);

	if (page)
		page->timelines[timeline % TIMELINES] = value;
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

static int fake_open(const struct zd_backend_config *config, struct zd_backend **backend, struct zd_err *err)
{
	struct zd_backend *made = zd_calloc(1, sizeof(*made));

	made->config = *config;
	TAILQ_INIT(&made->commands);
	LIST_INIT(&made->segments);
	LIST_INIT(&made->pages);
	LIST_INIT(&made->comms);
	made->null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (made->null < 0) {
		free(made);
		return zd_err_set(err, ZEROD_E_SYSTEM, "no /dev/null");
	}
	current = made;
	*backend = made;
	return 0;
}

static void fake_close(struct zd_backend *backend)
{
	struct command *command;
	struct segment *segment;
	struct page *page;

	while ((command = TAILQ_FIRST(&backend->commands))) {
		TAILQ_REMOVE(&backend->commands, command, link);
		free(command);
	}
	while ((segment = LIST_FIRST(&backend->segments))) {
		LIST_REMOVE(segment, link);
		free(segment);
	}
	while (!LIST_EMPTY(&backend->comms))
		close_comm(backend, LIST_FIRST(&backend->comms)->id);
	while ((page = LIST_FIRST(&backend->pages))) {
		LIST_REMOVE(page, link);
		free(page);
	}
	(void)close(backend->null);
	free(backend);
	current = NULL;
}

static uint32_t fake_device_count(const struct zd_backend *backend)
{
	return backend->config.ndevices;
}

static void fake_device_info(const struct zd_backend *backend, uint32_t device, struct zd_device_config *info)
{
	*info = (struct zd_device_config){.arena_bytes = backend->config.arena_bytes};
	(void)snprintf(info->name, sizeof(info->name), "fake%u", device);
}

static int fake_segment_fd(const struct zd_backend *backend, uint32_t segment)
{
	return find_segment(backend, segment) ? backend->null : -1;
}

static int fake_session_open(struct zd_backend *backend, uint64_t session, pid_t pid, int pidfd,
                             int *client_fd, int *daemon_fd, struct zd_err *err)
{
	struct page *page;
	int first = fcntl(backend->null, F_DUPFD_CLOEXEC, 0),
	    second = fcntl(backend->null, F_DUPFD_CLOEXEC, 0);

	(void)pid;
	(void)pidfd;
	if (first < 0 || second < 0)
		return zd_err_set(err, ZEROD_E_SYSTEM, "no descriptors");
	page = zd_calloc(1, sizeof(*page));
	page->session = session;
	LIST_INSERT_HEAD(&backend->pages, page, link);
	*client_fd = first;
	*daemon_fd = second;
	return 0;
}

static void fake_session_close(struct zd_backend *backend, uint64_t session, bool clean_exit)
{
	struct page *page = find_page(backend, session);

	(void)clean_exit;
	zd_assert(page);
	LIST_REMOVE(page, link);
	free(page);
}

static uint64_t fake_timeline_read(const struct zd_backend *backend, uint64_t session, uint32_t timeline)
{
	const struct page *page = find_page(backend, session);

	if (!page)
		return UINT64_MAX / 2;
	return timeline < TIMELINES ? page->timelines[timeline] : 0;
}

const struct zd_backend_ops fuzz_backend = {
        .name = "fake",
        .owners_sum = true,
        .collectives = true,
        .open = fake_open,
        .close = fake_close,
        .device_count = fake_device_count,
        .device_info = fake_device_info,
        .submit = fake_submit,
        .segment_fd = fake_segment_fd,
        .session_open = fake_session_open,
        .session_close = fake_session_close,
        .timeline_read = fake_timeline_read,
};
