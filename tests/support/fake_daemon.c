/* SPDX-License-Identifier: Apache-2.0 */
/* fake_daemon.c - a scripted daemon for tests of the client library. */
#include "tests/support/fake_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define DEADLINE_MS 20000

/* ---- Life ---------------------------------------------------------------------------------------------- */

static void *run_script(void *arg)
{
	struct fake_daemon *fake = arg;

	fake->script(&fake->peer, fake->arg);
	if (fake->peer.sock >= 0) {
		close(fake->peer.sock);
		fake->peer.sock = -1;
	}
	return NULL;
}

static int listen_at(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	if (sock < 0 || bind(sock, (struct sockaddr *)&addr, sizeof(addr)) || listen(sock, 4)) {
		perror(path);
		return -1;
	}
	return sock;
}

int fake_start(struct fake_daemon *fake, fake_script script, void *arg)
{
	memset(fake, 0, sizeof(*fake));
	fake->script = script;
	fake->arg = arg;
	fake->peer.sock = fake->peer.channel = -1;
	snprintf(fake->dir, sizeof(fake->dir), "/tmp/zd-fake-XXXXXX");
	if (!mkdtemp(fake->dir)) {
		perror(fake->dir);
		return -1;
	}
	snprintf(fake->socket_path, sizeof(fake->socket_path), "%s/zerod.sock", fake->dir);
	fake->peer.listener = listen_at(fake->socket_path);
	if (fake->peer.listener < 0)
		return -1;
	return pthread_create(&fake->thread, NULL, run_script, fake) ? -1 : 0;
}

int fake_stop(struct fake_daemon *fake)
{
	struct fake_peer *peer = &fake->peer;

	pthread_join(fake->thread, NULL);
	close(peer->listener);
	if (peer->daemon_page)
		munmap(peer->daemon_page, ZD_FENCE_PAGE_BYTES);
	if (peer->client_page)
		munmap((void *)peer->client_page, ZD_FENCE_PAGE_BYTES);
	if (peer->segment)
		munmap(peer->segment, FAKE_SEGMENT_BYTES);
	if (peer->results)
		munmap(peer->results, ZD_WORK_PAGE_BYTES);
	if (peer->rings)
		munmap(peer->rings, peer->rings_bytes);
	if (peer->channel >= 0)
		close(peer->channel);
	if (peer->packet)
		zd__client_packet__free_unpacked(peer->packet, NULL);
	unlink(fake->socket_path);
	rmdir(fake->dir);
	return peer->failed ? -1 : 0;
}

bool fake_check_at(struct fake_peer *peer, bool held, const char *what, const char *file, int line)
{
	if (!held) {
		fprintf(stderr, "%s:%d: the script expected: %s\n", file, line, what);
		peer->failed = true;
	}
	return held;
}

/* ---- Receiving ----------------------------------------------------------------------------------------- */

static bool await_readable(struct fake_peer *peer, int fd)
{
	struct pollfd poll_for = {.fd = fd, .events = POLLIN};

	return fake_check(peer, fd >= 0 && poll(&poll_for, 1, DEADLINE_MS) == 1);
}

bool fake_accept(struct fake_peer *peer)
{
	if (await_readable(peer, peer->listener))
		peer->sock = accept4(peer->listener, NULL, NULL, SOCK_CLOEXEC);
	return fake_check(peer, peer->sock >= 0);
}

static bool read_packet(struct fake_peer *peer)
{
	static _Thread_local uint8_t bytes[ZD_MAX_PACKET_BYTES];
	struct zd_err err = ZD_ERR_NONE;
	int fds[ZD_MAX_PACKET_FDS];
	unsigned nfds;
	size_t nbytes;

	if (peer->packet)
		zd__client_packet__free_unpacked(peer->packet, NULL);
	peer->packet = NULL;
	peer->next = 0;
	if (!await_readable(peer, peer->sock))
		return false;
	if (!fake_check(peer,
	                zd_frame_recv(peer->sock, bytes, sizeof(bytes), &nbytes, fds, &nfds, &err) == 0))
		return false;
	peer->packet = zd__client_packet__unpack(NULL, nbytes, bytes);
	peer->packets++;
	return fake_check(peer, peer->packet && nfds == 0);
}

const Zd__Request *fake_expect(struct fake_peer *peer, Zd__Request__BodyCase body)
{
	const Zd__Request *request;

	while (!peer->packet || peer->next == peer->packet->n_requests)
		if (peer->failed || !read_packet(peer))
			return NULL;
	request = peer->packet->requests[peer->next++];
	if (!fake_check(peer, request->body_case == body && request->id != 0))
		return NULL;
	return request;
}

Zd__WorkAnswers *fake_take_answers(struct fake_peer *peer)
{
	uint8_t bytes[4096];
	ssize_t got = -1;
	Zd__WorkAnswers *answers = NULL;

	if (await_readable(peer, peer->channel))
		got = recv(peer->channel, bytes, sizeof(bytes), 0);
	if (fake_check(peer, got > 0))
		answers = zd__work_answers__unpack(NULL, (size_t)got, bytes);
	fake_check(peer, answers);
	return answers;
}

