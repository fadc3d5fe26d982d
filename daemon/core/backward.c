/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backward.c - backward passes of a rank: when it may reduce, into which target, and when that is over.
 *
 * All ranks run the same sequence of backwards and steps. The first rank that begins a backward of a window,
 * or its boundary, describes it; another that says otherwise gets MISMATCH, instead of a step that never
 * comes.
 *
 * When the group fails, a rank that is still there does not know it yet: its streams go on writing the
 * entries and reading the target that it was given. These are abandoned: out of every reduction, charged,
 * handed out to nobody, until the rank commits them or ends its step (with fences), or says otherwise that
 * its streams have drained.
 */
#include "base/dtype.h"
#include "core/reduce_internal.h"

/* ---- Members ------------------------------------------------------------------------------------------- */

struct zd_member_reduce *zd_member_reduce_get(struct zd_member *member)
{
	struct zd_member_reduce *mr = member->reduce;
	if (!mr) {
		mr = zd_calloc(1, sizeof(*mr));
		mr->member = member;
		TAILQ_INIT(&mr->buckets);
		TAILQ_INIT(&mr->waiting);
		TAILQ_INIT(&mr->storages);
		member->reduce = mr;
	}
	mr->attached = true;
	return mr;
}

void zd_member_reduce_release(struct zd_member_reduce *mr)
{
	if (mr->attached || !TAILQ_EMPTY(&mr->storages))
		return;
	mr->member->reduce = NULL;
	free(mr);
}

void zd_reduce_request_init(struct zd_request *req, struct zd_member *member)
{
	req->member = member;
	req->device = member->device;
	req->u.reduce.serial = member->group->reduce_serial;
}

bool zd_reduce_request_lost(const struct zd_request *req)
{
	return req->u.reduce.serial != req->member->group->reduce_serial;
}

int zd_reduce_lost(const struct zd_group *group, struct zd_err *err)
{
	int status = zd_group_check(group, err);
	if (status == 0) /* it is whole again */
		status = zd_err_set(err, ZEROD_E_PEER_LOST,
		                    "rank %u (pid %u) of group '%s' was gone meanwhile", group->lost_rank,
		                    group->lost_pid, group->name);
	return status;
}

int zd_reduce_request_check(const struct zd_request *req, struct zd_err *err)
{
	const struct zd_group *group = req->member->group;
	return zd_reduce_request_lost(req) ? zd_reduce_lost(group, err) : zd_group_check(group, err);
}

bool zd_backward_ended(const struct zd_member *member, uint64_t number)
{
	const struct zd_member_reduce *mr = zd_member_reduce(member);
	if (!mr || mr->number < number)
		return false;
	return mr->number > number || mr->backward == ZD_BACKWARD_IDLE || mr->backward == ZD_BACKWARD_ENDING;
}

/* ---- Begin --------------------------------------------------------------------------------------------- */

struct options {
	uint32_t stage;
	bool boundary;
	enum zerod_dtype target_dtype;
};

static int parse_options(const struct zd_args *args, struct options *out, struct zd_err *err)
{
	uint32_t stage = args->u.backward_begin.stage, dtype = args->u.backward_begin.target_dtype;
	if (stage > 3)
		return zd_err_set(err, ZEROD_E_INVALID, "stage %u is none of 1, 2, 3", stage);
	if (dtype == 0)
		dtype = ZEROD_FLOAT32;
	if (zerod_dtype_bytes(dtype) == 0)
		return zd_err_set(err, ZEROD_E_INVALID, "unknown target dtype %u", dtype);
	if (!zd_dtype_holds_sums(dtype))
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "a target of dtype %s; only float32, float16 and bfloat16 are reduced into",
		                  zerod_dtype_name(dtype));
	*out = (struct options){stage ? stage : 3, args->u.backward_begin.boundary, dtype};
	return 0;
}

