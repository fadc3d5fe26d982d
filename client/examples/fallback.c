/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fallback - gathers outside of a plan. A plan gathers and releases layer by layer. One frame runs eagerly:
 * it gathers each weight that it touches, and its scope releases them, because the frame cannot know their
 * next use. Run it with a daemon: zerod --backend host --foreground
 *
 *     fallback [SOCKET]
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <zerod.h>

#include "host.h"

#define NUMEL 1024

static zerod_client *client;
static zerod_group *group;

/* Ends the process with the library's text if a call has failed. */
static void check(int status, const char *what)
{
	if (status == ZEROD_OK)
		return;
	fprintf(stderr, "fallback: %s: %s: %s\n", what, zerod_status_name(status), zerod_last_error(client));
	exit(-status);
}

static void join(const char *socket_path)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options place = ZEROD_INIT(place);
	char job[32];

	(void)snprintf(job, sizeof(job), "fallback-%d", (int)getpid());
	options.socket_path = socket_path;
	check(zerod_connect(&options, &client), "connect");
	need_host_devices(client);
	place.job = job;
	place.world_size = 1;
	check(zerod_group_join(client, &place, &group), "join");
}

static zerod_unit *make_unit(const char *name)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	zerod_unit *unit;

	options.name = name;
	options.dtype = ZEROD_FLOAT32;
	options.numel = NUMEL;
	check(zerod_unit_register(group, &options, &unit), "register");
	check(zerod_update_begin(&unit, 1, NULL, NULL), "update_begin");
	check(zerod_publish(&unit, 1, NULL, 0, NULL, NULL), "publish");
	return unit;
}

static unsigned long long gathered_bytes(void)
{
	struct zerod_device_info info = ZEROD_INIT(info);

	check(zerod_device_get(client, 0, &info), "device_get");
	return info.gathered_bytes;
}

/* The hook of an eager frame calls this whenever it touches a weight. The scope holds the unit once, however
 * often this is called. */
static const void *touch(zerod_unit *unit, zerod_scope scope)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	void *data;

	options.scope = scope;
	check(zerod_gather(unit, &options, NULL, &data), "gather in a scope");
	return data;
}

/* The planned frames; `tied` is a unit that the eager frame touches as well. */
static void run_plan(zerod_unit *layer, zerod_unit *tied)
{
	void *data;

	check(zerod_gather(layer, NULL, NULL, &data), "gather");
	check(zerod_gather(tied, NULL, NULL, &data), "gather");
	check(zerod_release(layer, NULL, 0, NULL, NULL), "release");
	check(zerod_release(tied, NULL, 0, NULL, NULL), "release"); /* only the plan's lease */
}

int main(int argc, char **argv)
{
	const zerod_scope outermost = {0};
	zerod_scope scope, context;

	join(argc > 1 ? argv[1] : NULL);
	zerod_unit *layer = make_unit("layer"), *head = make_unit("head");

	/* Forward. The eager frame touches `head`. The plan also gathers and releases it. */
	check(zerod_forward_begin(group, outermost, NULL, 0, &scope), "forward_begin");
	const void *in_forward = touch(head, scope);
	run_plan(layer, head);
	printf("the scope holds %llu bytes\n", gathered_bytes());

	/* A backward will follow: the scope becomes a claim. Without `grad`, its bytes would be free now. */
	check(zerod_forward_end(client, scope, 1, NULL, 0, NULL), "forward_end");
	const void *in_backward = touch(head, scope);
	printf("the claim holds %llu bytes at %s place\n", gathered_bytes(),
	       in_backward == in_forward ? "the same" : "another");
	check(zerod_claim_end(client, scope, NULL, 0, NULL), "claim_end");
	printf("after the backward: %llu bytes\n", gathered_bytes());

	/* A forward has raised an exception. The code that catches it abandons the scope. Otherwise the next
	 * forward_begin sweeps it. */
	check(zerod_forward_begin(group, outermost, NULL, 0, &scope), "forward_begin");
	(void)touch(head, scope);
	check(zerod_scope_abandon(client, scope, NULL, 0), "scope_abandon");

	/* A program reads its weights: all of them are gathered, or none, until the context ends. */
	zerod_unit *both[] = {layer, head};
	check(zerod_context_begin(both, 2, NULL, &context), "context_begin");
	(void)touch(layer, context);
	printf("the context holds %llu bytes\n", gathered_bytes());
	check(zerod_context_end(client, context, NULL, 0, NULL), "context_end");
	zerod_close(client);
	return EXIT_SUCCESS;
}
