/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_cast.c - conversions beside a slow reference, which looks up the two neighbours of a value in
 * the list of all values of a format and compares distances: nothing of the code under test is used to judge
 * it.
 */
#include <math.h>

#include "base/mem.h"
#include "client/lib/compute/cast.h"
#include "tests/support/test.h"

#define RANDOM_NUMEL (1u << 20)

struct format {
	enum zerod_dtype dtype;
	unsigned bits, mantissa_bits;
	int bias;
	uint32_t largest; /* finite, as a pattern; the next one is overflow: infinity, or nan in e4m3 */
};

static const struct format formats[] = {
        {ZEROD_FLOAT16, 16, 10, 15, 0x7bff},
        {ZEROD_BFLOAT16, 16, 7, 127, 0x7f7f},
        {ZEROD_FLOAT8_E4M3, 8, 3, 7, 0x7e},
        {ZEROD_FLOAT8_E5M2, 8, 2, 15, 0x7b},
};
#define NFORMATS (sizeof(formats) / sizeof(formats[0]))

/* ---- The reference ------------------------------------------------------------------------------------- */

/* The value of a magnitude's pattern; of the one behind the largest, as if the exponents went on. */
static double value_of(const struct format *format, uint32_t pattern)
{
	uint32_t mantissa = pattern & ((1u << format->mantissa_bits) - 1);
	int exponent = (int)(pattern >> format->mantissa_bits);

	if (exponent == 0)
		return ldexp(mantissa, 1 - format->bias - (int)format->mantissa_bits);
	return ldexp(mantissa + (1u << format->mantissa_bits),
	             exponent - format->bias - (int)format->mantissa_bits);
}

/* The pattern of a magnitude that is not nan. */
static uint32_t nearest(const struct format *format, double magnitude)
{
	uint32_t low = 0, high = format->largest + 1;
	double below, above;

	if (magnitude >= value_of(format, high))
		return high;
	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;

		if (value_of(format, middle) <= magnitude)
			low = middle;
		else
			high = middle;
	}
	below = magnitude - value_of(format, low);
	above = value_of(format, high) - magnitude;
	if (below == above)
		return low & 1 ? high : low;
	return below < above ? low : high;
}

static bool is_right(const struct format *format, float value, uint32_t got)
{
	uint32_t sign = 1u << (format->bits - 1);

	if (!signbit(value) != !(got & sign))
		return false;
	got &= sign - 1;
	if (isnan(value)) /* e4m3 has one nan, which is where overflow goes as well */
		return format->dtype == ZEROD_FLOAT8_E4M3 ? got == 0x7f : got > format->largest + 1;
	return got == nearest(format, fabs((double)value));
}

/* ---- Checks -------------------------------------------------------------------------------------------- */

/* `values` are those of `source`, as float32. */
static void check(enum zerod_dtype from, const void *source, const float *values, uint32_t numel,
                  const struct format *to)
{
	void *made = zd_calloc(numel, sizeof(uint16_t));

	zc_cast(from, source, to->dtype, made, numel);
	for (uint32_t i = 0; i < numel; i++) {
		uint32_t got = to->bits == 8 ? ((uint8_t *)made)[i] : ((uint16_t *)made)[i];

		if (!is_right(to, values[i], got))
			fail_msg("%s to %s: %a became %#x", zerod_dtype_name(from),
			         zerod_dtype_name(to->dtype), (double)values[i], got);
	}
	free(made);
}

static void check_all(const float *values, uint32_t numel)
{
	for (unsigned i = 0; i < NFORMATS; i++)
		check(ZEROD_FLOAT32, values, values, numel, &formats[i]);
}

/* Every pattern of a half format to every format, float32 included. */
static void check_every_half(const struct format *from)
{
	uint32_t sign = 0x8000, ninf = from->largest + 1;
	uint16_t *halves = zd_calloc(0x10000, sizeof(*halves));
	float *values = zd_calloc(0x10000, sizeof(*values)), *wide = zd_calloc(0x10000, sizeof(*wide));

	for (uint32_t i = 0; i < 0x10000; i++) {
		uint32_t magnitude = i & (sign - 1);
		double value = magnitude > ninf    ? (double)NAN
		               : magnitude == ninf ? (double)INFINITY
		                                   : value_of(from, magnitude);

		halves[i] = (uint16_t)i;
		values[i] = copysignf((float)value, i & sign ? -1.0f : 1.0f);
	}
	zc_cast(from->dtype, halves, ZEROD_FLOAT32, wide, 0x10000);
	for (uint32_t i = 0; i < 0x10000; i++)
		if (isnan(values[i]) ? !isnan(wide[i]) : memcmp(&values[i], &wide[i], sizeof(wide[i])) != 0)
			fail_msg("%s %#x became %a", zerod_dtype_name(from->dtype), i, (double)wide[i]);
	for (unsigned i = 0; i < NFORMATS; i++)
		if (formats[i].dtype != from->dtype)
			check(from->dtype, halves, values, 0x10000, &formats[i]);
	free(halves);
	free(values);
	free(wide);
}

