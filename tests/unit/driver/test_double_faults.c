/* SPDX-License-Identifier: Apache-2.0 */
/* test_double_faults.c - the driver's double: calls that fail when told to, lost contexts, counts, and what
 * was not given back. */
#include "tests/unit/driver/double_fixture.h"

#include <fcntl.h>

/* ---- Calls that fail ----------------------------------------------------------------------------------- */

/* Loading makes three calls: cuDriverGetVersion, cuInit, cuDeviceGetCount. */
CASE_TEST(test_the_nth_call_fails, CLEAN, "ZD_DOUBLE_FAIL=5:800")
{
	const struct zd_cuda *cuda = load();
	int count = 0;

	EXPECT(cuda->deviceGetCount(&count), ZD_CU_SUCCESS);
	EXPECT(cuda->deviceGetCount(&count), ZD_CU_NOT_PERMITTED);
	EXPECT(cuda->deviceGetCount(&count), ZD_CU_SUCCESS);
}

DRIVER_TEST(test_the_nth_call_of_a_function_fails, "ZD_DOUBLE_FAIL=cuMemCreate:2:2,cuMemRelease:1:400")
{
	const struct zd_cu_allocation allocation = allocation_on(0);
	zd_cu_memory first = create(cuda, 0, GRANULARITY), second = 0;

	EXPECT(cuda->memCreate(&second, GRANULARITY, &allocation, 0), ZD_CU_OUT_OF_MEMORY);
	assert_int_equal(second, 0);
	second = create(cuda, 0, GRANULARITY);
	/* A call that releases an object does so even if it fails. */
	EXPECT(cuda->memRelease(first), ZD_CU_INVALID_HANDLE);
	EXPECT(cuda->memRelease(first), ZD_CU_INVALID_VALUE);
	MUST(cuda->memRelease(second));
}

CASE_TEST(test_only_in_the_program_that_is_named, CLEAN, "ZD_DOUBLE_FAIL=4:800", "ZD_DOUBLE_FAIL_IN=zerod")
{
	const struct zd_cuda *cuda = load();
	int count = 0;

	MUST(cuda->deviceGetCount(&count));
}

CASE_TEST(test_a_lost_device_stays_lost, CLEAN, "ZD_DOUBLE_FAIL=cuMemsetD8Async:1:214")
{
	const struct zd_cuda *cuda = load_and_enter();
	struct CUstream_st *stream = new_stream(cuda), *other;
	struct page page = new_page(cuda);
	zd_cu_ptr at = new_mapped(cuda, 0, GRANULARITY);
	struct CUevent_st *event = NULL;

	MUST(cuda->eventCreate(&event, 0));
	MUST(cuda->streamWaitValue64(stream, page.device, 1, 0));
	MUST(cuda->streamWriteValue64(stream, page.device + 8, 1, 0));
	MUST(cuda->eventRecord(event, stream));
	EXPECT(cuda->memsetD8Async(at, 1, 1, stream), ZD_CU_ECC_UNCORRECTABLE);
	/* Nothing hangs, and nothing that was behind the wait has run. */
	EXPECT(cuda->streamSynchronize(stream), ZD_CU_ECC_UNCORRECTABLE);
	EXPECT(cuda->eventSynchronize(event), ZD_CU_ECC_UNCORRECTABLE);
	EXPECT(cuda->eventQuery(event), ZD_CU_ECC_UNCORRECTABLE);
	EXPECT(cuda->memHostGetDevicePointer(&at, page.host, 0), ZD_CU_ECC_UNCORRECTABLE);
	/* Other devices go on, and find the first one's event over. */
	(void)enter(cuda, 1);
	other = new_stream(cuda);
	MUST(cuda->streamWaitEvent(other, event, 0));
	MUST(cuda->streamSynchronize(other));
	EXPECT(cuda->streamSynchronize(stream), ZD_CU_ECC_UNCORRECTABLE);
	MUST(cuda->streamDestroy(other));
	/* Giving back works, whatever it says. */
	EXPECT(cuda->streamDestroy(stream), ZD_CU_ECC_UNCORRECTABLE);
	MUST(cuda->eventDestroy(event));
	unmap(cuda, at, GRANULARITY);
	free_page(cuda, page);
	leave(cuda, 1);
	MUST(cuda->devicePrimaryCtxRelease(0));
}

/* In the middle of things, for every process that has a context there. */
CASE_TEST(test_a_device_can_be_lost_at_any_time, CLEAN)
{
	const struct zd_cuda *cuda;
	struct CUstream_st *stream;
	char dir[] = CASE_DIR;

	assert_non_null(mkdtemp(dir));
	assert_int_equal(setenv("ZD_DOUBLE_DIR", dir, 1), 0);
	cuda = load_and_enter();
	stream = new_stream(cuda);
	case_write_file(dir, "lost-1", "220\n");
	MUST(cuda->streamSynchronize(stream));
	case_write_file(dir, "lost-0", "220\n");
	EXPECT(cuda->streamSynchronize(stream), ZD_CU_NVLINK_UNCORRECTABLE);
	EXPECT(cuda->streamDestroy(stream), ZD_CU_NVLINK_UNCORRECTABLE);
	leave(cuda, 0);
	case_remove_dir(dir);
}

/* ---- Counts and leaks ---------------------------------------------------------------------------------- */

/* A process of its own writes them when it ends. */
CASE_TEST(test_calls_are_counted, CLEAN)
{
	char dir[] = CASE_DIR, path[64], text[2048] = "";
	int fd, status = 0;
	pid_t pid;

	assert_non_null(mkdtemp(dir));
	(void)snprintf(path, sizeof(path), "%s/counts", dir);
	assert_int_equal(setenv("ZD_DOUBLE_COUNT", path, 1), 0);
	(void)fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		leave(load_and_enter(), 0);
		exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_true(read(fd, text, sizeof(text) - 1) > 0);
	(void)close(fd);
	case_remove_dir(dir);
	assert_non_null(strstr(text, "case cuInit 1\n"));
	assert_non_null(strstr(text, "case cuCtxSetCurrent 2\n"));
	assert_non_null(strstr(text, "case all 7\n"));
}

#define KEEPS(what) .env = {CLEAN}, .exit_status = 99, .says = "not given back: 1 " what
CASE_TEST_WITH(test_what_is_kept_is_reported, KEEPS("memory handles"))
{
	const struct zd_cuda *cuda = load_and_enter();
	struct CUevent_st *event = NULL;
	zd_cu_ptr at = 0;

	at = new_mapped(cuda, 0, GRANULARITY);
	assert_true(at != 0);
	(void)create(cuda, 0, GRANULARITY);
	(void)new_page(cuda);
	(void)new_stream(cuda);
	MUST(cuda->eventCreate(&event, 0));
}
CASE_AGAIN(test_what_is_kept_is_reported, mappings, KEEPS("mappings"))
CASE_AGAIN(test_what_is_kept_is_reported, address_ranges, KEEPS("address ranges"))
CASE_AGAIN(test_what_is_kept_is_reported, host_registrations, KEEPS("host registrations"))
CASE_AGAIN(test_what_is_kept_is_reported, streams, KEEPS("streams"))
CASE_AGAIN(test_what_is_kept_is_reported, events, KEEPS("events"))
CASE_AGAIN(test_what_is_kept_is_reported, contexts, KEEPS("contexts"))

int main(int argc, char **argv)
{
	return case_run_all(argc, argv);
}
