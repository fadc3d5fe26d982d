/* SPDX-License-Identifier: Apache-2.0 */
/* double_fixture.h - what tests of the driver's double share: the driver, a context, memory with an address,
 * a fence page. */
#ifndef ZD_TESTS_DOUBLE_FIXTURE_H
#define ZD_TESTS_DOUBLE_FIXTURE_H

#include <pthread.h>

#include "base/err.h"
#include "driver/driver.h"
#include "tests/unit/driver/cases.h"

#define MIB         (1024ull * 1024)
#define GRANULARITY (2 * MIB)
#define PAGE        ((size_t)4096)

#define MUST(call)                assert_int_equal((call), ZD_CU_SUCCESS)
#define EXPECT(call, expectation) assert_int_equal((call), (expectation))

/* Numbers where the driver, or what is not to be followed, wants a pointer. */
static inline void *as_pointer(uintptr_t number)
{
	void *pointer;

	memcpy(&pointer, &number, sizeof(pointer));
	return pointer;
}

static inline const struct zd_cuda *load(void)
{
	const struct zd_cuda *cuda = NULL;
	struct zd_err err = ZD_ERR_NONE;

	if (zd_cuda_load(&cuda, &err))
		fail_msg("%s", err.text);
	return cuda;
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

struct page {
	uint64_t *host;
	zd_cu_ptr device;
};

/* The contexts, streams, pages and mappings that enter() and new_*() have made in this case. */
struct made {
	struct CUstream_st *streams[16];
	struct page pages[4];
	struct mapping {
		zd_cu_ptr at;
		size_t bytes;
	} mappings[4];
	unsigned nstreams, npages, nmappings;
	int entered[4]; /* of each device */
};
static struct made made;

static inline void end_driver_test(const struct zd_cuda *cuda);

/* A test of `cuda`, with device 0's context current. They are given back for it, and it fails if it keeps
 * anything else. */
#define DRIVER_TEST(name, ...)                                                                               \
	CASE_DEFINE(name, const struct zd_cuda *cuda, const struct zd_cuda *cuda = load_and_enter();         \
	            (name(cuda), end_driver_test(cuda)), .env = {CLEAN, __VA_ARGS__})
/* In the environment of a case that gives back all by itself. */
#define CLEAN "ZD_DOUBLE_LEAKS=1"

static inline struct CUctx_st *enter(const struct zd_cuda *cuda, int device)
{
	struct CUctx_st *context = NULL;

	MUST(cuda->devicePrimaryCtxRetain(&context, device));
	MUST(cuda->ctxSetCurrent(context));
	made.entered[device]++;
	return context;
}

static inline void leave(const struct zd_cuda *cuda, int device)
{
	MUST(cuda->ctxSetCurrent(NULL));
	MUST(cuda->devicePrimaryCtxRelease(device));
	made.entered[device]--;
}

/* Loaded, with device 0's context current. */
static inline const struct zd_cuda *load_and_enter(void)
{
	const struct zd_cuda *cuda = load();

	(void)enter(cuda, 0);
	return cuda;
}

/* ---- Device memory ------------------------------------------------------------------------------------- */

static inline struct zd_cu_allocation allocation_on(int device)
{
	return (struct zd_cu_allocation){.type = ZD_CU_ALLOCATION_PINNED,
	                                 .handle_types = ZD_CU_HANDLE_POSIX_FD,
	                                 .location = {.type = ZD_CU_LOCATION_DEVICE, .id = device}};
}

static inline struct zd_cu_access access_for(int device)
{
	return (struct zd_cu_access){.location = {.type = ZD_CU_LOCATION_DEVICE, .id = device},
	                             .flags = ZD_CU_ACCESS_READWRITE};
}

static inline zd_cu_memory create(const struct zd_cuda *cuda, int device, size_t bytes)
{
	const struct zd_cu_allocation allocation = allocation_on(device);
	zd_cu_memory memory = 0;

	MUST(cuda->memCreate(&memory, bytes, &allocation, 0));
	return memory;
}

/* Mapped into a range of its own, with access for `device` unless it is -1. */
static inline zd_cu_ptr map(const struct zd_cuda *cuda, zd_cu_memory memory, size_t bytes, int device)
{
	zd_cu_ptr at = 0;

	MUST(cuda->memAddressReserve(&at, bytes, 0, 0, 0));
	MUST(cuda->memMap(at, bytes, 0, memory, 0));
	if (device >= 0) {
		const struct zd_cu_access access = access_for(device);

		MUST(cuda->memSetAccess(at, bytes, &access, 1));
	}
	return at;
}

static inline void unmap(const struct zd_cuda *cuda, zd_cu_ptr at, size_t bytes)
{
	MUST(cuda->memUnmap(at, bytes));
	MUST(cuda->memAddressFree(at, bytes));
}

/* Memory of the device and nothing but an address: unmapped by unmap(). */
static inline zd_cu_ptr new_mapped(const struct zd_cuda *cuda, int device, size_t bytes)
{
	zd_cu_memory memory = create(cuda, device, bytes);
	zd_cu_ptr at = map(cuda, memory, bytes, device);

	MUST(cuda->memRelease(memory));
	assert_true(made.nmappings < ZD_ARRAY_LEN(made.mappings));
	made.mappings[made.nmappings++] = (struct mapping){at, bytes};
	return at;
}

/* ---- Fences -------------------------------------------------------------------------------------------- */

static inline struct page new_page(const struct zd_cuda *cuda)
{
	struct page page = {
	        .host = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)};

	assert_true(page.host != MAP_FAILED);
	MUST(cuda->memHostRegister(page.host, PAGE,
	                           ZD_CU_HOST_REGISTER_PORTABLE | ZD_CU_HOST_REGISTER_DEVICEMAP));
	MUST(cuda->memHostGetDevicePointer(&page.device, page.host, 0));
	assert_true(made.npages < ZD_ARRAY_LEN(made.pages));
	made.pages[made.npages++] = page;
	return page;
}

static inline void free_page(const struct zd_cuda *cuda, struct page page)
{
	MUST(cuda->memHostUnregister(page.host));
	assert_int_equal(munmap(page.host, PAGE), 0);
}

/* The CPU's store to a fence. */
static inline void store(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline uint64_t look(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline struct CUstream_st *new_stream(const struct zd_cuda *cuda)
{
	struct CUstream_st *stream = NULL;

	MUST(cuda->streamCreateWithPriority(&stream, ZD_CU_STREAM_NON_BLOCKING, 0));
	assert_true(made.nstreams < ZD_ARRAY_LEN(made.streams));
	made.streams[made.nstreams++] = stream;
	return stream;
}

static inline void end_driver_test(const struct zd_cuda *cuda)
{
	for (unsigned i = 0; i < made.nstreams; i++)
		MUST(cuda->streamDestroy(made.streams[i]));
	for (unsigned i = 0; i < made.npages; i++)
		free_page(cuda, made.pages[i]);
	for (unsigned i = 0; i < made.nmappings; i++)
		unmap(cuda, made.mappings[i].at, made.mappings[i].bytes);
	for (int device = 0; device < 4; device++)
		while (made.entered[device])
			leave(cuda, device);
}

#endif
