// SPDX-License-Identifier: Apache-2.0
/*
 * test_zeroctl.c - zeroctl against a daemon in which two jobs hold something of every kind.
 *
 * Job "alpha": a unit with two leases and a persistent one, which a claim holds too, a bucket, an allocation.
 * Job "beta": durable, one unit.
 */
#include "proto/limits.h"
#include "tests/it/zeroctl_scene.h"

#include <zerod.h>

#include "tests/support/daemon_fixture.h"

static struct zd_daemon node;

struct trainer {
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit, *persistent;
	zerod_bucket *bucket;
	zerod_allocation *buffer;
	zerod_scope claim;
};

static struct trainer alpha, beta;

/* ---- Helpers ------------------------------------------------------------------------------------------- */

static struct program zeroctl(const char *line)
{
	return zeroctl_run(node.socket_path, line);
}

static void expect_status(const char *line, int status, const char *err_has)
{
	struct program program = zeroctl(line);
	if (program.status != status || !strstr(program.err_text, err_has))
		print_error("zeroctl %s: exit %d, stderr: %s\n", line, program.status, program.err_text);
	assert_int_equal(program.status, status);
	assert_non_null(strstr(program.err_text, err_has));
	assert_int_equal(program.out_bytes, 0);
	program_free(&program);
}

static json_t *listing(const char *line, const char *verb)
{
	return zeroctl_listing(node.socket_path, line, verb);
}

static size_t count_rows(const char *line, const char *verb)
{
	json_t *object = listing(line, verb);
	size_t count = json_array_size(json_object_get(object, "rows"));
	json_decref(object);
	return count;
}

static zerod_unit *make_unit(zerod_group *group, const char *name, uint64_t numel, uint32_t flags)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	zerod_unit *unit;
	options.name = name;
	options.dtype = ZEROD_FLOAT32;
	options.numel = numel;
	options.flags = flags;
	assert_int_equal(zerod_unit_register(group, &options, &unit), 0);
	assert_int_equal(zerod_update_begin(&unit, 1, NULL, NULL), 0);
	assert_int_equal(zerod_publish(&unit, 1, NULL, 0, NULL, NULL), 0);
	return unit;
}

static void gather(zerod_unit *unit, const char *tag, uint32_t uses)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	options.tag = tag;
	options.uses = uses;
	assert_int_equal(zerod_gather(unit, &options, NULL, NULL), 0);
}

static void join(struct trainer *trainer, const char *job, uint32_t flags)
{
	struct zerod_options options = ZEROD_INIT(options);
	options.socket_path = node.socket_path;
	options.name = job;
	options.strict = 1; /* else a rank that is alone gathers no copy; whole pages are charged */
	assert_int_equal(zerod_connect(&options, &trainer->client), 0);
	struct zerod_group_options group = ZEROD_INIT(group);
	group.job = job;
	group.world_size = 1;
	group.flags = flags;
	assert_int_equal(zerod_group_join(trainer->client, &group, &trainer->group), 0);
}

static void claim(struct trainer *trainer)
{
	const zerod_scope outermost = {0};
	struct zerod_gather_options options = ZEROD_INIT(options);
	assert_int_equal(zerod_forward_begin(trainer->group, outermost, NULL, 0, &trainer->claim), 0);
	options.scope = trainer->claim;
	assert_int_equal(zerod_gather(trainer->persistent, &options, NULL, NULL), 0);
	assert_int_equal(zerod_forward_end(trainer->client, trainer->claim, 1, NULL, 0, NULL), 0);
}

