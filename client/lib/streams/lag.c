/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lag.c - fences that pass late, for tests of programs on emulated devices.
 *
 * The CPU does the work of an emulated device. If a program names no stream, its publishes, releases and
 * gradients are therefore complete when the call returns. On a GPU they complete later. With $ZEROD_LAG=SEED
 * each of these calls names one more stream of the client, which sleeps before its fence passes. The call
 * chooses one of several streams, and fences of two streams pass in any order. Delays and choices follow from
 * the seed and the order of the calls.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include <zerod_host.h>

#include "base/mem.h"
#include "client/lib/base/errors.h"
#include "client/lib/streams/stream.h"

#define NS_PER_US 1000

/* How long a fence waits, in microseconds; 0: it passes at once. Each is as likely as the others. */
static long lags_us[] = {0, 0, 10, 30, 60, 100, 150, 200, 300, 400, 600, 800, 1000, 1200, 1500, 8000};

int zc_lag_seed(uint64_t *seed, struct zd_err *err)
{
	const char *text = secure_getenv("ZEROD_LAG");
	uint64_t value;
	char *end;

	*seed = 0;
	if (!text || !text[0])
		return 0;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "ZEROD_LAG is '%s': expected a seed, or 0 for streams that do not lag",
		                  text);
	*seed = value;
	return 0;
}

int zc_lag_open(struct zerod_client *client, uint64_t seed, struct zd_err *err)
{
	int rc = 0;

	if (seed == 0)
		return 0;
	for (unsigned i = 0; i < ZC_LAG_STREAMS && !rc; i++)
		rc = zerod_host_stream_create(client, &client->lag.streams[i]);
	if (!rc) {
		client->lag.random = seed;
		return 0;
	}
	for (unsigned i = 0; i < ZC_LAG_STREAMS; i++)
		zerod_stream_destroy(client->lag.streams[i]);
	return zd_err_set(err, rc, "ZEROD_LAG: %s", zc_err(client)->text);
}

/* Knuth's 64-bit generator; the high bits are the random ones. */
static uint32_t draw(atomic_uint_fast64_t *random)
{
	uint64_t before = atomic_load(random), after;

	do
		after = before * 6364136223846793005u + 1442695040888963407u;
	while (!atomic_compare_exchange_weak(random, &before, after));
	return (uint32_t)(after >> 32);
}

static void sleep_for(void *arg)
{
	struct timespec left = {.tv_nsec = *(const long *)arg * NS_PER_US};

	while (nanosleep(&left, &left) && errno == EINTR)
		continue;
}

int zc_lag_fence(struct zerod_client *client, struct zc_fence_args *args, struct zd_err *err)
{
	Zd__Fence *fence = &args->fences[args->count];
	zerod_stream *stream;
	uint32_t random;
	long *lag_us;
	int rc;

	if (!client->lag.random || args->count == ZD_MAX_FENCES)
		return 0;
	random = draw(&client->lag.random);
	lag_us = &lags_us[random % ZD_ARRAY_LEN(lags_us)];
	if (*lag_us == 0)
		return 0;
	stream = client->lag.streams[random / ZD_ARRAY_LEN(lags_us) % ZC_LAG_STREAMS];
	rc = stream->ops->launch(stream, sleep_for, lag_us, NULL, err);
	if (rc)
		return rc;
	zd__fence__init(fence);
	rc = stream->ops->fence(stream, NULL, &fence->value, err);
	if (rc <= 0)
		return rc;
	fence->timeline = stream->timeline;
	args->pointers[args->count++] = fence;
	return 0;
}
