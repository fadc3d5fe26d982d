// SPDX-License-Identifier: Apache-2.0
/*
 * metrics_http.c - HTTP/1.1 for one request: what a socket unit of systemd with Accept=yes needs.
 *
 * The connection ends after the answer, so a body that follows the headers is not read. What the peer sends
 * is bounded in bytes and in time; the unit bounds the rest.
 */
#include "metrics.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <zerod.h>

#define REQUEST_MS 5000
#define LINGER_MS  1000 /* until the peer of a rejected request has read the answer and closed */

static const struct {
	int status;
	const char *phrase, *headers;
} answers[] = {
        {200, "OK", "Content-Type: " ZD_CTL_METRICS_TYPE "\r\n"},
        {400, "Bad Request", ""},
        {404, "Not Found", ""},
        {405, "Method Not Allowed", "Allow: GET, HEAD\r\n"},
        {408, "Request Timeout", ""},
        {503, "Service Unavailable", ""},
};

/* ---- The request --------------------------------------------------------------------------------------- */

/* Whether the text, up to `end`, begins with the words and ends behind them or, with `query`, at a '?'. */
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

static int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Reads some bytes, if any come until then: 0 at the end of the stream, -1 with ETIMEDOUT. */
static ssize_t read_until(int fd, void *buffer, size_t room, int64_t until_ms)
{
	for (;;) {
		int64_t left_ms = until_ms - now_ms();
		struct pollfd ready = {.fd = fd, .events = POLLIN};
		int count = poll(&ready, 1, left_ms > 0 ? (int)left_ms : 0);
		if (count == 0)
			errno = ETIMEDOUT;
		if (count == 0 || (count < 0 && errno != EINTR))
			return -1;
		ssize_t nbytes = count > 0 ? read(fd, buffer, room) : -1;
		if (nbytes >= 0 || (errno != EINTR && errno != EAGAIN))
			return nbytes;
	}
}

/* Returns the status of the answer; 0: the peer has gone. */
static int read_request(int in, bool *head)
{
	char request[ZD_CTL_HTTP_MAX_BYTES];
	size_t nbytes = 0;
	int64_t until_ms = now_ms() + REQUEST_MS;
	int status;
	*head = false;
	while ((status = zd_ctl_http_status(request, nbytes, head)) == 0) {
		ssize_t more = read_until(in, request + nbytes, sizeof(request) - nbytes, until_ms);
		if (more < 0)
			return errno == ETIMEDOUT ? 408 : 0;
		if (more == 0)
			return nbytes ? 400 : 0;
		nbytes += (size_t)more;
	}
	return status;
}

/* ---- The answer ---------------------------------------------------------------------------------------- */

/* Writes all of it. A socket's peer that has gone raises no SIGPIPE. */
static int write_all(int out, const char *bytes, size_t nbytes)
{
	while (nbytes > 0) {
		ssize_t written = send(out, bytes, nbytes, MSG_NOSIGNAL);
		if (written < 0 && errno == ENOTSOCK)
			written = write(out, bytes, nbytes);
		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			return errno == EPIPE || errno == ECONNRESET ? 0 : ZEROD_E_SYSTEM;
		bytes += written;
		nbytes -= (size_t)written;
	}
	return 0;
}

static int answer(int out, int status, bool head, const char *body, size_t body_bytes)
{
	char *text = NULL;
	size_t nbytes = 0, i = 0;
	while (answers[i].status != status)
		i++;
	FILE *file = open_memstream(&text, &nbytes);
	if (!file)
		return ZEROD_E_SYSTEM;
	if (status != 200) {
		body = answers[i].phrase;
		body_bytes = strlen(body);
	}
	fprintf(file, "HTTP/1.1 %d %s\r\n%s%sContent-Length: %zu\r\nConnection: close\r\n\r\n", status,
	        answers[i].phrase, answers[i].headers, status == 200 ? "" : "Content-Type: text/plain\r\n",
	        body_bytes);
	if (!head)
		fwrite(body, 1, body_bytes, file);
	int rc = fclose(file) ? ZEROD_E_SYSTEM : write_all(out, text, nbytes);
	free(text);
	return rc;
}

/* Reads what is left of the request: to close a socket before that would reset the connection, and the peer
 * would not see the answer. */
static void drain(int in, int out)
{
	char rest[4096];
	int64_t until_ms = now_ms() + LINGER_MS;
	if (shutdown(out, SHUT_WR) < 0)
		return;
	while (read_until(in, rest, sizeof(rest), until_ms) > 0)
		;
}

int zd_ctl_http_serve(int in, int out, int (*make)(FILE *body, void *arg), void *arg)
{
	char *body = NULL;
	size_t body_bytes = 0;
	bool head;
	int status = read_request(in, &head);
	if (status == 0)
		return 0;
	if (status == 200) {
		FILE *file = open_memstream(&body, &body_bytes);
		int made = file ? make(file, arg) : ZEROD_E_SYSTEM;
		if (!file || fclose(file) || made != 0)
			status = 503;
	}
	int rc = answer(out, status, head, body, body_bytes);
	free(body);
	drain(in, out);
	return rc;
}
