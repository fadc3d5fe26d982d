/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_floods.c - the loop's time before another user's request is answered, while one user floods it.
 *
 * The daemon's loop runs in this thread, and clients of two users are socket pairs in front of it. In each
 * sample the flood's sockets are filled, then the other user sends one plain request, and the loop runs until
 * the reply is there. The time is the thread's own, so other load on the machine changes little. Needs root,
 * for the second user.
 *
 * Also the loop's time for a packet of 32 plain requests, and for single large requests.
 */
#include <limits.h>
#include <malloc.h>
#include <sys/un.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "core/engine/objects.h"
#include "server/listener.h"
#include "tests/unit/server/api_scene.h"

#define SAMPLES     1000u
#define FEW_SAMPLES 100u /* of floods whose samples take long to make */
#define FLOODS      16u
#define ENDING      64u
#define OTHER_UID   12345u
#define UNITS       1000u
#define LARGE       10000u
#define PAGED       5000u
#define ALONE_NS    200000000

static struct scene *scene;
static struct zd_listener listener;
static struct sockaddr_un address;
static socklen_t address_bytes;
static int listening, other, flood[FLOODS], ending[ENDING];
static uint64_t units[ZD_MAX_UNITS];
static uint8_t flood_bytes[ZD_MAX_PACKET_BYTES];
static size_t flood_nbytes;

static uint64_t thread_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* ---- Packets ------------------------------------------------------------------------------------------- */

/* The same request `count` times; clients need no distinct ids when all are answered at once. */
static size_t pack(Zd__Request *request, size_t count, uint8_t *bytes)
{
	Zd__Request requests[ZD_MAX_BATCH], *pointers[ZD_MAX_BATCH];
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;

	for (size_t i = 0; i < count; i++) {
		requests[i] = request[0];
		requests[i].id = i + 1;
		pointers[i] = &requests[i];
	}
	packet.requests = pointers;
	packet.n_requests = count;
	return zd__client_packet__pack(&packet, bytes);
}

static size_t pack_plain(size_t count, uint8_t *bytes)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Free body = ZD__FREE__INIT;

	body.allocation = UINT64_MAX;
	request.body_case = ZD__REQUEST__BODY_FREE;
	request.free = &body;
	return pack(&request, count, bytes);
}

static void discard(int sock)
{
	while (recv(sock, scene->received, sizeof(scene->received), MSG_DONTWAIT) > 0)
		continue;
}