void fake_expect_end(struct fake_peer *peer)
{
	const Zd__Request *goodbye;
	uint8_t byte;

	if (!await_readable(peer, peer->sock) || recv(peer->sock, &byte, 1, MSG_PEEK) <= 0)
		return;
	goodbye = fake_expect(peer, ZD__REQUEST__BODY_GOODBYE);
	if (!goodbye)
		return;
	fake_ok(peer, goodbye->id);
	if (await_readable(peer, peer->sock))
		fake_check(peer, recv(peer->sock, &byte, 1, 0) <= 0);
}

void fake_await_request(struct fake_peer *peer)
{
	await_readable(peer, peer->sock);
}

void fake_await_timeline(struct fake_peer *peer, uint32_t timeline, uint64_t value)
{
	const struct timespec look_again = {.tv_nsec = 200000};

	for (unsigned looks = 0; looks < DEADLINE_MS * 5u; looks++) {
		if (__atomic_load_n(&peer->client_page[timeline], __ATOMIC_ACQUIRE) >= value)
			return;
		nanosleep(&look_again, NULL);
	}
	fake_check(peer, !"the client's timeline reaches the value");
}

/* ---- Sending ------------------------------------------------------------------------------------------- */

void fake_send_bytes(struct fake_peer *peer, const void *bytes, size_t nbytes, const int *fds, unsigned nfds)
{
	struct pollfd poll_for = {.fd = peer->sock, .events = POLLOUT};
	struct zd_err err = ZD_ERR_NONE;
	int rc;

	do
		rc = zd_frame_send(peer->sock, bytes, nbytes, fds, nfds, &err);
	while (rc == ZD_FRAME_AGAIN && poll(&poll_for, 1, DEADLINE_MS) == 1);
	fake_check(peer, rc == 0);
}

void fake_send(struct fake_peer *peer, Zd__DaemonPacket *packet, const int *fds, unsigned nfds)
{
	size_t nbytes = zd__daemon_packet__get_packed_size(packet);
	uint8_t *bytes = malloc(nbytes);

	zd__daemon_packet__pack(packet, bytes);
	fake_send_bytes(peer, bytes, nbytes, fds, nfds);
	free(bytes);
}

void fake_reply(struct fake_peer *peer, Zd__Reply *reply)
{
	Zd__DaemonPacket packet = ZD__DAEMON_PACKET__INIT;

	packet.n_replies = 1;
	packet.replies = &reply;
	fake_send(peer, &packet, NULL, 0);
}

void fake_send_work(struct fake_peer *peer, Zd__WorkPacket *packet)
{
	size_t nbytes = zd__work_packet__get_packed_size(packet);
	uint8_t *bytes = malloc(nbytes);

	zd__work_packet__pack(packet, bytes);
	fake_check(peer, zd_frame_send(peer->channel, bytes, nbytes, NULL, 0, NULL) == 0);
	free(bytes);
}

void fake_ok(struct fake_peer *peer, uint64_t id)
{
	fake_error(peer, id, 0, "");
}

void fake_error(struct fake_peer *peer, uint64_t id, int status, const char *text)
{
	Zd__Reply reply = ZD__REPLY__INIT;

	reply.id = id;
	reply.status = status;
	reply.error = (char *)text;
	fake_reply(peer, &reply);
}

void fake_signal(struct fake_peer *peer, uint32_t timeline, uint64_t value)
{
	uint64_t *counter = &peer->daemon_page[timeline];

	__atomic_store_n(counter, value, __ATOMIC_RELEASE);
	syscall(SYS_futex, (uint32_t *)counter + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__), FUTEX_WAKE,
	        INT_MAX, NULL, NULL, 0);
}

void fake_abort(struct fake_peer *peer)
{
	for (uint32_t i = 0; i < ZD_TIMELINES; i++)
		fake_signal(peer, i, ZD_FENCE_ABORTED);
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

int fake_memfd(size_t bytes, int seals, void **map)
{
	int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, (off_t)bytes))
		abort();
	if (map) {
		*map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (*map == MAP_FAILED)
			abort();
	}
	if (seals == FAKE_SEALS)
		seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	if (seals && fcntl(fd, F_ADD_SEALS, seals))
		abort();
	return fd;
}

/* ---- Scenes -------------------------------------------------------------------------------------------- */

/* The client's ends. */
static void make_work_fds(struct fake_peer *peer, int fds[2])
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
		abort();
	peer->channel = pair[0];
	fds[0] = pair[1];
	fds[1] = fake_memfd(ZD_WORK_PAGE_BYTES, FAKE_SEALS, (void **)&peer->results);
}

