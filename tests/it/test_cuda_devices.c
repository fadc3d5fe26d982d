/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_devices.c - a GPU that fails while the daemon serves: zeroctl devices says which one, and why,
 * and the others go on; over the doubles of the driver and of NVML.
 */
#include "tests/it/zeroctl_scene.h"

#include "cuda_scene.h"
#include "tests/support/daemon_fixture.h"

static json_t *devices(void)
{
	return zeroctl_listing(contract_daemon()->socket_path, "devices", "devices");
}

static const char *text_of(const json_t *object, size_t device, const char *key)
{
	const json_t *row = json_array_get(json_object_get(object, "rows"), device);

	return json_string_value(json_object_get(row, key));
}

static bool is_in_state(size_t device, const char *state)
{
	json_t *object = devices();
	bool is = strcmp(text_of(object, device, "state"), state) == 0;

	json_decref(object);
	return is;
}

static void expect_failure(size_t device, const char *why)
{
	json_t *object = devices();

	assert_string_equal(text_of(object, device, "state"), "failed");
	assert_non_null(strstr(text_of(object, device, "failure"), why));
	json_decref(object);
}

static void expect_ok(size_t device)
{
	json_t *object = devices();

	assert_string_equal(text_of(object, device, "state"), "ok");
	assert_string_equal(text_of(object, device, "failure"), "");
	json_decref(object);
}

static void expect_in_table(const char *text)
{
	struct program program = zeroctl_run(contract_daemon()->socket_path, "devices");

	assert_int_equal(program.status, 0);
	assert_non_null(strstr(program.out_text, text));
	program_free(&program);
}

/* Files in it are the daemon's GPUs' faults, and nothing to this process. */
static void make_dir(char *dir)
{
	(void)scene_driver();
	assert_non_null(mkdtemp(dir));
	assert_int_equal(setenv("ZD_DOUBLE_DIR", dir, 1), 0);
}

/* Nobody has asked anything of it. */
CASE_TEST(test_xid)
{
	char dir[] = CASE_DIR;
	struct contract *c;

	make_dir(dir);
	c = contract_open(NULL);
	expect_ok(0);
	expect_ok(1);
	case_write_file(dir, "xid-1", "79"); /* fallen off the bus */
	AWAIT(is_in_state(1, "failed"));
	expect_failure(1, "Xid 79");
	expect_in_table("Xid 79");
	expect_ok(0);
	contract_close(c);
	case_remove_dir(dir);
}

/* The first command that meets it says so. The other GPU serves on, even if its own copies went round by this
 * one. */
CASE_TEST(test_device_lost)
{
	char dir[] = CASE_DIR;
	struct contract_unit unit;
	struct contract *c;
	void *data;

	make_dir(dir);
	c = scene_open(&unit);
	contract_expect_version(&c->ranks[0], &unit, 1);
	case_write_file(dir, "lost-1", "214");
	CHECK(zerod_gather(unit.at[0], NULL, NULL, &data) != ZEROD_OK);
	expect_failure(1, "CUDA_ERROR_ECC_UNCORRECTABLE");
	expect_in_table("failed");
	expect_ok(0);
	contract_close(c);
	case_remove_dir(dir);
}

int main(int argc, char **argv)
{
	return scene_main(argc, argv);
}
