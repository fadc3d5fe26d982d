/* SPDX-License-Identifier: Apache-2.0 */
/* test_double_devices.c - the driver's double: which devices it shows, what they can do, contexts, forked
 * children. */
#include "tests/unit/driver/double_fixture.h"

#include <fcntl.h>
#include <sys/file.h>

static void expect_device(const struct zd_cuda *cuda, int device, const char *name)
{
	char text[ZD_CUDA_UUID_TEXT];
	struct zd_cu_uuid uuid;

	MUST(cuda->deviceGetUuid(&uuid, device));
	zd_cuda_uuid_text(&uuid, text);
	assert_string_equal(text, name);
}

CASE_TEST(test_four_devices_with_fixed_names, CLEAN)
{
	const struct zd_cuda *cuda = load();
	char name[8];
	size_t bytes = 0;
	int count = 0, device = -1;

	MUST(cuda->deviceGetCount(&count));
	assert_int_equal(count, 4);
	MUST(cuda->deviceGet(&device, 3));
	assert_int_equal(device, 3);
	EXPECT(cuda->deviceGet(&device, 4), ZD_CU_INVALID_DEVICE);
	expect_device(cuda, 0, "GPU-7a65726f-d00b-4e00-8000-000000000000");
	expect_device(cuda, 3, "GPU-7a657272-d00b-4e00-8000-000000000003");
	MUST(cuda->deviceTotalMem(&bytes, 0));
	assert_int_equal(bytes, 4096 * MIB);
	MUST(cuda->deviceGetName(name, sizeof(name), 0));
	assert_string_equal(name, "zerod d");
}

CASE_TEST(test_devices_are_hidden_and_renumbered, CLEAN, "CUDA_VISIBLE_DEVICES=3,GPU-7a657270,1,9,0")
{
	const struct zd_cuda *cuda = load();
	int count = 0;

	MUST(cuda->deviceGetCount(&count));
	assert_int_equal(count, 2);
	expect_device(cuda, 0, "GPU-7a657272-d00b-4e00-8000-000000000003");
	expect_device(cuda, 1, "GPU-7a657270-d00b-4e00-8000-000000000001");
}

CASE_TEST(test_attributes, CLEAN, "ZD_DOUBLE_COMPUTE_MODE=3", "ZD_DOUBLE_ATTRIBUTES=110=0")
{
	const struct zd_cuda *cuda = load();
	int value = -1;

	MUST(cuda->deviceGetAttribute(&value, ZD_CU_ATTR_VMM_SUPPORTED, 0));
	assert_int_equal(value, 1);
	MUST(cuda->deviceGetAttribute(&value, ZD_CU_ATTR_RDMA_SUPPORTED, 0));
	assert_int_equal(value, 0);
	MUST(cuda->deviceGetAttribute(&value, ZD_CU_ATTR_COMPUTE_MODE, 0));
	assert_int_equal(value, ZD_CU_COMPUTE_EXCLUSIVE_PROCESS);
	EXPECT(cuda->deviceGetAttribute(&value, 9999, 0), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->deviceGetAttribute(&value, ZD_CU_ATTR_COMPUTE_MODE, 4), ZD_CU_INVALID_DEVICE);
}

/* ---- Contexts ------------------------------------------------------------------------------------------ */

CASE_TEST(test_most_calls_need_a_context, CLEAN)
{
	const struct zd_cuda *cuda = load();
	const struct zd_cu_allocation allocation = allocation_on(0);
	struct CUstream_st *stream = NULL;
	zd_cu_memory memory = 0;
	struct CUctx_st *context = NULL;

	MUST(cuda->ctxGetCurrent(&context));
	assert_null(context);
	EXPECT(cuda->streamCreateWithPriority(&stream, 0, 0), ZD_CU_INVALID_CONTEXT);
	EXPECT(cuda->memCreate(&memory, GRANULARITY, &allocation, 0), ZD_CU_INVALID_CONTEXT);
	EXPECT(cuda->streamSynchronize(NULL), ZD_CU_INVALID_CONTEXT);
	EXPECT(cuda->ctxPopCurrent(&context), ZD_CU_INVALID_CONTEXT);
	EXPECT(cuda->ctxPushCurrent((struct CUctx_st *)cuda), ZD_CU_INVALID_CONTEXT);
}

static void *without_context(void *arg)
{
	const struct zd_cuda *cuda = arg;

	return as_pointer((uintptr_t)cuda->streamSynchronize(NULL));
}

