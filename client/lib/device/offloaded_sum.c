/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offloaded_sum.c - sums that the daemon requests of this process: the thread that reads the work channel.
 *
 * On GPUs, works are sums over the daemon's memory, in this process's own context (cuda_offloaded_sum.c).
 * Each sum is started and answered at once. The daemon sees its end by a fence. Invariants:
 *   - a segment that a work names is announced on the connection, before the work is sent. The thread reads
 *     the connection, or waits for the thread that does, until the announcement has arrived, and then maps
 *     the segment;
 *   - no event that a GPU's stream can be waiting for depends on a work that has not been answered: the
 *     daemon sends fences of copies, also of sums' inputs, only when the copies are under way, and fences of
 *     sums when the sums have been answered. Mapping can therefore wait for a GPU without a deadlock, as can
 *     launches that other calls of the driver block until a stream continues;
 *   - the thread also unmaps segments that the daemon retires, in a process that makes no call.
 */
#include "client/lib/device/offloaded_sum.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/spin.h"
#include "base/thread.h"
#include "client/lib/base/interrupt.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"
#include "client/lib/device/cuda.h"

#define ARENA_BYTES 8192u /* a sum of some hundred inputs */
#define CHECK_MS    20    /* how often GPUs that are making sums are asked how they are */

/* The worker thread's state. */
struct worker_context {
	struct zerod_client *client;
	struct zd_arena arena; /* of the packet at hand */
	uint8_t bytes[ZD_MAX_PACKET_BYTES];
	struct zc_offloaded_sum sum;
	struct zd_spin spin;
	uint64_t event_ns; /* time of the last work, or of its last announcement */
};

/* ---- The channel --------------------------------------------------------------------------------------- */

static bool is_stopped(const struct zc_worker *worker)
{
	struct pollfd stop = {.fd = worker->stop, .events = POLLIN};

	return poll(&stop, 1, 0) == 1;
}

/* Blocks until the channel has room, or the thread is to stop. */
static void await_room(const struct zc_worker *worker)
{
	struct pollfd fds[] = {{.fd = worker->endpoint.sock, .events = POLLOUT},
	                       {.fd = worker->stop, .events = POLLIN}};

	while (poll(fds, 2, -1) < 0 && errno == EINTR)
		continue;
}

/* Blocks until the socket can be read, or soon can be, or the thread shall stop. Returns false if none of
 * these happens in time. */
static bool await_socket(struct worker_context *context, int timeout_ms)
{
	const struct zc_worker *worker = &context->client->worker;
	struct pollfd fds[] = {{.fd = worker->endpoint.sock, .events = POLLIN},
	                       {.fd = worker->stop, .events = POLLIN},
	                       {.fd = worker->expected, .events = POLLIN}};
	uint64_t now_ns = zc_now_ns(), naps_ns = context->event_ns + ZC_NAPS_NS;
	bool naps = timeout_ms != 0 && context->spin.window_ns > 0 && now_ns < naps_ns;
	eventfd_t count;
	int ready;

	if (!naps || !zc_nap(fds, 3, naps_ns)) {
		do
			ready = poll(fds, 3, timeout_ms);
		while (ready < 0 && errno == EINTR);
		if (ready == 0)
			return false;
	}
	if (fds[2].revents && !eventfd_read(worker->expected, &count)) {
		context->event_ns = zc_now_ns();
		zd_spin_expect(&context->spin, context->event_ns + ZD_SPIN_AWAIT_NS);
	}
	return true;
}

/* As await_socket(), for a work, through ring or socket. */
static bool await_work(struct worker_context *context, int timeout_ms)
{
	struct zd_endpoint *endpoint = &context->client->worker.endpoint;
	bool come;

	if (!zd_endpoint_rest(endpoint))
		return true;
	come = await_socket(context, timeout_ms);
	zd_endpoint_start_polling(endpoint);
	return come;
}

