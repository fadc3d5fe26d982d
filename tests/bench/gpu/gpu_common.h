/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_common.h - what the measuring programs for GPUs share: segments and their descriptors, child processes
 * with a socket, pages of fences, samples and how they are printed, NVML, and a load of matrix products.
 *
 * The programs measure the driver, not zerod. A call that fails ends the program with the call's text, except
 * where its failure is what is measured. A process must not fork once it has called CUDA: main() only starts
 * children and talks to them.
 */
#ifndef ZEROD_BENCH_GPU_COMMON_H
#define ZEROD_BENCH_GPU_COMMON_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

#define GPU_DEVICES_MAX 8

/* Ends the program when a driver call, or a call of libc that gives -1, fails. */
#define GPU_MUST(call) gpu_must((call), #call, __FILE__, __LINE__)
#define SYS_MUST(call) gpu_sys_must((call), #call, __FILE__, __LINE__)

void gpu_must(CUresult result, const char *call, const char *file, int line);
long gpu_sys_must(long result, const char *call, const char *file, int line);
const char *gpu_result_text(CUresult result);

double gpu_now_us(void);
void gpu_sleep_us(double us);
uint64_t gpu_random(uint64_t *seed);

/* How many GPUs there are, asked in a child so that the caller may still fork. */
int gpu_count(void);
/* The primary context of a device, made current. */
void gpu_open(int device);
CUstream gpu_stream(bool high_priority);
/* A kernel of gpu_kernels.cubin, which lies beside the program. */
CUfunction gpu_kernel(const char *name);

/* A segment: one physical allocation, mapped whole. device is where the memory is. */
struct gpu_segment {
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	size_t bytes;
	int device;
};

/* Made and mapped with access from devices 0..devices-1, or from `device` alone when devices is 0. */
struct gpu_segment gpu_segment_new(int device, size_t bytes, int devices);
struct gpu_segment gpu_segment_import(int fd, int device, size_t bytes, int devices);
int gpu_segment_export(const struct gpu_segment *segment);
void gpu_access(CUdeviceptr at, size_t bytes, int device, int devices);
/* The allocation alone, without a mapping. */
CUmemGenericAllocationHandle gpu_memory_new(int device, size_t bytes);
/* 32-bit words of the segment that differ from `word`. */
size_t gpu_words_wrong(CUdeviceptr at, size_t bytes, uint32_t word);

/* A page of 64-bit fences shared by all children (a memfd made before they start), and its address on the
 * GPU. */
struct gpu_page {
	volatile uint64_t *host;
	CUdeviceptr device;
};

int gpu_page_new(size_t bytes);
struct gpu_page gpu_page_map(int fd, size_t bytes);

/* A child process with a socket to its parent. The child's main gets its end; it returns to end the
 * process. */
struct gpu_child {
	pid_t pid;
	int sock;
};

struct gpu_child gpu_child_start(void (*child_main)(int sock, void *arg), void *arg);
/* Waits for the child's end; gives its wait status. */
int gpu_child_wait(struct gpu_child *child);
int gpu_child_kill(struct gpu_child *child);

void gpu_put(int sock, const void *data, size_t bytes);
void gpu_get(int sock, void *data, size_t bytes);
void gpu_put_fd(int sock, int fd);
int gpu_get_fd(int sock);

/* Times in microseconds, and the line that shows them. */
struct gpu_samples {
	double *values;
	size_t count;
	size_t room;
};

void gpu_samples_add(struct gpu_samples *samples, double value);
double gpu_samples_at(struct gpu_samples *samples, double quantile);
/* "name: median 12.3 min 1.0 p99 20.0 max 30.0 us (n=100)" */
void gpu_samples_print(const char *name, struct gpu_samples *samples);
void gpu_samples_free(struct gpu_samples *samples);

/* NVML, loaded at run time; a process that asks it keeps the device open. */
struct gpu_nvml;
struct gpu_nvml *gpu_nvml_open(int device);
bool gpu_nvml_lists(struct gpu_nvml *nvml, pid_t pid);
unsigned gpu_nvml_processes(struct gpu_nvml *nvml);
double gpu_nvml_used_mib(struct gpu_nvml *nvml);
int gpu_nvml_persistence(struct gpu_nvml *nvml);

/* bf16 matrix products of side `side` on a stream of their own, in the current context. */
struct gpu_load;
struct gpu_load *gpu_load_new(int side);
void gpu_load_queue(struct gpu_load *load, int products);
void gpu_load_finish(struct gpu_load *load);

#endif
