/* SPDX-License-Identifier: Apache-2.0 */
/* test_double_memory.c - the driver's double: physical memory, addresses, access, descriptors, and what the
 * CPU may not do. */
#include "tests/unit/driver/double_fixture.h"

#include <fcntl.h>
#include <signal.h>

/* ---- Creating ------------------------------------------------------------------------------------------ */

DRIVER_TEST(test_granularity_rules_sizes)
{
	const struct zd_cu_allocation allocation = allocation_on(0);
	zd_cu_memory memory = 0;
	size_t bytes = 0;

	MUST(cuda->memGetAllocationGranularity(&bytes, &allocation, ZD_CU_GRANULARITY_MINIMUM));
	assert_int_equal(bytes, GRANULARITY);
	EXPECT(cuda->memCreate(&memory, GRANULARITY + PAGE, &allocation, 0), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->memCreate(&memory, 0, &allocation, 0), ZD_CU_INVALID_VALUE);
	MUST(cuda->memCreate(&memory, GRANULARITY, &allocation, 0));
	MUST(cuda->memRelease(memory));
	EXPECT(cuda->memRelease(memory), ZD_CU_INVALID_VALUE);
}

DRIVER_TEST(test_memory_is_finite, "ZD_DOUBLE_MEMORY=8388608")
{
	const struct zd_cu_allocation allocation = allocation_on(0);
	zd_cu_memory memory, more = 0;
	size_t available = 0, total = 0;

	memory = create(cuda, 0, 6 * MIB);
	MUST(cuda->memGetInfo(&available, &total));
	assert_int_equal(total, 8 * MIB);
	assert_int_equal(available, 2 * MIB);
	EXPECT(cuda->memCreate(&more, 4 * MIB, &allocation, 0), ZD_CU_OUT_OF_MEMORY);
	/* Each device has its own. */
	more = create(cuda, 1, 8 * MIB);
	MUST(cuda->memRelease(memory));
	MUST(cuda->memGetInfo(&available, &total));
	assert_int_equal(available, 8 * MIB);
	MUST(cuda->memRelease(more));
}

CASE_TEST(test_memory_taken_by_others_is_missing, CLEAN, "ZD_DOUBLE_MEMORY=8388608")
{
	const struct zd_cuda *cuda;
	size_t available = 0, total = 0;
	char dir[] = CASE_DIR;

	assert_non_null(mkdtemp(dir));
	assert_int_equal(setenv("ZD_DOUBLE_DIR", dir, 1), 0);
	case_write_file(dir, "taken-0", "3145728\n");
	cuda = load_and_enter();
	MUST(cuda->memGetInfo(&available, &total));
	assert_int_equal(available, 5 * MIB);
	leave(cuda, 0);
	case_remove_dir(dir);
}

DRIVER_TEST(test_what_a_device_lacks_is_not_supported, "ZD_DOUBLE_ATTRIBUTES=103=0,110=0")
{
	struct zd_cu_allocation allocation = allocation_on(0);
	zd_cu_memory memory = 0;

	EXPECT(cuda->memCreate(&memory, GRANULARITY, &allocation, 0), ZD_CU_NOT_SUPPORTED);
	allocation.handle_types = 0;
	allocation.flags.gpu_direct_rdma = 1;
	EXPECT(cuda->memCreate(&memory, GRANULARITY, &allocation, 0), ZD_CU_NOT_SUPPORTED);
	allocation.flags.gpu_direct_rdma = 0;
	allocation.location.id = 9;
	EXPECT(cuda->memCreate(&memory, GRANULARITY, &allocation, 0), ZD_CU_INVALID_DEVICE);
}

/* ---- Mapping ------------------------------------------------------------------------------------------- */

DRIVER_TEST(test_whole_handles_are_mapped_at_offset_zero)
{
	zd_cu_memory memory = create(cuda, 0, 2 * GRANULARITY);
	zd_cu_ptr at = 0;

	EXPECT(cuda->memAddressReserve(&at, PAGE, 0, 0, 0), ZD_CU_INVALID_VALUE);
	MUST(cuda->memAddressReserve(&at, 4 * GRANULARITY, 0, 0, 0));
	assert_int_equal(at % GRANULARITY, 0);
	EXPECT(cuda->memMap(at, 2 * GRANULARITY, GRANULARITY, memory, 0), ZD_CU_NOT_SUPPORTED);
	EXPECT(cuda->memMap(at, GRANULARITY, 0, memory, 0), ZD_CU_NOT_SUPPORTED);
	EXPECT(cuda->memMap(at + PAGE, 2 * GRANULARITY, 0, memory, 0), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->memMap(at + 3 * GRANULARITY, 2 * GRANULARITY, 0, memory, 0), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->memMap(at, 2 * GRANULARITY, 0, memory + 1, 0), ZD_CU_INVALID_VALUE);
	MUST(cuda->memMap(at, 2 * GRANULARITY, 0, memory, 0));
	EXPECT(cuda->memMap(at + GRANULARITY, 2 * GRANULARITY, 0, memory, 0), ZD_CU_INVALID_VALUE);
	MUST(cuda->memMap(at + 2 * GRANULARITY, 2 * GRANULARITY, 0, memory, 0));
	MUST(cuda->memUnmap(at, 4 * GRANULARITY));
	MUST(cuda->memAddressFree(at, 4 * GRANULARITY));
	MUST(cuda->memRelease(memory));
}

