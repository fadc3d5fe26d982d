/* SPDX-License-Identifier: Apache-2.0 */
/* test_tenants.c - sockets with a fixed tenant, and devices by grants. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zerod.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/raw_client.h"
#include "tests/support/test.h"

#define TENANT_UID 200012345u
#define NRANKS     3
#define NUMEL      300u
#define CANNOT     77
#define PEER_PIDFD 77 /* SO_PEERPIDFD */

static struct zd_daemon daemon_of_tenants;
static char folder[] = "/tmp/zerod-tenants-XXXXXX";
static char tenant_path[64];
static struct raw_client raw = {.sock = -1}, other = {.sock = -1};

static int make_paths(void **state)
{
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	(void)snprintf(tenant_path, sizeof(tenant_path), "%s/tenant.sock", folder);
	return chmod(folder, 0755);
}

static int remove_paths(void **state)
{
	(void)state;
	return rmdir(folder);
}

static int close_all(void **state)
{
	(void)state;
	raw_close(&raw);
	raw_close(&other);
	return zd_daemon_stop(&daemon_of_tenants);
}

#define CLOSE_ALL_TEST(name) TEST_DEFINE(name, void, , name(), NULL, close_all)

/* `more` follows the section of the tenant's socket, whose path and uid are given. */
static void start(const char *more)
{
	char config[512];
	const struct zd_daemon_options options = {.devices = 4, .config = config};

	(void)snprintf(config, sizeof(config), "[socket tenant]\npath = %s\nmode = 0666\nuid = %u\n%s",
	               tenant_path, TENANT_UID, more);
	assert_int_equal(zd_daemon_start(&options, &daemon_of_tenants), 0);
	assert_int_equal(chmod(daemon_of_tenants.dir, 0755), 0);
}

static void open_as(struct raw_client *client, const char *path, uid_t uid)
{
	assert_int_equal(seteuid(uid), 0);
	raw_connect(client, path);
	assert_int_equal(seteuid(0), 0);
	raw_hello(client);
}

static uint64_t send_hello(struct raw_client *client)
{
	return raw_send(client, RAW(HELLO, hello, Hello, .version_min = 1, .version_max = 1));
}

static uint64_t send_alloc(struct raw_client *client, const char *job, uint32_t device)
{
	return raw_send(client,
	                RAW(ALLOC, alloc, Alloc, .job = RAW_TEXT(job), .device = device, .bytes = 256));
}

static const Zd__ListReply *list(struct raw_client *client, Zd__Table table)
{
	return raw_expect(client, raw_send(client, RAW(LIST, list, List, .table = table)), 0)->list;
}

/* The states of the four devices, as one word. */
static void expect_devices(struct raw_client *client, const char *states)
{
	const Zd__ListReply *devices = list(client, ZD__TABLE__DEVICES);
	char found[64] = "";

	for (size_t i = 0; i < devices->n_rows; i++)
		(void)strncat(found, devices->rows[i]->device->state, sizeof(found) - strlen(found) - 1);
	assert_string_equal(found, states);
}

/* ---- Tenants ------------------------------------------------------------------------------------------- */

/* Root's session at the tenant's socket is the tenant's: its jobs, its limits, and no administrator's. */
CLOSE_ALL_TEST(test_counts_as_the_tenant)
{
	const Zd__ListReply *jobs;

	start("[limits]\nmax_jobs_per_uid = 1\n");
	raw_open(&raw, tenant_path);
	(void)raw_expect(&raw, send_alloc(&raw, "mine", 0), 0);
	raw_open(&other, daemon_of_tenants.socket_path);
	(void)raw_expect(&other, send_alloc(&other, "others", 0), 0);
	jobs = list(&raw, ZD__TABLE__JOBS);
	assert_int_equal(jobs->n_rows, 1);
	assert_string_equal(jobs->rows[0]->job->name, "mine");
	assert_int_equal(jobs->rows[0]->job->uid, TENANT_UID);
	RAW_EXPECT_ERROR(&raw, send_alloc(&raw, "second", 0), ZEROD_E_LIMIT,
	                 "uid 200012345 has 1 jobs already");
	RAW_EXPECT_ERROR(&raw, raw_send(&raw, RAW(DRAIN, drain, Drain)), ZEROD_E_PERMISSION,
	                 "administrators");
	RAW_EXPECT_ERROR(
	        &raw, raw_send(&raw, RAW(KILL_SESSION, kill_session, KillSession, .session = other.session)),
	        ZEROD_E_NOT_FOUND, "no session");
}

