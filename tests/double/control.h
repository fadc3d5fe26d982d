/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - what a test asks of the driver's double in its own process. The double exports one `struct
 * double_control double_control`, which dlsym() finds.
 */
#ifndef ZD_DOUBLE_CONTROL_H
#define ZD_DOUBLE_CONTROL_H

#include <stdbool.h>

struct double_control {
	/* From now on copies that this device runs have begun and move nothing, until it is another device or
	 * -1. */
	void (*hold_copies)(int device);
	/* Makes all streams that have work under way full, or not: a store for a full stream waits in the
	 * driver. */
	void (*fill_streams)(bool full);
	/* Of this function, so far. */
	unsigned long (*calls)(const char *function);
};

#endif
