/* SPDX-License-Identifier: Apache-2.0 */
/* holder.c - a process that holds descriptors while no daemon runs. */
#include "main/holder.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "proto/frame.h"

/* To the holder: PUT with a descriptor, REMOVE, TTL with seconds in the place of a name. From the holder,
 * after a connection: HELD with a descriptor for each descriptor that it holds, then END. A holder that
 * supports TTL reports this in the name of END. An older one would drop the state. */
enum { PUT, REMOVE, HELD, END, TTL };
#define KNOWS_TTL "ttl"

#define WAIT_MS         5000
#define NEXT_ACCEPT_NS  10000000 /* while the system has no memory or descriptor for a connection */
#define MOST_STARTS     3u
#define OWN_DESCRIPTORS 16u
#define MOST_POLL_S     3600u

struct message {
	uint32_t kind;
	char name[ZD_STORE_NAME_BYTES];
};

/* Waits for the other side to read. */
static int send_message(int sock, uint32_t kind, const char *name, int fd)
{
	struct message message = {.kind = kind};
	struct pollfd writable = {.fd = sock, .events = POLLOUT};

	(void)snprintf(message.name, sizeof(message.name), "%s", name);
	while (poll(&writable, 1, WAIT_MS) < 0 && errno == EINTR)
		;
	int rc = zd_frame_send(sock, &message, sizeof(message), &fd, fd >= 0, NULL);
	return rc == ZD_FRAME_AGAIN ? ZEROD_E_DEADLINE : rc;
}

/* *fd is -1 without a descriptor. */
static int receive_message(int sock, struct message *message, int *fd, struct zd_err *err)
{
	static uint8_t packet[ZD_MAX_PACKET_BYTES];
	int fds[ZD_MAX_PACKET_FDS], rc;
	unsigned nfds = 0;
	size_t nbytes = 0;

	do
		rc = zd_frame_recv_wait(sock, packet, sizeof(packet), &nbytes, fds, &nfds, err);
	while (rc == ZD_FRAME_AGAIN && errno == EINTR);
	*fd = -1;
	if (rc == ZD_FRAME_AGAIN)
		return zd_err_set(err, ZEROD_E_DEADLINE, "the other side does not answer");
	if (rc)
		return rc;
	for (unsigned i = 1; i < nfds; i++)
		(void)close(fds[i]);
	if (nfds > 0)
		*fd = fds[0];
	if (nbytes != sizeof(*message)) {
		if (*fd >= 0)
			(void)close(*fd);
		return zd_err_set(err, ZEROD_E_PROTOCOL, "a message of %zu bytes", nbytes);
	}
	memcpy(message, packet, sizeof(*message));
	message->name[sizeof(message->name) - 1] = '\0';
	return 0;
}

static bool is_own_user(int sock)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer);

	return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

/* Replaces a descriptor of the same name. */
static void add(struct zd_stored **list, size_t *count, const char *name, int fd)
{
	struct zd_stored *stored = NULL;

	for (size_t i = 0; i < *count; i++) {
		if (strcmp((*list)[i].name, name) == 0)
			stored = &(*list)[i];
	}
	if (stored) {
		(void)close(stored->fd);
	} else {
		*list = zd_realloc(*list, *count + 1, sizeof(**list));
		stored = &(*list)[(*count)++];
		(void)snprintf(stored->name, sizeof(stored->name), "%s", name);
	}
	stored->fd = fd;
}

/* ---- The holder ---------------------------------------------------------------------------------------- */

static void take_out(struct zd_stored *list, size_t *count, const char *name)
{
	for (size_t i = 0; i < *count; i++) {
		if (strcmp(list[i].name, name) != 0)
			continue;
		(void)close(list[i].fd);
		list[i] = list[--*count];
		return;
	}
}

static void drop_all(struct zd_stored *held, size_t *nheld)
{
	while (*nheld > 0)
		(void)close(held[--*nheld].fd);
}

/* Serves a daemon until it has ended. After an invalid message, or a descriptor for which this process has no
 * room, the holder drops the state, because the rest would be incomplete. */
