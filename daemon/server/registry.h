/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registry.h - a memory file with the engine's journal, which outlives the daemon.
 *
 * The file has a header and two halves, one of which is in use. A half has packets: first packets with all
 * records, then one packet with the records of each event. A packet counts when the header's `used` includes
 * it. `used` is stored after the packet's bytes: after a kill the file has either all of a packet or none of
 * it. When a half is full, all records are written into the other half, in several packets, and both halves
 * receive the records of the events in between. Then the other half is in use. A daemon that cannot store its
 * state any more marks the registry, because segments that change without records would mix two steps.
 */
#ifndef ZD_SERVER_REGISTRY_H
#define ZD_SERVER_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct zd_err;
struct zd_registry_header;

struct zd_registry {
	int fd; /* -1: closed */
	struct zd_registry_header *header;
	uint8_t *halves;
	uint64_t full_bytes; /* beyond this the other half is started */
	bool rewriting;
	uint64_t next_bytes,
	        next_all_bytes; /* rewriting: of the other half, and of these all without events */
	/* the memory of the half that is not in use, to be freed from `free_at` on */
	uint64_t free_at, free_end;
};

/* The concatenated records of all packets. */
struct zd_registry_records {
	uint8_t *map; /* half of the file, with private pages if it was changed; NULL: none */
	size_t map_bytes;
	const uint8_t *bytes;
	size_t nbytes;
};

/* Makes an empty registry. Errors: NO_MEMORY, SYSTEM. */
int zd_registry_new(struct zd_registry *registry, struct zd_err *err) __attribute__((warn_unused_result));
/* Opens another daemon's registry, and takes ownership of `fd`, also on failure. INVALID, with the reason: it
 * is damaged, truncated, without records, or of another version. ABORTED, with the reason: that daemon has
 * given it up. */
int zd_registry_open(struct zd_registry *registry, int fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* No daemon restores from it any more. */
void zd_registry_give_up(struct zd_registry *registry, const char *why);
void zd_registry_close(struct zd_registry *registry);

/* Errors: NO_MEMORY, SYSTEM. */
int zd_registry_read(const struct zd_registry *registry, struct zd_registry_records *records,
                     struct zd_err *err) __attribute__((warn_unused_result));
void zd_registry_records_free(struct zd_registry_records *records);

/* Whether the records of an event fit. If they do not, all records are rewritten first. */
bool zd_registry_has_room(const struct zd_registry *registry, size_t nbytes);
/* Appends the records of an event. */
void zd_registry_append(struct zd_registry *registry, const uint8_t *bytes, size_t nbytes);

/* Whether it is time to rewrite all records. */
bool zd_registry_is_full(const struct zd_registry *registry);
/* Starts the other half, and discards its content. */
void zd_registry_begin(struct zd_registry *registry);
/* Appends some of all records to the other half. Errors: LIMIT: they do not fit. */
int zd_registry_rewrite(struct zd_registry *registry, const uint8_t *bytes, size_t nbytes, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The other half has all records, and is in use from now on. */
void zd_registry_switch(struct zd_registry *registry);

#endif