DRIVER_TEST(test_whole_mappings_are_unmapped)
{
	zd_cu_memory memory = create(cuda, 0, 2 * GRANULARITY);
	zd_cu_ptr at = map(cuda, memory, 2 * GRANULARITY, 0);
	const struct zd_cu_access access = access_for(0);

	EXPECT(cuda->memUnmap(at, GRANULARITY), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->memUnmap(at + GRANULARITY, GRANULARITY), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->memSetAccess(at, GRANULARITY, &access, 1), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->memAddressFree(at, 2 * GRANULARITY), ZD_CU_INVALID_VALUE);
	MUST(cuda->memUnmap(at, 2 * GRANULARITY));
	EXPECT(cuda->memUnmap(at, 2 * GRANULARITY), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->memSetAccess(at, 2 * GRANULARITY, &access, 1), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->memAddressFree(at, GRANULARITY), ZD_CU_INVALID_VALUE);
	MUST(cuda->memAddressFree(at, 2 * GRANULARITY));
	MUST(cuda->memRelease(memory));
}

CASE_TEST(test_mapped_memory_needs_no_handle, CLEAN)
{
	const struct zd_cuda *cuda = load_and_enter();
	size_t available = 0, total = 0;
	zd_cu_ptr at = new_mapped(cuda, 0, GRANULARITY);
	uint32_t word = 0;

	MUST(cuda->memGetInfo(&available, &total));
	assert_int_equal(total - available, GRANULARITY);
	MUST(cuda->memsetD8Async(at, 0x5a, GRANULARITY, NULL));
	MUST(cuda->memcpyDtoHAsync(&word, at + GRANULARITY - 4, 4, NULL));
	assert_int_equal(word, 0x5a5a5a5a);
	unmap(cuda, at, GRANULARITY);
	MUST(cuda->memGetInfo(&available, &total));
	assert_int_equal(total, available);
	leave(cuda, 0);
}

/* Two addresses of the same bytes; a copy over several mappings that lie side by side. */
DRIVER_TEST(test_copies_cross_mappings)
{
	const struct zd_cu_access access = access_for(0);
	static unsigned char out[2 * GRANULARITY], in[2 * GRANULARITY];
	zd_cu_memory a = create(cuda, 0, GRANULARITY), b = create(cuda, 0, GRANULARITY);
	zd_cu_ptr at = 0, other = map(cuda, b, GRANULARITY, 0);

	MUST(cuda->memAddressReserve(&at, 2 * GRANULARITY, 0, 0, 0));
	MUST(cuda->memMap(at, GRANULARITY, 0, a, 0));
	MUST(cuda->memMap(at + GRANULARITY, GRANULARITY, 0, b, 0));
	MUST(cuda->memSetAccess(at, 2 * GRANULARITY, &access, 1));
	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (unsigned char)(i * 31 >> 8);
	MUST(cuda->memcpyHtoDAsync(at, out, sizeof(out), NULL));
	MUST(cuda->memcpyDtoHAsync(in, at, sizeof(in), NULL));
	assert_memory_equal(in, out, sizeof(in));
	MUST(cuda->memcpyDtoHAsync(in, other, GRANULARITY, NULL));
	assert_memory_equal(in, out + GRANULARITY, GRANULARITY);
	unmap(cuda, at, 2 * GRANULARITY);
	unmap(cuda, other, GRANULARITY);
	MUST(cuda->memRelease(a));
	MUST(cuda->memRelease(b));
}

/* ---- Access -------------------------------------------------------------------------------------------- */

