// SPDX-License-Identifier: Apache-2.0
/*
 * metrics_http.c - HTTP/1.1 for one connection, or for the connections of a listening socket that a socket
 * unit passes.
 *
 * A connection ends after the answer. A body after the headers is therefore not read. The input of a peer is
 * limited in bytes and in time. A connection that sends no request cannot prevent answers to others: if all
 * places are taken, the oldest one is closed.
 */
#include "metrics.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <zerod.h>

#include "base/err.h"
#include "base/mem.h"

#define REQUEST_MS  5000  /* for the whole request, and for the answer */
#define LINGER_MS   1000  /* until the peer has read the answer and closed */
#define IDLE_MS     30000 /* without connections, until a listener ends */
#define CONNECTIONS 64u

static const struct {
	int status;
	const char *phrase, *headers;
} answers[] = {
        {200, "OK", "Vary: Accept\r\n"}, {400, "Bad Request", ""},
        {404, "Not Found", ""},          {405, "Method Not Allowed", "Allow: GET, HEAD\r\n"},
        {408, "Request Timeout", ""},    {503, "Service Unavailable", ""},
};

static const char *const types[] = {
        [ZD_CTL_OPENMETRICS] = "application/openmetrics-text; version=1.0.0; charset=utf-8",
        [ZD_CTL_PROMETHEUS] = "text/plain; version=0.0.4; charset=utf-8",
};

/* ---- The request --------------------------------------------------------------------------------------- */

/* Whether the text, up to `end`, starts with the word and ends after it or, with `query`, at a '?'. */
static bool is_word(const char *text, const char *end, const char *word, bool query)
{
	size_t nbytes = strlen(word);
	if ((size_t)(end - text) < nbytes || memcmp(text, word, nbytes) != 0)
		return false;
	return text + nbytes == end || (query && text[nbytes] == '?');
}

/* The status for a request line, without its end. */
static int line_status(const char *line, const char *end, bool *head)
{
	const char *target = memchr(line, ' ', (size_t)(end - line)), *version = NULL;
	if (target)
		version = memchr(target + 1, ' ', (size_t)(end - target - 1));
	if (!version || target == line || version == target + 1 ||
	    !(is_word(version + 1, end, "HTTP/1.1", false) || is_word(version + 1, end, "HTTP/1.0", false)))
		return 400;
	for (const char *c = line; c < end; c++) {
		if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
			return 400;
	}
	*head = is_word(line, target, "HEAD", false);
	if (!is_word(target + 1, version, "/metrics", true))
		return 404;
	return *head || is_word(line, target, "GET", false) ? 200 : 405;
}

int zd_ctl_http_status(const char *request, size_t nbytes, bool *head)
{
	const char *end = memmem(request, nbytes, "\r\n\r\n", 4);
	bool is_head = false;
	if (!end && nbytes < ZD_CTL_HTTP_MAX_BYTES)
		return 0;
	*head = false;
	if (!end)
		return 400;
	int status = line_status(request, memmem(request, nbytes, "\r\n", 2), &is_head);
	*head = is_head;
	return status;
}

/* The weight of a type in an Accept header's value: that of its first entry, or 0 without one. */
static double weight_of(const char *accept, const char *end, const char *type)
{
	const size_t nbytes = strlen(type);
	while (accept < end) {
		const char *next = memchr(accept, ',', (size_t)(end - accept));
		next = next ? next : end;
		accept += strspn(accept, " \t");
		if ((size_t)(next - accept) >= nbytes && strncasecmp(accept, type, nbytes) == 0) {
			const char *q = memmem(accept, (size_t)(next - accept), "q=", 2);
			return q ? strtod(q + 2, NULL) : 1;
		}
		accept = next + 1;
	}
	return 0;
}

enum zd_ctl_metrics_format zd_ctl_http_format(const char *request)
{
	static const char name[] = "\r\nAccept:";
	const char *accept = strcasestr(request, name);
	if (!accept)
		return ZD_CTL_PROMETHEUS;
	accept += sizeof(name) - 1;
	const char *end = accept + strcspn(accept, "\r");
	const double openmetrics = weight_of(accept, end, "application/openmetrics-text");
	return openmetrics > 0 && openmetrics >= weight_of(accept, end, "text/plain") ? ZD_CTL_OPENMETRICS
	                                                                              : ZD_CTL_PROMETHEUS;
}

