/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.c - structures of the caller's version, as arguments and results; flags and deadlines.
 *
 * A program that was compiled against an older header passes shorter structures, whose missing members are
 * read as zero. A program that was compiled against a newer header passes longer ones. They are accepted if
 * the members that this library does not know are zero.
 */
#include "client/lib/base/options.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "client/lib/base/client.h"
#include "client/lib/base/errors.h"

#define MAX_OPTIONS_BYTES 4096u /* more is a structure that was not initialised */

static size_t struct_bytes(const void *given)
{
	size_t bytes;

	memcpy(&bytes, given, sizeof(bytes));
	return bytes;
}

int zc_options(void *copy, size_t known_bytes, const void *given, const char *what, struct zd_err *err)
{
	size_t given_bytes;

	memset(copy, 0, known_bytes);
	if (!given)
		return 0;
	given_bytes = struct_bytes(given);
	if (given_bytes < sizeof(given_bytes))
		return zd_err_set(err, ZEROD_E_INVALID, "%s: struct_size is %zu, set it with ZEROD_INIT",
		                  what, given_bytes);
	if (given_bytes > MAX_OPTIONS_BYTES)
		return zd_err_set(err, ZEROD_E_INVALID, "%s: struct_size is %zu, which no version has", what,
		                  given_bytes);
	for (size_t i = known_bytes; i < given_bytes; i++)
		if (((const unsigned char *)given)[i] != 0)
			return zd_err_set(err, ZEROD_E_INVALID,
			                  "%s: sets an option at byte %zu, this library knows %zu bytes",
			                  what, i, known_bytes);
	memcpy(copy, given, given_bytes < known_bytes ? given_bytes : known_bytes);
	return 0;
}

int zc_element(void *copy, size_t known_bytes, const void *array, uint32_t i, const char *what,
               struct zd_err *err)
{
	size_t stride = struct_bytes(array);
	const unsigned char *element = (const unsigned char *)array + i * stride;
	char name[32];

	(void)snprintf(name, sizeof(name), "%s[%u]", what, i);
	/* If the first element's size is invalid, the error names the first element. */
	if (i > 0 && struct_bytes(element) != stride)
		return zd_err_set(err, ZEROD_E_INVALID, "%s: struct_size is %zu, the first one's %zu", name,
		                  struct_bytes(element), stride);
	return zc_options(copy, known_bytes, element, name, err);
}

int zc_reserved(uint32_t reserved, const char *what, struct zd_err *err)
{
	if (reserved)
		return zd_err_set(err, ZEROD_E_INVALID, "%s: reserved is %u, this library knows 0 alone",
		                  what, reserved);
	return 0;
}

int zc_wait_flags(const struct zerod_wait_options *given, uint32_t known, uint32_t *flags,
                  uint32_t *deadline_ms, struct zd_err *err)
{
	struct zerod_wait_options options;
	int rc = zc_options(&options, sizeof(options), given, "zerod_wait_options", err);

	if (!rc)
		rc = zc_flags(options.flags, known, "zerod_wait_options", err);
	if (!rc) {
		*flags = options.flags;
		*deadline_ms = options.deadline_ms;
	}
	return rc;
}

int zc_wait_options(const struct zerod_wait_options *given, uint32_t *deadline_ms, struct zd_err *err)
{
	uint32_t none;

	return zc_wait_flags(given, 0, &none, deadline_ms, err);
}

int zc_result_check(const void *given, const char *what, struct zd_err *err)
{
	size_t bytes;

	if (!given)
		return zd_err_set(err, ZEROD_E_INVALID, "%s is NULL", what);
	bytes = struct_bytes(given);
	if (bytes < sizeof(bytes) || bytes > MAX_OPTIONS_BYTES)
		return zd_err_set(err, ZEROD_E_INVALID, "%s: struct_size is %zu, set it with ZEROD_INIT",
		                  what, bytes);
	return 0;
}

void zc_result_fill(void *given, const void *made, size_t known_bytes)
{
	size_t bytes = struct_bytes(given), filled = bytes < known_bytes ? bytes : known_bytes;

	memcpy(given, made, filled);
	memcpy(given, &bytes, sizeof(bytes)); /* the caller's own */
	memset((unsigned char *)given + filled, 0, bytes - filled);
}

int zc_flags(uint32_t flags, uint32_t known, const char *what, struct zd_err *err)
{
	if (flags & ~known)
		return zd_err_set(err, ZEROD_E_INVALID, "%s: unknown flags 0x%x", what, flags & ~known);
	return 0;
}

uint32_t zc_deadline_ms(const struct zerod_client *client, uint32_t option_ms)
{
	uint32_t chosen_ms = option_ms ? option_ms : client->deadline_ms;

	return chosen_ms == ZEROD_NO_DEADLINE ? 0 : chosen_ms;
}

int zerod_set_deadline(zerod_client *client, uint32_t deadline_ms)
{
	if (!client)
		return zd_err_set(zc_err(NULL), ZEROD_E_INVALID, "the handle is NULL");
	client->deadline_ms = deadline_ms ? deadline_ms : client->connect_deadline_ms;
	return 0;
}

uint64_t zc_now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t zc_until_ns(uint32_t wire_ms)
{
	return wire_ms == 0 ? UINT64_MAX : zc_now_ns() + wire_ms * 1000000ull;
}

uint64_t zc_default_ns(const struct zerod_client *client)
{
	return zc_until_ns(zc_deadline_ms(client, 0));
}

uint32_t zc_left_ms(uint64_t deadline_ns)
{
	uint64_t now_ns = zc_now_ns();

	if (deadline_ns == UINT64_MAX)
		return ZEROD_NO_DEADLINE;
	return deadline_ns > now_ns ? (uint32_t)((deadline_ns - now_ns + 999999u) / 1000000u) : 1;
}

uint64_t zc_answer_ns(uint64_t deadline_ns)
{
	return deadline_ns == UINT64_MAX ? UINT64_MAX : deadline_ns + ZC_GRACE_NS;
}