/* 0, ZD_FRAME_AGAIN, or the channel's end. The daemon sends no descriptors here. */
static int receive_packet(struct worker_context *context, size_t *nbytes, struct zd_err *err)
{
	int fds[ZD_MAX_PACKET_FDS];
	unsigned nfds = 0;
	int rc = zd_endpoint_try_recv(&context->client->worker.endpoint, context->bytes,
	                              sizeof(context->bytes), nbytes, fds, &nfds, err);

	if (rc)
		return rc;
	for (unsigned i = 0; i < nfds; i++)
		(void)close(fds[i]);
	return nfds > 0 ? zd_err_set(err, ZEROD_E_PROTOCOL,
	                             "the daemon sent %u descriptors through the work channel", nfds)
	                : 0;
}

static int send_answer(struct worker_context *context, Zd__WorkDone *done, struct zd_err *err)
{
	struct zc_worker *worker = &context->client->worker;
	Zd__WorkAnswers answers = ZD__WORK_ANSWERS__INIT;
	uint8_t bytes[ZD_ERR_TEXT_BYTES + 64];
	size_t nbytes;
	int rc;

	answers.n_done = 1;
	answers.done = &done;
	nbytes = zd__work_answers__get_packed_size(&answers);
	zd_assert(nbytes <= sizeof(bytes)); /* the text is one of struct zd_err */
	(void)zd__work_answers__pack(&answers, bytes);
	while ((rc = zd_endpoint_send(&worker->endpoint, bytes, nbytes, NULL, 0, err)) == ZD_FRAME_AGAIN &&
	       !is_stopped(worker))
		await_room(worker);
	return rc < 0 ? rc : 0;
}

/* ---- Announcements ------------------------------------------------------------------------------------- */

static bool have_segment(struct zerod_client *client, uint64_t id)
{
	return zc_segment_find(client, (uint32_t)id) != NULL;
}

static bool have_retired(struct zerod_client *client, uint64_t count)
{
	return client->nretired >= count;
}

/* Waits until all packets that the daemon has sent through the connection by now have been read. Stops when
 * the connection or the thread ends. With the lock. */
static void read_until(struct zerod_client *client,
                       bool (*has_come)(struct zerod_client *client, uint64_t arg), uint64_t arg)
{
	while (!has_come(client, arg) && !client->broken_status && !is_stopped(&client->worker))
		(void)zc_wait_progress(client, NULL, zc_now_ns() + ZC_POLL_SLICE_NS);
	zc_hand_over(client);
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

static int check_sum(const Zd__Sum *from, struct zd_err *err)
{
	if (!zd_dtype_reducible(from->input_dtype) || !zd_dtype_holds_sums(from->target_dtype))
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the daemon requests a sum of dtype %u into dtype %u", from->input_dtype,
		                  from->target_dtype);
	if (from->numel == 0 || from->numel > ZD_MAX_BYTES / sizeof(float))
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon requests a sum of %llu elements",
		                  (unsigned long long)from->numel);
	if (from->n_input_segments == 0 || from->n_input_segments > ZD_MAX_WORLD ||
	    from->slot >= ZD_WORK_SLOTS)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the daemon requests a sum of %zu inputs, its result into slot %u",
		                  from->n_input_segments, from->slot);
	if (from->target_segment == 0)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon requests a sum without a target");
	if (from->n_fence_timelines > ZD_MAX_WORLD)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon requests a sum after %zu fences",
		                  from->n_fence_timelines);
	if (from->n_input_offsets != from->n_input_segments ||
	    from->n_fence_values != from->n_fence_timelines)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the daemon names %zu offsets for %zu inputs, %zu values for %zu fences",
		                  from->n_input_offsets, from->n_input_segments, from->n_fence_values,
		                  from->n_fence_timelines);
	return 0;
}

static int take_fences(const struct zerod_client *client, const Zd__Sum *from, struct zc_offloaded_sum *sum,
                       struct zd_err *err)
{
	sum->nfences = (uint32_t)from->n_fence_timelines;
	for (uint32_t i = 0; i < sum->nfences; i++) {
		struct zc_fence fence = {from->fence_timelines[i], from->fence_values[i]};

		if (fence.timeline >= client->ntimelines || fence.value == 0 ||
		    fence.value >= (uint64_t)ZD_FENCE_ABORTED)
			return zd_err_set(err, ZEROD_E_PROTOCOL,
			                  "the daemon requests a sum after timeline %u, value %llu",
			                  fence.timeline, (unsigned long long)fence.value);
		sum->fences[i] = fence;
	}
	return 0;
}

