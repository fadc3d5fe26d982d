/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.cu - the kernels that libzerod runs on GPUs, in the trainer's context: casts, the sum of a
 * reduce-scatter, and an optimizer's update.
 *
 * All compute the same bits as the CPU: casts those of compute/cast.c, updates those of compute/update_cpu.c,
 * reductions those of daemon/executor/host/host_kernels.h, except for the order in which squares are added
 * (kernels.h). Every step therefore rounds separately: the intrinsics below are not contracted into fused
 * operations, and nvcc is told not to fuse (ptx.sh, Makefile).
 *
 * All are bound by memory. If all addresses allow it, a thread reads vectors of its input, of at most 16
 * bytes, and in a reduction several inputs at once. Otherwise, and at the end, it reads element by element.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "client/kernels/element.h"
#include "client/kernels/kernels.h"
#include "client/kernels/update.h"

#define WARP  32u
#define WARPS (ZC_THREADS / WARP)
#define BATCH 4u /* inputs that a thread loads at the same time */

static_assert(WARPS == WARP, "one warp adds the sums of all");
static_assert(ZC_REDUCE_PARTS <= ZC_THREADS, "one block adds the parts of all");

/* ---- Dtypes -------------------------------------------------------------------------------------------- */

/* Conversions of casts, including nans. */
struct float32 {
	typedef uint32_t bits;
	static __device__ float widen(bits from)
	{
		return zc_f32_from_bits(from);
	}
	static __device__ bits narrow(float from)
	{
		return zc_f32_bits(from);
	}
};

struct float16 {
	typedef uint16_t bits;
	static __device__ float widen(bits from)
	{
		return zc_f32_from_f16(from);
	}
	static __device__ bits narrow(float from)
	{
		return zc_f16_from_f32(from);
	}
};

struct bfloat16 {
	typedef uint16_t bits;
	static __device__ float widen(bits from)
	{
		return zc_f32_from_bf16(from);
	}
	static __device__ bits narrow(float from)
	{
		return zc_bf16_from_f32(from);
	}
};

struct float8_e4m3 {
	typedef uint8_t bits;
	static __device__ bits narrow(float from)
	{
		return zc_e4m3_from_f32(from);
	}
};

struct float8_e5m2 {
	typedef uint8_t bits;
	static __device__ bits narrow(float from)
	{
		return zc_e5m2_from_f32(from);
	}
};

/* N elements. In memory they are aligned to the smaller of their bytes and ZC_VECTOR_BYTES. */
template <typename Bits, unsigned N>
struct alignas(N * sizeof(Bits) < ZC_VECTOR_BYTES ? N * sizeof(Bits) : ZC_VECTOR_BYTES) pack {
	Bits each[N];
};

template <typename Dtype>
static constexpr unsigned PER_VECTOR = ZC_VECTOR_NUMEL(sizeof(typename Dtype::bits));

/* ---- Casts --------------------------------------------------------------------------------------------- */

template <typename From, typename To> static __device__ void cast(const zc_cast_args &args)
{
	constexpr unsigned N = PER_VECTOR<From>;
	const auto *from = reinterpret_cast<const typename From::bits *>(args.from);
	auto *to = reinterpret_cast<typename To::bits *>(args.to);
	const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
	const uint64_t thread = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
	const uint64_t vectors = args.vectors ? args.numel / N : 0;

	for (uint64_t i = thread; i < vectors; i += threads) {
		const auto wide = reinterpret_cast<const pack<typename From::bits, N> *>(from)[i];
		pack<typename To::bits, N> narrow;
#pragma unroll
		for (unsigned j = 0; j < N; j++)
			narrow.each[j] = To::narrow(From::widen(wide.each[j]));
		reinterpret_cast<pack<typename To::bits, N> *>(to)[i] = narrow;
	}
	for (uint64_t i = vectors * N + thread; i < args.numel; i += threads)
		to[i] = To::narrow(From::widen(from[i]));
}

#define CAST(From, To)                                                                                       \
	extern "C" __global__ void __launch_bounds__(ZC_THREADS)                                             \
	        zerod_cast_##From##_##To(const __grid_constant__ zc_cast_args args)                          \
	{                                                                                                    \
		cast<From, To>(args);                                                                        \
	}

CAST(float32, float16)
CAST(float32, bfloat16)
CAST(float32, float8_e4m3)
CAST(float32, float8_e5m2)
CAST(float16, float32)
CAST(float16, bfloat16)
CAST(float16, float8_e4m3)
CAST(float16, float8_e5m2)
CAST(bfloat16, float32)
CAST(bfloat16, float16)
CAST(bfloat16, float8_e4m3)
CAST(bfloat16, float8_e5m2)

