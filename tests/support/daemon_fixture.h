/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon_fixture.h - a private zerod for a test.
 *
 * zd_daemon_start() runs $BUILD/bin/zerod, or another program, in a fresh temporary folder and returns when
 * it has said READY=1; zd_daemon_stop() ends it and fails unless it exits with 0, without a word from a
 * sanitizer, and leaves nothing behind. Every wait has a deadline. On failure the daemon's log goes to
 * stderr. Typical use, with cmocka:
 *
 *     struct zd_daemon daemon;
 *     assert_int_equal(zd_daemon_start(NULL, &daemon), 0);
 *     struct zerod_options options = ZEROD_INIT(options);
 *     options.socket_path = daemon.socket_path;
 *     ...
 *     assert_int_equal(zd_daemon_stop(&daemon), 0);
 */
#ifndef ZD_TESTS_DAEMON_FIXTURE_H
#define ZD_TESTS_DAEMON_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct zd_daemon_options {
	const char *program; /* under $BUILD; NULL: "bin/zerod" */
	unsigned devices;    /* 0: 2 */
	const char *arena;   /* of each device; NULL: "64M" */
	const char *config;  /* text of a configuration file; NULL: none */
	/* descriptors that the service manager passes */
	const int *passed_fds;
	const char *passed_names; /* separated by colons */
	unsigned npassed;
	const char *const *args; /* more arguments, NULL-terminated; they come last and win. NULL: none */
};

struct zd_daemon {
	pid_t pid;    /* 0: not running */
	int notify;   /* its NOTIFY_SOCKET */
	char dir[64]; /* the temporary folder: socket, zerod.conf, log */
	char socket_path[96];
	char config_path[96]; /* written when options.config is given; may be rewritten for a reload */
	char log_path[96];
	char key_path[96]; /* its key_file, with the same content for all daemons */
};

/* Each returns 0, or -1 after saying on stderr what was expected and what was found. `options` may be
 * NULL. */
int zd_daemon_start(const struct zd_daemon_options *options, struct zd_daemon *daemon);
/* SIGTERM, then as zd_daemon_finish(). Harmless when it is not running. */
int zd_daemon_stop(struct zd_daemon *daemon);
/* Waits for the end of a daemon that was told to end, expects exit status 0, and removes the folder. */
int zd_daemon_finish(struct zd_daemon *daemon);
/* SIGKILL; keeps the folder, so that another daemon may be started on the same socket with
 * zd_daemon_restart(). */
int zd_daemon_kill(struct zd_daemon *daemon);
int zd_daemon_restart(const struct zd_daemon_options *options, struct zd_daemon *daemon);

/* Gets each notification, with a descriptor that it then owns or -1; NULL: nobody does. */
extern void (*zd_daemon_on_note)(const char *note, int fd);
/* Reads a notification if there is one. Returns whether there was. */
bool zd_daemon_read_note(const struct zd_daemon *daemon, char *note, size_t note_bytes);
/* Waits until the daemon notifies its manager of `line`, e.g. "STOPPING=1"; what came before it is
 * dropped. */
int zd_daemon_wait_notify(struct zd_daemon *daemon, const char *line);
/* Waits until its log contains `text`. */
int zd_daemon_wait_log(struct zd_daemon *daemon, const char *text);
/* Runs zeroctl at its socket with the words of `command`, as a shell divides them. Fails unless it exits with
 * 0. */
int zd_daemon_zeroctl(const struct zd_daemon *daemon, const char *command);
/* How many descriptors it has open. */
int zd_daemon_count_fds(const struct zd_daemon *daemon);

/* Runs $BUILD/bin/zerod with these arguments (NULL-terminated, without the program's name) to its end: its
 * exit status in *status (128 + signal when it was killed), and stdout and stderr in `output`, cut to fit. */
int zd_daemon_run(const char *const *args, int *status, char *output, size_t output_bytes);

#endif
