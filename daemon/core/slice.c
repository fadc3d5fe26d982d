/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slice.c - a running reduction: pieces travel to their owners' staging memory, each owner's slice is summed.
 *
 * A piece travels as soon as its source's streams have passed and its owner has staging. The owner reads its
 * own piece from the entry. Slices are cut into chunks, so that the sum of one runs while the next one
 * travels. Slices of a device get staging in the order in which their reductions began, within the device's
 * bound; one always may have it, so a slice larger than the bound is reduced alone, and so may what a rail
 * waits for, for others may hold theirs until it has gone over that. A slice for which there is neither
 * memory nor quota waits while others hold some, and fails its reduction when none do.
 *
 * A sum may be begun ahead, when the last of its pieces has been given away: its owner's GPU waits for them
 * then, and nobody has to tell its process that they are there. What it makes counts when the engine knows so
 * as well. Each of these waits keeps a stream of the process waiting, and maybe others in the same hardware
 * queue, so that a session has few of them. A piece that fails aborts its timeline, which frees sums of later
 * pieces too: these are told of later, and count for nothing. No sum of the session is begun ahead of pieces
 * from that GPU any more, whatever is reset.
 */
#include <utlist.h>

#include "core/reduce_internal.h"

#define CUT_BYTES         (32ull << 20) /* of gradients: smaller slices are one chunk */
#define HALVE_CUTS        3u
#define CHUNK_ALIGN_NUMEL 64u
#define MOST_AHEAD        2u /* sums of a session */

/* What keeps the commands of a reduction apart; a sum's source is its owner. */
struct piece {
	uint32_t source, owner, chunk;
};

_Static_assert(ZD_MAX_WORLD <= 1u << 16, "two ranks and a chunk are an operation's aux");

static uint64_t piece_aux(struct piece piece)
{
	return (uint64_t)piece.chunk << 32 | piece.source << 16 | piece.owner;
}

static struct piece piece_of(const struct zd_op *op)
{
	return (struct piece){.source = op->aux >> 16 & 0xffff,
	                      .owner = op->aux & 0xffff,
	                      .chunk = (uint32_t)(op->aux >> 32)};
}

static uint64_t chunk_numel(const struct zd_reduction *r, uint32_t chunk)
{
	if (zd_reduction_has_partials(r))
		return r->unit->shard_numel;
	return r->chunk_begin[chunk + 1] - r->chunk_begin[chunk];
}

/* Halves while there is much, the rest as 7 to 3. A sum takes less than half as long as its pieces travel, so
 * that all but the last one are hidden behind the next chunk's travel, and the last one is small. They are
 * few, for each idles a link for a moment, and a busy GPU lets each wait. By the reduction alone, since a
 * squared norm is the sum of its chunks'. */
static void cut(const struct zd_engine *e, struct zd_reduction *r)
{
	if (zd_reduction_has_partials(r)) {
		r->nchunks = zd_reduction_blocks(r);
		return;
	}
	uint64_t each = zd_max_u64(zerod_dtype_bytes(r->options.dtype), 1); /* 0: all have skipped */
	uint64_t least = (e->reduction_cut_bytes ? e->reduction_cut_bytes : CUT_BYTES) / each;
	uint64_t left = r->unit->shard_numel;
	while (r->nchunks + 1 < ZD_REDUCTION_CHUNKS && left >= least) {
		bool halve = left >= HALVE_CUTS * least && r->nchunks + 2 < ZD_REDUCTION_CHUNKS;
		uint64_t numel = halve ? left / 2 : left - left * 3 / 10;
		numel = zd_min_u64(zd_align_up(numel, CHUNK_ALIGN_NUMEL), left);
		r->chunk_begin[r->nchunks + 1] = r->chunk_begin[r->nchunks] + numel;
		r->nchunks++;
		left -= numel;
	}
	if (left > 0 || r->nchunks == 0)
		r->chunk_begin[++r->nchunks] = r->unit->shard_numel;
}

