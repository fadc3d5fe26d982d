/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 and names, sizes as people write them, and texts that quote what a peer sent. */
#include <stdio.h>

#include <zerod.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "tests/support/test.h"

/* Encodes what a strict encoder would refuse as well, so that the checks can be tried with it. */
static size_t encode(uint32_t point, char out[4])
{
	if (point < 0x80) {
		out[0] = (char)point;
		return 1;
	}
	if (point < 0x800) {
		out[0] = (char)(0xc0 | point >> 6);
		out[1] = (char)(0x80 | (point & 0x3f));
		return 2;
	}
	if (point < 0x10000) {
		out[0] = (char)(0xe0 | point >> 12);
		out[1] = (char)(0x80 | (point >> 6 & 0x3f));
		out[2] = (char)(0x80 | (point & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | point >> 18);
	out[1] = (char)(0x80 | (point >> 12 & 0x3f));
	out[2] = (char)(0x80 | (point >> 6 & 0x3f));
	out[3] = (char)(0x80 | (point & 0x3f));
	return 4;
}

TEST(every_code_point)
{
	for (uint32_t point = 0; point < 0x200000; point++) {
		bool surrogate = point >= 0xd800 && point <= 0xdfff;
		bool control = point < 0x20 || (point >= 0x7f && point < 0xa0);
		bool wanted = !surrogate && !control && point <= 0x10ffff;
		char text[4];
		size_t bytes = encode(point, text);

		if (zd_utf8_valid(text, bytes) != wanted)
			fail_msg("U+%04X: expected %d", point, wanted);
		for (size_t cut = 1; cut < bytes; cut++)
			if (zd_utf8_valid(text, cut))
				fail_msg("U+%04X: valid after %zu of %zu bytes", point, cut, bytes);
	}
}

TEST(malformed_utf8)
{
	static const char *const bad[] = {
	        "\x80", /* a tail without a lead */
	        "\xbf",
	        "\xc0\x80", /* overlong: NUL, slash, U+07FF, U+FFFF */
	        "\xc1\xbf",
	        "\xc0\xaf",
	        "\xe0\x80\xaf",
	        "\xe0\x9f\xbf",
	        "\xf0\x80\x80\xaf",
	        "\xf0\x8f\xbf\xbf",
	        "\xed\xa0\x80", /* surrogates */
	        "\xed\xbf\xbf",
	        "\xf4\x90\x80\x80", /* beyond U+10FFFF */
	        "\xf5\x80\x80\x80",
	        "\xf8\x88\x80\x80\x80",
	        "\xfe",
	        "\xff",
	        "a\xc3", /* cut */
	        "\xe2\x82",
	        "\xf0\x9f\x98",
	        "\xc3z", /* a lead without its tail */
	        "\xe2\x82z",
	        "\xf0\x9f\x98z",
	};

	for (size_t i = 0; i < ZD_ARRAY_LEN(bad); i++)
		if (zd_utf8_valid(bad[i], strlen(bad[i])))
			fail_msg("accepted malformed text %zu", i);
	assert_true(zd_utf8_valid("", 0));
	assert_true(zd_utf8_valid("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", 15));
	assert_false(zd_utf8_valid("a\0b", 3));
}

TEST(names)
{
	struct zd_err err = ZD_ERR_NONE;
	char longest[65];

	assert_int_equal(zd_name_check("layer.0", 63, "unit name", &err), 0);
	assert_int_equal(zd_name_check(NULL, 63, "unit name", &err), ZEROD_E_INVALID);
	assert_string_equal(err.text, "unit name is empty");
	assert_int_equal(zd_name_check("", 63, "job", &err), ZEROD_E_INVALID);
	assert_string_equal(err.text, "job is empty");

	memset(longest, 'x', 64);
	longest[63] = '\0';
	assert_int_equal(zd_name_check(longest, 63, "job", &err), 0);
	longest[63] = 'x';
	longest[64] = '\0';
	assert_int_equal(zd_name_check(longest, 63, "job", &err), ZEROD_E_INVALID);
	assert_non_null(strstr(err.text, "job has 64 bytes, the limit is 63"));

	assert_int_equal(zd_name_check("a\nb", 63, "tag", &err), ZEROD_E_INVALID);
	assert_string_equal(err.text, "tag is not UTF-8 without control characters: \"a?b\"");
	assert_int_equal(zd_name_check("\xff", 63, "tag", NULL), ZEROD_E_INVALID);
}

TEST(sizes_read)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {
	        {"0", 0},
	        {"4096", 4096},
	        {"4096B", 4096},
	        {"64K", 64 << 10},
	        {"64k", 64 << 10},
	        {"64KB", 64 << 10},
	        {"64KiB", 64 << 10},
	        {"64 KiB", 64 << 10},
	        {"1.5G", 3ull << 29},
	        {"2GiB", 2ull << 30},
	        {"0.5M", 1 << 19},
	        {"3T", 3ull << 40},
	        {"1P", 1ull << 50},
	        {"15E", 15ull << 60},
	        {"15.999999999E",
	         (15ull << 60) + 1152921503453925471ull}, /* 2^60 * 0.999999999, rounded down */
	        {"0.001K", 1},                            /* 1.024 */
	        {"0.333333333G", 357913940},              /* 357913940.87 */
	        {"18446744073709551615", UINT64_MAX},
	};
	static const char *const bad[] = {"",
	                                  " ",
	                                  "K",
	                                  ".5G",
	                                  "1.G",
	                                  "1.5",
	                                  "1.5B",
	                                  "-1",
	                                  "+1",
	                                  "1e9",
	                                  "64X",
	                                  "64Ki",
	                                  "64KK",
	                                  "64KiBx",
	                                  "1,5G",
	                                  "0x10",
	                                  "64  K",
	                                  "64K ",
	                                  " 64K",
	                                  "1..5G",
	                                  "1.5.5G",
	                                  "64iB",
	                                  "64Bi",
	                                  "inf",
	                                  "1.0000000001G",
	                                  "18446744073709551616",
	                                  "16E",
	                                  "99999999999999999999999P"};

	for (size_t i = 0; i < ZD_ARRAY_LEN(good); i++) {
		uint64_t bytes = 77;

		if (zd_bytes_parse(good[i].text, &bytes, NULL) != 0 || bytes != good[i].bytes)
			fail_msg("\"%s\" gave %llu", good[i].text, (unsigned long long)bytes);
	}
	for (size_t i = 0; i < ZD_ARRAY_LEN(bad); i++) {
		struct zd_err err = ZD_ERR_NONE;
		uint64_t bytes = 77;

		if (zd_bytes_parse(bad[i], &bytes, &err) != ZEROD_E_INVALID || bytes != 77)
			fail_msg("\"%s\" was accepted", bad[i]);
		assert_non_null(strstr(err.text, bad[i]));
	}
}

TEST(sizes_written)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} cases[] = {
	        {0, "0 B"},
	        {1, "1 B"},
	        {1023, "1023 B"},
	        {1024, "1 KiB"},
	        {1536, "1.5 KiB"},
	        {1025, "1.001 KiB"},
	        {10 << 10, "10 KiB"},
	        {10239, "9.999 KiB"},
	        {102399, "100 KiB"}, /* 99.999 */
	        {1000 << 10, "1000 KiB"},
	        {(1 << 20) - 1, "1 MiB"}, /* 1023.999 KiB */
	        {1023 << 10, "1023 KiB"},
	        {1 << 20, "1 MiB"},
	        {3ull << 29, "1.5 GiB"},
	        {(1ull << 30) - 1, "1 GiB"},
	        {123456789, "117.7 MiB"},
	        {1ull << 40, "1 TiB"},
	        {1ull << 50, "1 PiB"},
	        {1ull << 60, "1 EiB"},
	        {UINT64_MAX, "16 EiB"},
	};
	char out[ZD_BYTES_TEXT];

	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++) {
		assert_ptr_equal(zd_bytes_text(cases[i].bytes, out), out);
		assert_string_equal(out, cases[i].text);
	}
}

