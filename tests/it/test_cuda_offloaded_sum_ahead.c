/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_offloaded_sum_ahead.c - sums that a client is asked for before their inputs are there: what its
 * GPU waits for, and what a daemon must not say; opposite a scripted daemon, over the driver's double.
 *
 * All of it happens while the client waits for the reply to its join: it has a GPU then, and makes sums.
 */
#include "client_scene.h"

#include <sys/mman.h>

#include "client/lib/base/fence.h"
#include "client/lib/device/cuda.h"
#include "client/lib/segments/cuda_context.h"
#include "tests/unit/driver/cases.h"

#define NUMEL     64u
#define SUM_BYTES (NUMEL * sizeof(float))
#define SEGMENT   3u
#define BYTES     (2ul << 20)

/* ---- The GPU ------------------------------------------------------------------------------------------- */

/* The daemon's memory, as it and this test see it: for each sum its input and then its target. */
struct gpu {
	char name[ZD_CUDA_UUID_TEXT];
	int fd;
	float (*at)[2][NUMEL];
};

static void open_gpu(struct gpu *gpu)
{
	const struct zd_cu_allocation allocation = {.type = ZD_CU_ALLOCATION_PINNED,
	                                            .handle_types = ZD_CU_HANDLE_POSIX_FD,
	                                            .location = {ZD_CU_LOCATION_DEVICE, 0}};
	const struct zd_cuda *driver = NULL;
	struct CUctx_st *context = NULL;
	struct zd_cu_uuid uuid;
	zd_cu_memory memory;

	assert_int_equal(zd_cuda_load(&driver, NULL), 0);
	assert_int_equal(driver->deviceGetUuid(&uuid, 0), 0);
	zd_cuda_uuid_text(&uuid, gpu->name);
	assert_int_equal(driver->devicePrimaryCtxRetain(&context, 0), 0);
	assert_int_equal(driver->ctxSetCurrent(context), 0);
	assert_int_equal(driver->memCreate(&memory, BYTES, &allocation, 0), 0);
	assert_int_equal(driver->memExportToShareableHandle(&gpu->fd, memory, ZD_CU_HANDLE_POSIX_FD, 0), 0);
	assert_int_equal(driver->memRelease(memory), 0);
	gpu->at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, gpu->fd, 0);
	assert_ptr_not_equal(gpu->at, MAP_FAILED);
}

static void close_gpu(struct gpu *gpu)
{
	(void)munmap(gpu->at, BYTES);
	(void)close(gpu->fd);
}

static void fill(float values[NUMEL], float value)
{
	for (unsigned i = 0; i < NUMEL; i++)
		values[i] = value;
}

static bool holds(const float values[NUMEL], float value)
{
	unsigned count = 0;

	for (unsigned i = 0; i < NUMEL; i++)
		count += values[i] == value;
	return count == NUMEL;
}

/* ---- The daemon ---------------------------------------------------------------------------------------- */

static void serve_devices(struct fake_peer *peer, const char *name)
{
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_LIST);
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__ListReply list = ZD__LIST_REPLY__INIT;
	Zd__Row row = ZD__ROW__INIT, *rows = &row;
	Zd__DeviceRow device = ZD__DEVICE_ROW__INIT;

	if (!request)
		return;
	device.name = (char *)name;
	device.state = (char *)"ok";
	row.row_case = ZD__ROW__ROW_DEVICE;
	row.device = &device;
	list.n_rows = 1;
	list.rows = &rows;
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_LIST;
	reply.list = &list;
	fake_reply(peer, &reply);
}

/* Until the client has sent its join, whose id is returned, and has been told of the segment. */
static uint64_t serve_gpu(struct fake_peer *peer, const struct gpu *gpu)
{
	Zd__DaemonPacket packet = ZD__DAEMON_PACKET__INIT;
	Zd__Segment segment = ZD__SEGMENT__INIT, *segments = &segment;
	const Zd__Request *request;

	peer->on_gpus = true;
	fake_hello(peer);
	serve_devices(peer, gpu->name);
	request = fake_expect(peer, ZD__REQUEST__BODY_GROUP_JOIN);
	segment.id = SEGMENT;
	segment.bytes = BYTES;
	packet.n_segments = 1;
	packet.segments = &segments;
	fake_send(peer, &packet, &gpu->fd, 1);
	return request ? request->id : 0;
}

static void end_join(struct fake_peer *peer, uint64_t id)
{
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__GroupJoinReply join = ZD__GROUP_JOIN_REPLY__INIT;

	join.group = 5;
	reply.id = id;
	reply.body_case = ZD__REPLY__BODY_GROUP_JOIN;
	reply.group_join = &join;
	fake_reply(peer, &reply);
}

static const struct mistakes {
	bool more_segments, more_offsets, more_timelines, more_values, no_target;
} none = {false, false, false, false, false};

