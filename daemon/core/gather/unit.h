/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit.h - units, and the parts that ranks have of them.
 */
#ifndef ZD_CORE_GATHER_UNIT_H
#define ZD_CORE_GATHER_UNIT_H

#include "core/engine/objects.h"
#include "core/memory/pool.h"

struct zd_await;
struct zd_buffer;
struct zd_collective;
struct zd_copied_unit;
struct zd_landing;
struct zd_move;
struct zd_save;

enum zd_part_state {
	ZD_PART_ABSENT,
	ZD_PART_FILLING, /* the shard is being zeroed */
	ZD_PART_IDLE,
	ZD_PART_UPDATE_WAIT, /* update_begin waits for readers; new gathers wait */
	ZD_PART_UPDATING,
	ZD_PART_LOADING,    /* UPDATING, and a unit_load writes the shard or is about to */
	ZD_PART_PUBLISHING, /* waits for the writers' fences */
	ZD_PART_MOVING,     /* the unit is being moved; new gathers wait; place.c */
	ZD_PART_DETACHED,   /* its session has ended and the shard remains: of a durable job, or for others */
	ZD_PART_DYING,      /* freed when the last reader ends */
};

/* The list of its rank that a part is in; commit.h. */
enum zd_part_listed {
	ZD_PART_UNLISTED,
	ZD_PART_UNCOMMITTED, /* written after the last commit */
	ZD_PART_OWED,        /* yet to be restored to the last commit */
};

/* A rank's part of a unit: its shard and its gathered buffer. A rank can have 10^5 parts: keep the struct
 * small. */
struct zd_part {
	struct zd_unit *unit;
	struct zd_extent shard;   /* followed by its shadow */
	struct zd_buffer *buffer; /* the gathered buffer, INFLIGHT or AVAILABLE; NULL: NOT_AVAILABLE */
	uint64_t version;         /* of the shard */
	/* version at registration, which was not published. Gathers do not read it */
	uint64_t first;
	/* version at the last commit in which it took part; commit.h */
	uint64_t committed;
	uint32_t ncommits; /* the group's number of commits then */
	/* the group's number of commits when the FREE shadow ceased to hold the last one; save.c */
	uint32_t shadow_until;
	uint32_t rank;
	uint32_t readers;        /* copies that read the shard, its fill, its viewers, and holds */
	uint32_t viewers;        /* of these: buffers in place that the rank's streams can read; in_place.c */
	uint32_t shadow_readers; /* copies that read the shadow; control/read.c */
	uint32_t slot;           /* the slot into which the part is gathered; only while it is registered */
	uint32_t users;          /* waiting requests and reductions that refer to it: prevent an unregister */
	uint32_t target_accesses; /* by the rank's streams, to its place in the target; lent_target.c */
	uint8_t state;
	uint8_t shadow; /* enum zd_shadow_state, after the commits that it has not missed */
	uint8_t listed; /* enum zd_part_listed */
	bool early : 1; /* an update was granted before its readers' end: neither publish nor load proceeds */
	bool shadow_unpublished : 1; /* the FREE shadow has content that was not published */
	bool persistent : 1;
	bool target_lent : 1;     /* the rank's streams can access its place in the target; lent_target.c */
	bool frozen : 1;          /* as the unit's, unless the rank has changed the part's */
	bool untargeted : 1;      /* it has no place in the rank's target: sums have memory of their own */
	struct zd_scope *context; /* the user context that has the part, or NULL */
	struct zd_storage *sum;   /* the last sum of an untargeted part, or NULL; target.c */
	LIST_HEAD(, zd_await) awaits; /* PUBLISHING: transfers that wait for the new version; deferred.h */
	struct zd_collective *collective; /* collective.h; NULL if gathers are not collective */
	LIST_ENTRY(zd_part) member_link;  /* while the rank has it */
	LIST_ENTRY(zd_part) commit_link;  /* list according to `listed` */
};

/* Returns the number of elements of a view that has been checked. */
static inline uint64_t zd_view_numel(const Zd__View *view)
{
	uint64_t numel = 1;
	for (size_t i = 0; i < view->n_shape; i++)
		numel *= view->shape[i];
	return numel;
}

