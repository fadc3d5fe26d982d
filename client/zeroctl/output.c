// SPDX-License-Identifier: Apache-2.0
/*
 * output.c - a file that exists either as a whole or not at all.
 *
 * A handler of the signals that end programs removes the unfinished file. A path that names a pipe, a
 * terminal or another file that is not regular is opened and written directly. It is therefore not replaced.
 */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "gzip.h"

#define MOST_NAMES 100u
#define MOST_LINKS 40u

static const char *volatile unfinished; /* NULL: none */
static const int ending_signals[] = {SIGINT, SIGTERM, SIGHUP};

static void remove_unfinished(int number)
{
	const char *path = unfinished;
	if (path)
		(void)unlink(path);
	(void)raise(number); /* SA_RESETHAND: it ends the program when this handler returns */
}

static void catch_signals(void)
{
	struct sigaction action = {.sa_handler = remove_unfinished, .sa_flags = (int)SA_RESETHAND}, before;
	for (size_t i = 0; i < ZD_ARRAY_LEN(ending_signals); i++) {
		/* A signal that the parent ignores, as nohup does, remains ignored. */
		if (!sigaction(ending_signals[i], NULL, &before) && before.sa_handler != SIG_IGN)
			(void)sigaction(ending_signals[i], &action, NULL);
	}
}

static int fail(const char *path, const char *reason)
{
	return zd_ctl_fail(ZEROD_E_SYSTEM, "cannot write '%s': %s", path, reason);
}

/* ---- The path ------------------------------------------------------------------------------------------ */

/* Replaces output->path, a symbolic link, by its target. */
static int follow_link(struct zd_ctl_output *output)
{
	char target[PATH_MAX];
	const ssize_t bytes = readlink(output->path, target, sizeof(target) - 1);
	if (bytes < 0)
		return fail(output->path, strerror(errno));
	target[bytes] = '\0';
	char *folder = zd_ctl_text("%s", output->path);
	char *path = *target == '/' ? zd_ctl_text("%s", target)
	                            : zd_ctl_text("%s/%s", dirname(folder), target);
	free(folder);
	free(output->path);
	output->path = path;
	return 0;
}

/* Follows the links at the path's end, and sets `replaces`. *special: the path names a file that is not
 * regular. A link of root's, as /dev/stdout, or of the caller's own is followed. */
static int resolve(struct zd_ctl_output *output, bool *special)
{
	struct stat at, info;
	for (unsigned i = 0; i < MOST_LINKS; i++) {
		if (lstat(output->path, &at))
			return errno == ENOENT ? 0 : fail(output->path, strerror(errno));
		if (S_ISLNK(at.st_mode) && at.st_uid != 0 && at.st_uid != geteuid())
			return fail(output->path, "it is a symbolic link of another user");
		*special = stat(output->path, &info) == 0 && !S_ISREG(info.st_mode);
		if (*special)
			return 0;
		if (S_ISLNK(at.st_mode)) {
			int status = follow_link(output);
			if (status)
				return status;
			continue;
		}
		output->replaces = true;
		return at.st_uid == geteuid() ? 0 : fail(output->path, "it is a file of another user");
	}
	return fail(output->path, strerror(ELOOP));
}

/* Creates "FOLDER/.NAME.PID.N.tmp", with the mode that the umask leaves. */
static int create_temporary(struct zd_ctl_output *output)
{
	char *folder = zd_ctl_text("%s", output->path), *name = zd_ctl_text("%s", output->path);
	const char *in = dirname(folder), *base = basename(name); /* both change the text */
	int fd = -1;
	for (unsigned i = 0; fd < 0 && i < MOST_NAMES; i++) {
		free(output->temporary);
		output->temporary = zd_ctl_text("%s/.%.200s.%ld.%u.tmp", in, base, (long)getpid(), i);
		unfinished = output->temporary;
		fd = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (fd < 0)
			unfinished = NULL; /* if it exists, it is another program's */
		if (fd < 0 && errno != EEXIST)
			break;
	}
	const int error = errno;
	free(folder);
	free(name);
	errno = error;
	return fd;
}

static FILE *open_stream(const struct zd_ctl_output *output, bool compressed)
{
	int fd = output->fd < 0 ? -1 : fcntl(output->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return NULL;
	FILE *file = compressed ? zd_ctl_gzip_open(fd) : fdopen(fd, "w");
	if (!file)
		(void)close(fd);
	return file;
}

int zd_ctl_output_open(struct zd_ctl_output *output, const char *path, bool compressed)
{
	bool special = false;
	*output = (struct zd_ctl_output){.file = stdout, .fd = -1};
	if (strcmp(path, "-") == 0)
		return 0;
	output->file = NULL;
	output->path = zd_ctl_text("%s", path);
	int status = resolve(output, &special);
	if (status)
		return zd_ctl_output_close(output, status);
	if (special) {
		output->fd = open(output->path, O_WRONLY | O_CLOEXEC);
	} else {
		catch_signals();
		output->fd = create_temporary(output);
	}
	output->file = open_stream(output, compressed);
	return output->file ? 0 : zd_ctl_output_close(output, fail(path, strerror(errno)));
}

/* ---- The end ------------------------------------------------------------------------------------------- */

/* Flushes the stream, and closes it unless it is standard output. */
static int end_stream(struct zd_ctl_output *output)
{
	const char *path = output->path ? output->path : "-";
	errno = 0;
	bool written = fflush(output->file) == 0 && !ferror(output->file);
	int error = errno;
	if (output->file != stdout && fclose(output->file) != 0 && written) {
		written = false;
		error = errno;
	}
	return written ? 0 : fail(path, error ? strerror(error) : "an earlier write has failed");
}

/* A file that another program has created at this place in the meantime remains. */
static int move(const struct zd_ctl_output *output)
{
	if (output->replaces)
		return rename(output->temporary, output->path);
	if (linkat(AT_FDCWD, output->temporary, AT_FDCWD, output->path, 0) == 0)
		return unlink(output->temporary);
	if (errno != EPERM && errno != EOPNOTSUPP && errno != EMLINK)
		return -1;
	/* A file system without hard links. */
	return renameat2(AT_FDCWD, output->temporary, AT_FDCWD, output->path, RENAME_NOREPLACE);
}

int zd_ctl_output_close(struct zd_ctl_output *output, int status)
{
	if (output->temporary)
		catch_signals(); /* the verb may have had handlers of its own */
	if (output->file) {
		const int ended = end_stream(output);
		status = status ? status : ended;
	}
	if (!status && output->temporary && (fsync(output->fd) || move(output)))
		status = fail(output->path, strerror(errno));
	if (status && unfinished)
		(void)unlink(unfinished);
	unfinished = NULL;
	if (output->fd >= 0)
		(void)close(output->fd);
	free(output->path);
	free(output->temporary);
	*output = (struct zd_ctl_output){.fd = -1};
	return status;
}
