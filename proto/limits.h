/* SPDX-License-Identifier: Apache-2.0 */
/* limits.h - every limit of the protocol, in one place. Both sides enforce them; PROTOCOL.md explains
 * them. */
#ifndef ZD_PROTO_LIMITS_H
#define ZD_PROTO_LIMITS_H

#define ZD_PROTOCOL_VERSION 1u /* the only supported version */
#define ZD_DEFAULT_SOCKET   "/run/zerod/zerod.sock"

/* An object's id ends with its number, which people see and type. It counts the objects of one kind of one
 * uid; the bits above it differ for each kind and uid. */
#define ZD_ID_NUMBER_BITS 41u
#define ZD_ID_KIND_BITS   4u
#define ZD_ID_NUMBER(id)  ((unsigned long long)(id) & ((1ull << ZD_ID_NUMBER_BITS) - 1))
#define ZD_ID_OWNER(id)   ((unsigned long long)(id) >> (ZD_ID_NUMBER_BITS + ZD_ID_KIND_BITS))

#define ZD_MAX_PACKET_BYTES 65536u /* one SOCK_SEQPACKET message */
#define ZD_MAX_PACKET_FDS   8u     /* of one packet, and unread ones of one session */
#define ZD_MAX_BATCH        256u   /* requests in one packet */
#define ZD_MAX_FIELDS       1536u  /* of one request, with those of nested messages */
#define ZD_MAX_OUTSTANDING  1024u  /* requests of one session without a reply */
#define ZD_RELEASE_ROOM     1024u  /* more requests, if they are releases */
#define ZD_MAX_SESSIONS     1024u
#define ZD_MAX_DEVICES      64u

#define ZD_MAX_NAME_BYTES        63u  /* jobs, groups, sessions, allocations */
#define ZD_MAX_UNIT_NAME_BYTES   127u /* units and views */
#define ZD_MAX_TAG_BYTES         31u
#define ZD_RESERVED_TAG          '@' /* no client's tag begins with it */
#define ZD_MAX_WORLD             1024u
#define ZD_MAX_VIEWS             256u /* views of one unit */
#define ZD_MAX_DIMS              8u
#define ZD_MAX_SLOTS             4096u  /* highest slot number */
#define ZD_MAX_UNITS             65536u /* units of one group */
#define ZD_MAX_BUCKETS           64u    /* buckets of one rank */
#define ZD_MAX_BUCKET_SLOTS      16u
#define ZD_MAX_SCOPES            1024u        /* scopes, claims and contexts of one rank */
#define ZD_MAX_STEPS             256u         /* groups that session_reset's reply names */
#define ZD_MAX_FENCES            64u          /* fences in one request */
#define ZD_MAX_UNITS_PER_REQUEST 1024u        /* update_begin, publish, context_begin */
#define ZD_MAX_RESUMED           256u         /* units in one units_resume */
#define ZD_PIN_MS                10000u       /* for which readers' pins last, if they do not say */
#define ZD_MAX_RETIRED           1024u        /* segments in one segments_unmapped */
#define ZD_MAX_BYTES             (1ull << 50) /* of any one object; keeps every product below 2^63 */

#define ZD_MAX_UNIQUE_IDS      32u /* communicators of a group in one daemon */
#define ZD_UNIQUE_ID_BYTES     128u
#define ZD_UNIQUE_IDS_PER_RANK 2u   /* for gathers, for reductions */
#define ZD_ID_STAMP_BYTES      192u /* in front of the ids: authenticates them between daemons */

#define ZD_TIMELINES        1024u /* 64-bit counters of a session's fence page, which has 8 KiB */
#define ZD_FENCE_PAGE_BYTES (ZD_TIMELINES * 8ul)
#define ZD_FENCE_ABORTED    INT64_MAX /* stored into a timeline to free all waiting streams and threads */

/* The first timelines of the daemon's page: client streams wait for these only. */
#define ZD_AWAITED_TIMELINES (7u * ZD_MAX_DEVICES)

#define ZD_FEATURE_COLLECTIVES "collectives" /* in the daemon's hello: its groups may span daemons */

/* in both hellos: the session has a work channel and a result page. On emulated devices the daemon requests
 * no sums */
#define ZD_FEATURE_WORK       "sums"
#define ZD_FEATURE_WORK_AHEAD "work_ahead" /* in both: sums may precede their inputs, with fences */
#define ZD_FEATURE_RUN_AHEAD                                                                                 \
	"run_ahead"            /* in the client's hello: its streams may wait for sums not launched */
#define ZD_WORK_SLOTS      64u /* results in the page: pending works of one session */
#define ZD_WORK_SLOT_BYTES 64u
#define ZD_WORK_PAGE_BYTES (ZD_WORK_SLOTS * (unsigned long)ZD_WORK_SLOT_BYTES)

#define ZD_FEATURE_FRAMES "frames" /* in the client's hello: it maps buffers in place */
#define ZD_FEATURE_RINGS  "rings"  /* in both hellos: packets may also travel by shared memory (ring.h) */
#define ZD_RING_BYTES     16384u   /* of packets with their headers, in one direction */
#define ZD_RINGS_BYTES    69632ul  /* of a session's rings: whole pages */

enum zd_target_change { ZD_TARGET_KEEP, ZD_TARGET_TAKE, ZD_TARGET_NONE }; /* SetFrozen.target */

#define ZD_SHARD_ALIGN_BYTES 256u /* a shard's size is a multiple of this */
/* strict sessions: gathered buffers begin at a multiple of this and occupy whole multiples; on GPUs, whole
 * segments */
#define ZD_STRICT_ALIGN_BYTES 4096u

#endif
