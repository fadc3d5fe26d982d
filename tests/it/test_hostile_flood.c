/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hostile_flood.c - clients that send more than the daemon can do: others are served in between.
 *
 * The daemon is stopped while the flood and the other client's request are sent. So all of them are there
 * when it goes on, and the order of service does not depend on the clock. The flood's packets hold requests
 * of the engine, which the daemon counts: the other client's reply tells how many of them were handled before
 * it.
 *
 * For clients that do not read, the daemon keeps little.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hostile.h"

#define NO_ALLOCATION UINT64_MAX
#define FLOODS        16u
#define OTHER_UID     12345u
#define MOST_RESIDENT (64ull << 20) /* 256 replies of 64 KiB would be 16 MiB a connection */

static struct raw_client flood[FLOODS], other = {.sock = -1};
static uint8_t packet_bytes[ZD_MAX_PACKET_BYTES];

static Zd__Request__BodyCase flood_body;

/* Requests of `flood_body`, each with one that is counted. Listings find no row of the job. */
static size_t pack_flood(uint64_t first_id)
{
	static const Zd__DaemonStatus status = ZD__DAEMON_STATUS__INIT;
	static Zd__Request requests[ZD_MAX_BATCH], *pointers[ZD_MAX_BATCH];
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;
	Zd__List list = ZD__LIST__INIT;
	Zd__Free counted = ZD__FREE__INIT;

	list.table = ZD__TABLE__ALLOCATIONS;
	list.job = RAW_TEXT("nobody's");
	counted.allocation = NO_ALLOCATION;
	for (size_t i = 0; i < ZD_MAX_BATCH; i++) {
		requests[i] = (Zd__Request)ZD__REQUEST__INIT;
		requests[i].id = first_id + i;
		requests[i].body_case = i % 2 ? ZD__REQUEST__BODY_FREE : flood_body;
		if (requests[i].body_case == ZD__REQUEST__BODY_FREE)
			requests[i].free = &counted;
		else if (flood_body == ZD__REQUEST__BODY_LIST)
			requests[i].list = &list;
		else
			requests[i].daemon_status = (Zd__DaemonStatus *)&status;
		pointers[i] = &requests[i];
	}
	packet.n_requests = ZD_MAX_BATCH;
	packet.requests = pointers;
	assert_true(zd__client_packet__get_packed_size(&packet) <= sizeof(packet_bytes));
	return zd__client_packet__pack(&packet, packet_bytes);
}

/* Listings with as many rows as there are. */
static size_t pack_listings(void)
{
	static Zd__Request requests[ZD_MAX_BATCH], *pointers[ZD_MAX_BATCH];
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;
	Zd__List list = ZD__LIST__INIT;

	list.table = ZD__TABLE__ALLOCATIONS;
	for (size_t i = 0; i < ZD_MAX_BATCH; i++) {
		requests[i] = (Zd__Request)ZD__REQUEST__INIT;
		requests[i].id = i + 1;
		requests[i].body_case = ZD__REQUEST__BODY_LIST;
		requests[i].list = &list;
		pointers[i] = &requests[i];
	}
	packet.n_requests = ZD_MAX_BATCH;
	packet.requests = pointers;
	return zd__client_packet__pack(&packet, packet_bytes);
}

static void send_flood(struct raw_client *client)
{
	uint64_t first_id = client->last_id + 1;

	client->last_id += ZD_MAX_BATCH;
	raw_send_bytes(client, packet_bytes, pack_flood(first_id), NULL, 0);
}

/* Replies come in the order of the requests, none is missing. */
static void expect_replies(struct raw_client *client, uint64_t first_id)
{
	uint64_t next = first_id;

	(void)raw_answer(client, client->last_id);
	for (size_t i = 0; i < client->npackets; i++)
		for (size_t j = 0; j < client->packets[i]->n_replies; j++)
			if (client->packets[i]->replies[j]->id >= first_id)
				assert_int_equal(client->packets[i]->replies[j]->id, next++);
	assert_int_equal(next, client->last_id + 1);
}

static uint64_t counted_requests(struct raw_client *client, uint64_t id)
{
	return raw_expect(client, id, 0)->daemon_status->requests;
}

