/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_cast.c - casts by the GPU beside those by the CPU. */
#include <string.h>

#include "base/mem.h"
#include "client/lib/compute/cast.h"
#include "tests/gpu/kernels_check.h"

#define PATTERNS (1u << 16) /* all of a 16-bit dtype */

/* Sizes around a vector, a warp's, a block's, and the whole grid's. */
static const uint64_t numels[] = {
        0,
        1,
        2,
        3,
        7,
        8,
        9,
        15,
        16,
        17,
        31,
        33,
        127,
        1000,
        4095,
        4096,
        4097,
        8191,
        8192,
        8193,
        PATTERNS,
        100003,
        ZC_CAST_BLOCKS *ZC_THREADS * 8 + 5,
};

static const unsigned skipped[][2] = {{0, 0}, {1, 0}, {0, 1}, {3, 5}, {8, 16}}; /* elements of both */

static bool check_one(struct checks *checks, struct zc_conversion conversion, const unsigned skip[2])
{
	uint64_t from, to;

	checks->used = 0;
	from = checks_place(checks, conversion.from_dtype, conversion.numel, skip[0]);
	to = checks_place(checks, conversion.to_dtype, conversion.numel, skip[1]);
	checks_fill(checks, conversion.from_dtype, checks->wanted + from, conversion.numel, true);
	if (conversion.numel == PATTERNS && zerod_dtype_bytes(conversion.from_dtype) == sizeof(uint16_t))
		for (uint32_t i = 0; i < PATTERNS; i++)
			((uint16_t *)(void *)(checks->wanted + from))[i] = (uint16_t)i;
	if (!checks_upload(checks))
		return false;
	conversion.from = (const void *)checks_on_gpu(checks, from);
	conversion.to = (void *)checks_on_gpu(checks, to);
	if (zc_kernels_cast(&checks->kernels, checks->gpu.stream, &conversion, &checks->err))
		return checks_fail(checks, "%s", checks->err.text);
	zc_cast(conversion.from_dtype, checks->wanted + from, conversion.to_dtype, checks->wanted + to,
	        conversion.numel);
	return checks_download(checks) && checks_compare(checks);
}

bool check_cast_pair(struct checks *checks, enum zerod_dtype from, enum zerod_dtype to)
{
	struct zc_conversion conversion = {.from_dtype = from, .to_dtype = to};

	for (size_t i = 0; i < ZD_ARRAY_LEN(numels); i++) {
		conversion.numel = numels[i];
		for (size_t j = 0; j < ZD_ARRAY_LEN(skipped); j++) {
			char why[sizeof(checks->why)];

			if (numels[i] > 1000000 && j > 1) /* that is long: not in every way */
				continue;
			if (check_one(checks, conversion, skipped[j]))
				continue;
			(void)memcpy(why, checks->why, sizeof(why));
			return checks_fail(checks, "%llu elements, %u and %u skipped: %.400s",
			                   (unsigned long long)numels[i], skipped[j][0], skipped[j][1], why);
		}
	}
	return true;
}
