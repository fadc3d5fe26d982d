/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work_scene.h - clients that make sums, by hand: connections with work channels in front of the real
 * dispatcher and engine. Included by one test program each.
 */
#ifndef ZD_TESTS_WORK_SCENE_H
#define ZD_TESTS_WORK_SCENE_H

#include "api_scene.h"

#include <sys/mman.h>

#include "base/mem.h"
#include "proto/work.h"
#include "tests/support/raw_client.h"

#define NUMEL      64u    /* of a unit: its shard has no padding */
#define SLOT_BYTES 65536u /* of a bucket */
#define SEGMENTS   16u
#define PACKETS    256u

static inline int scene_open_works(void **state, const struct zd_backend_ops *backend)
{
	struct scene *scene = calloc(1, sizeof(*scene));
	/* small, so that a target is not where its rank has been given something before */
	struct zd_bridge_config config = {
	        .backend = backend, .ndevices = 2, .arena_bytes = 64 << 20, .segment_bytes = SLOT_BYTES};
	struct zd_api_limits limits = default_limits();

	assert_non_null(scene);
	assert_int_equal(zd_loop_init(&scene->loop, NULL), 0);
	assert_int_equal(zd_api_open(&scene->api, &scene->loop, &config, &limits, NULL), 0);
	scene->api.conns.users.turn_ns = UINT64_MAX;
	scene->witness = scene_session(scene);
	*state = scene;
	return 0;
}

/* ---- A client ------------------------------------------------------------------------------------------ */

struct peer {
	struct scene *scene;
	int sock, channel; /* channel -1: none */
	uint64_t last_id, unit, bucket, group;
	uint64_t *client_page;
	const uint64_t *daemon_page;
	struct zd_work_page *results;
	struct {
		uint32_t id;
		uint8_t *bytes;
		size_t nbytes;
	} segments[SEGMENTS];
	unsigned nsegments, nretired;
	Zd__DaemonPacket *packets[PACKETS];
	unsigned npackets;
	bool ended;
};

static inline void *map(int fd, size_t nbytes)
{
	void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	assert_ptr_not_equal(at, MAP_FAILED);
	(void)close(fd);
	return at;
}

static inline void take_hello(struct peer *peer, const int *fds, unsigned nfds)
{
	peer->client_page = map(fds[0], ZD_FENCE_PAGE_BYTES);
	peer->daemon_page = mmap(NULL, ZD_FENCE_PAGE_BYTES, PROT_READ, MAP_SHARED, fds[1], 0);
	assert_ptr_not_equal(peer->daemon_page, MAP_FAILED);
	(void)close(fds[1]);
	if (nfds == 2)
		return;
	assert_int_equal(nfds, 4);
	peer->channel = fds[2];
	peer->results = map(fds[3], ZD_WORK_PAGE_BYTES);
}

static inline void take_segments(struct peer *peer, const Zd__DaemonPacket *packet, const int *fds,
                                 unsigned nfds)
{
	assert_int_equal(nfds, packet->n_segments);
	for (unsigned i = 0; i < nfds; i++) {
		const Zd__Segment *segment = packet->segments[i];

		assert_true(peer->nsegments < SEGMENTS);
		peer->segments[peer->nsegments].id = segment->id;
		peer->segments[peer->nsegments].nbytes = segment->bytes;
		peer->segments[peer->nsegments++].bytes = map(fds[i], segment->bytes);
	}
}

/* Reads a packet of the connection, if there is one. */
static inline bool read_connection(struct peer *peer)
{
	int fds[ZD_MAX_PACKET_FDS];
	Zd__DaemonPacket *packet;
	unsigned nfds;
	size_t nbytes;
	int rc = zd_frame_recv(peer->sock, peer->scene->received, sizeof(peer->scene->received), &nbytes, fds,
	                       &nfds, NULL);

	if (rc == ZEROD_E_DISCONNECTED)
		peer->ended = true;
	if (rc)
		return false;
	packet = zd__daemon_packet__unpack(NULL, nbytes, peer->scene->received);
	assert_non_null(packet);
	assert_true(peer->npackets < PACKETS);
	peer->packets[peer->npackets++] = packet;
	peer->nretired += (unsigned)packet->n_retired;
	if (packet->n_replies > 0 && packet->replies[0]->body_case == ZD__REPLY__BODY_HELLO)
		take_hello(peer, fds, nfds);
	else
		take_segments(peer, packet, fds, nfds);
	return true;
}