/* ---- Connections --------------------------------------------------------------------------------------- */

static int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

enum state { FREE, READING, WRITING, LINGERING };

struct connection {
	enum state state;
	int in, out;
	int64_t until_ms; /* the end of the state */
	uint64_t order;   /* of the beginnings */
	char request[ZD_CTL_HTTP_MAX_BYTES + 1];
	char *answer;
	size_t request_bytes, answer_bytes, written_bytes;
};

struct server {
	int listener; /* -1: one connection, whose descriptors are the caller's */
	int (*make)(FILE *body, enum zd_ctl_metrics_format format, void *arg);
	void *arg;
	uint64_t begun;
	int status; /* of the last answer that could not be written */
	struct connection connections[CONNECTIONS];
};

static void close_connection(const struct server *server, struct connection *connection)
{
	if (connection->state == FREE)
		return;
	free(connection->answer);
	connection->answer = NULL;
	connection->state = FREE;
	if (server->listener >= 0)
		(void)close(connection->in);
}

static void begin_state(struct connection *connection, enum state state, int64_t for_ms)
{
	connection->state = state;
	connection->until_ms = now_ms() + for_ms;
}

/* To close a socket while a part of the request is not read would reset the connection, and the peer would
 * not see the answer. */
static void begin_lingering(const struct server *server, struct connection *connection)
{
	if (shutdown(connection->out, SHUT_WR) < 0)
		close_connection(server, connection);
	else
		begin_state(connection, LINGERING, LINGER_MS);
}