static int start(void **state)
{
	(void)state;
	if (zd_daemon_start(NULL, &node))
		return -1;
	join(&alpha, "alpha", 0);
	alpha.unit = make_unit(alpha.group, "layer.0", 1000, 0);
	alpha.persistent = make_unit(alpha.group, "norm", 7, ZEROD_UNIT_PERSISTENT);
	gather(alpha.unit, "plan", 2);
	gather(alpha.unit, "eager", 1);
	gather(alpha.persistent, NULL, 1);
	claim(&alpha);
	struct zerod_bucket_options bucket = ZEROD_INIT(bucket);
	bucket.dtype = ZEROD_BFLOAT16;
	bucket.slot_bytes = 1 << 20;
	bucket.nslots = 3;
	assert_int_equal(zerod_bucket_create(alpha.group, &bucket, &alpha.bucket), 0);
	struct zerod_alloc_options alloc = ZEROD_INIT(alloc);
	void *data;
	alloc.job = "alpha";
	alloc.name = "scratch";
	alloc.bytes = 5000;
	assert_int_equal(zerod_alloc(alpha.client, &alloc, &alpha.buffer, &data), 0);
	join(&beta, "beta", ZEROD_GROUP_DURABLE);
	beta.unit = make_unit(beta.group, "layer.0", 64, 0);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	zerod_close(alpha.client);
	zerod_close(beta.client);
	return zd_daemon_stop(&node);
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

static const struct {
	const char *verb, *head, *key; /* how the table begins; a key that every row has */
} readers[] = {
        {"devices", "DEVICE  NAME", "host"}, {"jobs", "ID  JOB", "usage"},
        {"sessions", "ID  NAME", "waits"},   {"groups", "ID  JOB", "members"},
        {"units", "ID  JOB", "on_host"},     {"buffers", "JOB", "holders"},
        {"scopes", "ID  JOB", "tag"},        {"buckets", "ID  JOB", "slots"},
        {"alloc", "ID  JOB", "bytes"},
};

TEST(every_reading_verb_has_a_table_and_json)
{
	for (size_t i = 0; i < sizeof(readers) / sizeof(readers[0]); i++) {
		struct program program = zeroctl(readers[i].verb);
		assert_string_equal(program.err_text, "");
		assert_int_equal(program.status, 0);
		char *head = program.out_text + strspn(program.out_text, " ");
		assert_memory_equal(head, readers[i].head, strlen(readers[i].head));
		assert_non_null(strchr(head, '\n')[1] ? head : NULL); /* at least one row */
		program_free(&program);
		json_t *object = listing(readers[i].verb, readers[i].verb), *row;
		size_t index;
		assert_true(json_array_size(json_object_get(object, "rows")) > 0);
		json_array_foreach(json_object_get(object, "rows"), index, row)
		{
			assert_non_null(json_object_get(row, readers[i].key));
		}
		json_decref(object);
	}
}

TEST(status_tells_of_the_daemon)
{
	json_t *object = listing("status", "status");
	const json_t *row = json_array_get(json_object_get(object, "rows"), 0);
	assert_string_equal(json_string_value(json_object_get(row, "backend")), "host");
	assert_string_equal(json_string_value(json_object_get(row, "state")), "SERVING");
	assert_int_equal(integer(row, "pid"), node.pid);
	assert_int_equal(integer(row, "devices"), 2);
	assert_int_equal(integer(row, "jobs"), 2);
	assert_int_equal(integer(json_object_get(row, "usage"), "gathered_bytes"), 2 * 4096);
	json_decref(object);
	struct program program = zeroctl("status");
	assert_non_null(strstr(program.out_text, "SERVING"));
	program_free(&program);
}

TEST(scopes_are_shown_with_what_they_hold)
{
	char tag[32];
	snprintf(tag, sizeof(tag), "@claim %llu", ZD_ID_NUMBER(alpha.claim.id));
	json_t *object = listing("scopes", "scopes");
	const json_t *row = json_array_get(json_object_get(object, "rows"), 0);
	assert_int_equal(json_array_size(json_object_get(object, "rows")), 1);
	assert_int_equal(integer(row, "id"), ZD_ID_NUMBER(alpha.claim.id));
	assert_string_equal(json_string_value(json_object_get(row, "tag")), tag);
	assert_string_equal(json_string_value(json_object_get(row, "state")), "CLAIMED");
	assert_false(json_is_true(json_object_get(row, "context")));
	assert_int_equal(integer(row, "rank"), 0);
	assert_int_equal(integer(row, "parent"), 0);
	assert_int_equal(integer(row, "units"), 1);
	assert_int_equal(integer(row, "bytes"), 4096);
	json_decref(object);
	assert_int_equal(count_rows("scopes --job beta", "scopes"), 0);
	/* the same holder, beside the others */
	object = listing("buffers", "buffers");
	const json_t *holders = json_object_get(row_where(object, "unit", "norm"), "holders");
	assert_int_equal(json_array_size(holders), 2);
	assert_string_equal(json_string_value(json_object_get(json_array_get(holders, 1), "tag")), tag);
	json_decref(object);
	object = listing("devices", "devices");
	row = json_array_get(json_object_get(object, "rows"), 0);
	assert_int_equal(integer(row, "fallback_gathers"), 1);
	json_decref(object);
	object = listing("status", "status");
	row = json_array_get(json_object_get(object, "rows"), 0);
	assert_int_equal(integer(row, "fallback_gathers"), 1);
	json_decref(object);
}

TEST(buffers_show_bytes_and_holders)
{
	json_t *object = listing("buffers", "buffers");
	const json_t *row = row_where(object, "unit", "layer.0");
	assert_int_equal(integer(row, "true_bytes"), 4000);
	assert_int_equal(integer(row, "padded_bytes"), 4096);
	assert_int_equal(integer(row, "version"), 1);
	assert_string_equal(json_string_value(json_object_get(row, "state")), "AVAILABLE");
	const json_t *holders = json_object_get(row, "holders");
	assert_int_equal(json_array_size(holders), 2);
	json_int_t uses = 0;
	for (size_t i = 0; i < 2; i++) {
		const json_t *holder = json_array_get(holders, i);
		const bool plan = strcmp(json_string_value(json_object_get(holder, "tag")), "plan") == 0;
		assert_int_equal(integer(holder, "uses"), plan ? 2 : 1);
		uses += integer(holder, "uses");
	}
	assert_int_equal(uses, 3);
	json_decref(object);

	struct program human = zeroctl("buffers"), exact = zeroctl("buffers --bytes");
	assert_non_null(strstr(human.out_text, ":plan\u00d72"));
	assert_non_null(strstr(human.out_text, ":eager\u00d71"));
	assert_non_null(strstr(human.out_text, "persistent"));
	assert_non_null(strstr(human.out_text, "KiB"));
	assert_null(strstr(exact.out_text, "KiB"));
	assert_non_null(strstr(exact.out_text, " 4096 "));
	program_free(&human);
	program_free(&exact);
}

TEST(rows_can_be_filtered_and_sorted)
{
	assert_int_equal(count_rows("units", "units"), 3);
	assert_int_equal(count_rows("units --job alpha", "units"), 2);
	assert_int_equal(count_rows("buffers --job beta", "buffers"), 0);
	json_t *up = listing("units --sort numel", "units"), *down = listing("--sort -NUMEL units", "units");
	const json_int_t numels[] = {7, 64, 1000};
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(integer(json_array_get(json_object_get(up, "rows"), i), "numel"), numels[i]);
		assert_int_equal(integer(json_array_get(json_object_get(down, "rows"), i), "numel"),
		                 numels[2 - i]);
	}
	json_decref(up);
	json_decref(down);
	expect_status("units --sort colour", 2, "no column 'colour'");
}

