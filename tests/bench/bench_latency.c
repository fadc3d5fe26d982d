/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_latency.c - one user's round trips through the library, while another user floods the daemon.
 *
 *     bench_latency [REPETITIONS [PART]]
 *
 * A private daemon serves two users. One user's client alternates zerod_alloc() and zerod_free(), and pauses
 * for up to 40 us between two calls, so that its requests come at any moment of the other user's turn. Each
 * repetition (5) measures every flood, or those with PART in their names, and right before each the same
 * client with no flood. Processes of the
 * other user make the flood; a counter that they share shows how much of it the daemon has answered. In the
 * first row these processes send nothing and use processors only: its ratio is due to the machine. Needs
 * root, for the second user. The figures count on a machine that has idle processors for all processes.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <zerod.h>

#include "base/mem.h"
#include "base/processors.h"
#include "proto/limits.h"
#include "proto/zerod.pb-c.h"
#include "tests/support/daemon_fixture.h"

#define USER_UID      12345u
#define FLOOD_UID     12346u
#define PROCESSES     2u
#define CONNECTIONS   8u /* of a process */
#define UNITS         1000u
#define LISTED        1000u /* allocations of a process */
#define DYING         8u    /* sessions of a process that is killed */
#define HELD          50u   /* allocations of a session of it */
#define EMPTY         32000u
#define QUIET_NS      300000000u
#define FLOOD_NS      700000000u
#define MOST_PAUSE_NS 40000u
#define MOST_SAMPLES  200000u
#define REPETITIONS   5u
#define MOST_REPEATED 32u
#define WAIT_S        20u
#define TARGET        3.0

static struct zd_daemon daemon_;
static atomic_uint_fast64_t *answered; /* packets of replies, or clients, of the flood */

static uint64_t now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

_Noreturn static void die(const char *what)
{
	(void)fprintf(stderr, "bench_latency: %s\n", what);
	_exit(1);
}

static void check(bool held, const char *what)
{
	if (!held)
		die(what);
}

static void pause_ns(long ns)
{
	(void)nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* ---- Requests of the flood ----------------------------------------------------------------------------- */

static uint8_t flood_bytes[ZD_MAX_PACKET_BYTES], received[ZD_MAX_PACKET_BYTES];
static size_t flood_nbytes;

/* Packs the requests in turn, `count` in all. */
static size_t pack(Zd__Request *const *requests, size_t nrequests, size_t count, uint8_t *bytes)
{
	static Zd__Request copies[ZD_MAX_BATCH], *pointers[ZD_MAX_BATCH];
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;

	for (size_t i = 0; i < count; i++) {
		copies[i] = *requests[i % nrequests];
		copies[i].id = i + 1;
		pointers[i] = &copies[i];
	}
	packet.requests = pointers;
	packet.n_requests = count;
	check(zd__client_packet__get_packed_size(&packet) <= ZD_MAX_PACKET_BYTES, "a packet is too large");
	return zd__client_packet__pack(&packet, bytes);
}

#define REQUEST(BODY, field_, Type, ...)                                                                     \
	(&(Zd__Request){                                                                                     \
	        .base = PROTOBUF_C_MESSAGE_INIT(&zd__request__descriptor),                                   \
	        .body_case = ZD__REQUEST__BODY_##BODY,                                                       \
	        .field_ = &(Zd__##Type){.base = PROTOBUF_C_MESSAGE_INIT(&zd__##field_##__descriptor),        \
	                                ##__VA_ARGS__}})
#define TEXT(text) ((char *)(text))

/* Waits for a packet, and closes the descriptors that come with it. Returns its bytes; 0: the connection
 * ended. */
static size_t receive(int sock, int flags)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * ZD_MAX_PACKET_FDS)];
	} control;
	struct iovec iov = {.iov_base = received, .iov_len = sizeof(received)};
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	ssize_t nbytes = recvmsg(sock, &msg, flags);

	if (nbytes <= 0)
		return 0;
	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg); cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg)) {
		size_t nfds = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		for (size_t i = 0; i < nfds; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(fd));
			(void)close(fd);
		}
	}
	return (size_t)nbytes;
}

