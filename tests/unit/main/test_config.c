/* SPDX-License-Identifier: Apache-2.0 */
/* test_config.c - every key, every error, and how file and command line go together. */
#include <grp.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "executor/backend.h"
#include "main/config.h"
#include "main/options.h"
#include "proto/limits.h"
#include "tests/support/test.h"

#define UNKNOWN                                                                                              \
	"unknown section, expected [daemon], [devices], [collectives], [limits], [grants] or [socket NAME]"
#define NO_GRANT                                                                                             \
	"expected everyone = DEVICES, user:NAME = DEVICES, group:NAME = DEVICES or cgroup:/PATH = DEVICES, " \
	"with names of this machine, and DEVICES all, none, or device numbers such as 0,1, found "

static char path[] = "/tmp/zerod-config-XXXXXX";

static int make_file(void **state)
{
	int fd = mkstemp(path);

	(void)state;
	return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
	(void)state;
	return unlink(path);
}

static void write_file(const char *text)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static int read_text(const char *text, struct zd_config *config, struct zd_err *err)
{
	write_file(text);
	zd_config_init(config);
	return zd_config_read(config, path, NULL, err);
}

TEST(test_defaults)
{
	struct zd_config config;
	struct zd_err err;

	assert_int_equal(read_text("", &config, &err), 0);
	assert_string_equal(config.socket_path, ZD_DEFAULT_SOCKET);
	assert_int_equal(config.socket_mode, 0666);
	assert_true(config.root_is_admin);
	assert_false(config.has_admin_group);
	assert_int_equal(config.allow_groups.count, 0);
	assert_int_equal(config.log_level, ZD_LOG_INFO);
	assert_int_equal(config.drain_timeout_s, 10);
	assert_int_equal(config.events, 65536);
	assert_null(config.backend);
	assert_string_equal(config.gpus, "all");
	assert_int_equal(config.device_count, 1);
	assert_int_equal(config.arena_bytes, 0);
	assert_string_equal(config.nccl_path, "");
	assert_false(config.check_collectives);
	assert_int_equal(config.collective_timeout_s, 600);
	assert_string_equal(config.key_path, "");
	assert_int_equal(config.id_ttl_s, 3600);
	assert_int_equal(config.uid_quota_bytes, 0);
	assert_int_equal(config.uid_unsent_bytes, 64 << 20);
	assert_int_equal(config.uid_metadata_bytes, 256 << 20);
	assert_int_equal(config.max_sessions, ZD_MAX_SESSIONS);
	assert_int_equal(config.max_sessions_per_uid, 256);
	assert_int_equal(config.max_jobs_per_uid, 128);
	assert_int_equal(config.max_durable_segments_per_uid, 4096);
	assert_int_equal(config.keep_state_ttl_s, 86400);
	assert_int_equal(config.durable_ttl_s, 0);
	assert_int_equal(config.durable_groups.count, 0);
}

/* The sections whose names or keys are the administrator's. */
TEST(test_sockets_and_grants)
{
	struct zd_config config;
	struct zd_err err;

	assert_int_equal(read_text("[socket lab-a]\n"
	                           "path = /run/zerod/a/zerod.sock\n"
	                           "mode = 0666\n"
	                           "owner = 7\n"
	                           "group = root\n"
	                           "uid = 1234\n"
	                           "[socket b]\n"
	                           "path = /run/zerod/b/zerod.sock\n"
	                           "tenant = root\n"
	                           "devices = 0, 63\n"
	                           "[grants]\n"
	                           "user:root = 0,1\n"
	                           "group : root = 2 ; behind a value\n"
	                           "cgroup:/system.slice/slurmstepd.scope/job_42 = all\n"
	                           "user:1234=none\n"
	                           "everyone = 3\n",
	                           &config, &err),
	                 0);
	assert_int_equal(zd_config_check(&config, &err), 0);
	assert_int_equal(config.nsockets, 2);
	assert_string_equal(config.sockets[0].name, "lab-a");
	assert_string_equal(config.sockets[0].path, "/run/zerod/a/zerod.sock");
	assert_int_equal(config.sockets[0].mode, 0666);
	assert_int_equal(config.sockets[0].owner, 7);
	assert_int_equal(config.sockets[0].group, 0);
	assert_true(config.sockets[0].has_tenant && !config.sockets[0].has_devices);
	assert_int_equal(config.sockets[0].tenant_uid, 1234);
	assert_int_equal(config.sockets[1].mode, 0600);
	assert_int_equal(config.sockets[1].owner, (uid_t)-1);
	assert_true(config.sockets[1].has_tenant && config.sockets[1].has_devices);
	assert_int_equal(config.sockets[1].tenant_uid, 0);
	assert_true(config.sockets[1].devices == (1 | UINT64_C(1) << 63));
	assert_int_equal(config.grants.count, 5);
	assert_int_equal(config.grants.all[0].kind, ZD_GRANT_USER);
	assert_int_equal(config.grants.all[0].devices, 3);
	assert_int_equal(config.grants.all[1].kind, ZD_GRANT_GROUP);
	assert_int_equal(config.grants.all[1].devices, 4);
	assert_int_equal(config.grants.all[2].kind, ZD_GRANT_CGROUP);
	assert_string_equal(config.grants.all[2].cgroup, "/system.slice/slurmstepd.scope/job_42");
	assert_true(config.grants.all[2].devices == ZD_ALL_DEVICES);
	assert_int_equal(config.grants.all[3].uid, 1234);
	assert_int_equal(config.grants.all[3].devices, 0);
	assert_int_equal(config.grants.all[4].kind, ZD_GRANT_EVERYONE);
}