static void fill(int sock)
{
	discard(sock);
	while (send(sock, flood_bytes, flood_nbytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		continue;
}

static void fill_all(void)
{
	for (unsigned i = 0; i < FLOODS; i++)
		fill(flood[i]);
}

/* ---- Samples ------------------------------------------------------------------------------------------- */

static uint64_t longest_ns;

static uint64_t turn(void)
{
	uint64_t began_ns = thread_ns(), took_ns;

	(void)zd_loop_run_once(&scene->loop, false);
	took_ns = thread_ns() - began_ns;
	longest_ns = zd_max_u64(longest_ns, took_ns);
	return took_ns;
}

static uint64_t time_of_other(void)
{
	uint8_t bytes[64];
	uint64_t total_ns = 0;
	size_t nbytes = pack_plain(1, bytes);

	scene_send_bytes(other, bytes, nbytes);
	do
		total_ns += turn();
	while (recv(other, scene->received, sizeof(scene->received), MSG_DONTWAIT) <= 0);
	return total_ns;
}

static void report(const char *name, uint64_t *took_ns, unsigned count)
{
	unsigned median = count / 2, near_last = count - 1 - count / 100;

	qsort(took_ns, count, sizeof(*took_ns), by_value);
	printf("%-28s %8.1f %8.1f %8.1f %10.1f\n", name, (double)took_ns[median] / 1e3,
	       (double)took_ns[near_last] / 1e3, (double)took_ns[count - 1] / 1e3, (double)longest_ns / 1e3);
	(void)fflush(stdout);
}

static void settle(void)
{
	for (unsigned i = 0; i < FLOODS; i++)
		discard(flood[i]);
	for (unsigned quiet = 0; quiet < 1000; quiet++) {
		(void)zd_loop_run_once(&scene->loop, false);
		for (unsigned i = 0; i < FLOODS; i++)
			discard(flood[i]);
		if (scene->api.conns.users.nwith_tasks > 0)
			quiet = 0;
	}
}

static void measure(const char *name, void (*prepare)(void), void (*after)(void), unsigned count)
{
	static uint64_t took_ns[SAMPLES];

	longest_ns = 0;
	for (unsigned i = 0; i < count; i++) {
		if (prepare)
			prepare();
		for (unsigned early = i % 4; early > 0 && !after; early--)
			(void)turn();
		took_ns[i] = time_of_other();
		if (after)
			after();
	}
	report(name, took_ns, count);
	settle();
}

/* ---- Floods -------------------------------------------------------------------------------------------- */

static void flood_of(const char *name, Zd__Request *request, size_t count)
{
	flood_nbytes = pack(request, count, flood_bytes);
	measure(name, fill_all, NULL, SAMPLES);
}

static int dial(void)
{
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	assert_true(sock >= 0);
	assert_int_equal(connect(sock, (struct sockaddr *)&address, address_bytes), 0);
	return sock;
}

static size_t pack_hello(uint8_t *bytes)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Hello hello = ZD__HELLO__INIT;

	hello.version_min = hello.version_max = ZD_PROTOCOL_VERSION;
	hello.name = (char *)"flood";
	request.body_case = ZD__REQUEST__BODY_HELLO;
	request.hello = &hello;
	return pack(&request, 1, bytes);
}

static void connect_all(void)
{
	uint8_t bytes[256];
	size_t nbytes = pack_hello(bytes);

	for (unsigned i = 0; i < ENDING; i++) {
		ending[i] = dial();
		scene_send_bytes(ending[i], bytes, nbytes);
	}
}

static void close_all(void)
{
	for (unsigned i = 0; i < ENDING; i++)
		(void)close(ending[i]);
}

static void end_all(void)
{
	close_all();
	while (zd_api_session_count(&scene->api) > 2 + FLOODS || scene->api.conns.count > 2 + FLOODS)
		(void)zd_loop_run_once(&scene->loop, false);
}

static void make_sessions(void)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Alloc alloc = ZD__ALLOC__INIT;
	uint8_t bytes[ZD_MAX_PACKET_BYTES];
	size_t nbytes;

	alloc.job = (char *)"ending";
	alloc.bytes = 256;
	request.body_case = ZD__REQUEST__BODY_ALLOC;
	request.alloc = &alloc;
	nbytes = pack(&request, 50, bytes);
	for (unsigned i = 0; i < ENDING; i++) {
		ending[i] = scene_session(scene);
		scene_send_bytes(ending[i], bytes, nbytes);
	}
	settle();
	for (unsigned i = 0; i < ENDING; i++)
		discard(ending[i]);
	close_all();
}

static void await_ends(void)
{
	while (zd_api_session_count(&scene->api) > 2 + FLOODS)
		(void)zd_loop_run_once(&scene->loop, false);
}

/* ---- A group of one rank ------------------------------------------------------------------------------- */

/* Returns the loop's longest time for one registration. */
static uint64_t register_units(int sock, uint64_t group, unsigned count)
{
	uint64_t slowest_ns = 0;

	for (unsigned i = 0; i < count; i++) {
		Zd__Request request = ZD__REQUEST__INIT;
		Zd__UnitRegister body = ZD__UNIT_REGISTER__INIT;
		struct delivery delivery;
		char name[32];
		uint64_t began_ns = thread_ns();

		(void)snprintf(name, sizeof(name), "unit %u", i);
		body.group = group;
		body.name = name;
		body.dtype = ZEROD_FLOAT32;
		body.numel = 16;
		request.body_case = ZD__REQUEST__BODY_UNIT_REGISTER;
		request.unit_register = &body;
		delivery = scene_call(scene, sock, &request);
		slowest_ns = zd_max_u64(slowest_ns, thread_ns() - began_ns);
		if (delivery.packet->replies[0]->status)
			printf("%s\n", delivery.packet->replies[0]->error);
		assert_int_equal(delivery.packet->replies[0]->status, 0);
		units[i] = delivery.packet->replies[0]->unit_register->unit;
		delivery_free(&delivery);
	}
	return slowest_ns;
}

static uint64_t until_reply(int sock)
{
	uint64_t total_ns = 0;

	do
		total_ns += turn();
	while (recv(sock, scene->received, sizeof(scene->received), MSG_DONTWAIT) <= 0);
	return total_ns;
}

static void send_and_turn(int sock, Zd__Request *request)
{
	request->id = ++scene->last_id;
	scene_send(sock, &request, 1);
	(void)until_reply(sock);
}

