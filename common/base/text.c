/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.c - names and sizes as people write them.
 *
 * Well-formed UTF-8 is what the Unicode standard's table 3-7 says: no overlong forms, no surrogates, nothing
 * beyond U+10FFFF. Numbers are read and written without the C library's locale.
 */
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

/* ---- UTF-8 --------------------------------------------------------------------------------------------- */

/* The bytes that may follow a leading byte: how many, and the bounds of the first; the others are
 * 0x80..0xbf. */
struct utf8_tail {
	unsigned char count, low, high;
};

static struct utf8_tail utf8_tail_of(unsigned char lead)
{
	if (lead < 0x80)
		return (struct utf8_tail){0, 0, 0};
	if (lead >= 0xc2 && lead <= 0xdf)
		return (struct utf8_tail){1, 0x80, 0xbf};
	if (lead >= 0xe0 && lead <= 0xef)
		return (struct utf8_tail){2, lead == 0xe0 ? 0xa0 : 0x80, lead == 0xed ? 0x9f : 0xbf};
	if (lead >= 0xf0 && lead <= 0xf4)
		return (struct utf8_tail){3, lead == 0xf0 ? 0x90 : 0x80, lead == 0xf4 ? 0x8f : 0xbf};
	return (struct utf8_tail){UINT8_MAX, 0, 0}; /* never leads: longer than any text that follows it */
}

/* Bytes of the well-formed character that `text` begins with; 0 when there is none. */
static size_t utf8_character(const unsigned char *text, size_t bytes)
{
	struct utf8_tail tail;

	if (bytes == 0)
		return 0;
	tail = utf8_tail_of(text[0]);
	if (tail.count == UINT8_MAX || tail.count >= bytes)
		return 0;
	for (size_t i = 1; i <= tail.count; i++) {
		unsigned char low = i == 1 ? tail.low : 0x80;
		unsigned char high = i == 1 ? tail.high : 0xbf;

		if (text[i] < low || text[i] > high)
			return 0;
	}
	return tail.count + 1u;
}

/* C0, DEL, and C1 (U+0080..U+009F, in UTF-8 C2 80..C2 9F). */
static bool is_control(const unsigned char *character)
{
	return character[0] < 0x20 || character[0] == 0x7f || (character[0] == 0xc2 && character[1] < 0xa0);
}

bool zd_utf8_valid(const char *text, size_t bytes)
{
	const unsigned char *at = (const unsigned char *)text;
	const unsigned char *end = at + bytes;

	while (at < end) {
		size_t length;

		if (*at >= 0x20 && *at < 0x7f) { /* nearly all names are nothing else */
			at++;
			continue;
		}
		length = utf8_character(at, (size_t)(end - at));
		if (length == 0 || is_control(at))
			return false;
		at += length;
	}
	return true;
}

/* Returns the bytes of an unfinished character at the end, which a cut has left. */
static size_t utf8_unfinished(const unsigned char *text, size_t bytes)
{
	for (size_t back = 1; back <= 3 && back <= bytes; back++) {
		unsigned char lead = text[bytes - back];

		if (lead >= 0xc0) {
			struct utf8_tail tail = utf8_tail_of(lead);

			return tail.count != UINT8_MAX && tail.count >= back ? back : 0;
		}
		if (lead < 0x80)
			return 0;
	}
	return 0;
}

void zd_text_vformat(char *out, size_t out_bytes, const char *format, va_list args)
{
	unsigned char *at = (unsigned char *)out;
	int wanted = vsnprintf(out, out_bytes, format, args);
	size_t left;

	if (wanted < 0)
		out[0] = '\0';
	left = strlen(out);
	if (wanted > 0 && (size_t)wanted > left) {
		left -= utf8_unfinished(at, left);
		at[left] = '\0';
	}
	while (left > 0) {
		size_t length = utf8_character(at, left);

		if (length == 0 || is_control(at)) {
			length = length ? length : 1;
			memset(at, '?', length);
		}
		at += length;
		left -= length;
	}
}

