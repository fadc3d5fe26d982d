// SPDX-License-Identifier: Apache-2.0
/*
 * process.c - whether processes of sessions run, and for how long, according to the kernel.
 *
 * This program reads /proc for the pids that the daemon lists. That needs the daemon's pid namespace, in
 * which the daemon sees this process under the pid that this process has here.
 */
#include "ctl.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OTHER_NAMESPACE "its pid is of another pid namespace"
#define HIDDEN          "/proc does not show it to this user"

struct process {
	char state;
	uint64_t started_ns; /* since the boot */
};

/* Reads /proc/PID/stat, in which a name with blanks and brackets stands before the state. */
static int read_process(json_int_t pid, struct process *process)
{
	char path[48], text[1024];
	unsigned long long ticks;
	(void)snprintf(path, sizeof(path), "/proc/%" JSON_INTEGER_FORMAT "/stat", pid);
	FILE *file = fopen(path, "re");
	const size_t nbytes = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
	if (file)
		(void)fclose(file);
	text[nbytes] = '\0';
	const char *end = strrchr(text, ')');
	if (!end || sscanf(end + 1,
	                   " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
	                   "%*d %llu",
	                   &process->state, &ticks) != 2)
		return ZEROD_E_NOT_FOUND;
	process->started_ns = ticks * (1000000000u / (uint64_t)sysconf(_SC_CLK_TCK));
	return 0;
}

static uint64_t since_boot_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static const char *state_name(char state)
{
	return state == 'T'                   ? "stopped"
	       : state == 't'                 ? "traced"
	       : state == 'Z' || state == 'X' ? "zombie"
	                                      : "running";
}

uint64_t zd_ctl_process_age_ns(json_int_t pid)
{
	struct process process;
	if (read_process(pid, &process))
		return 0;
	const uint64_t now_ns = since_boot_ns();
	return now_ns > process.started_ns ? now_ns - process.started_ns : 0;
}

/* *why: the reason for "unknown". */
static const char *process_of(const json_t *session, const char **why)
{
	const json_int_t pid = zd_ctl_integer(session, "pid");
	const uint64_t age_ns = (uint64_t)zd_ctl_integer(session, "age_ns");
	struct process process;
	*why = "";
	if (!read_process(pid, &process))
		/* A process that is younger than the session has reused its pid. Rounding can lose a tick. */
		return process.started_ns + age_ns > since_boot_ns() + 100000000u ? "gone"
		                                                                  : state_name(process.state);
	if (kill((pid_t)pid, 0) && errno == ESRCH)
		return "gone";
	*why = HIDDEN;
	return "unknown";
}

void zd_ctl_add_processes(struct zd_ctl *ctl, json_t *sessions)
{
	size_t i;
	json_t *row, *status;
	if (!ctl->pid_here && !zd_ctl_status_fetch(ctl, &status)) {
		ctl->pid_here = zd_ctl_integer(status, "client_pid");
		json_decref(status);
	}
	json_array_foreach(sessions, i, row)
	{
		const char *why = OTHER_NAMESPACE;
		const bool known = ctl->pid_here == getpid() && zd_ctl_integer(row, "pid");
		(void)json_object_set_new(row, "process",
		                          json_string(known ? process_of(row, &why) : "unknown"));
		(void)json_object_set_new(row, "process_unknown", json_string(why));
	}
}
