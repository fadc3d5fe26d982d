/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memfd.c - memory files that can be shared with untrusted processes.
 *
 * Seals fix the size before another process receives the descriptor: a process that truncates a file kills
 * its other users with SIGBUS. Seals cannot prevent that another process frees pages (MADV_REMOVE). The next
 * access allocates new ones; that fails only under strict overcommit (vm.overcommit_memory = 2).
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "base/text.h"
#include "executor/memfd.h"

/* Linux 6.3; the C library's headers may be older. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

int zd_memfd_new(const char *name, uint64_t bytes, int *fd, struct zd_err *err)
{
	char text[ZD_BYTES_TEXT];
	int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	if (made < 0 && errno == EINVAL)
		made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (made < 0)
		return zd_err_errno(err, errno, "memory file %s", name);
	if (ftruncate(made, (off_t)bytes) != 0) {
		int error = errno;
		close(made);
		if (error == EFBIG || error == EINVAL)
			return zd_err_set(err, ZEROD_E_NO_MEMORY, "%s of %s exceeds the largest file size",
			                  name, zd_bytes_text(bytes, text));
		return zd_err_errno(err, error, "%s of %s", name, zd_bytes_text(bytes, text));
	}
	*fd = made;
	return 0;
}

int zd_memfd_seal(int fd, int more_seals, struct zd_err *err)
{
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | more_seals) != 0)
		return zd_err_errno(err, errno, "sealing a memory file");
	return 0;
}

int zd_memfd_reserve(int fd, uint64_t bytes, struct zd_err *err)
{
	char text[ZD_BYTES_TEXT];
	int rc;
	do {
		rc = fallocate(fd, 0, 0, (off_t)bytes);
	} while (rc != 0 && errno == EINTR);
	if (rc != 0)
		return zd_err_set(err, ZEROD_E_NO_MEMORY, "the system cannot back %s",
		                  zd_bytes_text(bytes, text));
	return 0;
}

int zd_memfd_map(const char *name, uint64_t bytes, int protection, int more_seals, void **map, int *fd,
                 struct zd_err *err)
{
	int made = -1;
	int rc = zd_memfd_new(name, bytes, &made, err);
	if (rc)
		return rc;
	rc = zd_memfd_reserve(made, bytes, err);
	if (rc)
		goto close_fd;
	/* The mapping must precede the seals: F_SEAL_FUTURE_WRITE forbids new writable mappings, but not
	 * existing ones. */
	void *mapped = mmap(NULL, bytes, protection, MAP_SHARED, made, 0);
	if (mapped == MAP_FAILED) {
		rc = zd_err_errno(err, errno, "mapping %s", name);
		goto close_fd;
	}
	rc = zd_memfd_seal(made, more_seals, err);
	if (rc)
		goto unmap;
	*map = mapped;
	*fd = made;
	return 0;
unmap:
	munmap(mapped, bytes);
close_fd:
	close(made);
	return rc;
}

/* The kernel wants a writable mapping. */
void zd_memfd_drop(void *map, uint64_t bytes)
{
	if (mprotect(map, bytes, PROT_READ | PROT_WRITE) == 0)
		(void)madvise(map, bytes, MADV_REMOVE);
	(void)munmap(map, bytes);
}