/* A line that is longer than the parser's is split at the same place. */
TEST(test_long_grant)
{
	char text[512], cgroup[240] = "/";
	struct zd_config config;
	struct zd_err err;

	memset(cgroup + 1, 'x', sizeof(cgroup) - 2);
	cgroup[sizeof(cgroup) - 1] = '\0';
	(void)snprintf(text, sizeof(text), "[grants]\ncgroup:%s = 5\n", cgroup);
	assert_int_equal(read_text(text, &config, &err), 0);
	assert_string_equal(config.grants.all[0].cgroup, cgroup);
	assert_int_equal(config.grants.all[0].devices, 1 << 5);
}

TEST(test_paths_of_sockets)
{
	struct zd_config config;
	struct zd_err err;

	assert_int_equal(read_text("[socket a]\nmode = 0666\n", &config, &err), 0);
	assert_int_equal(zd_config_check(&config, &err), ZEROD_E_INVALID);
	assert_string_equal(err.text, "[socket a] path: expected a path, found none");
	assert_int_equal(read_text("[socket a]\npath = /x\n[socket b]\npath = /x\n", &config, &err), 0);
	assert_int_equal(zd_config_check(&config, &err), ZEROD_E_INVALID);
	assert_non_null(strstr(err.text, "[socket b] path: expected a unique path"));
	assert_int_equal(read_text("[daemon]\nsocket = /y\n[socket a]\npath = /y\n", &config, &err), 0);
	assert_int_equal(zd_config_check(&config, &err), ZEROD_E_INVALID);
}

