/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_daemon.h - a scripted daemon for tests of the client library.
 *
 * A thread listens on a socket in a temporary folder, takes one connection, and runs the test's script, which
 * says what to receive and what to send, malformed as it may be. A script does not use cmocka's assertions,
 * which belong to the test's own thread: it says fake_check(), and fake_stop() returns whether all of them
 * held. Every wait has a deadline.
 */
#ifndef ZD_TESTS_FAKE_DAEMON_H
#define ZD_TESTS_FAKE_DAEMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/frame.h"
#include "proto/work.h"
#include "proto/zerod.pb-c.h"

struct fake_peer;
typedef void (*fake_script)(struct fake_peer *peer, void *arg);

/* The script's side of the connection. */
struct fake_peer {
	int listener, sock;
	uint64_t *daemon_page;       /* writable here, before it is sealed */
	const uint64_t *client_page; /* what the client writes */
	uint8_t *segment;            /* of fake_serve_unit() */
	int channel;                 /* the work channel; -1: none */
	struct zd_work_page *results;
	struct zd_rings *rings;
	unsigned packets; /* received so far */
	_Atomic bool failed;
	/* for the script to set first: */
	const char *feature; /* of the hello; NULL: none */
	size_t rings_bytes;  /* of the rings that it brings; 0: none. Not with `on_gpus` */
	bool poison;         /* the hello says that the daemon knows it */
	bool on_gpus;        /* the hello's devices are GPUs, and the client makes sums, ahead as well */
	uint32_t world_size; /* of fake_serve_unit()'s group; 0: 2 */
	/* the packet that is being read */
	Zd__ClientPacket *packet;
	size_t next;
};

struct fake_daemon {
	char dir[32];
	char socket_path[64];
	pthread_t thread;
	fake_script script;
	void *arg;
	struct fake_peer peer;
};

/* 0, or -1 with a word on stderr. */
int fake_start(struct fake_daemon *fake, fake_script script, void *arg);
/* Waits for the script's end and cleans up: 0 when all its checks held. */
int fake_stop(struct fake_daemon *fake);

/* ---- For scripts --------------------------------------------------------------------------------------- */

#define fake_check(peer, cond) fake_check_at(peer, cond, #cond, __FILE__, __LINE__)
bool fake_check_at(struct fake_peer *peer, bool held, const char *what, const char *file, int line);

bool fake_accept(struct fake_peer *peer);
/* The next request, whose body must be of this kind; NULL after a failed check. Valid until the next packet
 * is read. */
const Zd__Request *fake_expect(struct fake_peer *peer, Zd__Request__BodyCase body);
/* Checks that the client sends nothing more and closes the connection. A goodbye before that, of a client
 * that is a rank, is answered. */
void fake_expect_end(struct fake_peer *peer);
/* Waits until there is something to read, and does not read it. */
void fake_await_request(struct fake_peer *peer);
/* Waits until the client's timeline has reached the value. */
void fake_await_timeline(struct fake_peer *peer, uint32_t timeline, uint64_t value);

void fake_send_bytes(struct fake_peer *peer, const void *bytes, size_t nbytes, const int *fds, unsigned nfds);
void fake_send(struct fake_peer *peer, Zd__DaemonPacket *packet, const int *fds, unsigned nfds);
void fake_reply(struct fake_peer *peer, Zd__Reply *reply);
void fake_ok(struct fake_peer *peer, uint64_t id);
void fake_error(struct fake_peer *peer, uint64_t id, int status, const char *text);
/* Stores into the daemon's page and wakes who sleeps on it. */
void fake_signal(struct fake_peer *peer, uint32_t timeline, uint64_t value);
/* Over the work channel. */
void fake_send_work(struct fake_peer *peer, Zd__WorkPacket *packet);
/* The next packet from there, to be freed; NULL after a failed check. */
Zd__WorkAnswers *fake_take_answers(struct fake_peer *peer);
/* Every counter: what an abort does. */
void fake_abort(struct fake_peer *peer);

#define FAKE_SEALS -1 /* SHRINK, GROW and SEAL */
/* A memfd; *map (may be NULL) is this side's mapping. */
int fake_memfd(size_t bytes, int seals, void **map);
/* Accepts, and answers the hello with two pages, and with what `on_gpus` says. */
void fake_hello(struct fake_peer *peer);
/* fake_hello(), then a group of two ranks (or as many as were set) with one unit of 64 float32 a rank: unit
 * 1, its shard at offset 0 of segment 7, which has FAKE_SEGMENT_BYTES. */
#define FAKE_GROUP         5u
#define FAKE_UNIT          1u
#define FAKE_SEGMENT       7u
#define FAKE_DESCRIPTION   9u
#define FAKE_SEGMENT_BYTES 65536u
#define FAKE_SHARD_BYTES   256u
#define FAKE_PADDED_BYTES  512u
#define FAKE_BUFFER_OFFSET 4096u
void fake_serve_unit(struct fake_peer *peer);
/* The steps of it behind the hello. */
void fake_serve_join(struct fake_peer *peer);
void fake_serve_register(struct fake_peer *peer);
/* Answers a gather with the buffer at FAKE_BUFFER_OFFSET and, unless `value` is 0, a fence of timeline 0 at
 * it. */
void fake_gather_reply(struct fake_peer *peer, uint64_t id, uint64_t value);

#endif
