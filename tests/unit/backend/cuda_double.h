/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_double.h - programs of tests that run on the driver's double in the place of a driver. */
#ifndef ZD_TEST_CUDA_DOUBLE_H
#define ZD_TEST_CUDA_DOUBLE_H

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Begins the program anew with the double first among the libraries, unless it is. It lies in tests/double of the build,
 * the program in tests/unit/backend. */
static inline void use_double(char **argv)
{
	char path[PATH_MAX];
	ssize_t bytes = readlink("/proc/self/exe", path, sizeof(path) - 32);
	const char *libraries = getenv("LD_LIBRARY_PATH");
	for (int up = 0; bytes > 0 && up < 3; up++) {
		path[bytes] = '\0';
		char *slash = strrchr(path, '/');
		bytes = slash ? slash - path : 0;
	}
	if (bytes <= 0) {
		(void)fprintf(stderr, "where the test's program lies is not known\n");
		exit(1);
	}
	(void)snprintf(path + bytes, 32, "/double");
	if (libraries && strcmp(libraries, path) == 0)
		return;
	(void)setenv("LD_LIBRARY_PATH", path, 1);
	(void)execv("/proc/self/exe", argv);
	perror("running the test with the double");
	exit(1);
}

#endif