static unsigned make_fds(struct fake_peer *peer, int fds[4])
{
	int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

	fds[0] = fake_memfd(ZD_FENCE_PAGE_BYTES, FAKE_SEALS, (void **)&peer->client_page);
	fds[1] = fake_memfd(ZD_FENCE_PAGE_BYTES, peer->on_gpus ? FAKE_SEALS : seals,
	                    (void **)&peer->daemon_page);
	if (peer->on_gpus)
		make_work_fds(peer, fds + 2);
	if (peer->rings_bytes) {
		fds[2] = fake_memfd(peer->rings_bytes, FAKE_SEALS, (void **)&peer->rings);
		peer->feature = ZD_FEATURE_RINGS;
	}
	return 2 + (peer->on_gpus ? 2 : 0) + (peer->rings_bytes > 0);
}

void fake_hello(struct fake_peer *peer)
{
	static const char *const asked[] = {ZD_FEATURE_WORK, ZD_FEATURE_WORK_AHEAD, ZD_FEATURE_FRAMES,
	                                    ZD_FEATURE_RINGS};
	Zd__DaemonPacket packet = ZD__DAEMON_PACKET__INIT;
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__Reply *replies = &reply;
	Zd__HelloReply hello = ZD__HELLO_REPLY__INIT;
	const Zd__Request *request;
	unsigned nfds;
	int fds[4];

	if (!fake_accept(peer))
		return;
	request = fake_expect(peer, ZD__REQUEST__BODY_HELLO);
	if (!request)
		return;
	fake_check(peer, request->hello->version_min == ZD_PROTOCOL_VERSION);
	if (peer->on_gpus && fake_check(peer, request->hello->n_features == 4))
		for (unsigned i = 0; i < 4; i++)
			fake_check(peer, strcmp(request->hello->features[i], asked[i]) == 0);
	nfds = make_fds(peer, fds);
	hello.version = ZD_PROTOCOL_VERSION;
	hello.session = 1;
	hello.backend = (char *)(peer->on_gpus ? "cuda" : "");
	hello.devices = 1;
	hello.timelines = ZD_TIMELINES;
	hello.poison = peer->poison;
	hello.n_features = peer->on_gpus ? 2 : peer->feature != NULL;
	hello.features = peer->on_gpus ? (char **)asked : (char **)&peer->feature;
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_HELLO;
	reply.hello = &hello;
	packet.n_replies = 1;
	packet.replies = &replies;
	fake_send(peer, &packet, fds, nfds);
	for (unsigned i = 0; i < nfds; i++)
		close(fds[i]);
}

void fake_serve_join(struct fake_peer *peer)
{
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_GROUP_JOIN);
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__GroupJoinReply join = ZD__GROUP_JOIN_REPLY__INIT;

	if (!request)
		return;
	join.group = FAKE_GROUP;
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_GROUP_JOIN;
	reply.group_join = &join;
	fake_reply(peer, &reply);
}

void fake_serve_register(struct fake_peer *peer)
{
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_UNIT_REGISTER);
	Zd__DaemonPacket packet = ZD__DAEMON_PACKET__INIT;
	Zd__Segment segment = ZD__SEGMENT__INIT;
	Zd__Segment *segments = &segment;
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__Reply *replies = &reply;
	Zd__UnitRegisterReply registered = ZD__UNIT_REGISTER_REPLY__INIT;
	Zd__Location shard = ZD__LOCATION__INIT;
	int fd;

	if (!request)
		return;
	fd = fake_memfd(FAKE_SEGMENT_BYTES, FAKE_SEALS, (void **)&peer->segment);
	segment.id = FAKE_SEGMENT;
	segment.bytes = FAKE_SEGMENT_BYTES;
	shard.segment = FAKE_SEGMENT;
	shard.bytes = FAKE_SHARD_BYTES;
	registered.unit = FAKE_UNIT;
	registered.description = FAKE_DESCRIPTION;
	registered.shard = &shard;
	registered.shard_numel = FAKE_SHARD_BYTES / sizeof(float);
	registered.true_numel = registered.shard_numel;
	registered.padded_numel = registered.shard_numel * (peer->world_size ? peer->world_size : 2);
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_UNIT_REGISTER;
	reply.unit_register = &registered;
	packet.n_segments = 1;
	packet.segments = &segments;
	packet.n_replies = 1;
	packet.replies = &replies;
	fake_send(peer, &packet, &fd, 1);
	close(fd);
}

void fake_serve_unit(struct fake_peer *peer)
{
	fake_hello(peer);
	if (!peer->failed)
		fake_serve_join(peer);
	if (!peer->failed)
		fake_serve_register(peer);
}

void fake_gather_reply(struct fake_peer *peer, uint64_t id, uint64_t value)
{
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__GatherReply gather = ZD__GATHER_REPLY__INIT;
	Zd__Location buffer = ZD__LOCATION__INIT;
	Zd__Fence fence = ZD__FENCE__INIT;
	Zd__Fence *fences = &fence;

	buffer.segment = FAKE_SEGMENT;
	buffer.offset = FAKE_BUFFER_OFFSET;
	buffer.bytes = FAKE_PADDED_BYTES;
	fence.value = value;
	gather.buffer = &buffer;
	gather.n_fences = value != 0;
	gather.fences = &fences;
	reply.id = id;
	reply.body_case = ZD__REPLY__BODY_GATHER;
	reply.gather = &gather;
	fake_reply(peer, &reply);
}
