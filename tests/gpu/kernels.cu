/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.cu - what the stress runs on GPUs: fills shards with known contents, compares gathered buffers with
 * them, and delays a stream. Arguments are 64-bit numbers, all of them. packaging/ptx.sh makes kernels.ptx
 * of it; kernels_double.c does the same on the CPU, for the driver's double.
 *
 * Word i of a unit is a hash of (seed, i) in its first true_bytes, and zero behind them.
 */
typedef unsigned long long u64;

static __device__ u64 mix(u64 value)
{
	value = (value ^ value >> 33) * 0xff51afd7ed558ccdull;
	value = (value ^ value >> 33) * 0xc4ceb9fe1a85ec53ull;
	return value ^ value >> 33;
}

static __device__ u64 word(u64 seed, u64 index, u64 true_bytes)
{
	u64 value = mix(seed ^ mix(index + 1));
	u64 first = index * 8;

	if (first >= true_bytes)
		return 0;
	return true_bytes - first >= 8 ? value : value & ((1ull << (true_bytes - first) * 8) - 1);
}

extern "C" __global__ void stress_fill(u64 *words, u64 first, u64 count, u64 true_bytes, u64 seed)
{
	for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x)
		words[i] = word(seed, first + i, true_bytes);
}

/* found[0] counts the words that are wrong, found[1] holds the highest ~index of them, found[2] what the last
 * one holds. */
extern "C" __global__ void stress_compare(const u64 *words, u64 count, u64 true_bytes, u64 seed, u64 *found)
{
	for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count;
	     i += (u64)gridDim.x * blockDim.x) {
		u64 value = words[i];

		if (value == word(seed, i, true_bytes))
			continue;
		atomicAdd(&found[0], 1ull);
		atomicMax(&found[1], ~i);
		found[2] = value;
	}
}

/* Ends when so much time has passed. */
extern "C" __global__ void stress_delay(u64 ns)
{
	u64 begin, now;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
	do {
		__nanosleep(1000);
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	} while (now - begin < ns);
}