TEST(test_every_key)
{
	struct zd_config config;
	struct zd_err err;

	assert_int_equal(read_text("# a comment\n"
	                           "; another\n"
	                           "[daemon]\n"
	                           "socket = /tmp/z.sock ; behind a value\n"
	                           "\tsocket_mode = 0660\n"
	                           "root_is_admin = no\n"
	                           "  admin_group = root\n"
	                           "allow_groups = daemon root\n"
	                           "reader_groups = daemon\n"
	                           "log_level=debug\n"
	                           "drain_timeout_s = 0\n"
	                           "events = 0\n"
	                           "\n"
	                           "[devices]\n"
	                           "backend = cuda\n"
	                           "count = 64\n"
	                           "gpus = 3, GPU-12345678-1234-1234-1234-123456789abc\n"
	                           "arena = 64G\n"
	                           "gather_budget = 1.5G\n"
	                           "staging = 2GiB\n"
	                           "segment = 4096\n"
	                           "[collectives] # NCCL\n"
	                           "nccl = /opt/nccl/lib/libnccl.so.2\n"
	                           "check = yes\n"
	                           "timeout_s = 86400\n"
	                           "key_file = /etc/zerod/collectives.key\n"
	                           "id_ttl = 30d\n"
	                           "[daemon]\nkeep_state_ttl = 0\n"
	                           "[limits]\t; of users\n"
	                           "uid_quota = 1024T\n"
	                           "uid_unsent = 1.5M\n"
	                           "uid_metadata = 1G\n"
	                           "max_sessions_per_uid = 0\n"
	                           "max_jobs_per_uid = 1000000\n"
	                           "max_durable_segments_per_uid = 7\n"
	                           "durable_ttl = 7d\n"
	                           "durable_groups = root, daemon\n"
	                           "max_sessions = 1",
	                           &config, &err),
	                 0);
	assert_string_equal(config.socket_path, "/tmp/z.sock");
	assert_int_equal(config.socket_mode, 0660);
	assert_false(config.root_is_admin);
	assert_true(config.has_admin_group);
	assert_int_equal(config.allow_groups.count, 2);
	assert_int_equal(config.allow_groups.gids[1], 0);
	assert_int_equal(config.admin_group, 0);
	assert_int_equal(config.log_level, ZD_LOG_DEBUG);
	assert_int_equal(config.drain_timeout_s, 0);
	assert_int_equal(config.events, 0);
	assert_ptr_equal(config.backend, &zd_backend_cuda);
	assert_int_equal(config.device_count, 64);
	assert_string_equal(config.gpus, "3, GPU-12345678-1234-1234-1234-123456789abc");
	assert_int_equal(config.arena_bytes, 64ull << 30);
	assert_int_equal(config.gather_budget_bytes, 3ull << 29);
	assert_int_equal(config.staging_bytes, 2ull << 30);
	assert_int_equal(config.segment_bytes, 4096);
	assert_string_equal(config.nccl_path, "/opt/nccl/lib/libnccl.so.2");
	assert_true(config.check_collectives);
	assert_int_equal(config.collective_timeout_s, 86400);
	assert_string_equal(config.key_path, "/etc/zerod/collectives.key");
	assert_int_equal(config.id_ttl_s, 30 * 86400);
	assert_int_equal(config.uid_quota_bytes, ZD_MAX_BYTES);
	assert_int_equal(config.uid_unsent_bytes, 3 << 19);
	assert_int_equal(config.uid_metadata_bytes, 1 << 30);
	assert_int_equal(config.max_sessions, 1);
	assert_int_equal(config.max_sessions_per_uid, 0);
	assert_int_equal(config.max_jobs_per_uid, 1000000);
	assert_int_equal(config.max_durable_segments_per_uid, 7);
	assert_int_equal(config.keep_state_ttl_s, 0);
	assert_int_equal(config.durable_ttl_s, 7 * 86400);
	assert_int_equal(config.durable_groups.count, 2);
	assert_int_equal(config.durable_groups.gids[0], 0);
	assert_int_equal(config.reader_groups.count, 1);
	assert_int_equal(config.durable_groups.gids[1], getgrnam("daemon")->gr_gid);
}

