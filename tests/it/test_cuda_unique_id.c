/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_unique_id.c - which unique ids two daemons with a key_file accept: each other's, and none that
 * are made up, old, another user's or another group's; and which key files a daemon accepts.
 *
 * The test knows the daemons' key, and forges what only a daemon could make otherwise.
 */
#include "cluster_scene.h"

#include <sys/stat.h>

#include "server/id_stamp.h"

#define SECOND    ((ALL_RANKS) & ~((1u << LOCAL) - 1)) /* the second daemon's ranks */
#define NIDS      (LOCAL * ZD_UNIQUE_IDS_PER_RANK)
#define KEY_BYTES 32

static void expect_joined(struct world *world)
{
	world_form(world);
	all_do(world, rank_leave);
	world_new_id(world);
}

static void expect_refused(struct world *world, int status, const char *text)
{
	some_do(world, SECOND, rank_join);
	expect_failed(world, SECOND, status, text);
}

/* Makes the stamp anew, with the key of the daemon's file. */
static void forge(struct world *world, uint32_t uid, const char *group, int64_t age_s)
{
	struct zd_id_facts facts = {.uid = uid, .job = "cluster", .group = group};
	struct timespec now;
	struct zd_id_key key;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	facts.now_s = (uint64_t)(now.tv_sec - age_s);
	assert_int_equal(zd_id_key_read(world->daemons[0].key_path, &key, NULL), 0);
	assert_int_equal(zd_id_stamp_write(&key, &facts, world->id.bytes + ZD_ID_STAMP_BYTES, NIDS,
	                                   world->id.bytes, NULL),
	                 0);
}

CASE_TEST(test_accepted)
{
	struct world *world = world_open("");

	expect_joined(world);
	forge(world, geteuid(), "world", 30); /* the test forges as a daemon makes */
	expect_joined(world);
	world_close(world);
}

/* ---- Keys ---------------------------------------------------------------------------------------------- */

static void write_key(const char *path, char fill, mode_t mode)
{
	char bytes[KEY_BYTES];
	FILE *file = fopen(path, "we");

	memset(bytes, fill, sizeof(bytes));
	bytes[0] = '#';
	assert_true(file && fwrite(bytes, sizeof(bytes), 1, file) == 1 && fclose(file) == 0);
	assert_int_equal(chmod(path, mode), 0);
}

static void change_key(struct zd_daemon *daemon, char fill)
{
	struct zd_id_key key;
	char text[64];

	write_key(daemon->key_path, fill, 0600);
	assert_int_equal(zd_id_key_read(daemon->key_path, &key, NULL), 0);
	(void)snprintf(text, sizeof(text), "the key %02x%02x%02x%02x", key.name[0], key.name[1], key.name[2],
	               key.name[3]);
	assert_int_equal(kill(daemon->pid, SIGHUP), 0);
	assert_int_equal(zd_daemon_wait_log(daemon, text), 0);
}

/* The second daemon has another key, then the first one has it, too. */
CASE_TEST(test_other_key)
{
	struct world *world = world_open("");

	change_key(&world->daemons[1], 'b');
	expect_refused(world, ZEROD_E_PERMISSION,
	               "was made with another key than this daemon's: set key_file");
	change_key(&world->daemons[0], 'b');
	expect_refused(world, ZEROD_E_PERMISSION,
	               "was made with another key than this daemon's: set key_file");
	world_new_id(world);
	expect_joined(world);
	world_close(world);
}

int main(int argc, char **argv)
{
	return scene_main(argc, argv);
}
