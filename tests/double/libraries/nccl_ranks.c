/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_ranks.c - where the ranks of a communicator meet: a file in shared memory that the unique id names. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "tests/double/libraries/nccl_double.h"

/* Drawn by lot, as NCCL's own are: a process id comes again, and meets what one that was killed has left
 * behind. */
int nccl_ranks_name(struct zd_nccl_id *id)
{
	const char *run = getenv("ZD_DOUBLE_NCCL_RUN");
	uint64_t lot;

	if (getrandom(&lot, sizeof(lot), 0) != (ssize_t)sizeof(lot))
		return ZD_NCCL_SYSTEM_ERROR;
	memset(id, 0, sizeof(*id));
	(void)snprintf(id->bytes, sizeof(id->bytes), "/zerod-nccl-%.32s-%016" PRIx64, run ? run : "", lot);
	return ZD_NCCL_SUCCESS;
}

static struct nccl_shared *map(const struct zd_nccl_id *id)
{
	struct nccl_shared *shared = MAP_FAILED;
	char name[sizeof(id->bytes) + 1] = "";
	int fd;

	memcpy(name, id->bytes, sizeof(id->bytes));
	fd = shm_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return NULL;
	if (!ftruncate(fd, (off_t)sizeof(*shared)))
		shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	(void)close(fd);
	return shared == MAP_FAILED ? NULL : shared;
}

struct nccl_shared *nccl_ranks_join(const struct zd_nccl_id *id, int nranks, int rank)
{
	struct nccl_shared *shared = map(id);
	unsigned first = 0;

	if (!shared)
		return NULL;
	(void)atomic_fetch_add(&shared->users, 1);
	if (!atomic_compare_exchange_strong(&shared->nranks, &first, (unsigned)nranks) &&
	    first != (unsigned)nranks)
		atomic_store(&shared->broken, true);
	if (atomic_fetch_or(&shared->arrived, 1u << rank) & 1u << rank)
		atomic_store(&shared->broken, true);
	return shared;
}

static void take_name(const struct zd_nccl_id *id)
{
	char name[sizeof(id->bytes) + 1] = "";

	memcpy(name, id->bytes, sizeof(id->bytes));
	(void)shm_unlink(name);
}

bool nccl_ranks_complete(struct nccl_shared *shared, const struct zd_nccl_id *id)
{
	if (atomic_load(&shared->broken) ||
	    atomic_load(&shared->arrived) != (1u << atomic_load(&shared->nranks)) - 1)
		return false;
	take_name(id);
	return true;
}

void nccl_ranks_leave(struct nccl_shared *shared, const struct zd_nccl_id *id)
{
	if (atomic_fetch_sub(&shared->users, 1) == 1)
		take_name(id);
	(void)munmap(shared, sizeof(*shared));
}