/* A wrong configuration, and the message behind the file's name. */
static const struct mistake {
	const char *text, *message;
} mistakes[] = {
        {"[devices]\narena = lots\n",
         ":2: [devices] arena: expected a size such as 64G, at most 1024T, found 'lots'"},
        {"[devices]\narena =\n", ":2: [devices] arena: expected a size such as 64G, at most 1024T, found ''"},
        {"[devices]\narena = -1\n",
         ":2: [devices] arena: expected a size such as 64G, at most 1024T, found '-1'"},
        {"[devices]\narena = 1025T\n",
         ":2: [devices] arena: expected a size such as 64G, at most 1024T, found '1025T'"},
        {"[devices]\ngather_budget = 1 2\n",
         ":2: [devices] gather_budget: expected a size such as 64G, at most 1024T, found '1 2'"},
        {"[devices]\nstaging = x\n",
         ":2: [devices] staging: expected a size such as 64G, at most 1024T, found 'x'"},
        {"[devices]\nsegment = x\n",
         ":2: [devices] segment: expected a size such as 64G, at most 1024T, found 'x'"},
        {"[devices]\nbackend = rocm\n", ":2: [devices] backend: expected auto, host or cuda, found 'rocm'"},
        {"[devices]\ngpus =\n",
         ":2: [devices] gpus: expected all, or a list of UUIDs or numbers such as 0,1, found ''"},
        {"[devices]\ngpus = all, 0\n",
         ":2: [devices] gpus: expected all, or a list of UUIDs or numbers such as 0,1, found 'all, 0'"},
        {"[devices]\ngpus = 0, banana\n",
         ":2: [devices] gpus: expected all, or a list of UUIDs or numbers such as 0,1, found '0, banana'"},
        {"[devices]\ngpus = GPU-12345678\n",
         ":2: [devices] gpus: expected all, or a list of UUIDs or numbers such as 0,1, found "
         "'GPU-12345678'"},
        {"[devices]\ngpus = 0, MIG-12345678-1234-1234-1234-123456789abc, 1\n",
         ":2: [devices] gpus: expected whole GPUs, found 'MIG-12345678-1234-1234-1234-123456789abc': a MIG "
         "instance has no peer access to other GPUs"},
        {"[devices]\ngpus = 0;1\n",
         ":2: [devices] gpus: expected all, or a list of UUIDs or numbers such as 0,1, found '0;1'"},
        {"[devices]\ncount = 0\n", ":2: [devices] count: expected a number from 1 to 64, found '0'"},
        {"[devices]\ncount = 65\n", ":2: [devices] count: expected a number from 1 to 64, found '65'"},
        {"[devices]\ncount = 4x\n", ":2: [devices] count: expected a number from 1 to 64, found '4x'"},
        {"[devices]\ncount = +4\n", ":2: [devices] count: expected a number from 1 to 64, found '+4'"},
        {"[devices]\ncount = 99999999999999999999\n",
         ":2: [devices] count: expected a number from 1 to 64, found '99999999999999999999'"},
        {"[collectives]\ncheck = true\n", ":2: [collectives] check: expected yes or no, found 'true'"},
        {"[collectives]\ntimeout_s = 10m\n",
         ":2: [collectives] timeout_s: expected a number of seconds, at most 86400, found '10m'"},
        {"[collectives]\ntimeout_s = 86401\n",
         ":2: [collectives] timeout_s: expected a number of seconds, at most 86400, found '86401'"},
        {"[collectives]\ntimeout = 1\n",
         ":2: [collectives] timeout: unknown key, expected one of nccl, check, timeout_s, key_file, "
         "id_ttl"},
        {"[collectives]\nid_ttl = 0\n",
         ":2: [collectives] id_ttl: expected a time such as 30m or 1h, from 1s to 30d, found '0'"},
        {"[collectives]\nid_ttl = 31d\n",
         ":2: [collectives] id_ttl: expected a time such as 30m or 1h, from 1s to 30d, found '31d'"},
        {"[limits]\nuid_quota = x\n",
         ":2: [limits] uid_quota: expected a size such as 64G, at most 1024T, found 'x'"},
        {"[limits]\nuid_unsent = x\n",
         ":2: [limits] uid_unsent: expected a size such as 64G, at most 1024T, found 'x'"},
        {"[limits]\nmax_sessions = 1025\n",
         ":2: [limits] max_sessions: expected a number from 1 to 1024, found '1025'"},
        {"[daemon]\nsocket =\n", ":2: [daemon] socket: expected a path of 1 to 107 bytes, found ''"},
        {"[daemon]\nsocket_mode = 0888\n",
         ":2: [daemon] socket_mode: expected permissions in octal such as 0660, found '0888'"},
        {"[daemon]\nsocket_mode = 1777\n",
         ":2: [daemon] socket_mode: expected permissions in octal such as 0660, found '1777'"},
        {"[daemon]\nadmin_group = no-such-group\n",
         ":2: [daemon] admin_group: expected the name of a group on this machine, found 'no-such-group'"},
        {"[daemon]\nroot_is_admin = maybe\n",
         ":2: [daemon] root_is_admin: expected yes or no, found 'maybe'"},
        {"[daemon]\nallow_groups = no-such-group\n",
         ":2: [daemon] allow_groups: expected names of at most 32 groups on this machine, found "
         "'no-such-group'"},
        {"[daemon]\nlog_level = loud\n",
         ":2: [daemon] log_level: expected error, warning, notice, info or debug, found 'loud'"},
        {"[daemon]\ndrain_timeout_s = 86401\n",
         ":2: [daemon] drain_timeout_s: expected a number of seconds, at most 86400, found '86401'"},
        {"[daemon]\n\n# one\nsokcet = x\n",
         ":4: [daemon] sokcet: unknown key, expected one of socket, socket_mode, root_is_admin, "
         "admin_group, allow_groups, reader_groups, log_level, keep_state, keep_state_ttl, "
         "drain_timeout_s, exit_when_idle_s, events"},
        {"[daemon]\nevents = 16777217\n",
         ":2: [daemon] events: expected a number from 0 to 16777216, found '16777217'"},
        {"[limits]\nsocket = x\n", ":2: [limits] socket: unknown key, expected one of uid_quota, uid_unsent, "
                                   "uid_metadata, max_sessions, max_sessions_per_uid, "
                                   "max_jobs_per_uid, max_durable_segments_per_uid, "
                                   "durable_ttl, durable_groups"},
        {"[limits]\nmax_sessions_per_uid = 1025\n",
         ":2: [limits] max_sessions_per_uid: expected a number from 0 to 1024, found '1025'"},
        {"[limits]\nmax_jobs_per_uid = many\n",
         ":2: [limits] max_jobs_per_uid: expected a number from 0 to 1000000, found 'many'"},
        {"[limits]\ndurable_ttl = 7w\n",
         ":2: [limits] durable_ttl: expected a time such as 12h or 7d, at most 3650d, found '7w'"},
        {"[limits]\ndurable_ttl = h\n",
         ":2: [limits] durable_ttl: expected a time such as 12h or 7d, at most 3650d, found 'h'"},
        {"[limits]\ndurable_ttl = 3651d\n",
         ":2: [limits] durable_ttl: expected a time such as 12h or 7d, at most 3650d, found '3651d'"},
        {"[limits]\ndurable_groups = root, no-such-group\n",
         ":2: [limits] durable_groups: expected names of at most 32 groups on this machine, found 'root, "
         "no-such-group'"},
        {"[deamon]\nsocket = x\n", ":1: [deamon]: " UNKNOWN},
        {"[limits]\n[empty]\n", ":2: [empty]: " UNKNOWN},
        {"[socket]\npath = x\n", ":1: [socket]: " UNKNOWN},
        {"[socket a b]\npath = x\n", ":1: [socket a b]: " UNKNOWN},
        {"[socket a]\nmode = 8\n",
         ":2: [socket a] mode: expected permissions in octal such as 0660, found '8'"},
        {"[socket a]\npath =\n", ":2: [socket a] path: expected a path of 1 to 107 bytes, found ''"},
        {"[socket a]\nuid = root\n", ":2: [socket a] uid: expected the number of a user, found 'root'"},
        {"[socket a]\nuid = 4294967295\n",
         ":2: [socket a] uid: expected the number of a user, found '4294967295'"},
        {"[socket a]\ntenant = no-such-user\n",
         ":2: [socket a] tenant: expected the name of a user on this machine, found 'no-such-user'"},
        {"[socket a]\ndevices = 0-3\n",
         ":2: [socket a] devices: expected all, none, or device numbers such as 0,1, found '0-3'"},
        {"[socket a]\ndevices = 64\n",
         ":2: [socket a] devices: expected all, none, or device numbers such as 0,1, found '64'"},
        {"[socket a]\nsocket = x\n", ":2: [socket a] socket: unknown key, expected one of path, mode, owner, "
                                     "group, uid, tenant, devices"},
        {"[grants]\nuser:no-such-user = 0\n", ":2: [grants] user: " NO_GRANT "'no-such-user = 0'"},
        {"[grants]\nuser:root\n", ":2: [grants] user: " NO_GRANT "'root'"},
        {"[grants]\ncgroup:relative = 0\n", ":2: [grants] cgroup: " NO_GRANT "'relative = 0'"},
        {"[grants]\nuser:root = 0, x\n", ":2: [grants] user: " NO_GRANT "'root = 0, x'"},
        {"[grants]\nnobody = 0\n", ":2: [grants] nobody: " NO_GRANT "'0'"},
        {"[limits] max_sessions = 4\n", ":1: [limits]: expected only a comment after it"},
        {"# one\n[limits]]\n", ":2: [limits]: expected only a comment after it"},
        {"socket = x\n", ":1: socket: expected a section such as [daemon] before it"},
        {"[daemon]\nsocket\n", ":2: expected 'key = value' or '[section]'"},
        {"[daemon\nsocket = x\n", ":1: expected 'key = value' or '[section]'"},
        /* The first of two mistakes, in both orders. */
        {"[daemon]\nnonsense\nlog_level = loud\n",
         ":2: expected 'key = value' or '[section]' (2 errors in all)"},
        {"[daemon]\nlog_level = loud\nnonsense\n",
         ":2: [daemon] log_level: expected error, warning, notice, info or debug, found 'loud' (2 errors "
         "in all)"},
};