/* ---- Reductions: the elements -------------------------------------------------------------------------- */

/* The statistics of one thread's elements, then of a block's, then of all. */
struct statistics {
	double sum_squares;
	bool overflow;
};

/* Conversions of reductions: the hardware's, which are shorter, and one nan, because the hardware's nan
 * differs. */
struct sum_float32 : float32 {
	static constexpr bits NAN_BITS = 0x7fc00000;
};

struct sum_float16 : float16 {
	static constexpr bits NAN_BITS = 0x7e00;
	static __device__ float widen(bits from)
	{
		return __half2float(__ushort_as_half(from));
	}
	static __device__ bits narrow(float from)
	{
		return __half_as_ushort(__float2half_rn(from));
	}
};

/* The float8s are only inputs. One shift makes them float16s, which the hardware widens. */
struct sum_float8_e4m3 : float8_e4m3 {
	static __device__ float widen(bits from)
	{
		const float number = __fmul_rn(__half2float(__ushort_as_half(zc_f16_of_e4m3(from))), 256.0f);

		return (from & 0x7fu) == 0x7fu ? zc_f32_from_bits(sum_float32::NAN_BITS) : number;
	}
};

struct sum_float8_e5m2 : float8_e5m2 {
	static __device__ float widen(bits from)
	{
		return __half2float(__ushort_as_half((unsigned short)(from << 8)));
	}
};

struct sum_bfloat16 : bfloat16 {
	static constexpr bits NAN_BITS = 0x7fc0;
	static __device__ bits narrow(float from)
	{
		return __bfloat16_as_ushort(__float2bfloat16_rn(from));
	}
};

template <typename Dtype> static __device__ typename Dtype::bits *elements(uint64_t at, uint64_t first)
{
	return reinterpret_cast<typename Dtype::bits *>(at) + first;
}

template <typename Input>
static __device__ float add_input(float acc, typename Input::bits input, const zc_reduce_args &args)
{
	return __fadd_rn(acc, __fmul_rn(Input::widen(input), args.prescale));
}

/* Returns the bits to store in place of `old` for the sum of all inputs, and adds them to the statistics. */
template <typename Target>
static __device__ typename Target::bits store_sum(float acc, typename Target::bits old,
                                                  const zc_reduce_args &args, statistics &found)
{
	acc = __fmul_rn(acc, args.postscale);
	if (!args.overwrite)
		acc = __fadd_rn(acc, Target::widen(old));
	const auto rounded = acc != acc ? Target::NAN_BITS : Target::narrow(acc);
	const float stored = Target::widen(rounded);

	/* The square of a float32 is exact in double: fused or not, the sum is rounded once. */
	found.sum_squares = __fma_rn(stored, stored, found.sum_squares);
	found.overflow |= (zc_f32_bits(stored) & ZC_F32_INF) == ZC_F32_INF;
	return rounded;
}

template <typename Input, typename Target>
static __device__ void reduce_element(const zc_reduce_args &args, uint64_t i, statistics &found)
{
	auto *target = elements<Target>(args.target, i);
	float acc = 0;

#pragma unroll 1
	for (uint32_t k = 0; k < args.ninputs; k++)
		acc = add_input<Input>(acc, *elements<Input>(args.inputs[k], i), args);
	*target = store_sum<Target>(acc, args.overwrite ? 0 : *target, args, found);
}

/* Sums element `first` and the later ones of its vector. The loads of a few inputs run at the same time. */
template <typename Input, typename Target>
static __device__ void reduce_vector(const zc_reduce_args &args, uint64_t first, statistics &found)
{
	constexpr unsigned N = PER_VECTOR<Input>;
	typedef pack<typename Input::bits, N> inputs;
	typedef pack<typename Target::bits, N> targets;
	auto *target = reinterpret_cast<targets *>(elements<Target>(args.target, first));
	targets stored = {};
	float acc[N] = {};

	if (!args.overwrite)
		stored = *target;
#pragma unroll 1
	for (uint32_t begin = 0; begin < args.ninputs; begin += BATCH) {
		const uint32_t count = min(args.ninputs - begin, BATCH);
		inputs batch[BATCH];
#pragma unroll
		for (uint32_t k = 0; k < BATCH; k++)
			if (k < count)
				batch[k] = *reinterpret_cast<const inputs *>(
				        elements<Input>(args.inputs[begin + k], first));
#pragma unroll
		for (uint32_t k = 0; k < BATCH; k++)
#pragma unroll
			for (unsigned j = 0; j < N; j++)
				if (k < count)
					acc[j] = add_input<Input>(acc[j], batch[k].each[j], args);
	}
#pragma unroll
	for (unsigned j = 0; j < N; j++)
		stored.each[j] = store_sum<Target>(acc[j], stored.each[j], args, found);
	*target = stored;
}

