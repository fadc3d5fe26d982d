/* SPDX-License-Identifier: Apache-2.0 */
/* activation.c - sockets on which the service manager listens for the daemon. */
#include "main/activation.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "main/config.h"
#include "main/service.h"
#include "server/listener.h"
#include "server/store.h"

#define FIRST_PASSED 3

static int npassed; /* sockets */
static struct zd_stored *stored;
static size_t nstored;

/* After any other exit the manager starts the daemon again, which then serves the waiting connections. */
static void on_program_end(int status, void *arg)
{
	(void)arg;
	if (status != ZD_EXIT_CONFIG)
		return;
	for (int sock = FIRST_PASSED; sock < FIRST_PASSED + npassed; sock++)
		zd_listener_reject(sock);
}

static bool is_stored(const char *name)
{
	return strcmp(name, "registry") == 0 || strncmp(name, "segment-", strlen("segment-")) == 0;
}

/* Returns how many descriptors the manager has passed to this process. */
static int count_passed(void)
{
	const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
	int passed = 0;

	if (!pid || !count || strtol(pid, NULL, 10) != getpid())
		return 0;
	while (passed < strtol(count, NULL, 10) && fcntl(FIRST_PASSED + passed, F_SETFD, FD_CLOEXEC) == 0)
		passed++;
	return passed;
}

/* The manager passes its sockets first. */
static void sort_descriptors(const char *names, int count)
{
	for (int i = 0; i < count; i++) {
		size_t bytes = strcspn(names, ":");
		struct zd_stored one = {.fd = FIRST_PASSED + i};

		(void)snprintf(one.name, sizeof(one.name), "%.*s", (int)bytes, names);
		names += bytes + (names[bytes] == ':');
		if (!is_stored(one.name)) {
			npassed++;
			continue;
		}
		stored = zd_realloc(stored, nstored + 1, sizeof(*stored));
		stored[nstored++] = one;
	}
}

size_t zd_activation_take_stored(struct zd_stored **found)
{
	size_t count = nstored;

	*found = stored;
	stored = NULL;
	nstored = 0;
	return count;
}

void zd_activation_open(void)
{
	const char *names = getenv("LISTEN_FDNAMES");

	sort_descriptors(names ? names : "", count_passed());
	(void)unsetenv("LISTEN_PID"); /* the descriptors are not for programs that the daemon starts */
	(void)unsetenv("LISTEN_FDS");
	(void)unsetenv("LISTEN_FDNAMES");
	for (int sock = FIRST_PASSED; sock < FIRST_PASSED + npassed; sock++)
		(void)fcntl(sock, F_SETFL, O_NONBLOCK);
	(void)on_exit(on_program_end, NULL);
}

/* The service manager decides path and permissions; the configuration's settings have no effect. */
static void warn_of_other_socket(const struct zd_config *config, const struct sockaddr_un *address)
{
	struct stat found;

	if (strcmp(config->socket_path, address->sun_path) != 0)
		zd_log(ZD_LOG_WARNING, "the service manager's socket is %s: socket = %s is not used",
		       address->sun_path, config->socket_path);
	if (stat(address->sun_path, &found) == 0 && (found.st_mode & 0777) != config->socket_mode)
		zd_log(ZD_LOG_WARNING,
		       "the service manager's socket has mode %04o: socket_mode = %04o is not used, but "
		       "SocketMode= of its unit",
		       found.st_mode & 0777, config->socket_mode);
}

/* Returns the index in `bounds` of the socket with this path, or -1. */
static int find_index(const struct zd_config *config, const char *path)
{
	if (strcmp(config->socket_path, path) == 0 || (config->nsockets == 0 && npassed == 1))
		return 0;
	for (unsigned i = 0; i < config->nsockets; i++)
		if (strcmp(config->sockets[i].path, path) == 0)
			return (int)i + 1;
	return -1;
}

static int option(int sock, int name)
{
	int value;
	socklen_t bytes = sizeof(value);

	return getsockopt(sock, SOL_SOCKET, name, &value, &bytes) == 0 ? value : -1;
}

static int adopt_one(const struct zd_config *config, int sock, struct zd_bound bounds[], struct zd_err *err)
{
	struct zd_bound bound = {.sock = sock};
	socklen_t bytes = sizeof(bound.address) - 1; /* leaves a terminating zero */

	if (option(sock, SO_DOMAIN) != AF_UNIX || option(sock, SO_TYPE) != SOCK_SEQPACKET ||
	    option(sock, SO_ACCEPTCONN) != 1)
		return zd_err_set(
		        err, ZEROD_E_INVALID,
		        "the service manager passed %d descriptors: expected listening Unix sockets of "
		        "ListenSequentialPacket=",
		        npassed);
	if (getsockname(sock, (struct sockaddr *)&bound.address, &bytes) < 0)
		return zd_err_errno(err, errno, "the service manager's socket");
	int index = find_index(config, bound.address.sun_path);
	if (index < 0 || bounds[index].sock >= 0)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "the service manager passed a socket at %s: expected the path of [daemon] "
		                  "socket, %s, or of a section [socket NAME], once each",
		                  bound.address.sun_path, config->socket_path);
	bounds[index] = bound;
	if (index == 0)
		warn_of_other_socket(config, &bound.address);
	return 0;
}

int zd_activation_adopt(const struct zd_config *config, struct zd_bound bounds[], struct zd_err *err)
{
	int rc = 0;

	for (unsigned i = 0; i < 1 + config->nsockets; i++)
		bounds[i] = (struct zd_bound){.sock = -1};
	for (int i = 0; rc == 0 && i < npassed; i++)
		rc = adopt_one(config, FIRST_PASSED + i, bounds, err);
	return rc;
}