TEST(test_mistakes)
{
	for (size_t i = 0; i < ZD_ARRAY_LEN(mistakes); i++) {
		struct zd_config config, before;
		struct zd_err err;
		char expected[ZD_ERR_TEXT_BYTES];

		zd_config_init(&before);
		assert_int_equal(read_text(mistakes[i].text, &config, &err), ZEROD_E_INVALID);
		(void)snprintf(expected, sizeof(expected), "%s%s", path, mistakes[i].message);
		assert_string_equal(err.text, expected);
		assert_memory_equal(&config, &before, sizeof(config));
	}
}

/* One error of each kind, a section with an error whose keys are skipped, and right lines between them. */
TEST(test_all_mistakes_are_printed)
{
	static const char text[] = "socket = /x\n[daemon]\nlog_level = loud\nnonsense\n[devises]\ncount = 1\n"
	                           "[limits\nmax_sessions = 0\n[limits] x\nmax_sessions = 0\n[devices]\n"
	                           "arena = 1\ncount = many\n";
	static const char *const found[] = {
	        ":1: socket: ",      ":3: [daemon] log_level: ", ":4: expected 'key",     ":5: [devises]: ",
	        ":7: expected 'key", ":9: [limits]: ",           ":13: [devices] count: "};
	struct zd_config config, before;
	struct zd_err err;
	char expected[ZD_ERR_TEXT_BYTES], *printed = NULL, *line;
	size_t nbytes = 0, nlines = 0;
	FILE *errors = open_memstream(&printed, &nbytes);

	assert_non_null(errors);
	zd_config_init(&before);
	assert_int_equal(read_text(text, &config, &err), ZEROD_E_INVALID);
	assert_non_null(strstr(err.text, ":1: socket: "));
	assert_non_null(strstr(err.text, "(7 errors in all)"));
	assert_int_equal(zd_config_read(&config, path, errors, &err), ZEROD_E_INVALID);
	assert_int_equal(fclose(errors), 0);
	(void)snprintf(expected, sizeof(expected), "%s: 7 errors", path);
	assert_string_equal(err.text, expected);
	for (line = strtok(printed, "\n"); line; line = strtok(NULL, "\n"), nlines++) {
		assert_true(nlines < ZD_ARRAY_LEN(found));
		assert_ptr_equal(strstr(line, found[nlines]), line + strlen(path));
	}
	assert_int_equal(nlines, ZD_ARRAY_LEN(found));
	assert_memory_equal(&config, &before, sizeof(config));
	free(printed);
}

