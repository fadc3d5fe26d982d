// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_library.c - finds and loads NCCL and cuBLAS. CUDA's toolkit, distributions and Python packages
 * install them in different folders.
 */
#include "client/zerobench/cuda_gpu.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

/* Folders, as patterns of glob(3), below the value of an environment variable. If the variable is not set,
 * the folder is skipped. */
static const struct {
	const char *variable, *pattern;
} places[] = {
        {"CUDA_HOME", "/lib64"},
        {"CUDA_PATH", "/lib64"},
        {NULL, "/usr/local/cuda/lib64"},
        {NULL, "/usr/local/cuda-*/lib64"},
        {"VIRTUAL_ENV", "/lib/python3*/site-packages/nvidia/*/lib"},
        {"CONDA_PREFIX", "/lib/python3*/site-packages/nvidia/*/lib"},
        {"HOME", "/.local/lib/python3*/site-packages/nvidia/*/lib"},
        {NULL, "/usr/local/lib/python3*/*-packages/nvidia/*/lib"},
        {NULL, "/usr/lib/python3*/*-packages/nvidia/*/lib"},
        {NULL, "/opt/*/lib/python3*/site-packages/nvidia/*/lib"},
        {NULL, "/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib"},
};

struct search {
	const char *const *names;
	void *library;
	char *where;
	size_t where_bytes;
	char refused[256]; /* the dynamic linker's error for a file that exists */
};

static bool try_file(struct search *search, const char *path)
{
	search->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!search->library) {
		snprintf(search->refused, sizeof(search->refused), "%s", dlerror());
		return false;
	}
	snprintf(search->where, search->where_bytes, "%s", path);
	return true;
}

static bool try_folders(struct search *search, const char *pattern)
{
	for (const char *const *name = search->names; *name; name++) {
		char path[PATH_MAX];
		glob_t found;
		bool loaded = false;
		snprintf(path, sizeof(path), "%s/%s", pattern, *name);
		if (glob(path, 0, NULL, &found))
			continue;
		for (size_t i = 0; i < found.gl_pathc && !loaded; i++)
			loaded = try_file(search, found.gl_pathv[i]);
		globfree(&found);
		if (loaded)
			return true;
	}
	return false;
}

/* Searches the packages of each python3 in $PATH: they are in ../lib of its folder. */
static bool try_python(struct search *search)
{
	const char *path = getenv("PATH");
	char *folders = zd_strdup(path ? path : "");
	bool loaded = false;
	char *rest = NULL;
	for (char *folder = strtok_r(folders, ":", &rest); folder && !loaded;
	     folder = strtok_r(NULL, ":", &rest)) {
		char pattern[PATH_MAX];
		snprintf(pattern, sizeof(pattern), "%s/../lib/python3*/*-packages/nvidia/*/lib", folder);
		loaded = try_folders(search, pattern);
	}
	free(folders);
	return loaded;
}

static bool try_places(struct search *search)
{
	for (size_t i = 0; i < ZD_ARRAY_LEN(places); i++) {
		const char *value = places[i].variable ? getenv(places[i].variable) : "";
		char pattern[PATH_MAX];
		if (!value)
			continue;
		snprintf(pattern, sizeof(pattern), "%s%s", value, places[i].pattern);
		if (try_folders(search, pattern))
			return true;
	}
	return try_python(search);
}

int zd_library_load(const char *const *names, const char *path, void **library, char *where,
                    size_t where_bytes, struct zd_err *err)
{
	struct search search = {.names = names, .where = where, .where_bytes = where_bytes};
	bool loaded = false;
	if (path) {
		if (!try_file(&search, path))
			return zd_err_set(err, ZEROD_E_NOT_FOUND, "%s", search.refused);
		*library = search.library;
		return 0;
	}
	for (const char *const *name = names; *name && !loaded; name++)
		loaded = try_file(&search, *name);
	search.refused[0] = '\0'; /* a missing file is expected here, and not reported */
	if (!loaded && !try_places(&search))
		return zd_err_set(err, ZEROD_E_NOT_FOUND,
		                  "there is no %s where the dynamic linker looks, under $CUDA_HOME, "
		                  "/usr/local/cuda* or among Python's packages%s%s",
		                  names[0], search.refused[0] ? ": " : "", search.refused);
	*library = search.library;
	return 0;
}

int zd_library_functions(void *library, const char *where, const struct zd_library_function *functions,
                         size_t count, void *table, struct zd_err *err)
{
	for (size_t i = 0; i < count; i++) {
		void *found = dlsym(library, functions[i].name);
		if (!found)
			return zd_err_set(err, ZEROD_E_UNSUPPORTED, "%s has no %s", where, functions[i].name);
		memcpy((char *)table + functions[i].offset, &found, sizeof(found));
	}
	return 0;
}
