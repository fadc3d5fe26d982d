/* SPDX-License-Identifier: Apache-2.0 */
/*
 * corpus.c - writes the seeds that fuzzing starts from: sessions that go well, and every kind of packet once.
 *     corpus FOLDER    one folder in it for each target; they exist
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/limits.h"
#include "tests/fuzz/script.h"

#define COUNT(a)   (sizeof(a) / sizeof((a)[0]))
#define SEED_BYTES 16384u

static uint8_t seed_bytes[SEED_BYTES];
static size_t seed_nbytes;

/* Only the generator calls the mutator's functions without libFuzzer. */
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t nbytes, size_t room)
{
	(void)bytes;
	(void)room;
	return nbytes;
}

static void add(enum fuzz_what what, unsigned who, const void *bytes, size_t nbytes)
{
	seed_nbytes += fuzz_script_put(seed_bytes + seed_nbytes, sizeof(seed_bytes) - seed_nbytes, what, who,
	                               bytes, nbytes);
}

static void save(const char *folder, const char *target, const char *name)
{
	char path[4096];
	FILE *file;

	(void)snprintf(path, sizeof(path), "%s/%s/%s", folder, target, name);
	file = fopen(path, "wb");
	if (!file || fwrite(seed_bytes, 1, seed_nbytes, file) != seed_nbytes || fclose(file) != 0) {
		perror(path);
		exit(1);
	}
	seed_nbytes = 0;
}

/* ---- Clients ------------------------------------------------------------------------------------------- */

static void ask(unsigned who, Zd__Request *request)
{
	uint8_t bytes[FUZZ_PACKET_BYTES];
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;

	request->id = 2;
	packet.n_requests = 1;
	packet.requests = &request;
	add(FUZZ_REQUESTS, who, bytes, zd__client_packet__pack(&packet, bytes));
}

#define ASK(who, BODY, field, Type, ...)                                                                     \
	ask(who, &(Zd__Request){                                                                             \
	                 .base = PROTOBUF_C_MESSAGE_INIT(&zd__request__descriptor),                          \
	                 .body_case = ZD__REQUEST__BODY_##BODY,                                              \
	                 .field = &(Zd__##Type){.base = PROTOBUF_C_MESSAGE_INIT(&zd__##field##__descriptor), \
	                                        __VA_ARGS__}})

static void signal_timeline(unsigned who, uint8_t timeline, uint8_t value)
{
	const uint8_t bytes[] = {timeline, value};

	add(FUZZ_SIGNAL, who, bytes, sizeof(bytes));
}

/* Begun, and done at that value of timeline 0. */
static void answer_work(unsigned who, uint8_t value)
{
	const uint8_t bytes[] = {0, value};

	add(FUZZ_ANSWER, who, bytes, sizeof(bytes));
}

/* A status, and nothing has been begun. */
static void refuse_work(unsigned who)
{
	const uint8_t bytes[] = {1, 0};

	add(FUZZ_ANSWER, who, bytes, sizeof(bytes));
}

static void run_times(unsigned times)
{
	while (times-- > 0)
		add(FUZZ_RUN, 0, NULL, 0);
}

static void open_group(unsigned ranks)
{
	for (unsigned r = 0; r < ranks; r++)
		ASK(r, GROUP_JOIN, group_join, GroupJoin, .job = (char *)"a", .group = (char *)"world",
		    .world_size = ranks, .rank = r, .device = r);
}

static void register_unit(unsigned ranks, const char *name)
{
	for (unsigned r = 0; r < ranks; r++)
		ASK(r, UNIT_REGISTER, unit_register, UnitRegister, .group = 1, .name = (char *)name,
		    .dtype = 1, .numel = 1000);
	run_times(2);
}

/* Bucket 1 + r is rank r's. */
static void begin_backward(unsigned ranks, uint32_t nslots)
{
	for (unsigned r = 0; r < ranks; r++)
		ASK(r, BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = 1, .boundary = true);
	run_times(2);
	for (unsigned r = 0; r < ranks; r++)
		ASK(r, BUCKET_CREATE, bucket_create, BucketCreate, .group = 1, .dtype = 1, .slot_bytes = 4096,
		    .nslots = nslots);
}

