/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leases - the holders of a gathered buffer, and its address. Run it with a daemon: zerod --backend host
 * --foreground
 *
 *     leases [SOCKET]
 *
 * Tags distinguish the holders of one buffer, and a lease can require several releases. Units that share a
 * slot use one address in turn: code that remembers addresses remains correct. A persistent unit's copy needs
 * no holder.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <zerod.h>
#include <zerod_host.h>

#include "host.h"

#define NUMEL  1024
#define LAYERS 4
#define SLOTS  2
#define STEPS  3

static zerod_client *client;
static zerod_group *group;
static zerod_stream *stream;
static double sum;

/* Ends the process with the library's text if a call has failed. */
static void check(int status, const char *what)
{
	if (status == ZEROD_OK)
		return;
	fprintf(stderr, "leases: %s: %s: %s\n", what, zerod_status_name(status), zerod_last_error(client));
	exit(-status);
}

static void join(const char *socket_path)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options place = ZEROD_INIT(place);
	char job[32];

	(void)snprintf(job, sizeof(job), "leases-%d", (int)getpid());
	options.socket_path = socket_path;
	options.strict = 1; /* a single rank then also gathers copies, like ranks of a larger group */
	check(zerod_connect(&options, &client), "connect");
	need_host_devices(client);
	place.job = job;
	place.world_size = 1;
	check(zerod_group_join(client, &place, &group), "join");
	check(zerod_host_stream_create(client, &stream), "host_stream_create");
}

static zerod_unit *make_unit(const char *name, uint32_t slot, uint32_t flags)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	zerod_unit *unit;

	options.name = name;
	options.dtype = ZEROD_FLOAT32;
	options.numel = NUMEL;
	options.slot = slot;
	options.flags = flags;
	check(zerod_unit_register(group, &options, &unit), "register");
	check(zerod_update_begin(&unit, 1, NULL, NULL), "update_begin");
	check(zerod_publish(&unit, 1, NULL, 0, NULL, NULL), "publish");
	return unit;
}

static void *gather(zerod_unit *unit, const char *tag, uint32_t uses)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	void *data;

	options.tag = tag;
	options.uses = uses;
	check(zerod_gather(unit, &options, stream, &data), "gather");
	return data;
}

/* The memory is uncharged at once, and reused only when the work now in the stream has run. */
static void release(zerod_unit *unit, const char *tag)
{
	struct zerod_release_options options = ZEROD_INIT(options);

	options.tag = tag;
	check(zerod_release(unit, &stream, 1, &options, NULL), "release");
}

static unsigned long long gathered_bytes(void)
{
	struct zerod_device_info info = ZEROD_INIT(info);

	check(zerod_device_get(client, 0, &info), "device_get");
	return info.gathered_bytes;
}

/* A tied weight: the embedding uses it once and the head twice, independently of each other. */
static void share(zerod_unit *tied)
{
	struct zerod_release_options options = ZEROD_INIT(options);
	const void *in_embedding = gather(tied, "embedding", 1);
	const void *in_head = gather(tied, "head", 2);

	printf("two holders, %s buffer\n", in_head == in_embedding ? "one" : "more than one");
	release(tied, "embedding");
	release(tied, "head");
	printf("before the last release: %llu bytes\n", gathered_bytes());
	release(tied, "head");
	printf("after it: %llu bytes\n", gathered_bytes());
	/* No use is left to release: the call returns an error and changes nothing. */
	options.tag = "head";
	printf("once more: %s\n", zerod_status_name(zerod_release(tied, NULL, 0, &options, NULL)));
}

static void use(void *data)
{
	sum += *(const float *)data;
}

/* Two buffers for any number of layers: while one is used, the next layer is gathered into the other. */
static void run_layers(zerod_unit *const *layers)
{
	struct zerod_gather_options prefetch = ZEROD_INIT(prefetch);
	const void *places[SLOTS] = {NULL};
	unsigned moved = 0;

	prefetch.flags = ZEROD_GATHER_PREFETCH;
	for (unsigned i = 0; i < STEPS * LAYERS; i++) {
		void *data = gather(layers[i % LAYERS], "plan", 1);

		check(zerod_gather(layers[(i + 1) % LAYERS], &prefetch, NULL, NULL), "prefetch");
		moved += places[i % SLOTS] && places[i % SLOTS] != data;
		places[i % SLOTS] = data;
		check(zerod_host_stream_launch(stream, use, data), "launch");
		release(layers[i % LAYERS], "plan");
	}
	printf("%d steps of %d layers in %d slots: %u addresses changed\n", STEPS, LAYERS, SLOTS, moved);
}

static void keep(zerod_unit *norm)
{
	const void *first = gather(norm, NULL, 1);

	release(norm, NULL);
	printf("a persistent copy is %s\n",
	       gather(norm, NULL, 1) == first ? "still there" : "somewhere else");
	check(zerod_unit_set_persistent(norm, 0), "set_persistent"); /* from its next last release on */
	release(norm, NULL);
}

int main(int argc, char **argv)
{
	zerod_unit *layers[LAYERS];
	char name[16];

	join(argc > 1 ? argv[1] : NULL);
	share(make_unit("tied", ZEROD_NO_SLOT, 0));
	for (uint32_t i = 0; i < LAYERS; i++) {
		(void)snprintf(name, sizeof(name), "layer%u", i);
		layers[i] = make_unit(name, 1 + i % SLOTS, 0);
	}
	run_layers(layers);
	keep(make_unit("norm", ZEROD_NO_SLOT, ZEROD_UNIT_PERSISTENT));
	zerod_close(client); /* drains the stream */
	return sum == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
