/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.c - the library's kernels beside the CPU's, bit for bit: every pair of dtypes, odd sizes, addresses
 * that are not aligned, inf, nan, subnormal numbers, negative zeros.
 *
 *     kernels [--measure]     prints bandwidths as well
 *
 * It needs no daemon, and runs on the first GPU or over the driver's double.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "client/lib/compute/cast.h"
#include "tests/gpu/kernels_check.h"

#define FILLED 256u /* values, at a time */

bool checks_fail(struct checks *checks, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(checks->why, sizeof(checks->why), format, args);
	va_end(args);
	return false;
}

/* ---- Values -------------------------------------------------------------------------------------------- */

uint64_t checks_random(struct checks *checks)
{
	checks->random ^= checks->random >> 12;
	checks->random ^= checks->random << 25;
	checks->random ^= checks->random >> 27;
	return checks->random * 0x2545f4914f6cdd1dull;
}

static float special(uint64_t which)
{
	/* zeros, inf, nan, the limits of float32, float16, e4m3, e5m2, and what is half way to them */
	static const uint32_t bits[] = {
	        0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001,
	        0xffbfffff, 0x7f7fffff, 0xff7fffff, 0x00800000, 0x007fffff, 0x80000001, 0x477fe000,
	        0x477fefff, 0x477ff000, 0x33800000, 0x33000000, 0x33000001, 0x3f800000, 0x3f808000,
	        0x3f818000, 0x7f7f8000, 0x43e00000, 0x43e80000, 0x43e7ffff, 0x47600000, 0x47700000,
	        0x3b000000, 0x3a800000, 0x37800000, 0x37000000, 0xb7000001, 0x7effffff,
	};
	float value;

	memcpy(&value, &bits[which % ZD_ARRAY_LEN(bits)], sizeof(value));
	return value;
}

void checks_fill(struct checks *checks, enum zerod_dtype dtype, void *values, uint64_t numel, bool wild)
{
	size_t each = zerod_dtype_bytes(dtype);
	uint64_t r[FILLED];
	float value[FILLED];

	for (uint64_t first = 0; first < numel; first += FILLED) {
		uint64_t count = zd_min_u64(numel - first, FILLED);
		uint8_t *at = (uint8_t *)values + first * each;

		for (uint64_t i = 0; i < count; i++) {
			r[i] = checks_random(checks);
			value[i] = ((float)(r[i] >> 40) / 0x1p23f - 1.0f) * 0.37f;
			if (wild && r[i] % 3 == 0)
				value[i] = special(r[i] >> 8);
		}
		zc_cast(ZEROD_FLOAT32, value, dtype, at, count);
		for (uint64_t i = 0; i < count && wild; i++)
			if (r[i] % 3 == 1)
				memcpy(at + i * each, &r[i], each);
	}
}

/* ---- The image ----------------------------------------------------------------------------------------- */

uint64_t checks_place(struct checks *checks, enum zerod_dtype dtype, uint64_t numel, unsigned skipped)
{
	uint64_t place = zd_align_up(checks->used, SLOT_ALIGN) + skipped * zerod_dtype_bytes(dtype);

	checks->used = place + numel * zerod_dtype_bytes(dtype) + 1; /* nothing may be written behind it */
	zd_assert(checks->used <= IMAGE_BYTES);
	return place;
}

zd_cu_ptr checks_on_gpu(const struct checks *checks, uint64_t place)
{
	return checks->memory.at + place;
}

bool checks_upload(struct checks *checks)
{
	if (zd_gpu_write(&checks->gpu, checks->memory.at, checks->wanted, checks->used, &checks->err))
		return checks_fail(checks, "%s", checks->err.text);
	return true;
}

bool checks_download(struct checks *checks)
{
	if (zd_gpu_read(&checks->gpu, checks->found, checks->memory.at, checks->used, &checks->err))
		return checks_fail(checks, "%s", checks->err.text);
	return true;
}

bool checks_compare(struct checks *checks)
{
	if (memcmp(checks->wanted, checks->found, checks->used) == 0)
		return true;
	for (uint64_t i = 0; i < checks->used; i++)
		if (checks->wanted[i] != checks->found[i])
			return checks_fail(checks, "byte %llu of the image is 0x%02x, not 0x%02x",
			                   (unsigned long long)i, checks->found[i], checks->wanted[i]);
	return true;
}

/* ---- What is refused ----------------------------------------------------------------------------------- */