CASE_TEST(test_without_access_the_context_is_lost, CLEAN)
{
	const struct zd_cuda *cuda = load_and_enter();
	zd_cu_memory memory = create(cuda, 0, GRANULARITY);
	zd_cu_ptr at = map(cuda, memory, GRANULARITY, 1);
	struct CUstream_st *stream = new_stream(cuda);
	struct CUctx_st *second;

	MUST(cuda->memsetD8Async(at, 1, GRANULARITY, stream));
	EXPECT(cuda->streamSynchronize(stream), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->memsetD8Async(at, 1, GRANULARITY, stream), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->streamQuery(NULL), ZD_CU_ILLEGAL_ADDRESS);
	/* Of another device nothing is lost, and it has access. */
	EXPECT(cuda->streamDestroy(stream), ZD_CU_ILLEGAL_ADDRESS);
	second = enter(cuda, 1);
	stream = new_stream(cuda);
	assert_non_null(second);
	MUST(cuda->memsetD8Async(at, 1, GRANULARITY, stream));
	MUST(cuda->streamSynchronize(stream));
	MUST(cuda->streamDestroy(stream));
	unmap(cuda, at, GRANULARITY);
	MUST(cuda->memRelease(memory));
	leave(cuda, 1);
	MUST(cuda->devicePrimaryCtxRelease(0));
}

static unsigned long long access_of(const struct zd_cuda *cuda, int device, zd_cu_ptr at)
{
	const struct zd_cu_location location = {ZD_CU_LOCATION_DEVICE, device};
	unsigned long long flags = 99;

	MUST(cuda->memGetAccess(&flags, &location, at));
	return flags;
}

/* From whole mappings, one device and one mapping at a time; the bytes stay. */
DRIVER_TEST(test_access_is_taken_and_given_back)
{
	zd_cu_memory memory = create(cuda, 0, 2 * GRANULARITY);
	zd_cu_ptr at = map(cuda, memory, 2 * GRANULARITY, 0), other = map(cuda, memory, 2 * GRANULARITY, 0);
	struct zd_cu_access access = access_for(0);
	uint32_t word = 0;

	MUST(cuda->memsetD8Async(at, 3, 2 * GRANULARITY, NULL));
	MUST(cuda->streamSynchronize(NULL));
	access.flags = ZD_CU_ACCESS_NONE;
	EXPECT(cuda->memSetAccess(at, GRANULARITY, &access, 1), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->memSetAccess(at + GRANULARITY, GRANULARITY, &access, 1), ZD_CU_INVALID_VALUE);
	MUST(cuda->memSetAccess(at, 2 * GRANULARITY, &access, 1));
	assert_int_equal(access_of(cuda, 0, at + GRANULARITY), ZD_CU_ACCESS_NONE);
	assert_int_equal(access_of(cuda, 0, other), ZD_CU_ACCESS_READWRITE);
	assert_int_equal(access_of(cuda, 1, other), ZD_CU_ACCESS_NONE);
	MUST(cuda->memcpyDtoHAsync(&word, other, 4, NULL));
	assert_int_equal(word, 0x03030303);
	access.flags = ZD_CU_ACCESS_READ;
	MUST(cuda->memSetAccess(at, 2 * GRANULARITY, &access, 1));
	assert_int_equal(access_of(cuda, 0, at), ZD_CU_ACCESS_READ);
	word = 0;
	MUST(cuda->memcpyDtoHAsync(&word, at, 4, NULL));
	assert_int_equal(word, 0x03030303);
	unmap(cuda, at, 2 * GRANULARITY);
	EXPECT(cuda->memGetAccess(&(unsigned long long){0}, &access.location, at), ZD_CU_INVALID_VALUE);
	unmap(cuda, other, 2 * GRANULARITY);
	MUST(cuda->memRelease(memory));
}

/* A memset that was enqueued with access, and runs without. */
CASE_TEST(test_access_is_taken_from_what_is_enqueued, CLEAN)
{
	const struct zd_cuda *cuda = load_and_enter();
	zd_cu_ptr at = new_mapped(cuda, 0, GRANULARITY);
	struct zd_cu_access access = access_for(0);
	struct CUstream_st *stream = new_stream(cuda);
	struct page page = new_page(cuda);

	access.flags = ZD_CU_ACCESS_NONE;
	MUST(cuda->streamWaitValue64(stream, page.device, 1, ZD_CU_WAIT_GEQ));
	MUST(cuda->memsetD8Async(at, 1, GRANULARITY, stream));
	MUST(cuda->memSetAccess(at, GRANULARITY, &access, 1)); /* waits for nothing that is parked */
	store(page.host, 1);
	EXPECT(cuda->streamSynchronize(stream), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->streamDestroy(stream), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->memHostUnregister(page.host), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->memUnmap(at, GRANULARITY), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->memAddressFree(at, GRANULARITY), ZD_CU_ILLEGAL_ADDRESS);
	leave(cuda, 0);
}

