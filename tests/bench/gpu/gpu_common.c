/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_common.c - processes, descriptors, pages, samples and the driver calls that every measuring program
 * makes.
 */
#include "gpu_common.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

const char *gpu_result_text(CUresult result)
{
	const char *text = NULL;

	(void)cuGetErrorName(result, &text);
	return text ? text : "unknown";
}

void gpu_must(CUresult result, const char *call, const char *file, int line)
{
	if (result == CUDA_SUCCESS)
		return;
	fprintf(stderr, "[%d] %s:%d: %s: %s\n", (int)getpid(), file, line, call, gpu_result_text(result));
	_exit(1);
}

long gpu_sys_must(long result, const char *call, const char *file, int line)
{
	if (result != -1)
		return result;
	fprintf(stderr, "[%d] %s:%d: %s: %s\n", (int)getpid(), file, line, call, strerror(errno));
	_exit(1);
}

double gpu_now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

void gpu_sleep_us(double us)
{
	usleep((useconds_t)us);
}

uint64_t gpu_random(uint64_t *seed)
{
	uint64_t x = *seed += 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static void count_main(int sock, void *arg)
{
	int count = 0;

	(void)arg;
	GPU_MUST(cuInit(0));
	GPU_MUST(cuDeviceGetCount(&count));
	gpu_put(sock, &count, sizeof(count));
}

int gpu_count(void)
{
	struct gpu_child child = gpu_child_start(count_main, NULL);
	int count = 0;

	gpu_get(child.sock, &count, sizeof(count));
	gpu_child_wait(&child);
	return count < GPU_DEVICES_MAX ? count : GPU_DEVICES_MAX;
}

void gpu_open(int device)
{
	CUcontext context;
	CUdevice handle;

	GPU_MUST(cuInit(0));
	GPU_MUST(cuDeviceGet(&handle, device));
	GPU_MUST(cuDevicePrimaryCtxRetain(&context, handle));
	GPU_MUST(cuCtxSetCurrent(context));
}

CUstream gpu_stream(bool high_priority)
{
	CUstream stream;
	int least, greatest;

	GPU_MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
	GPU_MUST(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING,
	                                    high_priority ? greatest : least));
	return stream;
}

CUfunction gpu_kernel(const char *name)
{
	char path[4096];
	ssize_t length = SYS_MUST(readlink("/proc/self/exe", path, sizeof(path) - 32));
	CUfunction function;
	CUmodule module;

	path[length] = '\0';
	strcpy(strrchr(path, '/') + 1, "gpu_kernels.cubin");
	GPU_MUST(cuModuleLoad(&module, path));
	GPU_MUST(cuModuleGetFunction(&function, module, name));
	return function;
}

CUmemGenericAllocationHandle gpu_memory_new(int device, size_t bytes)
{
	CUmemAllocationProp prop = {
	        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
	        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
	};
	CUmemGenericAllocationHandle handle;

	GPU_MUST(cuMemCreate(&handle, bytes, &prop, 0));
	return handle;
}

void gpu_access(CUdeviceptr at, size_t bytes, int device, int devices)
{
	CUmemAccessDesc access[GPU_DEVICES_MAX];
	int count = devices ? devices : 1;

	for (int i = 0; i < count; i++) {
		access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		access[i].location.id = devices ? i : device;
		access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	}
	GPU_MUST(cuMemSetAccess(at, bytes, access, (size_t)count));
}

static void segment_map(struct gpu_segment *segment, int devices)
{
	GPU_MUST(cuMemAddressReserve(&segment->at, segment->bytes, 0, 0, 0));
	GPU_MUST(cuMemMap(segment->at, segment->bytes, 0, segment->handle, 0));
	gpu_access(segment->at, segment->bytes, segment->device, devices);
}

struct gpu_segment gpu_segment_new(int device, size_t bytes, int devices)
{
	struct gpu_segment segment = {gpu_memory_new(device, bytes), 0, bytes, device};

	segment_map(&segment, devices);
	return segment;
}

struct gpu_segment gpu_segment_import(int fd, int device, size_t bytes, int devices)
{
	struct gpu_segment segment = {0, 0, bytes, device};

