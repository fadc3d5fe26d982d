/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel.c - modules and kernels: PTX is looked at for names alone; what a kernel does is in the program, see
 * kernel.h. Loading a module waits for all that the context has to do, which the real driver may.
 */
#include "tests/double/kernel.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/double/double.h"

#define MOST_ARGS     16
#define MOST_MAPPINGS 96 /* all inputs of a reduction, its target and its result */

struct CUmod_st {
	LIST_ENTRY(CUmod_st) link;
	char *ptx;
	size_t length; /* of that: sanitizers would look for its end at each strstr() */
	LIST_HEAD(, CUfunc_st) functions;
};

struct CUfunc_st {
	LIST_ENTRY(CUfunc_st) link;
	const struct double_kernel *kernel;
};

static LIST_HEAD(, CUmod_st) modules = LIST_HEAD_INITIALIZER(modules);

int double_count_modules(void)
{
	struct CUmod_st *module;
	int count = 0;

	LIST_FOREACH (module, &modules, link)
		count++;
	return count;
}

static bool is_module(const struct CUmod_st *module)
{
	const struct CUmod_st *other;

	LIST_FOREACH (other, &modules, link)
		if (other == module)
			return true;
	return false;
}

static bool is_function(const struct CUfunc_st *function)
{
	const struct CUmod_st *module;
	const struct CUfunc_st *other;

	LIST_FOREACH (module, &modules, link)
		LIST_FOREACH (other, &module->functions, link)
			if (other == function)
				return true;
	return false;
}

/* ---- Modules ------------------------------------------------------------------------------------------- */

int cuModuleLoadData(struct CUmod_st **module, const void *image)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct CUmod_st *made;

	if (result)
		return result;
	result = double_check_unsafe();
	if (result)
		return double_leave(result);
	if (!module || !image || !strstr(image, ".version"))
		return double_leave(DOUBLE_INVALID_IMAGE);
	double_streams_wait(double_current());
	made = calloc(1, sizeof(*made));
	if (made) {
		made->ptx = strdup(image);
		made->length = strlen(image);
	}
	if (!made || !made->ptx) {
		free(made);
		return double_leave(ZD_CU_OUT_OF_MEMORY);
	}
	LIST_INIT(&made->functions);
	LIST_INSERT_HEAD(&modules, made, link);
	*module = made;
	return double_leave(ZD_CU_SUCCESS);
}

int cuModuleUnload(struct CUmod_st *module)
{
	int after;
	int result = double_enter_giving_back(__func__, DOUBLE_NEEDS_CONTEXT, &after);
	struct CUfunc_st *function;

	if (result)
		return result;
	if (!is_module(module))
		return double_leave(ZD_CU_INVALID_HANDLE);
	double_wait_for_kernels();
	while ((function = LIST_FIRST(&module->functions))) {
		LIST_REMOVE(function, link);
		free(function);
	}
	LIST_REMOVE(module, link);
	free(module->ptx);
	free(module);
	return double_leave(after);
}

/* The program's own, with as many arguments as the PTX has, or the library's. */
static const struct double_kernel *find_kernel(const struct CUmod_st *module, const char *name)
{
	const struct double_kernel *found;
	char text[160];

	(void)snprintf(text, sizeof(text), ".entry %s(", name);
	if (!memmem(module->ptx, module->length, text, strlen(text)))
		return NULL;
	(void)snprintf(text, sizeof(text), "double_kernel_%s", name);
	found = dlsym(RTLD_DEFAULT, text);
	return found ? found : double_library_kernel(name);
}

int cuModuleGetFunction(struct CUfunc_st **function, struct CUmod_st *module, const char *name)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	const struct double_kernel *kernel;
	struct CUfunc_st *made;

	if (result)
		return result;
	if (!function || !name || !is_module(module))
		return double_leave(ZD_CU_INVALID_VALUE);
	kernel = find_kernel(module, name);
	if (!kernel || kernel->nargs > MOST_ARGS)
		return double_leave(ZD_CU_NOT_FOUND);
	made = calloc(1, sizeof(*made));
	if (!made)
		return double_leave(ZD_CU_OUT_OF_MEMORY);
	made->kernel = kernel;
	LIST_INSERT_HEAD(&module->functions, made, link);
	*function = made;
	return double_leave(ZD_CU_SUCCESS);
}

/* ---- Launches ------------------------------------------------------------------------------------------ */

