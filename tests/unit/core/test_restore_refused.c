/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Journals that no engine restores: damaged ones, and those of other devices. The restore says what is wrong,
 * and the engine can be freed.
 */
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "core/engine/journal.h"
#include "tests/support/core_driver.h"

#define UNIT_BYTES 1024u /* of two ranks' shards */

/* A job with two units, an allocation and a process that lingers, and a copy of its journal. */
struct journaled {
	struct core_driver *core;
	struct core_team team;
	uint8_t *bytes;
	size_t nbytes;
};

static void setup(struct journaled *j, bool shadow)
{
	struct core_options options = {.sessions_linger = true};
	struct core_join join = {.world_size = 2, .durable = true, .shadow = shadow};
	struct zd_args alloc = {
	        .kind = ZD_REQ_ALLOC,
	        .u.alloc = {
	                .job = (char *)"job", .name = (char *)"adam", .bytes = UNIT_BYTES, .durable = true}};
	const struct core_view view = {.name = "w", .ndim = 1, .shape = {8}};
	const struct core_unit unit = {.name = "b", .numel = UNIT_BYTES / 4, .nviews = 1, .views = &view};
	uint64_t request[2];
	*j = (struct journaled){.core = core_new(&options)};
	core_journal(j->core);
	j->team = (struct core_team){.core = j->core, .world_size = 2, .nranks = 2};
	for (join.rank = join.device = 0; join.rank < 2; join.rank++, join.device++) {
		j->team.session[join.rank] = core_open(j->core, CORE_ALICE);
		request[join.rank] = core_join(j->core, j->team.session[join.rank], &join);
	}
	for (uint32_t rank = 0; rank < 2; rank++)
		j->team.group = core_expect(j->core, request[rank], 0)->u.group_join.group;
	(void)core_team_unit(&j->team, "a", UNIT_BYTES);
	(void)core_team_register(&j->team, &unit);
	core_expect(j->core, core_send(j->core, j->team.session[0], &alloc), 0);
	core_close(j->core, j->team.session[1]);
	const uint8_t *bytes = core_journal_bytes(j->core, &j->nbytes);
	j->bytes = memcpy(zd_calloc(1, j->nbytes), bytes, j->nbytes);
}

static void teardown(struct journaled *j)
{
	free(j->bytes);
	core_end(j->core);
}

/* The nth record of the type from the journal's end. */
static void *find_nth(const struct journaled *j, enum zd_record_type type, uint32_t n)
{
	struct zd_record *found[1024] = {NULL};
	uint32_t nfound = 0;
	for (size_t at = 0; at < j->nbytes;) {
		struct zd_record *record = (void *)(j->bytes + at);
		if (record->type == type && nfound < ZD_ARRAY_LEN(found))
			found[nfound++] = record;
		at += record->bytes;
	}
	assert_true(n < nfound);
	return found[nfound - n - 1];
}

static void *find(const struct journaled *j, enum zd_record_type type)
{
	return find_nth(j, type, 0);
}

static void expect_refused_trial(struct journaled *j, struct core_trial trial, const char *text)
{
	struct zd_err err = ZD_ERR_NONE;
	if (!trial.nbytes)
		trial.nbytes = j->nbytes;
	trial.bytes = j->bytes;
	assert_int_equal(core_try_restore(j->core, &trial, &err), ZEROD_E_INVALID);
	if (!strstr(err.text, text))
		fail_msg("the error is: %s", err.text);
}

static void expect_refused(struct journaled *j, const char *text)
{
	expect_refused_trial(j, (struct core_trial){0}, text);
}

static void expect_restored(struct journaled *j)
{
	struct zd_err err = ZD_ERR_NONE;
	struct core_trial trial = {.bytes = j->bytes, .nbytes = j->nbytes};
	if (core_try_restore(j->core, &trial, &err) != 0)
		fail_msg("the error is: %s", err.text);
}

/* Runs the statement on a whole journal. */
#define DAMAGED(statement, text)                                                                             \
	do {                                                                                                 \
		struct journaled j;                                                                          \
		setup(&j, false);                                                                            \
		expect_restored(&j);                                                                         \
		statement;                                                                                   \
		expect_refused(&j, text);                                                                    \
		teardown(&j);                                                                                \
	} while (0)

#define RECORD(type, TYPE) ((struct zd_record_##type *)find(&j, ZD_RECORD_##TYPE))

