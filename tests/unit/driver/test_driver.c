/* SPDX-License-Identifier: Apache-2.0 */
/* test_driver.c - loading the CUDA driver, what is said when it cannot be used, and finding devices by
 * name. */
#include "tests/unit/driver/double_fixture.h"

#define FIRST  "GPU-7a65726f-d00b-4e00-8000-000000000000"
#define SECOND "GPU-7a657270-d00b-4e00-8000-000000000001"
#define THIRD  "GPU-7a657271-d00b-4e00-8000-000000000002"

/* ---- Loading ------------------------------------------------------------------------------------------- */

/* Twice, since the second call must say the same. */
static void expect_failure(int status, const char *text)
{
	for (int i = 0; i < 2; i++) {
		const struct zd_cuda *cuda = NULL;
		struct zd_err err = ZD_ERR_NONE;

		assert_int_equal(zd_cuda_load(&cuda, &err), status);
		assert_null(cuda);
		if (!strstr(err.text, text))
			fail_msg("\"%s\" is not in \"%s\"", text, err.text);
	}
}

CASE_TEST_WITH(test_no_driver, .libraries = CASE_BROKEN)
{
	expect_failure(ZEROD_E_NOT_FOUND, "there is no CUDA driver: ");
}

CASE_TEST_WITH(test_a_driver_before_525, .libraries = CASE_SWAPPED)
{
	expect_failure(ZEROD_E_UNSUPPORTED,
	               "the CUDA driver has no cuGetProcAddress_v2: one of version 525 or newer is needed");
}

CASE_TEST(test_a_driver_without_a_function, "ZD_DOUBLE_LACKS=cuMemCreate")
{
	expect_failure(ZEROD_E_UNSUPPORTED,
	               "the CUDA driver has no cuMemCreate: one of version 525 or newer is needed");
}

CASE_TEST(test_a_driver_that_is_too_old, "ZD_DOUBLE_VERSION=11080")
{
	expect_failure(ZEROD_E_UNSUPPORTED, "the CUDA driver is for CUDA 11.8, 12.0 or newer is needed");
}

CASE_TEST(test_no_device, "ZD_DOUBLE_DEVICES=0")
{
	expect_failure(ZEROD_E_NOT_FOUND, "the CUDA driver shows this process no GPU");
}
CASE_AGAIN(test_no_device, none_visible, .env = {"CUDA_VISIBLE_DEVICES="})

CASE_TEST(test_a_driver_that_fails, "ZD_DOUBLE_FAIL=cuInit:1:803")
{
	expect_failure(
	        ZEROD_E_DEVICE,
	        "initialising the CUDA driver: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (system driver mismatch)");
}

static void *load_too(void *arg)
{
	(void)arg;
	return (void *)load();
}

CASE_TEST(test_threads_load_one_driver)
{
	pthread_t threads[4];
	void *seen = NULL;

	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, load_too, NULL), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(threads[i], &seen), 0);
		assert_ptr_equal(seen, load());
	}
}

/* ---- Errors -------------------------------------------------------------------------------------------- */