static bool submitted(const struct zd_contribution *c)
{
	return c->state == ZD_CONTRIBUTION_SUBMITTED || c->state == ZD_CONTRIBUTION_READY;
}

/* Pieces that come from elsewhere. */
static uint32_t staged_pieces(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	return r->nsubmitted - submitted(&r->ranks[slice->owner]);
}

/* Of a slice that begins there; of a daemon's block, the one behind is `stride` slices on. */
static struct zd_location chunk_at(const struct zd_reduction *r, const struct zd_storage *storage,
                                   uint64_t offset, uint32_t chunk, uint32_t stride)
{
	uint64_t each = zerod_dtype_bytes(r->options.dtype);
	uint64_t begin = zd_reduction_has_partials(r) ? (uint64_t)chunk * stride * r->unit->shard_numel
	                                              : r->chunk_begin[chunk];
	return zd_storage_location(storage, offset + begin * each, chunk_numel(r, chunk) * each);
}

/* What a source has for an owner, in all its daemons' blocks. */
static uint64_t piece_bytes(const struct zd_reduction *r)
{
	return zd_reduction_slice_bytes(r) * (zd_reduction_has_partials(r) ? r->nchunks : 1);
}

static struct zd_location staged_piece(const struct zd_slice *slice, uint32_t source, uint32_t chunk)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_contribution *own = &r->ranks[slice->owner], *c = &r->ranks[source];
	uint32_t index = c->order - (submitted(own) && own->order < c->order);
	return chunk_at(r, slice->staging, index * piece_bytes(r), chunk, 1);
}

static struct zd_location entry_piece(const struct zd_reduction *r, struct piece piece)
{
	const struct zd_contribution *c = &r->ranks[piece.source];
	return chunk_at(r, c->storage, c->offset + piece.owner * zd_reduction_slice_bytes(r), piece.chunk,
	                r->group->local_world_size);
}

/* The device failed under this slice: nothing that its owner was to read can be trusted. */
void zd_slice_failed(struct zd_engine *e, struct zd_slice *slice, const char *what, const char *error)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_member *owner = &r->group->members[slice->owner];
	struct zd_err err = ZD_ERR_NONE;
	int status = zd_err_set(&err, ZEROD_E_DEVICE, "%s of unit '%s' for rank %u on device %u: %s", what,
	                        r->unit->name, zd_world_rank(owner), owner->device->index, error);
	if (owner->session->state == ZD_SESSION_OPEN)
		zd_sm_move(&zd_sm_session, &owner->session->state, ZD_SESSION_POISONED);
	zd_reduction_fail(e, r, status, err.text);
}

/* ---- The sum ------------------------------------------------------------------------------------------- */

/* NULL: it has ended. */
static struct zd_session *owners_session(struct zd_engine *e, const struct zd_slice *slice)
{
	return slice->session ? zd_session_find(e, slice->session) : NULL;
}

/* By an operation: its owner's entry, its staging, and the target. */
void zd_slice_use(struct zd_slice *slice)
{
	struct zd_contribution *own = &slice->reduction->ranks[slice->owner];
	zd_storage_use(slice->target);
	if (slice->staging)
		zd_storage_use(slice->staging);
	if (own->storage) {
		own->ops++;
		zd_storage_use(own->storage);
	}
}

void zd_slice_unuse(struct zd_engine *e, struct zd_slice *slice)
{
	struct zd_contribution *own = &slice->reduction->ranks[slice->owner];
	zd_storage_unuse(e, slice->target);
	if (slice->staging)
		zd_storage_unuse(e, slice->staging);
	if (own->storage) {
		own->ops--;
		zd_storage_unuse(e, own->storage);
	}
}

void zd_slice_end(struct zd_engine *e, struct zd_slice *slice)
{
	zd_sm_move(&zd_sm_slice, &slice->state, ZD_SLICE_DONE);
	slice->reduction->ndone++;
	zd_storage_drop(e, slice->staging);
	slice->staging = NULL;
	if (zd_member_reduce(&slice->reduction->group->members[slice->owner])->nlenders > 0)
		zd_dirty(e, slice->reduction->group->members[slice->owner].device);
	zd_reduction_try_settle(e, slice->reduction, slice->owner);
}