static inline const Zd__Reply *find_reply(const struct peer *peer, uint64_t id)
{
	for (unsigned i = 0; i < peer->npackets; i++)
		for (size_t j = 0; j < peer->packets[i]->n_replies; j++)
			if (peer->packets[i]->replies[j]->id == id)
				return peer->packets[i]->replies[j];
	return NULL;
}

static inline const Zd__Reply *await_reply(struct peer *peer, uint64_t id)
{
	const Zd__Reply *reply;

	while (!(reply = find_reply(peer, id)) && !peer->ended)
		if (!read_connection(peer) && !peer->ended)
			(void)zd_loop_run_once(&peer->scene->loop, true);
	assert_non_null(reply);
	return reply;
}

static inline uint64_t ask(struct peer *peer, Zd__Request *request)
{
	request->id = ++peer->last_id;
	scene_send(peer->sock, &request, 1);
	return request->id;
}

static inline const Zd__Reply *call(struct peer *peer, Zd__Request *request)
{
	const Zd__Reply *reply = await_reply(peer, ask(peer, request));

	assert_string_equal(reply->error, "");
	return reply;
}

static inline void greet_with(struct scene *scene, struct peer *peer, const char *const *features,
                              size_t count)
{
	*peer = (struct peer){.scene = scene, .sock = scene_connect(scene), .channel = -1};
	(void)call(peer, RAW(HELLO, hello, Hello, .version_min = 1, .version_max = 1,
	                     .name = RAW_TEXT("peer"), .n_features = count, .features = (char **)features));
}

static inline void greet(struct scene *scene, struct peer *peer, const char *feature)
{
	greet_with(scene, peer, &feature, feature ? 1 : 0);
}

static inline void close_peer(struct peer *peer)
{
	for (unsigned i = 0; i < peer->npackets; i++)
		zd__daemon_packet__free_unpacked(peer->packets[i], NULL);
	for (unsigned i = 0; i < peer->nsegments; i++)
		(void)munmap(peer->segments[i].bytes, peer->segments[i].nbytes);
	(void)munmap(peer->client_page, ZD_FENCE_PAGE_BYTES);
	(void)munmap((void *)peer->daemon_page, ZD_FENCE_PAGE_BYTES);
	if (peer->results)
		(void)munmap(peer->results, ZD_WORK_PAGE_BYTES);
	(void)close(peer->sock);
	if (peer->channel >= 0)
		(void)close(peer->channel);
}

static inline float *place_at(const struct peer *peer, uint32_t segment, uint64_t offset)
{
	for (unsigned i = 0; i < peer->nsegments; i++)
		if (peer->segments[i].id == segment)
			return (float *)(void *)(peer->segments[i].bytes + offset);
	fail_msg("segment %u was not announced", segment);
	return NULL;
}

static inline float *at(const struct peer *peer, const Zd__Location *place)
{
	return place_at(peer, place->segment, place->offset);
}

static inline float *input_at(const struct peer *peer, const Zd__Sum *sum, size_t i)
{
	assert_true(i < sum->n_input_segments && i < sum->n_input_offsets);
	return place_at(peer, sum->input_segments[i], sum->input_offsets[i]);
}

/* ---- Its gradients ------------------------------------------------------------------------------------- */

static inline uint64_t register_unit(struct peer *peer, const char *name)
{
	return call(peer, RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = peer->group,
	                      .name = RAW_TEXT(name), .dtype = ZEROD_FLOAT32, .numel = NUMEL))
	        ->unit_register->unit;
}

/* The only rank of its job, in a backward with a bucket. */
static inline void begin_backward(struct peer *peer, const char *job)
{
	peer->group = call(peer, RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT(job),
	                             .group = RAW_TEXT("world"), .world_size = 1))
	                      ->group_join->group;
	peer->unit = register_unit(peer, "w");
	(void)call(peer, RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = peer->group, .stage = 3,
	                     .boundary = true, .target_dtype = ZEROD_FLOAT32));
	peer->bucket = call(peer, RAW(BUCKET_CREATE, bucket_create, BucketCreate, .group = peer->group,
	                              .dtype = ZEROD_FLOAT32, .slot_bytes = SLOT_BYTES, .nslots = 1))
	                       ->bucket_create->bucket;
}