/* Sends one request and returns the packet with its reply, to be freed. */
static Zd__DaemonPacket *call(int sock, Zd__Request *request)
{
	static uint8_t bytes[ZD_MAX_PACKET_BYTES];
	size_t nbytes = pack(&request, 1, 1, bytes);
	Zd__DaemonPacket *packet;

	check(send(sock, bytes, nbytes, MSG_NOSIGNAL) == (ssize_t)nbytes, "sending a request");
	do {
		nbytes = receive(sock, 0);
		packet = nbytes > 0 ? zd__daemon_packet__unpack(NULL, nbytes, received) : NULL;
		check(packet, "no reply");
	} while (packet->n_replies == 0);
	if (packet->replies[0]->status)
		die(packet->replies[0]->error);
	return packet;
}

static void call_only(int sock, Zd__Request *request)
{
	zd__daemon_packet__free_unpacked(call(sock, request), NULL);
}

static int dial(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", daemon_.socket_path);
	check(sock >= 0 && connect(sock, (struct sockaddr *)&address, sizeof(address)) == 0, "connecting");
	return sock;
}

static Zd__Hello hello_ = {.base = PROTOBUF_C_MESSAGE_INIT(&zd__hello__descriptor),
                           .version_min = ZD_PROTOCOL_VERSION,
                           .version_max = ZD_PROTOCOL_VERSION};

static Zd__Request *hello(void)
{
	static Zd__Request request = ZD__REQUEST__INIT;

	hello_.name = TEXT("flood");
	request.body_case = ZD__REQUEST__BODY_HELLO;
	request.hello = &hello_;
	return &request;
}

static int open_session(void)
{
	int sock = dial();

	call_only(sock, hello());
	return sock;
}

static void make_allocations(int sock, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		call_only(sock,
		          REQUEST(ALLOC, alloc, Alloc, .job = TEXT("flood"), .name = TEXT(""), .bytes = 256));
}

/* ---- Floods -------------------------------------------------------------------------------------------- */

