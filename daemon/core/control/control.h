/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - the room above all other rooms of the core. It has the beginning and end of sessions and
 * groups, and the tables that name functions of every room.
 */
#ifndef ZD_CORE_CONTROL_CONTROL_H
#define ZD_CORE_CONTROL_CONTROL_H

#include "core/engine/events.h"
#include "core/engine/journal.h"

/* requests.c */
extern const struct zd_request_type *const zd_request_types[ZD_NREQUESTS];
/* events.c */
extern const struct zd_events zd_control_events;

/* Most buffers of a device, and requests of a session, that are visited for one text. */
#define ZD_WAIT_TEXT_VISITS 64u

/* Writes what the request waits for: "rank 2 to publish version 4 of unit 'h1' (has 3)". The text also says
 * whether every session with leases on the device's gathered buffers waits for memory itself. */
void zd_wait_text(const struct zd_engine *e, const struct zd_request *req, const struct zd_session *reader,
                  char out[ZD_WAIT_TEXT]);
extern const char *const zd_wait_names[ZD_NWAITS];

/* Returns the rank of the session for which the request gathers, or has an effect that other ranks see. NULL:
 * no such rank, or the request's begin() rejects it. */
struct zd_member *zd_acting_member(struct zd_engine *e, struct zd_session *session,
                                   const struct zd_args *args);

struct zd_buffer;
/* Writes why the buffer waits, "2 transfers, streams of 1 release"; "": it does not wait. */
void zd_buffer_wait_text(const struct zd_buffer *buffer, char out[ZD_WAIT_TEXT]);

/* sessions.c */
/* Ends the session and frees all its objects. Its waiting requests receive no reply. */
void zd_session_end(struct zd_engine *e, struct zd_session *session, enum zd_event_word why);

/* Creates an ended session of the former daemon. Between this call and zd_deferred_teardowns_end() its memory
 * is assigned to it (zd_part_hold()). */
struct zd_session *zd_session_new_former(struct zd_engine *e, const struct zd_record_session *record);

/* join.c */
/* Finds the job with this id for its owner's sessions and administrators'. Errors: NOT_FOUND. */
int zd_job_find_for(struct zd_engine *e, const struct zd_session *session, uint64_t id, struct zd_job **job,
                    struct zd_err *err) __attribute__((warn_unused_result));
/* Ends a durable job: frees all its memory, in steps. No sessions may be attached, except those whose ends
 * are incomplete. */
void zd_job_end(struct zd_engine *e, struct zd_job *job);
/* Finds the job's group with this name, or returns NULL. Skips groups that have ended: a join under their
 * name creates a new group, of any world size. */
struct zd_group *zd_group_find(const struct zd_job *job, const char *name);
/* Makes a group of the job, as its first rank describes it. */
struct zd_group *zd_group_new(struct zd_engine *e, struct zd_job *job, const struct zd_args *args);
/* Records the group's description, if its job has a journal. */
void zd_journal_group(const struct zd_group *group);
/* Tells the sink that the session has ended the group: "it was aborted". */
void zd_group_tell_end(struct zd_engine *e, const struct zd_group *group, const char *what,
                       const struct zd_session *by);
/* Ends the durable jobs that no session has used for durable_ttl_ns, and finds the time of the next. */
void zd_jobs_expire(struct zd_engine *e);
/* Ends sessions that have not unmapped a retiring segment in time, with a notice. Returns the time at which
 * the next one will be late, or UINT64_MAX. */
uint64_t zd_unmaps_expire(struct zd_engine *e);

/* Fails the group, unless the rank is alone, when the rank's session ends or leaves and its requests were
 * dropped. */
void zd_member_begin_detach(struct zd_engine *e, struct zd_member *member);
/* Frees the objects that the rank has in the group, until the budget is used up. Called after
 * zd_member_begin_detach(). Returns whether all are freed, and the rank has left. */
bool zd_member_detach(struct zd_engine *e, struct zd_member *member, uint32_t *budget);

#endif
