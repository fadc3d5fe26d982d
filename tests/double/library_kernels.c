/* SPDX-License-Identifier: Apache-2.0 */
/*
 * library_kernels.c - the kernels of client/kernels/kernels.cu on the CPU: element by element with the same
 * arithmetic, and squares in the order that client/kernels/kernels.h says. Vectors at addresses that are not
 * aligned for them are illegal.
 */
#include <stdlib.h>
#include <string.h>

#include <zerod.h>

#include "base/mem.h"
#include "client/kernels/element.h"
#include "client/kernels/kernels.h"
#include "tests/double/kernel.h"

#define WARP 32u

static size_t element_bytes(enum zerod_dtype dtype)
{
	if (dtype == ZEROD_FLOAT8_E4M3 || dtype == ZEROD_FLOAT8_E5M2)
		return 1;
	return dtype == ZEROD_FLOAT32 ? 4 : 2;
}

/* So many elements of a dtype, in one piece from an address on; fewer if the piece ends before. */
struct span {
	enum zerod_dtype dtype;
	uint8_t *at;
	uint64_t numel;
};

static bool reach_span(struct double_reach *reach, uint64_t address, uint64_t first, struct span *span)
{
	size_t each = element_bytes(span->dtype), bytes = span->numel * each;

	span->at = reach->at(reach, address + first * each, &bytes);
	span->numel = bytes / each;
	return span->at && span->numel > 0;
}

static bool is_legal(uint64_t addresses, uint32_t vectors)
{
	return !vectors || addresses % ZC_VECTOR_BYTES == 0;
}

static float read_element(const struct span *span, uint64_t i)
{
	uint16_t half;
	float value;

	if (span->dtype == ZEROD_FLOAT8_E4M3)
		return zc_f32_from_e4m3(span->at[i]);
	if (span->dtype == ZEROD_FLOAT8_E5M2)
		return zc_f32_from_e5m2(span->at[i]);
	if (span->dtype == ZEROD_FLOAT32) {
		memcpy(&value, span->at + i * sizeof(value), sizeof(value));
		return value;
	}
	memcpy(&half, span->at + i * sizeof(half), sizeof(half));
	return span->dtype == ZEROD_FLOAT16 ? zc_f32_from_f16(half) : zc_f32_from_bf16(half);
}

static void write_element(const struct span *span, uint64_t i, float value)
{
	uint16_t half = span->dtype == ZEROD_FLOAT16 ? zc_f16_from_f32(value) : zc_bf16_from_f32(value);

	if (span->dtype == ZEROD_FLOAT32)
		memcpy(span->at + i * sizeof(value), &value, sizeof(value));
	else if (span->dtype == ZEROD_FLOAT8_E4M3)
		span->at[i] = zc_e4m3_from_f32(value);
	else if (span->dtype == ZEROD_FLOAT8_E5M2)
		span->at[i] = zc_e5m2_from_f32(value);
	else
		memcpy(span->at + i * sizeof(half), &half, sizeof(half));
}

/* ---- Casts --------------------------------------------------------------------------------------------- */

static bool cast(struct double_reach *reach, const struct zc_cast_args *args, enum zerod_dtype from_dtype,
                 enum zerod_dtype to_dtype)
{
	uint64_t done = 0;

	if (!is_legal(args->from | args->to, args->vectors))
		return false;
	while (done < args->numel) {
		struct span from = {.dtype = from_dtype, .numel = args->numel - done};
		struct span to = {.dtype = to_dtype, .numel = args->numel - done};
		uint64_t numel;

		if (!reach_span(reach, args->from, done, &from) || !reach_span(reach, args->to, done, &to))
			return false;
		numel = zd_min_u64(from.numel, to.numel);
		for (uint64_t i = 0; i < numel; i++)
			write_element(&to, i, read_element(&from, i));
		done += numel;
	}
	return true;
}

/* ---- Reductions ---------------------------------------------------------------------------------------- */

/* Parts without an element, whose sums are zeros, are left out. */
struct statistics {
	bool overflow;
	unsigned nparts;
	double squares[][ZC_THREADS];
};

