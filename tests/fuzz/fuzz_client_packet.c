/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_client_packet.c - a daemon that says anything, to a program that uses all of libzerod.
 *
 * An input is a list of records (script.h). A thread is the daemon: it answers each packet of the client with
 * the next record and closes when there are none. In FUZZ_REQUESTS, reply ids 1 to 4 stand for the client's
 * last, last but one, ... request, and as many descriptors go along as are announced (who 0), none (1), or
 * one too many (2). FUZZ_RUN: the record behind it is sent without being asked for. Its files are what they
 * should be, so that whatever the client was told and believed, memory that it hands out can be written.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <zerod.h>

#include "base/err.h"
#include "proto/frame.h"
#include "tests/fuzz/script.h"

#define SEGMENT_BYTES 65536u
#define SILENCE_MS    2 /* of the client, after which the next record is sent all the same */
#define REMEMBERED    4u

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t nbytes, size_t room, unsigned seed);

static char folder[] = "/tmp/zerod-fuzz-XXXXXX";
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static int listener, page, segment; /* descriptors */

struct fuzzed_daemon {
	const uint8_t *at;
	size_t left;
	int sock;
	uint64_t ids[REMEMBERED]; /* of the client's last requests */
};

/* ---- The daemon ---------------------------------------------------------------------------------------- */

static int make_file(size_t nbytes, int64_t fill)
{
	int file = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int64_t *map;

	zd_assert(file >= 0 && ftruncate(file, (off_t)nbytes) == 0);
	map = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	zd_assert(map != MAP_FAILED);
	for (size_t i = 0; i < nbytes / sizeof(*map); i++)
		map[i] = fill;
	(void)munmap(map, nbytes);
	zd_assert(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
	return file;
}

static void clean_up(void)
{
	(void)unlink(address.sun_path);
	(void)rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	zd_assert(mkdtemp(folder));
	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/s", folder);
	(void)atexit(clean_up);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	zd_assert(listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 &&
	          listen(listener, 8) == 0);
	/* Every fence has passed, whatever its value is. */
	page = make_file(ZD_FENCE_PAGE_BYTES, ZD_FENCE_ABORTED - 1);
	segment = make_file(SEGMENT_BYTES, 0);
	return 0;
}

/* False when the client has closed. */
static bool take_request(struct fuzzed_daemon *daemon)
{
	static uint8_t bytes[ZD_MAX_PACKET_BYTES];
	struct pollfd readable = {.fd = daemon->sock, .events = POLLIN};
	Zd__ClientPacket *packet;
	ssize_t got;

	if (poll(&readable, 1, SILENCE_MS) <= 0)
		return true;
	got = recv(daemon->sock, bytes, sizeof(bytes), 0);
	if (got <= 0)
		return false;
	packet = zd__client_packet__unpack(NULL, (size_t)got, bytes);
	zd_assert(packet && packet->n_requests > 0);
	for (size_t i = 0; i < packet->n_requests; i++) {
		memmove(daemon->ids + 1, daemon->ids, (REMEMBERED - 1) * sizeof(daemon->ids[0]));
		daemon->ids[0] = packet->requests[i]->id;
	}
	zd__client_packet__free_unpacked(packet, NULL);
	return true;
}

static unsigned announced(const struct fuzzed_daemon *daemon, Zd__DaemonPacket *packet)
{
	unsigned count = (unsigned)(packet->n_segments < ZD_MAX_PACKET_FDS ? packet->n_segments : 0);

	for (size_t i = 0; i < packet->n_replies; i++) {
		Zd__Reply *reply = packet->replies[i];

		if (reply->id >= 1 && reply->id <= REMEMBERED)
			reply->id = daemon->ids[reply->id - 1];
		if (reply->body_case == ZD__REPLY__BODY_HELLO && count + 2 <= ZD_MAX_PACKET_FDS)
			return count + 2;
	}
	return count;
}

static void send_packet(const struct fuzzed_daemon *daemon, const void *bytes, size_t nbytes, bool pages,
                        unsigned nfds)
{
	int fds[ZD_MAX_PACKET_FDS];

	for (unsigned i = 0; i < ZD_MAX_PACKET_FDS; i++)
		fds[i] = pages && i < 2 ? page : segment;
	(void)!zd_frame_send(daemon->sock, bytes, nbytes, fds, nfds, NULL);
}

static void send_fitted(const struct fuzzed_daemon *daemon, const struct fuzz_record *record)
{
	static uint8_t packed[2 * ZD_MAX_PACKET_BYTES];
	Zd__DaemonPacket *packet = zd__daemon_packet__unpack(NULL, record->nbytes, record->bytes);
	bool pages = packet && packet->n_replies > 0 &&
	             packet->replies[0]->body_case == ZD__REPLY__BODY_HELLO;
	unsigned nfds = packet ? announced(daemon, packet) : 0;

	if (record->who % 3 == 1)
		nfds = 0;
	else if (record->who % 3 == 2 && nfds < ZD_MAX_PACKET_FDS)
		nfds++;
	if (packet && zd__daemon_packet__get_packed_size(packet) <= sizeof(packed))
		send_packet(daemon, packed, zd__daemon_packet__pack(packet, packed), pages, nfds);
	else
		send_packet(daemon, record->bytes, record->nbytes, false, nfds);
	if (packet)
		zd__daemon_packet__free_unpacked(packet, NULL);
}

static void *run_daemon(void *arg)
{
	struct fuzzed_daemon *daemon = arg;
	struct fuzz_record record;
	bool unasked = false;

	daemon->sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	zd_assert(daemon->sock >= 0);
	while ((unasked || take_request(daemon)) && fuzz_script_next(&daemon->at, &daemon->left, &record)) {
		unasked = record.what == FUZZ_RUN;
		if (record.what == FUZZ_CLOSE)
			break;
		if (record.what == FUZZ_BYTES)
			send_packet(daemon, record.bytes, record.nbytes, false, 0);
		else if (record.what == FUZZ_REQUESTS)
			send_fitted(daemon, &record);
	}
	(void)close(daemon->sock);
	return NULL;
}

/* ---- The program --------------------------------------------------------------------------------------- */

/* Memory that was handed out is there, from its first byte to its last. */
static void touch(void *data, uint64_t nbytes)
{
	volatile uint8_t *bytes = data;

	if (!data || nbytes == 0)
		return;
	bytes[0]++;
	bytes[nbytes - 1]++;
}

static void use_unit(zerod_client *client, zerod_unit *unit)
{
	struct zerod_shard shard = ZEROD_INIT(shard);
	zerod_ticket ticket = {0};
	void *data = NULL;

	if (zerod_shard_get(unit, &shard) == 0)
		touch(shard.data, shard.shard_numel * zerod_dtype_bytes(shard.dtype));
	(void)!zerod_update_begin(&unit, 1, NULL, NULL);
	(void)!zerod_publish(&unit, 1, NULL, 0, NULL, NULL);
	(void)!zerod_unit_set_persistent(unit, 1);
	if (zerod_gather_begin(unit, NULL, &ticket) == 0 && zerod_wait(client, ticket, NULL, &data) == 0)
		touch(data, shard.padded_numel * zerod_dtype_bytes(shard.dtype));
	(void)!zerod_release(unit, NULL, 0, NULL, NULL);
	(void)!zerod_wait(client, ticket, NULL, &data);
}

static void use_reductions(zerod_group *group, zerod_unit *unit)
{
	struct zerod_bucket_options options = ZEROD_INIT(options);
	struct zerod_backward_options backward = ZEROD_INIT(backward);
	struct zerod_entry entry = ZEROD_INIT(entry);
	struct zerod_step_info info = ZEROD_INIT(info);
	struct zerod_target target = ZEROD_INIT(target);
	zerod_bucket *bucket = NULL;

	backward.boundary = 1;
	options.dtype = ZEROD_FLOAT32;
	options.slot_bytes = 4096;
	(void)!zerod_backward_begin(group, &backward);
	if (zerod_bucket_create(group, &options, &bucket) == 0 &&
	    zerod_bucket_reserve(bucket, unit, NULL, &entry) == 0) {
		touch(entry.data, entry.padded_numel * sizeof(float));
		(void)!zerod_bucket_submit(bucket, entry.id, NULL, 0, NULL, NULL);
	}
	(void)!zerod_backward_end(group, NULL, NULL);
	if (zerod_step_begin(group, NULL, &info, NULL) == 0 && zerod_target_get(unit, &target) == 0)
		touch(target.data, target.shard_numel * zerod_dtype_bytes(target.dtype));
	(void)!zerod_step_end(group, NULL, 0, NULL);
	(void)!zerod_bucket_destroy(bucket);
}

static void use_allocation(zerod_client *client)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);
	zerod_allocation *buffer;
	void *data;

	options.job = "fuzz";
	options.bytes = 1000;
	if (zerod_alloc(client, &options, &buffer, &data) != 0)
		return;
	touch(data, options.bytes);
	(void)!zerod_free(buffer, NULL, 0);
}