static void reduce(unsigned rank, uint64_t unit, uint64_t entry)
{
	ASK(rank, BUCKET_RESERVE, bucket_reserve, BucketReserve, .bucket = 1 + rank, .unit = unit);
	run_times(2);
	ASK(rank, BUCKET_SUBMIT, bucket_submit, BucketSubmit, .bucket = 1 + rank, .entry = entry);
}

static void update_behind_a_fence(unsigned ranks, Zd__Fence **fences)
{
	uint64_t unit = 1;

	for (unsigned r = 0; r < ranks; r++)
		ASK(r, UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 1, .units = &unit);
	for (unsigned r = 0; r < ranks; r++)
		ASK(r, PUBLISH, publish, Publish, .n_units = 1, .units = &unit, .n_fences = 1,
		    .fences = fences);
	for (unsigned r = 0; r < ranks; r++)
		signal_timeline(r, 0, 1);
	run_times(1);
}

static void train(unsigned ranks)
{
	Zd__Fence fence = ZD__FENCE__INIT, *fences[] = {&fence};

	fence.value = 1;
	open_group(ranks);
	register_unit(ranks, "a");
	update_behind_a_fence(ranks, fences);
	for (unsigned r = 0; r < ranks; r++)
		ASK(r, GATHER, gather, Gather, .unit = 1, .tag = (char *)"a");
	run_times(2);
	for (unsigned r = 0; r < ranks; r++)
		ASK(r, RELEASE, release, Release, .unit = 1, .tag = (char *)"a", .n_fences = 1,
		    .fences = fences);
	begin_backward(ranks, 2);
	for (unsigned r = 0; r < ranks; r++)
		reduce(r, 1, 1 + r);
	for (unsigned r = 0; r < ranks; r++)
		ASK(r, BACKWARD_END, backward_end, BackwardEnd, .group = 1);
	run_times(4);
	for (unsigned r = 0; r < ranks; r++) {
		answer_work(r, 1);
		signal_timeline(r, 0, 1);
	}
	run_times(2);
	for (unsigned r = 0; r < ranks; r++)
		ASK(r, STEP_BEGIN, step_begin, StepBegin, .group = 1);
	for (unsigned r = 0; r < ranks; r++)
		ASK(r, STEP_END, step_end, StepEnd, .group = 1);
	for (unsigned r = 0; r < ranks; r++)
		ASK(r, COMMIT, commit, Commit, .group = 1, .step = 1);
}

/* Two ranks reduce two units in opposite orders, each through a bucket that holds one. */
static void cross(void)
{
	open_group(2);
	register_unit(2, "a");
	register_unit(2, "b");
	begin_backward(2, 1);
	for (unsigned r = 0; r < 2; r++)
		reduce(r, 1 + r, 1 + r);
	for (unsigned r = 0; r < 2; r++)
		reduce(r, 2 - r, 3 + r);
	run_times(2);
}

/* A gathered copy's segment goes back: asked for by another session, and by an allocation that finds no
 * memory. */
static void trim(void)
{
	uint64_t unit = 1;
	uint32_t segments[] = {1, 2, 3};

	open_group(1);
	register_unit(1, "a");
	ASK(0, UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 1, .units = &unit);
	ASK(0, PUBLISH, publish, Publish, .n_units = 1, .units = &unit);
	for (unsigned round = 0; round < 2; round++) {
		ASK(0, GATHER, gather, Gather, .unit = 1, .tag = (char *)"a");
		run_times(2);
		ASK(0, RELEASE, release, Release, .unit = 1, .tag = (char *)"a");
		if (round == 0)
			ASK(1, TRIM, trim, Trim, .device = 0);
		else
			ASK(1, ALLOC, alloc, Alloc, .job = (char *)"b", .bytes = 1 << 20);
		ASK(0, SEGMENTS_UNMAPPED, segments_unmapped, SegmentsUnmapped, .n_segments = COUNT(segments),
		    .segments = segments);
		for (size_t i = 0; i < COUNT(segments); i++)
			ASK(0, SEGMENTS_UNMAPPED, segments_unmapped, SegmentsUnmapped, .n_segments = 1,
			    .segments = &segments[i]);
		run_times(3);
	}
}

