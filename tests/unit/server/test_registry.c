/* SPDX-License-Identifier: Apache-2.0 */
/* test_registry.c - the file of the journal: what another daemon reads, and what it refuses. */
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "server/registry.h"
#include "tests/support/test.h"

#define HEADER_BYTES 4096
#define HALF         (HEADER_BYTES + (1L << 30)) /* where the first packet is: in the second half */
#define RECORDS      64                          /* bytes */
#define PACKETS      (2 * RECORDS + 3 * 16)      /* bytes of those in new_file() */

static uint8_t records[3][RECORDS];

static void fill_records(void)
{
	for (unsigned i = 0; i < 3; i++)
		memset(records[i], (int)i + 1, RECORDS);
}

/* By two packets. */
static void rewrite(struct zd_registry *registry, unsigned which)
{
	struct zd_err err;

	assert_int_equal(zd_registry_rewrite(registry, records[which], RECORDS / 2, &err), 0);
	assert_int_equal(zd_registry_rewrite(registry, records[which] + RECORDS / 2, RECORDS / 2, &err), 0);
}

static void replace(struct zd_registry *registry, unsigned which)
{
	zd_registry_begin(registry);
	rewrite(registry, which);
	zd_registry_switch(registry);
}

/* The file outlives the registry by its descriptor. */
static int leave(struct zd_registry *registry)
{
	int fd = dup(registry->fd);

	zd_registry_close(registry);
	return fd;
}

static int new_file(void)
{
	struct zd_registry registry;
	struct zd_err err;

	fill_records();
	assert_int_equal(zd_registry_new(&registry, &err), 0);
	assert_false(zd_registry_has_room(&registry, RECORDS)); /* nothing can be appended to nothing */
	replace(&registry, 0);
	assert_true(zd_registry_has_room(&registry, RECORDS));
	assert_false(zd_registry_is_full(&registry));
	zd_registry_append(&registry, records[1], RECORDS);
	return leave(&registry);
}

static void expect(int fd, const uint8_t *const *wanted, unsigned count)
{
	struct zd_registry registry;
	struct zd_err err;
	struct zd_registry_records read;

	assert_int_equal(zd_registry_open(&registry, dup(fd), &err), 0);
	assert_int_equal(zd_registry_read(&registry, &read, &err), 0);
	assert_int_equal(read.nbytes, count * RECORDS);
	for (unsigned i = 0; i < count; i++)
		assert_memory_equal(read.bytes + (size_t)i * RECORDS, wanted[i], RECORDS);
	zd_registry_records_free(&read);
	zd_registry_close(&registry);
}

static void expect_refused(int fd, const char *why)
{
	struct zd_registry registry;
	struct zd_err err;

	assert_int_equal(zd_registry_open(&registry, dup(fd), &err), ZEROD_E_INVALID);
	if (!strstr(err.text, why))
		fail_msg("expected '%s' in '%s'", why, err.text);
	assert_int_equal(registry.fd, -1);
}

TEST(test_reads_what_was_written)
{
	int fd = new_file();
	struct zd_registry registry;
	struct zd_err err;

	expect(fd, (const uint8_t *const[]){records[0], records[1]}, 2);
	/* Another daemon goes on with it, in the other half and then in the first one again. */
	assert_int_equal(zd_registry_open(&registry, dup(fd), &err), 0);
	assert_true(zd_registry_is_full(&registry));
	replace(&registry, 2);
	expect(fd, (const uint8_t *const[]){records[2]}, 1);
	zd_registry_append(&registry, records[0], RECORDS);
	replace(&registry, 1);
	zd_registry_close(&registry);
	expect(fd, (const uint8_t *const[]){records[1]}, 1);
	(void)close(fd);
}

/* A daemon that is killed while it writes all anew leaves what was in use. Events between have their records
 * in both halves. */
TEST(test_is_written_anew_in_parts)
{
	int fd = new_file();
	struct zd_registry registry;
	struct zd_err err;

	assert_int_equal(zd_registry_open(&registry, dup(fd), &err), 0);
	zd_registry_begin(&registry);
	rewrite(&registry, 2);
	zd_registry_append(&registry, records[1], RECORDS);
	rewrite(&registry, 0);
	expect(fd, (const uint8_t *const[]){records[0], records[1], records[1]}, 3);
	zd_registry_switch(&registry);
	expect(fd, (const uint8_t *const[]){records[2], records[1], records[0]}, 3);
	zd_registry_append(&registry, records[2], RECORDS);
	expect(fd, (const uint8_t *const[]){records[2], records[1], records[0], records[2]}, 4);
	zd_registry_close(&registry);
	(void)close(fd);
}

/* The memory of the former half is freed bit by bit. */
TEST(test_frees_what_was_replaced)
{
	static uint8_t large[1 << 20];
	struct zd_registry registry;
	struct zd_err err;
	struct stat before, after;

	fill_records();
	assert_int_equal(zd_registry_new(&registry, &err), 0);
	replace(&registry, 0);
	for (unsigned i = 0; i < 32; i++)
		zd_registry_append(&registry, large, sizeof(large));
	replace(&registry, 0);
	assert_int_equal(fstat(registry.fd, &before), 0);
	for (unsigned i = 0; i < 200; i++)
		zd_registry_append(&registry, records[1], RECORDS);
	assert_int_equal(fstat(registry.fd, &after), 0);
	assert_true(before.st_blocks * 512 > 32 << 20);
	assert_true(after.st_blocks * 512 < 1 << 20);
	zd_registry_close(&registry);
}