CASE_TEST(test_errors_in_our_words)
{
	const struct zd_cuda *cuda = load();
	struct zd_err err = ZD_ERR_NONE;

	assert_int_equal(zd_cuda_err(cuda, 0, &err, "nothing"), 0);
	assert_int_equal(err.status, 0);
	assert_int_equal(zd_cuda_err(cuda, ZD_CU_OUT_OF_MEMORY, &err, "%d bytes", 5), ZEROD_E_NO_MEMORY);
	assert_string_equal(err.text, "5 bytes: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
	assert_int_equal(zd_cuda_err(cuda, 12345, &err, "x"), ZEROD_E_DEVICE);
	assert_string_equal(err.text, "x: an error without a name (no text)");
	assert_int_equal(zd_cuda_err(cuda, ZD_CU_ILLEGAL_ADDRESS, NULL, "x"), ZEROD_E_DEVICE);
}

/* ---- Contexts ------------------------------------------------------------------------------------------ */

static void expect_current(const struct zd_cuda *cuda, const struct CUctx_st *expected)
{
	struct CUctx_st *current = NULL;

	MUST(cuda->ctxGetCurrent(&current));
	assert_ptr_equal(current, expected);
}

CASE_TEST(test_entering_and_leaving)
{
	const struct zd_cuda *cuda = load();
	struct CUctx_st *own = enter(cuda, 0), *other = NULL;
	bool pushed = true;

	MUST(cuda->devicePrimaryCtxRetain(&other, 1));
	MUST(zd_cuda_enter(cuda, own, &pushed));
	assert_false(pushed);
	zd_cuda_leave(cuda, pushed);
	expect_current(cuda, own);
	MUST(zd_cuda_enter(cuda, other, &pushed));
	assert_true(pushed);
	expect_current(cuda, other);
	zd_cuda_leave(cuda, pushed);
	expect_current(cuda, own);
	MUST(cuda->devicePrimaryCtxRelease(1));
	leave(cuda, 0);
}

CASE_TEST(test_entering_can_fail, "ZD_DOUBLE_FAIL=cuCtxPushCurrent:1:201")
{
	const struct zd_cuda *cuda = load();
	struct CUctx_st *context = NULL;
	bool pushed = true;

	MUST(cuda->devicePrimaryCtxRetain(&context, 0));
	EXPECT(zd_cuda_enter(cuda, context, &pushed), ZD_CU_INVALID_CONTEXT);
	assert_false(pushed);
	zd_cuda_leave(cuda, pushed);
	expect_current(cuda, NULL);
	MUST(cuda->devicePrimaryCtxRelease(0));
}

/* ---- Devices by name ----------------------------------------------------------------------------------- */

CASE_TEST(test_uuid_text)
{
	const struct zd_cu_uuid uuid = {{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 0x0f, 0xed, 0xcb,
	                                 0xa9, 0x87, 0x65, 0x43, 0x21}};
	char text[ZD_CUDA_UUID_TEXT];

	zd_cuda_uuid_text(&uuid, text);
	assert_string_equal(text, "GPU-12345678-9abc-def0-0fed-cba987654321");
}

/* The first one of the node is hidden, the others have changed places. */
CASE_TEST(test_devices_are_found_by_name, "CUDA_VISIBLE_DEVICES=2,1")
{
	const struct zd_cuda *cuda = load();
	struct zd_err err = ZD_ERR_NONE;
	int device = -1;

	assert_int_equal(zd_cuda_find_device(cuda, THIRD, &device, &err), 0);
	assert_int_equal(device, 0);
	assert_int_equal(zd_cuda_find_device(cuda, SECOND, &device, &err), 0);
	assert_int_equal(device, 1);
	assert_int_equal(zd_cuda_find_device(cuda, FIRST, &device, &err), ZEROD_E_NOT_FOUND);
	assert_int_equal(device, 1);
	assert_string_equal(err.text, "this process does not see " FIRST ", but only " THIRD ", " SECOND
	                              " (CUDA_VISIBLE_DEVICES, or its container)");
}

CASE_TEST(test_looking_for_a_device_can_fail, "ZD_DOUBLE_FAIL=cuDeviceGetUuid:2:800")
{
	const struct zd_cuda *cuda = load();
	struct zd_err err = ZD_ERR_NONE;
	int device = -1;

	assert_int_equal(zd_cuda_find_device(cuda, SECOND, &device, &err), ZEROD_E_DEVICE);
	assert_string_equal(err.text,
	                    "the UUID of GPU 1: CUDA_ERROR_NOT_PERMITTED (operation not permitted)");
	assert_int_equal(device, -1);
}

CASE_TEST(test_many_devices_fit_the_text, "ZD_DOUBLE_DEVICES=16")
{
	const struct zd_cuda *cuda = load();
	struct zd_err err = ZD_ERR_NONE;
	int device = -1;

	assert_int_equal(zd_cuda_find_device(cuda, "GPU-none", &device, &err), ZEROD_E_NOT_FOUND);
	assert_non_null(strstr(err.text, FIRST ", " SECOND ", " THIRD));
}

int main(int argc, char **argv)
{
	return case_run_all(argc, argv);
}