/* Root's sessions neither as the tenant root nor as root itself. */
CLOSE_ALL_TEST(test_is_no_administrator)
{
	static const char *const more[] = {"uid = 0\n", ""};

	for (size_t i = 0; i < 2; i++) {
		char config[256];
		const struct zd_daemon_options options = {.config = config};

		(void)snprintf(config, sizeof(config), "[socket tenant]\npath = %s\n%s", tenant_path,
		               more[i]);
		assert_int_equal(zd_daemon_start(&options, &daemon_of_tenants), 0);
		raw_open(&raw, tenant_path);
		RAW_EXPECT_ERROR(&raw, raw_send(&raw, RAW(DRAIN, drain, Drain)), ZEROD_E_PERMISSION,
		                 "administrators");
		raw_close(&raw);
		assert_int_equal(zd_daemon_stop(&daemon_of_tenants), 0);
	}
}

/* A tenant's sessions at its socket and at the daemon's own are one user's. */
CLOSE_ALL_TEST(test_one_user_at_two_sockets)
{
	if (geteuid() != 0)
		skip();
	start("");
	raw_open(&raw, tenant_path);
	(void)raw_expect(&raw, send_alloc(&raw, "mine", 0), 0);
	open_as(&other, daemon_of_tenants.socket_path, TENANT_UID);
	assert_int_equal(list(&other, ZD__TABLE__JOBS)->n_rows, 1);
	(void)raw_expect(
	        &other,
	        raw_send(&other, RAW(KILL_SESSION, kill_session, KillSession, .session = raw.session)), 0);
}

/* The groups of the configuration are those of users at the daemon's own socket. */
CLOSE_ALL_TEST(test_groups)
{
	uint64_t join;

	start("[daemon]\nallow_groups = mail\n[limits]\ndurable_groups = root\n");
	raw_open(&raw, tenant_path);
	join = raw_send(&raw, RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT("j"),
	                          .group = RAW_TEXT("g"), .world_size = 1, .durable = true));
	RAW_EXPECT_ERROR(&raw, join, ZEROD_E_PERMISSION, "uid 200012345 may keep no durable job");
}

CLOSE_ALL_TEST(test_file)
{
	struct stat found;

	if (geteuid() != 0)
		skip();
	start("owner = 7\ngroup = 8\n[limits]\n");
	assert_int_equal(stat(tenant_path, &found), 0);
	assert_int_equal(found.st_mode & 07777, 0666);
	assert_int_equal(found.st_uid, 7);
	assert_int_equal(found.st_gid, 8);
}

CLOSE_ALL_TEST(test_path_in_use)
{
	char config[256], output[1024];
	const char *args[] = {
	        "--foreground", "--socket", config, "--config", daemon_of_tenants.config_path, NULL};
	int status;

	start("");
	(void)snprintf(config, sizeof(config), "%s/own.sock", folder);
	assert_int_equal(zd_daemon_run(args, &status, output, sizeof(output)), 0);
	assert_int_equal(status, 1);
	assert_non_null(strstr(output, "tenant.sock: already running"));
	assert_int_not_equal(access(config, F_OK), 0); /* it takes its own socket away again */
	raw_open(&raw, tenant_path);
}

/* ---- Namespaces ---------------------------------------------------------------------------------------- */

