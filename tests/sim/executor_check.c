/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor_check.c - what must be right about a command when it is given: places that are there, on the right
 * device, of the right sizes, and no use or destruction of what another one still works on.
 */
#include "sim.h"

static bool names_segment(const struct zd_sim_queued *queued, uint32_t id)
{
	const struct zd_command *command = &queued->command;

	switch (command->kind) {
	case ZD_CMD_COPY:
		return command->u.copy.src.segment == id || command->u.copy.dst.segment == id;
	case ZD_CMD_FILL:
		return command->u.fill.dst.segment == id;
	case ZD_CMD_REDUCE:
		for (uint32_t i = 0; i < command->u.reduce.ninputs; i++) {
			if (queued->inputs[i].segment == id)
				return true;
		}
		return command->u.reduce.target.segment == id;
	default:
		return false;
	}
}

static void check_no_use(struct zd_sim_world *world, uint32_t segment)
{
	for (uint32_t i = 0; i < world->nsums; i++) {
		if (names_segment(&world->sums[i].queued, segment))
			zd_sim_fail(world, "segment %u is destroyed while a sum waits for its inputs there",
			            segment);
	}
	for (uint32_t d = 0; d < zd_sim_ndevices(&world->config); d++) {
		const struct zd_sim_executor *executor = &world->executors[d];
		for (uint32_t i = 0; i < executor->count; i++) {
			if (names_segment(&executor->queue[i], segment))
				zd_sim_fail(world,
				            "segment %u is destroyed while a command that uses it waits on "
				            "device %u",
				            segment, d);
		}
	}
}

static void check_device(struct zd_sim_world *world, const struct zd_location *at, uint32_t device,
                         const char *what)
{
	const struct zd_sim_segment *segment = zd_sim_segment_find(world, at->segment);

	(void)zd_sim_memory(world, at, what);
	if (segment->device != device)
		zd_sim_fail(world, "%s: given to device %u, the segment is on %u", what, device,
		            segment->device);
}

static void check_reduce(struct zd_sim_world *world, const struct zd_command *command)
{
	const struct zd_reduce_desc *reduce = &command->u.reduce;

	check_device(world, &reduce->target, command->device, "target of a reduction");
	zd_sim_owner_check(world, &reduce->target, NULL);
	zd_sim_streams_check(world, &reduce->target, NULL);
	if (reduce->target.bytes != reduce->numel * zerod_dtype_bytes(reduce->target_dtype))
		zd_sim_fail(world, "reduction of %llu elements into %llu bytes",
		            (unsigned long long)reduce->numel, (unsigned long long)reduce->target.bytes);
	if (reduce->ninputs > ZD_SIM_WORLD || (reduce->ninputs == 0 && !reduce->overwrite))
		zd_sim_fail(world, "reduction of %u inputs", reduce->ninputs);
	for (uint32_t i = 0; i < reduce->ninputs; i++) {
		(void)zd_sim_memory(world, &reduce->inputs[i], "input of a reduction");
		if (reduce->inputs[i].bytes != reduce->numel * zerod_dtype_bytes(reduce->input_dtype))
			zd_sim_fail(world, "reduction of %llu elements from %llu bytes",
			            (unsigned long long)reduce->numel,
			            (unsigned long long)reduce->inputs[i].bytes);
	}
}

/* ---- Commands beside each other ------------------------------------------------------------------------ */

struct touched {
	const struct zd_location *writes; /* NULL: nothing */
	const struct zd_location *reads;
	uint32_t nreads;
};

/* `inputs`: of a reduction. */
static struct touched touches(const struct zd_command *command, const struct zd_location *inputs)
{
	switch (command->kind) {
	case ZD_CMD_COPY:
		return (struct touched){&command->u.copy.dst, &command->u.copy.src, 1};
	case ZD_CMD_FILL:
		return (struct touched){.writes = &command->u.fill.dst};
	case ZD_CMD_REDUCE:
		return (struct touched){&command->u.reduce.target, inputs, command->u.reduce.ninputs};
	default:
		return (struct touched){0};
	}
}

