/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explain.h - sentences about one object, made of all listings.
 */
#ifndef ZD_CTL_EXPLAIN_H
#define ZD_CTL_EXPLAIN_H

#include "ctl.h"

/* The rows of all listings; NULL until fetched. */
struct zd_ctl_facts {
	json_t *map; /* for units only: it has a row for each block */
	json_t *jobs, *sessions, *groups, *units, *buffers, *scopes, *allocations;
};

int zd_ctl_facts_fetch(struct zd_ctl *ctl, struct zd_ctl_facts *facts) __attribute__((warn_unused_result));
void zd_ctl_facts_deinit(struct zd_ctl_facts *facts);

/* Each prints sentences, a line each. */
/* Sentences are added to this array from now on; NULL: they are printed. */
void zd_ctl_collect(json_t *sentences);
void zd_ctl_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Explains a gathered buffer, or a gather that waits for one. */
void zd_ctl_explain_buffer(const struct zd_ctl_facts *facts, const json_t *buffer);
/* Explains a group that is not READY, and names its missing ranks. */
void zd_ctl_explain_group(const struct zd_ctl_facts *facts, const json_t *group);
/* Explains ended sessions of the job whose processes can still use memory. `uid` < 0: of any uid. */
void zd_ctl_explain_closing(const struct zd_ctl_facts *facts, const char *job, json_int_t uid);
/* Explains a process that is stopped or has ended. `who`: the subject of the sentence. */
void zd_ctl_explain_process(const json_t *session, const char *who);
/* The same for all ranks of the job's groups. */
void zd_ctl_explain_processes(const struct zd_ctl_facts *facts, const char *job);
/* Explains a wait for "rank 1 ...": describes that rank. Names the readers of awaited copies. */
void zd_ctl_explain_wait(const struct zd_ctl_facts *facts, const char *job, const char *group,
                         const char *wait);

/* Whether the session reads commits of that group. */
bool zd_ctl_reads(const json_t *session, const char *job, const char *group);
/* "session 7 (pid 12, 'trainer')" */
char *zd_ctl_session_text(const struct zd_ctl_facts *facts, json_int_t id);
/* The bytes and ages as people write them; valid until the eighth call after. */
const char *zd_ctl_bytes(json_int_t bytes);
const char *zd_ctl_age(json_int_t ns);

#endif