/* Chunks end in any order; their norms are added up in that of the chunks. */
void zd_slice_try_end(struct zd_engine *e, struct zd_slice *slice)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_op_result result = {.overflow = false};
	if (slice->nspread > 0 || (!r->group->span && slice->nsummed < r->nchunks))
		return;
	for (uint32_t i = 0; i < r->nchunks; i++) {
		result.sum_squares += slice->chunks[i].result.sum_squares;
		result.overflow |= slice->chunks[i].result.overflow;
	}
	zd_norms_note(zd_reduction_window(r, slice->owner), r->unit, &result);
	zd_slice_end(e, slice);
}

/* Do its pieces come from a GPU of which one has failed, whose timeline waits for none any more. */
static bool behind_failed(const struct zd_session *session, const struct zd_slice_chunk *chunk)
{
	for (uint32_t i = 0; i < chunk->nfences; i++) {
		if (zd_timelines_has(&session->failed, chunk->fences[i].timeline))
			return true;
	}
	return false;
}

/* Its pieces had arrived, its sum has ended. */
static void chunk_done(struct zd_engine *e, struct zd_slice *slice, uint32_t chunk)
{
	struct zd_reduction *r = slice->reduction;
	const struct zd_session *session = r->group->members[slice->owner].session;
	const struct zd_slice_chunk *state = &slice->chunks[chunk];
	if (state->ahead && behind_failed(session, state)) { /* it may not have waited for its own */
		zd_slice_failed(e, slice, "a transfer", "one before it has failed");
		return;
	}
	slice->nsummed++;
	if (submitted(&r->ranks[slice->owner]))
		r->ranks[slice->owner].left--;
	if (!zd_reduction_has_partials(r)) {
		zd_slice_spread(e, slice, r->chunk_begin[chunk], chunk_numel(r, chunk));
		zd_slice_try_end(e, slice);
	} else if (slice->nsummed == r->nchunks) {
		zd_rail_slice_ready(e, slice);
	}
}

/* Into the target, or to where the sum of this daemon's ranks goes over the rail from. */
static void aim(const struct zd_slice *slice, uint32_t chunk, struct zd_reduce_desc *desc)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_window *w = zd_reduction_window(r, slice->owner);
	uint64_t bytes = zerod_dtype_bytes(w->target_dtype);
	if (zd_reduction_has_partials(r)) {
		desc->target_dtype = ZEROD_FLOAT32;
		desc->target = zd_rail_partial(slice, chunk);
		desc->postscale = 1.0f;
		desc->overwrite = true;
		return;
	}
	desc->target_dtype = w->target_dtype;
	desc->target = zd_storage_location(slice->target,
	                                   (zd_slice_target_numel(slice) + r->chunk_begin[chunk]) * bytes,
	                                   desc->numel * bytes);
	desc->postscale = zd_reduction_postscale(r);
	desc->overwrite = r->options.overwrite || !zd_norms_has(w, r->unit);
}

static zd_op_fn reduced;

/* In rank order, so that two runs agree bit by bit. Ranks that skipped are left out: zeros change no sum.
 * Ahead: behind the fences of its pieces. */