static bool reads_what_is_written(const struct touched *reader, const struct touched *writer)
{
	for (uint32_t i = 0; i < reader->nreads; i++) {
		if (zd_sim_overlap(&reader->reads[i], writer->writes))
			return true;
	}
	return false;
}

/* Executors keep no order: what one writes nobody may touch before it has ended. */
static void check_beside(struct zd_sim_world *world, const struct zd_command *command)
{
	struct touched own = touches(command, command->u.reduce.inputs);

	for (uint32_t d = 0; own.writes && d < zd_sim_ndevices(&world->config); d++) {
		const struct zd_sim_executor *executor = &world->executors[d];
		for (uint32_t i = 0; i < executor->count; i++) {
			struct touched other = touches(&executor->queue[i].command,
			                               executor->queue[i].inputs);
			if (!other.writes)
				continue;
			if (zd_sim_overlap(own.writes, other.writes) || reads_what_is_written(&own, &other) ||
			    reads_what_is_written(&other, &own))
				zd_sim_fail(world,
				            "a command writes %u+%llu beside one that writes %u+%llu, and "
				            "one of them needs the other's bytes or place",
				            own.writes->segment, (unsigned long long)own.writes->offset,
				            other.writes->segment, (unsigned long long)other.writes->offset);
		}
	}
}

/* A GPU copies what it has, and what it reads from host memory. Only gathers let it copy from host memory to
 * another GPU, or within another GPU. */
static void check_copy_device(struct zd_sim_world *world, const struct zd_command *command)
{
	const struct zd_sim_segment *source = zd_sim_segment_find(world, command->u.copy.src.segment);
	bool reads_host = source && world->config.devices[source->device].host_memory;
	bool within = source && source->device == command->u.copy.dst_device;

	if (!reads_host && !(within && command->signal.session != 0))
		check_device(world, &command->u.copy.src, command->device, "source of a copy");
	else if (command->device != command->u.copy.dst_device && command->signal.session == 0)
		zd_sim_fail(world, "device %u copies from host memory to device %u", command->device,
		            command->u.copy.dst_device);
}

/* Checks a command at the time when the engine submits it. */
void zd_sim_command_check(struct zd_sim_world *world, const struct zd_command *command)
{
	if (command->device >= zd_sim_ndevices(&world->config))
		zd_sim_fail(world, "command for device %u", command->device);
	if (command->kind != ZD_CMD_REDUCE || command->u.reduce.nfences == 0)
		check_beside(world, command);
	switch (command->kind) {
	case ZD_CMD_SEGMENT_CREATE:
		if (zd_sim_segment_find(world, command->u.segment.segment))
			zd_sim_fail(world, "segment %u is created twice", command->u.segment.segment);
		break;
	case ZD_CMD_SEGMENT_DESTROY:
		check_no_use(world, command->u.segment.segment);
		zd_sim_destroy_check(world, command);
		break;
	case ZD_CMD_COPY:
		check_copy_device(world, command);
		check_device(world, &command->u.copy.dst, command->u.copy.dst_device,
		             "destination of a copy");
		zd_sim_copy_check(world, command);
		if (command->u.copy.src.bytes !=
		    zd_rows_span(command->u.copy.rows, command->u.copy.dst.bytes))
			zd_sim_fail(world, "copy of %llu bytes to %llu bytes",
			            (unsigned long long)command->u.copy.src.bytes,
			            (unsigned long long)command->u.copy.dst.bytes);
		break;
	case ZD_CMD_FILL:
		check_device(world, &command->u.fill.dst, command->device, "fill");
		zd_sim_owner_check(world, &command->u.fill.dst, command);
		zd_sim_streams_check(world, &command->u.fill.dst, command);
		break;
	case ZD_CMD_REDUCE:
		check_reduce(world, command);
		break;
	default:
		break;
	}
	zd_sim_poison_check(world, command);
}
