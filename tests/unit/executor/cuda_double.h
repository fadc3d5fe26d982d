/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_double.h - programs of tests that run on the driver's double in the place of a driver. */
#ifndef ZD_TEST_CUDA_DOUBLE_H
#define ZD_TEST_CUDA_DOUBLE_H

#include "tests/unit/driver/cases.h"

/* Begins the program anew with the double first among the libraries, unless it is. */
static inline void use_double(char **argv)
{
	char program[PATH_MAX];
	const char *libraries = getenv("LD_LIBRARY_PATH");
	if (libraries && strcmp(libraries, case_double_path()) == 0)
		return;
	case_program(program);
	(void)setenv("LD_LIBRARY_PATH", case_double_path(), 1);
	(void)execv(program, argv);
	perror("running the test with the double");
	exit(1);
}

#endif
