/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reconnect.c - a client continues with the next daemon at its socket, after its own has ended.
 *
 * The caller's handles of the client, its streams, groups, units and buckets remain valid. Everything else of
 * the former connection has ended. When the connection is lost, every call returns RESTARTED.
 * zerod_group_get() then leaves the former session, connects, and repeats the requests with which the group
 * was joined, its units registered and its buckets created. The caller has to call it, because it must know
 * the step from which it continues. Other groups of the client still return RESTARTED, until their own
 * zerod_group_get().
 *
 * Invariants:
 * - The connection is replaced while no other thread is inside of the client. No call therefore starts with
 *   one connection and ends with another. Host streams are empty then, and GPUs' streams synchronized.
 * - The next hello names the former session only when this process does not use its memory any more.
 * - Handles of a group that is not joined have id 0, and no request is sent for them.
 */
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/alloc.h"
#include "client/lib/calls/group.h"
#include "client/lib/calls/lease.h"
#include "client/lib/calls/unit.h"
#include "client/lib/device/cuda.h"
#include "client/lib/device/offloaded_sum.h"
#include "client/lib/gradients/bucket.h"
#include "client/lib/life/connect.h"
#include "client/lib/life/former.h"
#include "client/lib/segments/strict.h"
#include "proto/limits.h"

#define RETRY_NS 5000000 /* between two connects, because no event reports that a daemon starts to listen */
/* ---- Leaving the former session ------------------------------------------------------------------------ */

/* With the lock. */
static void forget_unit(struct zerod_client *client, struct zc_unit *unit)
{
	zc_leases_end(client, unit);
	zc_holds_drop(client, &unit->kept);
	if (unit->id)
		unit->former_id = unit->id;
	unit->id = 0;
	unit->target_lent = unit->updating = unit->granted = unit->unawaited = false;
	unit->publishing = NULL;
}

/* With the lock. */
static void forget_group(struct zerod_group *group)
{
	struct zerod_bucket *bucket;
	struct zerod_unit *unit;

	zc_buckets_forget(group, UINT64_MAX);
	LIST_FOREACH (bucket, &group->buckets, link)
		bucket->id = 0;
	LIST_FOREACH (unit, &group->units, link)
		forget_unit(group->client, unit->shared);
	group->id = 0;
	group->restarted = true;
	group->target_bound = group->target_in_doubt = group->stepped_ahead = false;
	group->scalars = (struct zc_location){0};
	group->step_ending = group->step_ending_before = NULL;
	group->backward_ending = 0;
}

/* With the lock. The tickets' numbers are not used again, and zerod_wait() returns RESTARTED for them. */
static void forget_tickets(struct zerod_client *client)
{
	struct zc_batch *batch;
	struct zc_op *op;

	for (unsigned i = 0; i < ZC_OP_CHAINS; i++)
		while ((op = LIST_FIRST(&client->ops[i])))
			zc_ticket_drop(client, op);
	LIST_FOREACH (batch, &client->batches, link) {
		if (batch->count > 0)
			(void)zd_err_set(&batch->failure, ZEROD_E_RESTARTED, "%s", client->broken_text);
		batch->count = 0;
		batch->nbytes = 0;
	}
	client->former_tickets = client->next_id;
	client->outstanding = client->abandoned = 0;
	client->detached.nfailures = 0;
	client->detached_failed = false;
}

static void forget_objects(struct zerod_client *client)
{
	struct zerod_allocation *allocation;
	struct zerod_group *group;
	zerod_stream *stream;
	ZC_LOCKED(&client->lock);

	LIST_FOREACH (group, &client->groups, link)
		forget_group(group);
	HASH_CLEAR(hh, client->units); /* the handles have them */
	LIST_FOREACH (allocation, &client->buffers, link)
		allocation->id = 0;
	LIST_FOREACH (stream, &client->streams, link)
		stream->end_reader = NULL;
	client->nlent = 0;
	forget_tickets(client);
	zc_streams_reset(client);
}

/* Frees the memory and descriptors of the connection, which must not be in use any more. */
static void free_connection(struct zerod_client *client)
{
	pthread_mutex_lock(&client->lock);
	zc_segments_free(client);
	pthread_mutex_unlock(&client->lock);
	client->unmapped = NULL;
	client->nunmapped = client->unmapped_room = 0;
	client->nretired = 0;
	client->gpu_page = client->client_page = client->daemon_page = NULL;
	if (client->endpoint.sock >= 0)
		(void)close(client->endpoint.sock);
	zc_worker_deinit(client);
	if (client->rings)
		(void)munmap(client->rings, ZD_RINGS_BYTES);
	client->rings = NULL;
	client->endpoint = (struct zd_endpoint){.sock = -1};
	client->worker = (struct zc_worker){.endpoint.sock = -1, .expected = -1};
}

