/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_host_memory.c - host memory beside GPUs where something is missing or fails: memory that is not
 * there or cannot be pinned, a device that fails while it passes shards on, and a trainer that is killed
 * while its device pulls its shard; over the driver's double.
 *
 * A trainer is this program with a socket for its argument.
 */
#include "cuda_scene.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <zerod_cuda.h>

#include "tests/it/zeroctl_scene.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/options.h"

#define HOST_BYTES     (16ull << 20)
#define SEGMENT_BYTES  (2ull << 20) /* of host memory: a multiple of this */
#define POPULATE_WRITE 23           /* MADV_POPULATE_WRITE */

/* ---- Memory that is not there -------------------------------------------------------------------------- */

static struct contract *open_with_host_memory(uint64_t bytes)
{
	char config[64];

	(void)snprintf(config, sizeof(config), "[devices]\nhost_arena = %llu\n", (unsigned long long)bytes);
	return contract_open(&(struct contract_options){.config = config});
}

static int alloc_on_host(const struct contract_rank *rank, uint64_t bytes, zerod_allocation **made)
{
	struct zerod_device_info info = ZEROD_INIT(info);
	struct zerod_alloc_options options = ZEROD_INIT(options);
	void *data;

	OK(rank->client, zerod_device_get(rank->client, 0, &info));
	options.job = "state";
	options.device = info.host;
	options.bytes = bytes;
	return zerod_alloc(rank->client, &options, made, &data);
}

static void expect_alloc(const struct contract_rank *rank, uint64_t bytes)
{
	zerod_allocation *made;

	OK(rank->client, alloc_on_host(rank, bytes, &made));
	OK(rank->client, zerod_free(made, NULL, 0));
}

static bool write_number(const char *folder, const char *name, uint64_t number)
{
	char path[PATH_MAX];
	FILE *file;
	bool written;

	(void)snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "we");
	written = file && fprintf(file, "%llu", (unsigned long long)number) > 0;
	return file && fclose(file) == 0 && written;
}

#define OF_DAEMON "ZD_DOUBLE_FAIL_IN=zerod"
#define ON_HOST   "ZEROD_TEST_PLACEMENT=host", OF_DAEMON

/* All of the machine's memory is never free. */
CASE_TEST(test_memory_that_others_use)
{
	uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	struct contract *c = open_with_host_memory(all);
	const struct contract_rank *rank = &c->ranks[0];
	zerod_allocation *made;

	FAILS(rank->client, alloc_on_host(rank, all / SEGMENT_BYTES * SEGMENT_BYTES, &made),
	      ZEROD_E_NO_MEMORY, "does not fit: ");
	assert_non_null(strstr(zerod_last_error(rank->client), " of memory are available"));
	expect_alloc(rank, SEGMENT_BYTES);
	contract_close(c);
}

/* Moves the daemon to a new control group with that limit. False if the system does not allow that. */
static bool limit_daemon(uint64_t bytes, char group[PATH_MAX])
{
	static const struct {
		const char *mount, *limit;
	} versions[] = {{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}};

	for (size_t i = 0; i < ZD_ARRAY_LEN(versions); i++) {
		(void)snprintf(group, PATH_MAX, "%s/zerod-test-%d", versions[i].mount, (int)getpid());
		if (mkdir(group, 0755) != 0)
			continue;
		if (write_number(group, versions[i].limit, bytes) &&
		    write_number(group, "cgroup.procs", (uint64_t)contract_daemon()->pid))
			return true;
		(void)rmdir(group);
	}
	return false;
}

/* Beyond the limit the kernel would kill the daemon. */
CASE_TEST(test_more_than_the_control_group_may_have)
{
	const uint64_t limit_bytes = 512ull << 20;
	struct contract *c = open_with_host_memory(2 * limit_bytes);
	const struct contract_rank *rank = &c->ranks[0];
	char group[PATH_MAX];
	zerod_allocation *made;

	if (!limit_daemon(limit_bytes, group)) {
		contract_close(c);
		skip();
	}
	FAILS(rank->client, alloc_on_host(rank, limit_bytes, &made), ZEROD_E_NO_MEMORY,
	      "a segment of 512 MiB of host memory does not fit: the daemon's control group is limited to "
	      "512 MiB "
	      "and uses ");
	assert_non_null(strstr(zerod_last_error(rank->client), group));
	expect_alloc(rank, SEGMENT_BYTES);
	contract_close(c);
	assert_int_equal(rmdir(group), 0);
}

