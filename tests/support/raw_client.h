/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_client.h - a client of the daemon that says whatever a test wants it to say.
 *
 * It speaks the protocol by hand, without libzerod: one socket, packets as the test builds them, and every
 * reply kept until raw_forget() or raw_close(). Nothing is checked on the way out. Every wait has a deadline;
 * what is not as expected fails the running cmocka test, so that all calls belong to the test's own thread.
 */
#ifndef ZD_TESTS_RAW_CLIENT_H
#define ZD_TESTS_RAW_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/frame.h"
#include "proto/zerod.pb-c.h"

#define RAW_DEADLINE_MS 20000 /* sanitizers and a busy machine included */
#define RAW_MAX_PACKETS 2048

struct raw_client {
	int sock; /* -1: closed */
	uint64_t last_id, session;
	uint64_t *client_page; /* NULL before raw_hello() */
	const uint64_t *daemon_page;
	Zd__DaemonPacket *packets[RAW_MAX_PACKETS];
	size_t npackets;
};

/* A connection without a word said. */
void raw_connect(struct raw_client *raw, const char *socket_path);
/* Says hello and maps both fence pages. */
void raw_hello(struct raw_client *raw);
/* Both. */
void raw_open(struct raw_client *raw, const char *socket_path);
/* Closes the socket and forgets everything. Harmless when it is closed. */
void raw_close(struct raw_client *raw);

/* ---- Out ----------------------------------------------------------------------------------------------- */

/* Sends a packet; `fds` may be NULL. Fails the test unless the socket accepts the packet. */
void raw_send_bytes(struct raw_client *raw, const void *bytes, size_t nbytes, const int *fds, unsigned nfds);
/* Sends a packet. Returns false if the socket does not accept it now. */
bool raw_try_send(struct raw_client *raw, const void *bytes, size_t nbytes);
/* A packet with one request, which is given the next id unless it has one. Returns the id. */
uint64_t raw_send(struct raw_client *raw, Zd__Request *request);
/* Packs one request into `room` bytes and returns how many it took. */
size_t raw_pack(Zd__Request *request, uint8_t *bytes, size_t room);

/* A request by its body's name in three spellings, and the body's members:
 *     raw_send(&raw, RAW(GATHER, gather, Gather, .unit = 7, .tag = (char *)"plan")) */
#define RAW(BODY, field, Type, ...)                                                                          \
	(&(Zd__Request){.base = PROTOBUF_C_MESSAGE_INIT(&zd__request__descriptor),                           \
	                .body_case = ZD__REQUEST__BODY_##BODY,                                               \
	                .field = &(Zd__##Type){.base = PROTOBUF_C_MESSAGE_INIT(&zd__##field##__descriptor),  \
	                                       __VA_ARGS__}})
/* Strings of messages are not const, and are not written to. */
#define RAW_TEXT(text) ((char *)(text))

/* ---- In ------------------------------------------------------------------------------------------------ */

/* Waits for the reply to the request; one of another status than `status` fails the test. Valid as long as
 * they are kept. */
const Zd__Reply *raw_expect(struct raw_client *raw, uint64_t id, int status);
/* The same, whatever the status is; NULL when the connection ends without it. */
const Zd__Reply *raw_answer(struct raw_client *raw, uint64_t id);
/* As raw_expect(), with every one of the texts (NULL ends them) in the error. */
void raw_expect_error(struct raw_client *raw, uint64_t id, int status, const char *const *texts);
#define RAW_EXPECT_ERROR(raw, id, status, ...)                                                               \
	raw_expect_error(raw, id, status, (const char *const[]){__VA_ARGS__, NULL})
/* Waits for a reply to no request with this status and these texts, and then for the end of the
 * connection. */
void raw_expect_farewell(struct raw_client *raw, int status, const char *const *texts);
#define RAW_EXPECT_FAREWELL(raw, status, ...)                                                                \
	raw_expect_farewell(raw, status, (const char *const[]){__VA_ARGS__, NULL})
/* Waits for the end of the connection. */
void raw_expect_end(struct raw_client *raw);
/* Reads what has come so far. */
void raw_drain(struct raw_client *raw);
/* A reply that has come already; NULL: none. */
const Zd__Reply *raw_find(const struct raw_client *raw, uint64_t id);
/* Frees the replies that have come so far; they are not valid any more. */
void raw_forget(struct raw_client *raw);

/* ---- Memory -------------------------------------------------------------------------------------------- */

/* Stores into the client's page; the daemon looks there by itself. */
void raw_signal(struct raw_client *raw, uint32_t timeline, uint64_t value);

#endif