#define UUID "GPU-12345678-1234-1234-1234-123456789abc"
#define FOUR UUID "," UUID ", " UUID "," UUID

/* The parser has no room for such a line. */
TEST(test_long_lines)
{
	static const char long_comment[] = "# " FOUR FOUR FOUR "\n; " FOUR FOUR FOUR "\n";
	struct zd_config config;
	struct zd_err err;
	char text[4000];

	(void)snprintf(text, sizeof(text), "%s[devices]\n%s\tgpus=  %s ; = %s\ncount = 2\n", long_comment,
	               long_comment, FOUR "," FOUR, FOUR);
	assert_int_equal(read_text(text, &config, &err), 0);
	assert_string_equal(config.gpus, FOUR "," FOUR);
	assert_int_equal(config.device_count, 2);
	(void)snprintf(text, sizeof(text), "[devices]\ngpus = %s  \t \r\ncount = 3", FOUR "," FOUR);
	assert_int_equal(read_text(text, &config, &err), 0);
	assert_string_equal(config.gpus, FOUR "," FOUR);
	assert_int_equal(config.device_count, 3);
}

TEST(test_long_mistakes)
{
	struct zd_config config;
	struct zd_err err;
	char text[600] = "[daemon]\nsocket = /";

	memset(text + strlen(text), 'x', 300);
	assert_int_equal(read_text(text, &config, &err), ZEROD_E_INVALID);
	assert_non_null(strstr(err.text, ":2: [daemon] socket: expected a path of 1 to 107 bytes"));
	memset(text + 9, 'x', 310);
	assert_int_equal(read_text(text, &config, &err), ZEROD_E_INVALID);
	assert_non_null(strstr(err.text, ":2: expected 'key = value'"));
	assert_int_equal(zd_config_read(&config, "/dev/zero", NULL, &err), ZEROD_E_INVALID);
	assert_non_null(strstr(err.text, "/dev/zero:1: expected text of at most 8190 bytes"));
	memcpy(text + 9 + 300, " = 1", 4);
	assert_int_equal(read_text(text, &config, &err), ZEROD_E_INVALID);
	assert_non_null(strstr(err.text, ":2: expected 'key = value'"));
}

