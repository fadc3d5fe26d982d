/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_journal.c - what it costs that durable jobs outlive the daemon.
 *
 *     bench_journal [BLOCKS [CALLS [SCENE KIND]]]
 *
 * One rank makes the same calls in three scenes, which take turns block by block: a job that is not durable
 * in a daemon that keeps no state, the same job in a daemon with --keep-state holder, and a durable job in
 * such a daemon. The program prints the time of a call and the daemon's CPU time for it, as medians over all
 * blocks, with the least and the most, and the ratio to the first scene. With SCENE and KIND, numbers from 0,
 * only these run, so that callgrind counts the instructions of one daemon.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <zerod.h>

#include "tests/support/daemon_fixture.h"

#define BLOCKS     40u
#define MAX_BLOCKS 1000u
#define CALLS      200u
#define UNITS      16u
#define NUMEL      1024u
#define NSCENES    3u

struct scene {
	const char *what, *keep_state;
	bool durable;
	struct zd_daemon daemon;
	zerod_client *client;
	zerod_group *group;
	zerod_unit *units[UNITS];
	uint64_t step;
};

struct sample {
	double wall_ns, cpu_ns;
};

static double clock_ns(clockid_t clock)
{
	struct timespec now;

	assert_int_equal(clock_gettime(clock, &now), 0);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void check(const struct scene *scene, int status, const char *call)
{
	if (status == 0)
		return;
	(void)fprintf(stderr, "%s: %s: %s\n", call, zerod_status_name(status),
	              zerod_last_error(scene->client));
	exit(1);
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

static void gather_and_release(struct scene *scene)
{
	check(scene, zerod_gather(scene->units[0], NULL, NULL, NULL), "zerod_gather");
	check(scene, zerod_release(scene->units[0], NULL, 0, NULL, NULL), "zerod_release");
}

static void update(struct scene *scene, uint32_t nunits)
{
	check(scene, zerod_update_begin(scene->units, nunits, NULL, NULL), "zerod_update_begin");
	check(scene, zerod_publish(scene->units, nunits, NULL, 0, NULL, NULL), "zerod_publish");
	check(scene, zerod_commit(scene->group, ++scene->step, NULL), "zerod_commit");
}

static void update_one(struct scene *scene)
{
	update(scene, 1);
}

static void update_all(struct scene *scene)
{
	update(scene, UNITS);
}

static void alloc_and_free(struct scene *scene)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);
	zerod_allocation *allocation;
	void *data;

	options.job = "journal";
	options.name = "moments";
	options.bytes = NUMEL;
	options.flags = scene->durable ? ZEROD_ALLOC_DURABLE : 0;
	check(scene, zerod_alloc(scene->client, &options, &allocation, &data), "zerod_alloc");
	check(scene, zerod_free(allocation, NULL, 0), "zerod_free");
}

static void step(struct scene *scene)
{
	for (uint32_t i = 0; i < UNITS; i++) {
		check(scene, zerod_gather(scene->units[i], NULL, NULL, NULL), "zerod_gather");
		check(scene, zerod_release(scene->units[i], NULL, 0, NULL, NULL), "zerod_release");
	}
	update_all(scene);
}

static const struct {
	const char *what;
	void (*call)(struct scene *scene);
} calls[] = {{"gather, release", gather_and_release},
             {"update of 1 unit, publish, commit", update_one},
             {"update of 16 units, publish, commit", update_all},
             {"alloc, free", alloc_and_free},
             {"16 gathers, releases; update of 16", step}};

/* ---- Scenes -------------------------------------------------------------------------------------------- */

static void begin(struct scene *scene)
{
	const char *const args[] = {"--keep-state", scene->keep_state, NULL};
	const struct zd_daemon_options daemon = {.devices = 1, .args = args};
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options group = ZEROD_INIT(group);
	struct zerod_unit_options unit = ZEROD_INIT(unit);
	char name[16];

	assert_int_equal(zd_daemon_start(&daemon, &scene->daemon), 0);
	options.socket_path = scene->daemon.socket_path;
	check(scene, zerod_connect(&options, &scene->client), "zerod_connect");
	group.job = "journal";
	group.world_size = 1;
	group.flags = scene->durable ? ZEROD_GROUP_DURABLE : 0;
	check(scene, zerod_group_join(scene->client, &group, &scene->group), "zerod_group_join");
	for (uint32_t i = 0; i < UNITS; i++) {
		(void)snprintf(name, sizeof(name), "w%u", i);
		unit.name = name;
		unit.dtype = ZEROD_FLOAT32;
		unit.numel = NUMEL;
		check(scene, zerod_unit_register(scene->group, &unit, &scene->units[i]),
		      "zerod_unit_register");
	}
	update_all(scene);
}