static void serve_daemon(int sock, struct zd_stored **held, size_t *nheld, uint64_t *ttl_s)
{
	struct message message;
	int fd, rc = 0;

	for (size_t i = 0; i < *nheld && rc == 0; i++)
		rc = send_message(sock, HELD, (*held)[i].name, (*held)[i].fd);
	if (rc == 0)
		rc = send_message(sock, END, KNOWS_TTL, -1);
	while (rc == 0) {
		rc = receive_message(sock, &message, &fd, NULL);
		if (rc == 0 && message.kind == PUT && fd >= 0)
			add(held, nheld, message.name, fd);
		else if (rc == 0 && message.kind == REMOVE)
			take_out(*held, nheld, message.name);
		else if (rc == 0 && message.kind == TTL)
			*ttl_s = strtoull(message.name, NULL, 10);
		else if (rc != ZEROD_E_DISCONNECTED)
			drop_all(*held, nheld);
	}
}

/* Whether a later attempt can succeed. A short lack of memory does not drop the state. */
static bool accepts_later(int error)
{
	return error != EBADF && error != EINVAL && error != ENOTSOCK && error != EOPNOTSUPP;
}

/* A reader of the daemon's output must not also wait for this process. */
static void leave_terminal(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (int fd = STDIN_FILENO; null >= 0 && fd <= STDERR_FILENO; fd++)
		(void)dup2(null, fd);
	if (null > STDERR_FILENO)
		(void)close(null);
}

static void remove_path(int listening)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	socklen_t bytes = sizeof(address) - 1;

	if (getsockname(listening, (struct sockaddr *)&address, &bytes) == 0)
		(void)unlink(address.sun_path);
}

static uint64_t now_s(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec;
}

/* Returns false if no daemon has connected within the time. */
static bool wait_for_daemon(int listening, uint64_t ttl_s)
{
	struct pollfd readable = {.fd = listening, .events = POLLIN};
	uint64_t end_s = now_s() + ttl_s, at_s = now_s();
	int ready = 0;

	for (; ready <= 0 && (ttl_s == 0 || at_s < end_s); at_s = now_s()) {
		uint64_t left_s = ttl_s == 0 ? MOST_POLL_S : zd_min_u64(end_s - at_s, MOST_POLL_S);

		ready = poll(&readable, 1, (int)left_s * 1000);
	}
	return ready > 0;
}

int zd_holder_main(int argc, char **argv)
{
	const struct timespec next_accept = {.tv_nsec = NEXT_ACCEPT_NS};
	int listening = argc >= 1 ? atoi(argv[0]) : -1;
	struct zd_stored *held = NULL;
	size_t nheld = 0;
	uint64_t ttl_s = 0;

	if (listening < 0)
		return 2;
	(void)setsid();
	(void)signal(SIGHUP, SIG_IGN);
	(void)signal(SIGINT, SIG_IGN);
	leave_terminal();
	while (wait_for_daemon(listening, ttl_s)) {
		int sock = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
		bool is_daemon = sock >= 0 && is_own_user(sock);

		if (sock < 0 && !accepts_later(errno))
			break;
		if (sock < 0)
			(void)nanosleep(&next_accept, NULL);
		if (is_daemon)
			serve_daemon(sock, &held, &nheld, &ttl_s);
		if (is_daemon && nheld == 0)
			break;
		if (sock >= 0)
			(void)close(sock); /* a daemon that ends waits for this */
	}
	remove_path(listening); /* and the daemon that ends for the end of this process */
	free(held);
	return 0;
}

/* ---- The daemon's side --------------------------------------------------------------------------------- */

static void update_watch(struct zd_holder *holder);

static int post(struct zd_holder *holder, uint32_t kind, const char *name, int fd)
{
	struct message message = {.kind = kind};

	(void)snprintf(message.name, sizeof(message.name), "%s", name);
	int rc = zd_outbox_send(&holder->box, &message, sizeof(message), kind == PUT ? name : NULL, fd);
	update_watch(holder);
	return rc;
}

static int put(void *arg, const char *name, int fd, struct zd_err *err)
{
	struct zd_holder *holder = arg;

	if (post(holder, PUT, name, fd) == 0)
		return 0;
	return zd_err_errno(err, errno, "giving %s to the process at %s", name, holder->path);
}

static void take_away(void *arg, const char *name)
{
	struct zd_holder *holder = arg;

	if (!zd_outbox_cancel(&holder->box, name))
		(void)post(holder, REMOVE, name, -1); /* a failure is its end, which the watch reports */
}

