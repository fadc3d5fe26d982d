/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c - loading the CUDA driver, its errors in our words, contexts and devices by name. */
#include "driver/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

typedef int get_proc_fn(const char *name, void **fn, int version, uint64_t flags, int *status);

static struct {
	pthread_once_t once;
	struct zd_cuda table;
	struct zd_err failure; /* status 0: loaded */
} driver = {.once = PTHREAD_ONCE_INIT};

/* ---- Loading ------------------------------------------------------------------------------------------- */

struct function {
	const char *name;
	size_t offset; /* in struct zd_cuda */
};

static const struct function functions[] = {
#define FUNCTION(member, name, args) {#name, offsetof(struct zd_cuda, member)},
        ZD_CUDA_FUNCTIONS(FUNCTION)
#undef FUNCTION
};

static const struct function newer_functions[] = {
#define FUNCTION(member, name, args) {#name, offsetof(struct zd_cuda, member)},
        ZD_CUDA_NEWER_FUNCTIONS(FUNCTION)
#undef FUNCTION
};

static void *find_function(get_proc_fn *get_proc, const struct function *function, int version,
                           struct zd_cuda *table)
{
	void *found = NULL;
	if (get_proc(function->name, &found, version, 0, NULL))
		found = NULL;
	memcpy((char *)table + function->offset, &found, sizeof(found));
	return found;
}

static int find_functions(get_proc_fn *get_proc, struct zd_cuda *table, struct zd_err *err)
{
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		if (!find_function(get_proc, &functions[i], ZD_CUDA_VERSION, table))
			return zd_err_set(err, ZEROD_E_UNSUPPORTED,
			                  "the CUDA driver has no %s: one of version 525 or newer is needed",
			                  functions[i].name);
	}
	for (size_t i = 0; i < sizeof(newer_functions) / sizeof(newer_functions[0]); i++)
		(void)find_function(get_proc, &newer_functions[i], ZD_CUDA_NEWER_VERSION, table);
	return 0;
}

static int check_version(const struct zd_cuda *table, struct zd_err *err)
{
	int version = 0;
	int rc = zd_cuda_err(table, table->driverGetVersion(&version), err,
	                     "asking for the driver's version");

	if (!rc && version < ZD_CUDA_VERSION)
		rc = zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                "the CUDA driver is for CUDA %d.%d, %d.%d or newer is needed", version / 1000,
		                version % 1000 / 10, ZD_CUDA_VERSION / 1000, ZD_CUDA_VERSION % 1000 / 10);
	return rc;
}

static int initialise(const struct zd_cuda *table, struct zd_err *err)
{
	int count = 0;
	int result = table->init(0);

	if (!result)
		result = table->deviceGetCount(&count);
	if (result == ZD_CU_NO_DEVICE || (!result && count == 0))
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "the CUDA driver shows this process no GPU");
	return zd_cuda_err(table, result, err, "initialising the CUDA driver");
}

static int load_driver(struct zd_cuda *table, struct zd_err *err)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	get_proc_fn *get_proc = NULL;
	void *symbol = NULL;
	int rc;

	if (!library)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "there is no CUDA driver: %s", dlerror());
	symbol = dlsym(library, "cuGetProcAddress_v2");
	if (!symbol)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "the CUDA driver has no cuGetProcAddress_v2: one of version 525 or newer "
		                  "is needed");
	memcpy(&get_proc, &symbol, sizeof(get_proc));
	rc = find_functions(get_proc, table, err);
	if (!rc)
		rc = check_version(table, err);
	return rc ? rc : initialise(table, err);
}

static void load_once(void)
{
	(void)load_driver(&driver.table, &driver.failure);
}

int zd_cuda_load(const struct zd_cuda **cuda, struct zd_err *err)
{
	(void)pthread_once(&driver.once, load_once);
	if (driver.failure.status) {
		if (err)
			*err = driver.failure;
		return driver.failure.status;
	}
	*cuda = &driver.table;
	return 0;
}

/* ---- Errors -------------------------------------------------------------------------------------------- */

int zd_cuda_err(const struct zd_cuda *cuda, int result, struct zd_err *err, const char *what, ...)
{
	const char *name = NULL, *text = NULL;
	char place[160];
	va_list args;

	if (result == ZD_CU_SUCCESS)
		return 0;
	va_start(args, what);
	(void)vsnprintf(place, sizeof(place), what, args);
	va_end(args);
	(void)cuda->getErrorName(result, &name);
	(void)cuda->getErrorString(result, &text);
	return zd_err_set(err, result == ZD_CU_OUT_OF_MEMORY ? ZEROD_E_NO_MEMORY : ZEROD_E_DEVICE,
	                  "%s: %s (%s)", place, name ? name : "an error without a name",
	                  text ? text : "no text");
}

/* ---- Contexts and devices ------------------------------------------------------------------------------ */

int zd_cuda_enter(const struct zd_cuda *cuda, struct CUctx_st *context, bool *pushed)
{
	struct CUctx_st *current = NULL;
	int result = cuda->ctxGetCurrent(&current);

	*pushed = false;
	if (result || current == context)
		return result;
	result = cuda->ctxPushCurrent(context);
	*pushed = result == ZD_CU_SUCCESS;
	return result;
}

void zd_cuda_leave(const struct zd_cuda *cuda, bool pushed)
{
	struct CUctx_st *popped;

	if (pushed)
		(void)cuda->ctxPopCurrent(&popped);
}

void zd_cuda_uuid_text(const struct zd_cu_uuid *uuid, char text[ZD_CUDA_UUID_TEXT])
{
	static const char dash_before[16] = {[4] = 1, [6] = 1, [8] = 1, [10] = 1};
	int used = snprintf(text, ZD_CUDA_UUID_TEXT, "GPU-");

	for (int i = 0; i < 16; i++)
		used += snprintf(text + used, (size_t)(ZD_CUDA_UUID_TEXT - used), "%s%02x",
		                 dash_before[i] ? "-" : "", uuid->bytes[i]);
}

int zd_cuda_find_device(const struct zd_cuda *cuda, const char *uuid_text, int *device, struct zd_err *err)
{
	char seen[200] = "";
	int count = 0, used = 0;
	int rc = zd_cuda_err(cuda, cuda->deviceGetCount(&count), err, "counting GPUs");

	for (int i = 0; i < count && !rc; i++) {
		char text[ZD_CUDA_UUID_TEXT];
		struct zd_cu_uuid uuid;
		int found = 0;

		rc = zd_cuda_err(cuda, cuda->deviceGet(&found, i), err, "GPU %d", i);
		if (!rc)
			rc = zd_cuda_err(cuda, cuda->deviceGetUuid(&uuid, found), err, "the UUID of GPU %d",
			                 i);
		if (rc)
			break;
		zd_cuda_uuid_text(&uuid, text);
		if (strcmp(text, uuid_text) == 0) {
			*device = found;
			return 0;
		}
		if (used < (int)sizeof(seen))
			used += snprintf(seen + used, sizeof(seen) - (size_t)used, "%s%s", i ? ", " : "",
			                 text);
	}
	if (rc)
		return rc;
	return zd_err_set(
	        err, ZEROD_E_NOT_FOUND,
	        "this process does not see %s, but only %s (CUDA_VISIBLE_DEVICES, or its container)",
	        uuid_text, seen);
}