TEST(long_listings_come_in_pages)
{
	enum { NUNITS = 700 }; /* with names this long, several packets */
	struct trainer many = {0};
	char name[128];
	join(&many, "many", 0);
	for (unsigned i = 0; i < NUNITS; i++) {
		struct zerod_unit_options options = ZEROD_INIT(options);
		zerod_unit *unit;
		snprintf(name, sizeof(name), "%0100u", i);
		options.name = name;
		options.dtype = ZEROD_UINT8;
		options.numel = 1;
		assert_int_equal(zerod_unit_register(many.group, &options, &unit), 0);
	}
	json_t *object = listing("units --job many --sort unit", "units");
	const json_t *rows = json_object_get(object, "rows");
	assert_int_equal(json_array_size(rows), NUNITS);
	for (unsigned i = 0; i < NUNITS; i++) {
		snprintf(name, sizeof(name), "%0100u", i);
		assert_string_equal(json_string_value(json_object_get(json_array_get(rows, i), "name")),
		                    name);
	}
	json_decref(object);
	zerod_close(many.client);
}

/* ---- Watching ------------------------------------------------------------------------------------------ */

TEST(watch_counts_its_pictures)
{
	struct program program = zeroctl("watch --interval 0.05 --count 2 --json");
	assert_int_equal(program.status, 0);
	char *line = program.out_text;
	for (int i = 0; i < 2; i++) {
		char *end = strchr(line, '\n');
		assert_non_null(end);
		*end = '\0';
		json_error_t error;
		json_t *object = json_loads(line, 0, &error);
		assert_non_null(object);
		assert_int_equal(integer(object, "schema"), 1);
		assert_int_equal(integer(json_object_get(object, "status"), "pid"), node.pid);
		assert_int_equal(json_array_size(json_object_get(object, "rows")), 2);
		json_decref(object);
		line = end + 1;
	}
	assert_string_equal(line, "");
	program_free(&program);
	program = zeroctl("watch --count 1 --sort unit");
	assert_int_equal(program.status, 0);
	assert_non_null(strstr(program.out_text, "SERVING"));
	assert_non_null(strstr(program.out_text, "layer.0"));
	assert_null(strchr(program.out_text, '\033')); /* no terminal, no escapes */
	program_free(&program);
}