/* Keeps the sockets full of the packet, and reads the replies. */
_Noreturn static void send_forever(const int *socks, unsigned count)
{
	struct pollfd poll_for[CONNECTIONS];

	for (unsigned i = 0; i < count; i++)
		poll_for[i] = (struct pollfd){.fd = socks[i], .events = POLLIN | POLLOUT};
	for (;;) {
		check(poll(poll_for, count, -1) > 0, "polling");
		for (unsigned i = 0; i < count; i++) {
			while (receive(socks[i], MSG_DONTWAIT) > 0)
				atomic_fetch_add(answered, 1);
			while (send(socks[i], flood_bytes, flood_nbytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
				continue;
		}
	}
}

_Noreturn static void send_packets(Zd__Request *const *requests, size_t nrequests, size_t count, int first)
{
	int socks[CONNECTIONS] = {first};

	for (unsigned i = first >= 0; i < CONNECTIONS; i++)
		socks[i] = open_session();
	flood_nbytes = pack(requests, nrequests, count, flood_bytes);
	send_forever(socks, first >= 0 ? 1 : CONNECTIONS);
}

static void flood_plain(void)
{
	Zd__Request *request = REQUEST(FREE, free, Free, .allocation = UINT64_MAX);

	send_packets(&request, 1, ZD_MAX_BATCH, -1);
}

static void flood_status(void)
{
	Zd__Request *request = REQUEST(DAEMON_STATUS, daemon_status, DaemonStatus);

	send_packets(&request, 1, ZD_MAX_BATCH, -1);
}

static void flood_list(void)
{
	Zd__Request *request = REQUEST(LIST, list, List, .job = TEXT(""), .table = ZD__TABLE__ALLOCATIONS);

	make_allocations(open_session(), LISTED);
	send_packets(&request, 1, ZD_MAX_BATCH, -1);
}

static void flood_updates(void)
{
	static uint64_t units[UNITS];
	int sock = open_session();
	char job[32], name[32];
	Zd__DaemonPacket *packet;
	uint64_t group;

	(void)snprintf(job, sizeof(job), "flood %d", (int)getpid());
	packet = call(sock, REQUEST(GROUP_JOIN, group_join, GroupJoin, .job = job, .group = TEXT("g"),
	                            .world_size = 1));
	group = packet->replies[0]->group_join->group;
	for (unsigned i = 0; i < UNITS; i++) {
		(void)snprintf(name, sizeof(name), "unit %u", i);
		packet = call(sock, REQUEST(UNIT_REGISTER, unit_register, UnitRegister, .group = group,
		                            .name = name, .dtype = ZEROD_FLOAT32, .numel = 16));
		units[i] = packet->replies[0]->unit_register->unit;
	}
	Zd__Request *requests[] = {
	        REQUEST(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = UNITS, .units = units),
	        REQUEST(PUBLISH, publish, Publish, .n_units = UNITS, .units = units)};

	send_packets(requests, 2, 16, sock);
}

static void flood_connects(void)
{
	for (;;) {
		(void)close(open_session());
		atomic_fetch_add(answered, 1);
	}
}

/* Each packet is rejected and ends its connection. */
static void flood_empty_messages(void)
{
	static Zd__Fence fence = ZD__FENCE__INIT, *fences[EMPTY];
	Zd__Request *request = REQUEST(PUBLISH, publish, Publish, .n_fences = EMPTY, .fences = fences);

	for (unsigned i = 0; i < EMPTY; i++)
		fences[i] = &fence;
	flood_nbytes = pack(&request, 1, 1, flood_bytes);
	for (;;) {
		int sock = open_session();

		(void)!send(sock, flood_bytes, flood_nbytes, MSG_NOSIGNAL);
		(void)receive(sock, 0);
		(void)close(sock);
		atomic_fetch_add(answered, 1);
	}
}

static void flood_deaths(void)
{
	for (;;) {
		pid_t pid = fork();

		if (pid == 0) {
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (unsigned i = 0; i < DYING; i++)
				make_allocations(open_session(), HELD);
			(void)raise(SIGKILL);
		}
		check(pid > 0 && waitpid(pid, NULL, 0) == pid, "a process");
		atomic_fetch_add(answered, 1);
	}
}

/* A user whose clients do what the other one does, without pauses. */
static void flood_library(void)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_alloc_options alloc = ZEROD_INIT(alloc);
	zerod_client *client;
	zerod_allocation *allocation;
	void *data;

	options.socket_path = daemon_.socket_path;
	check(zerod_connect(&options, &client) == 0, "zerod_connect");
	alloc.job = "flood";
	alloc.bytes = 256;
	for (;;) {
		check(zerod_alloc(client, &alloc, &allocation, &data) == 0, "zerod_alloc");
		check(zerod_free(allocation, NULL, 0) == 0, "zerod_free");
		atomic_fetch_add(answered, 2);
	}
}

static void flood_none(void)
{
	for (;;)
		atomic_fetch_add(answered, 1);
}

static const struct flood {
	const char *name, *unit;
	void (*run)(void);
} floods[] = {
        {"none: processors only", "turns", flood_none},
        {"libzerod, alloc and free", "calls", flood_library},
        {"packets of 256 frees", "replies", flood_plain},
        {"packets of 256 statuses", "replies", flood_status},
        {"packets of 256 listings", "replies", flood_list},
        {"updates of 1000 units", "replies", flood_updates},
        {"connects and hellos", "sessions", flood_connects},
        {"packets of empty messages", "replies", flood_empty_messages},
        {"killed processes", "processes", flood_deaths},
};

static pid_t pids[PROCESSES];

static void begin_flood(const struct flood *flood)
{
	uint64_t began_ns = now_ns();

	atomic_store(answered, 0);
	for (unsigned i = 0; i < PROCESSES; i++) {
		pids[i] = fork();
		check(pids[i] >= 0, "fork");
		if (pids[i] > 0)
			continue;
		if (setgid(FLOOD_UID) != 0 || setuid(FLOOD_UID) != 0)
			die("setuid");
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		flood->run();
		_exit(0);
	}
	while (atomic_load(answered) < 2ul * PROCESSES) {
		check(now_ns() - began_ns < WAIT_S * 1000000000ull, "the flood does not begin");
		pause_ns(1000000);
	}
}

/* Until the daemon has ended the flood's sessions. */
static void end_flood(int observer)
{
	uint64_t began_ns = now_ns(), sessions;

	for (unsigned i = 0; i < PROCESSES; i++) {
		(void)kill(pids[i], SIGKILL);
		check(waitpid(pids[i], NULL, 0) == pids[i], "waitpid");
	}
	do {
		Zd__DaemonPacket *packet = call(observer,
		                                REQUEST(DAEMON_STATUS, daemon_status, DaemonStatus));

		sessions = packet->replies[0]->daemon_status->sessions;
		zd__daemon_packet__free_unpacked(packet, NULL);
		check(now_ns() - began_ns < WAIT_S * 1000000000ull, "the flood's sessions do not end");
		pause_ns(5000000);
	} while (sessions > 2);
}

/* ---- The other user's round trips ---------------------------------------------------------------------- */

struct figures {
	double median_us, p99_us, most_us;
};

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void pause_busily(uint64_t ns)
{
	uint64_t began_ns = now_ns();

	while (now_ns() - began_ns < ns)
		continue;
}

static void measure(zerod_client *client, uint64_t for_ns, struct figures *figures)
{
	static uint32_t took_ns[MOST_SAMPLES];
	struct zerod_alloc_options options = ZEROD_INIT(options);
	uint64_t began_ns = now_ns(), at_ns, random = began_ns | 1;
	zerod_allocation *allocation = NULL;
	size_t count = 0, median, near_last;
	void *data;
	int rc;

	options.job = "user";
	options.bytes = 256;
	while (count < MOST_SAMPLES && (now_ns() - began_ns < for_ns || allocation)) {
		random = random * UINT64_C(6364136223846793005) + 1;
		pause_busily((random >> 33) % MOST_PAUSE_NS);
		at_ns = now_ns();
		if (allocation)
			rc = zerod_free(allocation, NULL, 0);
		else
			rc = zerod_alloc(client, &options, &allocation, &data);
		took_ns[count++] = (uint32_t)zd_min_u64(now_ns() - at_ns, UINT32_MAX);
		if (rc)
			die(zerod_last_error(client));
		if (count % 2 == 0)
			allocation = NULL;
	}
	qsort(took_ns, count, sizeof(*took_ns), by_value);
	median = count / 2;
	near_last = count - 1 - count / 100;
	figures->median_us = took_ns[median] / 1e3;
	figures->p99_us = took_ns[near_last] / 1e3;
	figures->most_us = took_ns[count - 1] / 1e3;
}

/* ---- Report -------------------------------------------------------------------------------------------- */

struct result {
	double quiet_median, quiet_p99, median, p99, most, p99_ratio, per_s, busy_percent;
};
static struct result results[ZD_ARRAY_LEN(floods)][MOST_REPEATED];

static double daemon_cpu_s(void)
{
	struct timespec used;
	clockid_t clock;

	if (clock_getcpuclockid(daemon_.pid, &clock) != 0 || clock_gettime(clock, &used) != 0)
		return 0;
	return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

static void run_flood(zerod_client *client, int observer, unsigned i, unsigned repetition)
{
	struct figures quiet, flooded;
	uint64_t before, began_ns;
	double took_s, cpu_s;

	measure(client, QUIET_NS, &quiet);
	begin_flood(&floods[i]);
	before = atomic_load(answered);
	cpu_s = daemon_cpu_s();
	began_ns = now_ns();
	measure(client, FLOOD_NS, &flooded);
	took_s = (double)(now_ns() - began_ns) / 1e9;
	results[i][repetition] = (struct result){quiet.median_us,
	                                         quiet.p99_us,
	                                         flooded.median_us,
	                                         flooded.p99_us,
	                                         flooded.most_us,
	                                         flooded.p99_us / quiet.p99_us,
	                                         (double)(atomic_load(answered) - before) / took_s,
	                                         (daemon_cpu_s() - cpu_s) / took_s * 100};
	end_flood(observer);
}

static int by_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* The median, least and greatest of a member over the repetitions. */
static void spread(unsigned i, unsigned repetitions, size_t member, double of[3])
{
	double values[MOST_REPEATED];

	for (unsigned k = 0; k < repetitions; k++)
		memcpy(&values[k], (const char *)&results[i][k] + member, sizeof(double));
	qsort(values, repetitions, sizeof(*values), by_double);
	of[0] = values[repetitions / 2];
	of[1] = values[0];
	of[2] = values[repetitions - 1];
}

static void print_results(unsigned repetitions)
{
	double worst = 0, of[3], ratio[3];

	printf("%-26s | %-14s | %-22s | %-24s | %-7s | %s\n", "another user's round trip", "quiet", "flooded",
	       "ratio of p99", "daemon", "the flood");
	printf("%-26s | %6s %7s | %6s %7s %7s | %7s %16s | %7s |\n", "us; medians of repetitions", "median",
	       "p99", "median", "p99", "max", "median", "least..greatest", "% busy");
	for (unsigned i = 0; i < ZD_ARRAY_LEN(floods); i++) {
		if (results[i][0].p99 == 0) /* not measured */
			continue;
		printf("%-26s", floods[i].name);
#define PRINT(format, member)                                                                                \
	(spread(i, repetitions, offsetof(struct result, member), of), printf(format, of[0]))
		PRINT(" | %6.1f", quiet_median);
		PRINT(" %7.1f", quiet_p99);
		PRINT(" | %6.1f", median);
		PRINT(" %7.1f", p99);
		PRINT(" %7.0f", most);
		spread(i, repetitions, offsetof(struct result, p99_ratio), ratio);
		printf(" | %7.2f %7.2f..%7.2f", ratio[0], ratio[1], ratio[2]);
		PRINT(" | %7.0f", busy_percent);
		PRINT(" | %.0f", per_s);
		printf(" %s/s\n", floods[i].unit);
		if (i > 0)
			worst = ratio[0] > worst ? ratio[0] : worst;
	}
	printf("# target: greatest ratio of p99 %.2f, at most %.1f: %s\n", worst, TARGET,
	       worst <= TARGET ? "met" : "MISSED");
}

int main(int argc, char **argv)
{
	unsigned repetitions = argc > 1 ? (unsigned)atoi(argv[1]) : REPETITIONS;
	const char *part = argc > 2 ? argv[2] : "";
	struct zd_daemon_options daemon_options = {.config = "[limits]\nmax_sessions_per_uid = 1000\n"};
	struct zerod_options options = ZEROD_INIT(options);
	zerod_client *client;
	int observer;

	if (geteuid() != 0) {
		puts("bench_latency: needs root, for a second user");
		return 0;
	}
	if (repetitions == 0 || repetitions > MOST_REPEATED)
		repetitions = REPETITIONS;
	answered = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(answered != MAP_FAILED && zd_daemon_start(&daemon_options, &daemon_) == 0, "no daemon");
	check(chmod(daemon_.dir, 0755) == 0, "chmod");
	observer = open_session();
	options.socket_path = daemon_.socket_path;
	check(seteuid(USER_UID) == 0 && zerod_connect(&options, &client) == 0 && seteuid(0) == 0,
	      "connecting");
	printf("# %u processors, %u processes of the flood, %u repetitions\n", zd_processors(""), PROCESSES,
	       repetitions);
	(void)fflush(stdout);
	for (unsigned k = 0; k < repetitions; k++)
		for (unsigned i = 0; i < ZD_ARRAY_LEN(floods); i++)
			if (strstr(floods[i].name, part))
				run_flood(client, observer, i, k);
	print_results(repetitions);
	zerod_close(client);
	(void)close(observer);
	return zd_daemon_stop(&daemon_) == 0 ? 0 : 1;
}
