/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clients.h - clients of the real connections, dispatcher and engine, over fake devices, in one thread.
 *
 * Every reply must answer an open request of its client. The client's end of the work channel is read, too.
 */
#ifndef ZD_TESTS_FUZZ_CLIENTS_H
#define ZD_TESTS_FUZZ_CLIENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/api.h"
#include "server/loop.h"
#include "tests/fuzz/script.h"

#define FUZZ_DEVICES     2u
#define FUZZ_ARENA_BYTES (8u << 20)
#define FUZZ_MAX_OPEN    4096u /* requests of one connection whose replies are counted */
#define FUZZ_MAX_WORKS   64u

struct fuzz_client {
	int sock; /* -1: closed */
	bool deaf;
	uint64_t session; /* 0: its hello has no reply */
	uint64_t last_id;
	uint16_t open[FUZZ_MAX_OPEN]; /* requests without a reply, by id: an id may be used twice */
	int channel;                  /* -1: none */
	bool ahead;                   /* sums may have fences */
	uint64_t works[FUZZ_MAX_WORKS];
	size_t nworks; /* that are not answered */
};

/* The daemon and its clients. */
struct fuzz_scene {
	struct zd_loop loop;
	struct zd_api api;
	struct fuzz_client clients[FUZZ_CLIENTS];
	/* Called for each packet before its replies, and for each reply. NULL: not needed. */
	void (*packet)(struct fuzz_client *client, const Zd__DaemonPacket *packet);
	void (*reply)(struct fuzz_client *client, const Zd__Reply *reply);
};
extern struct fuzz_scene fuzz_scene;

/* Opens a daemon without clients, and clears the scene. */
void fuzz_scene_open(uint64_t uid_quota_bytes, unsigned nclients);
/* Closes all clients, and completes all commands: only durable jobs may be left. */
void fuzz_scene_end_sessions(void);
void fuzz_scene_close(void);
/* Handles what is readable, and what waits for a turn. */
void fuzz_turn_loop(void);

/* Connects through that socket; NULL: the daemon's own. */
void fuzz_connect(struct fuzz_client *client, struct zd_api_socket *at);
/* Sends the hello, and reads its reply. */
void fuzz_say_hello(struct fuzz_client *client, const Zd__Hello *modes);
void fuzz_drop_client(struct fuzz_client *client);
/* A packet for which the socket has no room is lost. */
void fuzz_send_bytes(struct fuzz_client *client, const void *bytes, size_t nbytes);
/* Reads replies and works of all clients. */
void fuzz_read_all(void);

/* Answers the oldest work; a WRONG answer is to no work, or says what cannot be. */
enum fuzz_answer { FUZZ_BEGUN, FUZZ_CANNOT, FUZZ_FAILED, FUZZ_WRONG, FUZZ_ANSWERS };
void fuzz_send_answer(struct fuzz_client *client, enum fuzz_answer answer, uint64_t value);

#endif
