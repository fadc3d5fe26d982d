/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.c - the files of the daemon's first answer: the fence pages, the rings, and the work channel with its
 * page of results.
 */
#include "client/lib/segments/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_BYTES ((size_t)ZD_FENCE_PAGE_BYTES)

/* The other seals (GROW, SEAL, FUTURE_WRITE) protect the daemon, which looks after them itself. */
int zc_pages_check(int fd, uint64_t min_bytes, const char *what, struct zd_err *err)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the %s is not sealed against shrinking", what);
	if (fstat(fd, &st))
		return zd_err_errno(err, errno, "looking at the %s", what);
	if (st.st_size < 0 || (uint64_t)st.st_size < min_bytes)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the %s has %lld bytes, %llu were announced", what,
		                  (long long)st.st_size, (unsigned long long)min_bytes);
	return 0;
}

static int map_file(int fd, size_t bytes, int protection, const char *what, void **page, struct zd_err *err)
{
	void *map = MAP_FAILED;
	int rc = zc_pages_check(fd, bytes, what, err);

	if (!rc)
		map = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
	if (!rc && map == MAP_FAILED)
		rc = zd_err_errno(err, errno, "mapping the %s", what);
	(void)close(fd);
	if (!rc)
		*page = map;
	return rc;
}

/* Shared, so that a fork does not copy pages to which GPUs write. */
static int make_gpu_page(struct zerod_client *client, struct zd_err *err)
{
	void *map = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED)
		return zd_err_errno(err, errno, "making a page for GPUs' fences");
	client->gpu_page = map;
	return 0;
}

int zc_pages_map(struct zerod_client *client, int client_fd, int daemon_fd, struct zd_err *err)
{
	void *client_page = NULL, *daemon_page = NULL;
	int rc = map_file(client_fd, PAGE_BYTES, PROT_READ | PROT_WRITE, "client's fence page", &client_page,
	                  err);

	if (rc)
		(void)close(daemon_fd);
	else
		rc = map_file(daemon_fd, PAGE_BYTES, client->on_gpus ? PROT_READ | PROT_WRITE : PROT_READ,
		              "daemon's fence page", &daemon_page, err);
	if (rc) {
		if (client_page)
			(void)munmap(client_page, PAGE_BYTES);
		return rc;
	}
	client->client_page = client_page;
	client->daemon_page = daemon_page;
	client->gpu_page = client_page;
	return client->strict && client->on_gpus ? make_gpu_page(client, err) : 0;
}

int zc_pages_take_rings(struct zerod_client *client, int fd, struct zd_err *err)
{
	void *map;
	int rc = map_file(fd, ZD_RINGS_BYTES, PROT_READ | PROT_WRITE, "rings", &map, err);

	if (rc)
		return rc;
	client->rings = map;
	client->endpoint.out.ring = &client->rings->requests;
	client->endpoint.in.ring = &client->rings->replies;
	client->worker.endpoint.in.ring = &client->rings->works;
	client->worker.endpoint.out.ring = &client->rings->answers;
	zd_endpoint_start_polling(&client->endpoint);
	zd_endpoint_start_polling(&client->worker.endpoint);
	return 0;
}

int zc_pages_take_work(struct zerod_client *client, int sock, int page_fd, struct zd_err *err)
{
	struct zc_worker *worker = &client->worker;
	void *page;
	int rc = map_file(page_fd, ZD_WORK_PAGE_BYTES, PROT_READ | PROT_WRITE, "page of results", &page, err);

	if (rc) {
		(void)close(sock);
		return rc;
	}
	worker->endpoint.sock = sock;
	worker->page = page;
	/* Without an eventfd, the thread receives no announcements, and sleeps until a request arrives. */
	worker->expected = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return 0;
}
