/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scope.h - holders that collect leases: forward scopes, their claims, and user contexts.
 *
 * A scope belongs to one rank. Each unit gathered in it has one lease, under a tag that clients cannot use.
 * Releases therefore cannot end the lease. All leases of a scope end together, with the scope.
 */
#ifndef ZD_CORE_GATHER_SCOPE_H
#define ZD_CORE_GATHER_SCOPE_H

#include "core/gather/buffer.h"

enum zd_scope_state {
	ZD_SCOPE_GATHERING, /* a context that has not gathered all of its units */
	ZD_SCOPE_OPEN,
	ZD_SCOPE_CLAIMED, /* the forward has ended, its backward has not */
	ZD_SCOPE_ENDED,
};

struct zd_scope {
	uint64_t id;
	uint8_t state;
	bool context;
	bool ending;              /* marked for zd_scopes_end() */
	struct zd_member *member; /* not valid when the scope is ENDED */
	uint64_t parent;          /* the scope in which it started, which can have ended; 0: none */
	uint64_t since_ns;
	uint32_t refs; /* one of the member until it is ENDED, and one of each waiting request */
	uint32_t nleases;
	char tag[ZD_MAX_TAG_BYTES + 1]; /* "@scope 12", "@claim 12", "@context 12" */
	TAILQ_HEAD(, zd_lease) leases;
	TAILQ_ENTRY(zd_scope) member_link; /* by id: a parent precedes the scopes nested in it */
	struct zd_id_node listed;
	UT_hash_handle hh;
};

/* Creates a scope of the rank: GATHERING for a context, otherwise OPEN. Returns LIMIT if the rank has too
 * many, not counting `leaving` of them. */
int zd_scope_new(struct zd_engine *e, struct zd_member *member, bool context, uint32_t leaving,
                 struct zd_scope **out, struct zd_err *err) __attribute__((warn_unused_result));
/* Finds a scope of the session that has not ended: NOT_FOUND. */
int zd_scope_find(struct zd_engine *e, const struct zd_session *session, uint64_t id, struct zd_scope **out,
                  struct zd_err *err) __attribute__((warn_unused_result));
/* Add and drop a waiting request's reference, which retains the object but does not keep the scope open. */
void zd_scope_unref(struct zd_scope *scope);
/* Adds the scope's lease on the buffer unless it has one. Returns whether it added the lease. */
bool zd_scope_hold(struct zd_engine *e, struct zd_scope *scope, struct zd_buffer *buffer);
/* Ends all scopes of the member that are marked `ending`. Their leases end at once, and the blocks are freed
 * when the fences have passed. Returns the number of these scopes. Their ids are in e->ended. */
uint32_t zd_scopes_end(struct zd_engine *e, struct zd_member *member, const struct zd_fence_list *fences);
/* Whether the request ends a scope that has a lease on the part's buffer. */
bool zd_scope_end_drops(const struct zd_request *req, const struct zd_part *part);
/* Ends the scopes of a rank that is being detached, until the budget is used up. Returns whether all are. */
bool zd_scopes_detach(struct zd_engine *e, struct zd_member *member, uint32_t *budget);

extern const struct zd_sm zd_sm_scope;

#endif