struct reduction {
	const struct zc_reduce_args *args;
	enum zerod_dtype input_dtype, target_dtype;
	struct span inputs[ZC_REDUCE_MOST_INPUTS], target; /* of the piece that is at hand */
	struct statistics *found;
};

static float sum_element(const struct reduction *reduction, uint64_t i)
{
	const struct zc_reduce_args *args = reduction->args;
	float acc = 0;

	for (uint32_t k = 0; k < args->ninputs; k++) {
		float scaled = read_element(&reduction->inputs[k], i) * args->prescale;

		acc = acc + scaled;
	}
	acc = acc * args->postscale;
	if (!args->overwrite)
		acc = acc + read_element(&reduction->target, i);
	return acc != acc ? zc_f32_from_bits(0x7fc00000) : acc;
}

/* Adds the value that was stored as element `index` to the statistics. */
static void count(const struct reduction *reduction, uint64_t index, float stored)
{
	uint64_t vector = index / ZC_VECTOR_NUMEL(element_bytes(reduction->input_dtype));
	uint64_t part = vector / ZC_THREADS % ZC_REDUCE_PARTS;

	reduction->found->squares[part][vector % ZC_THREADS] += (double)stored * stored;
	reduction->found->overflow |= (zc_f32_bits(stored) & ZC_F32_INF) == ZC_F32_INF;
}

/* As many as can be reached at once, from element `first` on; 0 if there is no memory. */
static uint64_t reach_piece(struct double_reach *reach, struct reduction *reduction, uint64_t first)
{
	const struct zc_reduce_args *args = reduction->args;
	uint64_t numel = args->numel - first;

	for (uint32_t k = 0; k < args->ninputs; k++) {
		struct span *input = &reduction->inputs[k];

		*input = (struct span){.dtype = reduction->input_dtype, .numel = numel};
		if (!is_legal(args->inputs[k], args->vectors) ||
		    !reach_span(reach, args->inputs[k], first, input))
			return 0;
		numel = input->numel;
	}
	reduction->target = (struct span){.dtype = reduction->target_dtype, .numel = numel};
	if (!is_legal(args->target, args->vectors) ||
	    !reach_span(reach, args->target, first, &reduction->target))
		return 0;
	return reduction->target.numel;
}

static double fold(double *values, unsigned count)
{
	for (unsigned half = count / 2; half > 0; half /= 2)
		for (unsigned i = 0; i < half; i++)
			values[i] += values[i + half];
	return values[0];
}

static double block_sum(double *values)
{
	double of_warp[WARP];

	for (unsigned i = 0; i < WARP; i++)
		of_warp[i] = fold(values + (size_t)i * WARP, WARP);
	return fold(of_warp, WARP);
}

static bool write_result(struct double_reach *reach, uint64_t address, struct statistics *found)
{
	struct zc_reduce_result result = {.overflow = found->overflow};
	size_t bytes = sizeof(result);
	void *at = reach->at(reach, address, &bytes);
	double parts[ZC_THREADS] = {0};

	for (unsigned i = 0; i < found->nparts; i++)
		parts[i] = block_sum(found->squares[i]);
	result.sum_squares = block_sum(parts);
	if (!at || bytes < sizeof(result))
		return false;
	memcpy(at, &result, sizeof(result));
	return true;
}

static struct statistics *new_statistics(uint64_t numel, enum zerod_dtype input)
{
	uint64_t chunk = (uint64_t)ZC_VECTOR_NUMEL(element_bytes(input)) * ZC_THREADS;
	unsigned nparts = (unsigned)zd_min_u64(numel / chunk + 1, ZC_REDUCE_PARTS);
	struct statistics *made = calloc(1, sizeof(*made) + nparts * sizeof(made->squares[0]));

	if (made)
		made->nparts = nparts;
	return made;
}

static bool reduce(struct double_reach *reach, const struct zc_reduce_args *args, enum zerod_dtype input,
                   enum zerod_dtype target)
{
	struct reduction reduction = {.args = args, .input_dtype = input, .target_dtype = target};
	uint64_t first = 0, numel = 1;
	bool legal;