static void end(struct scene *scene)
{
	zerod_close(scene->client);
	if (scene->durable)
		assert_int_equal(zd_daemon_zeroctl(&scene->daemon, "end-job journal"), 0);
	assert_int_equal(zd_daemon_stop(&scene->daemon), 0);
}

static struct sample measure(struct scene *scene, void (*call)(struct scene *scene), uint32_t ncalls)
{
	clockid_t clock;
	double wall, cpu;

	assert_int_equal(clock_getcpuclockid(scene->daemon.pid, &clock), 0);
	wall = clock_ns(CLOCK_MONOTONIC);
	cpu = clock_ns(clock);
	for (uint32_t i = 0; i < ncalls; i++)
		call(scene);
	return (struct sample){(clock_ns(CLOCK_MONOTONIC) - wall) / ncalls, (clock_ns(clock) - cpu) / ncalls};
}

/* ---- Output -------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return (left > right) - (left < right);
}

/* Returns the median. */
static double print_values(double *values, uint32_t count, double base)
{
	double median;

	qsort(values, count, sizeof(*values), by_value);
	median = values[count / 2];
	(void)printf("  %8.2f (%8.2f ..%9.2f) us %6.3f", median / 1e3, values[0] / 1e3,
	             values[count - 1] / 1e3, base > 0 ? median / base : 1.0);
	return median;
}

static void measure_calls(struct scene *scenes, size_t kind, uint32_t nblocks, uint32_t ncalls)
{
	static double wall[NSCENES][MAX_BLOCKS], cpu[NSCENES][MAX_BLOCKS];
	double wall_base = 0, cpu_base = 0;

	for (uint32_t block = 0; block < nblocks; block++) {
		for (uint32_t turn = 0; turn < NSCENES; turn++) {
			uint32_t i = (block + turn) % NSCENES;
			struct sample sample;

			if (!scenes[i].client)
				continue;
			sample = measure(&scenes[i], calls[kind].call, ncalls);
			wall[i][block] = sample.wall_ns;
			cpu[i][block] = sample.cpu_ns;
		}
	}
	(void)printf("%s\n", calls[kind].what);
	for (uint32_t i = 0; i < NSCENES; i++) {
		double median;

		if (!scenes[i].client)
			continue;
		(void)printf("  %-28s", scenes[i].what);
		median = print_values(wall[i], nblocks, wall_base);
		wall_base = wall_base > 0 ? wall_base : median;
		median = print_values(cpu[i], nblocks, cpu_base);
		cpu_base = cpu_base > 0 ? cpu_base : median;
		(void)printf("\n");
	}
}

int main(int argc, char **argv)
{
	struct scene scenes[NSCENES] = {{.what = "no state, not durable", .keep_state = "none"},
	                                {.what = "holder, not durable", .keep_state = "holder"},
	                                {.what = "holder, durable", .keep_state = "holder", .durable = true}};
	uint32_t nblocks = argc > 1 ? (uint32_t)atoi(argv[1]) : BLOCKS;
	uint32_t ncalls = argc > 2 ? (uint32_t)atoi(argv[2]) : CALLS;
	int only = argc > 3 ? atoi(argv[3]) : -1;
	int only_kind = argc > 4 ? atoi(argv[4]) : -1;

	if (nblocks == 0 || nblocks > MAX_BLOCKS || ncalls == 0) {
		(void)fprintf(stderr, "1 to %u blocks of at least one call\n", MAX_BLOCKS);
		return 2;
	}
	for (int i = 0; i < (int)NSCENES; i++) {
		if (only < 0 || only == i)
			begin(&scenes[i]);
	}
	(void)printf("time of a call, then CPU time of the daemon: median (least .. most), ratio\n");
	for (size_t kind = 0; kind < sizeof(calls) / sizeof(calls[0]); kind++) {
		if (only_kind < 0 || only_kind == (int)kind)
			measure_calls(scenes, kind, nblocks, ncalls);
	}
	for (uint32_t i = 0; i < NSCENES; i++) {
		if (scenes[i].client)
			end(&scenes[i]);
	}
	return 0;
}