#define REFUSED(call, wanted, says)                                                                          \
	do {                                                                                                 \
		if ((call) != (wanted) || !strstr(checks->err.text, says))                                   \
			return checks_fail(checks, "%s: '%s'", #call, checks->err.text);                     \
	} while (0)

bool check_refusals(struct checks *checks)
{
	zd_cu_ptr at = checks->memory.at;
	zd_cu_ptr inputs[ZC_REDUCE_MOST_INPUTS + 1] = {at, at + 1};
	struct zc_conversion odd = {.from_dtype = ZEROD_FLOAT32,
	                            .to_dtype = ZEROD_BFLOAT16,
	                            .from = (const void *)at,
	                            .to = (void *)(at + 65),
	                            .numel = 1};
	struct zc_reduce reduce = {.input_dtype = ZEROD_FLOAT16,
	                           .target_dtype = ZEROD_FLOAT32,
	                           .ninputs = 2,
	                           .inputs = inputs,
	                           .target = at};
	struct zc_kernels none = {.failure = {.status = ZEROD_E_UNSUPPORTED, .text = "there are none"}};

#define CAST(kernels)     zc_kernels_cast(kernels, checks->gpu.stream, &odd, &checks->err)
#define REDUCE(k, result) zc_kernels_reduce(k, checks->gpu.stream, &reduce, result, &checks->err)
	REFUSED(CAST(&none), ZEROD_E_UNSUPPORTED, "there are none");
	REFUSED(CAST(&checks->kernels), ZEROD_E_INVALID, "target at");
	odd.from = (const void *)(at + 2);
	REFUSED(CAST(&checks->kernels), ZEROD_E_INVALID, "source at");
	REFUSED(REDUCE(&none, at), ZEROD_E_UNSUPPORTED, "there are none");
	REFUSED(REDUCE(&checks->kernels, at), ZEROD_E_INVALID, "input at");
	reduce.ninputs = 1;
	reduce.target = at + 2;
	REFUSED(REDUCE(&checks->kernels, at), ZEROD_E_INVALID, "target at");
	REFUSED(REDUCE(&checks->kernels, at + 4), ZEROD_E_INVALID, "result at");
	reduce.ninputs = ZC_REDUCE_MOST_INPUTS + 1;
	REFUSED(REDUCE(&checks->kernels, at), ZEROD_E_LIMIT, "not 65");
	reduce.ninputs = 0;
	REFUSED(REDUCE(&checks->kernels, at), ZEROD_E_LIMIT, "not 0");
	reduce.target_dtype = ZEROD_FLOAT8_E4M3;
	REFUSED(REDUCE(&checks->kernels, at), ZEROD_E_UNSUPPORTED, "float16 is not reduced to float8_e4m3");
	reduce.input_dtype = ZEROD_INT8;
	REFUSED(REDUCE(&checks->kernels, at), ZEROD_E_UNSUPPORTED, "int8 is not reduced to float8_e4m3");
	return true;
}

/* ---- All of it ----------------------------------------------------------------------------------------- */

static bool open_all(struct checks *checks)
{
	char name[32];

	*checks = (struct checks){.random = 0x9e3779b97f4a7c15ull};
	if (zd_gpu_open_ordinal(&checks->gpu, 0, &checks->err))
		return checks_fail(checks, "%s", checks->err.text);
	(void)snprintf(name, sizeof(name), "GPU %d", checks->gpu.ordinal);
	zc_kernels_load(checks->gpu.cuda, name, &checks->kernels);
	if (zc_kernels_check(&checks->kernels, &checks->err) ||
	    zd_gpu_memory_new(&checks->gpu, IMAGE_BYTES, 0, &checks->memory, &checks->err))
		return checks_fail(checks, "%s", checks->err.text);
	checks->wanted = zd_calloc(1, IMAGE_BYTES);
	checks->found = zd_calloc(1, IMAGE_BYTES);
	return true;
}

static void close_all(struct checks *checks)
{
	free(checks->wanted);
	free(checks->found);
	if (checks->memory.at)
		zd_gpu_memory_free(&checks->gpu, &checks->memory);
	zc_kernels_unload(&checks->kernels);
	zd_gpu_close(&checks->gpu);
}

static unsigned ntests, nfailed;

static void report(const struct checks *checks, bool good, const char *what, enum zerod_dtype from,
                   enum zerod_dtype to)
{
	ntests++;
	nfailed += !good;
	printf("%sok %u - %s", good ? "" : "not ", ntests, what);
	if (from)
		printf(" %s to %s", zerod_dtype_name(from), zerod_dtype_name(to));
	printf(good ? "\n" : "\n# %s\n", checks->why);
	(void)fflush(stdout);
}

static void run_all(struct checks *checks)
{
	for (enum zerod_dtype wide = ZEROD_FLOAT32; wide <= ZEROD_BFLOAT16; wide++) {
		for (enum zerod_dtype any = ZEROD_FLOAT32; any <= ZEROD_FLOAT8_E5M2; any++) {
			report(checks, check_reduce_pair(checks, any, wide), "sums of", any, wide);
			if (wide != any)
				report(checks, check_cast_pair(checks, wide, any), "casts of", wide, any);
		}
	}
	report(checks, check_reduce_lanes(checks), "sums on several streams", 0, 0);
	report(checks, check_updates(checks), "updates by an optimizer", 0, 0);
	report(checks, check_refusals(checks), "what is refused", 0, 0);
}

int main(int argc, char **argv)
{
	bool measures = argc == 2 && strcmp(argv[1], "--measure") == 0;
	struct checks checks;

	if (argc > 1 && !measures) {
		fprintf(stderr, "kernels [--measure]\n");
		return EXIT_FAILURE;
	}
	if (open_all(&checks)) {
		run_all(&checks);
		if (measures)
			report(&checks, measure_kernels(&checks), "bandwidths", 0, 0);
	} else {
		report(&checks, false, "kernels are loaded", 0, 0);
	}
	printf("1..%u\n", ntests);
	close_all(&checks);
	return nfailed ? EXIT_FAILURE : EXIT_SUCCESS;
}
