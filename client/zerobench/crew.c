// SPDX-License-Identifier: Apache-2.0
/*
 * crew.c - the threads of baselines, which start each round together. A baseline has one thread for each
 * executor of the daemon, and moves the same bytes.
 */
#include "bench.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"

struct crew_thread {
	struct zd_crew *crew;
	unsigned index;
	pthread_t thread;
	struct zd_interval span; /* of the last round */
};

struct zd_crew {
	pthread_barrier_t start, end; /* of a round; the caller also waits at them */
	bool leave;                   /* read after `start` */
	void (*work)(unsigned thread, void *arg);
	void *arg;
	unsigned nthreads;
	struct crew_thread threads[];
};

static void *thread_main(void *arg)
{
	struct crew_thread *self = arg;
	struct zd_crew *crew = self->crew;
	for (;;) {
		pthread_barrier_wait(&crew->start);
		if (crew->leave)
			return NULL;
		self->span.start_ns = zd_bench_now_ns();
		crew->work(self->index, crew->arg);
		self->span.end_ns = zd_bench_now_ns();
		pthread_barrier_wait(&crew->end);
	}
}

struct zd_crew *zd_crew_new(const struct zd_member *member, unsigned nthreads,
                            void (*work)(unsigned thread, void *arg), void *arg)
{
	struct zd_crew *crew = zd_calloc(1, sizeof(*crew) + nthreads * sizeof(crew->threads[0]));
	crew->nthreads = nthreads;
	crew->work = work;
	crew->arg = arg;
	pthread_barrier_init(&crew->start, NULL, nthreads + 1);
	pthread_barrier_init(&crew->end, NULL, nthreads + 1);
	for (unsigned i = 0; i < nthreads; i++) {
		crew->threads[i] = (struct crew_thread){.crew = crew, .index = i};
		int failure = pthread_create(&crew->threads[i].thread, NULL, thread_main, &crew->threads[i]);
		if (failure)
			zd_member_need(zd_err_errno(member->err, failure, "cannot start thread %u of %u", i,
			                            nthreads));
	}
	return crew;
}

void zd_crew_round(struct zd_crew *crew, struct zd_interval *span)
{
	pthread_barrier_wait(&crew->start);
	pthread_barrier_wait(&crew->end);
	*span = crew->threads[0].span;
	for (unsigned i = 1; i < crew->nthreads; i++) {
		span->start_ns = zd_min_u64(span->start_ns, crew->threads[i].span.start_ns);
		span->end_ns = zd_max_u64(span->end_ns, crew->threads[i].span.end_ns);
	}
}

void zd_crew_free(struct zd_crew *crew)
{
	if (!crew)
		return;
	crew->leave = true;
	pthread_barrier_wait(&crew->start);
	for (unsigned i = 0; i < crew->nthreads; i++)
		pthread_join(crew->threads[i].thread, NULL);
	pthread_barrier_destroy(&crew->start);
	pthread_barrier_destroy(&crew->end);
	free(crew);
}

void *zd_map_memfd(const struct zd_member *member, uint64_t bytes)
{
	const int fd = memfd_create("zerobench", MFD_CLOEXEC);
	void *mapped = MAP_FAILED;
	if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
		mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED)
		zd_member_need(zd_err_errno(member->err, errno, "cannot map a memfd of %llu bytes",
		                            (unsigned long long)bytes));
	close(fd);
	return mapped;
}