static uint32_t code_point(const unsigned char *character, size_t length)
{
	uint32_t code = length == 1 ? character[0] : character[0] & (0x7fu >> length);

	for (size_t i = 1; i < length; i++)
		code = code << 6 | (character[i] & 0x3fu);
	return code;
}

/* Unicode's Default_Ignorable_Code_Point, its bidirectional controls, and separators of lines. */
static bool is_hidden(uint32_t code)
{
	static const struct {
		uint32_t first, last;
	} ranges[] = {
	        {0x0000, 0x001f},   {0x007f, 0x009f},   {0x00ad, 0x00ad},   {0x034f, 0x034f},
	        {0x061c, 0x061c},   {0x115f, 0x1160},   {0x17b4, 0x17b5},   {0x180b, 0x180f},
	        {0x200b, 0x200f},   {0x2028, 0x202e},   {0x2060, 0x206f},   {0x3164, 0x3164},
	        {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},   {0xffa0, 0xffa0},   {0xfff0, 0xfffb},
	        {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff},
	};

	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
		if (code >= ranges[i].first && code <= ranges[i].last)
			return true;
	return false;
}

/* "\u202e", or a pair of surrogates. */
static size_t escape_code(uint32_t code, char out[16])
{
	if (code < 0x10000)
		return (size_t)snprintf(out, 16, "\\u%04x", code);
	code -= 0x10000;
	return (size_t)snprintf(out, 16, "\\u%04x\\u%04x", 0xd800 | code >> 10, 0xdc00 | (code & 0x3ff));
}

size_t zd_text_escape(const char *text, char *out, size_t out_bytes)
{
	const unsigned char *at = (const unsigned char *)text;
	size_t left = strlen(text), used = 0;

	while (left > 0) {
		size_t length = utf8_character(at, left), shown_bytes = length;
		char escape[16] = "?";
		const void *shown = at;

		if (length == 0) {
			length = shown_bytes = 1;
			shown = escape;
		} else if (is_hidden(code_point(at, length))) {
			shown_bytes = escape_code(code_point(at, length), escape);
			shown = escape;
		}
		if (shown_bytes >= out_bytes - used)
			break;
		memcpy(out + used, shown, shown_bytes);
		used += shown_bytes;
		at += length;
		left -= length;
	}
	out[used] = '\0';
	return used;
}

uint64_t zd_text_hash(const char *text)
{
	uint64_t hash = 0xcbf29ce484222325ull;
	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * 0x100000001b3ull;
	return hash;
}

int zd_name_check(const char *text, size_t max_bytes, const char *what, struct zd_err *err)
{
	size_t bytes = text ? strlen(text) : 0;

	if (bytes == 0)
		return zd_err_set(err, ZEROD_E_INVALID, "%s is empty", what);
	if (bytes > max_bytes)
		return zd_err_set(err, ZEROD_E_INVALID, "%s has %zu bytes, the limit is %zu: \"%.*s...\"",
		                  what, bytes, max_bytes, 32, text);
	if (!zd_utf8_valid(text, bytes))
		return zd_err_set(err, ZEROD_E_INVALID, "%s is not UTF-8 without control characters: \"%s\"",
		                  what, text);
	return 0;
}

/* ---- Sizes --------------------------------------------------------------------------------------------- */

static const char unit_letters[] = "KMGTPE";

/* 10^9 and its square are below 2^64: see fraction_of(). */
#define MAX_FRACTION_DIGITS 9

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Reads "", "B", or a letter of unit_letters followed by "", "B" or "iB", in either case; the whole rest of
 * the text. */
static bool parse_unit(const char *text, unsigned *shift)
{
	const char *letter = *text ? strchr("KkMmGgTtPpEe", *text) : NULL;

	*shift = 0;
	if (letter) {
		*shift = 10 * (unsigned)((letter - "KkMmGgTtPpEe") / 2 + 1);
		text++;
		if (*text == 'i') {
			text++;
			if (*text == '\0')
				return false;
		}
	}
	if (*text == 'B' || *text == 'b')
		text++;
	return *text == '\0';
}