struct zd_unit {
	uint64_t id;
	char *name;
	struct zd_group *group;
	enum zerod_dtype dtype;
	uint64_t numel, shard_numel;
	uint64_t description; /* digest of the name and all properties that ranks must agree on; resume.c */
	uint32_t slot;        /* the initial slot of its parts; `frozen` is also the initial one */
	bool frozen;
	bool all_reduce;    /* its place in a target is the whole unit, on every rank */
	bool copied;        /* it is never gathered in place */
	bool unsaved;       /* updates do not save its shards for pins; save.c */
	bool in_place;      /* its shards are padded to whole granules, and have segments of their own */
	bool on_host;       /* its shards are in the host memory of their ranks' devices */
	bool first_on_host; /* by its description */
	bool is_former;     /* the unit is in the group's table `former` */
	uint32_t nviews;
	uint32_t metadata_bytes;
	Zd__View **views;       /* copies, each in one piece; within the unit's elements */
	uint32_t first_rank;    /* the rank that described it */
	uint32_t refs;          /* parts not ABSENT, buffers, reductions, registrations */
	uint32_t registrations; /* registrations that have not ended */
	uint32_t era;           /* of its shards; changes when a version can be published a second time */
	char *mismatch; /* a rank described it differently: both descriptions, until that rank agrees */
	uint32_t mismatch_rank;
	uint64_t target_offset_numel;
	LIST_HEAD(, zd_landing) landings; /* of its shards; landing.h */
	struct zd_load *load;             /* in progress; NULL: none; load.c */
	struct zd_move *move;             /* in progress; NULL: none; place.c */
	bool targeted;                    /* the unit has its place in the flat target */
	bool laid_out;                    /* a part of the unit has had a shard */
	bool placed;                      /* it was moved: ranks can register it with either place */
	bool unready;                     /* it forbids a commit */
	struct zd_part *parts;            /* local_world_size */
	struct zd_save **saves;           /* by rank; NULL if no shard was ever saved; save.h */
	struct zd_copied_unit *host_copy; /* in the group's complete host copy; NULL: it is not there */
	struct zd_id_node listed;
	struct zd_hash_node by_id, by_name;
	uint64_t version_hash; /* its share of the group's `versions_hash` */
	TAILQ_ENTRY(zd_unit) unready_link;
	TAILQ_ENTRY(zd_unit) group_link; /* of the group's units, or former units */
	TAILQ_ENTRY(zd_unit) place_link; /* of the group's places, if it is targeted */
};

static inline uint64_t zd_unit_shard_bytes(const struct zd_unit *unit)
{
	return unit->shard_numel * zerod_dtype_bytes(unit->dtype);
}

static inline uint64_t zd_unit_padded_bytes(const struct zd_unit *unit)
{
	return unit->group->nshards * zd_unit_shard_bytes(unit);
}

/* Returns the number of the unit's elements in a rank's target. */
static inline uint64_t zd_unit_target_numel(const struct zd_unit *unit)
{
	return unit->shard_numel * (unit->all_reduce ? unit->group->nshards : 1);
}

/* Returns the location of the rank's shard, without the shadow. */
static inline struct zd_location zd_part_location(const struct zd_part *part)
{
	struct zd_location location = zd_extent_location(&part->shard);
	location.bytes = zd_unit_shard_bytes(part->unit);
	return location;
}

/* Whether the rank has no shard, or only transfers in progress still use the shard. */
static inline bool zd_part_is_gone(const struct zd_part *part)
{
	return part->state == ZD_PART_ABSENT || part->state == ZD_PART_DYING;
}

/* Whether the rank has registered the part, or is registering it. A shard that is only still read, or
 * retained for a durable job, is not registered. */
static inline bool zd_part_is_registered(const struct zd_part *part)
{
	return !zd_part_is_gone(part) && part->state != ZD_PART_DETACHED;
}

/* Whether the rank has registered the part, and its shard is zeroed. */
static inline bool zd_part_is_complete(const struct zd_part *part)
{
	return zd_part_is_registered(part) && part->state != ZD_PART_FILLING;
}

/* Whether the rank ended normally, and other ranks continue to gather its shard. */
static inline bool zd_part_is_kept(const struct zd_part *part)
{
	return part->state == ZD_PART_DETACHED && part->unit->group->members[part->rank].ended;
}

/* Whether an update of the shard was granted and has not ended. */
static inline bool zd_part_is_written(const struct zd_part *part)
{
	return part->state == ZD_PART_UPDATING || part->state == ZD_PART_LOADING ||
	       part->state == ZD_PART_PUBLISHING;
}

/* Whether the shard was not published after its registration. */
static inline bool zd_part_is_unpublished(const struct zd_part *part)
{
	return part->version == part->first;
}

