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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "proto/frame.h"

/* To the holder: PUT with a descriptor, REMOVE. From it, after a connection: HELD with a descriptor for each
 * that it holds, then END. */
enum { PUT, REMOVE, HELD, END };

#define WAIT_MS 5000

struct message {
	uint32_t kind;
	char name[ZD_STORE_NAME_BYTES];
};

/* Waits up to WAIT_MS for the other side to read. */
static int send_message(int sock, uint32_t kind, const char *name, int fd, struct zd_err *err)
{
	struct message message = {.kind = kind};
	struct pollfd writable = {.fd = sock, .events = POLLOUT};
	int rc;

	(void)snprintf(message.name, sizeof(message.name), "%s", name);
	(void)poll(&writable, 1, WAIT_MS);
	rc = zd_frame_send(sock, &message, sizeof(message), &fd, fd >= 0, err);
	return rc == ZD_FRAME_AGAIN ? zd_err_set(err, ZEROD_E_DEADLINE, "the other side does not read") : rc;
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

/* Serves a daemon until it has ended. */
static void serve_daemon(int sock, struct zd_stored **held, size_t *nheld)
{
	struct message message;
	int fd, rc = 0;

	for (size_t i = 0; i < *nheld && rc == 0; i++)
		rc = send_message(sock, HELD, (*held)[i].name, (*held)[i].fd, NULL);
	if (rc == 0)
		rc = send_message(sock, END, "", -1, NULL);
	while (rc == 0 && receive_message(sock, &message, &fd, NULL) == 0) {
		if (message.kind == PUT && fd >= 0)
			add(held, nheld, message.name, fd);
		else if (message.kind == REMOVE)
			take_out(*held, nheld, message.name);
	}
}

/* A reader of the daemon's output must not wait for this process as well. */
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

int zd_holder_main(int argc, char **argv)
{
	int listening = argc == 1 ? atoi(argv[0]) : -1;
	struct zd_stored *held = NULL;
	size_t nheld = 0;

	if (listening < 0)
		return 2;
	(void)setsid();
	(void)signal(SIGHUP, SIG_IGN);
	(void)signal(SIGINT, SIG_IGN);
	leave_terminal();
	do {
		int sock = accept4(listening, NULL, NULL, SOCK_CLOEXEC);

		if (sock < 0 && errno != EINTR && errno != ECONNABORTED)
			break;
		if (sock >= 0 && is_own_user(sock))
			serve_daemon(sock, &held, &nheld);
		if (nheld == 0)
			remove_path(listening);
		if (sock >= 0)
			(void)close(sock); /* a daemon that ends waits for this */
	} while (nheld > 0);
	free(held);
	return 0;
}

/* ---- The daemon's side --------------------------------------------------------------------------------- */

static int put(void *arg, const char *name, int fd, struct zd_err *err)
{
	struct zd_holder *holder = arg;
	struct zd_err why;
	int rc = send_message(holder->sock, PUT, name, fd, &why);

	return rc ? zd_err_set(err, rc, "giving %s to the process at %s: %s", name, holder->path, why.text)
	          : 0;
}

static void take_away(void *arg, const char *name)
{
	struct zd_holder *holder = arg;

	(void)send_message(holder->sock, REMOVE, name, -1, NULL);
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
	char number[16];
	int listening = listen_at(address);
	pid_t child;

	if (listening < 0)
		return zd_err_errno(err, errno, "listening at %s", address->sun_path);
	(void)snprintf(number, sizeof(number), "%d", listening);
	child = fork();
	if (child == 0) {
		if (fork() == 0 && fcntl(listening, F_SETFD, 0) == 0)
			(void)execl("/proc/self/exe", "zerod", ZD_HOLDER_PROGRAM_ARG, number, (char *)NULL);
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

	/* Another user's process that listens there would choose what this daemon restores, and get users'
	 * memory. */
	if (!is_own_user(holder->sock))
		return zd_err_set(err, ZEROD_E_PERMISSION, "%s is the socket of another user", holder->path);
	(void)setsockopt(holder->sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	for (;;) {
		rc = receive_message(holder->sock, &message, &fd, &why);
		if (rc)
			return zd_err_set(err, rc, "the process at %s: %s", holder->path, why.text);
		if (message.kind == END)
			return 0;
		if (fd >= 0)
			add(&holder->store.found, &holder->store.nfound, message.name, fd);
	}
}

int zd_holder_open(struct zd_holder *holder, const char *socket_path, struct zd_err *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int rc = 0;

	*holder = (struct zd_holder){.sock = -1};
	holder->store = (struct zd_store){.arg = holder, .put = put, .remove = take_away};
	if (snprintf(holder->path, sizeof(address.sun_path), "%s.state", socket_path) >=
	    (int)sizeof(address.sun_path))
		return zd_err_set(err, ZEROD_E_LIMIT, "the path of the socket is too long for %s.state",
		                  socket_path);
	memcpy(address.sun_path, holder->path, sizeof(address.sun_path));
	holder->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (holder->sock < 0)
		return zd_err_errno(err, errno, "a socket for %s", holder->path);
	if (connect(holder->sock, (struct sockaddr *)&address, sizeof(address)) < 0)
		rc = start(&address, err);
	else
		return receive_held(holder, err);
	if (rc == 0 && connect(holder->sock, (struct sockaddr *)&address, sizeof(address)) < 0)
		rc = zd_err_errno(err, errno, "connecting to %s", holder->path);
	return rc ? rc : receive_held(holder, err);
}

/* A holder that has nothing left to hold removes its socket from the file system. */
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
		wait_for_end(holder->sock);
		(void)close(holder->sock);
	}
	*holder = (struct zd_holder){.sock = -1};
}
