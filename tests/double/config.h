/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - what the driver's double shows, from the environment: how many GPUs of which size, and what is
 * odd about them. Both libraries read it, each once. A value that cannot be read ends the process with a
 * message: a test would otherwise test something else.
 */
#ifndef ZD_DOUBLE_CONFIG_H
#define ZD_DOUBLE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DOUBLE_MAX_DEVICES   16
#define DOUBLE_MAX_QUEUES    32
#define DOUBLE_MAX_OVERRIDES 16
#define DOUBLE_UUID_TEXT     41

struct double_config {
	int ndevices;          /* ZD_DOUBLE_DEVICES: on the node */
	uint64_t memory_bytes; /* ZD_DOUBLE_MEMORY: of each GPU */
	int version;           /* ZD_DOUBLE_VERSION: as cuDriverGetVersion says it */
	int compute_mode;      /* ZD_DOUBLE_COMPUTE_MODE */
	int nqueues;           /* CUDA_DEVICE_MAX_CONNECTIONS: hardware queues of a context */
	uint64_t copy_us;      /* ZD_DOUBLE_COPY_US: what each copy takes at least */
	bool frees_wait; /* ZD_DOUBLE_FREES_WAIT=1: for kernels, and keep other calls out, as the driver's */
	bool reports_leaks; /* ZD_DOUBLE_LEAKS */
	const char *dir;    /* ZD_DOUBLE_DIR: what processes on one node see of each other; NULL: nothing */
	const char *lacks;  /* ZD_DOUBLE_LACKS: the function that an older driver does not have */
	const char *count_file; /* ZD_DOUBLE_COUNT */
	const char *fail;       /* ZD_DOUBLE_FAIL, unless ZD_DOUBLE_FAIL_IN names another program */
	int nvisible;
	int visible[DOUBLE_MAX_DEVICES]; /* index on the node, by ordinal; as CUDA_VISIBLE_DEVICES has it */
	bool no_peer[DOUBLE_MAX_DEVICES][DOUBLE_MAX_DEVICES]; /* ZD_DOUBLE_NO_PEER, by index */
	int noverrides;
	struct {
		int attribute, value;
	} overrides[DOUBLE_MAX_OVERRIDES]; /* ZD_DOUBLE_ATTRIBUTES: "103=0,122=0" */
};

const struct double_config *double_config(void);

/* Of the GPU with that index on the node: always the same. */
void double_uuid(int index, unsigned char bytes[16]);
void double_uuid_text(int index, char text[DOUBLE_UUID_TEXT]);
/* The index of the GPU whose name begins like this; -1: none, or several. */
int double_find_uuid(const struct double_config *config, const char *text, size_t length);

#endif