/* ---- Reductions: the sum of squares -------------------------------------------------------------------- */

/* Partial results of a reduction's blocks. The last block to finish adds them up. */
struct lane {
	double sum_squares[ZC_REDUCE_PARTS];
	unsigned overflow[ZC_REDUCE_PARTS];
	unsigned nready; /* blocks; 0 again when the last has finished */
};

static __device__ lane lanes[ZC_REDUCE_LANES];

/* The result is in the warp's first thread. */
static __device__ double warp_sum(double value)
{
#pragma unroll
	for (unsigned half = WARP / 2; half > 0; half /= 2)
		value = __dadd_rn(value, __shfl_down_sync(0xffffffffu, value, half));
	return value;
}

/* Functions with shared memory are not static: otherwise nvcc adds a hash to its name, and the PTX differs
 * between machines. */

/* All threads of the block call it. The result is in the first one. */
inline __device__ statistics block_sum(const statistics &mine)
{
	__shared__ double of_warp[WARPS];
	const double sum = warp_sum(mine.sum_squares);
	statistics of_block;

	if (threadIdx.x % WARP == 0)
		of_warp[threadIdx.x / WARP] = sum;
	of_block.overflow = __syncthreads_or(mine.overflow);
	of_block.sum_squares = threadIdx.x < WARP ? warp_sum(of_warp[threadIdx.x]) : 0;
	__syncthreads(); /* of_warp can be written again */
	return of_block;
}

/* Returns whether this is the last block to have stored its part: it then sees the parts of all. All threads
 * call it. */
inline __device__ bool leave_part(lane &lane, const statistics &part)
{
	__shared__ bool is_last;

	if (threadIdx.x == 0) {
		lane.sum_squares[blockIdx.x] = part.sum_squares;
		lane.overflow[blockIdx.x] = part.overflow;
		__threadfence();
		is_last = atomicInc(&lane.nready, gridDim.x - 1) == gridDim.x - 1;
		__threadfence();
	}
	__syncthreads();
	return is_last;
}

static __device__ void finish(const zc_reduce_args &args, const statistics &mine)
{
	lane &lane = lanes[args.lane];
	statistics all = {};

	if (!leave_part(lane, block_sum(mine)))
		return;
	if (threadIdx.x < gridDim.x) {
		all.sum_squares = __ldcg(&lane.sum_squares[threadIdx.x]);
		all.overflow = __ldcg(&lane.overflow[threadIdx.x]) != 0;
	}
	all = block_sum(all);
	if (threadIdx.x == 0) {
		auto *result = reinterpret_cast<zc_reduce_result *>(args.result);

		result->sum_squares = all.sum_squares;
		result->overflow = all.overflow;
	}
}

template <typename Input, typename Target> static __device__ void reduce(const zc_reduce_args &args)
{
	constexpr unsigned N = PER_VECTOR<Input>;
	const uint64_t step = (uint64_t)gridDim.x * ZC_THREADS * N;
	uint64_t first = ((uint64_t)blockIdx.x * ZC_THREADS + threadIdx.x) * N;
	statistics mine = {};

	for (; first < args.numel; first += step) {
		if (args.vectors && args.numel - first >= N) {
			reduce_vector<Input, Target>(args, first, mine);
			continue;
		}
		for (uint64_t i = first; i < first + N && i < args.numel; i++)
			reduce_element<Input, Target>(args, i, mine);
	}
	finish(args, mine);
}

#define REDUCE(Input, Target)                                                                                \
	extern "C" __global__ void __launch_bounds__(ZC_THREADS)                                             \
	        zerod_reduce_##Input##_##Target(const __grid_constant__ zc_reduce_args args)                 \
	{                                                                                                    \
		reduce<sum_##Input, sum_##Target>(args);                                                     \
	}

