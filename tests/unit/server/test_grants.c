/* SPDX-License-Identifier: Apache-2.0 */
/* test_grants.c - which devices a process is granted. */
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "server/creds.h"
#include "server/grants.h"
#include "tests/support/test.h"

#define ELSEWHERE 77777u

struct pair {
	int ends[2];
	struct zd_creds creds;
};

static int open_pair(void **state)
{
	static struct pair pair;

	*state = &pair;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.ends), 0);
	return zd_creds_get(pair.ends[0], &pair.creds, NULL);
}

static int close_pair(void **state)
{
	struct pair *pair = *state;

	zd_creds_deinit(&pair->creds);
	(void)close(pair->ends[0]);
	return close(pair->ends[1]);
}

#define PAIR_TEST(name) FIXTURE_TEST(name, struct pair *pair, open_pair, close_pair)

static uint64_t devices(const struct pair *pair, const struct zd_grants *grants)
{
	return zd_grants_devices(grants, pair->ends[0], &pair->creds);
}

PAIR_TEST(test_without_grants)
{
	static const struct zd_grants none;

	assert_int_equal(devices(pair, &none), ZD_ALL_DEVICES);
}

/* All grants that apply count together; with one that does not, there is no device. */
PAIR_TEST(test_users_and_groups)
{
	struct zd_grants grants = {.count = 1,
	                           .all = {{.kind = ZD_GRANT_USER, .uid = ELSEWHERE, .devices = 1}}};

	assert_int_equal(devices(pair, &grants), 0);
	grants.all[grants.count++] = (struct zd_grant){.kind = ZD_GRANT_USER, .uid = geteuid(), .devices = 2};
	assert_int_equal(devices(pair, &grants), 2);
	grants.all[grants.count++] =
	        (struct zd_grant){.kind = ZD_GRANT_GROUP, .gid = getegid(), .devices = 4};
	assert_int_equal(devices(pair, &grants), 2 | 4);
	grants.all[grants.count++] = (struct zd_grant){.kind = ZD_GRANT_EVERYONE, .devices = 8};
	assert_int_equal(devices(pair, &grants), 2 | 4 | 8);
	/* A tenant is its socket's user, and in none of the groups that its process is in. */
	zd_creds_set_tenant(&pair->creds, ELSEWHERE);
	assert_int_equal(devices(pair, &grants), 1 | 8);
}

TEST(test_paths)
{
	static const char v2[] = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n";
	static const char v1[] =
	        "12:cpuset:/a\n11:hugetlb,devices:/slurm/uid_1000/job_42\n1:name=systemd:/a\n";

	assert_true(zd_grants_in_cgroup(v2, "/system.slice/slurmstepd.scope/job_42"));
	assert_true(zd_grants_in_cgroup(v2, "/system.slice/slurmstepd.scope/job_42/"));
	assert_true(zd_grants_in_cgroup(v2, "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0"));
	assert_true(zd_grants_in_cgroup(v2, "/"));
	assert_false(zd_grants_in_cgroup(v2, "/system.slice/slurmstepd.scope/job_4"));
	assert_false(zd_grants_in_cgroup(v2, "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0/x"));
	assert_false(zd_grants_in_cgroup(v2, "/job_42"));
	assert_true(zd_grants_in_cgroup(v1, "/slurm/uid_1000/job_42"));
	assert_false(zd_grants_in_cgroup(v1, "/a"));
	assert_false(zd_grants_in_cgroup("", "/"));
	assert_false(zd_grants_in_cgroup("0:\n0\n:\n", "/"));
}

/* The test's own control group, as /proc shows it. */
PAIR_TEST(test_own_cgroup)
{
	struct zd_grants grants = {.count = 2,
	                           .all = {{.kind = ZD_GRANT_CGROUP, .cgroup = "/", .devices = 1},
	                                   {.kind = ZD_GRANT_CGROUP, .cgroup = "/no/such", .devices = 2}}};
	FILE *file = fopen("/proc/self/cgroup", "r");
	char line[512];
	bool known = false;

	while (file && fgets(line, sizeof(line), file))
		known |= strncmp(line, "0::/", 4) == 0;
	if (file)
		(void)fclose(file);
	if (!known)
		skip();
	assert_int_equal(devices(pair, &grants), 1);
	/* A process without a number here has no control group. */
	pair->creds.pid = 0;
	assert_int_equal(devices(pair, &grants), 0);
}
