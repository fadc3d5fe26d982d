/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top_sessions.c - sessions for tests/it/top.py. Reads lines from standard input and answers each with "ok":
 * "open NAME", "open NAME JOB BYTES" with an allocation, "close NAME". The end of the input closes all.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zerod.h>

#define MOST 64

static struct {
	char name[64];
	zerod_client *client;
} sessions[MOST];

static int fail(const char *what, zerod_client *client)
{
	fprintf(stderr, "%s: %s\n", what, zerod_last_error(client));
	return 1;
}

static int open_session(const char *socket_path, size_t place, const char *job, uint64_t bytes)
{
	struct zerod_options options = ZEROD_INIT(options);
	options.socket_path = socket_path;
	options.name = sessions[place].name;
	if (zerod_connect(&options, &sessions[place].client))
		return fail("connect", NULL);
	if (!*job)
		return 0;
	struct zerod_alloc_options alloc = ZEROD_INIT(alloc);
	zerod_allocation *allocation; /* ends with the session */
	void *data;
	alloc.job = job;
	alloc.bytes = bytes;
	if (zerod_alloc(sessions[place].client, &alloc, &allocation, &data))
		return fail("alloc", sessions[place].client);
	return 0;
}

/* The place of the name's session; "": the first place without a session. MOST: there is none. */
static size_t find(const char *name)
{
	size_t place = 0;
	while (place < MOST && strcmp(sessions[place].name, name) != 0)
		place++;
	return place;
}

int main(int argc, char **argv)
{
	char line[256];
	while (argc == 2 && fgets(line, sizeof(line), stdin)) {
		char verb[8], name[64], job[64] = "";
		uint64_t bytes = 0;
		if (sscanf(line, "%7s %63s %63s %" SCNu64, verb, name, job, &bytes) < 2)
			return 2;
		const int open = strcmp(verb, "open") == 0;
		const size_t place = find(open ? "" : name);
		if (place == MOST)
			return 3;
		(void)snprintf(sessions[place].name, sizeof(sessions[place].name), "%s", open ? name : "");
		if (open && open_session(argv[1], place, job, bytes))
			return 4;
		if (!open)
			zerod_close(sessions[place].client);
		puts("ok");
		fflush(stdout);
	}
	for (size_t place = 0; place < MOST; place++) {
		if (*sessions[place].name)
			zerod_close(sessions[place].client);
	}
	return 0;
}