/* Streams retain their timelines, and continue with the next values. All former values have been written. */
static void save_timelines(struct zerod_client *client)
{
	if (!client->client_page)
		return;
	for (uint32_t i = 0; i < ZEROD_MAX_STREAMS && i < client->ntimelines; i++)
		client->timeline_written[i] = __atomic_load_n(&client->client_page[i], __ATOMIC_ACQUIRE);
}

static void restore_timelines(struct zerod_client *client)
{
	for (uint32_t i = 0; i < ZEROD_MAX_STREAMS && i < client->ntimelines; i++) {
		__atomic_store_n(&client->client_page[i], client->timeline_written[i], __ATOMIC_RELEASE);
		__atomic_store_n(&client->gpu_page[i], client->timeline_written[i], __ATOMIC_RELEASE);
	}
}

/* Once for each connection. No other thread is inside. */
static int leave_former(struct zerod_client *client, struct zd_err *err)
{
	struct zd_err ignored;
	zerod_stream *stream;
	bool done;
	int rc;

	if (client->session == 0)
		return 0;
	if (!LIST_EMPTY(&client->mapped)) /* streams that the library does not know may read */
		return zd_err_set(err, ZEROD_E_STATE, "mapped reads of the daemon before have not ended");
	LIST_FOREACH (stream, &client->streams, link) {
		rc = stream->ops->synchronize(stream, &ignored);
		if (rc == ZEROD_E_STATE || rc == ZEROD_E_DEVICE) /* its own thread calls; the GPU is lost */
			return zd_err_set(err, rc, "%s", ignored.text);
	}
	rc = zc_cuda_contexts_keep(client, err);
	if (rc)
		return rc;
	forget_objects(client);
	save_timelines(client);
	done = zc_cuda_close(client);
	zc_worker_stop(client); /* on GPUs it has ended with them */
	if (done)
		zc_former_add(client->daemon, client->session);
	client->session = 0;
	free_connection(client);
	return 0;
}

/* ---- Connecting again ---------------------------------------------------------------------------------- */

static int greet_next(struct zerod_client *client, uint64_t deadline_ns, struct zd_err *err)
{
	zerod_stream *stream;
	int rc = zc_socket_open(client, client->socket_path, deadline_ns, err);

	if (rc)
		return rc;
	client->broken_status = 0;
	client->lost = client->poisoned = false;
	rc = zc_greet(client, client->name);
	if (!rc) {
		client->generation++;
		restore_timelines(client);
	}
	LIST_FOREACH (stream, &client->streams, link)
		if (!rc && stream->ops->renew)
			rc = stream->ops->renew(stream, err);
	return rc;
}

/* Leaves the client as it is after a loss. */
static void undo_greeting(struct zerod_client *client, const struct zd_err *err)
{
	struct zd_err lost = *err;
	bool closed;

	pthread_mutex_lock(&client->lock);
	(void)zd_err_set(&lost, ZEROD_E_RESTARTED, "%s", err->text);
	zc_break(client, &lost); /* unless it is broken already */
	(void)zd_err_set(&lost, ZEROD_E_RESTARTED, "not connected again: %s", err->text);
	memcpy(client->broken_text, lost.text, sizeof(client->broken_text));
	client->broken_status = ZEROD_E_RESTARTED;
	client->outstanding = client->abandoned = 0;
	pthread_mutex_unlock(&client->lock);
	closed = zc_cuda_close(client);
	(void)closed; /* memory that a GPU can still access remains mapped */
	client->session = 0;
	free_connection(client);
}

/* Whether no daemon runs yet, or this one is ending: the client waits for the next one. */
static bool is_early(int rc)
{
	return rc == ZEROD_E_CONNECT || rc == ZEROD_E_RESTARTED || rc == ZEROD_E_SHUTDOWN;
}

static int connect_again(struct zerod_client *client, struct zd_err *err)
{
	const struct timespec pause = {.tv_nsec = RETRY_NS};
	uint64_t deadline_ns = zc_until_ns(client->reconnect_ms == ZEROD_NO_DEADLINE ? 0
	                                                                             : client->reconnect_ms);
	int rc;

	for (;;) {
		rc = greet_next(client, deadline_ns, err);
		if (!rc)
			return 0;
		undo_greeting(client, err);
		if (!is_early(rc) || zc_now_ns() >= deadline_ns)
			break;
		(void)nanosleep(&pause, NULL);
	}
	if (!is_early(rc))
		return rc;
	return zd_err_set(err, ZEROD_E_CONNECT,
	                  "%s; reconnect_ms, %u ms, have passed; zerod_group_get() can be called again",
	                  err->text, client->reconnect_ms);
}