/* A daemon that is process 1 of a pid namespace. */
static bool start_in_a_pid_namespace(void)
{
	int own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);

	assert_true(own >= 0);
	if (unshare(CLONE_NEWPID) != 0) {
		(void)close(own);
		return false;
	}
	start("");
	assert_int_equal(setns(own, CLONE_NEWPID), 0);
	(void)close(own);
	return true;
}

/* From Linux 6.5 on. */
static bool has_peer_pidfds(void)
{
	int pair[2], fd = -1;
	socklen_t bytes = sizeof(fd);
	bool has;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	has = getsockopt(pair[0], SOL_SOCKET, PEER_PIDFD, &fd, &bytes) == 0;
	if (has)
		(void)close(fd);
	(void)close(pair[0]);
	(void)close(pair[1]);
	return has;
}

/* The peers have no pid in its namespace, but pidfds: a tenant's socket serves them. */
CLOSE_ALL_TEST(test_outside_the_pid_namespace)
{
	if (!has_peer_pidfds() || !start_in_a_pid_namespace())
		skip();
	raw_connect(&raw, daemon_of_tenants.socket_path);
	RAW_EXPECT_ERROR(&raw, send_hello(&raw), ZEROD_E_PERMISSION, "pid 0", "[socket NAME]");
	raw_close(&raw);
	raw_open(&raw, tenant_path);
	(void)raw_expect(&raw, send_alloc(&raw, "mine", 0), 0);
	assert_int_equal(list(&raw, ZD__TABLE__SESSIONS)->rows[0]->session->pid, 0);
}

/* The daemon watches such a process by its pidfd: a child that has inherited the connection does not keep the
 * session. */
CLOSE_ALL_TEST(test_end_of_a_process_without_a_pid)
{
	int wait_status;
	pid_t child;

	if (!has_peer_pidfds() || !start_in_a_pid_namespace())
		skip();
	child = fork();
	if (child == 0) {
		raw_open(&raw, tenant_path);
		(void)raw_expect(&raw, send_alloc(&raw, "lost", 0), 0);
		if (fork() == 0) {
			char end;

			/* The connection's end is the daemon's doing. */
			_exit(read(raw.sock, &end, 1) == 0 ? 0 : 1);
		}
		_exit(0);
	}
	assert_int_equal(waitpid(child, &wait_status, 0), child);
	assert_int_equal(wait_status, 0);
	raw_open(&other, tenant_path);
	while (list(&other, ZD__TABLE__SESSIONS)->n_rows > 1)
		raw_forget(&other);
}

static bool own_rank(uint32_t rank)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options place = ZEROD_INIT(place);
	struct zerod_unit_options weights = ZEROD_INIT(weights);
	struct zerod_shard shard = ZEROD_INIT(shard);
	zerod_client *client = NULL;
	zerod_group *group;
	zerod_unit *unit;
	void *whole;
	bool right = true;

	options.socket_path = tenant_path;
	place.job = "containers";
	place.world_size = NRANKS;
	place.rank = place.device = rank;
	weights.name = "weights";
	weights.dtype = ZEROD_FLOAT32;
	weights.numel = NUMEL;
	if (zerod_connect(&options, &client) != 0 || zerod_group_join(client, &place, &group) != 0 ||
	    zerod_unit_register(group, &weights, &unit) != 0 || zerod_shard_get(unit, &shard) != 0 ||
	    zerod_update_begin(&unit, 1, NULL, NULL) != 0)
		return false;
	for (uint64_t i = 0; i < shard.true_numel; i++)
		((float *)shard.data)[i] = (float)(shard.offset_numel + i);
	if (zerod_publish(&unit, 1, NULL, 0, NULL, NULL) != 0 || zerod_gather(unit, NULL, NULL, &whole) != 0)
		return false;
	for (uint64_t i = 0; i < NUMEL; i++)
		right &= ((const float *)whole)[i] == (float)i;
	/* No rank takes its shard away before the others have come to the commit. */
	right &= zerod_release(unit, NULL, 0, NULL, NULL) == 0 && zerod_commit(group, 1, NULL) == 0;
	zerod_close(client);
	return right;
}