	reduction.found = new_statistics(args->numel, input);
	for (; first < args->numel && numel > 0 && reduction.found; first += numel) {
		numel = reach_piece(reach, &reduction, first);
		for (uint64_t i = 0; i < numel; i++) {
			write_element(&reduction.target, i, sum_element(&reduction, i));
			count(&reduction, first + i, read_element(&reduction.target, i));
		}
	}
	legal = reduction.found && numel > 0 && write_result(reach, args->result, reduction.found);
	free(reduction.found);
	return legal;
}

/* ---- By name ------------------------------------------------------------------------------------------- */

#define PAIRS(F, what)                                                                                       \
	F(what, float32, FLOAT32, float16, FLOAT16)                                                          \
	F(what, float32, FLOAT32, bfloat16, BFLOAT16)                                                        \
	F(what, float16, FLOAT16, float32, FLOAT32)                                                          \
	F(what, float16, FLOAT16, bfloat16, BFLOAT16)                                                        \
	F(what, bfloat16, BFLOAT16, float32, FLOAT32)                                                        \
	F(what, bfloat16, BFLOAT16, float16, FLOAT16)
#define KERNELS(F)                                                                                           \
	PAIRS(F, cast)                                                                                       \
	F(cast, float32, FLOAT32, float8_e4m3, FLOAT8_E4M3)                                                  \
	F(cast, float32, FLOAT32, float8_e5m2, FLOAT8_E5M2)                                                  \
	F(cast, float16, FLOAT16, float8_e4m3, FLOAT8_E4M3)                                                  \
	F(cast, float16, FLOAT16, float8_e5m2, FLOAT8_E5M2)                                                  \
	F(cast, bfloat16, BFLOAT16, float8_e4m3, FLOAT8_E4M3)                                                \
	F(cast, bfloat16, BFLOAT16, float8_e5m2, FLOAT8_E5M2)                                                \
	PAIRS(F, reduce)                                                                                     \
	F(reduce, float32, FLOAT32, float32, FLOAT32)                                                        \
	F(reduce, float16, FLOAT16, float16, FLOAT16)                                                        \
	F(reduce, bfloat16, BFLOAT16, bfloat16, BFLOAT16)                                                    \
	F(reduce, float8_e4m3, FLOAT8_E4M3, float32, FLOAT32)                                                \
	F(reduce, float8_e4m3, FLOAT8_E4M3, float16, FLOAT16)                                                \
	F(reduce, float8_e4m3, FLOAT8_E4M3, bfloat16, BFLOAT16)                                              \
	F(reduce, float8_e5m2, FLOAT8_E5M2, float32, FLOAT32)                                                \
	F(reduce, float8_e5m2, FLOAT8_E5M2, float16, FLOAT16)                                                \
	F(reduce, float8_e5m2, FLOAT8_E5M2, bfloat16, BFLOAT16)

#define RUN(what, from, FROM, to, TO)                                                                        \
	static bool what##_##from##_##to(struct double_reach *reach, const uint64_t *args)                   \
	{                                                                                                    \
		return what(reach, (const struct zc_##what##_args *)(const void *)args, ZEROD_##FROM,        \
		            ZEROD_##TO);                                                                     \
	}
KERNELS(RUN)

const struct double_kernel *double_library_kernel(const char *name)
{
	static const struct {
		const char *name;
		struct double_kernel kernel;
	} kernels[] = {
#define ROW(what, from, FROM, to, TO)                                                                        \
	{"zerod_" #what "_" #from "_" #to,                                                                   \
	 {.nargs = 1, .run = what##_##from##_##to, .arg_bytes = sizeof(struct zc_##what##_args)}},
	        KERNELS(ROW)
#undef ROW
	};

	for (size_t i = 0; i < ZD_ARRAY_LEN(kernels); i++)
		if (strcmp(kernels[i].name, name) == 0)
			return &kernels[i].kernel;
	return double_update_kernel(name);
}