/* The longest iteration until the reply to an update, or a publication, of all units, each in one turn or,
 * beside another user, in steps. */
static void cost_of_updates(const char *what, bool in_steps)
{
	static uint64_t took_ns[SAMPLES];
	struct zd_users *users = &scene->api.conns.users;
	struct zd_users before = *users;
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__UpdateBegin update = ZD__UPDATE_BEGIN__INIT;
	Zd__Publish publish = ZD__PUBLISH__INIT;

	update.n_units = publish.n_units = UNITS;
	update.units = publish.units = units;
	users->turn_ns = in_steps ? 0 : UINT64_MAX;
	users->shared_ns = in_steps ? UINT64_MAX : 0;
	for (unsigned i = 0; i < SAMPLES; i++) {
		request.body_case = i % 2 ? ZD__REQUEST__BODY_PUBLISH : ZD__REQUEST__BODY_UPDATE_BEGIN;
		if (i % 2)
			request.publish = &publish;
		else
			request.update_begin = &update;
		longest_ns = 0;
		send_and_turn(flood[0], &request);
		took_ns[i] = longest_ns;
	}
	users->turn_ns = before.turn_ns;
	users->shared_ns = before.shared_ns;
	report(what, took_ns, SAMPLES);
}

/* Each sample has updates and publications of all units. */
static void flood_of_updates(void)
{
	Zd__Request request[2] = {ZD__REQUEST__INIT, ZD__REQUEST__INIT}, *pointers[2 * 8];
	Zd__Request many[2 * 8];
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;
	Zd__UpdateBegin update = ZD__UPDATE_BEGIN__INIT;
	Zd__Publish publish = ZD__PUBLISH__INIT;

	(void)register_units(flood[0], scene_join(scene, flood[0], "updates"), UNITS);
	cost_of_updates("1000 units: one turn", false);
	cost_of_updates("1000 units: longest step", true);
	update.n_units = publish.n_units = UNITS;
	update.units = publish.units = units;
	request[0].body_case = ZD__REQUEST__BODY_UPDATE_BEGIN;
	request[0].update_begin = &update;
	request[1].body_case = ZD__REQUEST__BODY_PUBLISH;
	request[1].publish = &publish;
	for (unsigned i = 0; i < ZD_ARRAY_LEN(many); i++) {
		many[i] = request[i % 2];
		many[i].id = i + 1;
		pointers[i] = &many[i];
	}
	packet.requests = pointers;
	packet.n_requests = ZD_ARRAY_LEN(many);
	assert_true(zd__client_packet__get_packed_size(&packet) <= sizeof(flood_bytes));
	flood_nbytes = zd__client_packet__pack(&packet, flood_bytes);
	measure("updates of 1000 units", fill_all, NULL, SAMPLES);
}

/* As many empty messages as a packet holds. */
static void flood_of_empty_messages(void)
{
	static Zd__Fence fence = ZD__FENCE__INIT, *fences[32000];
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Publish publish = ZD__PUBLISH__INIT;

	for (unsigned i = 0; i < ZD_ARRAY_LEN(fences); i++)
		fences[i] = &fence;
	publish.n_fences = ZD_ARRAY_LEN(fences);
	publish.fences = fences;
	request.body_case = ZD__REQUEST__BODY_PUBLISH;
	request.publish = &publish;
	flood_of("packets of empty messages", &request, 1);
	settle();
}

/* ---- Single costs -------------------------------------------------------------------------------------- */

static void cost_of_bytes(const char *name, const uint8_t *bytes, size_t nbytes)
{
	static uint64_t took_ns[SAMPLES];

	(void)nanosleep(&(struct timespec){.tv_nsec = ALONE_NS}, NULL); /* the other user is not active */
	longest_ns = 0;
	for (unsigned i = 0; i < SAMPLES; i++) {
		scene_send_bytes(flood[1], bytes, nbytes);
		took_ns[i] = until_reply(flood[1]);
	}
	report(name, took_ns, SAMPLES);
}

static void cost_of_packet(unsigned count)
{
	uint8_t bytes[ZD_MAX_PACKET_BYTES];
	size_t nbytes = pack_plain(count, bytes);
	char name[64];

	(void)snprintf(name, sizeof(name), "a packet of %u requests", count);
	cost_of_bytes(name, bytes, nbytes);
}