/* Returns the number of elements of the shard without padding. */
uint64_t zd_part_true_numel(const struct zd_part *part);
/* Returns the purpose of the segments of the unit's shards in that memory. */
static inline enum zd_purpose zd_unit_purpose(const struct zd_unit *unit, bool on_host)
{
	return unit->in_place && !on_host ? ZD_PURPOSE_OWN_PARTS : ZD_PURPOSE_SHARDS;
}
/* Returns the use of its extent. */
struct zd_extent_use zd_part_use(const struct zd_part *part);
static inline struct zd_member *zd_part_member(const struct zd_part *part)
{
	return &part->unit->group->members[part->rank];
}
/* Returns the device whose memory has the shards of the part's rank. */
static inline struct zd_device *zd_part_memory(const struct zd_part *part)
{
	struct zd_device *device = zd_part_member(part)->device;
	return part->unit->on_host ? device->host : device;
}
/* Returns NULL if the unit does not exist. */
struct zd_unit *zd_unit_find(const struct zd_engine *e, uint64_t id);
/* Finds a unit of the group, or a former unit, or returns NULL. */
struct zd_unit *zd_unit_find_name(const struct zd_group *group, const char *name, bool is_former);
/* Finds the session's registered part: NOT_FOUND. */
int zd_part_find(struct zd_engine *e, struct zd_session *session, uint64_t unit, struct zd_part **part,
                 struct zd_err *err) __attribute__((warn_unused_result));
/* As zd_part_find(), for up to ZD_HASH_MOST units. NULL: zd_part_find() has the error. */
void zd_parts_find(const struct zd_engine *e, const struct zd_session *session, const uint64_t *ids,
                   uint32_t count, struct zd_part **parts);
void zd_unit_unref(struct zd_engine *e, struct zd_unit *unit);
/* Checks that the rank's shard of a unit can be in that place. Errors: UNSUPPORTED. */
int zd_unit_check_place(const struct zd_member *member, const char *name, bool on_host, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns the unit's place, for replies to a rank that registers it. */
static inline Zd__Placed zd_unit_placed(const struct zd_unit *unit)
{
	if (!unit->placed)
		return ZD__PLACED__AS_REGISTERED;
	return unit->on_host ? ZD__PLACED__ON_HOST : ZD__PLACED__ON_DEVICE;
}
/* Checks UNIT_REGISTER's description of a unit with this number of shards. Errors: INVALID, LIMIT. */
int zd_unit_check_description(const struct zd_engine *e, const struct zd_group *group,
                              const Zd__UnitRegister *wanted, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns the digest of UNIT_REGISTER's description of a unit; not 0. */
uint64_t zd_unit_digest(const Zd__UnitRegister *wanted);
/* Creates a unit from UNIT_REGISTER's arguments, which `first_rank` has sent. in_place: it is gathered in
 * place. `session` is the requesting session; NULL: a restore. Errors: LIMIT. */
int zd_unit_new(struct zd_engine *e, const struct zd_session *session, struct zd_group *group,
                uint32_t first_rank, const Zd__UnitRegister *wanted, bool in_place, struct zd_unit **unit,
                struct zd_err *err) __attribute__((warn_unused_result));
/* These functions record the object if its job has a journal, and parts only if they have bytes to
 * preserve. */
void zd_journal_unit(const struct zd_unit *unit);
void zd_journal_part(const struct zd_part *part);
/* Records the changes of a part after its last record. */
void zd_journal_part_state(const struct zd_part *part);
/* Makes the part's next state, and records it. */
void zd_part_move(struct zd_part *part, enum zd_part_state to);
/* Retains the shard until the process of an ending session has left the device. */
void zd_part_hold(struct zd_engine *e, struct zd_session *session, struct zd_part *part);
/* Whether no rank has registered the unit or is about to. The next rank can then describe it differently. */
bool zd_unit_is_left(const struct zd_unit *unit);
/* Uncharges the shard now, and frees it when its last reader has ended. May free the unit. */
void zd_part_drop(struct zd_engine *e, struct zd_part *part);
/* Forgets how the rank has described units differently: it ends. */
void zd_mismatches_forget(const struct zd_member *member);
/* Removes a reader of the part. After the last reader a waiting update proceeds, or a DYING part is freed. */
void zd_part_reader_done(struct zd_engine *e, struct zd_part *part);
/* Called when a reader of the shadow has ended. */
void zd_part_shadow_reader_done(struct zd_engine *e, struct zd_part *part);
/* Frees the member's parts, or makes them DETACHED, until the budget is used up. Returns whether all are
 * freed or DETACHED. */
bool zd_parts_detach(struct zd_engine *e, struct zd_member *member, uint32_t *budget);
/* Frees the DETACHED parts of a rank whose job has ended, or whose place another session takes, until the
 * budget is used up. Returns whether all are freed. */
bool zd_parts_drop(struct zd_engine *e, struct zd_member *member, uint32_t *budget);
/* Moves all parts of one list of a member to the other, which is empty. */
void zd_parts_move(struct zd_part_list *from, struct zd_part_list *to);

extern const struct zd_sm zd_sm_part;

#endif