TEST(test_long_path)
{
	struct zd_config config;
	struct zd_err err;
	char text[200] = "[daemon]\nsocket = ";
	size_t prefix = strlen(text);

	memset(text + prefix, 'x', 107);
	assert_int_equal(read_text(text, &config, &err), 0);
	assert_int_equal(strlen(config.socket_path), 107);
	memset(text + prefix, 'x', 108);
	assert_int_equal(read_text(text, &config, &err), ZEROD_E_INVALID);
	assert_non_null(
	        strstr(err.text, ":2: [daemon] socket: expected a path of 1 to 107 bytes, found 'xxx"));
}

TEST(test_no_file)
{
	struct zd_config config;
	struct zd_err err;

	zd_config_init(&config);
	assert_int_equal(zd_config_read(&config, "/nonexistent/zerod.conf", NULL, &err), ZEROD_E_NOT_FOUND);
	assert_string_equal(err.text, "/nonexistent/zerod.conf: no such file");
	assert_int_equal(zd_config_read(&config, "/tmp", NULL, &err), ZEROD_E_SYSTEM);
	assert_string_equal(err.text, "/tmp: reading it: Is a directory");
}

static void expect_unsafe(const char *text)
{
	struct zd_config config, before;
	struct zd_err err;
	char expected[ZD_ERR_TEXT_BYTES];

	zd_config_init(&config);
	before = config;
	assert_int_equal(zd_config_read(&config, path, NULL, &err), ZEROD_E_PERMISSION);
	(void)snprintf(expected, sizeof(expected), "%s: %s", path, text);
	assert_string_equal(err.text, expected);
	assert_memory_equal(&config, &before, sizeof(config));
}

/* A file that other users may write is theirs as much as the daemon's. */
TEST(test_unsafe_file)
{
	struct zd_config config;
	struct zd_err err;

	assert_int_equal(read_text("[limits]\nmax_sessions = 4\n", &config, &err), 0);
	assert_int_equal(chmod(path, 0664), 0);
	expect_unsafe("expected a file that only its owner can write, found mode 0664");
	assert_int_equal(chmod(path, 0602), 0);
	expect_unsafe("expected a file that only its owner can write, found mode 0602");
	assert_int_equal(chmod(path, 0644), 0);
	assert_int_equal(zd_config_read(&config, path, NULL, &err), 0);
	assert_int_equal(chmod(path, 0600), 0);
	if (geteuid() != 0)
		return;
	assert_int_equal(chown(path, 12345, 12345), 0);
	expect_unsafe("expected a file of root or of the daemon's user, uid 0, found one of uid 12345");
	assert_int_equal(chown(path, 0, 0), 0);
}

TEST(test_check)
{
	struct zd_config config;
	struct zd_err err;

	zd_config_init(&config);
	config.gather_budget_bytes = 2ull << 30;
	assert_int_equal(zd_config_check(&config, &err), 0); /* of an arena that the backend chooses */
	config.arena_bytes = 2ull << 30;
	assert_int_equal(zd_config_check(&config, &err), 0);
	config.arena_bytes = 1ull << 30;
	assert_int_equal(zd_config_check(&config, &err), ZEROD_E_INVALID);
	assert_string_equal(err.text,
	                    "[devices] gather_budget: expected at most the arena's 1 GiB, found 2 GiB");
	config.gather_budget_bytes = 0;
	config.staging_bytes = 3ull << 30;
	assert_int_equal(zd_config_check(&config, &err), ZEROD_E_INVALID);
	assert_string_equal(err.text, "[devices] staging: expected at most the arena's 1 GiB, found 3 GiB");
}

/* The options of this command line, whose file is `path`. */
#define PARSED(...)                                                                                          \
	parsed((const char *[]){"zerod", "--config", path, __VA_ARGS__, NULL},                               \
	       sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *) + 3)

static struct zd_options parsed(const char **arguments, size_t count)
{
	struct zd_options options;

	zd_options_parse((int)count, (char **)arguments, &options);
	return options;
}

