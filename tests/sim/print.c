/* SPDX-License-Identifier: Apache-2.0 */
/* print.c - operations and programs as people read them. */
#include <stdio.h>

#include "base/mem.h"
#include "sim.h"

static const char *const names[ZD_SIM_NOPS] = {
        [ZD_SIM_OPEN] = "open",
        [ZD_SIM_CLOSE] = "close",
        [ZD_SIM_DIE] = "die",
        [ZD_SIM_RESET] = "reset",
        [ZD_SIM_JOIN] = "join",
        [ZD_SIM_LEAVE] = "leave",
        [ZD_SIM_REGISTER] = "register",
        [ZD_SIM_UNREGISTER] = "unregister",
        [ZD_SIM_UPDATE_BEGIN] = "update_begin",
        [ZD_SIM_PUBLISH] = "publish",
        [ZD_SIM_COMMIT] = "commit",
        [ZD_SIM_SET_PERSISTENT] = "set_persistent",
        [ZD_SIM_PLACE] = "place",
        [ZD_SIM_GATHER] = "gather",
        [ZD_SIM_PREFETCH] = "prefetch",
        [ZD_SIM_USE] = "use",
        [ZD_SIM_RELEASE] = "release",
        [ZD_SIM_FORWARD_BEGIN] = "forward_begin",
        [ZD_SIM_FORWARD_END] = "forward_end",
        [ZD_SIM_CLAIM_END] = "claim_end",
        [ZD_SIM_SCOPE_ABANDON] = "scope_abandon",
        [ZD_SIM_CONTEXT_BEGIN] = "context_begin",
        [ZD_SIM_CONTEXT_END] = "context_end",
        [ZD_SIM_BACKWARD_BEGIN] = "backward_begin",
        [ZD_SIM_BUCKET_CREATE] = "bucket_create",
        [ZD_SIM_BUCKET_DESTROY] = "bucket_destroy",
        [ZD_SIM_RESERVE] = "reserve",
        [ZD_SIM_BUCKET_SUBMIT] = "bucket_submit",
        [ZD_SIM_SKIP] = "skip",
        [ZD_SIM_REDUCE_WAIT] = "reduce_wait",
        [ZD_SIM_TARGET_RETURN] = "target_return",
        [ZD_SIM_BACKWARD_END] = "backward_end",
        [ZD_SIM_BACKWARD_ABANDON] = "backward_abandon",
        [ZD_SIM_STEP_BEGIN] = "step_begin",
        [ZD_SIM_STEP_END] = "step_end",
        [ZD_SIM_ALLOC] = "alloc",
        [ZD_SIM_FREE] = "free",
        [ZD_SIM_KILL] = "kill",
        [ZD_SIM_ABORT] = "abort",
        [ZD_SIM_END_JOB] = "end_job",
        [ZD_SIM_RELOAD] = "reload",
        [ZD_SIM_GARBAGE] = "garbage",
};

static bool names_unit(enum zd_sim_op_kind kind)
{
	return (kind >= ZD_SIM_REGISTER && kind <= ZD_SIM_RELEASE && kind != ZD_SIM_COMMIT) ||
	       (kind >= ZD_SIM_RESERVE && kind <= ZD_SIM_TARGET_RETURN);
}

void zd_sim_op_text(const struct zd_sim_config *config, const struct zd_sim_op *op, char *text, size_t nbytes)
{
	char unit[16] = "", tag[16] = "";

	if (names_unit(op->kind) && op->unit == ZD_SIM_ALL_UNITS)
		(void)snprintf(unit, sizeof(unit), " all");
	else if (names_unit(op->kind))
		(void)snprintf(unit, sizeof(unit), " u%u", op->unit);
	if (op->kind >= ZD_SIM_FORWARD_BEGIN && op->kind <= ZD_SIM_CONTEXT_END)
		(void)snprintf(tag, sizeof(tag), " scope %u", op->tag);
	else if (op->kind == ZD_SIM_GATHER || op->kind == ZD_SIM_USE || op->kind == ZD_SIM_RELEASE)
		(void)snprintf(tag, sizeof(tag), op->tag < ZD_SIM_TAGS ? " tag %u" : " scope %u",
		               op->tag < ZD_SIM_TAGS ? op->tag : op->tag - ZD_SIM_TAGS);
	(void)snprintf(text, nbytes, "%s %s/%s%s%s arg %u%s", names[op->kind],
	               config->jobs[config->groups[op->group].job].name, config->groups[op->group].name, unit,
	               tag, op->arg, op->noise ? " (noise)" : "");
}

void zd_sim_program_print(const struct zd_sim_config *config, const struct zd_sim_program *program,
                          const bool *removed)
{
	char text[128];

	for (uint32_t i = 0; i < program->nops; i++) {
		if (removed && removed[i])
			continue;
		zd_sim_op_text(config, &program->ops[i], text, sizeof(text));
		printf("  op %u: actor %u %s\n", i, program->ops[i].actor, text);
	}
}
