/* SPDX-License-Identifier: Apache-2.0 */
/* std_fds.c - descriptors 0 to 2 of a process that was started without some of them. */
#include "base/std_fds.h"

#include <fcntl.h>
#include <unistd.h>

void zd_std_fds_fill(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd > STDERR_FILENO)
		(void)close(fd);
}
