/* SPDX-License-Identifier: Apache-2.0 */
/*
 * err.c - a status with its text.
 *
 * The text is sent to clients, logs and terminals, and may quote a client's strings: zd_text_vformat()
 * removes control characters.
 */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* Arguments can point into err->text (a text that grows on its way up). The new text is made in separate
 * memory. */
static void set_text(struct zd_err *err, int status, const char *format, va_list args)
{
	char text[ZD_ERR_TEXT_BYTES];

	zd_text_vformat(text, sizeof(text), format, args);
	err->status = status;
	memcpy(err->text, text, sizeof(text));
}

void zd_err_format(struct zd_err *err, int status, const char *format, ...)
{
	va_list args;

	if (!err)
		return;
	va_start(args, format);
	set_text(err, status, format, args);
	va_end(args);
}

int zd_err_errno(struct zd_err *err, int errno_value, const char *format, ...)
{
	char text[ZD_ERR_TEXT_BYTES];
	char reason_buffer[128];
	const char *reason;
	va_list args;

	if (!err)
		return ZEROD_E_SYSTEM;
	reason = strerror_r(errno_value, reason_buffer, sizeof(reason_buffer));
	va_start(args, format);
	zd_text_vformat(text, sizeof(text), format, args);
	va_end(args);
	/* A long text is cut in favour of the reason. */
	return zd_err_set(err, ZEROD_E_SYSTEM, "%.*s: %s", (int)(sizeof(text) - strlen(reason) - 3), text,
	                  reason);
}

void zd_assert_failed(const char *cond, const char *file, int line, const char *func)
{
	(void)fprintf(stderr, "%s:%d: %s: assertion failed: %s\n", file, line, func, cond);
	abort();
}