/* A daemon that was killed inside an append has left bytes behind the last packet. */
TEST(test_ignores_half_a_packet)
{
	int fd = new_file();
	uint64_t garbage = 7;

	assert_int_equal(pwrite(fd, &garbage, sizeof(garbage), HALF + PACKETS), 8);
	expect(fd, (const uint8_t *const[]){records[0], records[1]}, 2);
	(void)close(fd);
}

/* Every byte of the header's first words and of all packets matters. */
TEST(test_refuses_any_changed_byte)
{
	int fd = new_file();
	off_t end = HALF + PACKETS;
	uint8_t byte, changed;

	for (off_t at = 0; at < end; at = at == 15 ? HALF : at + 1) {
		struct zd_registry registry;
		struct zd_err err;

		assert_int_equal(pread(fd, &byte, 1, at), 1);
		changed = byte ^ 0x40;
		assert_int_equal(pwrite(fd, &changed, 1, at), 1);
		assert_int_equal(zd_registry_open(&registry, dup(fd), &err), ZEROD_E_INVALID);
		assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	}
	expect(fd, (const uint8_t *const[]){records[0], records[1]}, 2);
	(void)close(fd);
}

static void set_version(int fd, uint32_t version)
{
	uint32_t former, check;

	assert_int_equal(pread(fd, &former, sizeof(former), 8), 4);
	assert_int_equal(pread(fd, &check, sizeof(check), 12), 4);
	check ^= ~former ^ ~version;
	assert_int_equal(pwrite(fd, &version, sizeof(version), 8), 4);
	assert_int_equal(pwrite(fd, &check, sizeof(check), 12), 4);
}

TEST(test_refuses_other_versions)
{
	int fd = new_file();

	set_version(fd, 7);
	expect_refused(fd, "has version 7; this daemon reads 5 to 6");
	set_version(fd, 4);
	expect_refused(fd, "has version 4; this daemon reads 5 to 6");
	(void)close(fd);
}

/* The file has the newer version from the first record of this daemon on, and not before. */
TEST(test_reads_a_former_version)
{
	struct zd_registry registry;
	struct zd_err err;
	uint32_t version;
	int fd = new_file();

	for (unsigned i = 0; i < 2; i++) {
		set_version(fd, 5);
		expect(fd, (const uint8_t *const[]){records[0], records[1], records[2]}, 2 + i);
		assert_int_equal(pread(fd, &version, sizeof(version), 8), 4);
		assert_int_equal(version, 5);
		assert_int_equal(zd_registry_open(&registry, dup(fd), &err), 0);
		if (i == 0)
			zd_registry_append(&registry, records[2], RECORDS);
		else
			replace(&registry, 1);
		zd_registry_close(&registry);
		assert_int_equal(pread(fd, &version, sizeof(version), 8), 4);
		assert_int_equal(version, 6);
	}
	expect(fd, (const uint8_t *const[]){records[1]}, 1);
	(void)close(fd);
}

TEST(test_refuses_a_cut_file)
{
	int fd = memfd_create("cut", MFD_CLOEXEC);
	uint64_t used = UINT64_C(1) << 40;

	assert_int_equal(ftruncate(fd, HEADER_BYTES), 0);
	expect_refused(fd, "it is cut");
	(void)close(fd);
	fd = new_file();
	assert_int_equal(pwrite(fd, &used, sizeof(used), 16), 8);
	expect_refused(fd, "longer than its file");
	used = (RECORDS / 2 + 16 + 8) | 1;
	assert_int_equal(pwrite(fd, &used, sizeof(used), 16), 8);
	expect_refused(fd, "ends inside a packet");
	for (used = 0; used < 2; used++) {
		assert_int_equal(pwrite(fd, &used, sizeof(used), 16), 8);
		expect_refused(fd, "it has no records");
	}
	(void)close(fd);
}

TEST(test_is_given_up)
{
	struct zd_registry registry;
	struct zd_err err;
	int fd = new_file();

	assert_int_equal(zd_registry_open(&registry, dup(fd), &err), 0);
	zd_registry_give_up(&registry, "the store is gone");
	zd_registry_close(&registry);
	assert_int_equal(zd_registry_open(&registry, fd, &err), ZEROD_E_ABORTED);
	assert_string_equal(err.text, "the store is gone");
}

/* Appends are for what is small beside the first packet. */
TEST(test_is_full_some_day)
{
	struct zd_registry registry;
	struct zd_err err;
	unsigned count = 0;

	fill_records();
	assert_int_equal(zd_registry_new(&registry, &err), 0);
	replace(&registry, 0);
	for (; !zd_registry_is_full(&registry); count++)
		zd_registry_append(&registry, records[1], RECORDS);
	assert_in_range(count, 1000, 1000000);
	zd_registry_close(&registry);
}
