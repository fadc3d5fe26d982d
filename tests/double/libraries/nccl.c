/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl.c - a double of NCCL, as far as zerobench calls it: an all-gather between processes, by way of a file in shared
 * memory that the unique id names. It is done when the call returns, which the real one's is not. With ZD_DOUBLE_NCCL_IDLE in
 * the environment it moves nothing and says nothing of it.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define PAGE   ((size_t)4096)

enum { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4 };

struct id {
	char name[128];
};

struct header {
	_Atomic uint32_t arrived, passed;
};

struct driver {
	int (*read)(void *dst, uint64_t src, size_t bytes, void *stream);
	int (*write)(uint64_t dst, const void *src, size_t bytes, void *stream);
	int (*synchronize)(void *stream);
};

struct comm {
	struct driver driver;
	struct header *header;
	int fd;
	int nranks, rank;
};

EXPORT int ncclGetVersion(int *version);
EXPORT int ncclGetUniqueId(struct id *id);
EXPORT int ncclCommInitRank(struct comm **comm, int nranks, struct id id, int rank);
EXPORT int ncclCommDestroy(struct comm *comm);
EXPORT int ncclAllGather(uint64_t send, uint64_t receive, size_t count, int dtype, struct comm *comm,
                         void *stream);
EXPORT const char *ncclGetErrorString(int result);
EXPORT const char *ncclGetLastError(struct comm *comm);

int ncclGetVersion(int *version)
{
	*version = 10203;
	return SUCCESS;
}

const char *ncclGetErrorString(int result)
{
	return result == UNHANDLED_CUDA_ERROR ? "unhandled cuda error"
	       : result == SYSTEM_ERROR       ? "unhandled system error"
	                                      : "invalid argument";
}

const char *ncclGetLastError(struct comm *comm)
{
	(void)comm;
	return "a double says no more";
}

int ncclGetUniqueId(struct id *id)
{
	(void)snprintf(id->name, sizeof(id->name), "/zerod-nccl-%d", (int)getpid());
	return SUCCESS;
}

static void meet(const struct comm *comm)
{
	struct header *header = comm->header;
	const uint32_t passed = atomic_load(&header->passed);

	if (atomic_fetch_add(&header->arrived, 1) + 1 == (uint32_t)comm->nranks) {
		atomic_store(&header->arrived, 0);
		atomic_fetch_add(&header->passed, 1);
		return;
	}
	while (atomic_load(&header->passed) == passed)
		(void)sched_yield();
}

static void *find(void *library, const char *name)
{
	return library ? dlsym(library, name) : NULL;
}

static int find_driver(struct driver *driver)
{
	void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	void *functions[] = {find(library, "cuMemcpyDtoHAsync"), find(library, "cuMemcpyHtoDAsync"),
	                     find(library, "cuStreamSynchronize")};

	memcpy(driver, functions, sizeof(*driver));
	return functions[0] && functions[1] && functions[2];
}

int ncclCommInitRank(struct comm **comm, int nranks, struct id id, int rank)
{
	struct comm *made = calloc(1, sizeof(*made));

	if (!made || !find_driver(&made->driver)) {
		free(made);
		return UNHANDLED_CUDA_ERROR;
	}
	made->nranks = nranks;
	made->rank = rank;
	made->fd = shm_open(id.name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (made->fd < 0 || ftruncate(made->fd, (off_t)PAGE)) {
		free(made);
		return SYSTEM_ERROR;
	}
	made->header = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, made->fd, 0);
	if (made->header == MAP_FAILED) {
		free(made);
		return SYSTEM_ERROR;
	}
	meet(made);
	if (rank == 0)
		(void)shm_unlink(id.name);
	*comm = made;
	return SUCCESS;
}

int ncclCommDestroy(struct comm *comm)
{
	(void)munmap(comm->header, PAGE);
	(void)close(comm->fd);
	free(comm);
	return SUCCESS;
}

/* Through the file, which each rank makes as long as it must be. */
static int exchange(const struct comm *comm, uint64_t send, uint64_t receive, size_t bytes, void *stream,
                    char *all)
{
	const struct driver *driver = &comm->driver;
	int result = driver->read(all + (size_t)comm->rank * bytes, send, bytes, stream);

	if (!result)
		result = driver->synchronize(stream);
	meet(comm);
	if (!result)
		result = driver->write(receive, all, (size_t)comm->nranks * bytes, stream);
	if (!result)
		result = driver->synchronize(stream);
	meet(comm);
	return result ? UNHANDLED_CUDA_ERROR : SUCCESS;
}

int ncclAllGather(uint64_t send, uint64_t receive, size_t count, int dtype, struct comm *comm, void *stream)
{
	const size_t bytes = (size_t)comm->nranks * count;
	char *all;
	int result;

	if (dtype != 0)
		return INVALID_ARGUMENT;
	if (getenv("ZD_DOUBLE_NCCL_IDLE"))
		return SUCCESS;
	meet(comm);
	if (ftruncate(comm->fd, (off_t)(PAGE + bytes)))
		return SYSTEM_ERROR;
	meet(comm);
	all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, comm->fd, (off_t)PAGE);
	if (all == MAP_FAILED)
		return SYSTEM_ERROR;
	result = exchange(comm, send, receive, count, stream, all);
	(void)munmap(all, bytes);
	return result;
}