static int listen_at(const struct sockaddr_un *address)
{
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (sock < 0)
		return -1;
	(void)unlink(address->sun_path); /* of a holder that has ended */
	if (fchmod(sock, S_IRUSR | S_IWUSR) == 0 &&
	    bind(sock, (const struct sockaddr *)address, sizeof(*address)) == 0 && listen(sock, 4) == 0)
		return sock;
	(void)close(sock);
	return -1;
}

/* A grandchild, which does not become the daemon's zombie. */
static int start(const struct sockaddr_un *address, struct zd_err *err)
{
	int path_bytes = (int)(strlen(address->sun_path) - strlen(".state"));
	char number[16], path[sizeof(address->sun_path)];
	int listening = listen_at(address);

	if (listening < 0)
		return zd_err_errno(err, errno, "listening at %s", address->sun_path);
	(void)snprintf(number, sizeof(number), "%d", listening);
	(void)snprintf(path, sizeof(path), "%.*s", path_bytes, address->sun_path);
	pid_t child = fork();
	if (child == 0) {
		if (fork() == 0 && fcntl(listening, F_SETFD, 0) == 0)
			(void)execl("/proc/self/exe", "zerod", ZD_HOLDER_PROGRAM_ARG, number, path,
			            (char *)NULL);
		_exit(0);
	}
	(void)close(listening);
	if (child < 0)
		return zd_err_errno(err, errno, "starting the process that holds state");
	(void)waitpid(child, NULL, 0);
	return 0;
}