TEST(watch_ends_at_a_signal)
{
	const char *const args[] = {"zeroctl",  "watch",          "--interval", "3600",
	                            "--socket", node.socket_path, NULL};
	struct program program;
	program_start(&program, args, NULL);
	assert_true(program_read_until(&program, "norm"));
	kill(program.pid, SIGINT);
	program_wait(&program);
	assert_int_equal(program.status, 0);
	assert_string_equal(program.err_text, "");
	program_free(&program);
}

/* ---- Wrong usage and failures -------------------------------------------------------------------------- */

TEST(wrong_usage_is_named)
{
	expect_status("bufers", 2, "did you mean 'buffers'");
	expect_status("dev", 2, "did you mean 'devices'");
	expect_status("killsession", 2, "did you mean 'kill-session'");
	expect_status("help frobnicate", 2, "no verb 'frobnicate'");
	expect_status("help buffers jobs", 2, "help takes one argument");
	expect_status("frobnicate", 2, "no verb 'frobnicate'");
	expect_status("", 2, "Usage:");
	expect_status("buffers now", 2, "takes no argument");
	expect_status("kill-session", 2, "takes one argument");
	expect_status("kill-session all", 2, "expected the id of a session");
	expect_status("devices --job alpha", 2, "devices takes no --job");
	expect_status("status --frob", 2, "frob");
	expect_status("watch --interval soon", 2, "--interval");
	expect_status("watch --interval -1", 2, "--interval");
	expect_status("watch --count 0", 2, "--count");
}

TEST(help_and_version_need_no_daemon)
{
	const char *const lines[] = {"--help", "--version",   "buffers --help", "abort-group --help",
	                             "help",   "help buffers"};
	const char *const says[] = {"abort-group", "zeroctl ",    "--sort",
	                            "JOB/GROUP",   "abort-group", "--sort"};
	for (size_t i = 0; i < 6; i++) {
		struct program program = zeroctl(lines[i]);
		assert_int_equal(program.status, 0);
		assert_non_null(strstr(program.out_text, says[i]));
		assert_string_equal(program.err_text, "");
		program_free(&program);
	}
}

TEST(a_missing_daemon_is_explained)
{
	const char *const args[] = {"zeroctl", "status", "--socket", "/nonexistent/zerod.sock", NULL};
	struct program program;
	program_start(&program, args, NULL);
	program_wait(&program);
	assert_int_equal(program.status, 25);
	assert_non_null(strstr(program.err_text, "no daemon listens on /nonexistent/zerod.sock"));
	assert_non_null(strstr(program.err_text, "ZEROD_SOCKET"));
	assert_string_equal(program.out_text, "");
	program_free(&program);
}

