/* SPDX-License-Identifier: Apache-2.0 */
/* registry.c - a memory file with the engine's journal. */
#include "server/registry.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "core/engine.h"
#include "executor/memfd.h"

#define MAGIC        UINT64_C(0x79727473676572FF) /* "\xffregstry" */
#define HEADER_BYTES 4096u
#define HALF_BYTES   (UINT64_C(1) << 30) /* sparse: only written pages need memory */
#define FILE_BYTES   (HEADER_BYTES + 2 * HALF_BYTES)
/* The other half is started when the records of events need this many bytes and as many as all records. If
 * these are few, the appended records remain within the processor's caches. */
#define ROOM_BYTES  (UINT64_C(256) << 10)
#define FREED_BYTES (UINT64_C(256) << 10) /* with one append */

struct zd_registry_header {
	uint64_t magic;
	union format {
		struct {
			uint32_t version; /* ZD_JOURNAL_VERSION */
			uint32_t check;   /* of the two before */
		};
		uint64_t word; /* a kill leaves the old or the new one */
	} format;
	/* The bytes in use of half 0, or of half 1 with the lowest bit set; packets are multiples of 8. One
	 * word, so that a kill leaves the old or the new value. */
	_Atomic uint64_t used;
	_Atomic uint64_t given_up; /* not 0: the daemon could not store its state any more */
	char why[ZD_ERR_TEXT_BYTES];
};

struct packet {
	uint64_t bytes; /* of the records */
	uint64_t hash;
};

/* Any change of one word changes the result: each round is a bijection in the word and in the hash. */
static uint64_t hash_of(const uint8_t *bytes, size_t nbytes)
{
	uint64_t hash = nbytes + 1, word;

	for (size_t at = 0; at < nbytes; at += sizeof(word)) {
		memcpy(&word, bytes + at, sizeof(word));
		hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
		hash ^= hash >> 32;
	}
	return hash;
}

static uint32_t header_check(const struct zd_registry_header *header)
{
	return (uint32_t)(header->magic >> 32) ^ ~header->format.version;
}

static uint8_t *half_of(const struct zd_registry *registry, uint64_t used)
{
	return registry->halves + (used & 1) * HALF_BYTES;
}

static int map(struct zd_registry *registry, struct zd_err *err)
{
	uint8_t *base = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
	                     registry->fd, 0);

	if (base == MAP_FAILED)
		return zd_err_errno(err, errno, "mapping the registry");
	(void)madvise(base, FILE_BYTES, MADV_DONTDUMP);
	registry->header = (struct zd_registry_header *)(void *)base;
	registry->halves = base + HEADER_BYTES;
	return 0;
}

/* Before the first record of this version: a daemon that does not know it refuses the file then. */
static void set_version(struct zd_registry_header *header)
{
	union format format = {{ZD_JOURNAL_VERSION, (uint32_t)(MAGIC >> 32) ^ ~ZD_JOURNAL_VERSION}};

	if (header->format.version != format.version)
		__atomic_store_n(&header->format.word, format.word, __ATOMIC_SEQ_CST);
}

int zd_registry_new(struct zd_registry *registry, struct zd_err *err)
{
	*registry = (struct zd_registry){.fd = -1};
	int rc = zd_memfd_new("zerod-registry", FILE_BYTES, &registry->fd, err);
	if (rc == 0)
		rc = zd_memfd_seal(registry->fd, 0, err);
	if (rc == 0)
		rc = map(registry, err);
	if (rc) {
		zd_registry_close(registry);
		return rc;
	}
	registry->header->magic = MAGIC;
	set_version(registry->header);
	return 0;
}

/* A daemon that does not know `given_up` refuses the header. */
void zd_registry_give_up(struct zd_registry *registry, const char *why)
{
	struct zd_registry_header *header = registry->header;

	if (!header)
		return;
	(void)snprintf(header->why, sizeof(header->why), "%s", why);
	atomic_store(&header->given_up, 1);
	header->format.check = ~header_check(header);
}