/* Reading the file does not read the key; loading does. */
TEST(test_key_file)
{
	struct zd_options options = {.config_path = path}, given;
	char key_path[sizeof(path) + 8], text[2 * sizeof(key_path)];
	struct zd_config config;
	struct zd_err err;
	FILE *file;

	(void)snprintf(key_path, sizeof(key_path), "%s.key", path);
	(void)snprintf(text, sizeof(text), "[collectives]\nkey_file = %s\n", key_path);
	write_file(text);
	assert_int_equal(zd_options_load(&options, NULL, &config, &err), ZEROD_E_NOT_FOUND);
	assert_non_null(strstr(err.text, "key_file "));
	given = PARSED("--key-file", ""); /* the command line wins */
	assert_int_equal(zd_options_load(&given, NULL, &config, &err), 0);
	assert_false(config.id_key.shared);
	file = fopen(key_path, "we");
	assert_true(file && fchmod(fileno(file), 0600) == 0 && fwrite(text, 32, 1, file) == 1);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(zd_options_load(&options, NULL, &config, &err), 0);
	assert_true(config.id_key.shared);
	assert_int_equal(chmod(key_path, 0640), 0);
	assert_int_equal(zd_options_load(&options, NULL, &config, &err), ZEROD_E_PERMISSION);
	(void)unlink(key_path);
}

TEST(test_command_line_wins)
{
	struct zd_options options = PARSED("--socket", "/tmp/b", "--devices", "3", "--gpus", "1", "--arena",
	                                   "1M", "--nccl", "", "--backend", "host");
	struct zd_config config;
	struct zd_err err;

	write_file("[daemon]\nsocket = /tmp/a\n[devices]\ncount = 2\ngather_budget = 1M\n"
	           "[collectives]\nnccl = /tmp/nccl\ncheck = yes\n");
	assert_int_equal(zd_options_load(&options, NULL, &config, &err), 0);
	assert_string_equal(config.socket_path, "/tmp/b");
	assert_ptr_equal(config.backend, &zd_backend_host);
	assert_int_equal(config.device_count, 3);
	assert_string_equal(config.gpus, "1");
	assert_string_equal(config.nccl_path, "");
	assert_true(config.check_collectives);
	assert_int_equal(config.arena_bytes, 1 << 20);
	assert_int_equal(config.gather_budget_bytes, 1 << 20);
}

TEST(test_command_line_mistakes)
{
	struct zd_options options = PARSED("--arena", "lots");
	char path_too_long[ZD_CONFIG_PATH_BYTES + 1] = "";
	struct zd_config config;
	struct zd_err err;

	write_file("");
	assert_int_equal(zd_options_load(&options, NULL, &config, &err), ZEROD_E_INVALID);
	assert_string_equal(err.text, "--arena: expected a size such as 64G, at most 1024T, found 'lots'");
	options = PARSED("--devices", "none");
	assert_int_equal(zd_options_load(&options, NULL, &config, &err), ZEROD_E_INVALID);
	assert_string_equal(err.text, "--devices: expected a number from 1 to 64, found 'none'");
	options = PARSED("--backend", "none");
	assert_int_equal(zd_options_load(&options, NULL, &config, &err), ZEROD_E_INVALID);
	assert_string_equal(err.text, "--backend: expected auto, host or cuda, found 'none'");
	options = PARSED("--socket", "");
	assert_int_equal(zd_options_load(&options, NULL, &config, &err), ZEROD_E_INVALID);
	assert_string_equal(err.text, "--socket: expected a path of 1 to 107 bytes, found ''");
	memset(path_too_long, 'x', sizeof(path_too_long) - 1);
	options = PARSED("--nccl", path_too_long);
	assert_int_equal(zd_options_load(&options, NULL, &config, &err), ZEROD_E_INVALID);
	assert_non_null(strstr(err.text, "--nccl: expected a path of at most 1023 bytes, found 'xxx"));
	/* A file that was asked for must be there. */
	options = (struct zd_options){.config_path = "/nonexistent/zerod.conf"};
	assert_int_equal(zd_options_load(&options, NULL, &config, &err), ZEROD_E_NOT_FOUND);
	/* The file's budget against the command line's arena. */
	write_file("[devices]\ngather_budget = 2M\n");
	options = PARSED("--arena", "1M");
	assert_int_equal(zd_options_load(&options, NULL, &config, &err), ZEROD_E_INVALID);
}

int main(void)
{
	return test_run(make_file, remove_file);
}
