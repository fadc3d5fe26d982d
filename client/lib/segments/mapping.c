/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapping.c - host memory of the daemon that is mapped in this process, with a reference count.
 *
 * A segment has one reference to its mapping. Views of a caller, such as arrays of Python, have further ones.
 * A view can outlive the allocation, the segment and the client. The list belongs to the process, because a
 * caller that drops a view can have closed its client. The fork handlers hold the lock, so that it is free in
 * a child.
 */
#include "client/lib/segments/mapping.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/queue.h>

#include <zerod_host.h>

struct zerod_mapping {
	uint8_t *at;
	uint64_t bytes;
	uint64_t nrefs;
	LIST_ENTRY(zerod_mapping) link;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the list, and all counts */
static LIST_HEAD(, zerod_mapping) mappings = LIST_HEAD_INITIALIZER(mappings);

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
	(void)pthread_atfork(before_fork, after_fork, after_fork);
}

struct zerod_mapping *zc_mapping_new(void *at, uint64_t bytes)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct zerod_mapping *mapping = calloc(1, sizeof(*mapping));

	if (!mapping)
		return NULL;
	(void)pthread_once(&once, watch_forks);
	mapping->at = at;
	mapping->bytes = bytes;
	mapping->nrefs = 1;
	pthread_mutex_lock(&lock);
	LIST_INSERT_HEAD(&mappings, mapping, link);
	pthread_mutex_unlock(&lock);
	return mapping;
}

zerod_mapping *zerod_mapping_retain(const void *data)
{
	struct zerod_mapping *mapping;

	pthread_mutex_lock(&lock);
	LIST_FOREACH (mapping, &mappings, link) {
		if ((uintptr_t)data - (uintptr_t)mapping->at < mapping->bytes)
			break;
	}
	if (mapping)
		mapping->nrefs++;
	pthread_mutex_unlock(&lock);
	return mapping;
}

void zerod_mapping_release(zerod_mapping *mapping)
{
	if (!mapping)
		return;
	pthread_mutex_lock(&lock);
	if (--mapping->nrefs > 0)
		mapping = NULL;
	else
		LIST_REMOVE(mapping, link);
	pthread_mutex_unlock(&lock);
	if (mapping)
		(void)munmap(mapping->at, mapping->bytes);
	free(mapping);
}