void zd_registry_close(struct zd_registry *registry)
{
	if (registry->header)
		(void)munmap(registry->header, FILE_BYTES);
	if (registry->fd >= 0)
		(void)close(registry->fd);
	*registry = (struct zd_registry){.fd = -1};
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

static int check_packets(const struct zd_registry *registry, struct zd_err *err)
{
	uint64_t used = atomic_load(&registry->header->used), end = used & ~UINT64_C(7);
	const uint8_t *half = half_of(registry, used);
	struct packet packet;

	if (end == 0)
		return zd_err_set(err, ZEROD_E_INVALID, "the registry is damaged: it has no records");
	if (end > HALF_BYTES)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "the registry is damaged: it is longer than its file");
	for (uint64_t at = 0; at < end; at += sizeof(packet) + packet.bytes) {
		if (end - at < sizeof(packet))
			return zd_err_set(err, ZEROD_E_INVALID, "the registry ends inside a packet");
		memcpy(&packet, half + at, sizeof(packet));
		if (packet.bytes % 8 != 0 || packet.bytes > end - at - sizeof(packet))
			return zd_err_set(err, ZEROD_E_INVALID,
			                  "the registry is damaged: the size of the packet at %llu is wrong",
			                  (unsigned long long)at);
		if (hash_of(half + at + sizeof(packet), packet.bytes) != packet.hash)
			return zd_err_set(
			        err, ZEROD_E_INVALID,
			        "the registry is damaged: the bytes of the packet at %llu are wrong",
			        (unsigned long long)at);
	}
	return 0;
}

static int check(const struct zd_registry *registry, struct zd_err *err)
{
	const struct zd_registry_header *header = registry->header;

	if (header->magic == MAGIC && atomic_load(&header->given_up))
		return zd_err_set(err, ZEROD_E_ABORTED, "%.*s", (int)sizeof(header->why) - 1, header->why);
	if (header->magic != MAGIC || header->format.check != header_check(header))
		return zd_err_set(err, ZEROD_E_INVALID, "the registry is damaged: its header is wrong");
	if (header->format.version < ZD_FIRST_JOURNAL_VERSION || header->format.version > ZD_JOURNAL_VERSION)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "the registry has version %u; this daemon reads %u to %u",
		                  header->format.version, ZD_FIRST_JOURNAL_VERSION, ZD_JOURNAL_VERSION);
	return check_packets(registry, err);
}

int zd_registry_open(struct zd_registry *registry, int fd, struct zd_err *err)
{
	struct stat found;
	int rc = 0;

	*registry = (struct zd_registry){.fd = fd};
	if (fstat(fd, &found) < 0)
		rc = zd_err_errno(err, errno, "the registry");
	else if ((uint64_t)found.st_size != FILE_BYTES)
		rc = zd_err_set(err, ZEROD_E_INVALID, "the registry has %lld bytes, not %llu: it is cut",
		                (long long)found.st_size, (unsigned long long)FILE_BYTES);
	if (rc == 0)
		rc = map(registry, err);
	if (rc == 0)
		rc = check(registry, err);
	if (rc)
		zd_registry_close(registry);
	return rc;
}

/* The pages are private. If records are moved over a packet's head, the page becomes this process's, and the
 * file does not change. */
int zd_registry_read(const struct zd_registry *registry, struct zd_registry_records *records,
                     struct zd_err *err)
{
	uint64_t used = atomic_load(&registry->header->used), end = used & ~UINT64_C(7);
	struct packet packet;
	uint8_t *map, *to;

	*records = (struct zd_registry_records){0};
	map = mmap(NULL, end, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, registry->fd,
	           (off_t)(HEADER_BYTES + (used & 1) * HALF_BYTES));
	if (map == MAP_FAILED)
		return zd_err_errno(err, errno, "mapping the registry");
	to = map + sizeof(packet);
	for (uint64_t at = 0; at < end; at += sizeof(packet) + packet.bytes) {
		memcpy(&packet, map + at, sizeof(packet));
		if (at > 0)
			memmove(to, map + at + sizeof(packet), packet.bytes);
		to += packet.bytes;
	}
	*records = (struct zd_registry_records){.map = map,
	                                        .map_bytes = end,
	                                        .bytes = map + sizeof(packet),
	                                        .nbytes = (size_t)(to - map) - sizeof(packet)};
	return 0;
}