/* Something for the listings to visit. */
static void make_allocations(struct raw_client *client, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		(void)raw_send(client, RAW(ALLOC, alloc, Alloc, .job = RAW_TEXT("lm"), .bytes = 256));
		if (i % (ZD_MAX_OUTSTANDING / 2) == 0 || i + 1 == count) /* more may not be outstanding */
			(void)raw_expect(client, client->last_id, 0);
	}
	raw_forget(client);
}

static void open_as(struct raw_client *client, uid_t uid)
{
	assert_int_equal(seteuid(uid), 0);
	raw_open(client, hostile_socket());
	assert_int_equal(seteuid(0), 0);
}

/* Returns how many requests of the floods were handled before the other client's. */
static uint64_t overtaken(size_t nfloods)
{
	uint64_t first_id[FLOODS], before, id;

	before = counted_requests(&other, raw_send(&other, RAW(DAEMON_STATUS, daemon_status, DaemonStatus)));
	assert_int_equal(kill(hostile.daemon.pid, SIGSTOP), 0);
	for (size_t i = 0; i < nfloods; i++) {
		first_id[i] = flood[i].last_id + 1;
		send_flood(&flood[i]);
	}
	id = raw_send(&other, RAW(DAEMON_STATUS, daemon_status, DaemonStatus));
	assert_int_equal(kill(hostile.daemon.pid, SIGCONT), 0);
	before = counted_requests(&other, id) - before;
	for (size_t i = 0; i < nfloods; i++)
		expect_replies(&flood[i], first_id[i]);
	return before;
}

static int after_floods(void **state);
#define HOSTILE_BEFORE_TEST(name) TEST_DEFINE(name, void, , name(), hostile_before, after_floods)

/* A user's connections have one turn together. */
HOSTILE_BEFORE_TEST(test_connections_of_one_user)
{
	if (geteuid() != 0)
		skip(); /* needs a second user */
	flood_body = ZD__REQUEST__BODY_LIST;
	raw_open(&raw, hostile_socket());
	for (size_t i = 0; i < FLOODS; i++)
		raw_open(&flood[i], hostile_socket());
	open_as(&other, OTHER_UID);
	make_allocations(&raw, 2000);
	assert_in_range(overtaken(FLOODS), 0, ZD_MAX_BATCH / 4);
	flood_body = ZD__REQUEST__BODY_DAEMON_STATUS;
	assert_in_range(overtaken(FLOODS), 0, ZD_MAX_BATCH / 2);
	flood_body = ZD__REQUEST__BODY_FREE; /* all of them are counted */
	assert_in_range(overtaken(FLOODS), 0, ZD_MAX_BATCH);
}

/* ---- Unread replies ------------------------------------------------------------------------------------ */

/* Each connection sends as much as its socket takes, and reads nothing. */
HOSTILE_BEFORE_TEST(test_unread_replies)
{
	size_t nbytes = pack_listings();
	uint64_t before, after, id;

	if (geteuid() != 0)
		skip();
	for (size_t i = 0; i < FLOODS; i++) /* above the limit no hello would be answered */
		raw_open(&flood[i], hostile_socket());
	raw_open(&raw, hostile_socket());
	open_as(&other, OTHER_UID);
	make_allocations(&raw, 2000);
	id = raw_send(&other, RAW(DAEMON_STATUS, daemon_status, DaemonStatus));
	before = raw_expect(&other, id, 0)->daemon_status->resident_bytes;
	for (size_t i = 0; i < FLOODS; i++)
		while (raw_try_send(&flood[i], packet_bytes, nbytes))
			continue;
	assert_int_equal(zd_daemon_wait_log(&hostile.daemon, "of unread replies"), 0);
	id = raw_send(&other, RAW(DAEMON_STATUS, daemon_status, DaemonStatus));
	after = raw_expect(&other, id, 0)->daemon_status->resident_bytes;
	assert_in_range(after, 0, before + MOST_RESIDENT);
}

static int after_floods(void **state)
{
	for (size_t i = 0; i < FLOODS; i++)
		raw_close(&flood[i]);
	raw_close(&other);
	return hostile_after(state);
}

static int start(void **state)
{
	static struct zd_daemon_options options = {.config = "[limits]\nuid_unsent = 4K\n"};

	*state = &options;
	for (size_t i = 0; i < FLOODS; i++)
		flood[i].sock = -1;
	if (hostile_start(state))
		return -1;
	return chmod(hostile.daemon.dir, 0755); /* for the second user */
}

int main(void)
{
	return test_run(start, hostile_stop);
}
