/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_join.c - trainers that see other GPUs than the daemon, or none that serve: found by name, or
 * refused in words before anything is joined.
 */
#include "cuda_scene.h"

#include "tests/support/daemon_fixture.h"

/* Settings of this process only: the driver's double has read them, and the daemon must not. */
static void keep_from_the_daemon(const char *name)
{
	const struct zd_cuda *driver = NULL;
	struct zd_err err;
	int rc = zd_cuda_load(&driver, &err);

	(void)rc; /* some cases are about a driver that does not load */
	assert_int_equal(unsetenv(name), 0);
}

struct scene {
	struct zd_daemon daemon;
	zerod_client *client;
};

static void open_scene(struct scene *scene)
{
	const char *const args[] = {"--backend", "cuda", NULL};
	struct zd_daemon_options options = {.args = args};
	struct zerod_options connection = ZEROD_INIT(connection);

	assert_int_equal(zd_daemon_start(&options, &scene->daemon), 0);
	connection.socket_path = scene->daemon.socket_path;
	OK(NULL, zerod_connect(&connection, &scene->client));
}

static void close_scene(struct scene *scene)
{
	zerod_close(scene->client);
	assert_int_equal(zd_daemon_stop(&scene->daemon), 0);
}

/* Joining and allocating on the daemon's first device both fail so. */
static void expect_refusal(zerod_client *client, int status, const char *text)
{
	struct zerod_group_options options = ZEROD_INIT(options);
	struct zerod_alloc_options alloc = ZEROD_INIT(alloc);
	zerod_allocation *buffer;
	zerod_group *group;
	void *data;

	options.job = alloc.job = "job";
	options.world_size = 1;
	alloc.bytes = 1;
	FAILS(client, zerod_group_join(client, &options, &group), status, text);
	FAILS(client, zerod_alloc(client, &alloc, &buffer, &data), status, text);
}

/* ---- GPUs of other numbers ----------------------------------------------------------------------------- */

CASE_TEST(test_renumbered_gpus, "CUDA_VISIBLE_DEVICES=3,1,0")
{
	struct contract_unit unit;
	struct contract *c;

	keep_from_the_daemon("CUDA_VISIBLE_DEVICES");
	c = scene_open(&unit);
	contract_expect_version(&c->ranks[0], &unit, 1);
	contract_expect_version(&c->ranks[1], &unit, 1);
	contract_close(c);
}

CASE_TEST(test_hidden_gpu_is_named, "CUDA_VISIBLE_DEVICES=1")
{
	struct zerod_alloc_options alloc = ZEROD_INIT(alloc);
	struct zerod_device_info hidden = ZEROD_INIT(hidden), seen = ZEROD_INIT(seen);
	struct scene scene;
	zerod_allocation *buffer;
	void *data;

	keep_from_the_daemon("CUDA_VISIBLE_DEVICES");
	open_scene(&scene);
	OK(scene.client, zerod_device_get(scene.client, 0, &hidden));
	OK(scene.client, zerod_device_get(scene.client, 1, &seen));
	expect_refusal(scene.client, ZEROD_E_NOT_FOUND, hidden.name);
	expect_refusal(scene.client, ZEROD_E_NOT_FOUND, seen.name);
	alloc.job = "job";
	alloc.bytes = 1;
	alloc.device = 1;
	OK(scene.client, zerod_alloc(scene.client, &alloc, &buffer, &data));
	OK(scene.client, zerod_free(buffer, NULL, 0));
	close_scene(&scene);
}

/* ---- GPUs that do not serve ---------------------------------------------------------------------------- */

CASE_TEST_WITH(test_no_driver, .libraries = CASE_BROKEN)
{
	struct scene scene;

	assert_int_equal(setenv("LD_LIBRARY_PATH", case_double_path(), 1), 0); /* the daemon has one */
	open_scene(&scene);
	expect_refusal(scene.client, ZEROD_E_NOT_FOUND, "there is no CUDA driver");
	close_scene(&scene);
}

CASE_TEST(test_old_driver, "ZD_DOUBLE_VERSION=11080")
{
	struct scene scene;

	keep_from_the_daemon("ZD_DOUBLE_VERSION");
	open_scene(&scene);
	expect_refusal(scene.client, ZEROD_E_UNSUPPORTED, "is for CUDA 11.8");
	close_scene(&scene);
}

CASE_TEST(test_gpu_without_memory_operations, "ZD_DOUBLE_ATTRIBUTES=122=0")
{
	struct scene scene;

	keep_from_the_daemon("ZD_DOUBLE_ATTRIBUTES");
	open_scene(&scene);
	expect_refusal(scene.client, ZEROD_E_UNSUPPORTED, "no 64-bit memory operations");
	close_scene(&scene);
}

CASE_TEST(test_exclusive_gpu, "ZD_DOUBLE_FAIL=cuDevicePrimaryCtxRetain:1:46,cuDevicePrimaryCtxRetain:2:46")
{
	struct scene scene;

	keep_from_the_daemon("ZD_DOUBLE_FAIL");
	open_scene(&scene);
	expect_refusal(scene.client, ZEROD_E_DEVICE, "exclusive-process mode");
	close_scene(&scene);
}

int main(int argc, char **argv)
{
	return scene_main(argc, argv);
}
