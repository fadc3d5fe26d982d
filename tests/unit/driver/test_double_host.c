/* SPDX-License-Identifier: Apache-2.0 */
/* test_double_host.c - the driver's double: host memory, registered, allocated and pageable. */
#include "tests/unit/driver/double_fixture.h"

#define BOTH (ZD_CU_HOST_REGISTER_PORTABLE | ZD_CU_HOST_REGISTER_DEVICEMAP)

static void *new_pages(size_t bytes, int protection)
{
	void *at = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(at != MAP_FAILED);
	return at;
}

DRIVER_TEST(test_registering)
{
	unsigned char *at = new_pages(4 * PAGE, PROT_READ | PROT_WRITE);
	zd_cu_ptr device = 0;

	EXPECT(cuda->memHostGetDevicePointer(&device, at, 0), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->memHostRegister(at, 0, BOTH), ZD_CU_INVALID_VALUE);
	MUST(cuda->memHostRegister(at + PAGE, 2 * PAGE, BOTH));
	EXPECT(cuda->memHostRegister(at, 2 * PAGE, BOTH), ZD_CU_HOST_MEMORY_ALREADY_REGISTERED);
	MUST(cuda->memHostRegister(at, PAGE, ZD_CU_HOST_REGISTER_PORTABLE));
	EXPECT(cuda->memHostGetDevicePointer(&device, at, 0), ZD_CU_INVALID_VALUE);
	MUST(cuda->memHostGetDevicePointer(&device, at + PAGE + 16, 0));
	assert_int_equal(device, (uintptr_t)at + PAGE + 16);
	EXPECT(cuda->memHostUnregister(at + 2 * PAGE), 713);
	EXPECT(cuda->memFreeHost(at), ZD_CU_INVALID_VALUE);
	MUST(cuda->memHostUnregister(at));
	MUST(cuda->memHostUnregister(at + PAGE));
	EXPECT(cuda->memHostUnregister(at + PAGE), 713);
	assert_int_equal(munmap(at, 4 * PAGE), 0);
}

/* The driver pins pages to write to them. */
DRIVER_TEST(test_registered_pages_are_there_and_writable)
{
	unsigned char *at = new_pages(2 * PAGE, PROT_READ);

	EXPECT(cuda->memHostRegister(at, PAGE, BOTH), ZD_CU_INVALID_VALUE);
	assert_int_equal(mprotect(at, PAGE, PROT_READ | PROT_WRITE), 0);
	MUST(cuda->memHostRegister(at, PAGE, BOTH));
	MUST(cuda->memHostUnregister(at));
	EXPECT(cuda->memHostRegister(at, 2 * PAGE, BOTH), ZD_CU_INVALID_VALUE);
	assert_int_equal(munmap(at, 2 * PAGE), 0);
	EXPECT(cuda->memHostRegister(at, PAGE, BOTH), ZD_CU_INVALID_VALUE);
}

DRIVER_TEST(test_device_addresses_can_be_others, "ZD_DOUBLE_ATTRIBUTES=91=0")
{
	struct page page = new_page(cuda);

	assert_true(page.device != (uintptr_t)page.host);
	EXPECT(cuda->streamWriteValue64(NULL, (zd_cu_ptr)(uintptr_t)page.host, 1, 0), ZD_CU_INVALID_VALUE);
	MUST(cuda->streamWriteValue64(NULL, page.device + 24, 8, 0));
	MUST(cuda->streamSynchronize(NULL));
	assert_int_equal(look(&page.host[3]), 8);
}

DRIVER_TEST(test_allocating)
{
	zd_cu_ptr device = 0, at = new_mapped(cuda, 0, GRANULARITY);
	void *host = NULL;

	EXPECT(cuda->memHostAlloc(&host, 0, 0), ZD_CU_INVALID_VALUE);
	MUST(cuda->memHostAlloc(&host, 3 * PAGE, ZD_CU_HOST_ALLOC_PORTABLE));
	MUST(cuda->memHostGetDevicePointer(&device, host, 0));
	memset(host, 5, 3 * PAGE);
	MUST(cuda->memcpyAsync(at, device, 3 * PAGE, NULL));
	MUST(cuda->memsetD8Async(device, 0, 3 * PAGE, NULL));
	MUST(cuda->memcpyDtoHAsync(host, at, PAGE, NULL));
	MUST(cuda->streamSynchronize(NULL));
	assert_int_equal(((unsigned char *)host)[PAGE - 1], 5);
	assert_int_equal(((unsigned char *)host)[PAGE], 0);
	EXPECT(cuda->memHostUnregister(host), 713);
	MUST(cuda->memFreeHost(host));
	EXPECT(cuda->memFreeHost(host), ZD_CU_INVALID_VALUE);
}

