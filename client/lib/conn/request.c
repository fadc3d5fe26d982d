/* SPDX-License-Identifier: Apache-2.0 */
/* request.c - requests that are posted, and calls that wait for their replies. */
#include "client/lib/conn/request.h"

#include <stdlib.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/options.h"

/* ---- Room ---------------------------------------------------------------------------------------------- */

/* The thread's collected requests also occupy room: they are sent before the thread waits. */
int zc_outstanding_await(struct zerod_client *client, Zd__Request *request, uint64_t deadline_ns,
                         struct zd_err *err)
{
	int rc = zc_outstanding_reserve(client, request->body_case, 1, 0, err);

	if (!rc)
		return 0;
	zc_flush(client);
	rc = zc_outstanding_reserve(client, request->body_case, 1, deadline_ns, err);
	request->deadline_ms = zc_deadline_ms(client, zc_left_ms(deadline_ns));
	return rc;
}

/* ---- Posted requests ----------------------------------------------------------------------------------- */

int zc_post(struct zerod_client *client, struct zc_op *op, Zd__Request *request, struct zd_err *err)
{
	struct zc_batch *batch = zc_batch_find(client);
	struct zc_packed packed;
	int rc;

	op->refs++; /* it may be answered, released and forgotten before we are through */
	zc_op_add(client, op, request);
	rc = zc_pack(request, &packed, err);
	if (!rc) {
		if (batch)
			zc_batch_add(client, batch, packed.bytes, packed.nbytes, op->id);
		else
			rc = zc_transmit(client, packed.bytes, packed.nbytes, &op->id, 1,
			                 zc_default_ns(client), err);
		free(packed.large);
	}
	ZC_LOCKED(&client->lock);
	if (rc) {
		if (!op->answered) {
			zc_outstanding_return(client, 1);
			zc_op_fail(client, op, err);
		}
		if (op->finished)
			zc_ticket_drop(client, op);
	}
	if (!batch) /* until zerod_uncork() sends the batch, the daemon has no request to answer */
		zc_outstanding_drain(client, 0);
	zc_ticket_unref(client, op);
	return rc;
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

int zc_check_body(const Zd__Reply *reply, Zd__Reply__BodyCase body, struct zd_err *err)
{
	if (reply->body_case == body || body == ZD__REPLY__BODY__NOT_SET)
		return 0;
	return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon's reply has body %d, expected %d",
	                  (int)reply->body_case, (int)body);
}

/* `waits`: the caller then waits for this answer. The batch is therefore sent. */
static int send_call(struct zerod_client *client, struct zc_op *op, Zd__Request *request, bool waits,
                     uint64_t deadline_ns, struct zd_err *err)
{
	struct zc_batch *batch = zc_batch_find(client);
	struct zc_packed packed;
	int rc = zc_outstanding_await(client, request, deadline_ns, err);

	if (rc)
		return rc;
	zc_op_add(client, op, request);
	rc = zc_pack(request, &packed, err);
	if (!rc) {
		if (batch && waits)
			rc = zc_batch_add_last(client, batch, packed.bytes, packed.nbytes, op->id,
			                       deadline_ns, err);
		else if (batch)
			zc_batch_add(client, batch, packed.bytes, packed.nbytes, op->id);
		else
			rc = zc_transmit(client, packed.bytes, packed.nbytes, &op->id, 1, deadline_ns, err);
		free(packed.large);
		return rc;
	}
	ZC_LOCKED(&client->lock);
	zc_outstanding_return(client, 1);
	zc_op_remove(op);
	return rc;
}

int zc_wait_own_answer(struct zerod_client *client, struct zc_op *op, uint64_t deadline_ns)
{
	uint64_t grace_ns;
	int rc = zc_wait_answer(client, op, deadline_ns);

	if (rc != ZEROD_E_INTERRUPTED || !op->sent || client->session == 0)
		return rc;
	pthread_mutex_unlock(&client->lock);
	zc_transmit_cancel(client, op->id);
	grace_ns = zc_now_ns() + ZC_GRACE_NS;
	pthread_mutex_lock(&client->lock);
	while (!op->answered && zc_wait_progress(client, op, grace_ns))
		;
	zc_hand_over(client);
	if (!op->answered)
		return rc;
	if (op->status == ZEROD_E_DEADLINE)
		op->status = rc;
	return 0;
}

/* Waits. Afterwards the op is not in the table, for any result. */
static int wait_call(struct zerod_client *client, struct zc_op *op, uint64_t deadline_ns, struct zd_err *err)
{
	int rc;

	pthread_mutex_lock(&client->lock);
	rc = zc_wait_own_answer(client, op, deadline_ns);
	if (rc) {
		zc_op_remove(op);
		client->abandoned++; /* its answer can still arrive */
	}
	pthread_mutex_unlock(&client->lock);
	if (rc)
		return zd_err_set(err, rc,
		                  "the daemon did not answer in time; it can still execute the request");
	if (!op->reply)
		return zd_err_set(err, op->status, "%s",
		                  client->broken_status ? client->broken_text
		                                        : "the daemon does not read its socket");
	if (op->status)
		return zd_err_set(err, op->status, "%s",
		                  op->reply->error[0] ? op->reply->error : zerod_status_name(op->status));
	return 0;
}

int zc_call_begin(struct zerod_client *client, struct zc_op *op, Zd__Request *request, uint64_t deadline_ns,
                  struct zd_err *err)
{
	return send_call(client, op, request, false, deadline_ns, err);
}

int zc_call_end(struct zerod_client *client, struct zc_op *op, uint64_t deadline_ns, Zd__Reply__BodyCase body,
                zc_take_fn *take, void *object, struct zd_err *err)
{
	int rc = wait_call(client, op, deadline_ns, err);

	if (!rc && take)
		rc = zc_check_body(op->reply, body, err);
	if (!rc && take)
		rc = take(op->reply, object, err);
	if (op->packet) {
		pthread_mutex_lock(&client->lock);
		if (rc == ZEROD_E_PROTOCOL && !op->status)
			zc_break(client, err);
		zc_packet_unref(client, op->packet);
		pthread_mutex_unlock(&client->lock);
	}
	return rc;
}

int zc_call_take(zerod_client *client, Zd__Request *request, uint32_t deadline_ms, Zd__Reply__BodyCase body,
                 zc_take_fn *take, void *object)
{
	struct zc_op op = {.kind = ZC_OP_CALL};
	uint64_t deadline_ns;
	struct zd_err *err;
	int rc = zc_enter_quietly(client, &err);

	if (rc)
		return rc;
	request->deadline_ms = zc_deadline_ms(client, deadline_ms);
	deadline_ns = zc_until_ns(request->deadline_ms);
	rc = send_call(client, &op, request, true, deadline_ns, err);
	request->deadline_ms = zc_deadline_ms(client,
	                                      deadline_ms); /* the request can be stored, and repeated */
	return rc ? rc : zc_call_end(client, &op, zc_answer_ns(deadline_ns), body, take, object, err);
}

struct plain {
	int (*fn)(const Zd__Reply *reply, void *arg);
	void *arg;
};

static int take_plain(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	const struct plain *plain = object;

	(void)err;
	return plain->fn(reply, plain->arg);
}

int zc_call(zerod_client *client, Zd__Request *request, uint32_t deadline_ms,
            int (*fn)(const Zd__Reply *reply, void *arg), void *arg)
{
	struct plain plain = {.fn = fn, .arg = arg};

	return zc_call_take(client, request, deadline_ms, ZD__REPLY__BODY__NOT_SET, fn ? take_plain : NULL,
	                    &plain);
}