TEST(unknown_things_are_not_found)
{
	expect_status("kill-session 999999", 3, "NOT_FOUND");
	expect_status("abort-group 999999", 3, "NOT_FOUND");
	expect_status("abort-group alpha/other", 3, "'alpha/other'");
	expect_status("end-job 999999", 3, "NOT_FOUND");
	expect_status("end-job gamma", 3, "'gamma'");
	expect_status("trim --device 63", 3, "no device 63");
	expect_status("watch --job gamma", 3, "no job is called 'gamma'");
	for (size_t i = 1; i < sizeof(readers) / sizeof(readers[0]); i++) {
		char line[64];
		snprintf(line, sizeof(line), "%s --job gamma", readers[i].verb);
		expect_status(line, 3, "NOT_FOUND: no job is called 'gamma'");
		snprintf(line, sizeof(line), "%s --job gamma --json", readers[i].verb);
		expect_status(line, 3, "NOT_FOUND: no job is called 'gamma'");
	}
}

TEST(a_full_disk_is_told)
{
	const char *const args[] = {"zeroctl", "status", "--socket", node.socket_path, NULL};
	struct program program;
	program_start(&program, args, "/dev/full");
	program_wait(&program);
	assert_int_equal(program.status, 30);
	assert_non_null(strstr(program.err_text, "cannot write"));
	program_free(&program);
}

static bool is_logged(const char *text)
{
	char line[1024];
	bool found = false;
	FILE *log = fopen(node.log_path, "r");

	assert_non_null(log);
	while (!found && fgets(line, sizeof(line), log))
		found = strstr(line, text) != NULL;
	(void)fclose(log);
	return found;
}

static void assert_logged(const char *text)
{
	assert_true(is_logged(text));
}

/* ---- Administration ------------------------------------------------------------------------------------ */

static void run_and_read(const char *line, const char *says)
{
	struct program program = zeroctl(line);
	assert_string_equal(program.err_text, "");
	assert_int_equal(program.status, 0);
	assert_non_null(strstr(program.out_text, says));
	program_free(&program);
}

static void run_well(const char *line)
{
	run_and_read(line, "");
}

TEST(self_test_gathers_and_reduces)
{
	static const char *const steps[] = {"connect", "device", "join",  "publish",
	                                    "gather",  "reduce", "leave", "free"};
	json_t *object = listing("self-test --device 0", "self-test");
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
		assert_string_equal(
		        json_string_value(json_object_get(row_where(object, "step", steps[i]), "status")),
		        "OK");
	json_decref(object);
	struct program program = zeroctl("self-test");
	assert_int_equal(program.status, 0);
	assert_non_null(strstr(program.out_text, "gather   ok, "));
	assert_non_null(strstr(program.out_text, "all is well\n"));
	program_free(&program);
	program = zeroctl("self-test --device 63");
	assert_int_equal(program.status, 3);
	assert_non_null(strstr(program.err_text, "device: NOT_FOUND: there is no device 63"));
	program_free(&program);
	run_well("drain");
	program = zeroctl("self-test");
	assert_int_equal(program.status, 29);
	assert_non_null(strstr(program.err_text, "device: SHUTDOWN: "));
	program_free(&program);
	run_well("undrain");
	assert_int_equal(count_rows("jobs", "jobs"), 2);
}

static void expect_state(const char *state, const char *by, const char *table)
{
	json_t *object = listing("status", "status");
	const json_t *row = json_array_get(json_object_get(object, "rows"), 0);
	struct program program = zeroctl("status");
	assert_string_equal(json_string_value(json_object_get(row, "state")), state);
	assert_non_null(strstr(json_string_value(json_object_get(row, "drained_by")), by));
	assert_int_equal(integer(row, "ends_in_ns"), 0);
	assert_non_null(strstr(program.out_text, table));
	program_free(&program);
	json_decref(object);
}