/* ---- Pageable memory ----------------------------------------------------------------------------------- */

DRIVER_TEST(test_pageable_sources_are_read_at_once)
{
	zd_cu_ptr at = new_mapped(cuda, 0, GRANULARITY);
	struct CUstream_st *stream = new_stream(cuda);
	struct page page = new_page(cuda);
	uint64_t pageable = 1, first = 0, second = 0;

	page.host[1] = 1;
	MUST(cuda->streamWaitValue64(stream, page.device, 1, 0));
	MUST(cuda->memcpyHtoDAsync(at, &pageable, 8, stream));
	MUST(cuda->memcpyHtoDAsync(at + 8, &page.host[1], 8, stream));
	pageable = 2;
	store(&page.host[1], 2);
	store(&page.host[0], 1);
	/* To pageable memory, so it is there when the call returns. */
	MUST(cuda->memcpyDtoHAsync(&first, at, 8, stream));
	assert_int_equal(first, 1);
	MUST(cuda->memcpyDtoHAsync(&second, at + 8, 8, stream));
	assert_int_equal(second, 2);
}

DRIVER_TEST(test_device_addresses_are_no_host_memory)
{
	zd_cu_ptr at = new_mapped(cuda, 0, GRANULARITY), empty = 0;
	uint64_t word = 0;

	MUST(cuda->memAddressReserve(&empty, GRANULARITY, 0, 0, 0));
	EXPECT(cuda->memcpyAsync(at, empty, 8, NULL), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->memcpyAsync(empty, at, 8, NULL), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->memcpyHtoDAsync((zd_cu_ptr)(uintptr_t)&word, &word, 8, NULL), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->memcpyHtoDAsync(at + GRANULARITY - 4, &word, 8, NULL), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->memcpyDtoHAsync(NULL, at, 8, NULL), ZD_CU_INVALID_VALUE);
	MUST(cuda->memcpyDtoHAsync(NULL, at, 0, NULL));
	MUST(cuda->memAddressFree(empty, GRANULARITY));
}

/* ---- Giving back what is in use ------------------------------------------------------------------------ */

struct giving_back {
	const struct zd_cuda *cuda;
	struct CUctx_st *context;
	uint64_t *words;
	uint64_t seen;
};

static void *give_back(void *arg)
{
	struct giving_back *work = arg;
	int result = work->cuda->ctxSetCurrent(work->context);

	if (!result)
		result = work->cuda->memHostUnregister(work->words);
	work->seen = look(work->words);
	return as_pointer((uintptr_t)result);
}

DRIVER_TEST(test_unregistering_waits_for_work_on_it)
{
	struct giving_back work = {.cuda = cuda, .words = new_pages(PAGE, PROT_READ | PROT_WRITE)};
	struct CUstream_st *stream = new_stream(cuda);
	struct page page = new_page(cuda);
	zd_cu_ptr words = 0;
	void *result = NULL;
	pthread_t thread;

	MUST(cuda->ctxGetCurrent(&work.context));
	MUST(cuda->memHostRegister(work.words, PAGE, BOTH));
	MUST(cuda->memHostGetDevicePointer(&words, work.words, 0));
	MUST(cuda->streamWaitValue64(stream, page.device, 1, 0));
	MUST(cuda->streamWriteValue64(stream, words, 33, 0));
	assert_int_equal(pthread_create(&thread, NULL, give_back, &work), 0);
	/* No longer known: the other thread is inside. */
	while (cuda->memHostGetDevicePointer(&words, work.words, 0) == ZD_CU_SUCCESS)
		(void)sched_yield();
	store(page.host, 1);
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_int_equal((intptr_t)result, ZD_CU_SUCCESS);
	assert_int_equal(work.seen, 33);
	assert_int_equal(munmap(work.words, PAGE), 0);
}

int main(int argc, char **argv)
{
	return case_run_all(argc, argv);
}