static bool is_shape(unsigned int x, unsigned int y, unsigned int z, unsigned int most)
{
	return x > 0 && y > 0 && z > 0 && (uint64_t)x * y * z <= most;
}

static unsigned char *copy_args(const struct double_kernel *kernel, void **params)
{
	size_t bytes = kernel->arg_bytes ? kernel->arg_bytes : sizeof(uint64_t);
	unsigned char *args = calloc(kernel->nargs, bytes);

	for (unsigned i = 0; i < kernel->nargs && args; i++)
		memcpy(args + i * bytes, params[i], bytes);
	return args;
}

int cuLaunchKernel(struct CUfunc_st *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                   unsigned int block_x, unsigned int block_y, unsigned int block_z,
                   unsigned int shared_bytes, struct CUstream_st *stream, void **params, void **extra)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;
	struct double_op *op;
	unsigned char *args;

	if (result)
		return result;
	if (!is_function(function))
		return double_leave(ZD_CU_INVALID_HANDLE);
	if (!is_shape(grid_x, grid_y, grid_z, INT32_MAX) || !is_shape(block_x, block_y, block_z, 1024) ||
	    shared_bytes > 48 << 10 || extra || !params)
		return double_leave(ZD_CU_INVALID_VALUE);
	result = double_target(stream, &target);
	if (result)
		return double_leave(result);
	args = copy_args(function->kernel, params);
	if (!args)
		return double_leave(ZD_CU_OUT_OF_MEMORY);
	op = double_op_new(DOUBLE_OP_KERNEL);
	op->kernel = function->kernel;
	op->staged = args;
	return double_leave(double_submit(&target, op));
}

/* ---- Running ------------------------------------------------------------------------------------------- */

struct reach {
	struct double_reach reach;
	int device;
	int nmappings;
	struct double_mapping *mappings[MOST_MAPPINGS]; /* in use until the kernel ends */
};

static bool use(struct reach *reach, struct double_mapping *mapping)
{
	for (int i = 0; i < reach->nmappings; i++)
		if (reach->mappings[i] == mapping)
			return true;
	if (reach->nmappings == MOST_MAPPINGS)
		return false;
	double_mapping_use(mapping);
	reach->mappings[reach->nmappings++] = mapping;
	return true;
}

static void *find(struct reach *reach, uint64_t address, size_t *bytes)
{
	struct double_mapping *mapping = double_mapping_at(address);
	size_t inside, left;

	if (!mapping) {
		const struct double_host *host = double_host_find_device(address, *bytes);

		if (host)
			return host->mapped ? host->at + (address - host->device_at) : NULL;
		if (double_is_reserved(address) ||
		    !double_has_attribute(reach->device, ZD_CU_ATTR_PAGEABLE_MEMORY_ACCESS))
			return NULL;
		return double_pointer(address);
	}
	if (!(mapping->access & 1u << reach->device) || !use(reach, mapping))
		return NULL;
	inside = address - mapping->at;
	left = mapping->memory->bytes - inside;
	*bytes = *bytes < left ? *bytes : left;
	return mapping->memory->alias + inside;
}

static void *at(struct double_reach *given, uint64_t address, size_t *bytes)
{
	void *found;

	double_lock();
	found = find((struct reach *)given, address, bytes);
	double_unlock();
	return found;
}

void double_wait_for_kernels(void)
{
	struct CUctx_st *context = double_current();

	context->freeing++;
	while (context->kernels > 0 && double_config()->frees_wait)
		double_wait(&double_moved);
	context->freeing--;
	(void)pthread_cond_broadcast(&double_moved);
}

void double_wait_for_frees(void)
{
	const struct CUctx_st *context = double_current();

	while (context && context->freeing > 0)
		double_wait(&double_moved);
}

int double_run_kernel(struct CUctx_st *context, const struct double_op *op)
{
	struct reach reach = {.reach = {at}, .device = context->device};
	bool legal;

	context->kernels++;
	double_unlock();
	legal = op->kernel->run(&reach.reach, (const uint64_t *)(const void *)op->staged);
	double_lock();
	context->kernels--;
	(void)pthread_cond_broadcast(&double_moved);
	for (int i = 0; i < reach.nmappings; i++)
		legal &= double_mapping_unuse(reach.mappings[i], reach.device);
	return legal ? ZD_CU_SUCCESS : ZD_CU_ILLEGAL_ADDRESS;
}