TEST(test_records_of_wrong_types_and_sizes)
{
	DAMAGED(RECORD(job, JOB)->record.type = ZD_NRECORDS, "its type is unknown");
	DAMAGED(RECORD(job, JOB)->record.type = 0, "its type is unknown");
	DAMAGED(RECORD(job, JOB)->record.bytes += 8, "its size is wrong");
	DAMAGED(RECORD(job, JOB)->record.bytes = 0, "its size is wrong");
	DAMAGED(RECORD(unit, UNIT)->nviews++, "its size is wrong");
	DAMAGED(RECORD(unit, UNIT)->nviews = UINT32_MAX, "its size is wrong");
	DAMAGED(RECORD(holds, HOLDS)->nholds = UINT32_MAX, "its size is wrong");
	DAMAGED(RECORD(job, JOB)->record.id = 0, "it has no such id");
	DAMAGED(RECORD(job, JOB)->record.index = 1, "it has no such id");
	DAMAGED(RECORD(group, GROUP)->record.id = UINT64_MAX, "it has no such id");
}

/* A journal that ends at any byte is refused, or ends between two records. */
#define FILL(name) memset(name, 'x', sizeof(name))

TEST(test_names_without_an_end)
{
	static const char no_end[] = "a name of it has no end";
	DAMAGED(FILL(RECORD(job, JOB)->name), no_end);
	DAMAGED(FILL(RECORD(group, GROUP)->name), no_end);
	DAMAGED(FILL(RECORD(unit, UNIT)->name), no_end);
	DAMAGED(FILL(RECORD(unit, UNIT)->views[0].name), no_end);
	DAMAGED(FILL(RECORD(allocation, ALLOCATION)->name), no_end);
}

TEST(test_a_cut_journal)
{
	struct journaled j;
	setup(&j, true);
	size_t whole = 0;
	for (size_t nbytes = 1; nbytes < j.nbytes; nbytes++) {
		const struct zd_record *record = (void *)(j.bytes + whole);
		if (nbytes == whole + record->bytes)
			whole = nbytes;
		else if (nbytes - whole < sizeof(*record))
			expect_refused_trial(&j, (struct core_trial){.nbytes = nbytes},
			                     "ends inside a record");
		else
			expect_refused_trial(&j, (struct core_trial){.nbytes = nbytes}, "its size is wrong");
	}
	teardown(&j);
}

TEST(test_other_devices)
{
	struct journaled j;
	setup(&j, false);
	expect_refused_trial(&j, (struct core_trial){.device_name = "H200"},
	                     "the journal's device 0.0: it was device0 and is H200");
	expect_refused_trial(&j, (struct core_trial){.ndevices = 1},
	                     "the journal's device 1.0: it was device1 and is not there");
	expect_refused_trial(&j, (struct core_trial){.arena_bytes = 4096},
	                     "the durable segments of device 0 are larger than its arena, 4096 bytes");
	teardown(&j);
}

TEST(test_jobs_groups_and_ranks_that_do_not_fit)
{
	DAMAGED(RECORD(group, GROUP)->world_size = 0, "its sizes are wrong");
	DAMAGED(RECORD(group, GROUP)->world_size = ZD_MAX_WORLD + 1, "its sizes are wrong");
	DAMAGED(RECORD(group, GROUP)->local_world_size = 0, "its sizes are wrong");
	DAMAGED(RECORD(group, GROUP)->local_world_size = 3, "its sizes are wrong");
	DAMAGED(RECORD(group, GROUP)->first_rank = 2, "its sizes are wrong");
	DAMAGED(RECORD(member, MEMBER)->device = 2, "it has no such rank or device");
	DAMAGED(RECORD(member, MEMBER)->record.index = 2, "it has no such rank or device");
}