static void use_all(zerod_client *client)
{
	struct zerod_group_options options = ZEROD_INIT(options);
	struct zerod_unit_options unit_options = ZEROD_INIT(unit_options);
	struct zerod_device_info device = ZEROD_INIT(device);
	struct zerod_unique_id id;
	zerod_group *group;
	zerod_unit *unit;

	(void)!zerod_device_get(client, 0, &device);
	(void)!zerod_unique_id(client, 1, NULL, &id);
	options.job = "fuzz";
	options.world_size = 1;
	if (zerod_group_join(client, &options, &group) != 0)
		return;
	unit_options.name = "u";
	unit_options.dtype = ZEROD_FLOAT32;
	unit_options.numel = 100;
	if (zerod_unit_register(group, &unit_options, &unit) == 0) {
		use_unit(client, unit);
		use_reductions(group, unit);
		(void)!zerod_commit(group, 1, NULL);
	}
	use_allocation(client);
	(void)!zerod_session_reset(client, NULL);
	(void)zerod_group_leave(group, NULL);
}

/* ---- libFuzzer ----------------------------------------------------------------------------------------- */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
	struct fuzzed_daemon daemon = {.at = bytes, .left = nbytes};
	struct zerod_options options = ZEROD_INIT(options);
	zerod_client *client;
	pthread_t thread;

	zd_assert(pthread_create(&thread, NULL, run_daemon, &daemon) == 0);
	options.socket_path = address.sun_path;
	options.deadline_ms = 1000;
	if (zerod_connect(&options, &client) == 0) {
		use_all(client);
		zd_assert(zerod_last_error(client));
		zerod_close(client);
	}
	(void)pthread_join(thread, NULL);
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t nbytes, size_t room, unsigned seed)
{
	if (seed % 16 == 0)
		return LLVMFuzzerMutate(bytes, nbytes, room);
	return fuzz_script_mutate(bytes, nbytes, room, seed, fuzz_make_reply);
}