void zd_registry_records_free(struct zd_registry_records *records)
{
	if (records->map)
		(void)munmap(records->map, records->map_bytes);
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

static void write_packet(uint8_t *at, const uint8_t *bytes, size_t nbytes)
{
	struct packet packet = {.bytes = nbytes, .hash = hash_of(bytes, nbytes)};

	memcpy(at, &packet, sizeof(packet));
	memcpy(at + sizeof(packet), bytes, nbytes);
}

static uint64_t used_bytes(const struct zd_registry *registry)
{
	return atomic_load(&registry->header->used) & ~UINT64_C(7);
}

static uint64_t other_half(const struct zd_registry *registry)
{
	return ~atomic_load(&registry->header->used) & 1;
}

bool zd_registry_has_room(const struct zd_registry *registry, size_t nbytes)
{
	uint64_t used = zd_max_u64(used_bytes(registry), registry->rewriting ? registry->next_bytes : 0);

	return used_bytes(registry) > 0 && nbytes + sizeof(struct packet) <= HALF_BYTES - used;
}

bool zd_registry_is_full(const struct zd_registry *registry)
{
	return used_bytes(registry) > registry->full_bytes;
}

/* Frees some memory of the half that is not in use. Freeing all at once would take milliseconds of the
 * loop. */
static void free_some(struct zd_registry *registry)
{
	uint64_t nbytes = zd_min_u64(FREED_BYTES, registry->free_end - registry->free_at);

	if (nbytes == 0)
		return;
	(void)fallocate(registry->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
	                (off_t)(HEADER_BYTES + other_half(registry) * HALF_BYTES + registry->free_at),
	                (off_t)nbytes);
	registry->free_at += nbytes;
}

static void append_next(struct zd_registry *registry, const uint8_t *bytes, size_t nbytes)
{
	uint8_t *half = registry->halves + other_half(registry) * HALF_BYTES;

	write_packet(half + registry->next_bytes, bytes, nbytes);
	registry->next_bytes += sizeof(struct packet) + nbytes;
}

void zd_registry_append(struct zd_registry *registry, const uint8_t *bytes, size_t nbytes)
{
	uint64_t used = atomic_load(&registry->header->used);

	zd_assert(nbytes % 8 == 0 && zd_registry_has_room(registry, nbytes));
	set_version(registry->header);
	write_packet(half_of(registry, used) + (used & ~UINT64_C(7)), bytes, nbytes);
	atomic_store(&registry->header->used, used + sizeof(struct packet) + nbytes);
	if (registry->rewriting)
		append_next(registry, bytes, nbytes);
	else
		free_some(registry);
}

void zd_registry_begin(struct zd_registry *registry)
{
	registry->rewriting = true;
	registry->next_bytes = registry->next_all_bytes = 0;
}

int zd_registry_rewrite(struct zd_registry *registry, const uint8_t *bytes, size_t nbytes, struct zd_err *err)
{
	uint64_t needed = sizeof(struct packet) + nbytes;

	zd_assert(registry->rewriting && nbytes % 8 == 0);
	if (registry->next_all_bytes + needed > HALF_BYTES / 2 || registry->next_bytes + needed > HALF_BYTES)
		return zd_err_set(err, ZEROD_E_LIMIT,
		                  "%llu bytes of state do not fit the registry, %llu bytes",
		                  (unsigned long long)(registry->next_all_bytes + nbytes),
		                  (unsigned long long)HALF_BYTES / 2);
	append_next(registry, bytes, nbytes);
	registry->next_all_bytes += needed;
	return 0;
}

void zd_registry_switch(struct zd_registry *registry)
{
	uint64_t former = used_bytes(registry);

	zd_assert(registry->rewriting);
	set_version(registry->header);
	atomic_store(&registry->header->used, registry->next_bytes | other_half(registry));
	registry->rewriting = false;
	registry->full_bytes = registry->next_bytes + registry->next_all_bytes + ROOM_BYTES;
	/* The start of the half remains: it is written next, without page faults. */
	registry->free_at = ROOM_BYTES;
	registry->free_end = zd_max_u64(former, ROOM_BYTES);
}
