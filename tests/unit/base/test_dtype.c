/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All 65536 patterns of both half formats, and all 256 of both float8s. The reference decodes with ldexp;
 * rounding is checked at, just below and just above the middle of every two neighbours, so nothing of the
 * code under test is used to judge it.
 */
#include <math.h>

#include "base/dtype.h"
#include "tests/support/test.h"

struct half_format {
	unsigned mantissa_bits;
	int bias;
	float (*decode)(uint16_t bits);
	uint16_t (*encode)(float value);
};

static const struct half_format f16 = {10, 15, zd_f16_to_f32, zd_f32_to_f16};
static const struct half_format bf16 = {7, 127, zd_bf16_to_f32, zd_f32_to_bf16};

static uint16_t infinity_of(const struct half_format *half)
{
	return (uint16_t)(0x7fff & ~((1u << half->mantissa_bits) - 1));
}

/* The value of a pattern that is not a nan. */
static double reference(const struct half_format *half, uint16_t bits)
{
	unsigned mantissa = bits & ((1u << half->mantissa_bits) - 1);
	int exponent = (bits & 0x7fff) >> half->mantissa_bits;
	double magnitude;

	if ((bits & 0x7fff) == infinity_of(half))
		magnitude = INFINITY;
	else if (exponent == 0)
		magnitude = ldexp(mantissa, 1 - half->bias - (int)half->mantissa_bits);
	else
		magnitude = ldexp(mantissa + (1u << half->mantissa_bits),
		                  exponent - half->bias - (int)half->mantissa_bits);
	return bits & 0x8000 ? -magnitude : magnitude;
}

static void check_round_trip(const struct half_format *half)
{
	for (uint32_t pattern = 0; pattern < 0x10000; pattern++) {
		uint16_t bits = (uint16_t)pattern;
		uint16_t quiet = (uint16_t)(1u << (half->mantissa_bits - 1));
		float value = half->decode(bits);
		uint16_t back = half->encode(value);

		if ((bits & 0x7fff) > infinity_of(half)) {
			/* Sign and payload survive, the nan is quiet. */
			if (!isnan(value) || back != (bits | quiet))
				fail_msg("nan %04x came back as %04x", bits, back);
			continue;
		}
		if ((double)value != reference(half, bits) || !signbit(value) != !(bits & 0x8000))
			fail_msg("%04x decoded as %a", bits, (double)value);
		if (back != bits)
			fail_msg("%04x came back as %04x", bits, back);
	}
}

static void expect(const struct half_format *half, float value, uint16_t wanted)
{
	uint16_t got = half->encode(value), negative = half->encode(-value);

	if (got != wanted || negative != (wanted | 0x8000))
		fail_msg("%a became %04x and, negated, %04x; expected %04x", (double)value, got, negative,
		         wanted);
}

/* `low` and `low + 1` are neighbours; `low + 1` may be infinity, which stands for the next power of two
 * then. */
static void check_rounding(const struct half_format *half)
{
	for (uint16_t low = 0; low < infinity_of(half); low++) {
		uint16_t high = (uint16_t)(low + 1);
		double above = high == infinity_of(half)
		                       ? 2 * reference(half, low) - reference(half, (uint16_t)(low - 1))
		                       : reference(half, high);
		float middle = (float)((reference(half, low) + above) / 2);

		/* Exact in float32: one bit more than the half format has. */
		assert_true((double)middle == (reference(half, low) + above) / 2);
		expect(half, middle, low & 1 ? high : low);
		expect(half, nextafterf(middle, 0), low);
		expect(half, nextafterf(middle, INFINITY), high);
	}
}

static void check_extremes(const struct half_format *half)
{
	uint16_t inf = infinity_of(half);

	expect(half, 0.0f, 0);
	expect(half, INFINITY, inf);
	expect(half, 3.4028234663852886e38f, inf); /* FLT_MAX */
	expect(half, 1.0f, (uint16_t)(half->bias << half->mantissa_bits));
	/* Any float32 nan stays one, also when its payload is only in bits that are dropped. */
	for (unsigned bit = 0; bit < 23; bit++) {
		uint32_t pattern = 0x7f800000u | 1u << bit;
		float value;

		memcpy(&value, &pattern, sizeof(value));
		assert_true((half->encode(value) & 0x7fff) > inf);
		assert_true(isnan(half->decode(half->encode(value))));
	}
}

TEST(f16_round_trip)
{
	check_round_trip(&f16);
}

TEST(bf16_round_trip)
{
	check_round_trip(&bf16);
}

TEST(f16_rounding)
{
	check_rounding(&f16);
}

TEST(bf16_rounding)
{
	check_rounding(&bf16);
}

TEST(extremes)
{
	check_extremes(&f16);
	check_extremes(&bf16);
	expect(&f16, 65504.0f, 0x7bff);
	expect(&f16, 65519.99f, 0x7bff);
	expect(&f16, 65520.0f, 0x7c00);
	expect(&f16, 0x1p-24f, 1);
	expect(&f16, 0x1p-25f, 0);
	expect(&f16, 0x1.000002p-25f, 1);
	expect(&f16, 1e-45f, 0); /* the smallest float32 */
	expect(&bf16, 1e-45f, 0);
}

/* Of `mantissa_bits`. The highest exponent is infinity's and nan's as in a half format (ieee), or only its
 * last pattern is a nan. */
static void check_float8(float (*decode)(uint8_t bits), unsigned mantissa_bits, int bias, bool ieee)
{
	unsigned infinity = 0x7f & ~((1u << mantissa_bits) - 1);

	for (unsigned bits = 0; bits < 0x100; bits++) {
		unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
		int exponent = (int)((bits & 0x7f) >> mantissa_bits);
		double magnitude = exponent ? ldexp(mantissa + (1u << mantissa_bits),
		                                    exponent - bias - (int)mantissa_bits)
		                            : ldexp(mantissa, 1 - bias - (int)mantissa_bits);
		float value = decode((uint8_t)bits);

		if (ieee && (bits & 0x7f) == infinity)
			magnitude = INFINITY;
		assert_int_equal(!!signbit(value), bits >> 7);
		if (ieee ? (bits & 0x7f) > infinity : (bits & 0x7f) == 0x7f)
			assert_true(isnan(value));
		else
			assert_true(fabs((double)value) == magnitude);
	}
}

TEST(float8s)
{
	check_float8(zd_e4m3_to_f32, 3, 7, false);
	check_float8(zd_e5m2_to_f32, 2, 15, true);
	assert_true(zd_e4m3_to_f32(0x7e) == 448.0f);
	assert_true(zd_e5m2_to_f32(0x7b) == 57344.0f);
}

TEST(dtypes_of_gradients_and_sums)
{
	for (int dtype = -1; dtype <= 12; dtype++) {
		bool wide = dtype == ZEROD_FLOAT32 || dtype == ZEROD_FLOAT16 || dtype == ZEROD_BFLOAT16;
		bool narrow = dtype == ZEROD_FLOAT8_E4M3 || dtype == ZEROD_FLOAT8_E5M2;

		assert_int_equal(zd_dtype_reducible((enum zerod_dtype)dtype), wide || narrow);
		assert_int_equal(zd_dtype_holds_sums((enum zerod_dtype)dtype), wide);
	}
}