static void chunk_reduce(struct zd_engine *e, struct zd_slice *slice, uint32_t chunk, bool ahead)
{
	struct zd_slice_chunk *state = &slice->chunks[chunk];
	struct zd_reduction *r = slice->reduction;
	struct piece own = {.source = slice->owner, .owner = slice->owner, .chunk = chunk};
	struct zd_group *group = r->group;
	const struct zd_member *member = &group->members[slice->owner];
	struct zd_location *inputs = zd_calloc(r->nsubmitted, sizeof(*inputs));
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_contribution *c = &r->ranks[rank];
		if (submitted(c))
			inputs[c->order] = rank == slice->owner ? entry_piece(r, own)
			                                        : staged_piece(slice, rank, chunk);
	}
	struct zd_command command = {.kind = ZD_CMD_REDUCE, .device = member->device->index};
	command.u.reduce = (struct zd_reduce_desc){
	        .session = member->session->id,
	        .nfences = ahead ? state->nfences : 0,
	        .fences = state->fences,
	        .numel = chunk_numel(r, chunk),
	        .input_dtype = r->options.dtype,
	        .ninputs = r->nsubmitted,
	        .inputs = inputs,
	        .prescale = r->options.prescale,
	};
	aim(slice, chunk, &command.u.reduce);
	state->given = true;
	state->ahead = ahead;
	zd_slice_use(slice);
	r->ops++;
	zd_op_submit(e, group->job, &command, reduced, r, piece_aux(own));
	free(inputs);
}

static bool may_be_ahead(const struct zd_slice *slice, const struct zd_session *session,
                         const struct zd_slice_chunk *chunk)
{
	return !chunk->given && chunk->pushed == slice->reduction->nsubmitted &&
	       session->nahead < MOST_AHEAD && !behind_failed(session, chunk);
}

/* In the order in which their pieces travel. */
static void sum_ahead(struct zd_engine *e, struct zd_slice *slice)
{
	struct zd_session *session = owners_session(e, slice);
	for (uint32_t chunk = 0; session && !slice->refused && chunk < slice->reduction->nchunks; chunk++) {
		if (!may_be_ahead(slice, session, &slice->chunks[chunk]))
			continue;
		session->nahead++;
		chunk_reduce(e, slice, chunk, true);
	}
}

static void piece_arrived(struct zd_engine *e, struct zd_slice *slice, uint32_t chunk)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_slice_chunk *state = &slice->chunks[chunk];
	if (++state->arrived < r->nsubmitted)
		return;
	if (++slice->ncomplete == r->nchunks && !zd_reduction_has_partials(r))
		zd_sm_move(&zd_sm_slice, &slice->state, ZD_SLICE_REDUCING);
	if (!state->given) {
		chunk_reduce(e, slice, chunk, false);
	} else if (state->summed) {
		chunk_done(e, slice, chunk);
		zd_reduction_drain(e, r, slice->owner);
	}
}

static void chunk_summed(struct zd_engine *e, struct zd_slice *slice, uint32_t chunk,
                         const struct zd_op_result *result)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_slice_chunk *state = &slice->chunks[chunk];
	bool complete = state->arrived == r->nsubmitted;
	if (result->not_begun) {
		zd_assert(state->ahead);
		slice->refused = true;
		state->given = state->ahead = false;
		if (complete)
			chunk_reduce(e, slice, chunk, false);
		return;
	}
	if (!zd_reduction_has_partials(r)) /* else of a part of the sum only */
		state->result = *result;
	state->summed = true;
	if (complete)
		chunk_done(e, slice, chunk);
}

static void reduced(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                    const struct zd_op_result *result)
{
	struct zd_reduction *r = op->owner;
	struct piece piece = piece_of(op);
	struct zd_slice *slice = &r->slices[piece.owner];
	struct zd_session *session = slice->chunks[piece.chunk].ahead ? owners_session(e, slice) : NULL;
	zd_slice_unuse(e, slice);
	if (session)
		session->nahead--;
	if (r->state == ZD_REDUCTION_RUNNING && status == 0)
		chunk_summed(e, slice, piece.chunk, result);
	else if (r->state == ZD_REDUCTION_RUNNING)
		zd_slice_failed(e, slice, "the reduction", error);
	if (r->state == ZD_REDUCTION_RUNNING)
		sum_ahead(e, slice);
	if (r->state != ZD_REDUCTION_DROPPED)
		zd_reduction_drain(e, r, slice->owner);
	zd_reduction_op_end(e, r);
}