/* Pages full of events, and one that ends by the number of events of which it has none. */
static void costs_of_pages(void)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Alloc alloc = ZD__ALLOC__INIT;
	Zd__List list = ZD__LIST__INIT;
	Zd__Events events = ZD__EVENTS__INIT;
	uint8_t bytes[256];

	alloc.bytes = 256;
	request.body_case = ZD__REQUEST__BODY_ALLOC;
	request.alloc = &alloc;
	for (unsigned i = 0; i < PAGED; i++) {
		alloc.job = (char *)(i % 2 ? "paged" : "other");
		assert_int_equal(scene_status(scene, flood[0], &request), 0);
	}
	list.table = ZD__TABLE__ALLOCATIONS;
	request.body_case = ZD__REQUEST__BODY_LIST;
	request.list = &list;
	cost_of_bytes("a page of a listing", bytes, pack(&request, 1, bytes));
	request.body_case = ZD__REQUEST__BODY_EVENTS;
	request.events = &events;
	cost_of_bytes("a page of events", bytes, pack(&request, 1, bytes));
	events.job = (char *)"nobody";
	cost_of_bytes("a page without events", bytes, pack(&request, 1, bytes));
}

static uint64_t cost_of(int sock, Zd__Request *request)
{
	uint64_t began_ns = thread_ns();

	assert_int_equal(scene_status(scene, sock, request), 0);
	return thread_ns() - began_ns;
}

static void print_cost(const char *what, uint64_t ns)
{
	printf("%-40s %10.1f\n", what, (double)ns / 1e3);
	(void)fflush(stdout);
}

/* An update and a publication of all units. */
static void update_units(int sock, unsigned count)
{
	for (unsigned done = 0; done < count; done += UNITS) {
		Zd__Request request = ZD__REQUEST__INIT;
		Zd__UpdateBegin update = ZD__UPDATE_BEGIN__INIT;
		Zd__Publish publish = ZD__PUBLISH__INIT;

		update.n_units = publish.n_units = count - done < UNITS ? count - done : UNITS;
		update.units = publish.units = units + done;
		request.body_case = ZD__REQUEST__BODY_UPDATE_BEGIN;
		request.update_begin = &update;
		send_and_turn(sock, &request);
		request.body_case = ZD__REQUEST__BODY_PUBLISH;
		request.publish = &publish;
		send_and_turn(sock, &request);
	}
}

static void print_commit(int sock, uint64_t group, unsigned count)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Commit commit = ZD__COMMIT__INIT;
	char what[64];

	commit.group = group;
	commit.step = 1;
	request.body_case = ZD__REQUEST__BODY_COMMIT;
	request.commit = &commit;
	(void)snprintf(what, sizeof(what), "commit, %u units", count);
	print_cost(what, cost_of(sock, &request));
}

static void cost_of_end(const char *what, int sock)
{
	unsigned before = zd_api_session_count(&scene->api);

	(void)close(sock);
	longest_ns = 0;
	while (zd_api_session_count(&scene->api) == before || scene->api.conns.users.nwith_tasks > 0)
		(void)turn();
	print_cost(what, longest_ns);
	settle();
}

static void costs_of_units(unsigned count)
{
	int sock = scene_session(scene);
	uint64_t group = scene_join(scene, sock, "large");
	char what[64];

	(void)snprintf(what, sizeof(what), "unit_register, slowest of %u", count);
	print_cost(what, register_units(sock, group, count));
	update_units(sock, count);
	print_commit(sock, group, count);
	(void)snprintf(what, sizeof(what), "end of a session, %u units", count);
	cost_of_end(what, sock);
}

static int put_nothing(void *arg, const char *name, int fd, struct zd_err *err)
{
	(void)arg;
	(void)name;
	(void)fd;
	(void)err;
	return 0;
}

static void remove_nothing(void *arg, const char *name)
{
	(void)arg;
	(void)name;
}

/* A durable group with shadows, whose units were all updated since the commit; with the journal, which is
 * written anew some times. */
