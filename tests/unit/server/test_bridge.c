/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bridge.c - completions reach the engine in events of limited length, and none is left behind. The
 * backend is the host's, but for commands that the test keeps and completes by itself.
 */
#include "core/engine/op.h"

#include "work_scene.h"

#define MOST 256u /* completions of one event */
#define MANY (MOST + 10)

static struct zd_backend_ops keeping;
static bool keeps;
static uint64_t kept[MANY];
static unsigned nkept, ndone;

static void keep_command(struct zd_backend *backend, const struct zd_command *command)
{
	if (keeps)
		kept[nkept++] = command->op;
	else
		zd_backend_host.submit(backend, command);
}

static int open_keeping(void **state)
{
	keeping = zd_backend_host;
	keeping.submit = keep_command;
	nkept = ndone = 0;
	return scene_open_works(state, &keeping);
}

#define BRIDGE_TEST(name) FIXTURE_TEST(name, struct scene *scene, open_keeping, scene_teardown)

static void note_done(struct zd_engine *e, struct zd_op *op)
{
	(void)e, (void)op;
	ndone++;
}

static void complete(struct scene *scene, unsigned begin, unsigned end)
{
	for (unsigned i = begin; i < end; i++)
		zd_bridge_complete(&scene->api.bridge, &(struct zd_completion){.op = kept[i]});
}

/* The last completion arrives while the loop is awake for those before it only. */
BRIDGE_TEST(test_completions_come_in_parts)
{
	struct zd_command command = {.kind = ZD_CMD_COPY};

	keeps = true;
	for (unsigned i = 0; i < MANY; i++)
		zd_op_submit(scene->api.bridge.engine, NULL, &command, note_done, NULL, 0);
	keeps = false;
	assert_int_equal(nkept, MANY);
	complete(scene, 0, MANY - 1);
	(void)zd_loop_run_once(&scene->loop, false);
	assert_int_equal(ndone, MOST);
	complete(scene, MANY - 1, MANY);
	(void)zd_loop_run_once(&scene->loop, false);
	assert_int_equal(ndone, MANY - 1);
	assert_true(zd_loop_has_events(&scene->loop));
	(void)zd_loop_run_once(&scene->loop, false);
	assert_int_equal(ndone, MANY);
}