static uint64_t place_of(uint32_t number, unsigned which)
{
	return (2u * number + which) * SUM_BYTES;
}

/* Sum `number` is of its input, in slot `number`. Of its two lists of inputs and two of fences some may be
 * longer than they should be. */
static void ask_sum(struct fake_peer *peer, uint32_t number, const struct zc_fence *fences, size_t count,
                    const struct mistakes *mistakes)
{
	uint32_t timelines[ZD_MAX_WORLD + 1] = {0}, segments[] = {SEGMENT, SEGMENT};
	uint64_t values[ZD_MAX_WORLD + 1] = {0}, inputs[] = {place_of(number, 0), place_of(number, 0)};
	Zd__WorkPacket packet = ZD__WORK_PACKET__INIT;
	Zd__Work work = ZD__WORK__INIT, *works = &work;
	Zd__Sum sum = ZD__SUM__INIT;

	for (size_t i = 0; i < count; i++) {
		timelines[i] = fences[i].timeline;
		values[i] = fences[i].value;
	}
	sum.input_dtype = sum.target_dtype = ZEROD_FLOAT32;
	sum.numel = NUMEL;
	sum.n_input_segments = 1 + (size_t)mistakes->more_segments;
	sum.input_segments = segments;
	sum.n_input_offsets = 1 + (size_t)mistakes->more_offsets;
	sum.input_offsets = inputs;
	sum.target_segment = mistakes->no_target ? 0 : SEGMENT;
	sum.target_offset = place_of(number, 1);
	sum.prescale = sum.postscale = 1;
	sum.overwrite = true;
	sum.slot = number;
	sum.n_fence_timelines = count + (size_t)mistakes->more_timelines;
	sum.fence_timelines = timelines;
	sum.n_fence_values = count + (size_t)mistakes->more_values;
	sum.fence_values = values;
	work.id = number + 1;
	work.body_case = ZD__WORK__BODY_SUM;
	work.sum = &sum;
	packet.n_works = 1;
	packet.works = &works;
	fake_send_work(peer, &packet);
}

/* Returns the fence in the client's answer, which passes at the sum's end. */
static struct zc_fence take_answer(struct fake_peer *peer, uint32_t number)
{
	Zd__WorkAnswers *answers = fake_take_answers(peer);
	struct zc_fence fence = {0, 0};

	if (!answers)
		return fence;
	if (fake_check(peer, answers->n_done == 1 && answers->done[0]->id == number + 1) &&
	    fake_check(peer, answers->done[0]->status == 0 && answers->done[0]->fence))
		fence = (struct zc_fence){answers->done[0]->fence->timeline, answers->done[0]->fence->value};
	zd__work_answers__free_unpacked(answers, NULL);
	return fence;
}

static bool is_done(const struct fake_peer *peer, struct zc_fence fence)
{
	return __atomic_load_n(&peer->client_page[fence.timeline], __ATOMIC_ACQUIRE) >= fence.value;
}

/* ---- The client ---------------------------------------------------------------------------------------- */

/* How the join ends. */
static int join(struct scene *scene, fake_script script, void *arg)
{
	struct zerod_group_options options = ZEROD_INIT(options);

	scene_connect(scene, script, arg, 20000);
	options.job = "job";
	options.world_size = 1;
	return zerod_group_join(scene->client, &options, &scene->group);
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

static void serve_goodbye(struct fake_peer *peer)
{
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_GOODBYE);

	if (request)
		fake_ok(peer, request->id);
}

/* On the GPU's other streams; those that have nothing to wait for are done with. */
static void run_others(struct fake_peer *peer, const struct gpu *gpu)
{
	const struct zc_fence passed = {9, 4};

	fake_signal(peer, passed.timeline, passed.value);
	for (uint32_t number = 1; number < ZC_SUM_STREAMS && !peer->failed; number++) {
		struct zc_fence done;

		fill(gpu->at[number][0], 2);
		ask_sum(peer, number, &passed, number % 2, &none);
		done = take_answer(peer, number);
		fake_await_timeline(peer, done.timeline, done.value);
		fake_check(peer, holds(gpu->at[number][1], 2));
		fake_check(peer, peer->results->slots[number].sum_squares == 4 * NUMEL);
	}
}