/* ---- Pieces -------------------------------------------------------------------------------------------- */

/* Of a group over daemons a part of the sum goes over a rail, where others would be let down by one that was
 * freed too soon. */
static void make_fences(struct zd_engine *e, struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_session *session = r->group->members[slice->owner].session;
	uint32_t npieces = staged_pieces(slice);
	if (npieces == 0 || r->group->span || !e->sink.sums_ahead ||
	    !e->sink.sums_ahead(e->sink.arg, session->id))
		return;
	slice->session = session->id;
	slice->fences = zd_calloc((size_t)npieces * r->nchunks, sizeof(*slice->fences));
	for (uint32_t chunk = 0; chunk < r->nchunks; chunk++)
		slice->chunks[chunk].fences = slice->fences + (size_t)chunk * npieces;
}

/* Whoever sums the chunk ahead waits for this piece too. */
static void sign(struct zd_engine *e, struct zd_slice *slice, uint32_t chunk, struct zd_command *command)
{
	struct zd_session *session = owners_session(e, slice);
	struct zd_slice_chunk *state = &slice->chunks[chunk];
	uint32_t timeline = ZD_TIMELINE_STAGED + command->device;
	if (!session)
		return;
	command->signal = (struct zd_signal){session->id, timeline, ++session->timeline[timeline]};
	state->fences[state->nfences++] = (struct zd_fence){timeline, command->signal.value};
}

/* Sums may have been freed by it, and more would be until a reset has taken the abort back: the session does
 * without from here on. */
static void note_failed(struct zd_engine *e, const struct zd_slice *slice, uint32_t device)
{
	struct zd_session *session = owners_session(e, slice);
	if (!session)
		return;
	zd_timelines_add(&session->aborted, ZD_TIMELINE_STAGED + device);
	zd_timelines_add(&session->failed, ZD_TIMELINE_STAGED + device);
}

static void pushed(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                   const struct zd_op_result *result)
{
	struct zd_reduction *r = op->owner;
	struct piece piece = piece_of(op);
	struct zd_slice *slice = &r->slices[piece.owner];
	struct zd_contribution *c = &r->ranks[piece.source];
	(void)result;
	c->ops--;
	if (status != 0)
		note_failed(e, slice, c->storage->device->index);
	zd_storage_unuse(e, c->storage);
	zd_storage_unuse(e, slice->staging);
	if (r->state == ZD_REDUCTION_RUNNING && status == 0) {
		c->left--;
		piece_arrived(e, slice, piece.chunk);
	} else if (r->state == ZD_REDUCTION_RUNNING) {
		zd_slice_failed(e, slice, "a transfer", error);
	}
	if (r->state != ZD_REDUCTION_DROPPED)
		zd_reduction_drain(e, r, piece.source);
	zd_reduction_op_end(e, r);
}

static void push(struct zd_engine *e, struct zd_slice *slice, uint32_t source, uint32_t chunk)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_contribution *c = &r->ranks[source];
	struct piece piece = {.source = source, .owner = slice->owner, .chunk = chunk};
	slice->chunks[chunk].pushed++;
	if (source == slice->owner) {
		piece_arrived(e, slice, chunk);
		return;
	}
	struct zd_command command = {.kind = ZD_CMD_COPY, .device = c->storage->device->index};
	zd_assert(slice->staging); /* the owner's own piece needs none, others' do */
	command.u.copy.src = entry_piece(r, piece);
	command.u.copy.dst_device = slice->staging->device->index;
	command.u.copy.dst = staged_piece(slice, source, chunk);
	sign(e, slice, chunk, &command);
	c->ops++;
	zd_storage_use(c->storage);
	zd_storage_use(slice->staging);
	r->ops++;
	zd_op_submit(e, r->group->job, &command, pushed, r, piece_aux(piece));
}