/* Runs a rank in namespaces of its own; exits with 0, 1, or CANNOT. */
_Noreturn static void run_container(uint32_t rank)
{
	int wait_status;
	pid_t child;

	if (unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNS | CLONE_NEWNET |
	            CLONE_NEWUTS) != 0)
		_exit(CANNOT);
	child = fork();
	if (child == 0)
		_exit(own_rank(rank) ? 0 : 1);
	if (child < 0 || waitpid(child, &wait_status, 0) != child || !WIFEXITED(wait_status))
		_exit(1);
	_exit(WEXITSTATUS(wait_status));
}

/* Descriptors, fences in shared memory and futexes need no namespace in common. */
CLOSE_ALL_TEST(test_ranks_in_containers_of_their_own)
{
	pid_t children[NRANKS];
	bool cannot = false;

	start("");
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		children[rank] = fork();
		if (children[rank] == 0)
			run_container(rank);
	}
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		int wait_status;

		assert_int_equal(waitpid(children[rank], &wait_status, 0), children[rank]);
		assert_true(WIFEXITED(wait_status));
		cannot |= WEXITSTATUS(wait_status) == CANNOT;
		assert_true(cannot || WEXITSTATUS(wait_status) == 0);
	}
	if (cannot)
		skip();
}

/* ---- Devices ------------------------------------------------------------------------------------------- */

static void expect_denied(struct raw_client *client, uint32_t device)
{
	uint64_t join;

	RAW_EXPECT_ERROR(client, send_alloc(client, "j", device), ZEROD_E_PERMISSION, "is not granted to",
	                 "[grants]");
	join = raw_send(client, RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT("j"),
	                            .group = RAW_TEXT("g"), .world_size = 1, .device = device));
	RAW_EXPECT_ERROR(client, join, ZEROD_E_PERMISSION, "is not granted to", "[grants]");
}

/* The socket's devices are its sessions', whatever is granted to the user. */
CLOSE_ALL_TEST(test_devices_of_a_socket)
{
	start("devices = 1,3\n[grants]\nuser:200012345 = 0\n");
	raw_open(&raw, tenant_path);
	expect_devices(&raw, "deniedokdeniedok");
	expect_denied(&raw, 0);
	expect_denied(&raw, 2);
	(void)raw_expect(&raw, send_alloc(&raw, "j", 3), 0);
}

/* A session keeps what was granted when it was opened; the next one has the new grants.
 * The quota changes for all. */
CLOSE_ALL_TEST(test_reload)
{
	FILE *file;

	start("[grants]\nuser:200012345 = 0\n");
	raw_open(&raw, tenant_path);
	expect_devices(&raw, "okdenieddenieddenied");
	file = fopen(daemon_of_tenants.config_path, "w");
	assert_non_null(file);
	(void)fprintf(file,
	              "[socket tenant]\npath = %s\nmode = 0666\nuid = %u\n[grants]\nuser:200012345 = 1\n"
	              "[limits]\nuid_quota = 4K\n",
	              tenant_path, TENANT_UID);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(kill(daemon_of_tenants.pid, SIGHUP), 0);
	assert_int_equal(zd_daemon_wait_log(&daemon_of_tenants, "reloaded the limits"), 0);
	expect_devices(&raw, "okdenieddenieddenied");
	raw_open(&other, tenant_path);
	expect_devices(&other, "deniedokdenieddenied");
	RAW_EXPECT_ERROR(
	        &other,
	        raw_send(&other, RAW(ALLOC, alloc, Alloc, .job = RAW_TEXT("j"), .device = 1, .bytes = 8192)),
	        ZEROD_E_QUOTA, "uid 200012345");
}

int main(void)
{
	(void)alarm(240);
	return test_run(make_paths, remove_paths);
}
