/* SPDX-License-Identifier: Apache-2.0 */
/*
 * err.h - a status with its text.
 *
 * Functions that can fail return 0 or a negative ZEROD_E_* (zerod.h), and put what was asked, what was found,
 * which name and which rank into a struct zd_err, where they know it. A NULL err is allowed everywhere: the
 * text is dropped.
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

/* Formats the text and returns `status`. The text is cut if too long, always terminated, and always UTF-8
 * without control characters, whatever the arguments hold; they may point into err->text. */
void zd_err_format(struct zd_err *err, int status, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
static inline int zd_err_status(int status)
{
	return status;
}
/* A macro, so that callers and analysers see the very status that is returned. Arguments are evaluated
 * once. */
#define zd_err_set(err, status, ...)                                                                         \
	({                                                                                                   \
		const int zd_err_set_status = (status);                                                      \
		zd_err_format(err, zd_err_set_status, __VA_ARGS__);                                          \
		zd_err_status(zd_err_set_status);                                                            \
	})

/* As zd_err_set, with ZEROD_E_SYSTEM and ": <strerror(errno_value)>" behind the text, which is cut before the
 * reason is. */
int zd_err_errno(struct zd_err *err, int errno_value, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/* Our own mistakes only; what a peer, a file, a device or the user says is never asserted. Stays in release
 * builds. */
#define zd_assert(cond)                                                                                      \
	do {                                                                                                 \
		if (!(cond))                                                                                 \
			zd_assert_failed(#cond, __FILE__, __LINE__, __func__);                               \
	} while (0)
_Noreturn void zd_assert_failed(const char *cond, const char *file, int line, const char *func);

#endif