/* zd_bytes_text()'s output can be parsed again, and differs by at most the dropped digits. */
TEST(sizes_round_trip)
{
	uint64_t value = 1;

	for (unsigned i = 0; i < 100000; i++) {
		char out[ZD_BYTES_TEXT];
		uint64_t bytes, back = 0, error;

		value = value * 6364136223846793005ull + 1442695040888963407ull;
		bytes = value >> 4 >> (value % 60);
		assert_true(strlen(zd_bytes_text(bytes, out)) < ZD_BYTES_TEXT);
		if (zd_bytes_parse(out, &back, NULL) != 0)
			fail_msg("%s is not read", out);
		error = back > bytes ? back - bytes : bytes - back;
		if (error > bytes / 1000)
			fail_msg("%llu became %s", (unsigned long long)bytes, out);
	}
}

static void format(char *out, size_t out_bytes, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void format(char *out, size_t out_bytes, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	zd_text_vformat(out, out_bytes, fmt, args);
	va_end(args);
}

TEST(formatted_texts_are_valid)
{
	char out[16];

	format(out, sizeof(out), "%s", "plain");
	assert_string_equal(out, "plain");
	format(out, sizeof(out), "%s", "a\x1b[2Jb\x7f\n");
	assert_string_equal(out, "a?[2Jb??");
	format(out, sizeof(out), "%s",
	       "a\xc2\x9b"
	       "b\xff\xfe\xe2\x82");
	assert_string_equal(out, "a??b????");
	format(out, sizeof(out), "%s", "0123456789abcde");
	assert_string_equal(out, "0123456789abcde");
	format(out, 1, "%s", "x");
	assert_string_equal(out, "");
}

/* A cut falls between characters, wherever it falls, and does not cost a whole character before it. */
TEST(cuts_keep_characters_whole)
{
	static const char *const characters[] = {"z", "\xc3\xbc", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
	char text[80], out[32];

	for (size_t c = 0; c < ZD_ARRAY_LEN(characters); c++) {
		size_t step = strlen(characters[c]);

		for (size_t lead = 0; lead < 4; lead++) {
			size_t kept;

			memset(text, 'a', lead);
			for (size_t i = 0; i < 16; i++)
				memcpy(text + lead + i * step, characters[c], step + 1);
			for (size_t room = 1; room <= sizeof(out); room++) {
				format(out, room, "%s", text);
				kept = strlen(out);
				assert_true(kept < room);
				assert_memory_equal(out, text, kept);
				assert_true(zd_utf8_valid(out, kept));
				if (kept < strlen(text))
					assert_true(kept + step >= room);
			}
		}
	}
}

TEST(hidden_characters_are_shown)
{
	static const struct {
		const char *text, *shown;
	} cases[] = {
	        {"", ""},
	        {"plain \\u202e, gr\xc3\xbc\xc3\x9f, \xe2\x82\xac \xf0\x9f\x98\x80",
	         "plain \\u202e, gr\xc3\xbc\xc3\x9f, \xe2\x82\xac \xf0\x9f\x98\x80"},
	        {"a\nb\x1b[2J\x7f", "a\\u000ab\\u001b[2J\\u007f"},
	        {"\xc2\x9b", "\\u009b"},                     /* CSI of C1 */
	        {"a\xc2\xadz", "a\\u00adz"},                 /* soft hyphen */
	        {"\xd8\x9c", "\\u061c"},                     /* Arabic letter mark */
	        {"\xe2\x80\x8b", "\\u200b"},                 /* zero width space */
	        {"x\xe2\x80\xaegnp.exe", "x\\u202egnp.exe"}, /* right-to-left override */
	        {"\xe2\x80\xa8", "\\u2028"},                 /* line separator */
	        {"\xe2\x81\xa6", "\\u2066"},                 /* left-to-right isolate */
	        {"\xe3\x85\xa4", "\\u3164"},                 /* Hangul filler */
	        {"\xef\xbb\xbf", "\\ufeff"},                 /* byte order mark */
	        {"\xf3\xa0\x81\x81", "\\udb40\\udc41"},      /* tag letter: a pair, as in JSON */
	        {"a\xff\xe2\x82", "a???"},
	};
	char out[128];

	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++) {
		size_t length = zd_text_escape(cases[i].text, out, sizeof(out));

		assert_string_equal(out, cases[i].shown);
		assert_int_equal(length, strlen(out));
		assert_true(strlen(out) < strlen(cases[i].text) * ZD_TEXT_ESCAPE_GROWTH + 1);
		/* An escape is whole, or is not there. */
		for (size_t room = 1; room < sizeof(out); room++) {
			length = zd_text_escape(cases[i].text, out, room);
			assert_true(length < room);
			assert_memory_equal(out, cases[i].shown, length);
			assert_true(length == strlen(cases[i].shown) || length + 12 >= room);
		}
	}
	assert_int_equal(zd_text_escape("\xe2\x80\x8b", out, 6), 0);
}