void zd_slices_push(struct zd_engine *e, struct zd_reduction *r, uint32_t source)
{
	if (zd_reduction_exchanges(r)) {
		if (r->slices[source].state == ZD_SLICE_OPEN)
			zd_rail_slice_ready(e, &r->slices[source]);
		return;
	}
	for (uint32_t chunk = 0; chunk < r->nchunks; chunk++) {
		for (uint32_t owner = 0; owner < r->group->local_world_size; owner++) {
			if (r->slices[owner].state == ZD_SLICE_OPEN)
				push(e, &r->slices[owner], source, chunk);
		}
	}
	for (uint32_t owner = 0; owner < r->group->local_world_size; owner++)
		sum_ahead(e, &r->slices[owner]);
}

/* Is this daemon's part of the slice there without any piece's arrival. */
static bool is_there(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_contribution *own = &r->ranks[slice->owner];
	if (zd_reduction_exchanges(r))
		return own->state == ZD_CONTRIBUTION_READY || own->state == ZD_CONTRIBUTION_SKIPPED;
	return r->nsubmitted == 0;
}

static void slice_open(struct zd_engine *e, struct zd_slice *slice)
{
	struct zd_reduction *r = slice->reduction;
	zd_sm_move(&zd_sm_slice, &slice->state, ZD_SLICE_OPEN);
	slice->target = zd_reduction_window(r, slice->owner)->target;
	if (is_there(slice)) {
		zd_rail_slice_ready(e, slice);
		return;
	}
	make_fences(e, slice);
	for (uint32_t chunk = 0; chunk < r->nchunks && !zd_reduction_exchanges(r); chunk++) {
		for (uint32_t source = 0; source < r->group->local_world_size; source++) {
			if (r->ranks[source].state == ZD_CONTRIBUTION_READY)
				push(e, slice, source, chunk);
		}
	}
	sum_ahead(e, slice);
}

/* ---- Staging ------------------------------------------------------------------------------------------- */

static uint64_t staging_bytes(struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	uint64_t pieces = zd_reduction_exchanges(r) ? 0 : staged_pieces(slice) * piece_bytes(r);
	return r->group->span ? zd_rail_slice_layout(slice, pieces) : pieces;
}

void zd_slices_start(struct zd_engine *e, struct zd_reduction *r)
{
	uint32_t world = r->group->local_world_size;
	cut(e, r);
	r->slices = zd_calloc(world, sizeof(*r->slices));
	r->nslices = world;
	for (uint32_t rank = 0; rank < world; rank++)
		r->ranks[rank].left = !submitted(&r->ranks[rank]) ? 0
		                      : zd_reduction_exchanges(r) ? 1
		                                                  : world * r->nchunks;
	for (uint32_t owner = 0; owner < world; owner++) {
		struct zd_slice *slice = &r->slices[owner];
		struct zd_device *device = r->group->members[owner].device;
		slice->reduction = r;
		slice->chunks = zd_calloc(r->nchunks, sizeof(*slice->chunks));
		slice->owner = owner;
		if (staging_bytes(slice) == 0 && !zd_slice_target_is_accessed(slice)) {
			slice_open(e, slice);
			continue;
		}
		DL_APPEND(device->staging_queue, slice);
		zd_dirty(e, device);
	}
}

void zd_slices_free(struct zd_reduction *r)
{
	for (uint32_t owner = 0; owner < r->nslices; owner++) {
		free(r->slices[owner].fences);
		free(r->slices[owner].chunks);
	}
	free(r->slices);
	r->slices = NULL;
	r->nslices = 0;
}

void zd_slices_stop(struct zd_engine *e, struct zd_reduction *r)
{
	for (uint32_t owner = 0; r->slices && owner < r->group->local_world_size; owner++) {
		struct zd_slice *slice = &r->slices[owner];
		struct zd_device *device = r->group->members[owner].device;
		if (slice->state == ZD_SLICE_WAITING)
			DL_DELETE(device->staging_queue, slice);
		zd_storage_drop(e, slice->staging); /* the pointer stays valid while an operation uses it */
	}
}

