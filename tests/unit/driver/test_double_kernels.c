/* SPDX-License-Identifier: Apache-2.0 */
/* test_double_kernels.c - the driver's double: modules, and kernels of this program that it finds by name. */
#include "tests/unit/driver/double_fixture.h"

#include "tests/double/kernel.h"

#define PTX                                                                                                  \
	".version 9.0\n"                                                                                     \
	".visible .entry increment(\n)\n"                                                                    \
	".visible .entry add_all(\n)\n"                                                                      \
	".visible .entry elsewhere(\n)\n"                                                                    \
	".visible .entry zerod_cast_float32_bfloat16(\n)\n"

/* Adds args[1] to the word at args[0]. */
static bool increment(struct double_reach *reach, const uint64_t *args)
{
	size_t bytes = sizeof(uint64_t);
	uint64_t *word = reach->at(reach, args[0], &bytes);

	if (word)
		*word += args[1];
	return word != NULL;
}

struct terms {
	uint64_t at, count, each[20];
};

/* Adds all terms to the word. */
static bool add_all(struct double_reach *reach, const uint64_t *args)
{
	const struct terms *terms = (const struct terms *)(const void *)args;
	size_t bytes = sizeof(uint64_t);
	uint64_t *word = reach->at(reach, terms->at, &bytes);

	for (uint64_t i = 0; word && i < terms->count; i++)
		*word += terms->each[i];
	return word != NULL;
}

DOUBLE_KERNEL(add_all) = {.nargs = 1, .run = add_all, .arg_bytes = sizeof(struct terms)};
DOUBLE_KERNEL(increment) = {.nargs = 2, .run = increment};
DOUBLE_KERNEL(absent) = {.nargs = 0, .run = NULL}; /* from the PTX */

static struct CUmod_st *load_module(const struct zd_cuda *cuda)
{
	struct CUmod_st *module = NULL;

	MUST(cuda->moduleLoadData(&module, PTX));
	return module;
}

static int launch(const struct zd_cuda *cuda, struct CUfunc_st *function, struct CUstream_st *stream,
                  uint64_t address, uint64_t value)
{
	void *args[] = {&address, &value};
	int result = cuda->launchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL);

	/* Arguments are copied by the call. */
	address = 0;
	value = 0;
	return result;
}

static uint64_t read_word(const struct zd_cuda *cuda, zd_cu_ptr at)
{
	uint64_t word = 0;

	MUST(cuda->memcpyDtoHAsync(&word, at, sizeof(word), NULL));
	return word;
}

/* ---- Cases --------------------------------------------------------------------------------------------- */

DRIVER_TEST(test_kernels_run_in_the_order_of_their_stream)
{
	struct CUmod_st *module = load_module(cuda);
	zd_cu_ptr at = new_mapped(cuda, 0, GRANULARITY);
	struct CUfunc_st *function = NULL;

	MUST(cuda->moduleGetFunction(&function, module, "increment"));
	MUST(launch(cuda, function, NULL, at, 5)); /* before the memory is cleared */
	MUST(cuda->memsetD8Async(at, 0, GRANULARITY, NULL));
	for (int i = 0; i < 10; i++)
		MUST(launch(cuda, function, NULL, at, 3));
	assert_int_equal(read_word(cuda, at), 30);
	MUST(cuda->moduleUnload(module));
	EXPECT(launch(cuda, function, NULL, at, 1), ZD_CU_INVALID_HANDLE);
	EXPECT(cuda->moduleUnload(module), ZD_CU_INVALID_HANDLE);
}

DRIVER_TEST(test_an_argument_may_be_a_structure)
{
	struct CUmod_st *module = load_module(cuda);
	zd_cu_ptr at = new_mapped(cuda, 0, GRANULARITY);
	struct terms terms = {.at = at, .count = ZD_ARRAY_LEN(terms.each), .each = {[0] = 1, [19] = 40}};
	struct CUfunc_st *function = NULL;
	void *args[] = {&terms};

	MUST(cuda->moduleGetFunction(&function, module, "add_all"));
	MUST(cuda->memsetD8Async(at, 0, GRANULARITY, NULL));
	MUST(cuda->launchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL));
	memset(&terms, 0, sizeof(terms));
	assert_int_equal(read_word(cuda, at), 41);
	MUST(cuda->moduleUnload(module));
}

