/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_kernels.cu - the kernels of the measuring programs, loaded from gpu_kernels.cubin by name.
 *
 * Blocks of data carry one 64-bit tag in every word. `stale` counts words that do not carry the tag that was
 * announced.
 */
typedef unsigned long long u64;

/* Adds one; the smallest kernel whose completion can be seen. */
extern "C" __global__ void touch(u64 *counter)
{
	atomicAdd(counter, 1ull);
}

/* Spins until *gate is not zero, or for `cycles` at most; holds one multiprocessor. */
extern "C" __global__ void hold(volatile u64 *gate, long long cycles)
{
	long long begin = clock64();

	while (!*gate && clock64() - begin < cycles)
		;
}

/* Every word of a block must be `tag`. */
extern "C" __global__ void check(const volatile u64 *block, unsigned words, u64 tag, u64 *stale)
{
	for (unsigned i = threadIdx.x; i < words; i += blockDim.x)
		if (block[i] != tag)
			atomicAdd(stale, 1ull);
}

/*
 * One thread block a channel. Round r (from 1) is in slot r % slots, carries tag r % tags, and is announced
 * by the channel's flag reaching r; the kernel answers each round in ack. Ends after `rounds`, or when *stop
 * is set.
 */
extern "C" __global__ void watch(const u64 *data, unsigned words, unsigned slots, unsigned tags, u64 rounds,
                                 volatile u64 *flags, volatile u64 *acks, volatile u64 *stop, u64 *stale)
{
	const volatile u64 *mine = data + (u64)blockIdx.x * slots * words;
	volatile u64 *flag = flags + blockIdx.x * 8;
	volatile u64 *ack = acks + blockIdx.x * 8;
	__shared__ u64 seen;

	for (u64 round = 1; round <= rounds;) {
		if (threadIdx.x == 0) {
			u64 value = *flag;

			while (value < round && !*stop)
				value = *flag;
			/* Rounds that the pusher announced before the stop are checked too. */
			if (value < round)
				value = *flag;
			__threadfence_system();
			seen = value;
		}
		__syncthreads();
		u64 last = seen;

		if (last < round)
			return;
		for (; round <= last; round++)
			for (unsigned i = threadIdx.x; i < words; i += blockDim.x)
				if (mine[(round % slots) * words + i] != round % tags)
					atomicAdd(stale, 1ull);
		__syncthreads();
		if (threadIdx.x == 0)
			*ack = last;
	}
}
