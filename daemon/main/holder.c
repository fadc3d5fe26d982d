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
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

/* To the holder: PUT with a descriptor, REMOVE. From it, after a connection: HELD with a descriptor for each
 * that it holds, then END. */
enum { PUT, REMOVE, HELD, END };

#define END_WAIT_MS 1000

struct message {
	uint32_t kind;
	char name[ZD_STORE_NAME_BYTES];
};

/* Returns 0, or -1 with errno. */
static int send_message(int sock, uint32_t kind, const char *name, int fd)
{
	struct message message = {.kind = kind};
	struct iovec part = {.iov_base = &message, .iov_len = sizeof(message)};
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};

	(void)snprintf(message.name, sizeof(message.name), "%s", name);
	if (fd >= 0) {
		struct cmsghdr *rights;

		header.msg_control = control.bytes;
		header.msg_controllen = sizeof(control.bytes);
		rights = CMSG_FIRSTHDR(&header);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
	}
	return sendmsg(sock, &header, MSG_NOSIGNAL) == (ssize_t)sizeof(message) ? 0 : -1;
}

/* Returns 0; *fd is -1 without a descriptor. -1: the connection has ended, or the message is none of
 * these. */
static int receive_message(int sock, struct message *message, int *fd)
{
	struct iovec part = {.iov_base = message, .iov_len = sizeof(*message)};
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr header = {.msg_iov = &part,
	                        .msg_iovlen = 1,
	                        .msg_control = control.bytes,
	                        .msg_controllen = sizeof(control.bytes)};
	const struct cmsghdr *rights;
	ssize_t nbytes = recvmsg(sock, &header, MSG_CMSG_CLOEXEC);

	*fd = -1;
	rights = nbytes > 0 ? CMSG_FIRSTHDR(&header) : NULL;
	if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(rights), sizeof(*fd));
	if (nbytes != (ssize_t)sizeof(*message)) {
		if (*fd >= 0)
			(void)close(*fd);
		return -1;
	}
	message->name[sizeof(message->name) - 1] = '\0';
	return 0;
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

static bool is_own_user(int sock)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer);

	return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

/* Serves a daemon until it has ended. */
static void serve_daemon(int sock, struct zd_stored **held, size_t *nheld)
{
	struct message message;
	int fd, rc = 0;

	for (size_t i = 0; i < *nheld && rc == 0; i++)
		rc = send_message(sock, HELD, (*held)[i].name, (*held)[i].fd);
	if (rc == 0)
		rc = send_message(sock, END, "", -1);
	while (rc == 0 && receive_message(sock, &message, &fd) == 0) {
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

	if (send_message(holder->sock, PUT, name, fd) < 0)
		return zd_err_errno(err, errno, "giving %s to the process at %s", name, holder->path);
	return 0;
}

static void take_away(void *arg, const char *name)
{
	struct zd_holder *holder = arg;

	(void)send_message(holder->sock, REMOVE, name, -1);
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
	struct message message;
	int fd;

	for (;;) {
		if (receive_message(holder->sock, &message, &fd) < 0)
			return zd_err_set(err, ZEROD_E_SYSTEM, "the process at %s has ended", holder->path);
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
	(void)poll(&ended, 1, END_WAIT_MS);
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