TEST(drain_lets_jobs_run_and_none_begin)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options group = ZEROD_INIT(group);
	struct zerod_release_options release = ZEROD_INIT(release);
	struct trainer late = {0};
	char by[64];
	release.tag = "drained";
	expect_state("SERVING", "", "SERVING\n");
	run_well("drain");
	run_and_read("drain", "draining: 2 jobs still run, with 2 sessions\n");
	snprintf(by, sizeof(by), ", uid %u)", (unsigned)getuid());
	expect_state("DRAINING", by, "DRAINING by session ");
	assert_logged("drained by session ");
	options.socket_path = node.socket_path;
	assert_int_equal(zerod_connect(&options, &late.client), 0);
	group.job = "late";
	group.world_size = 1;
	assert_int_equal(zerod_group_join(late.client, &group, &late.group), ZEROD_E_SHUTDOWN);
	assert_non_null(strstr(zerod_last_error(late.client), "the daemon is draining: no rank joins"));
	gather(alpha.unit, "drained", 1);
	assert_int_equal(zerod_release(alpha.unit, NULL, 0, &release, NULL), 0);
	struct program program = zeroctl("watch --count 2 --interval 0.05"); /* the daemon does not end */
	assert_int_equal(program.status, 0);
	program_free(&program);
	run_well("undrain");
	run_well("undrain");
	expect_state("SERVING", "", "SERVING\n");
	assert_int_equal(zerod_group_join(late.client, &group, &late.group), 0);
	zerod_close(late.client);
}

TEST(abort_group_by_name)
{
	struct trainer doomed = {0};
	join(&doomed, "doomed", 0);
	run_and_read("abort-group doomed/world", "aborted group ");
	json_t *object = listing("groups", "groups");
	assert_string_equal(json_string_value(json_object_get(row_where(object, "job", "doomed"), "state")),
	                    "ABORTED");
	json_decref(object);
	assert_logged("job 'doomed': group 'world' has ended on this node: it was aborted by session");
	zerod_close(doomed.client);
}

TEST(kill_session_frees_what_it_held)
{
	struct trainer doomed = {0};
	char line[64], logged[128];
	join(&doomed, "victim", 0);
	doomed.unit = make_unit(doomed.group, "w", 100, 0);
	gather(doomed.unit, NULL, 1);
	assert_int_equal(count_rows("buffers --job victim", "buffers"), 1);
	json_t *object = listing("sessions", "sessions");
	snprintf(line, sizeof(line), "kill-session %u/%lld", (unsigned)getuid(),
	         (long long)integer(row_where(object, "name", "victim"), "id"));
	json_decref(object);
	snprintf(logged, sizeof(logged), "ended session %s (pid %d, 'victim')\n", strchr(line, '/') + 1,
	         (int)getpid());
	run_and_read(line, logged);
	expect_status("buffers --job victim", 3, "no job is called 'victim'");
	object = listing("sessions", "sessions");
	assert_null(row_where(object, "name", "victim"));
	json_decref(object);
	snprintf(logged, sizeof(logged), "session %s (pid %d, uid %u) ended: ended by session",
	         strchr(line, '/') + 1, (int)getpid(), (unsigned)getuid());
	assert_logged(logged);
	struct zerod_device_info info = ZEROD_INIT(info);
	assert_int_equal(zerod_device_get(doomed.client, 0, &info), ZEROD_E_ABORTED);
	assert_non_null(strstr(zerod_last_error(doomed.client), "ended by session"));
	assert_int_equal(zerod_release(doomed.unit, NULL, 0, NULL, NULL), ZEROD_E_ABORTED);
	assert_non_null(strstr(zerod_last_error(doomed.client), "ended by session"));
	zerod_close(doomed.client);
}

TEST(kill_job_ends_all_of_it)
{
	static const char *const forms[] = {"kill-job %2$lld", "kill-job doomed", "kill-job %1$u/doomed"};
	for (size_t i = 0; i < 3; i++) {
		struct trainer doomed = {0}, reader = {0};
		char line[64], by[64];
		join(&doomed, "doomed", i < 2 ? ZEROD_GROUP_DURABLE : 0);
		doomed.unit = make_unit(doomed.group, "w", 100, 0);
		json_t *object = listing("jobs", "jobs");
		snprintf(line, sizeof(line), forms[i], (unsigned)getuid(),
		         (long long)integer(row_where(object, "name", "doomed"), "id"));
		json_decref(object);
		join(&reader, "reader", 0);
		run_and_read(line, "/doomed': 1 session, ");
		assert_int_equal(zerod_update_begin(&doomed.unit, 1, NULL, NULL), ZEROD_E_ABORTED);
		assert_non_null(
		        strstr(zerod_last_error(doomed.client), "job 'doomed' was killed by session"));
		snprintf(by, sizeof(by), ", uid %u)", (unsigned)getuid());
		assert_non_null(strstr(zerod_last_error(doomed.client), by));
		expect_status("jobs --job doomed", 3, "no job is called 'doomed'");
		zerod_close(doomed.client);
		reader.unit = make_unit(reader.group, "w", 100, 0);
		zerod_close(reader.client);
	}
	assert_logged("job 'doomed': group 'world' has ended on this node: its job was killed by session");
	assert_logged("ended: job 'doomed' was killed by session");
	expect_status("kill-job doomed", 3, "NOT_FOUND");
	expect_status("kill-job 4000000000/alpha", 3, "NOT_FOUND");
}