/* The rank's own empty bucket slots make room before a reduction fails for want of it. */
static bool trim_device(struct zd_engine *e, const struct zd_group *group, const struct zd_device *device)
{
	bool any = false;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
		if (mr && mr->member->device == device)
			any |= zd_bucket_trim(e, mr);
	}
	return any;
}

/* Held by slices that go over the owner's rail behind this one, and come free only then. */
static uint64_t held_behind(const struct zd_slice *slice)
{
	const struct zd_group *group = slice->reduction->group;
	uint64_t turn = slice->reduction->ranks[slice->owner].turn, bytes = 0;
	const struct zd_reduction *r;
	TAILQ_FOREACH (r, &group->reductions, link) {
		if (group->span && r->state == ZD_REDUCTION_RUNNING && r->slices[slice->owner].staging &&
		    r->ranks[slice->owner].turn > turn)
			bytes += r->slices[slice->owner].staging->extent.bytes;
	}
	return bytes;
}

static int take_staging(struct zd_engine *e, struct zd_device *device, struct zd_slice *slice,
                        struct zd_err *err)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_member *owner = &r->group->members[slice->owner];
	uint64_t bytes = staging_bytes(slice);
	if (bytes == 0) /* it has waited for its target */
		return 0;
	if (device->staging_bytes > 0 && device->staging_bytes + bytes > device->config.staging_bytes &&
	    !zd_rail_slice_is_next(slice))
		return ZD_WAIT;
	struct zd_segment *segment = NULL;
	if (slice->segment_wait)
		HASH_FIND(hh, e->segments, &slice->segment_wait, sizeof(slice->segment_wait), segment);
	if (slice->segment_wait && !segment)
		return zd_err_set(
		        err, ZEROD_E_NO_MEMORY,
		        "unit '%s' cannot be reduced: device %u gave no segment for %llu bytes of staging",
		        r->unit->name, device->index, (unsigned long long)bytes);
	struct zd_request probe = {0}; /* only to learn which segment is being created */
	int status;
	do {
		status = zd_storage_new(e, &probe, owner, ZD_CHARGE_STAGING, bytes, &slice->staging, err);
	} while (status < 0 && trim_device(e, r->group, device));
	slice->segment_wait = probe.segment_wait;
	if (status >= 0)
		return status;
	/* What other reductions hold comes back by itself, but for what waits for this one. */
	uint64_t held = status == ZEROD_E_QUOTA ? r->group->job->owner->account.bytes[ZD_CHARGE_STAGING]
	                                        : device->staging_bytes;
	return held > held_behind(slice) || zd_window_gives_room(zd_member_reduce(owner)) ? ZD_WAIT : status;
}

/* The first that waits for staging alone is served, or else what a rail waits for. False if nothing has
 * changed. */
static bool serve_one(struct zd_engine *e, struct zd_device *device)
{
	struct zd_slice *slice;
	bool first = true;
	DL_FOREACH(device->staging_queue, slice)
	{
		struct zd_err err = ZD_ERR_NONE;
		if (zd_slice_target_is_accessed(slice))
			continue;
		bool served = first || zd_rail_slice_is_next(slice);
		first = false;
		if (!served)
			continue;
		int status = take_staging(e, device, slice, &err);
		if (status == ZD_WAIT)
			continue;
		if (status != 0) {
			zd_reduction_fail(e, slice->reduction, status, err.text);
			return true;
		}
		DL_DELETE(device->staging_queue, slice);
		slice_open(e, slice);
		zd_dirty_group(e, slice->reduction->group); /* its entries may be promised to others now */
		return true;
	}
	return false;
}

void zd_reduce_settle(struct zd_engine *e, struct zd_device *device)
{
	while (serve_one(e, device))
		;
}

bool zd_reduce_awaits(const struct zd_device *device, uint32_t segment)
{
	const struct zd_slice *slice;
	DL_FOREACH(device->staging_queue, slice)
	{
		if (slice->segment_wait == segment)
			return true;
	}
	return false;
}
