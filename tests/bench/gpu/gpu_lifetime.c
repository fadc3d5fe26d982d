/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_lifetime.c - what a segment's descriptor is good for: imported by a process of another uid; kept alone,
 * without any process on the GPU, after its exporter was killed; and re-imported by a second daemon, which
 * pushes between GPUs while a trainer still has the first daemon's segment mapped.
 */
#include "gpu_common.h"

#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define WORD       0x5eed0001u
#define WORD_AGAIN 0x5eed0101u
#define BYTES      (256 * MIB)

struct uids {
	uid_t exporter;
	uid_t importer;
};

static void become(uid_t uid)
{
	if (uid == 0)
		return;
	SYS_MUST(setgroups(0, NULL));
	SYS_MUST(setgid(uid));
	SYS_MUST(setuid(uid));
}

/* Makes a segment of WORD on device 0, sends its descriptor, and stays until the socket closes or it is
 * killed. */
static void exporter_main(int sock, void *arg)
{
	struct gpu_segment segment;
	char byte;
	int fd;

	become(((struct uids *)arg)->exporter);
	gpu_open(0);
	segment = gpu_segment_new(0, BYTES, 0);
	GPU_MUST(cuMemsetD32(segment.at, WORD, BYTES / 4));
	GPU_MUST(cuCtxSynchronize());
	fd = gpu_segment_export(&segment);
	gpu_put_fd(sock, fd);
	close(fd);
	(void)recv(sock, &byte, 1, 0);
}

static void importer_main(int sock, void *arg)
{
	int fd = gpu_get_fd(sock);
	struct gpu_segment segment;
	double begin, imported;
	size_t wrong;

	become(((struct uids *)arg)->importer);
	gpu_open(0);
	begin = gpu_now_us();
	segment = gpu_segment_import(fd, 0, BYTES, 0);
	imported = gpu_now_us() - begin;
	wrong = gpu_words_wrong(segment.at, BYTES, WORD);
	GPU_MUST(cuMemsetD32(segment.at, ~WORD, 1024));
	GPU_MUST(cuCtxSynchronize());
	printf("  uid %d reads uid %d's segment: %zu words wrong; import, map and access took %.0f us; "
	       "writes too\n",
	       (int)getuid(), (int)((struct uids *)arg)->exporter, wrong, imported);
}

static void other_uid(uid_t from, uid_t to)
{
	struct uids uids = {from, to};
	struct gpu_child exporter = gpu_child_start(exporter_main, &uids);
	struct gpu_child importer = gpu_child_start(importer_main, &uids);
	int fd = gpu_get_fd(exporter.sock);

	gpu_put_fd(importer.sock, fd);
	close(fd);
	if (gpu_child_wait(&importer) != 0)
		printf("  uid %d could not use uid %d's segment\n", (int)to, (int)from);
	gpu_child_wait(&exporter);
}

struct look {
	unsigned processes;
	int persistence;
	double used_mib;
};

static void look_main(int sock, void *arg)
{
	struct gpu_nvml *nvml = gpu_nvml_open(0);
	struct look look = {gpu_nvml_processes(nvml), gpu_nvml_persistence(nvml), gpu_nvml_used_mib(nvml)};

	(void)arg;
	gpu_put(sock, &look, sizeof(look));
}

/* NVML keeps the device open, so each look is a process of its own. */
static struct look look(void)
{
	struct gpu_child child = gpu_child_start(look_main, NULL);
	struct look seen;

	gpu_get(child.sock, &seen, sizeof(seen));
	gpu_child_wait(&child);
	return seen;
}

static void descriptor_alone(double seconds)
{
	struct uids root = {0, 0};
	struct look before = look(), alone, after;
	struct gpu_child exporter = gpu_child_start(exporter_main, &root);
	struct gpu_child importer;
	int fd = gpu_get_fd(exporter.sock);

	gpu_child_kill(&exporter);
	gpu_sleep_us(seconds * 1e6);
	alone = look();
	gpu_sleep_us(seconds * 1e6);
	importer = gpu_child_start(importer_main, &root);
	gpu_put_fd(importer.sock, fd);
	gpu_child_wait(&importer);
	close(fd);
	after = look();
	printf("  persistence mode %d; used %.0f MiB before, %.0f with the descriptor alone (%u processes on "
	       "the GPU, "
	       "%.0f s), %.0f after its close\n",
	       alone.persistence, before.used_mib, alone.used_mib, alone.processes, 2 * seconds,
	       after.used_mib);
}

struct node {
	int devices;
	bool again;
};