TEST(test_units_and_parts_that_do_not_fit)
{
	DAMAGED(RECORD(unit, UNIT)->numel = 0, "numel 0 is not in 1");
	DAMAGED(RECORD(unit, UNIT)->numel = UINT64_MAX, "is not in 1");
	DAMAGED(RECORD(unit, UNIT)->dtype = 99, "unknown dtype 99");
	DAMAGED(RECORD(unit, UNIT)->slot = UINT32_MAX, "slot 4294967295");
	DAMAGED(RECORD(unit, UNIT)->first_rank = 2, "it has no such rank");
	DAMAGED(RECORD(unit, UNIT)->views[0].ndim = 99, "has 99 dimensions");
	DAMAGED(RECORD(unit, UNIT)->views[0].offset_numel = 99999, "ends behind the unit's");
	DAMAGED(RECORD(unit, UNIT)->name[0] = 'a', "another one has its name"); /* it was "b" */
	DAMAGED(RECORD(unit, UNIT)->numel *= 2, "it does not fit its unit");
	DAMAGED(RECORD(part, PART)->record.index = 2, "it does not fit its unit");
	DAMAGED(RECORD(part, PART)->now.shadow = 1, "it does not fit its unit");
	DAMAGED(RECORD(part, PART)->now.shadow = 99, "it does not fit its unit");
	DAMAGED(RECORD(part_state, PART_STATE)->now.shadow = 99, "it does not fit its unit");
	DAMAGED(RECORD(part_state, PART_STATE)->now.uncommitted = 99, "it does not fit its unit");
	DAMAGED(RECORD(part, PART)->shard.bytes -= 256, "it does not fit its unit");
}

/* Gives two units' shards of one rank the same memory. */
static void overlap(struct journaled *j)
{
	struct zd_record_part *last = find(j, ZD_RECORD_PART), *other = last;
	for (uint32_t n = 1; other->record.id == last->record.id || other->record.index != last->record.index;
	     n++)
		other = find_nth(j, ZD_RECORD_PART, n);
	assert_true(last->shard.segment == other->shard.segment && last->shard.offset != other->shard.offset);
	last->shard.offset = other->shard.offset;
}

TEST(test_memory_that_is_not_there)
{
	static const char not_there[] = "its memory is not there, or is another's too";
	DAMAGED(RECORD(part, PART)->shard.offset += 1, not_there);
	DAMAGED(RECORD(part, PART)->shard.offset = UINT64_MAX - 255, not_there);
	DAMAGED(RECORD(part, PART)->shard.offset += 64 * CORE_MIB, not_there);
	DAMAGED(RECORD(part, PART)->shard.segment = 99, not_there);
	DAMAGED(RECORD(allocation, ALLOCATION)->extent.bytes = 0, not_there);
	DAMAGED(RECORD(allocation, ALLOCATION)->extent.bytes = UINT64_MAX - 255, not_there);
	DAMAGED(RECORD(allocation, ALLOCATION)->extent.segment = RECORD(part, PART)->shard.segment,
	        not_there);
	DAMAGED(RECORD(allocation, ALLOCATION)->device = 1, not_there);
	DAMAGED(RECORD(allocation, ALLOCATION)->device = 2, "it has no such device");
	DAMAGED(RECORD(member, MEMBER)->device = 0, not_there); /* rank 1's: its shards are elsewhere */
	DAMAGED(RECORD(segment, SEGMENT)->bytes *= 2, "was not kept");
	DAMAGED(RECORD(segment, SEGMENT)->bytes += 1, "no multiple of the device's");
	DAMAGED(RECORD(segment, SEGMENT)->bytes = 0, "its size, device or purpose is wrong");
	DAMAGED(RECORD(segment, SEGMENT)->device = 9, "its size, device or purpose is wrong");
	DAMAGED(RECORD(segment, SEGMENT)->purpose = 99, "its size, device or purpose is wrong");
	DAMAGED(RECORD(segment, SEGMENT)->record.id = 99, "segment 99 of");
	DAMAGED(overlap(&j), not_there);
}

/* With one damaged byte, a journal is restored or refused. */
TEST(test_any_damaged_byte)
{
	static const uint8_t damages[] = {0x01, 0x80, 0xff};
	for (uint32_t shadow = 0; shadow < 2; shadow++) {
		struct journaled j;
		setup(&j, shadow);
		for (size_t at = 0; at < j.nbytes; at++) {
			for (size_t i = 0; i < sizeof(damages); i++) {
				struct zd_err err = ZD_ERR_NONE;
				struct core_trial trial = {
				        .bytes = j.bytes, .nbytes = j.nbytes, .damaged = true};
				j.bytes[at] ^= damages[i];
				int status = core_try_restore(j.core, &trial, &err);
				assert_true(status == 0 || (status == ZEROD_E_INVALID && err.text[0]));
				j.bytes[at] ^= damages[i];
			}
		}
		teardown(&j);
	}
}