/* All of it `value`. */
static inline void reduce(struct peer *peer, uint64_t unit, float value)
{
	const Zd__BucketReserveReply *entry = call(peer, RAW(BUCKET_RESERVE, bucket_reserve, BucketReserve,
	                                                     .bucket = peer->bucket, .unit = unit))
	                                              ->bucket_reserve;
	float *to = at(peer, entry->location);

	for (uint64_t i = 0; i < entry->location->bytes / sizeof(*to); i++)
		to[i] = value;
	(void)call(peer, RAW(BUCKET_SUBMIT, bucket_submit, BucketSubmit, .bucket = peer->bucket,
	                     .entry = entry->entry));
}

/* ---- Its work ------------------------------------------------------------------------------------------ */

/* NULL: none has come. To be freed. */
static inline Zd__WorkPacket *read_channel(struct peer *peer)
{
	Zd__WorkPacket *packet;
	int fds[ZD_MAX_PACKET_FDS];
	unsigned nfds;
	size_t nbytes;

	if (zd_frame_recv(peer->channel, peer->scene->received, sizeof(peer->scene->received), &nbytes, fds,
	                  &nfds, NULL))
		return NULL;
	assert_int_equal(nfds, 0);
	packet = zd__work_packet__unpack(NULL, nbytes, peer->scene->received);
	assert_non_null(packet);
	return packet;
}

/* The next packet, before which all that it depends on has come over the connection. */
static inline Zd__WorkPacket *await_packet(struct peer *peer)
{
	Zd__WorkPacket *packet;

	while (!(packet = read_channel(peer)))
		(void)zd_loop_run_once(&peer->scene->loop, true);
	while (read_connection(peer))
		;
	return packet;
}

static inline Zd__WorkPacket *await_sum(struct peer *peer)
{
	Zd__WorkPacket *packet = await_packet(peer);

	assert_int_equal(packet->n_works, 1);
	assert_int_equal(packet->works[0]->body_case, ZD__WORK__BODY_SUM);
	assert_true(packet->works[0]->id != 0);
	return packet;
}

static inline void free_packet(Zd__WorkPacket *packet)
{
	zd__work_packet__free_unpacked(packet, NULL);
}

static inline void answer(const struct peer *peer, Zd__WorkDone *done)
{
	Zd__WorkAnswers answers = ZD__WORK_ANSWERS__INIT;
	uint8_t bytes[1024];

	answers.n_done = 1;
	answers.done = &done;
	assert_true(zd__work_answers__get_packed_size(&answers) <= sizeof(bytes));
	scene_send_bytes(peer->channel, bytes, zd__work_answers__pack(&answers, bytes));
}

static inline Zd__WorkDone begun(uint64_t id, Zd__Fence *fence)
{
	Zd__WorkDone done = ZD__WORK_DONE__INIT;

	done.id = id;
	done.fence = fence;
	return done;
}

static inline Zd__Fence fence_of(uint32_t timeline, uint64_t value)
{
	Zd__Fence fence = ZD__FENCE__INIT;

	fence.timeline = timeline;
	fence.value = value;
	return fence;
}

/* Does what a GPU would, behind the answer. */
static inline void sum_and_answer(struct peer *peer, const Zd__Work *work, struct zd_work_result result,
                                  uint64_t value)
{
	const Zd__Sum *sum = work->sum;
	Zd__Fence fence = fence_of(400, value);
	Zd__WorkDone done = begun(work->id, &fence);
	float *target = place_at(peer, sum->target_segment, sum->target_offset);

	answer(peer, &done);
	for (uint64_t i = 0; i < sum->numel; i++)
		target[i] = input_at(peer, sum, 0)[i] * sum->prescale * sum->postscale;
	peer->results->slots[sum->slot] = result;
	__atomic_store_n(&peer->client_page[400], value, __ATOMIC_RELEASE);
}

static inline const Zd__StepBeginReply *step(struct peer *peer)
{
	(void)call(peer, RAW(BACKWARD_END, backward_end, BackwardEnd, .group = peer->group));
	return call(peer, RAW(STEP_BEGIN, step_begin, StepBegin, .group = peer->group))->step_begin;
}

static inline void turn(struct scene *scene, unsigned times)
{
	while (times-- > 0)
		(void)zd_loop_run_once(&scene->loop, false);
}

#endif