/* If a socket's peer has closed, no SIGPIPE is raised. */
static void write_some(struct server *server, struct connection *connection)
{
	const char *bytes = connection->answer + connection->written_bytes;
	const size_t left = connection->answer_bytes - connection->written_bytes;
	ssize_t written = send(connection->out, bytes, left, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (written < 0 && errno == ENOTSOCK)
		written = write(connection->out, bytes, left);
	if (written < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (written < 0) {
		if (errno != EPIPE && errno != ECONNRESET)
			server->status = ZEROD_E_SYSTEM;
		close_connection(server, connection);
		return;
	}
	connection->written_bytes += (size_t)written;
	if (connection->written_bytes == connection->answer_bytes)
		begin_lingering(server, connection);
}

static void begin_answer(struct server *server, struct connection *connection, int status, bool head)
{
	const enum zd_ctl_metrics_format format = zd_ctl_http_format(connection->request);
	char *body = NULL;
	size_t body_bytes = 0, i = 0;
	FILE *file = open_memstream(&body, &body_bytes);
	zd_assert(file);
	if (status == 200 && server->make(file, format, server->arg))
		status = 503;
	(void)fclose(file);
	while (answers[i].status != status)
		i++;
	file = open_memstream(&connection->answer, &connection->answer_bytes);
	zd_assert(file);
	fprintf(file,
	        "HTTP/1.1 %d %s\r\n%sContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
	        status, answers[i].phrase, answers[i].headers, status == 200 ? types[format] : "text/plain",
	        status == 200 ? body_bytes : strlen(answers[i].phrase));
	if (!head && status == 200)
		(void)fwrite(body, 1, body_bytes, file);
	else if (!head)
		fputs(answers[i].phrase, file);
	(void)fclose(file);
	free(body);
	connection->written_bytes = 0;
	begin_state(connection, WRITING, REQUEST_MS);
	write_some(server, connection);
}

/* Receives at most `room` bytes; 0 at the end of the stream. */
static ssize_t receive(int fd, void *bytes, size_t room)
{
	ssize_t nbytes = recv(fd, bytes, room, MSG_DONTWAIT);
	return nbytes < 0 && errno == ENOTSOCK ? read(fd, bytes, room) : nbytes;
}

static void read_some(struct server *server, struct connection *connection)
{
	char *at = connection->request + connection->request_bytes;
	const ssize_t nbytes = receive(connection->in, at, ZD_CTL_HTTP_MAX_BYTES - connection->request_bytes);
	bool head = false;
	if (nbytes < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (nbytes < 0 || (nbytes == 0 && connection->request_bytes == 0)) { /* the peer has closed */
		close_connection(server, connection);
		return;
	}
	connection->request_bytes += (size_t)nbytes;
	connection->request[connection->request_bytes] = '\0';
	int status = zd_ctl_http_status(connection->request, connection->request_bytes, &head);
	if (nbytes == 0 && status == 0)
		status = 400;
	if (status)
		begin_answer(server, connection, status, head);
}

static void drop_some(const struct server *server, struct connection *connection)
{
	char rest[4096];
	const ssize_t nbytes = receive(connection->in, rest, sizeof(rest));
	if (nbytes == 0 || (nbytes < 0 && errno != EINTR && errno != EAGAIN))
		close_connection(server, connection);
}

static void go_on(struct server *server, struct connection *connection)
{
	if (connection->state == READING)
		read_some(server, connection);
	else if (connection->state == WRITING)
		write_some(server, connection);
	else if (connection->state == LINGERING)
		drop_some(server, connection);
}

/* ---- The server ---------------------------------------------------------------------------------------- */

/* Finds a free place, or frees the place of the oldest connection without an answer in progress. */
static struct connection *find_place(struct server *server)
{
	struct connection *oldest = NULL;
	for (unsigned i = 0; i < CONNECTIONS; i++) {
		struct connection *connection = &server->connections[i];
		if (connection->state == FREE)
			return connection;
		const bool writes = connection->state == WRITING;
		if (!oldest || (oldest->state == WRITING && !writes) ||
		    ((oldest->state == WRITING) == writes && connection->order < oldest->order))
			oldest = connection;
	}
	close_connection(server, oldest);
	return oldest;
}

static void add_connection(struct server *server, int in, int out)
{
	struct connection *connection = find_place(server);
	connection->in = in;
	connection->out = out;
	connection->order = server->begun++;
	connection->request_bytes = 0;
	connection->request[0] = '\0';
	begin_state(connection, READING, REQUEST_MS);
}

/* Ends the states whose time has passed. Returns the time until which the others can wait, or -1 without a
 * connection. */
static int64_t expire(struct server *server)
{
	const int64_t at_ms = now_ms();
	int64_t next_ms = -1;
	for (unsigned i = 0; i < CONNECTIONS; i++) {
		struct connection *connection = &server->connections[i];
		if (connection->state == READING && connection->until_ms <= at_ms)
			begin_answer(server, connection, 408, false);
		else if (connection->until_ms <= at_ms)
			close_connection(server, connection);
		if (connection->state != FREE && (next_ms < 0 || connection->until_ms < next_ms))
			next_ms = connection->until_ms;
	}
	return next_ms;
}

/* Waits for connections, requests and room, and continues those that are ready. Returns false if none was
 * ready in time. */
static bool serve_some(struct server *server, int64_t wait_ms)
{
	struct pollfd ready[CONNECTIONS + 1];
	for (unsigned i = 0; i < CONNECTIONS; i++) {
		const struct connection *connection = &server->connections[i];
		const bool writes = connection->state == WRITING;
		ready[i] = (struct pollfd){.fd = writes ? connection->out : connection->in,
		                           .events = writes ? POLLOUT : POLLIN};
		if (connection->state == FREE)
			ready[i].fd = -1;
	}
	ready[CONNECTIONS] = (struct pollfd){.fd = server->listener, .events = POLLIN};
	const int count = poll(ready, CONNECTIONS + 1, (int)(wait_ms > 0 ? wait_ms : 0));
	if (count <= 0)
		return count < 0;
	for (unsigned i = 0; i < CONNECTIONS; i++) {
		if (ready[i].revents)
			go_on(server, &server->connections[i]);
	}
	if (ready[CONNECTIONS].revents) {
		const int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0)
			add_connection(server, fd, fd);
	}
	return true;
}

int zd_ctl_http_serve(int in, int out, int (*make)(FILE *body, enum zd_ctl_metrics_format format, void *arg),
                      void *arg)
{
	struct server *server = zd_calloc(1, sizeof(*server));
	int listens = 0;
	socklen_t bytes = sizeof(listens);
	if (getsockopt(in, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes))
		listens = 0;
	server->listener = listens ? in : -1;
	server->make = make;
	server->arg = arg;
	if (!listens)
		add_connection(server, in, out);
	for (;;) {
		const int64_t until_ms = expire(server);
		if (until_ms < 0 && !listens)
			break;
		const bool any = serve_some(server, until_ms < 0 ? IDLE_MS : until_ms - now_ms());
		if (until_ms < 0 && !any)
			break;
	}
	const int status = listens ? 0 : server->status;
	free(server);
	return status;
}
