/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent_target.c - places of a target that a rank may access before the step.
 *
 * A rank that waits for a unit's sum (reduce_wait) is lent the unit's place in its target. Its streams may
 * read and write the place, and no sum is stored there, until the rank has returned the place with the fences
 * of these streams and all fences have passed. Another reduction of the unit waits for that before it
 * allocates staging. The rank must therefore return the place before its own next contribution, as the
 * library does.
 *
 * The place can be promised before the sum is stored, by the rule of promise.h: every rank has contributed,
 * and no slice of the reduction waits for memory. The promise is always kept. If the sum fails, the content
 * of the place is undefined, and the window has failed: its step returns the failure.
 *
 * The sum of an untargeted part is lent in the same way, and dropped when it is returned. So are its terms,
 * if the rank has submitted its gradient that way (plan_terms.c). They are not promised.
 *
 * Invariant: while a place is lent or accessed, its target is not freed, unless the rank itself has ended the
 * window. When the group fails, the rank's target is abandoned like the target of a step.
 */
#include "core/engine/promise.h"
#include "core/gather/unit.h"
#include "core/reduce/reduce.h"
#include "core/reduce/slice.h"
#include "core/reduce/target.h"

/* ---- Places -------------------------------------------------------------------------------------------- */

/* Also true while the target is zeroed for a step that was cancelled meanwhile. */
static bool is_accessed(const struct zd_part *part)
{
	const struct zd_member_reduce *mr = zd_member_reduce(zd_part_member(part));
	const struct zd_storage *target = mr ? zd_window_storage(mr->w, part) : NULL;
	return part->target_lent || part->target_accesses > 0 || (target && target->fills > 0);
}

bool zd_slice_target_is_accessed(const struct zd_slice *slice)
{
	const struct zd_unit *unit = slice->reduction->unit;
	if (!unit->all_reduce)
		return is_accessed(&unit->parts[slice->owner]);
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		if (is_accessed(&unit->parts[rank]))
			return true;
	}
	return false;
}

void zd_target_forget_lent(struct zd_engine *e, struct zd_window *w)
{
	struct zd_member_reduce *mr = w->mr;
	if (w != mr->w) /* done already, when the window began to close */
		return;
	while (!TAILQ_EMPTY(&mr->loans)) {
		struct zd_slice *slice = TAILQ_FIRST(&mr->loans);
		TAILQ_REMOVE(&mr->loans, slice, loan_link);
		zd_terms_end(e, slice);
	}
	const struct zd_unit *unit = mr->nlent > 0 ? TAILQ_FIRST(&mr->member->group->units) : NULL;
	for (; unit; unit = TAILQ_NEXT(unit, group_link))
		unit->parts[mr->member->rank].target_lent = false;
	mr->nlent = 0;
}

static void lend(struct zd_member_reduce *mr, struct zd_part *part)
{
	mr->nlent += !part->target_lent;
	part->target_lent = true;
}

void zd_target_unlend(struct zd_part *part)
{
	struct zd_member_reduce *mr = zd_member_reduce(zd_part_member(part));
	if (!part->target_lent)
		return;
	part->target_lent = false;
	mr->nlent--;
}

/* ---- Wait ---------------------------------------------------------------------------------------------- */

/* Whether the rank's slice is stored. For an all-reduced unit, and over rails, all ranks' slices must be. */
static bool is_stored(const struct zd_reduction *r, uint32_t rank)
{
	if (r->over)
		return r->state == ZD_REDUCTION_COMPLETE;
	return r->state == ZD_REDUCTION_RUNNING && !r->unit->all_reduce && !r->group->cluster &&
	       r->slices[rank].state == ZD_SLICE_DONE;
}

static int check_failure(const struct zd_failure *failure, struct zd_err *err)
{
	if (failure->abandoned)
		return zd_err_set(
		        err, ZEROD_E_STATE,
		        "rank %u has abandoned the backwards since the last step: nothing is reduced",
		        failure->rank);
	if (failure->status != 0)
		return zd_err_set(err, failure->status, "%s", failure->text);
	return 0;
}

/* Called in the step, which every rank has begun. Returns 0 if the unit's place holds its sum, or zeros. */
static int check_in_step(const struct zd_window *w, const struct zd_part *part, struct zd_err *err)
{
	int status = check_failure(&w->mr->result.failure, err);
	if (status != 0 || zd_target_has_place(w, part))
		return status;
	return zd_err_set(err, ZEROD_E_STATE, "the step of rank %u has no sum of unit '%s'",
	                  zd_world_rank(w->mr->member), part->unit->name);
}

/* Checks that the rank asks for what it has submitted its gradient for. */
static int check_kind(const struct zd_reduction *r, const struct zd_part *part, bool terms,
                      struct zd_err *err)
{
	uint32_t rank = zd_world_rank(zd_part_member(part));
	bool lends = r && r->ranks && r->ranks[part->rank].lends;
	if (lends == terms)
		return 0;
	return lends ? zd_err_set(err, ZEROD_E_STATE,
	                          "rank %u has submitted unit '%s' with ZEROD_REDUCE_TERMS: there is no sum, "
	                          "zerod_reduce_terms() lends its terms",
	                          rank, part->unit->name)
	             : zd_err_set(err, ZEROD_E_STATE,
	                          "rank %u has not submitted unit '%s' with ZEROD_REDUCE_TERMS: there are no "
	                          "terms",
	                          rank, part->unit->name);
}