/* A group of one rank that leaves all to NCCL, and one whose other rank is in another daemon. */
static void collectives(void)
{
	uint8_t ids[ZD_ID_STAMP_BYTES + 2 * ZD_UNIQUE_ID_BYTES];
	uint64_t unit = 1;

	memset(ids, 1, sizeof(ids));
	fuzz_stamp("b", "world", 2, ids);
	ASK(1, UNIQUE_IDS, unique_ids, UniqueIds, .count = 2, .job = (char *)"b", .group = (char *)"world");
	ASK(0, GROUP_JOIN, group_join, GroupJoin, .job = (char *)"a", .group = (char *)"world",
	    .world_size = 1, .collectives = ZD__COLLECTIVES__NCCL);
	ASK(1, GROUP_JOIN, group_join, GroupJoin, .job = (char *)"b", .group = (char *)"world",
	    .world_size = 2, .local_world_size = 1, .rank = 1, .device = 1,
	    .unique_ids = {.len = sizeof(ids), .data = ids});
	run_times(4);
	register_unit(1, "a");
	ASK(0, UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 1, .units = &unit);
	ASK(0, PUBLISH, publish, Publish, .n_units = 1, .units = &unit);
	ASK(0, GATHER, gather, Gather, .unit = 1, .tag = (char *)"a");
	run_times(2);
	begin_backward(1, 1);
	reduce(0, 1, 1);
	ASK(0, BACKWARD_END, backward_end, BackwardEnd, .group = 1);
	run_times(4);
	ASK(0, STEP_BEGIN, step_begin, StepBegin, .group = 1);
	run_times(2);
}

/* Rank 1's process, which is asked ahead, does not wait: it is asked again. */
static void refuse_ahead(void)
{
	open_group(2);
	register_unit(2, "a");
	begin_backward(2, 2);
	for (unsigned r = 0; r < 2; r++)
		reduce(r, 1, 1 + r);
	refuse_work(1);
	run_times(4);
	answer_work(1, 1);
	signal_timeline(1, 0, 1);
	for (unsigned r = 0; r < 2; r++)
		ASK(r, BACKWARD_END, backward_end, BackwardEnd, .group = 1);
	run_times(4);
	for (unsigned r = 0; r < 2; r++)
		ASK(r, STEP_BEGIN, step_begin, StepBegin, .group = 1);
	run_times(2);
}

static void client_seeds(const char *folder)
{
	uint8_t bytes[FUZZ_PACKET_BYTES];
	char name[32];

	for (unsigned ranks = 1; ranks <= 2; ranks++) {
		train(ranks);
		(void)snprintf(name, sizeof(name), "train-%u", ranks);
		save(folder, "packet", name);
	}
	cross();
	save(folder, "packet", "cross");
	refuse_ahead();
	save(folder, "packet", "refuse-ahead");
	trim();
	save(folder, "packet", "trim");
	collectives();
	save(folder, "packet", "collectives");
	ASK(0, ALLOC, alloc, Alloc, .job = (char *)"a", .bytes = 4096);
	run_times(2);
	for (unsigned table = ZD__TABLE__DEVICES; table <= ZD__TABLE__ALLOCATIONS; table++)
		ASK(1, LIST, list, List, .table = (Zd__Table)table);
	ASK(1, KILL_SESSION, kill_session, KillSession, .session = 1);
	save(folder, "packet", "alloc-list-kill");
	for (unsigned body = ZD__REQUEST__BODY_HELLO; body <= ZD__REQUEST__BODY_DRAIN; body++)
		add(FUZZ_REQUESTS, 0, bytes, fuzz_request(body, (Zd__Request__BodyCase)body, bytes));
	save(folder, "packet", "one-of-each");
}

/* Sessions that get far. */
static void session_seeds(const char *folder)
{
	uint8_t bytes[FUZZ_PACKET_BYTES];
	char name[32];

	for (unsigned seed = 0; seed < 8; seed++) {
		for (unsigned i = 0; i < 200; i++)
			add(FUZZ_REQUESTS, i % (4 + seed % 2), bytes,
			    fuzz_make_picks(1000 * seed + i * 7919, bytes));
		(void)snprintf(name, sizeof(name), "random-%u", seed);
		save(folder, "sessions", name);
	}
}

/* ---- Daemons ------------------------------------------------------------------------------------------- */