REDUCE(float32, float32)
REDUCE(float32, float16)
REDUCE(float32, bfloat16)
REDUCE(float16, float32)
REDUCE(float16, float16)
REDUCE(float16, bfloat16)
REDUCE(bfloat16, float32)
REDUCE(bfloat16, float16)
REDUCE(bfloat16, bfloat16)
REDUCE(float8_e4m3, float32)
REDUCE(float8_e4m3, float16)
REDUCE(float8_e4m3, bfloat16)
REDUCE(float8_e5m2, float32)
REDUCE(float8_e5m2, float16)
REDUCE(float8_e5m2, bfloat16)

/* ---- Updates by an optimizer --------------------------------------------------------------------------- */

/* N elements from `first` on, of an array that may be missing. */
template <typename Bits, unsigned N> static __device__ void load(Bits (&to)[N], uint64_t from, uint64_t first)
{
	constexpr unsigned EACH = ZC_VECTOR_BYTES / sizeof(Bits) < N ? ZC_VECTOR_BYTES / sizeof(Bits) : N;

	if (!from)
		return;
#pragma unroll
	for (unsigned i = 0; i < N; i += EACH)
		*reinterpret_cast<pack<Bits, EACH> *>(to + i) = *reinterpret_cast<const pack<Bits, EACH> *>(
		        reinterpret_cast<const Bits *>(from) + first + i);
}

template <typename Bits, unsigned N>
static __device__ void store(uint64_t to, uint64_t first, const Bits (&from)[N])
{
	constexpr unsigned EACH = ZC_VECTOR_BYTES / sizeof(Bits) < N ? ZC_VECTOR_BYTES / sizeof(Bits) : N;

	if (!to)
		return;
#pragma unroll
	for (unsigned i = 0; i < N; i += EACH)
		*reinterpret_cast<pack<Bits, EACH> *>(reinterpret_cast<Bits *>(to) + first + i) =
		        *reinterpret_cast<const pack<Bits, EACH> *>(from + i);
}

/* The masters of N elements: float32 shards, or two halves. */
struct whole_masters {
	template <unsigned N>
	static __device__ void load_all(float (&to)[N], const zc_update_args &args, uint64_t first)
	{
		load(to, args.shard, first);
	}
	template <unsigned N>
	static __device__ void store_all(const float (&from)[N], const zc_update_args &args, uint64_t first)
	{
		store(args.shard, first, from);
	}
};

struct split_masters {
	template <unsigned N>
	static __device__ void load_all(float (&to)[N], const zc_update_args &args, uint64_t first)
	{
		alignas(ZC_VECTOR_BYTES) uint16_t high[N], low[N];

		load(high, args.shard, first);
		load(low, args.low, first);
#pragma unroll
		for (unsigned i = 0; i < N; i++)
			to[i] = zc_master_join(high[i], low[i]);
	}
	template <unsigned N>
	static __device__ void store_all(const float (&from)[N], const zc_update_args &args, uint64_t first)
	{
		alignas(ZC_VECTOR_BYTES) uint16_t high[N], low[N];

#pragma unroll
		for (unsigned i = 0; i < N; i++) {
			high[i] = zc_master_high(from[i]);
			low[i] = zc_master_low(from[i]);
		}
		store(args.shard, first, high);
		store(args.low, first, low);
	}
};

struct adam {
	static __device__ zc_element_state update(const zc_element_state &at, float gradient,
	                                          const zc_update_args &args)
	{
		return zc_update_adam(at, gradient, &args.numbers);
	}
};

struct sgd {
	static __device__ zc_element_state update(const zc_element_state &at, float gradient,
	                                          const zc_update_args &args)
	{
		return zc_update_sgd(at, gradient, &args.numbers);
	}
};

/* The gradients of N elements: a sum's, or the sum of terms. */
struct of_sum {
	typedef zc_update_args arguments;
	template <unsigned N>
	static __device__ void load_all(float (&to)[N], const arguments &args, uint64_t first)
	{
		load(to, args.values, first);
	}
};

template <typename Input> struct of_terms {
	typedef zc_terms_args arguments;
	template <unsigned N>
	static __device__ void load_all(float (&to)[N], const arguments &args, uint64_t first)
	{
#pragma unroll
		for (unsigned i = 0; i < N; i++)
			to[i] = 0;
#pragma unroll 2
		for (unsigned term = 0; term < args.count; term++) {
			alignas(ZC_VECTOR_BYTES) typename Input::bits bits[N];

			load(bits, args.terms[term], first);
#pragma unroll
			for (unsigned i = 0; i < N; i++)
				to[i] = to[i] + Input::widen(bits[i]) * args.prescale;
		}
#pragma unroll
		for (unsigned i = 0; i < N; i++)
			to[i] = to[i] * args.postscale;
	}
};

