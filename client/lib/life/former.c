/* SPDX-License-Identifier: Apache-2.0 */
/* former.c - the sessions that this process has closed. */
#include "client/lib/life/former.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	uint64_t daemon, session;
} former[ZC_MAX_FORMER];
static size_t nadded;

void zc_former_add(uint64_t daemon, uint64_t session)
{
	(void)pthread_mutex_lock(&lock);
	former[nadded % ZC_MAX_FORMER].daemon = daemon;
	former[nadded % ZC_MAX_FORMER].session = session;
	nadded++;
	(void)pthread_mutex_unlock(&lock);
}

size_t zc_former_list(uint64_t daemon, uint64_t sessions[ZC_MAX_FORMER])
{
	size_t count = 0;

	(void)pthread_mutex_lock(&lock);
	for (size_t i = 0; i < ZC_MAX_FORMER && i < nadded; i++) {
		if (former[i].daemon == daemon)
			sessions[count++] = former[i].session;
	}
	(void)pthread_mutex_unlock(&lock);
	return count;
}