/* With the lock. */
static int take_place(struct zerod_client *client, uint32_t segment, uint64_t offset, uint64_t numel,
                      enum zerod_dtype dtype, struct zc_location *place, struct zd_err *err)
{
	size_t each = zerod_dtype_bytes(dtype);
	Zd__Location from = ZD__LOCATION__INIT;

	from.segment = segment;
	from.offset = offset;
	from.bytes = numel * each;
	read_until(client, have_segment, segment);
	return zc_location_take(client, &from, from.bytes, each, place, err);
}

static int take_sum(struct zerod_client *client, const Zd__Sum *from, struct zc_offloaded_sum *sum,
                    struct zd_err *err)
{
	int rc = check_sum(from, err);

	if (!rc)
		rc = take_fences(client, from, sum, err);
	if (rc)
		return rc;
	sum->input_dtype = from->input_dtype;
	sum->target_dtype = from->target_dtype;
	sum->numel = from->numel;
	sum->prescale = from->prescale;
	sum->postscale = from->postscale;
	sum->overwrite = from->overwrite;
	sum->slot = from->slot;
	sum->ninputs = (uint32_t)from->n_input_segments;
	ZC_LOCKED(&client->lock);
	rc = take_place(client, from->target_segment, from->target_offset, sum->numel, sum->target_dtype,
	                &sum->target, err);
	for (uint32_t i = 0; i < sum->ninputs && !rc; i++)
		rc = take_place(client, from->input_segments[i], from->input_offsets[i], sum->numel,
		                sum->input_dtype, &sum->inputs[i], err);
	return rc;
}

/* An error ends the connection. If this process cannot do the work, that is an answer. */
static int handle_work(struct worker_context *context, const Zd__Work *work, struct zd_err *err)
{
	struct zerod_client *client = context->client;
	Zd__WorkDone done = ZD__WORK_DONE__INIT;
	Zd__Fence message = ZD__FENCE__INIT;
	struct zd_err why = ZD_ERR_NONE;
	struct zc_fence fence = {0, 0};
	bool launched = false;
	int rc;

	done.id = work->id;
	if (work->body_case == ZD__WORK__BODY_SUM && client->on_gpus) {
		rc = take_sum(client, work->sum, &context->sum, err);
		if (rc)
			return rc;
		done.status = zc_cuda_offloaded_sum(client, &context->sum, &fence, &launched, &why);
	} else {
		done.status = zd_err_set(&why, ZEROD_E_UNSUPPORTED, "this library knows no such work");
	}
	if (done.status) {
		done.error = why.text;
		done.launched = launched;
	} else {
		message.timeline = fence.timeline;
		message.value = fence.value;
		done.fence = &message;
	}
	return send_answer(context, &done, err);
}

/* ---- The thread ---------------------------------------------------------------------------------------- */

static int take_packet(struct worker_context *context, size_t nbytes, struct zd_err *err)
{
	struct zerod_client *client = context->client;
	const Zd__WorkPacket *packet = zd__work_packet__unpack(&context->arena.allocator, nbytes,
	                                                       context->bytes);
	int rc = 0;

	if (!packet)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the daemon sent %zu bytes through the work channel that are not a packet",
		                  nbytes);
	for (size_t i = 0; i < packet->n_works && !rc && !is_stopped(&client->worker); i++)
		rc = handle_work(context, packet->works[i], err);
	if (!rc && packet->retired) {
		pthread_mutex_lock(&client->lock);
		read_until(client, have_retired, packet->retired);
		pthread_mutex_unlock(&client->lock);
	}
	return rc;
}

/* Polls for a packet before the thread sleeps. Returns whether one arrived. */
static bool spin_for_work(struct worker_context *context)
{
	while (zd_spin_may(&context->spin, zc_now_ns()))
		if (zd_endpoint_is_due(&context->client->worker.endpoint) || await_socket(context, 0))
			return true;
	return false;
}