static void ask_ahead(struct fake_peer *peer, void *arg)
{
	static const struct zc_fence fences[] = {{5, 3}, {ZD_TIMELINES - 1, 1}};
	const struct gpu *gpu = arg;
	uint64_t id = serve_gpu(peer, gpu);
	struct zc_fence done;

	fill(gpu->at[0][0], 1);
	fill(gpu->at[0][1], -1);
	fake_signal(peer, 5, 2);
	ask_sum(peer, 0, fences, 2, &none);
	done = take_answer(peer, 0);
	fake_signal(peer, fences[1].timeline, fences[1].value);
	run_others(peer, gpu);
	fake_check(peer, !is_done(peer, done) && holds(gpu->at[0][1], -1));
	fake_check(peer, peer->results->slots[0].sum_squares == 0);
	fill(gpu->at[0][0], 7); /* its input has come */
	fake_signal(peer, fences[0].timeline, fences[0].value);
	fake_await_timeline(peer, done.timeline, done.value);
	fake_check(peer, holds(gpu->at[0][1], 7));
	fake_check(peer, peer->results->slots[0].sum_squares == 49 * NUMEL);
	end_join(peer, id);
	serve_goodbye(peer);
}

/* It is answered at once, and waits for each of its fences; the others are not held up. */
CASE_TEST(test_sum_waits_for_its_fences)
{
	struct scene scene;
	struct gpu gpu;

	open_gpu(&gpu);
	assert_status(scene.client, join(&scene, ask_ahead, &gpu), ZEROD_OK);
	scene_close(&scene);
	close_gpu(&gpu);
}

static void leave_amid_a_sum(struct fake_peer *peer, void *arg)
{
	const struct zc_fence never = {5, 3};
	struct zc_fence done;

	(void)serve_gpu(peer, arg);
	ask_sum(peer, 0, &never, 1, &none);
	done = take_answer(peer, 0);
	fake_check(peer, !is_done(peer, done));
	close(peer->sock);
	peer->sock = -1;
	fake_await_timeline(peer, done.timeline, done.value);
}

/* The sum's fence never passes: the end of the daemon frees the sum. */
CASE_TEST(test_end_of_the_daemon_frees_it)
{
	struct scene scene;
	struct gpu gpu;

	open_gpu(&gpu);
	assert_status(scene.client, join(&scene, leave_amid_a_sum, &gpu), ZEROD_E_DISCONNECTED);
	assert_int_equal(fake_stop(&scene.fake), 0);
	zerod_close(scene.client);
	close_gpu(&gpu);
}

static const struct bad_case {
	struct zc_fence fence;
	size_t count;
	const char *text;
	struct mistakes mistakes;
} bad_cases[] = {
        {{ZD_TIMELINES, 1}, 1, "a sum after timeline 1024, value 1", {0}},
        {{UINT32_MAX, 1}, 1, "a sum after timeline 4294967295, value 1", {0}},
        {{3, 0}, 1, "a sum after timeline 3, value 0", {0}},
        {{3, ZD_FENCE_ABORTED}, 1, "a sum after timeline 3, value 9223372036854775807", {0}},
        {{3, UINT64_MAX}, 1, "a sum after timeline 3, value 18446744073709551615", {0}},
        {{3, 1}, ZD_MAX_WORLD + 1, "a sum after 1025 fences", {0}},
        {{3, 1}, 1, "1 offsets for 2 inputs, 1 values for 1 fences", {.more_segments = true}},
        {{3, 1}, 1, "2 offsets for 1 inputs, 1 values for 1 fences", {.more_offsets = true}},
        {{3, 1}, 1, "1 offsets for 1 inputs, 1 values for 2 fences", {.more_timelines = true}},
        {{3, 1}, 1, "1 offsets for 1 inputs, 2 values for 1 fences", {.more_values = true}},
        {{3, 1}, 1, "a sum without a target", {.no_target = true}},
};

struct bad_daemon {
	struct gpu gpu;
	const struct bad_case *one;
};

static void ask_what_cannot_be(struct fake_peer *peer, void *arg)
{
	const struct bad_daemon *daemon = arg;

	struct zc_fence fences[ZD_MAX_WORLD + 1];

	(void)serve_gpu(peer, &daemon->gpu);
	fill(daemon->gpu.at[0][1], -1);
	for (size_t i = 0; i < daemon->one->count; i++)
		fences[i] = daemon->one->fence;
	ask_sum(peer, 0, fences, daemon->one->count, &daemon->one->mistakes);
	fake_expect_end(peer);
	fake_check(peer, holds(daemon->gpu.at[0][1], -1));
}

CASE_TEST(test_fences_that_cannot_be)
{
	for (size_t i = 0; i < ZD_ARRAY_LEN(bad_cases); i++) {
		struct bad_daemon daemon = {.one = &bad_cases[i]};
		struct scene scene;

		open_gpu(&daemon.gpu);
		assert_status(scene.client, join(&scene, ask_what_cannot_be, &daemon), ZEROD_E_PROTOCOL);
		assert_non_null(strstr(zerod_last_error(scene.client), bad_cases[i].text));
		scene_close(&scene);
		close_gpu(&daemon.gpu);
	}
}

int main(int argc, char **argv)
{
	if (argc == 1)
		(void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
	return case_run_all(argc, argv);
}
