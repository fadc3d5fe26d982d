/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - reading the environment. */
#include "tests/double/config.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"

static struct double_config config;
static pthread_once_t once = PTHREAD_ONCE_INIT;

_Noreturn static void bad_value(const char *name, const char *value)
{
	(void)fprintf(stderr, "double: cannot read %s=%s\n", name, value);
	abort();
}

static uint64_t read_number(const char *name, uint64_t otherwise, uint64_t max)
{
	const char *value = getenv(name);
	char *end = NULL;
	uint64_t number;

	if (!value)
		return otherwise;
	errno = 0;
	number = strtoull(value, &end, 10);
	if (errno || end == value || *end || number > max)
		bad_value(name, value);
	return number;
}

/* ---- Names --------------------------------------------------------------------------------------------- */

void double_uuid(int index, unsigned char bytes[16])
{
	static const unsigned char fixed[16] = {0x7a, 0x65, 0x72, 0x6f, 0xd0, 0x0b, 0x4e, 0x00, 0x80};

	memcpy(bytes, fixed, sizeof(fixed));
	/* Also in front, so that abbreviations tell GPUs apart. */
	bytes[3] = (unsigned char)(bytes[3] + index);
	bytes[15] = (unsigned char)index;
}

void double_uuid_text(int index, char text[DOUBLE_UUID_TEXT])
{
	unsigned char b[16];

	double_uuid(index, b);
	(void)snprintf(text, DOUBLE_UUID_TEXT,
	               "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
	               b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
	               b[15]);
}

int double_find_uuid(const struct double_config *in, const char *text, size_t length)
{
	int found = -1;

	for (int i = 0; i < in->ndevices; i++) {
		char name[DOUBLE_UUID_TEXT];

		double_uuid_text(i, name);
		if (length >= DOUBLE_UUID_TEXT || strncmp(name, text, length) != 0)
			continue;
		if (found >= 0)
			return -1;
		found = i;
	}
	return found;
}

/* ---- What is visible ----------------------------------------------------------------------------------- */

static int find_visible(const char *entry, size_t length)
{
	char *end = NULL;
	long index;

	if (length > 4 && strncmp(entry, "GPU-", 4) == 0)
		return double_find_uuid(&config, entry, length);
	index = strtol(entry, &end, 10);
	return end == entry + length && length > 0 && index >= 0 && index < config.ndevices ? (int)index : -1;
}

static bool is_visible(int index)
{
	for (int i = 0; i < config.nvisible; i++)
		if (config.visible[i] == index)
			return true;
	return false;
}

/* The list counts up to its first entry that is none, or is there already. */
static void read_visible(void)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");

	for (int i = 0; !list && i < config.ndevices; i++)
		config.visible[config.nvisible++] = i;
	while (list && *list) {
		size_t length = strcspn(list, ",");
		int index = find_visible(list, length);

		if (index < 0 || is_visible(index))
			return;
		config.visible[config.nvisible++] = index;
		list += length;
		list += *list == ',';
	}
}

/* ---- Lists of pairs ------------------------------------------------------------------------------------ */

typedef bool pair_fn(int a, int b);

/* "A-B,C-D", or with another separator. */
static void read_pairs(const char *name, char separator, pair_fn *fn)
{
	const char *value = getenv(name);
	const char *at = value;

	while (at && *at) {
		char *end = NULL;
		long a = strtol(at, &end, 10), b;

		if (end == at || *end != separator)
			bad_value(name, value);
		at = end + 1;
		b = strtol(at, &end, 10);
		if (end == at || (*end && *end != ',') || !fn((int)a, (int)b))
			bad_value(name, value);
		at = *end ? end + 1 : end;
	}
}

static bool add_no_peer(int a, int b)
{
	if (a < 0 || b < 0 || a >= DOUBLE_MAX_DEVICES || b >= DOUBLE_MAX_DEVICES)
		return false;
	config.no_peer[a][b] = config.no_peer[b][a] = true;
	return true;
}

static bool add_override(int attribute, int value)
{
	if (config.noverrides == DOUBLE_MAX_OVERRIDES)
		return false;
	config.overrides[config.noverrides].attribute = attribute;
	config.overrides[config.noverrides++].value = value;
	return true;
}

static const char *read_fail(void)
{
	const char *program = getenv("ZD_DOUBLE_FAIL_IN");

	if (program && strcmp(program, program_invocation_short_name) != 0)
		return NULL;
	return getenv("ZD_DOUBLE_FAIL");
}

static void read_environment(void)
{
	config.ndevices = (int)read_number("ZD_DOUBLE_DEVICES", 4, DOUBLE_MAX_DEVICES);
	config.memory_bytes = read_number("ZD_DOUBLE_MEMORY", 4ull << 30, 1ull << 50);
	config.version = (int)read_number("ZD_DOUBLE_VERSION", 13000, 1000000);
	config.compute_mode = (int)read_number("ZD_DOUBLE_COMPUTE_MODE", 0, ZD_CU_COMPUTE_EXCLUSIVE_PROCESS);
	config.nqueues = (int)read_number("CUDA_DEVICE_MAX_CONNECTIONS", 8, 1000000);
	config.copy_us = read_number("ZD_DOUBLE_COPY_US", 0, 10000000);
	config.frees_wait = read_number("ZD_DOUBLE_FREES_WAIT", 0, 1) == 1;
	config.reports_leaks = read_number("ZD_DOUBLE_LEAKS", 0, 1) == 1;
	config.dir = getenv("ZD_DOUBLE_DIR");
	config.lacks = getenv("ZD_DOUBLE_LACKS");
	config.count_file = getenv("ZD_DOUBLE_COUNT");
	config.fail = read_fail();
	/* The real one takes any number for the nearest that it has. */
	if (config.nqueues == 0)
		config.nqueues = 1;
	if (config.nqueues > DOUBLE_MAX_QUEUES)
		config.nqueues = DOUBLE_MAX_QUEUES;
	read_visible();
	read_pairs("ZD_DOUBLE_NO_PEER", '-', add_no_peer);
	read_pairs("ZD_DOUBLE_ATTRIBUTES", '=', add_override);
}

const struct double_config *double_config(void)
{
	(void)pthread_once(&once, read_environment);
	return &config;
}