static __device__ const zc_update_args &update_of(const zc_update_args &args)
{
	return args;
}

static __device__ const zc_update_args &update_of(const zc_terms_args &args)
{
	return args.update;
}

template <typename Masters, typename Rule, typename Gradients = of_sum> struct updating {
	float factor;

	__device__ bool begin(const zc_update_args &args)
	{
		factor = args.numbers.sign;
		if (args.scale)
			factor = factor * *reinterpret_cast<const float *>(args.scale);
		return !args.overflow || *reinterpret_cast<const float *>(args.overflow) == 0;
	}
	template <unsigned N>
	__device__ void run(const typename Gradients::arguments &all, uint64_t first) const
	{
		alignas(ZC_VECTOR_BYTES) float master[N], m[N] = {}, v[N] = {}, gradient[N];
		const zc_update_args &args = update_of(all);

		Gradients::load_all(gradient, all, first);
		Masters::load_all(master, args, first);
		load(m, args.m, first);
		load(v, args.v, first);
#pragma unroll
		for (unsigned i = 0; i < N; i++) {
			const zc_element_state at =
			        Rule::update({master[i], m[i], v[i]}, gradient[i] * factor, args);
			master[i] = at.master;
			m[i] = at.m;
			v[i] = at.v;
		}
		Masters::store_all(master, args, first);
		store(args.m, first, m);
		store(args.v, first, v);
	}
};

struct splitting {
	__device__ bool begin(const zc_update_args &)
	{
		return true;
	}
	template <unsigned N> __device__ void run(const zc_update_args &args, uint64_t first) const
	{
		alignas(ZC_VECTOR_BYTES) float master[N];

		load(master, args.values, first);
		split_masters::store_all(master, args, first);
	}
};

struct joining {
	__device__ bool begin(const zc_update_args &)
	{
		return true;
	}
	template <unsigned N> __device__ void run(const zc_update_args &args, uint64_t first) const
	{
		alignas(ZC_VECTOR_BYTES) float master[N];

		split_masters::load_all(master, args, first);
		store(args.values, first, master);
	}
};

template <typename Work, typename Args> static __device__ void update(const Args &all)
{
	constexpr unsigned N = ZC_UPDATE_NUMEL;
	const zc_update_args &args = update_of(all);
	const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
	const uint64_t thread = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
	const uint64_t vectors = args.vectors ? args.numel / N : 0;
	Work work;

	if (!work.begin(args))
		return;
	for (uint64_t i = thread; i < vectors; i += threads)
		work.template run<N>(all, i * N);
	for (uint64_t i = vectors * N + thread; i < args.numel; i += threads)
		work.template run<1>(all, i);
}

#define UPDATE(name, ...)                                                                                    \
	extern "C" __global__ void __launch_bounds__(ZC_UPDATE_THREADS)                                      \
	        zerod_##name(const __grid_constant__ zc_update_args args)                                    \
	{                                                                                                    \
		update<__VA_ARGS__>(args);                                                                   \
	}

UPDATE(adam_float32, updating<whole_masters, adam>)
UPDATE(adam_bfloat16, updating<split_masters, adam>)
UPDATE(sgd_float32, updating<whole_masters, sgd>)
UPDATE(sgd_bfloat16, updating<split_masters, sgd>)
UPDATE(split_bfloat16, splitting)
UPDATE(join_bfloat16, joining)

#define UPDATE_OF_TERMS(rule, shard, masters, dtype)                                                         \
	extern "C" __global__ void __launch_bounds__(ZC_UPDATE_THREADS)                                      \
	        zerod_##rule##_##shard##_of_##dtype(const __grid_constant__ zc_terms_args args)              \
	{                                                                                                    \
		update<updating<masters, rule, of_terms<dtype>>>(args);                                      \
	}

UPDATE_OF_TERMS(adam, float32, whole_masters, float32)
UPDATE_OF_TERMS(adam, float32, whole_masters, bfloat16)
UPDATE_OF_TERMS(adam, bfloat16, split_masters, float32)
UPDATE_OF_TERMS(adam, bfloat16, split_masters, bfloat16)
UPDATE_OF_TERMS(sgd, float32, whole_masters, float32)
UPDATE_OF_TERMS(sgd, float32, whole_masters, bfloat16)
UPDATE_OF_TERMS(sgd, bfloat16, split_masters, float32)
UPDATE_OF_TERMS(sgd, bfloat16, split_masters, bfloat16)