/* Returns 0 if the unit's place holds its sum, or its terms are there; ZD_WAIT if the reduction is under
 * way. */
static int check_lent(const struct zd_window *w, const struct zd_part *part, bool terms, struct zd_err *err)
{
	const struct zd_unit *unit = part->unit;
	uint32_t rank = zd_world_rank(w->mr->member);
	const struct zd_reduction *r = zd_reduction_find(w, unit->id);
	int status = check_failure(&w->failure, err);
	if (status != 0)
		return status;
	if (part->frozen)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s' is frozen: it has no gradient",
		                  unit->name);
	if (w->step == ZD_STEP_TAKEN && !terms)
		return check_in_step(w, part, err);
	bool made = r && (!r->ranks || zd_contribution_made(&r->ranks[part->rank]));
	if (made && !is_stored(r, part->rank)) {
		status = check_kind(r, part, terms, err);
		return status == 0 ? ZD_WAIT : status;
	}
	if (zd_norms_has(w, unit) && !zd_window_storage(w, part))
		return zd_err_set(err, ZEROD_E_STATE, "rank %u has returned the %s of unit '%s'", rank,
		                  terms ? "terms" : "sum", unit->name);
	if (zd_norms_has(w, unit))
		return check_kind(r, part, terms, err);
	if (zd_norms_skipped(w, unit))
		return zd_err_set(err, ZEROD_E_NOT_FOUND,
		                  "unit '%s' has no gradient: all ranks have skipped it since the last step",
		                  unit->name);
	return zd_err_set(err, ZEROD_E_STATE,
	                  "rank %u has neither reduced nor skipped unit '%s' since its last step", rank,
	                  unit->name);
}

static int wait_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part;
	int status = zd_part_find(e, req->session, req->args->u.reduce_wait.unit, &part, err);
	if (status == 0)
		status = zd_group_check(part->unit->group, err);
	if (status == 0)
		status = zd_session_check_poisoned(req->session, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = zd_member_reduce_get(zd_part_member(part));
	bool terms = req->args->u.reduce_wait.terms;
	status = check_lent(mr->w, part, terms, err);
	if (status < 0)
		return status;
	zd_reduce_request_init(req, mr->member);
	req->u.reduce.window = mr->w->number;
	req->u.reduce.part = part;
	req->u.reduce.ahead = req->args->u.reduce_wait.ahead && !terms;
	req->u.reduce.terms = terms;
	part->users++;
	mr->nlenders++;
	return 0;
}

static void fill_place(struct zd_engine *e, const struct zd_window *w, const struct zd_part *part)
{
	uint64_t each = zerod_dtype_bytes(w->target_dtype);
	e->reply.u.reduce_wait.target_dtype = w->target_dtype;
	e->reply.place = zd_storage_location(zd_window_storage(w, part), zd_part_target_offset(part) * each,
	                                     zd_unit_target_numel(part->unit) * each);
}

static void promise_lent(struct zd_engine *e, struct zd_request *req, struct zd_member_reduce *mr)
{
	const struct zd_reduction *r = zd_reduction_find(mr->w, req->u.reduce.part->unit->id);
	if (!req->u.reduce.ahead || req->u.reduce.promise || !zd_reduction_drains(e, r) ||
	    !zd_window_storage(mr->w, req->u.reduce.part))
		return;
	req->u.reduce.promise = zd_promise_new(e, req->session, req->device, ZD_PROMISE_STEPS);
	lend(mr, req->u.reduce.part);
	fill_place(e, mr->w, req->u.reduce.part);
	e->reply.fence = req->u.reduce.promise->fence;
	zd_request_answer(e, req);
}

static void wait_end(struct zd_engine *e, struct zd_request *req)
{
	req->u.reduce.part->users--;
	req->member->reduce->nlenders--;
	if (req->u.reduce.promise)
		zd_promise_keep(e, req->u.reduce.promise);
}

/* Returns ZD_WAIT while the rank has begun the step and another rank has not, because that rank can give up
 * the window. */
static int check_step(struct zd_request *req, const struct zd_window *w)
{
	const struct zd_group *group = req->member->group;
	uint32_t missing = zd_step_is_called(w) ? zd_step_first_uncalled(w) : group->local_world_size;
	if (missing < group->local_world_size)
		return zd_wait_for(req, ZD_WAIT_STEP, missing, 0, 0);
	if (zd_step_is_called(w) && group->cluster)
		return zd_wait_for(req, ZD_WAIT_SUMS, zd_world_rank(req->member), 0, 0);
	return 0;
}