	GPU_MUST(cuMemImportFromShareableHandle(&segment.handle, (void *)(intptr_t)fd,
	                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	segment_map(&segment, devices);
	return segment;
}

int gpu_segment_export(const struct gpu_segment *segment)
{
	int fd = -1;

	GPU_MUST(cuMemExportToShareableHandle(&fd, segment->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                                      0));
	return fd;
}

size_t gpu_words_wrong(CUdeviceptr at, size_t bytes, uint32_t word)
{
	uint32_t *copy = malloc(bytes);
	size_t wrong = 0;

	SYS_MUST(copy ? 0 : -1);
	GPU_MUST(cuMemcpyDtoH(copy, at, bytes));
	for (size_t i = 0; i < bytes / sizeof(word); i++)
		wrong += copy[i] != word;
	free(copy);
	return wrong;
}

int gpu_page_new(size_t bytes)
{
	int fd = (int)SYS_MUST(memfd_create("fences", MFD_CLOEXEC));

	SYS_MUST(ftruncate(fd, (off_t)bytes));
	return fd;
}

struct gpu_page gpu_page_map(int fd, size_t bytes)
{
	struct gpu_page page;
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	SYS_MUST(at == MAP_FAILED ? -1 : 0);
	GPU_MUST(cuMemHostRegister(at, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
	GPU_MUST(cuMemHostGetDevicePointer(&page.device, at, 0));
	page.host = at;
	return page;
}

#define CHILDREN_MAX 64

/* A later child must not hold an earlier child's socket open: each would wait for the other's end. */
static int parent_end[CHILDREN_MAX];
static size_t parent_ends;

struct gpu_child gpu_child_start(void (*child_main)(int sock, void *arg), void *arg)
{
	struct gpu_child child;
	int pair[2];

	SYS_MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
	fflush(NULL);
	child.pid = (pid_t)SYS_MUST(fork());
	if (child.pid == 0) {
		/* A load that outlived a failed measurement would be in all later ones. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pair[0]);
		for (size_t i = 0; i < parent_ends; i++)
			close(parent_end[i]);
		child_main(pair[1], arg);
		fflush(NULL);
		_exit(0);
	}
	close(pair[1]);
	child.sock = pair[0];
	if (parent_ends < CHILDREN_MAX)
		parent_end[parent_ends++] = child.sock;
	return child;
}

int gpu_child_wait(struct gpu_child *child)
{
	int status = 0;

	for (size_t i = 0; i < parent_ends; i++)
		if (parent_end[i] == child->sock)
			parent_end[i--] = parent_end[--parent_ends];
	close(child->sock);
	SYS_MUST(waitpid(child->pid, &status, 0));
	return status;
}

int gpu_child_kill(struct gpu_child *child)
{
	SYS_MUST(kill(child->pid, SIGKILL));
	return gpu_child_wait(child);
}

void gpu_put(int sock, const void *data, size_t bytes)
{
	SYS_MUST(send(sock, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes ? 0 : -1);
}

void gpu_get(int sock, void *data, size_t bytes)
{
	ssize_t got = recv(sock, data, bytes, MSG_WAITALL);

	if (got == (ssize_t)bytes)
		return;
	fprintf(stderr, "[%d] the other process ended early\n", (int)getpid());
	_exit(1);
}

void gpu_put_fd(int sock, int fd)
{
	char byte = 0;
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_iov = &data,
	                         .msg_iovlen = 1,
	                         .msg_control = &control,
	                         .msg_controllen = sizeof(control)};
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);

	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &fd, sizeof(fd));
	SYS_MUST(sendmsg(sock, &message, MSG_NOSIGNAL));
}

int gpu_get_fd(int sock)
{
	char byte;
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_iov = &data,
	                         .msg_iovlen = 1,
	                         .msg_control = &control,
	                         .msg_controllen = sizeof(control)};
	int fd;

	SYS_MUST(recvmsg(sock, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message) ? 0 : -1);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

void gpu_samples_add(struct gpu_samples *samples, double value)
{
	if (samples->count == samples->room) {
		samples->room = samples->room ? samples->room * 2 : 64;
		samples->values = realloc(samples->values, samples->room * sizeof(double));
		SYS_MUST(samples->values ? 0 : -1);
	}
	samples->values[samples->count++] = value;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double gpu_samples_at(struct gpu_samples *samples, double quantile)
{
	if (!samples->count)
		return 0;
	qsort(samples->values, samples->count, sizeof(double), by_value);
	return samples->values[(size_t)(quantile * (double)(samples->count - 1))];
}

void gpu_samples_print(const char *name, struct gpu_samples *samples)
{
	printf("%s: median %.1f min %.1f p99 %.1f max %.1f us (n=%zu)\n", name, gpu_samples_at(samples, 0.5),
	       gpu_samples_at(samples, 0), gpu_samples_at(samples, 0.99), gpu_samples_at(samples, 1),
	       samples->count);
}

void gpu_samples_free(struct gpu_samples *samples)
{
	free(samples->values);
	*samples = (struct gpu_samples){0};
}