static int receive_held(struct zd_holder *holder, struct zd_err *err)
{
	const struct timeval limit = {.tv_sec = WAIT_MS / 1000};
	struct message message;
	struct zd_err why;
	int fd, rc;

	/* Another user's process that listens on the path would choose the state that this daemon restores,
	 * and receive users' memory. */
	if (!is_own_user(holder->sock))
		return zd_err_set(err, ZEROD_E_PERMISSION, "%s is the socket of another user", holder->path);
	(void)setsockopt(holder->sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	for (;;) {
		rc = receive_message(holder->sock, &message, &fd, &why);
		if (rc)
			return zd_err_set(err, rc, "the process at %s: %s", holder->path, why.text);
		holder->takes_ttl = strcmp(message.name, KNOWS_TTL) == 0;
		if (message.kind == END)
			return 0;
		if (fd >= 0)
			add(&holder->store.found, &holder->store.nfound, message.name, fd);
	}
}

/* CONNECT: no holder runs, or it was ending because it held no descriptors. */
static int connect_to(struct zd_holder *holder, const struct sockaddr_un *address, struct zd_err *err)
{
	int rc;

	zd_outbox_clear(&holder->box);
	if (holder->sock >= 0)
		(void)close(holder->sock);
	holder->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (holder->sock < 0)
		return zd_err_errno(err, errno, "a socket for %s", holder->path);
	zd_outbox_init(&holder->box, holder->sock);
	if (connect(holder->sock, (const struct sockaddr *)address, sizeof(*address)) < 0) {
		rc = errno;
		(void)zd_err_errno(err, rc, "connecting to %s", holder->path);
		return rc == ENOENT || rc == ECONNREFUSED ? ZEROD_E_CONNECT : ZEROD_E_SYSTEM;
	}
	rc = receive_held(holder, err);
	return rc == ZEROD_E_DISCONNECTED && holder->store.nfound == 0 ? ZEROD_E_CONNECT : rc;
}

static int open_at(struct zd_holder *holder, struct zd_err *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char ttl[16];
	int rc = ZEROD_E_CONNECT;

	memcpy(address.sun_path, holder->path, sizeof(address.sun_path));
	for (unsigned started = 0; rc == ZEROD_E_CONNECT && started < MOST_STARTS; started++) {
		if (started > 0)
			rc = start(&address, err);
		if (started == 0 || rc == 0)
			rc = connect_to(holder, &address, err);
	}
	(void)snprintf(ttl, sizeof(ttl), "%u", holder->ttl_s);
	if (rc == 0 && holder->takes_ttl)
		(void)post(holder, TTL, ttl, -1); /* a failure is its end */
	return rc;
}

/* ---- Its end ------------------------------------------------------------------------------------------- */

static bool has_ended(const struct zd_holder *holder)
{
	struct pollfd hangup = {.fd = holder->sock, .events = POLLRDHUP};

	return holder->sock < 0 || poll(&hangup, 1, 0) > 0;
}

static void on_event(uv_poll_t *poll, int status, int events)
{
	struct zd_holder *holder = poll->data;

	if (status < 0 || (events & UV_DISCONNECT) || zd_outbox_flush(&holder->box) != 0)
		holder->ended(holder->ended_arg);
	else
		update_watch(holder);
}

static void update_watch(struct zd_holder *holder)
{
	int events = UV_DISCONNECT | (holder->box.count > 0 ? UV_WRITABLE : 0);

	if (holder->poll)
		(void)uv_poll_start(holder->poll, events, on_event);
}

/* A daemon that continues without the watch learns of the end when it sends the next descriptor. */
static void watch(struct zd_holder *holder)
{
	if (!holder->loop)
		return;
	holder->poll = zd_calloc(1, sizeof(*holder->poll));
	if (uv_poll_init(holder->loop, holder->poll, holder->sock) != 0) {
		free(holder->poll);
		holder->poll = NULL;
		return;
	}
	holder->poll->data = holder;
	update_watch(holder);
}

static void on_closed(uv_handle_t *handle)
{
	free(handle);
}

static void unwatch(struct zd_holder *holder)
{
	if (holder->poll)
		uv_close((uv_handle_t *)holder->poll, on_closed);
	holder->poll = NULL;
}

void zd_holder_watch(struct zd_holder *holder, uv_loop_t *loop, void (*ended)(void *arg), void *arg)
{
	holder->loop = loop;
	holder->ended = ended;
	holder->ended_arg = arg;
	if (holder->sock >= 0)
		watch(holder);
}

void zd_holder_unwatch(struct zd_holder *holder)
{
	unwatch(holder);
	holder->loop = NULL;
}

static int renew(void *arg, struct zd_err *err)
{
	struct zd_holder *holder = arg;

	if (!has_ended(holder))
		return zd_err_set(err, ZEROD_E_STATE, "the process at %s still runs", holder->path);
	unwatch(holder);
	int rc = open_at(holder, err);
	if (rc)
		return rc;
	zd_log(ZD_LOG_WARNING, "the process at %s had ended: another one is started", holder->path);
	watch(holder);
	return 0;
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

/* It inherits the daemon's limit of open descriptors, and needs few for itself. */
static uint32_t room_at_holder(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > UINT32_MAX)
		return 0;
	return (uint32_t)zd_max_u64(limit.rlim_cur, OWN_DESCRIPTORS + 1) - OWN_DESCRIPTORS;
}

int zd_holder_open(struct zd_holder *holder, const char *socket_path, uint32_t ttl_s, struct zd_err *err)
{
	struct sockaddr_un address;

	*holder = (struct zd_holder){.sock = -1, .ttl_s = ttl_s};
	zd_outbox_init(&holder->box, -1);
	holder->store = (struct zd_store){
	        .arg = holder, .room = room_at_holder(), .put = put, .remove = take_away, .renew = renew};
	if (snprintf(holder->path, sizeof(address.sun_path), "%s.state", socket_path) >=
	    (int)sizeof(address.sun_path))
		return zd_err_set(err, ZEROD_E_LIMIT, "the path of the socket is too long for %s.state",
		                  socket_path);
	return open_at(holder, err);
}

/* A holder without descriptors removes its socket from the file system. */
static void wait_for_end(int sock)
{
	struct pollfd ended = {.fd = sock, .events = POLLIN};

	(void)shutdown(sock, SHUT_WR);
	(void)poll(&ended, 1, WAIT_MS);
}

void zd_holder_close(struct zd_holder *holder)
{
	for (size_t i = 0; i < holder->store.nfound; i++) {
		if (holder->store.found[i].fd >= 0)
			(void)close(holder->store.found[i].fd);
	}
	free(holder->store.found);
	if (holder->sock >= 0) {
		zd_outbox_drain(&holder->box, WAIT_MS);
		wait_for_end(holder->sock);
		(void)close(holder->sock);
	}
	*holder = (struct zd_holder){.sock = -1};
}
