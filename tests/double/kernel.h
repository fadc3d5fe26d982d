/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel.h - kernels on the double: a program that launches some has the same on the CPU, and the double
 * finds them by name.
 *
 * For a kernel NAME of its PTX the program exports `const struct double_kernel double_kernel_NAME` (declare
 * it with DOUBLE_KERNEL, and link with --export-dynamic). Arguments are 64-bit numbers, or one structure. The
 * library's own kernels (client/kernels) are in the double: library_kernels.c.
 */
#ifndef ZD_DOUBLE_KERNEL_H
#define ZD_DOUBLE_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The way to device memory, for the time that the kernel runs. */
struct double_reach {
	/* Where the CPU finds what is at that device address; *bytes is cut to what is there in one piece.
	 * NULL: nothing is. */
	void *(*at)(struct double_reach *reach, uint64_t address, size_t *bytes);
};

struct double_kernel {
	unsigned nargs;
	/* False: it met an illegal address. */
	bool (*run)(struct double_reach *reach, const uint64_t *args);
	size_t arg_bytes; /* of each argument; 0: of a 64-bit number */
};

/* Finds the library's kernel of that name; NULL: none. */
const struct double_kernel *double_library_kernel(const char *name);
const struct double_kernel *double_update_kernel(const char *name); /* update_kernels.c */

#define DOUBLE_KERNEL(name)                                                                                  \
	__attribute__((visibility("default"))) const struct double_kernel double_kernel_##name

#endif
