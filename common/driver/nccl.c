/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.c - loading NCCL, and its errors in our words. */
#include "driver/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"

#define LIBRARY "libnccl.so.2"

static struct {
	pthread_mutex_t lock;
	bool loaded;
	struct zd_nccl table;
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- Loading ------------------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	size_t offset; /* in struct zd_nccl */
} functions[] = {
#define FUNCTION(member, name, args) {#name, offsetof(struct zd_nccl, member)},
        ZD_NCCL_FUNCTIONS(FUNCTION) ZD_NCCL_TEXTS(FUNCTION)
#undef FUNCTION
};

static int find_functions(void *opened, const char *path, struct zd_nccl *table, struct zd_err *err)
{
	for (size_t i = 0; i < ZD_ARRAY_LEN(functions); i++) {
		void *found = dlsym(opened, functions[i].name);

		if (!found)
			return zd_err_set(err, ZEROD_E_UNSUPPORTED,
			                  "%s has no %s: NCCL " ZD_NCCL_OLDEST_TEXT " or newer is needed",
			                  path, functions[i].name);
		memcpy((char *)table + functions[i].offset, &found, sizeof(found));
	}
	return 0;
}

/* As of 2.9 a version has two digits for its second number. */
static int check_version(const char *path, struct zd_nccl *table, struct zd_err *err)
{
	int rc = zd_nccl_err(table, table->getVersion(&table->version), err, "asking %s for its version",
	                     path);
	int unit = table->version < 10000 ? 1000 : 10000;

	if (!rc && table->version < ZD_NCCL_OLDEST)
		rc = zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                "%s is NCCL %d.%d.%d, " ZD_NCCL_OLDEST_TEXT " or newer is needed", path,
		                table->version / unit, table->version % unit / 100, table->version % 100);
	return rc;
}

static int load_nccl(const char *path, struct zd_nccl *table, struct zd_err *err)
{
	void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	int rc;

	if (!opened)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "there is no NCCL: %s", dlerror());
	rc = find_functions(opened, path, table, err);
	if (!rc)
		rc = check_version(path, table, err);
	if (rc)
		(void)dlclose(opened);
	return rc;
}

int zd_nccl_load(const char *path, const struct zd_nccl **nccl, struct zd_err *err)
{
	struct zd_nccl table = {.version = 0};
	int rc = 0;

	(void)pthread_mutex_lock(&library.lock);
	if (!library.loaded) {
		rc = load_nccl(path ? path : LIBRARY, &table, err);
		if (!rc) {
			library.table = table;
			library.loaded = true;
		}
	}
	(void)pthread_mutex_unlock(&library.lock);
	if (!rc)
		*nccl = &library.table;
	return rc;
}

/* ---- Errors -------------------------------------------------------------------------------------------- */

static int status_of(int result)
{
	if (result == ZD_NCCL_REMOTE_ERROR)
		return ZEROD_E_PEER_LOST;
	return result == ZD_NCCL_SYSTEM_ERROR ? ZEROD_E_SYSTEM : ZEROD_E_DEVICE;
}

int zd_nccl_err(const struct zd_nccl *nccl, int result, struct zd_err *err, const char *what, ...)
{
	const char *text, *last;
	char place[320];
	va_list args;

	if (result == ZD_NCCL_SUCCESS)
		return 0;
	va_start(args, what);
	(void)vsnprintf(place, sizeof(place), what, args);
	va_end(args);
	text = nccl->getErrorString(result);
	last = nccl->getLastError(NULL);
	if (last && *last)
		zd_log(ZD_LOG_WARNING, "%s: %s; the last error that NCCL has recorded in this process: %s",
		       place, text ? text : "no text", last);
	return zd_err_set(err, status_of(result), "%s: %s", place, text ? text : "no text");
}
