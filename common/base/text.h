/* SPDX-License-Identifier: Apache-2.0 */
/* text.h - names and sizes as people write them. */
#ifndef ZD_BASE_TEXT_H
#define ZD_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct zd_err;

/* Whether the text is well-formed UTF-8 without control characters (below 0x20, 0x7f, and U+0080 to U+009F,
 * which terminals also obey). */
bool zd_utf8_valid(const char *text, size_t bytes);

/* Formats like vsnprintf(), with a result that zd_utf8_valid() always accepts: cut between two characters,
 * and with '?' for each invalid byte. `out_bytes` >= 1. */
void zd_text_vformat(char *out, size_t out_bytes, const char *format, va_list args)
        __attribute__((format(printf, 3, 0)));

/*
 * Writes the text as it can be shown to people. Control characters become escapes as in JSON ("\u202e").
 * Characters that are invisible or change the order of others also do: bidirectional controls, zero-width and
 * tag characters, line separators. Malformed bytes become '?'. A backslash does not change. Cuts between two
 * characters or escapes. `out_bytes` is at least 1; ZD_TEXT_ESCAPE_GROWTH times the text's bytes plus 1 are
 * enough. Returns the length.
 */
#define ZD_TEXT_ESCAPE_GROWTH 6u
size_t zd_text_escape(const char *text, char *out, size_t out_bytes);

/* Returns the FNV-1a hash of the text, which is the same in every process, on every machine. */
uint64_t zd_text_hash(const char *text);

/* Checks that `text` is a name of 1 to `max_bytes` bytes, valid as above. Errors: INVALID, with `what` ("unit
 * name") and the reason. `text` may be NULL. */
int zd_name_check(const char *text, size_t max_bytes, const char *what, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Parses "4096", "64K", "1.5G", "2GiB" (powers of 1024) to bytes, and rounds a fraction down. Errors:
 * INVALID, with the text. */
int zd_bytes_parse(const char *text, uint64_t *bytes, struct zd_err *err) __attribute__((warn_unused_result));

/* Writes "1.5 GiB", with at most 4 significant digits; exact below 1 KiB ("512 B"). Returns `out`. */
#define ZD_BYTES_TEXT 24
char *zd_bytes_text(uint64_t bytes, char out[ZD_BYTES_TEXT]);

#endif
