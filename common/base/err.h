/* SPDX-License-Identifier: Apache-2.0 */
/*
 * err.h - a status with its text. Functions that can fail return 0 or a negative ZEROD_E_* (zerod.h), and set
 * a text in a struct zd_err. The text has the request and the facts found, with names and ranks. Every
 * function accepts a NULL err, and then drops the text.
 */
#ifndef ZD_BASE_ERR_H
#define ZD_BASE_ERR_H

#include <zerod.h>

#define ZD_ERR_TEXT_BYTES 512

struct zd_err {
	int status;
	char text[ZD_ERR_TEXT_BYTES];
};

#define ZD_ERR_NONE                                                                                          \
	{                                                                                                    \
		.status = 0                                                                                  \
	}

/* Sets the status and formats the text. A text that is too long is cut. The text is always terminated, and
 * always UTF-8 without control characters, for any arguments. The arguments can point into err->text. */
void zd_err_format(struct zd_err *err, int status, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
static inline int zd_err_status(int status)
{
	return status;
}
/* Sets the error and returns `status`. It is a macro so that compilers and analysers see the returned value.
 * Evaluates its arguments once. */
#define zd_err_set(err, status, ...)                                                                         \
	({                                                                                                   \
		const int zd_err_set_status = (status);                                                      \
		zd_err_format(err, zd_err_set_status, __VA_ARGS__);                                          \
		zd_err_status(zd_err_set_status);                                                            \
	})

/* Sets ZEROD_E_SYSTEM with the text, followed by ": <strerror(errno_value)>", and returns the status. Cuts a
 * long text so that the reason fits. */
int zd_err_errno(struct zd_err *err, int errno_value, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/* Aborts if the condition is false: for errors of zerod itself only. Input from a peer, a file, a device or
 * the user is never asserted. Also in release builds. */
#define zd_assert(cond)                                                                                      \
	do {                                                                                                 \
		if (!(cond))                                                                                 \
			zd_assert_failed(#cond, __FILE__, __LINE__, __func__);                               \
	} while (0)
_Noreturn void zd_assert_failed(const char *cond, const char *file, int line, const char *func);

#endif
