// SPDX-License-Identifier: Apache-2.0
/*
 * private.c - the daemons that this user's jobs have started for themselves (Python's zerod/private.py).
 */
#include "ctl.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether the socket lies in a folder that this user alone can enter: others may make folders of any name. */
static bool is_own(const char *socket_path)
{
	struct stat found;
	char *folder = zd_ctl_text("%.*s", (int)(strrchr(socket_path, '/') - socket_path), socket_path);
	bool own = lstat(folder, &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == getuid() &&
	           !(found.st_mode & 077);
	free(folder);
	return own;
}

unsigned zd_ctl_private_sockets(char **paths)
{
	const char *bases[] = {getenv("XDG_RUNTIME_DIR"), "/tmp"};
	glob_t found = {.gl_pathc = 0};
	unsigned count = 0;
	int flags = GLOB_NOSORT;
	for (size_t i = 0; i < 2; i++) {
		if (!bases[i] || !*bases[i])
			continue;
		char *pattern = zd_ctl_text("%s/zerod-%u-*/zerod.sock", bases[i], getuid());
		(void)glob(pattern, flags, NULL, &found);
		free(pattern);
		flags |= GLOB_APPEND;
	}
	*paths = zd_ctl_text("%s", "");
	for (size_t i = 0; i < found.gl_pathc; i++) {
		if (!is_own(found.gl_pathv[i]))
			continue;
		*paths = zd_ctl_append(*paths, "%s%s", count ? "\n" : "", found.gl_pathv[i]);
		count++;
	}
	globfree(&found);
	return count;
}