CASE_TEST(test_current_is_a_stack_of_each_thread, CLEAN)
{
	const struct zd_cuda *cuda = load();
	struct CUctx_st *first = enter(cuda, 0), *second = NULL, *current = NULL;
	void *result = NULL;
	pthread_t thread;
	int device = -1;

	MUST(cuda->devicePrimaryCtxRetain(&second, 2));
	MUST(cuda->ctxPushCurrent(second));
	MUST(cuda->ctxGetDevice(&device));
	assert_int_equal(device, 2);
	assert_int_equal(pthread_create(&thread, NULL, without_context, (void *)cuda), 0);
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_int_equal((intptr_t)result, ZD_CU_INVALID_CONTEXT);
	MUST(cuda->ctxPopCurrent(&current));
	assert_ptr_equal(current, second);
	MUST(cuda->ctxGetCurrent(&current));
	assert_ptr_equal(current, first);
	MUST(cuda->devicePrimaryCtxRelease(2));
	leave(cuda, 0);
}

CASE_TEST(test_primary_context_lives_while_it_is_retained, CLEAN)
{
	const struct zd_cuda *cuda = load();
	struct CUctx_st *context = enter(cuda, 0), *again = NULL;
	struct CUstream_st *stream = NULL;

	MUST(cuda->devicePrimaryCtxRetain(&again, 0));
	assert_ptr_equal(again, context);
	stream = new_stream(cuda);
	MUST(cuda->devicePrimaryCtxRelease(0));
	MUST(cuda->streamSynchronize(stream));
	MUST(cuda->devicePrimaryCtxRelease(0));
	EXPECT(cuda->streamSynchronize(stream), 709);
	EXPECT(cuda->devicePrimaryCtxRelease(0), ZD_CU_INVALID_CONTEXT);
	/* The next one knows nothing of the last one's streams. */
	(void)enter(cuda, 0);
	EXPECT(cuda->streamSynchronize(stream), ZD_CU_INVALID_HANDLE);
	MUST(cuda->streamDestroy(stream));
	leave(cuda, 0);
}

/* Else a wait that nobody ends would keep the process. */
DRIVER_TEST(test_the_end_of_a_context_drops_its_work)
{
	struct CUstream_st *stream = new_stream(cuda);
	struct page page = new_page(cuda);

	MUST(cuda->streamWaitValue64(stream, page.device, 1, ZD_CU_WAIT_GEQ));
	MUST(cuda->streamWriteValue64(stream, page.device + 8, 1, ZD_CU_WRITE_DEFAULT));
	leave(cuda, 0);
	assert_int_equal(look(&page.host[1]), 0);
	(void)enter(cuda, 0);
}

CASE_TEST(test_a_prohibited_device_has_no_context, CLEAN, "ZD_DOUBLE_COMPUTE_MODE=2")
{
	const struct zd_cuda *cuda = load();
	struct CUctx_st *context = NULL;

	EXPECT(cuda->devicePrimaryCtxRetain(&context, 0), ZD_CU_DEVICE_UNAVAILABLE);
	assert_null(context);
}

CASE_TEST(test_an_exclusive_device_serves_one_process, CLEAN, "ZD_DOUBLE_COMPUTE_MODE=3")
{
	char dir[] = CASE_DIR, path[64];
	struct CUctx_st *context = NULL;
	const struct zd_cuda *cuda;
	int fd;

	assert_non_null(mkdtemp(dir));
	assert_int_equal(setenv("ZD_DOUBLE_DIR", dir, 1), 0);
	(void)snprintf(path, sizeof(path), "%s/gpu-1-pid-1", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	cuda = load();
	EXPECT(cuda->devicePrimaryCtxRetain(&context, 1), ZD_CU_DEVICE_UNAVAILABLE);
	assert_int_equal(close(fd), 0);
	MUST(cuda->devicePrimaryCtxRetain(&context, 1));
	MUST(cuda->devicePrimaryCtxRelease(1));
	case_remove_dir(dir);
}

/* ---- Forked children ----------------------------------------------------------------------------------- */

DRIVER_TEST(test_a_forked_child_is_refused)
{
	struct CUctx_st *context = NULL;
	int count = 0, status = 0;
	pid_t pid;

	(void)fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(cuda->deviceGetCount(&count) == ZD_CU_NOT_INITIALIZED &&
		                      cuda->init(0) == ZD_CU_NOT_INITIALIZED &&
		                      cuda->ctxGetCurrent(&context) == ZD_CU_NOT_INITIALIZED &&
		                      cuda->streamSynchronize(NULL) == ZD_CU_NOT_INITIALIZED
		              ? 0
		              : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	MUST(cuda->streamSynchronize(NULL));
}

int main(int argc, char **argv)
{
	return case_run_all(argc, argv);
}