static int reconnect(struct zerod_client *client, struct zd_err *err)
{
	const struct zerod_client *before;
	int rc = 0;
	ZC_LOCKED(&client->reconnect_lock);

	if (client->broken_status) {
		before = zc_inside_close(client);
		if (client->broken_status != ZEROD_E_RESTARTED)
			rc = zd_err_set(err, client->broken_status, "%s", client->broken_text);
		if (!rc)
			rc = leave_former(client, err);
		if (!rc)
			rc = connect_again(client, err);
		zc_inside_open(client, before);
	}
	return rc;
}

/* ---- Joining again ------------------------------------------------------------------------------------- */

/* With the lock. */
static bool has_joined(const struct zerod_client *client)
{
	const struct zerod_group *group;

	LIST_FOREACH (group, &client->groups, link)
		if (group->id)
			return true;
	return false;
}

/* The daemon drains. A session without a group would only delay its end. */
static int leave_draining(struct zerod_client *client, struct zd_err *err)
{
	zc_loss_explain(client, err);
	ZC_LOCKED(&client->lock);
	if (!has_joined(client))
		zc_break(client, err);
	return err->status;
}

/* A daemon that still runs may not have seen that the former session has ended. One that drains may serve
 * other groups of this client for long. */
static int join(struct zerod_group *group, struct zd_err *err)
{
	const struct timespec pause = {.tv_nsec = RETRY_NS};
	uint64_t deadline_ns = zc_until_ns(group->client->reconnect_ms);
	int rc;

	for (;;) {
		rc = zc_group_rejoin(group, err);
		if (rc == ZEROD_E_SHUTDOWN)
			rc = leave_draining(group->client, err);
		if ((rc != ZEROD_E_EXISTS && rc != ZEROD_E_RESTARTED) || group->client->broken_status ||
		    zc_now_ns() >= deadline_ns)
			return rc;
		(void)nanosleep(&pause, NULL);
	}
}

static int restore(struct zerod_group *group, struct zd_err *err)
{
	int rc = group->joined ? 0 : zc_enter_check(0, group, err);

	if (!rc && group->id == 0)
		rc = join(group, err);
	if (!rc)
		rc = zc_units_rejoin(group, err);
	return rc ? rc : zc_buckets_rejoin(group, err);
}

/* One thread joins, and the others wait for it. No lock is held meanwhile, because other groups are also
 * joined, in an order that differs between ranks. */
static int restore_alone(struct zerod_group *group, struct zd_err *err)
{
	struct zerod_client *client = group->client;
	bool due;
	int rc = 0;

	pthread_mutex_lock(&client->lock);
	while (group->rejoining)
		pthread_cond_wait(&client->reopened, &client->lock);
	due = group->rejoining = group->restarted;
	pthread_mutex_unlock(&client->lock);
	if (!due)
		return 0;
	rc = restore(group, err);
	pthread_mutex_lock(&client->lock);
	group->rejoining = false;
	group->restarted = rc != 0;
	(void)pthread_cond_broadcast(&client->reopened);
	pthread_mutex_unlock(&client->lock);
	return rc;
}

/* Also if no call has noticed it yet. */
static bool is_lost(struct zerod_client *client)
{
	ZC_INSIDE(client);
	struct zd_err err;

	if (!client->broken_status && zc_is_hung_up(client)) {
		(void)zd_err_set(&err, ZEROD_E_DISCONNECTED, "the daemon closed the connection");
		(void)zc_read_last_words(client, &err);
	}
	return client->broken_status != 0;
}

static int restore_group(struct zerod_group *group, struct zd_err *err)
{
	int rc = 0;

	if (group->client->reconnect_ms == 0)
		return 0;
	if (is_lost(group->client))
		rc = reconnect(group->client, err);
	if (rc)
		return rc;
	ZC_INSIDE(group->client);
	rc = zc_enter_quietly(group->client, &err);
	return rc ? rc : restore_alone(group, err);
}

int zerod_group_get(zerod_group *group, struct zerod_group_info *info)
{
	struct zerod_client *client = zc_group_client(group);
	struct zd_err *err;
	int rc = zc_enter_quietly(client, &err);

	if (rc && rc != ZEROD_E_RESTARTED)
		return rc;
	rc = zc_result_check(info, "info", err);
	if (!rc)
		rc = restore_group(group, err);
	if (rc)
		return rc;
	ZC_INSIDE(client);
	ZC_LOCKED(&client->lock);
	zc_result_fill(
	        info,
	        &(struct zerod_group_info){.committed_step = group->committed_step, .torn = group->torn},
	        sizeof(*info));
	return 0;
}