/* ---- Cases --------------------------------------------------------------------------------------------- */

TEST(test_every_float16_and_bfloat16)
{
	check_every_half(&formats[0]);
	check_every_half(&formats[1]);
}

/* In the middle of every two neighbours, just below it and just above; so, too, around the end of the finite
 * values. */
TEST(test_every_tie)
{
	for (unsigned i = 0; i < NFORMATS; i++) {
		const struct format *format = &formats[i];
		uint32_t n = 0;
		float *values = zd_calloc((format->largest + 1) * 8u, sizeof(*values));

		for (uint32_t low = 0; low <= format->largest; low++) {
			double middle = (value_of(format, low) + value_of(format, low + 1)) / 2;
			float tie = (float)middle;

			assert_true((double)tie == middle);
			values[n++] = tie;
			values[n++] = nextafterf(tie, 0.0f);
			values[n++] = nextafterf(tie, INFINITY);
			values[n++] = (float)value_of(format, low);
			for (uint32_t k = n - 4, end = n; k < end; k++)
				values[n++] = -values[k];
		}
		check(ZEROD_FLOAT32, values, values, n, format);
		free(values);
	}
}

/* All exponents, subnormals among them. */
TEST(test_random_float32)
{
	float *values = zd_calloc(RANDOM_NUMEL, sizeof(*values));
	uint64_t seed = 1;

	for (uint32_t i = 0; i < RANDOM_NUMEL; i++) {
		uint32_t bits;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		bits = (uint32_t)(seed >> 32);
		if (i % 4 == 1)
			bits &= 0x807fffff; /* a subnormal */
		else if (i % 4 >= 2)        /* where all formats have values */
			bits = (bits & 0x80ffffff) | ((bits >> 24 & 0xf) + 0x37) << 24;
		memcpy(&values[i], &bits, sizeof(bits));
	}
	check_all(values, RANDOM_NUMEL);
	free(values);
}

TEST(test_special_values)
{
	static const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffffffff};
	float values[] = {0.0f,     -0.0f,    INFINITY, -INFINITY, 448.0f,   464.0f,   465.0f,    480.0f,
	                  57344.0f, 61440.f,  65504.0f, 65520.0f,  65536.0f, 1e38f,    -1e38f,    0x1p-149f,
	                  0x1p-9f,  0x1p-10f, 0x1p-16f, 0x1p-17f,  0x1p-24f, 0x1p-25f, 0x1p-133f, -0x1p-134f};
	float not_numbers[5];

	memcpy(not_numbers, nans, sizeof(nans));
	check_all(values, sizeof(values) / sizeof(values[0]));
	check_all(not_numbers, 5);
}

/* Blocks have their own edges, and nothing behind the last element is touched. */
TEST(test_every_count)
{
	static float values[600];

	for (uint32_t i = 0; i < 600; i++)
		values[i] = (float)i - 300.5f;
	for (uint32_t numel = 0; numel < 600; numel++) {
		uint16_t made[601];

		memset(made, 0xaa, sizeof(made));
		zc_cast(ZEROD_FLOAT32, values, ZEROD_BFLOAT16, made, numel);
		assert_int_equal(made[numel], 0xaaaa);
		for (uint32_t i = 0; i < numel; i++)
			assert_true(is_right(&formats[1], values[i], made[i]));
	}
}

TEST(test_pairs)
{
	for (enum zerod_dtype from = 0; from <= ZEROD_BOOL + 1; from++) {
		for (enum zerod_dtype to = 0; to <= ZEROD_BOOL + 1; to++) {
			bool known = from >= ZEROD_FLOAT32 && from <= ZEROD_BOOL;
			bool casts = from >= ZEROD_FLOAT32 && from <= ZEROD_BFLOAT16 && to >= ZEROD_FLOAT32 &&
			             to <= ZEROD_FLOAT8_E5M2;

			assert_int_equal(zc_cast_supported(from, to), known && (from == to || casts));
		}
	}
}

/* Any bytes, nan's payloads included. */
TEST(test_equal_dtypes_are_copied)
{
	uint8_t bytes[96], made[96];

	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 37 + 0x7f);
	for (enum zerod_dtype dtype = ZEROD_FLOAT32; dtype <= ZEROD_BOOL; dtype++) {
		memset(made, 0, sizeof(made));
		zc_cast(dtype, bytes, dtype, made, sizeof(bytes) / zerod_dtype_bytes(dtype));
		assert_memory_equal(made, bytes, sizeof(bytes));
	}
}