/* Pushes shard -> peer's segment and prints the time; the data is checked by the trainer. */
static void push_and_print(const char *who, struct gpu_segment *segments, int devices, uint32_t word)
{
	struct gpu_samples samples = {0};
	int last = devices - 1;
	char name[128];

	for (int source = last; source >= 0; source -= last ? last : 1) {
		int target = last - source;
		CUstream stream;

		gpu_open(source);
		stream = gpu_stream(true);
		GPU_MUST(cuMemsetD32(segments[source].at, word + (uint32_t)source, BYTES / 8));
		GPU_MUST(cuCtxSynchronize());
		for (int i = 0; i < 23; i++) {
			double begin = gpu_now_us();

			GPU_MUST(cuMemcpyAsync(segments[target].at + BYTES / 2, segments[source].at, 64 * MIB,
			                       stream));
			GPU_MUST(cuStreamSynchronize(stream));
			if (i >= 3)
				gpu_samples_add(&samples, gpu_now_us() - begin);
		}
		snprintf(name, sizeof(name), "  %s: push of 64 MiB, GPU %d to %d", who, source, target);
		gpu_samples_print(name, &samples);
		gpu_samples_free(&samples);
	}
}

static void daemon_main(int sock, void *arg)
{
	const struct node *node = arg;
	struct gpu_segment segments[GPU_DEVICES_MAX];
	double begin;
	char byte;

	for (int i = 0; i < node->devices; i++)
		gpu_open(i);
	begin = gpu_now_us();
	for (int i = 0; i < node->devices; i++) {
		int fd;

		gpu_open(i);
		if (node->again) {
			fd = gpu_get_fd(sock);
			segments[i] = gpu_segment_import(fd, i, BYTES, node->devices);
		} else {
			segments[i] = gpu_segment_new(i, BYTES, node->devices);
			fd = gpu_segment_export(&segments[i]);
			gpu_put_fd(sock, fd);
		}
		close(fd);
	}
	printf("  %s daemon: %d segments of 256 MiB with access from all GPUs in %.0f us\n",
	       node->again ? "second" : "first", node->devices, gpu_now_us() - begin);
	push_and_print(node->again ? "second daemon" : "first daemon", segments, node->devices,
	               node->again ? WORD_AGAIN : WORD);
	gpu_put(sock, "", 1);
	(void)recv(sock, &byte, 1, 0);
}

/* Maps GPU 0's segment once, and counts what is wrong in it whenever asked. */
static void trainer_main(int sock, void *arg)
{
	int fd = gpu_get_fd(sock);
	struct gpu_segment segment;
	uint32_t word;

	(void)arg;
	gpu_open(0);
	segment = gpu_segment_import(fd, 0, BYTES, 0);
	close(fd);
	gpu_put(sock, "", 1);
	while (recv(sock, &word, sizeof(word), MSG_WAITALL) == sizeof(word)) {
		size_t wrong = gpu_words_wrong(segment.at + BYTES / 2, 64 * MIB, word);

		gpu_put(sock, &wrong, sizeof(wrong));
	}
}

static size_t trainer_check(struct gpu_child *trainer, uint32_t word)
{
	size_t wrong;

	gpu_put(trainer->sock, &word, sizeof(word));
	gpu_get(trainer->sock, &wrong, sizeof(wrong));
	return wrong;
}

static void second_daemon(int devices)
{
	struct node first = {devices, false}, second = {devices, true};
	struct gpu_child daemon = gpu_child_start(daemon_main, &first);
	struct gpu_child trainer = gpu_child_start(trainer_main, &first);
	uint32_t last = (uint32_t)devices - 1;
	int fds[GPU_DEVICES_MAX] = {0};
	size_t wrong[3];
	char byte;

	for (int i = 0; i < devices; i++)
		fds[i] = gpu_get_fd(daemon.sock);
	gpu_put_fd(trainer.sock, fds[0]);
	gpu_get(trainer.sock, &byte, 1);
	gpu_get(daemon.sock, &byte, 1);
	wrong[0] = trainer_check(&trainer, WORD + last);
	gpu_child_kill(&daemon);
	wrong[1] = trainer_check(&trainer, WORD + last);
	daemon = gpu_child_start(daemon_main, &second);
	for (int i = 0; i < devices; i++)
		gpu_put_fd(daemon.sock, fds[i]);
	gpu_get(daemon.sock, &byte, 1);
	wrong[2] = trainer_check(&trainer, WORD_AGAIN + last);
	printf("  words wrong in the trainer's mapping: %zu before, %zu after the daemon was killed, %zu "
	       "after the second "
	       "daemon's push\n",
	       wrong[0], wrong[1], wrong[2]);
	gpu_child_wait(&daemon);
	gpu_child_wait(&trainer);
}

int main(void)
{
	int devices = gpu_count();

	alarm(240);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("a segment imported by another uid\n");
	other_uid(0, 65534);
	other_uid(1234, 65534);
	printf("memory kept by a descriptor alone, its exporter killed\n");
	descriptor_alone(4);
	printf("segments re-imported by a second daemon, %d GPUs\n", devices);
	second_daemon(devices);
	return 0;
}