/* A GPU that fails during a sum writes no fence. All waits for the sum would then never end. */
static int check_interval_ms(const struct zerod_client *client)
{
	return client->on_gpus && zc_cuda_offloaded_sums_are_open(client) ? CHECK_MS : -1;
}

/* Returns 0, ZD_FRAME_AGAIN, or the status that ends the connection. */
static int serve_once(struct worker_context *context, struct zd_err *err)
{
	struct zerod_client *client = context->client;
	size_t nbytes;
	int rc;

	if (!spin_for_work(context) && !await_work(context, check_interval_ms(client)))
		return zc_cuda_offloaded_sums_check(client, err);
	rc = receive_packet(context, &nbytes, err);
	if (rc == 0) {
		rc = take_packet(context, nbytes, err);
		context->event_ns = zc_now_ns();
		zd_spin_event(&context->spin, context->event_ns);
	}
	zd_arena_reset(&context->arena);
	return rc;
}

/* The channel ends with the connection, whose end other threads detect. */
static void serve_channel(struct worker_context *context)
{
	struct zerod_client *client = context->client;
	struct zd_err err = ZD_ERR_NONE;
	int rc = 0;

	while (rc >= 0 && !is_stopped(&client->worker))
		rc = serve_once(context, &err);
	/* A segment or page that the thread waited for may be missing because the client is closing: that is
	 * no error. */
	if (rc >= 0 || rc == ZEROD_E_DISCONNECTED || is_stopped(&client->worker))
		return;
	ZC_LOCKED(&client->lock);
	zc_break(client, &err);
}

static void free_context(struct worker_context *context)
{
	zd_arena_deinit(&context->arena);
	free(context);
}

static void *worker_main(void *arg)
{
	struct worker_context *context = arg;

	zc_ask_never(true);
	(void)prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul); /* the usual 50 us are longer than a nap */
	serve_channel(context);
	free_context(context);
	return NULL;
}

/* ---- Its life ------------------------------------------------------------------------------------------ */

void zc_worker_expect(const struct zerod_client *client)
{
	if (client->on_gpus && client->worker.expected >= 0)
		(void)eventfd_write(client->worker.expected, 1);
}

int zc_worker_start(struct zerod_client *client, struct zd_err *err)
{
	struct zc_worker *worker = &client->worker;
	struct worker_context *context;
	int error;

	if (worker->endpoint.sock < 0 || worker->running)
		return 0;
	worker->stop = eventfd(0, EFD_CLOEXEC);
	if (worker->stop < 0)
		return zd_err_errno(err, errno, "reading the work channel");
	context = calloc(1, sizeof(*context));
	error = context ? 0 : ENOMEM;
	if (context) {
		context->client = client;
		zd_arena_init(&context->arena, ARENA_BYTES);
		zd_spin_init(&context->spin, ZC_SPIN_NS, ZC_SPIN_PROCESSORS);
		error = zd_thread_create(&worker->thread, worker_main, context);
	}
	if (error) {
		if (context)
			free_context(context);
		(void)close(worker->stop);
		return zd_err_errno(err, error, "reading the work channel");
	}
	worker->running = true;
	return 0;
}

void zc_worker_stop(struct zerod_client *client)
{
	struct zc_worker *worker = &client->worker;

	if (!worker->running)
		return;
	(void)eventfd_write(worker->stop, 1);
	(void)pthread_join(worker->thread, NULL);
	(void)close(worker->stop);
	worker->running = false;
}

void zc_worker_deinit(struct zerod_client *client)
{
	struct zc_worker *worker = &client->worker;

	if (worker->endpoint.sock >= 0)
		(void)close(worker->endpoint.sock);
	if (worker->expected >= 0)
		(void)close(worker->expected);
	if (worker->running) /* a forked child, which does not have the thread */
		(void)close(worker->stop);
	if (worker->page)
		(void)munmap(worker->page, ZD_WORK_PAGE_BYTES);
}