/* unit * numerator / denominator, rounded down, with numerator < denominator <= 10^9. */
static uint64_t fraction_of(uint64_t unit, uint64_t numerator, uint64_t denominator)
{
	return unit / denominator * numerator + unit % denominator * numerator / denominator;
}

int zd_bytes_parse(const char *text, uint64_t *bytes, struct zd_err *err)
{
	const char *at = text;
	uint64_t whole = 0, numerator = 0, denominator = 1, value;
	bool overflow = false;
	unsigned shift;

	for (; is_digit(*at); at++)
		overflow |= __builtin_mul_overflow(whole, 10, &whole) ||
		            __builtin_add_overflow(whole, (uint64_t)(*at - '0'), &whole);
	if (at == text)
		goto malformed;
	if (*at == '.') {
		const char *first = ++at;

		for (; is_digit(*at) && at - first < MAX_FRACTION_DIGITS; at++) {
			numerator = numerator * 10 + (uint64_t)(*at - '0');
			denominator *= 10;
		}
		if (at == first)
			goto malformed;
	}
	if (*at == ' ')
		at++;
	if (!parse_unit(at, &shift) || (shift == 0 && denominator > 1))
		goto malformed;
	overflow |= __builtin_mul_overflow(whole, 1ull << shift, &value) ||
	            __builtin_add_overflow(value, fraction_of(1ull << shift, numerator, denominator), &value);
	if (overflow)
		return zd_err_set(err, ZEROD_E_INVALID, "\"%s\" is more bytes than 64 bits can count", text);
	*bytes = value;
	return 0;
malformed:
	return zd_err_set(err, ZEROD_E_INVALID, "\"%s\" is not a size such as 4096, 64K, 1.5G or 2GiB", text);
}

/* `value` in units of 2^-20 as decimal, 4 significant digits or fewer, zeros at the end dropped; whole part
 * returned. */
static unsigned print_fixed(uint64_t value, char *out, size_t out_bytes)
{
	unsigned decimals = value < 10u << 20 ? 3 : value < 100u << 20 ? 2 : value < 1000u << 20 ? 1 : 0;
	unsigned scale = 1, fraction;
	uint64_t rounded;

	for (unsigned i = 0; i < decimals; i++)
		scale *= 10;
	rounded = (value * scale + (1u << 19)) >> 20;
	fraction = (unsigned)(rounded % scale);
	while (decimals > 0 && fraction % 10 == 0) {
		fraction /= 10;
		decimals--;
	}
	if (decimals > 0)
		(void)snprintf(out, out_bytes, "%u.%0*u", (unsigned)(rounded / scale), (int)decimals,
		               fraction);
	else
		(void)snprintf(out, out_bytes, "%u", (unsigned)(rounded / scale));
	return (unsigned)(rounded / scale);
}

char *zd_bytes_text(uint64_t bytes, char out[ZD_BYTES_TEXT])
{
	unsigned unit = 0;
	char number[ZD_BYTES_TEXT - 5];

	if (bytes < 1024) {
		(void)snprintf(out, ZD_BYTES_TEXT, "%" PRIu64 " B", bytes);
		return out;
	}
	while (unit < 5 && bytes >> (10 * (unit + 2)) != 0)
		unit++;
	/* 20 bits after the binary point are used. */
	bytes = unit == 0 ? bytes << 10 : bytes >> (10 * (unit + 1) - 20);
	if (print_fixed(bytes, number, sizeof(number)) == 1024 && unit < 5) {
		unit++; /* 1023.97 KiB is 1 MiB */
		(void)snprintf(number, sizeof(number), "1");
	}
	(void)snprintf(out, ZD_BYTES_TEXT, "%s %ciB", number, unit_letters[unit]);
	return out;
}