/* Returns the request's window. NULL: it is over. After its step the window's object has the next number. */
static const struct zd_window *find_window(const struct zd_request *req)
{
	const struct zd_window *w = zd_window_of(req), *next = req->member->reduce->w;
	bool taken = next->step == ZD_STEP_TAKEN && next->number == req->u.reduce.window + 1;
	return !w && taken ? next : w;
}

static int wait_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member_reduce *mr = req->member->reduce;
	struct zd_part *part = req->u.reduce.part;
	int status = zd_reduce_request_check(req, err);
	const struct zd_window *w = status == 0 ? find_window(req) : NULL;
	if (status == 0 && !req->answered && (!w || w != mr->w))
		status = zd_err_set(err, ZEROD_E_STATE, "rank %u has ended the step of unit '%s'",
		                    zd_world_rank(mr->member), part->unit->name);
	if (status == 0 && w)
		status = check_lent(w, part, req->u.reduce.terms, err);
	if (status >= 0 && w && !req->answered && check_step(req, w) == ZD_WAIT)
		return ZD_WAIT;
	if (w && status == ZD_WAIT) {
		const struct zd_reduction *r = zd_reduction_find(w, part->unit->id);
		if (w == mr->w)
			promise_lent(e, req, mr);
		return zd_wait_for_unit(req, part->unit, ZD_WAIT_REDUCTIONS,
		                        zd_reduction_waits_for(r, part->rank), 1, 0);
	}
	wait_end(e, req);
	if (status != 0 || req->answered || !w)
		return status;
	if (w->step != ZD_STEP_TAKEN) /* otherwise the rank has the place until the step's end */
		lend(mr, part);
	if (req->u.reduce.terms) {
		struct zd_slice *slice = zd_terms_slice(zd_reduction_find(w, part->unit->id), part->rank);
		zd_terms_lend(slice);
		zd_terms_reply(e, slice);
	} else {
		fill_place(e, w, part);
	}
	return 0;
}

const struct zd_request_type zd_req_reduce_wait = {
        .begin = wait_begin, .attempt = wait_attempt, .cancel = wait_end};

/* ---- Return -------------------------------------------------------------------------------------------- */

/* Streams that can still access a place. */
struct access {
	struct zd_part *part;
	struct zd_storage *target;
	struct zd_slice *terms; /* NULL: a place */
};

static void access_end(struct zd_engine *e, struct access *access)
{
	if (access->terms)
		zd_terms_end(e, access->terms);
	free(access);
}

static void passed(struct zd_engine *e, struct zd_op *op)
{
	struct access *access = op->owner;
	/* The status does not matter: a failed watch means that the session and its streams have ended. */
	access->part->target_accesses--;
	zd_dirty_group(e, access->part->unit->group); /* slices can wait for this access */
	zd_storage_unuse(e, access->target);
	zd_unit_unref(e, access->part->unit);
	access_end(e, access);
}

static void give_back(struct zd_engine *e, const struct zd_request *req, struct zd_part *part,
                      const struct zd_fence_list *fences)
{
	struct zd_member *member = zd_part_member(part);
	struct zd_member_reduce *mr = zd_member_reduce(member);
	if (!part->target_lent)
		return;
	zd_assert(zd_window_storage(mr->w, part));
	zd_target_unlend(part);
	zd_dirty_group(e, member->group);
	struct zd_storage *storage = zd_window_storage(mr->w, part);
	struct access *access = zd_calloc(1, sizeof(*access));
	*access = (struct access){part, storage, zd_terms_take_back(mr, part)};
	if (zd_fences_watch(e, req->session, member->group->job, member->device->index, fences, passed,
	                    access, 0)) {
		part->target_accesses++;
		part->unit->refs++;
		zd_storage_use(storage);
		access = NULL;
	}
	if (part->untargeted)
		zd_sum_return(e, storage);
	if (access)
		access_end(e, access);
}

/* Drops the target of an abandoned window when its last lent place has been returned. */
static void drop_abandoned(struct zd_engine *e, const struct zd_member *member)
{
	struct zd_member_reduce *mr = zd_member_reduce(member);
	if (mr && mr->nlent == 0 && zd_window_is_abandoned(mr->w) && mr->w->step != ZD_STEP_TAKEN &&
	    mr->w->step != ZD_STEP_ABANDONED)
		zd_targets_drop(e, mr->w);
}

/* Skips places that are not lent, because the group has failed or the step has begun. */
static int return_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	uint32_t nunits = req->args->u.target_return.n_units;
	struct zd_part *part;
	int status = 0;
	for (uint32_t i = 0; i < nunits && status == 0; i++)
		status = zd_part_find(e, req->session, req->args->u.target_return.units[i], &part, err);
	for (uint32_t i = 0; i < nunits && status == 0; i++) {
		status = zd_part_find(e, req->session, req->args->u.target_return.units[i], &part, err);
		if (status != 0)
			break;
		give_back(e, req, part, &req->args->fences);
		drop_abandoned(e, zd_part_member(part));
	}
	return status;
}

const struct zd_request_type zd_req_target_return = {.begin = return_begin};