CASE_TEST(test_more_than_the_arena)
{
	struct contract *c = open_with_host_memory(HOST_BYTES);
	const struct contract_rank *rank = &c->ranks[0];
	zerod_allocation *made;

	FAILS(rank->client, alloc_on_host(rank, 2 * HOST_BYTES, &made), ZEROD_E_NO_MEMORY,
	      "33554432 bytes do not fit on device 2: arena 16777216 bytes");
	expect_alloc(rank, HOST_BYTES);
	contract_close(c);
}

/* As a kernel that finds no pages within the limit of a control group, and kills no process for them: madvise
 * of this process's children is ENOMEM. False if the system has no such filters. */
static bool deny_pages(void)
{
	struct sock_filter rules[] = {
	        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
	        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
	        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, POPULATE_WRITE, 0, 1),
	        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
	        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {ZD_ARRAY_LEN(rules), rules};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

CASE_TEST(test_pages_that_the_kernel_denies)
{
	struct contract *c;
	struct contract_unit unit;
	zerod_allocation *made;

	if (!deny_pages())
		skip();
	c = open_with_host_memory(HOST_BYTES);
	FAILS(c->ranks[0].client, alloc_on_host(&c->ranks[0], 2 * SEGMENT_BYTES, &made), ZEROD_E_NO_MEMORY,
	      "a segment of 4 MiB of host memory: the kernel has no pages for it (ENOMEM); see memory limits "
	      "of the daemon's control group");
	contract_device_unit(c, "w", SCENE_NUMEL, &unit); /* the GPUs' memory is there */
	contract_publish_all(c, &unit);
	contract_expect_version(&c->ranks[0], &unit, 1);
	contract_close(c);
}

CASE_TEST(test_memory_that_cannot_be_pinned, OF_DAEMON, "ZD_DOUBLE_FAIL=cuMemHostRegister:1:2")
{
	struct contract *c = open_with_host_memory(HOST_BYTES);
	const struct contract_rank *rank = &c->ranks[0];
	zerod_allocation *made;

	FAILS(rank->client, alloc_on_host(rank, 2 * SEGMENT_BYTES, &made), ZEROD_E_NO_MEMORY,
	      "the driver cannot pin a segment of 4 MiB of host memory");
	expect_alloc(rank, 2 * SEGMENT_BYTES);
	contract_close(c);
}

/* ---- Devices that fail --------------------------------------------------------------------------------- */

/*
 * Rank 0 gathers until a copy of the daemon's fails. By then the pools of both devices have grown, and each
 * gather is four copies, which pull the two shards and pass them on. The number says which of them fails.
 */
struct failing {
	struct contract *c;
	struct contract_unit unit;
	struct contract_rank *rank;
	zerod_stream *stream;
};

static void open_failing(struct failing *f)
{
	f->c = scene_open(&f->unit);
	f->rank = &f->c->ranks[0];
	f->stream = contract_stream(f->rank);
}

/* Whether a gather has all bytes. After an error nothing of it is left. */
static bool gathers(struct failing *f)
{
	void *data;
	int status = zerod_gather(f->unit.at[0], NULL, f->stream, &data);
	bool has_lease = status == ZEROD_OK || status == ZEROD_E_ABORTED;

	if (!status)
		status = zerod_stream_synchronize(f->stream);
	if (!status) {
		contract_sync(f->rank, f->stream);
		contract_expect_bytes(&f->unit, data, 1);
	}
	if (has_lease)
		OK(f->rank->client, zerod_release(f->unit.at[0], &f->stream, 1, NULL, NULL));
	if (status)
		OK(f->rank->client, zerod_session_reset(f->rank->client, NULL));
	return !status;
}

/* Rank 0 is told, and gathers again; rank 1 does not notice. */
CASE_TEST(test_a_copy_fails, ON_HOST, "ZD_DOUBLE_FAIL=cuMemcpyAsync:20:2")
{
	struct failing f;

	open_failing(&f);
	AWAIT(!gathers(&f));
	AWAIT(gathers(&f));
	contract_expect_version(&f.c->ranks[1], &f.unit, 1);
	contract_close(f.c);
}
CASE_AGAIN(test_a_copy_fails, 21, .env = {ON_HOST, "ZD_DOUBLE_FAIL=cuMemcpyAsync:21:2"})
CASE_AGAIN(test_a_copy_fails, 22, .env = {ON_HOST, "ZD_DOUBLE_FAIL=cuMemcpyAsync:22:2"})
CASE_AGAIN(test_a_copy_fails, 23, .env = {ON_HOST, "ZD_DOUBLE_FAIL=cuMemcpyAsync:23:2"})

/* Every later gather ends: with an error, or with all bytes where device 0 has pulled both shards. */
CASE_TEST(test_a_device_is_lost, ON_HOST, "ZD_DOUBLE_FAIL=cuMemcpyAsync:20:700")
{
	struct failing f;

	open_failing(&f);
	AWAIT(!gathers(&f));
	assert_int_equal(zd_daemon_wait_log(contract_daemon(), "has failed"), 0);
	(void)gathers(&f);
	contract_close(f.c);
}
CASE_AGAIN(test_a_device_is_lost, 22, .env = {ON_HOST, "ZD_DOUBLE_FAIL=cuMemcpyAsync:22:700"})

/* ---- A trainer that is killed -------------------------------------------------------------------------- */

#define GATHERS 3 /* before the last of them the pools have grown for landings */

struct trainer {
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit;
	zerod_stream *stream;
	struct zerod_shard shard;
	void *data;
};

/* Joins as a rank of two, and publishes a unit whose bytes are the rank's number and 1. */
static int trainer_join(struct trainer *t, const char *socket_path, uint32_t rank)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options join = ZEROD_INIT(join);
	struct zerod_unit_options layer = ZEROD_INIT(layer);
	int status;

	*t = (struct trainer){.shard = ZEROD_INIT(t->shard)};
	options.socket_path = socket_path;
	join.job = "job", join.world_size = 2, join.rank = join.device = rank;
	layer.name = "w", layer.dtype = ZEROD_FLOAT32, layer.numel = SCENE_NUMEL;
	layer.flags = ZEROD_UNIT_ON_HOST;
	status = zerod_connect(&options, &t->client);
	if (!status)
		status = zerod_cuda_stream_wrap(t->client, scene_stream((int)rank), &t->stream);
	if (!status)
		status = zerod_group_join(t->client, &join, &t->group);
	if (!status)
		status = zerod_unit_register(t->group, &layer, &t->unit);
	if (!status)
		status = zerod_update_begin(&t->unit, 1, NULL, NULL);
	if (!status)
		status = zerod_shard_get(t->unit, &t->shard);
	if (!status)
		memset(t->shard.data, (int)rank + 1, t->shard.true_numel * sizeof(float));
	return status ? status : zerod_publish(&t->unit, 1, NULL, 0, NULL, NULL);
}