static void costs_of_durable(unsigned count)
{
	static struct zd_store store = {.put = put_nothing, .remove = remove_nothing};
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__EndJob end = ZD__END_JOB__INIT;
	const struct zd_job *job;
	struct zd_err err;
	uint64_t group;
	char what[64];
	int sock;

	assert_int_equal(zd_keeper_open(&scene->api.bridge.keeper, &scene->api.bridge, &store, &err), 0);
	sock = scene_session(scene);
	group = scene_join_as(scene, sock, "durable", true);
	(void)register_units(sock, group, count);
	print_commit(sock, group, count);
	longest_ns = 0;
	for (unsigned i = 0; i < 8; i++)
		update_units(sock, count);
	(void)snprintf(what, sizeof(what), "updates of 1000 of %u durable units", count);
	print_cost(what, longest_ns);
	(void)snprintf(what, sizeof(what), "loss of a rank, %u durable units", count);
	cost_of_end(what, sock);
	sock = scene_session(scene);
	for (job = scene->api.bridge.engine->jobs; !job->durable; job = job->hh.next)
		continue;
	end.job = job->id;
	request.body_case = ZD__REQUEST__BODY_END_JOB;
	request.end_job = &end;
	longest_ns = 0;
	send_and_turn(sock, &request);
	while (scene->api.conns.users.nwith_tasks > 0)
		(void)turn();
	(void)snprintf(what, sizeof(what), "end of a durable job, %u units", count);
	print_cost(what, longest_ns);
	(void)close(sock);
	settle();
	zd_keeper_close(&scene->api.bridge.keeper);
}

/* The longest iteration until nothing of the group is left. */
static void cost_of_leave(void)
{
	int sock = scene_session(scene);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__GroupLeave leave = ZD__GROUP_LEAVE__INIT;

	leave.group = scene_join(scene, sock, "left");
	(void)register_units(sock, leave.group, LARGE);
	request.body_case = ZD__REQUEST__BODY_GROUP_LEAVE;
	request.group_leave = &leave;
	longest_ns = 0;
	send_and_turn(sock, &request);
	while (scene->api.conns.users.nwith_tasks > 0)
		(void)turn();
	print_cost("leave of a group, 10000 units", longest_ns);
	(void)close(sock);
	settle();
}

static void costs_of_allocations(void)
{
	int sock = scene_session(scene);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Alloc alloc = ZD__ALLOC__INIT;

	alloc.job = (char *)"large";
	alloc.bytes = 256;
	request.body_case = ZD__REQUEST__BODY_ALLOC;
	request.alloc = &alloc;
	for (unsigned i = 0; i < LARGE; i++)
		assert_int_equal(scene_status(scene, sock, &request), 0);
	cost_of_end("end of a session, 10000 allocations", sock);
}

static void costs_of_leases(void)
{
	int sock = scene_session(scene);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Gather gather = ZD__GATHER__INIT;

	(void)register_units(sock, scene_join(scene, sock, "large"), LARGE);
	update_units(sock, LARGE);
	request.body_case = ZD__REQUEST__BODY_GATHER;
	request.gather = &gather;
	for (unsigned i = 0; i < LARGE; i++) {
		gather.unit = units[i];
		assert_int_equal(scene_status(scene, sock, &request), 0);
	}
	cost_of_end("end of a session, 10000 leases", sock);
}

/* Joins that wait for a second rank. */
static void send_joins(int sock, unsigned session, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		Zd__Request request = ZD__REQUEST__INIT, *requests[] = {&request};
		Zd__GroupJoin body = ZD__GROUP_JOIN__INIT;
		char group[32];

		(void)snprintf(group, sizeof(group), "g%u-%u", session, i);
		body.job = (char *)"waiting";
		body.group = group;
		body.world_size = 2;
		request.id = ++scene->last_id;
		request.body_case = ZD__REQUEST__BODY_GROUP_JOIN;
		request.group_join = &body;
		scene_send(sock, requests, 1);
		for (unsigned turns = 0; turns < 2; turns++)
			(void)zd_loop_run_once(&scene->loop, false);
	}
}

/* Requests that wait in the queue of a device, and another user's event there. */
static void costs_of_waiting(void)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Alloc alloc = ZD__ALLOC__INIT;
	unsigned count = 500, before;
	char what[64];

	for (unsigned i = 0; i < FLOODS; i++) { /* the flood of empty messages has closed these */
		(void)close(flood[i]);
		flood[i] = scene_session(scene);
		send_joins(flood[i], i, count);
	}
	alloc.job = (char *)"other";
	alloc.bytes = 256;
	request.body_case = ZD__REQUEST__BODY_ALLOC;
	request.alloc = &alloc;
	(void)cost_of(other, &request); /* makes the job's segment */
	(void)snprintf(what, sizeof(what), "alloc beside %u requests that wait", count * FLOODS);
	longest_ns = 0;
	print_cost(what, cost_of(other, &request));
	before = zd_api_session_count(&scene->api);
	for (unsigned i = 0; i < FLOODS; i++)
		(void)close(flood[i]);
	while (zd_api_session_count(&scene->api) > before - FLOODS)
		(void)turn();
	(void)snprintf(what, sizeof(what), "end of a session, %u requests that wait", count);
	print_cost(what, longest_ns);
}

