/* SPDX-License-Identifier: Apache-2.0 */
/*
 * temporary.c - test programs are linked with this mkdtemp() and mkstemp() (--wrap), which append each path
 * that they make to the file $ZEROD_TEST_MADE. tests/run.sh then fails a test that leaves one of them.
 */
#include <stdio.h>
#include <stdlib.h>

char *__real_mkdtemp(char *path);
char *__wrap_mkdtemp(char *path);
int __real_mkstemp(char *path);
int __wrap_mkstemp(char *path);

static void record(const char *path)
{
	const char *name = getenv("ZEROD_TEST_MADE");
	FILE *made = name ? fopen(name, "ae") : NULL;

	if (made) {
		(void)fprintf(made, "%s\n", path);
		(void)fclose(made);
	}
}

char *__wrap_mkdtemp(char *path)
{
	if (!__real_mkdtemp(path))
		return NULL;
	record(path);
	return path;
}

int __wrap_mkstemp(char *path)
{
	int fd = __real_mkstemp(path);

	if (fd >= 0)
		record(path);
	return fd;
}