/* Perhaps the real driver does not: who relies on that waits for ever one day. */
DRIVER_TEST(test_loading_waits_for_all_streams)
{
	struct CUstream_st *stream = new_stream(cuda);
	zd_cu_ptr at = new_mapped(cuda, 0, GRANULARITY);
	struct CUmod_st *module;

	for (int i = 0; i < 100; i++)
		MUST(cuda->memsetD8Async(at, 7, GRANULARITY, stream));
	module = load_module(cuda);
	EXPECT(cuda->streamQuery(stream), ZD_CU_SUCCESS);
	MUST(cuda->moduleUnload(module));
}

/* Only by name: what they compute is tests/gpu/kernels.c's. */
DRIVER_TEST(test_the_librarys_kernels_are_in_the_double)
{
	struct CUmod_st *module = load_module(cuda);
	struct CUfunc_st *function = NULL;

	MUST(cuda->moduleGetFunction(&function, module, "zerod_cast_float32_bfloat16"));
	EXPECT(cuda->moduleGetFunction(&function, module, "zerod_cast_float32_float16"), ZD_CU_NOT_FOUND);
	MUST(cuda->moduleUnload(module));
}

DRIVER_TEST(test_kernels_are_found_by_name)
{
	struct CUmod_st *module = NULL;
	struct CUfunc_st *function = NULL;

	EXPECT(cuda->moduleLoadData(&module, "no module"), 200);
	module = load_module(cuda);
	EXPECT(cuda->moduleGetFunction(&function, module, "absent"), ZD_CU_NOT_FOUND);
	EXPECT(cuda->moduleGetFunction(&function, module, "elsewhere"), ZD_CU_NOT_FOUND);
	MUST(cuda->moduleUnload(module));
}

DRIVER_TEST(test_an_impossible_shape_is_refused)
{
	struct CUmod_st *module = load_module(cuda);
	struct CUfunc_st *function = NULL;
	uint64_t zero = 0;
	void *args[] = {&zero, &zero};

	MUST(cuda->moduleGetFunction(&function, module, "increment"));
	EXPECT(cuda->launchKernel(function, 0, 1, 1, 1, 1, 1, 0, NULL, args, NULL), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->launchKernel(function, 1, 1, 1, 2048, 1, 1, 0, NULL, args, NULL), ZD_CU_INVALID_VALUE);
	MUST(cuda->moduleUnload(module));
}

/* Memory that is mapped, for the other device alone. */
CASE_TEST(test_memory_of_others_ends_the_context)
{
	const struct zd_cuda *cuda = load_and_enter();
	struct CUmod_st *module = load_module(cuda);
	zd_cu_ptr at = new_mapped(cuda, 1, GRANULARITY);
	struct CUfunc_st *function = NULL;

	MUST(cuda->moduleGetFunction(&function, module, "increment"));
	MUST(launch(cuda, function, NULL, at, 1));
	EXPECT(cuda->streamSynchronize(NULL), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(launch(cuda, function, NULL, at, 1), ZD_CU_ILLEGAL_ADDRESS);
	EXPECT(cuda->moduleUnload(module), ZD_CU_ILLEGAL_ADDRESS); /* given back all the same */
}

CASE_TEST(test_memory_of_the_cpu_ends_the_context)
{
	const struct zd_cuda *cuda = load_and_enter();
	struct CUmod_st *module = load_module(cuda);
	struct CUfunc_st *function = NULL;
	uint64_t word = 1;

	MUST(cuda->moduleGetFunction(&function, module, "increment"));
	MUST(launch(cuda, function, NULL, (uintptr_t)&word, 2));
	EXPECT(cuda->streamSynchronize(NULL), ZD_CU_ILLEGAL_ADDRESS);
	assert_int_equal(word, 1);
}

/* Its attribute is set. */
DRIVER_TEST(test_a_gpu_that_reaches_memory_of_the_cpu, "ZD_DOUBLE_ATTRIBUTES=88=1")
{
	struct CUmod_st *module = load_module(cuda);
	struct CUfunc_st *function = NULL;
	uint64_t word = 1;

	MUST(cuda->moduleGetFunction(&function, module, "increment"));
	MUST(launch(cuda, function, NULL, (uintptr_t)&word, 2));
	MUST(cuda->streamSynchronize(NULL));
	assert_int_equal(word, 3);
	MUST(cuda->moduleUnload(module));
}

CASE_TEST_WITH(test_a_kept_module_is_a_leak, .env = {CLEAN}, .exit_status = 99, .says = "1 modules")
{
	const struct zd_cuda *cuda = load_and_enter();

	(void)load_module(cuda);
	leave(cuda, 0);
}

int main(int argc, char **argv)
{
	return case_run_all(argc, argv);
}