/* ---- Set-up -------------------------------------------------------------------------------------------- */

static void open_listener(void)
{
	struct zd_err err;

	listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	address.sun_family = AF_UNIX; /* named by the kernel, in the abstract namespace */
	address_bytes = sizeof(address);
	assert_int_equal(bind(listening, (struct sockaddr *)&address, sizeof(address.sun_family)), 0);
	assert_int_equal(listen(listening, ENDING), 0);
	assert_int_equal(getsockname(listening, (struct sockaddr *)&address, &address_bytes), 0);
	assert_int_equal(
	        zd_listener_open(&listener, &scene->loop, listening, zd_api_accept, &scene->api, &err), 0);
}

static void log_nothing(const struct zd_log_line *line)
{
	(void)line;
}

static void floods(void)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Free plain = ZD__FREE__INIT;
	Zd__DaemonStatus status = ZD__DAEMON_STATUS__INIT;
	Zd__List list = ZD__LIST__INIT;
	Zd__Events events = ZD__EVENTS__INIT;
	Zd__Alloc alloc = ZD__ALLOC__INIT;

	printf("%-28s %8s %8s %8s %10s  us of the loop\n", "another user's request", "median", "p99", "max",
	       "iteration");
	measure("quiet", NULL, NULL, SAMPLES);
	plain.allocation = UINT64_MAX;
	request.body_case = ZD__REQUEST__BODY_FREE;
	request.free = &plain;
	flood_of("packets of 256", &request, ZD_MAX_BATCH);
	request.body_case = ZD__REQUEST__BODY_DAEMON_STATUS;
	request.daemon_status = &status;
	flood_of("daemon_status", &request, ZD_MAX_BATCH);
	alloc.job = (char *)"listed";
	alloc.bytes = 256;
	request.body_case = ZD__REQUEST__BODY_ALLOC;
	request.alloc = &alloc;
	for (unsigned i = 0; i < 2000; i++)
		assert_int_equal(scene_status(scene, flood[0], &request), 0);
	list.table = ZD__TABLE__ALLOCATIONS;
	request.body_case = ZD__REQUEST__BODY_LIST;
	request.list = &list;
	flood_of("list", &request, ZD_MAX_BATCH);
	request.body_case = ZD__REQUEST__BODY_EVENTS;
	request.events = &events;
	flood_of("events", &request, ZD_MAX_BATCH);
	flood_of_updates();
	measure("64 connects", connect_all, end_all, FEW_SAMPLES);
	measure("64 ends", make_sessions, await_ends, FEW_SAMPLES);
	flood_of_empty_messages();
}

int main(void)
{
	void *state;

	if (geteuid() != 0) {
		puts("bench_floods: needs root, for a second user");
		return 0;
	}
	zd_log_set_sink(log_nothing);
	(void)mallopt(M_MXFAST, 0); /* both as the daemon does */
	(void)mallopt(M_TRIM_THRESHOLD, INT_MAX);
	assert_int_equal(scene_setup(&state), 0);
	scene = state;
	scene->api.conns.users.turn_ns = 20000;
	scene->api.conns.users.slice_ns = 4000;
	open_listener();
	for (unsigned i = 0; i < FLOODS; i++)
		flood[i] = scene_session(scene);
	assert_int_equal(seteuid(OTHER_UID), 0);
	other = scene_session(scene);
	assert_int_equal(seteuid(0), 0);
	printf("%-28s %8s %8s %8s %10s  us of the loop\n", "one user's packet", "median", "p99", "max",
	       "iteration");
	cost_of_packet(1);
	cost_of_packet(32);
	costs_of_pages();
	floods();
	printf("%-40s %10s\n", "a single request or event", "us");
	costs_of_units(LARGE);
	costs_of_units(ZD_MAX_UNITS - 1);
	cost_of_leave();
	costs_of_allocations();
	costs_of_leases();
	costs_of_waiting();
	costs_of_durable(LARGE);
	costs_of_durable(ZD_MAX_UNITS - 1);
	return 0;
}
