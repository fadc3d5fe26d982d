/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.c - commands under way, and watches of fences.
 */
#include "core/engine/objects.h"
#include "core/engine/op.h"

static void copy_begins(struct zd_engine *e, struct zd_op *op, const struct zd_command *command)
{
	struct zd_device *device = op->copies = &e->devices[command->device];
	if (device->ncopying++ == 0)
		device->copying_ns = e->now_ns;
	if (command->kind != ZD_CMD_COPY)
		return;
	device->copied_bytes += command->u.copy.dst.bytes;
	if (e->now_ns >= e->history.copies_until_ns)
		return;
	op->begin_ns = e->now_ns;
	op->bytes = command->u.copy.dst.bytes;
	op->session = command->signal.session;
	op->peer = (uint8_t)(command->u.copy.dst_device + 1);
}

static void copy_ends(struct zd_engine *e, const struct zd_op *op, int status)
{
	struct zd_device *device = op->copies;
	zd_assert(device->ncopying > 0);
	if (--device->ncopying == 0)
		device->copied_ns += e->now_ns - device->copying_ns;
	if (op->bytes == 0)
		return;
	struct zd_event *event = zd_event_new(e, ZD_EVENT_COPY, op->job);
	event->reason = (uint8_t)-status;
	event->session = op->session;
	event->device = (uint8_t)(device->index + 1);
	event->peer = op->peer;
	event->bytes = op->bytes;
	event->value = op->begin_ns;
}

void zd_op_submit(struct zd_engine *e, struct zd_job *job, struct zd_command *command, zd_op_fn *done,
                  void *owner, uint64_t aux)
{
	struct zd_op *op = zd_calloc(1, sizeof(*op));
	op->metadata_bytes = command->kind == ZD_CMD_WATCH && job ? ZD_WATCH_METADATA_BYTES : 0;
	op->id = ++e->next_op;
	op->done = done;
	op->job = job;
	op->owner = owner;
	op->aux = aux;
	if (command->kind == ZD_CMD_COPY || command->kind == ZD_CMD_FILL)
		copy_begins(e, op, command);
	HASH_ADD(hh, e->ops, id, sizeof(op->id), op);
	if (job) {
		job->refs++;
		zd_metadata_charge(job->owner, op->metadata_bytes);
	}
	command->op = op->id;
	e->sink.command(e->sink.arg, command);
}

void zd_op_fill(struct zd_engine *e, struct zd_job *job, uint32_t device, struct zd_location where,
                zd_op_fn *done, void *owner, uint64_t aux)
{
	struct zd_command command = {.kind = ZD_CMD_FILL, .device = device};
	command.u.fill.dst = where;
	zd_op_submit(e, job, &command, done, owner, aux);
}

void zd_engine_op_done(struct zd_engine *e, uint64_t id, int status, const char *error,
                       const struct zd_op_result *result)
{
	struct zd_op *op;
	HASH_FIND(hh, e->ops, &id, sizeof(id), op);
	zd_assert(op != NULL);
	HASH_DEL(e->ops, op);
	if (op->copies)
		copy_ends(e, op, status);
	op->status = status;
	op->error = error ? error : "";
	op->result = result;
	op->done(e, op);
	if (op->job) {
		zd_metadata_uncharge(op->job->owner, op->metadata_bytes);
		zd_job_unref(e, op->job);
	}
	free(op);
	zd_settle(e);
}

bool zd_fences_watch(struct zd_engine *e, struct zd_session *session, struct zd_job *job, uint32_t device,
                     const struct zd_fence_list *list, zd_op_fn *done, void *owner, uint64_t aux)
{
	struct zd_fence open[ZD_MAX_FENCES];
	uint32_t nopen = 0;
	zd_assert(list->count <= ZD_MAX_FENCES);
	for (uint32_t i = 0; i < list->count; i++) {
		if (!e->sink.fence_passed(e->sink.arg, session->id, list->fences[i]))
			open[nopen++] = list->fences[i];
	}
	if (nopen == 0)
		return false;
	struct zd_command command = {.kind = ZD_CMD_WATCH, .device = device};
	command.u.watch.session = session->id;
	command.u.watch.nfences = nopen;
	command.u.watch.fences = open;
	zd_op_submit(e, job, &command, done, owner, aux);
	return true;
}
