// SPDX-License-Identifier: Apache-2.0
/*
 * call.c - calls of the daemon, and the messages of their failures.
 */
#include "ctl.h"

#include <stdarg.h>
#include <stdlib.h>

#include "client/lib/conn/request.h"

static char *kept; /* the last failure's text */
static bool keeping;

void zd_ctl_keep_failures(bool keep)
{
	keeping = keep;
	free(kept);
	kept = NULL;
}

const char *zd_ctl_kept_failure(void)
{
	return kept ? kept : "";
}

int zd_ctl_fail(int status, const char *format, ...)
{
	va_list args;
	char *text;
	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		text = NULL;
	va_end(args);
	if (keeping) {
		free(kept);
		kept = text;
		return status;
	}
	fflush(stdout); /* output from before the failure must precede its message */
	fputs("zeroctl: ", stderr);
	zd_ctl_print_shown(stderr, text ? text : "out of memory");
	fputc('\n', stderr);
	free(text);
	return status;
}

static int connect_to(struct zd_ctl *ctl, const char *socket_path)
{
	struct zerod_options options = ZEROD_INIT(options);
	options.socket_path = socket_path;
	options.name = "zeroctl";
	options.deadline_ms = ctl->deadline_ms;
	return zerod_connect(&options, &ctl->client);
}

int zd_ctl_connect(struct zd_ctl *ctl)
{
	if (ctl->client)
		return 0;
	int status = connect_to(ctl, ctl->socket_path);
	if (status == ZEROD_E_CONNECT) {
		char *paths = NULL;
		unsigned count = ctl->socket_given ? 0 : zd_ctl_private_sockets(&paths);
		if (count == 1)
			status = connect_to(ctl, paths);
		if (status == ZEROD_E_CONNECT)
			status = zd_ctl_fail(
			        status,
			        "%s\n"
			        "  start it:     systemctl start zerod, or: zerod --foreground --socket %s\n"
			        "  name another: --socket PATH, or the variable ZEROD_SOCKET%s%s",
			        zerod_last_error(NULL), ctl->socket_path,
			        count ? "\nDaemons of your jobs:\n" : "", count ? paths : "");
		free(paths);
		if (status == ZEROD_E_CONNECT)
			return status;
	}
	if (status)
		return zd_ctl_fail(status, "%s: %s", zerod_status_name(status), zerod_last_error(NULL));
	return 0;
}

int zd_ctl_call(struct zd_ctl *ctl, Zd__Request *request, int (*fn)(const Zd__Reply *reply, void *arg),
                void *arg)
{
	int status = zd_ctl_connect(ctl);
	if (status)
		return status;
	status = zc_call(ctl->client, request, ctl->deadline_ms, fn, arg);
	if (status)
		return zd_ctl_fail(status, "%s: %s", zerod_status_name(status),
		                   zerod_last_error(ctl->client));
	return 0;
}