#define OVERRIDE "\xe2\x80\xae" /* U+202E: what follows is shown from right to left */

static void expect_shown(struct program program, const char *text)
{
	assert_null(strstr(program.out_text, OVERRIDE));
	assert_null(strstr(program.err_text, OVERRIDE));
	assert_true(strstr(program.out_text, text) || strstr(program.err_text, text));
	program_free(&program);
}

/* Names are bytes to the daemon; on a terminal none may pass for another, or turn a line around. */
TEST(hidden_characters_of_names_are_shown)
{
	static const char name[] = "x" OVERRIDE "ahpla", escaped[] = "x\\u202eahpla";
	struct trainer hidden = {0};
	join(&hidden, name, 0);
	(void)make_unit(hidden.group, name, 100, 0);
	static const char *const verbs[] = {"jobs",        "sessions",        "groups",      "units",
	                                    "jobs --json", "sessions --json", "units --json"};
	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		expect_shown(zeroctl(verbs[i]), escaped);
	expect_shown(zeroctl("end-job x" OVERRIDE "ahpla"), escaped);
	/* Programs read the name itself. */
	json_t *object = listing("jobs", "jobs");
	assert_non_null(row_where(object, "name", name));
	json_decref(object);
	zerod_close(hidden.client);
	assert_logged(escaped);
	assert_false(is_logged(OVERRIDE)); /* nor in a field behind the text */
}

/* Jobs are called by numbers where a batch system's are. */
TEST(a_number_may_be_a_name)
{
	struct trainer numbered = {0};
	char name[24], line[48];
	join(&numbered, "900719", ZEROD_GROUP_DURABLE);
	zerod_close(numbered.client);
	expect_status("end-job 900718", 3, "NOT_FOUND");
	struct program program = zeroctl("end-job 900719");
	assert_string_equal(program.err_text, "");
	assert_int_equal(program.status, 0);
	assert_logged("job '900719': group 'world' has ended on this node: its job was ended by session");
	program_free(&program);
	json_t *object = listing("jobs", "jobs");
	assert_null(row_where(object, "name", "900719"));
	snprintf(name, sizeof(name), "%lld", (long long)integer(row_where(object, "name", "alpha"), "id"));
	json_decref(object);
	join(&numbered, name, 0);
	snprintf(line, sizeof(line), "end-job %s", name);
	expect_status(line, 1, "is the id of one object and the name of another");
	assert_int_equal(count_rows("buffers --job alpha", "buffers"), 2); /* it is still there */
	zerod_close(numbered.client);
}

TEST(end_job_frees_durable_shards)
{
	zerod_close(beta.client);
	beta = (struct trainer){0};
	json_t *object = listing("jobs", "jobs");
	const json_t *row = row_where(object, "name", "beta");
	assert_non_null(row);
	assert_true(json_is_true(json_object_get(row, "durable")));
	assert_int_equal(integer(json_object_get(row, "usage"), "shard_bytes"), 256);
	json_decref(object);
	struct program program = zeroctl("end-job beta");
	assert_string_equal(program.err_text, "");
	assert_int_equal(program.status, 0);
	program_free(&program);
	object = listing("jobs", "jobs");
	assert_null(row_where(object, "name", "beta"));
	json_decref(object);
}

int main(void)
{
	return test_run(start, stop);
}