/* The last gather is under way when this returns. */
static int trainer_gather(struct trainer *t)
{
	int status = zerod_gather(t->unit, NULL, t->stream, &t->data);

	for (int i = 1; i < GATHERS && !status; i++) {
		status = zerod_release(t->unit, &t->stream, 1, NULL, NULL);
		if (!status)
			status = zerod_stream_synchronize(t->stream);
		if (!status)
			status = zerod_gather(t->unit, NULL, t->stream, &t->data);
	}
	return status;
}

/* Rank 1: a byte on stdout when its last gather is under way. */
static int trainer_main(const char *socket_path)
{
	struct trainer t;

	if (trainer_join(&t, socket_path, 1) || trainer_gather(&t) || write(STDOUT_FILENO, "", 1) != 1)
		return 1;
	for (;;)
		(void)pause();
}

static void expect_bytes(const struct trainer *t)
{
	uint8_t bytes[SCENE_NUMEL * sizeof(float)];
	const size_t own = t->shard.true_numel * sizeof(float);

	assert_int_equal(scene_driver()->memcpyDtoHAsync(bytes, (zd_cu_ptr)t->data, sizeof(bytes), NULL), 0);
	for (size_t i = 0; i < sizeof(bytes); i++)
		assert_int_equal(bytes[i], i < own ? 1 : 2);
}

/* Rank 1's shard stays until it is copied: rank 0's gather has all bytes. */
CASE_TEST(test_a_trainer_is_killed_in_a_pull)
{
	const char *const args[] = {"--backend", "cuda", "--host-arena", "64M", NULL};
	struct zd_daemon daemon;
	struct trainer t;
	struct case_process process;
	char byte;

	(void)scene_driver();
	assert_int_equal(setenv("ZD_DOUBLE_COPY_US", "100000", 1), 0); /* of the daemon's */
	assert_int_equal(zd_daemon_start(&(struct zd_daemon_options){.args = args}, &daemon), 0);
	process = case_spawn((char *const[]){(char *)"trainer", daemon.socket_path, NULL});
	assert_int_equal(trainer_join(&t, daemon.socket_path, 0), 0);
	assert_int_equal(trainer_gather(&t), 0);
	assert_int_equal(read(process.from, &byte, 1), 1);
	case_kill(&process);
	OK(t.client, zerod_stream_synchronize(t.stream));
	expect_bytes(&t);
	zerod_stream_destroy(t.stream);
	zerod_close(t.client);
	zeroctl_wait_table(daemon.socket_path, "jobs", "\"job\"", false);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[0], "trainer") == 0)
		return trainer_main(argv[1]);
	return scene_main(argc, argv);
}