/* In the order in which fuzz_client_packet.c asks. */
static const Zd__Reply__BodyCase answers[] = {
        ZD__REPLY__BODY_HELLO,          ZD__REPLY__BODY_LIST,
        ZD__REPLY__BODY_UNIQUE_IDS,     ZD__REPLY__BODY_GROUP_JOIN,
        ZD__REPLY__BODY_UNIT_REGISTER,  ZD__REPLY__BODY__NOT_SET, /* update_begin, publish, set_persistent */
        ZD__REPLY__BODY__NOT_SET,       ZD__REPLY__BODY__NOT_SET,
        ZD__REPLY__BODY_GATHER,         ZD__REPLY__BODY_RELEASE,
        ZD__REPLY__BODY_BACKWARD_BEGIN, ZD__REPLY__BODY_BUCKET_CREATE,
        ZD__REPLY__BODY_BUCKET_RESERVE, ZD__REPLY__BODY__NOT_SET, /* bucket_submit, backward_end */
        ZD__REPLY__BODY__NOT_SET,       ZD__REPLY__BODY_STEP_BEGIN,
        ZD__REPLY__BODY__NOT_SET, /* step_end, bucket_destroy, commit */
        ZD__REPLY__BODY__NOT_SET,       ZD__REPLY__BODY__NOT_SET,
        ZD__REPLY__BODY_ALLOC,          ZD__REPLY__BODY__NOT_SET, /* free, session_reset, group_leave */
        ZD__REPLY__BODY__NOT_SET,       ZD__REPLY__BODY__NOT_SET,
};

static void daemon_seeds(const char *folder)
{
	uint8_t bytes[FUZZ_PACKET_BYTES];
	char name[32];

	for (unsigned variant = 0; variant < 8; variant++) {
		for (size_t i = 0; i < COUNT(answers); i++)
			add(FUZZ_REQUESTS, 0, bytes,
			    fuzz_reply(variant * 1000 + (unsigned)i, answers[i], bytes));
		(void)snprintf(name, sizeof(name), "session-%u", variant);
		save(folder, "client_packet", name);
	}
}

/* ---- Configurations ------------------------------------------------------------------------------------ */

static void config_seed(const char *folder, const char *name, const char *text)
{
	seed_nbytes = strlen(text);
	memcpy(seed_bytes, text, seed_nbytes);
	save(folder, "config", name);
}

static void config_seeds(const char *folder)
{
	config_seed(folder, "all",
	            "[daemon]\nsocket = /run/zerod/zerod.sock\nsocket_mode = 0660\nadmin_group = root\n"
	            "log_level = info\ndrain_timeout_s = 10\n[devices]\nbackend = host\ncount = 4\n"
	            "arena = 1.5G\ngather_budget = 512M\nstaging = 64MiB\nsegment = 0\n"
	            "[collectives]\nnccl = /usr/lib/libnccl.so.2\ncheck = yes\ntimeout_s = 60\n"
	            "[limits]\nuid_quota = 10T\nuid_unsent = 1M\nmax_sessions = 64\n");
	config_seed(folder, "comments", "; one\n# two\n[daemon] ; three\n  log_level : debug ; four\n\n");
	config_seed(folder, "odd",
	            "\xef\xbb\xbf[limits]\r\nmax_sessions=1\n continued\n[devices\ncount\n=\n[]\n");
}

/* ---- Packets as they are ------------------------------------------------------------------------------- */

static void unpack_seeds(const char *folder)
{
	static const uint8_t gather[] = {0, 0x08, 5, 0xc2, 0x02, 3, 0x08, 0xac, 0x02};
	static const uint8_t replies[] = {
	        1,    0x12, 2,    0x08, 5, /* without a body; a gather's; an error */
	        0x12, 7,    0x08, 6,    0xc2, 0x02, 2, 0x28, 1, 0x12, 8, 0x08, 7, 0x10, 5, 0x1a, 2, 'n', 'o'};

	memcpy(seed_bytes, gather, seed_nbytes = sizeof(gather));
	save(folder, "unpack", "request");
	memcpy(seed_bytes, replies, seed_nbytes = sizeof(replies));
	save(folder, "unpack", "replies");
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		(void)fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
		return 2;
	}
	client_seeds(argv[1]);
	session_seeds(argv[1]);
	daemon_seeds(argv[1]);
	config_seeds(argv[1]);
	unpack_seeds(argv[1]);
	return 0;
}