static int check_state(const struct zd_member_reduce *mr, struct zd_err *err)
{
	uint32_t rank = zd_world_rank(mr->member);
	if (mr->backward != ZD_BACKWARD_IDLE)
		return zd_err_set(err, ZEROD_E_STATE, "backward %llu of rank %u runs",
		                  (unsigned long long)mr->number, rank);
	if (mr->step == ZD_STEP_TAKEN)
		return zd_err_set(err, ZEROD_E_STATE, "step %llu of rank %u has not ended",
		                  (unsigned long long)mr->steps, rank);
	if (mr->step != ZD_STEP_NONE && mr->step != ZD_STEP_ABANDONED)
		return zd_err_set(err, ZEROD_E_STATE,
		                  "backward %llu of rank %u was the boundary: the step is next",
		                  (unsigned long long)mr->number, rank);
	return 0;
}

int zd_backward_check_ended(const struct zd_member *member, struct zd_err *err)
{
	const struct zd_member_reduce *mr = zd_member_reduce(member);
	if (!mr || mr->backward == ZD_BACKWARD_IDLE)
		return 0;
	return zd_err_set(
	        err, ZEROD_E_STATE,
	        "backward %llu of rank %u runs; in a group that spans daemons a commit is behind it",
	        (unsigned long long)mr->number, zd_world_rank(member));
}

static int check_window(const struct zd_member_reduce *had, const struct zd_member_reduce *mr,
                        const struct options *options, struct zd_err *err)
{
	if (had->stage == 0 || had->window != mr->window ||
	    (had->stage == options->stage && had->target_dtype == options->target_dtype))
		return 0;
	return zd_err_set(
	        err, ZEROD_E_MISMATCH,
	        "rank %u runs the backwards of this step in stage %u into %s; rank %u says stage %u into %s",
	        zd_world_rank(had->member), had->stage, zerod_dtype_name(had->target_dtype),
	        zd_world_rank(mr->member), options->stage, zerod_dtype_name(options->target_dtype));
}

/* Does another rank's window end elsewhere. `number` is the backward that `mr` wants to begin. */
static int check_boundary(const struct zd_member_reduce *other, const struct zd_member_reduce *mr,
                          bool boundary, struct zd_err *err)
{
	uint64_t number = mr->number + 1;
	bool agrees = other->boundary_number == 0 ? !boundary || other->number < number
	              : boundary                  ? other->boundary_number == number
	                                          : other->boundary_number > number;
	if (other->window != mr->window || other->stage == 0 || agrees)
		return 0;
	return zd_err_set(
	        err, ZEROD_E_MISMATCH, "backward %llu is %s boundary for rank %u; for rank %u %s %llu is",
	        (unsigned long long)number, boundary ? "the" : "no", zd_world_rank(mr->member),
	        zd_world_rank(other->member), other->boundary_number ? "backward" : "none up to",
	        (unsigned long long)(other->boundary_number ? other->boundary_number : other->number));
}

static int check_ranks(const struct zd_member_reduce *mr, const struct options *options, struct zd_err *err)
{
	const struct zd_group *group = mr->member->group;
	int status = 0;
	for (uint32_t rank = 0; rank < group->local_world_size && status == 0; rank++) {
		const struct zd_member_reduce *other = zd_member_reduce(&group->members[rank]);
		if (!other)
			continue;
		status = check_window(other, mr, options, err);
		if (status == 0 && other != mr)
			status = check_boundary(other, mr, options->boundary, err);
	}
	return status;
}