DRIVER_TEST(test_a_push_needs_the_issuing_device_on_both_sides)
{
	zd_cu_memory far = create(cuda, 1, GRANULARITY);
	zd_cu_ptr from = new_mapped(cuda, 0, GRANULARITY), to = map(cuda, far, GRANULARITY, 1);
	const struct zd_cu_access access = access_for(0);
	uint32_t word = 0;

	MUST(cuda->memSetAccess(to, GRANULARITY, &access, 1));
	MUST(cuda->memsetD8Async(from, 7, GRANULARITY, NULL));
	MUST(cuda->memcpyAsync(to, from, GRANULARITY, NULL));
	MUST(cuda->memcpyDtoHAsync(&word, to, 4, NULL));
	assert_int_equal(word, 0x07070707);
	unmap(cuda, to, GRANULARITY);
	MUST(cuda->memRelease(far));
}

DRIVER_TEST(test_no_access_between_devices_that_are_no_peers, "ZD_DOUBLE_NO_PEER=0-1,2-3")
{
	zd_cu_memory memory = create(cuda, 0, GRANULARITY);
	zd_cu_ptr at = map(cuda, memory, GRANULARITY, 0);
	struct zd_cu_access access = access_for(1);
	int can = -1;

	MUST(cuda->deviceCanAccessPeer(&can, 0, 1));
	assert_int_equal(can, 0);
	MUST(cuda->deviceCanAccessPeer(&can, 2, 0));
	assert_int_equal(can, 1);
	EXPECT(cuda->memSetAccess(at, GRANULARITY, &access, 1), ZD_CU_INVALID_DEVICE);
	access.location.id = 2;
	MUST(cuda->memSetAccess(at, GRANULARITY, &access, 1));
	unmap(cuda, at, GRANULARITY);
	MUST(cuda->memRelease(memory));
}

CASE_TEST(test_copies_between_devices_that_are_no_peers, CLEAN, "ZD_DOUBLE_NO_PEER=0-1")
{
	const struct zd_cuda *cuda = load_and_enter();
	struct CUctx_st *near = NULL, *far = NULL;
	zd_cu_ptr from = new_mapped(cuda, 0, GRANULARITY), to = new_mapped(cuda, 1, GRANULARITY);
	uint32_t word = 0;

	MUST(cuda->devicePrimaryCtxRetain(&far, 1));
	MUST(cuda->ctxGetCurrent(&near));
	MUST(cuda->memsetD8Async(from, 9, GRANULARITY, NULL));
	MUST(cuda->memcpyPeerAsync(to, far, from, near, GRANULARITY, NULL));
	MUST(cuda->streamSynchronize(NULL));
	MUST(cuda->ctxPushCurrent(far));
	MUST(cuda->memcpyDtoHAsync(&word, to, 4, NULL));
	MUST(cuda->ctxPopCurrent(NULL));
	assert_int_equal(word, 0x09090909);
	/* Sides mixed up. */
	MUST(cuda->memcpyPeerAsync(from, far, to, near, GRANULARITY, NULL));
	EXPECT(cuda->streamSynchronize(NULL), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->memUnmap(from, GRANULARITY), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->memAddressFree(from, GRANULARITY), ZD_CU_ILLEGAL_ADDRESS);
	MUST(cuda->ctxSetCurrent(far));
	unmap(cuda, to, GRANULARITY);
	leave(cuda, 1);
	MUST(cuda->devicePrimaryCtxRelease(0));
}

CASE_TEST(test_unmapped_under_its_hands, CLEAN)
{
	const struct zd_cuda *cuda = load_and_enter();
	zd_cu_ptr at = new_mapped(cuda, 0, GRANULARITY);
	struct CUstream_st *stream = new_stream(cuda);
	struct page page = new_page(cuda);

	MUST(cuda->streamWaitValue64(stream, page.device, 1, ZD_CU_WAIT_GEQ));
	MUST(cuda->memsetD8Async(at, 1, GRANULARITY, stream));
	/* It waits for nothing that is parked. */
	unmap(cuda, at, GRANULARITY);
	EXPECT(cuda->memsetD8Async(at, 1, GRANULARITY, stream), ZD_CU_INVALID_VALUE);
	store(page.host, 1);
	EXPECT(cuda->streamSynchronize(stream), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->streamDestroy(stream), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->memHostUnregister(page.host), ZD_CU_ILLEGAL_ADDRESS);
	leave(cuda, 0);
}

