/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_scene.h - a client, its group and one unit, opposite a scripted daemon.
 *
 * The script begins with fake_serve_unit(), which answers what scene_open() asks.
 */
#ifndef ZD_TESTS_CLIENT_SCENE_H
#define ZD_TESTS_CLIENT_SCENE_H

#include <zerod.h>

#include "tests/support/fake_daemon.h"
#include "tests/support/test.h"

struct scene {
	struct fake_daemon fake;
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit;
};

/* Shows the text where a status is not what was expected. */
#define assert_status(client, call, expected)                                                                \
	do {                                                                                                 \
		int status_ = (call);                                                                        \
		if (status_ != (expected))                                                                   \
			print_error("%s: %s: %s\n", #call, zerod_status_name(status_),                       \
			            zerod_last_error(client));                                               \
		assert_int_equal(status_, expected);                                                         \
	} while (0)

static inline void scene_connect(struct scene *scene, fake_script script, void *arg, uint32_t deadline_ms)
{
	struct zerod_options options = ZEROD_INIT(options);

	assert_int_equal(fake_start(&scene->fake, script, arg), 0);
	options.socket_path = scene->fake.socket_path;
	options.name = "scene";
	options.deadline_ms = deadline_ms;
	assert_status(NULL, zerod_connect(&options, &scene->client), ZEROD_OK);
}

static inline void scene_open(struct scene *scene, fake_script script, void *arg)
{
	struct zerod_group_options group_options = ZEROD_INIT(group_options);
	struct zerod_unit_options unit_options = ZEROD_INIT(unit_options);

	scene_connect(scene, script, arg, 20000);
	group_options.job = "job";
	group_options.world_size = 2;
	assert_status(scene->client, zerod_group_join(scene->client, &group_options, &scene->group),
	              ZEROD_OK);
	unit_options.name = "w";
	unit_options.dtype = ZEROD_FLOAT32;
	unit_options.numel = FAKE_PADDED_BYTES / sizeof(float);
	assert_status(scene->client, zerod_unit_register(scene->group, &unit_options, &scene->unit),
	              ZEROD_OK);
}

static inline void scene_close(struct scene *scene)
{
	zerod_close(scene->client);
	assert_int_equal(fake_stop(&scene->fake), 0);
}

#endif