static int begin_begin(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                       struct zd_err *err)
{
	struct zd_member *member;
	struct options options;
	int status = zd_member_find(e, req->session, args->u.backward_begin.group, &member, err);
	/* Who learns of a failure here may have streams at work: nothing is given up. */
	if (status == 0)
		status = zd_group_check(member->group, err);
	if (status == 0)
		status = zd_session_check_poisoned(req->session, err);
	if (status == 0)
		status = parse_options(args, &options, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = zd_member_reduce_get(member);
	status = check_state(mr, err);
	if (status == 0)
		status = check_ranks(mr, &options, err);
	if (status != 0)
		return status;
	zd_reduce_request_init(req, member);
	zd_reduce_give_up(e, member);
	zd_sm_move(&zd_sm_backward, &mr->backward, ZD_BACKWARD_STARTING);
	mr->number++;
	mr->boundary = options.boundary;
	if (mr->stage == 0) {
		mr->window_first = mr->number;
		mr->stage = options.stage;
		mr->target_dtype = options.target_dtype;
	}
	if (options.boundary)
		mr->boundary_number = mr->number;
	return 0;
}

/* As if it had not been asked for. */
static void begin_undo(struct zd_member_reduce *mr)
{
	if (mr->window_first == mr->number)
		mr->stage = 0;
	if (mr->boundary)
		mr->boundary_number = 0;
	mr->boundary = false;
	mr->number--;
	zd_sm_move(&zd_sm_backward, &mr->backward, ZD_BACKWARD_IDLE);
}

static int begin_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = zd_reduce_request_check(req, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = req->member->reduce;
	bool reduces = mr->stage > 1 || mr->boundary;
	if (reduces && !mr->target && req->member->group->target_numel > 0)
		status = zd_target_bind(e, req, mr, err);
	if (status == ZD_WAIT)
		return status;
	if (status != 0) {
		begin_undo(mr);
		return status;
	}
	zd_sm_move(&zd_sm_backward, &mr->backward, ZD_BACKWARD_RUNNING);
	e->reply.u.backward_begin.backward = mr->number;
	return 0;
}

static void begin_cancel(struct zd_engine *e, struct zd_request *req)
{
	(void)e;
	if (!zd_reduce_request_lost(req))
		begin_undo(req->member->reduce);
}

/* ---- End ----------------------------------------------------------------------------------------------- */

static int uncommitted(const struct zd_member_reduce *mr, struct zd_err *err)
{
	const struct zd_bucket *bucket;
	const char *unit = "";
	TAILQ_FOREACH (bucket, &mr->buckets, link) {
		for (const struct zd_entry *entry = bucket->entries; entry; entry = entry->hh.next) {
			if (entry->state < ZD_ENTRY_COMMITTED)
				unit = entry->part->unit->name;
		}
	}
	return zd_err_set(err, ZEROD_E_STATE, "rank %u has reserved %u %s not committed, unit '%s' last",
	                  zd_world_rank(mr->member), mr->nuncommitted,
	                  mr->nuncommitted == 1 ? "entry that is" : "entries that are", unit);
}

static int end_begin(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                     struct zd_err *err)
{
	struct zd_member *member;
	int status = zd_member_find(e, req->session, args->u.group, &member, err);
	if (status == 0)
		status = zd_group_check(member->group, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = zd_member_reduce_get(member);
	if (mr->backward != ZD_BACKWARD_RUNNING)
		return zd_err_set(err, ZEROD_E_STATE, "rank %u runs no backward", zd_world_rank(member));
	if (mr->nuncommitted > 0)
		return uncommitted(mr, err);
	zd_reduce_request_init(req, member);
	zd_sm_move(&zd_sm_backward, &mr->backward, ZD_BACKWARD_ENDING);
	zd_reduction_fail_without(e, mr);
	return 0;
}

static int end_wait(struct zd_request *req, const struct zd_member_reduce *mr)
{
	const struct zd_reduction *r = zd_reduction_first_open(mr);
	if (!r) /* entries that were refused and that their streams still write */
		return zd_wait_for(req, ZD_WAIT_FENCES, 0, 0, 0);
	(void)zd_wait_for(req, ZD_WAIT_REDUCTIONS, zd_reduction_waits_for(r), mr->open, 0);
	req->wait.unit = r->unit;
	return ZD_WAIT;
}

static int end_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = zd_reduce_request_check(req, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = req->member->reduce;
	if (mr->open > 0 || mr->nentries > 0)
		return end_wait(req, mr);
	(void)zd_bucket_trim(e, mr);
	zd_sm_move(&zd_sm_backward, &mr->backward, ZD_BACKWARD_IDLE);
	if (mr->boundary)
		zd_sm_move(&zd_sm_step, &mr->step, ZD_STEP_READY);
	zd_reduction_forget(mr);
	if (mr->failure.status != 0)
		return zd_err_set(err, mr->failure.status, "%s", mr->failure.text);
	return 0;
}

static void end_cancel(struct zd_engine *e, struct zd_request *req)
{
	(void)e;
	if (!zd_reduce_request_lost(req))
		zd_sm_move(&zd_sm_backward, &req->member->reduce->backward, ZD_BACKWARD_RUNNING);
}

const struct zd_request_type zd_req_backward_begin = {"backward_begin", begin_begin, begin_attempt,
                                                      begin_cancel};
const struct zd_request_type zd_req_backward_end = {"backward_end", end_begin, end_attempt, end_cancel};

/* ---- The group's life ---------------------------------------------------------------------------------- */

static void reset(struct zd_engine *e, struct zd_member_reduce *mr)
{
	struct zd_bucket *bucket;
	TAILQ_FOREACH (bucket, &mr->buckets, link)
		zd_bucket_abandon_entries(e, bucket);
	(void)zd_bucket_trim(e, mr);
	if (mr->backward != ZD_BACKWARD_IDLE)
		zd_sm_move(&zd_sm_backward, &mr->backward, ZD_BACKWARD_IDLE);
	zd_step_abandon(e, mr);
	zd_step_close_window(mr);
	zd_failure_clear(&mr->failure);
	zd_failure_clear(&mr->past);
	mr->open = 0;
	mr->turns = 0;
	mr->turn = 0;
	mr->asking = false;
}

void zd_reduce_group_failed(struct zd_engine *e, struct zd_group *group)
{
	group->reduce_serial++;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
		if (mr)
			reset(e, mr);
	}
	zd_reduction_drop_all(e, group);
	zd_dirty_group(e, group);
}

void zd_reduce_give_up(struct zd_engine *e, struct zd_member *member)
{
	struct zd_member_reduce *mr = zd_member_reduce(member);
	struct zd_bucket *bucket;
	if (!mr || mr->backward != ZD_BACKWARD_IDLE) /* a new one has begun: nothing is left */
		return;
	TAILQ_FOREACH (bucket, &mr->buckets, link)
		zd_bucket_drop_entries(e, bucket);
	(void)zd_bucket_trim(e, mr);
	zd_step_give_up(e, mr);
}

void zd_reduce_group_revived(struct zd_engine *e, struct zd_group *group)
{
	uint64_t number = 0, window = 0, steps = 0;
	(void)e;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
		number = zd_max_u64(number, mr ? mr->number : 0);
		window = zd_max_u64(window, mr ? mr->window : 0);
		steps = zd_max_u64(steps, mr ? mr->steps : 0);
	}
	for (uint32_t rank = 0; rank < group->local_world_size && window > 0; rank++) {
		struct zd_member_reduce *mr = zd_member_reduce_get(&group->members[rank]);
		mr->number = number;
		mr->window = window;
		mr->steps = steps;
	}
}

void zd_reduce_member_detach(struct zd_engine *e, struct zd_member *member)
{
	struct zd_member_reduce *mr = zd_member_reduce(member);
	struct zd_bucket *bucket, *next;
	if (!mr)
		return;
	reset(e, mr);
	zd_reduce_give_up(e, member);
	TAILQ_FOREACH_SAFE (bucket, &mr->buckets, link, next)
		zd_bucket_free(e, bucket);
	mr->number = 0;
	mr->window = 0;
	mr->steps = 0;
	mr->attached = false;
	zd_member_reduce_release(mr);
}
