/* SPDX-License-Identifier: Apache-2.0 */
/* cast.h - conversions from the dtype of a source to the dtype of its unit. */
#ifndef ZD_CLIENT_CAST_H
#define ZD_CLIENT_CAST_H

#include <stdbool.h>
#include <stdint.h>

#include <zerod.h>

/* A conversion of `numel` elements; source and result must not overlap. The addresses are the CPU's or a
 * GPU's. */
struct zc_conversion {
	enum zerod_dtype from_dtype, to_dtype; /* a supported pair */
	const void *from;
	void *to; /* both aligned for their elements */
	uint64_t numel;
};

/* Whether the pair is supported: float32, float16 and bfloat16 to every floating dtype, and each dtype to
 * itself. */
bool zc_cast_supported(enum zerod_dtype from, enum zerod_dtype to);

/*
 * Converts `numel` elements of a supported pair of dtypes. The arrays must not overlap, and each must be
 * aligned for its elements. Rounds to nearest, ties to even. Values beyond the largest finite one become
 * infinity, or nan in float8_e4m3, which has no infinity. nan remains nan, and signs are preserved.
 * Thread-safe; needs the thread's default rounding mode.
 */
void zc_cast(enum zerod_dtype from, const void *source, enum zerod_dtype to, void *target, uint64_t numel);

#endif