/* A wait on memory that is unmapped meanwhile, and then passes by way of another address. */
CASE_TEST(test_unmapped_while_it_is_waited_on, CLEAN)
{
	const struct zd_cuda *cuda = load_and_enter();
	zd_cu_memory memory = create(cuda, 0, GRANULARITY);
	zd_cu_ptr at = map(cuda, memory, GRANULARITY, 0), other = map(cuda, memory, GRANULARITY, 0);
	struct CUstream_st *waits = new_stream(cuda), *writes = new_stream(cuda);
	struct page page = new_page(cuda);

	MUST(cuda->streamWriteValue64(waits, page.device, 1, 0));
	MUST(cuda->streamWaitValue64(waits, at, 1, 0));
	while (look(page.host) == 0)
		(void)sched_yield();
	/* So that it is likely to have begun; it ends in the same way if it has not. */
	for (uint64_t i = 2; i < 100; i++) {
		MUST(cuda->streamWriteValue64(writes, page.device, i, 0));
		MUST(cuda->streamSynchronize(writes));
	}
	unmap(cuda, at, GRANULARITY);
	MUST(cuda->streamWriteValue64(writes, other, 1, 0));
	EXPECT(cuda->streamSynchronize(waits), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->streamDestroy(waits), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->streamDestroy(writes), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->memHostUnregister(page.host), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->memUnmap(other, GRANULARITY), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->memAddressFree(other, GRANULARITY), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->memRelease(memory), ZD_CU_ILLEGAL_ADDRESS);
	leave(cuda, 0);
}

DRIVER_TEST(test_the_cpu_faults_on_device_addresses)
{
	zd_cu_ptr at = new_mapped(cuda, 0, GRANULARITY);
	int status = 0;
	pid_t pid;

	(void)fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		(void)signal(SIGSEGV, SIG_DFL);
		_exit(*(volatile unsigned char *)as_pointer(at));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

/* ---- Descriptors --------------------------------------------------------------------------------------- */

DRIVER_TEST(test_memory_travels_as_a_descriptor)
{
	zd_cu_memory memory = create(cuda, 0, GRANULARITY), imported = 0;
	zd_cu_ptr at = map(cuda, memory, GRANULARITY, 0), other;
	size_t available = 0, total = 0;
	uint32_t word = 0;
	int fd = -1;

	MUST(cuda->memsetD8Async(at, 3, GRANULARITY, NULL));
	MUST(cuda->streamSynchronize(NULL));
	MUST(cuda->memExportToShareableHandle(&fd, memory, ZD_CU_HANDLE_POSIX_FD, 0));
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	unmap(cuda, at, GRANULARITY);
	MUST(cuda->memRelease(memory));
	/* The descriptor alone keeps it; the import keeps a descriptor of its own. */
	MUST(cuda->memImportFromShareableHandle(&imported, as_pointer((uintptr_t)fd), ZD_CU_HANDLE_POSIX_FD));
	assert_int_equal(close(fd), 0);
	MUST(cuda->memExportToShareableHandle(&fd, imported, ZD_CU_HANDLE_POSIX_FD, 0));
	assert_int_equal(close(fd), 0);
	other = map(cuda, imported, GRANULARITY, 0);
	MUST(cuda->memcpyDtoHAsync(&word, other, 4, NULL));
	assert_int_equal(word, 0x03030303);
	MUST(cuda->memGetInfo(&available, &total));
	assert_int_equal(available, total);
	unmap(cuda, other, GRANULARITY);
	MUST(cuda->memRelease(imported));
}

DRIVER_TEST(test_other_descriptors_are_refused)
{
	struct zd_cu_allocation allocation = allocation_on(0);
	zd_cu_memory memory = 0;
	int fd = memfd_create("anything", MFD_CLOEXEC);

	assert_int_equal(ftruncate(fd, (off_t)GRANULARITY), 0);
	EXPECT(cuda->memImportFromShareableHandle(&memory, as_pointer((uintptr_t)fd), ZD_CU_HANDLE_POSIX_FD),
	       ZD_CU_INVALID_VALUE);
	assert_int_equal(close(fd), 0);
	EXPECT(cuda->memImportFromShareableHandle(&memory, as_pointer((uintptr_t)fd), ZD_CU_HANDLE_POSIX_FD),
	       ZD_CU_INVALID_VALUE);
	allocation.handle_types = 0;
	MUST(cuda->memCreate(&memory, GRANULARITY, &allocation, 0));
	EXPECT(cuda->memExportToShareableHandle(&fd, memory, ZD_CU_HANDLE_POSIX_FD, 0), ZD_CU_INVALID_VALUE);
	MUST(cuda->memRelease(memory));
}

int main(int argc, char **argv)
{
	return case_run_all(argc, argv);
}
