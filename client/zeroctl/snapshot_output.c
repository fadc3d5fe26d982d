// SPDX-License-Identifier: Apache-2.0
/*
 * snapshot_output.c - a file that is there as a whole, or not at all.
 *
 * A handler of the signals that end programs removes the unfinished file. A path that names a pipe, a
 * terminal or another file that is not regular is opened and written directly, so that it is not replaced.
 */
#include "snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#define MOST_NAMES 100u

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
		/* A signal that the parent ignores, as nohup does, stays ignored. */
		if (!sigaction(ending_signals[i], NULL, &before) && before.sa_handler != SIG_IGN)
			(void)sigaction(ending_signals[i], &action, NULL);
	}
}

static int fail(const char *path, const char *what, int error)
{
	return zd_ctl_fail(ZEROD_E_SYSTEM, "cannot %s '%s': %s", what, path, strerror(error));
}

/* Creates "FOLDER/.NAME.PID.N.tmp", which the umask opens to others as any file. */
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
		if (fd < 0 && errno != EEXIST)
			break;
		if (fd < 0)
			unfinished = NULL; /* it is another program's */
	}
	const int error = errno;
	free(folder);
	free(name);
	errno = error;
	return fd;
}

/* Opens what the path names now, where that is no regular file. Returns false if it is one, or none. */
static bool open_special(const char *path, int *fd)
{
	struct stat info;
	if (stat(path, &info) || S_ISREG(info.st_mode))
		return false;
	*fd = open(path, O_WRONLY | O_CLOEXEC);
	return true;
}

int zd_ctl_output_open(struct zd_ctl_output *output, const char *path)
{
	int fd;
	*output = (struct zd_ctl_output){.file = stdout};
	if (strcmp(path, "-") == 0)
		return 0;
	/* A symbolic link stays one: the file that it names is replaced. */
	char *resolved = realpath(path, NULL);
	output->path = zd_ctl_text("%s", resolved ? resolved : path);
	free(resolved);
	if (!open_special(output->path, &fd)) {
		catch_signals();
		fd = create_temporary(output);
	}
	output->file = fd < 0 ? NULL : fdopen(fd, "w");
	if (output->file)
		return 0;
	int status = fail(path, "write", errno);
	if (fd >= 0)
		(void)close(fd);
	else
		unfinished = NULL;
	return zd_ctl_output_close(output, status);
}

static int finish(struct zd_ctl_output *output)
{
	if (ferror(output->file) || fflush(output->file))
		return fail(output->path, "write", errno);
	if (output->temporary && fsync(fileno(output->file)))
		return fail(output->path, "write", errno);
	if (output->temporary && rename(output->temporary, output->path))
		return fail(output->path, "write", errno);
	return 0;
}

int zd_ctl_output_close(struct zd_ctl_output *output, int status)
{
	if (output->path && output->file) {
		if (!status)
			status = finish(output);
		(void)fclose(output->file);
	}
	if (status && unfinished)
		(void)unlink(unfinished);
	unfinished = NULL;
	free(output->path);
	free(output->temporary);
	*output = (struct zd_ctl_output){0};
	return status;
}
