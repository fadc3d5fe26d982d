/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slice.c - a running reduction: pieces travel to their owners' staging memory, each owner's slice is summed.
 *
 * A piece travels as soon as its source's streams have passed and its owner has staging. The owner reads its own piece
 * from the entry. Slices are cut into chunks, so that the sum of one runs while the next one travels. Slices of a device get staging in the order in which their reductions began, within the
 * device's bound; one always may have it, so a slice larger than the bound is reduced alone. A slice for which there is
 * neither memory nor quota waits while others hold some, and fails its reduction when none do.
 */
#include <utlist.h>

#include "core/reduce_internal.h"

#define CHUNK_BYTES       (4ull << 20) /* of gradients; less is slower to move */
#define CHUNK_ALIGN_NUMEL 64u

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
	return r->chunk_begin[chunk + 1] - r->chunk_begin[chunk];
}

/* Each is half of what is left: a sum takes less than half of the time in which its pieces travel, so that it ends while the next
 * chunk travels, and the last one is small. They are few, for a busy GPU lets each wait. By the reduction alone, since a squared
 * norm is the sum of its chunks'. */
static void cut(const struct zd_engine *e, struct zd_reduction *r)
{
	uint64_t each = zerod_dtype_bytes(r->options.dtype), left = r->unit->shard_numel;
	uint64_t least = e->reduction_chunk_bytes ? e->reduction_chunk_bytes : CHUNK_BYTES;
	while (r->nchunks + 1 < ZD_REDUCTION_CHUNKS && left * each > 2 * least) {
		uint64_t numel = zd_min_u64(zd_align_up(left / 2, CHUNK_ALIGN_NUMEL), left);
		r->chunk_begin[r->nchunks + 1] = r->chunk_begin[r->nchunks] + numel;
		r->nchunks++;
		left -= numel;
	}
	if (left > 0 || r->nchunks == 0)
		r->chunk_begin[++r->nchunks] = r->unit->shard_numel;
}

static bool committed(const struct zd_contribution *c)
{
	return c->state == ZD_CONTRIBUTION_COMMITTED || c->state == ZD_CONTRIBUTION_READY;
}

/* Pieces that come from elsewhere. */
static uint32_t staged_pieces(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	return r->ncommitted - committed(&r->ranks[slice->owner]);
}

/* Of a slice that begins there. */
static struct zd_location chunk_at(const struct zd_reduction *r, const struct zd_storage *storage,
                                   uint64_t offset, uint32_t chunk)
{
	uint64_t each = zerod_dtype_bytes(r->options.dtype);
	return zd_storage_location(storage, offset + r->chunk_begin[chunk] * each,
	                           chunk_numel(r, chunk) * each);
}

static struct zd_location staged_piece(const struct zd_slice *slice, uint32_t source, uint32_t chunk)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_contribution *own = &r->ranks[slice->owner], *c = &r->ranks[source];
	uint32_t index = c->order - (committed(own) && own->order < c->order);
	return chunk_at(r, slice->staging, index * zd_reduction_slice_bytes(r), chunk);
}

static struct zd_location entry_piece(const struct zd_reduction *r, struct piece piece)
{
	const struct zd_contribution *c = &r->ranks[piece.source];
	return chunk_at(r, c->storage, c->offset + piece.owner * zd_reduction_slice_bytes(r), piece.chunk);
}

/* The device failed under this slice: nothing that its owner was to read can be trusted. */
static void slice_failed(struct zd_engine *e, struct zd_slice *slice, const char *what, const char *error)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_member *owner = &r->group->members[slice->owner];
	struct zd_err err = ZD_ERR_NONE;
	int status = zd_err_set(&err, ZEROD_E_DEVICE, "%s of unit '%s' for rank %u on device %u: %s", what,
	                        r->unit->name, owner->rank, owner->device->index, error);
	if (owner->session->state == ZD_SESSION_OPEN)
		zd_sm_move(&zd_sm_session, &owner->session->state, ZD_SESSION_POISONED);
	zd_reduction_fail(e, r, status, err.text);
}

/* ---- The sum -------------------------------------------------------------------------------------------- */

/* Chunks end in any order; their norms are added up in that of the chunks. */
static void slice_done(struct zd_engine *e, struct zd_slice *slice)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_op_result result = {.overflow = false};
	for (uint32_t i = 0; i < r->nchunks; i++) {
		result.sum_squares += slice->chunks[i].result.sum_squares;
		result.overflow |= slice->chunks[i].result.overflow;
	}
	zd_step_note(zd_member_reduce(&r->group->members[slice->owner]), r->key[ZD_REDUCTION_UNIT], &result);
	zd_sm_move(&zd_sm_slice, &slice->state, ZD_SLICE_DONE);
	r->ndone++;
	zd_storage_drop(e, slice->staging);
	slice->staging = NULL;
}

static void chunk_done(struct zd_engine *e, struct zd_slice *slice, uint32_t chunk,
                       const struct zd_op_result *result)
{
	struct zd_reduction *r = slice->reduction;
	slice->chunks[chunk].result = *result;
	slice->nsummed++;
	if (committed(&r->ranks[slice->owner]))
		r->ranks[slice->owner].left--;
	if (slice->nsummed == r->nchunks)
		slice_done(e, slice);
}

static void reduced(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                    const struct zd_op_result *result)
{
	struct zd_reduction *r = op->owner;
	struct piece piece = piece_of(op);
	struct zd_slice *slice = &r->slices[piece.owner];
	struct zd_contribution *own = &r->ranks[piece.owner];
	zd_storage_unuse(e, slice->target);
	if (slice->staging)
		zd_storage_unuse(e, slice->staging);
	if (own->storage) {
		own->ops--;
		zd_storage_unuse(e, own->storage);
	}
	if (r->state == ZD_REDUCTION_RUNNING && status == 0)
		chunk_done(e, slice, piece.chunk, result);
	else if (r->state == ZD_REDUCTION_RUNNING)
		slice_failed(e, slice, "the reduction", error);
	if (r->state != ZD_REDUCTION_DROPPED)
		zd_reduction_drain(e, r, slice->owner);
	zd_reduction_op_end(e, r);
}

static void slice_use(struct zd_slice *slice, struct zd_contribution *own)
{
	zd_storage_use(slice->target);
	if (slice->staging)
		zd_storage_use(slice->staging);
	if (own->storage) {
		own->ops++;
		zd_storage_use(own->storage);
	}
}

/* In rank order, so that two runs agree bit by bit. Ranks that skipped are left out: zeros change no sum. */
static void chunk_reduce(struct zd_engine *e, struct zd_slice *slice, uint32_t chunk)
{
	struct zd_reduction *r = slice->reduction;
	struct piece own = {.source = slice->owner, .owner = slice->owner, .chunk = chunk};
	struct zd_group *group = r->group;
	struct zd_member_reduce *mr = zd_member_reduce(&group->members[slice->owner]);
	struct zd_location *inputs = zd_calloc(r->ncommitted, sizeof(*inputs));
	for (uint32_t rank = 0; rank < group->world_size; rank++) {
		const struct zd_contribution *c = &r->ranks[rank];
		if (committed(c))
			inputs[c->order] = rank == slice->owner ? entry_piece(r, own)
			                                        : staged_piece(slice, rank, chunk);
	}
	uint64_t target_bytes = zerod_dtype_bytes(mr->target_dtype), numel = chunk_numel(r, chunk);
	struct zd_command command = {.kind = ZD_CMD_REDUCE, .device = mr->member->device->index};
	command.u.reduce = (struct zd_reduce_desc){
	        .session = mr->member->session->id,
	        .numel = numel,
	        .input_dtype = r->options.dtype,
	        .target_dtype = mr->target_dtype,
	        .ninputs = r->ncommitted,
	        .inputs = inputs,
	        .target = zd_storage_location(
	                mr->target, (r->unit->target_offset_numel + r->chunk_begin[chunk]) * target_bytes,
	                numel * target_bytes),
	        .prescale = r->options.prescale,
	        .postscale = r->options.op == ZEROD_MEAN ? 1.0f / (float)group->world_size : 1.0f,
	        .overwrite = r->options.overwrite,
	};
	if (++slice->ngiven == r->nchunks)
		zd_sm_move(&zd_sm_slice, &slice->state, ZD_SLICE_REDUCING);
	slice->target = mr->target;
	slice_use(slice, &r->ranks[slice->owner]);
	r->ops++;
	zd_op_submit(e, group->job, &command, reduced, r, piece_aux(own));
	free(inputs);
}

static void piece_arrived(struct zd_engine *e, struct zd_slice *slice, uint32_t chunk)
{
	if (++slice->chunks[chunk].arrived == slice->reduction->ncommitted)
		chunk_reduce(e, slice, chunk);
}

/* ---- Pieces -------------------------------------------------------------------------------------------------- */

static void pushed(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                   const struct zd_op_result *result)
{
	struct zd_reduction *r = op->owner;
	struct piece piece = piece_of(op);
	struct zd_slice *slice = &r->slices[piece.owner];
	struct zd_contribution *c = &r->ranks[piece.source];
	(void)result;
	c->ops--;
	zd_storage_unuse(e, c->storage);
	zd_storage_unuse(e, slice->staging);
	if (r->state == ZD_REDUCTION_RUNNING && status == 0) {
		c->left--;
		piece_arrived(e, slice, piece.chunk);
	} else if (r->state == ZD_REDUCTION_RUNNING) {
		slice_failed(e, slice, "a transfer", error);
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
	if (source == slice->owner) {
		piece_arrived(e, slice, chunk);
		return;
	}
	struct zd_command command = {.kind = ZD_CMD_COPY, .device = c->storage->device->index};
	command.u.copy.src = entry_piece(r, piece);
	command.u.copy.dst_device = slice->staging->device->index;
	command.u.copy.dst = staged_piece(slice, source, chunk);
	c->ops++;
	zd_storage_use(c->storage);
	zd_storage_use(slice->staging);
	r->ops++;
	zd_op_submit(e, r->group->job, &command, pushed, r, piece_aux(piece));
}

void zd_slices_push(struct zd_engine *e, struct zd_reduction *r, uint32_t source)
{
	for (uint32_t chunk = 0; chunk < r->nchunks; chunk++) {
		for (uint32_t owner = 0; owner < r->group->world_size; owner++) {
			if (r->slices[owner].state == ZD_SLICE_OPEN)
				push(e, &r->slices[owner], source, chunk);
		}
	}
}

static void slice_open(struct zd_engine *e, struct zd_slice *slice)
{
	struct zd_reduction *r = slice->reduction;
	zd_sm_move(&zd_sm_slice, &slice->state, ZD_SLICE_OPEN);
	for (uint32_t chunk = 0; chunk < r->nchunks; chunk++) {
		for (uint32_t source = 0; source < r->group->world_size; source++) {
			if (r->ranks[source].state == ZD_CONTRIBUTION_READY)
				push(e, slice, source, chunk);
		}
	}
}

/* ---- Staging --------------------------------------------------------------------------------------------------- */

void zd_slices_start(struct zd_engine *e, struct zd_reduction *r)
{
	uint32_t world = r->group->world_size;
	cut(e, r);
	r->slices = zd_calloc(world, sizeof(*r->slices));
	r->nslices = world;
	for (uint32_t rank = 0; rank < world; rank++)
		r->ranks[rank].left = committed(&r->ranks[rank]) ? world * r->nchunks : 0;
	for (uint32_t owner = 0; owner < world; owner++) {
		struct zd_slice *slice = &r->slices[owner];
		struct zd_device *device = r->group->members[owner].device;
		slice->reduction = r;
		slice->chunks = zd_calloc(r->nchunks, sizeof(*slice->chunks));
		slice->owner = owner;
		if (staged_pieces(slice) == 0) {
			slice_open(e, slice);
			continue;
		}
		DL_APPEND(device->staging_queue, slice);
		zd_dirty(e, device);
	}
}

void zd_slices_free(struct zd_reduction *r)
{
	for (uint32_t owner = 0; owner < r->nslices; owner++)
		free(r->slices[owner].chunks);
	free(r->slices);
	r->slices = NULL;
	r->nslices = 0;
}

void zd_slices_stop(struct zd_engine *e, struct zd_reduction *r)
{
	for (uint32_t owner = 0; r->slices && owner < r->group->world_size; owner++) {
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
	for (uint32_t rank = 0; rank < group->world_size; rank++) {
		struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
		if (mr && mr->member->device == device)
			any |= zd_bucket_trim(e, mr);
	}
	return any;
}

static int take_staging(struct zd_engine *e, struct zd_device *device, struct zd_slice *slice,
                        struct zd_err *err)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_member *owner = &r->group->members[slice->owner];
	uint64_t bytes = staged_pieces(slice) * zd_reduction_slice_bytes(r);
	if (device->staging_bytes > 0 && device->staging_bytes + bytes > device->config.staging_bytes)
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
	/* What other reductions hold comes back by itself. */
	bool others = status == ZEROD_E_QUOTA ? r->group->job->owner->account.bytes[ZD_CHARGE_STAGING] > 0
	                                      : device->staging_bytes > 0;
	return status < 0 && others ? ZD_WAIT : status;
}

void zd_reduce_settle(struct zd_engine *e, struct zd_device *device)
{
	struct zd_slice *slice;
	while ((slice = device->staging_queue)) {
		struct zd_err err = ZD_ERR_NONE;
		int status = take_staging(e, device, slice, &err);
		if (status == ZD_WAIT)
			return;
		if (status != 0) {
			zd_reduction_fail(e, slice->reduction, status, err.text);
			continue;
		}
		DL_DELETE(device->staging_queue, slice);
		slice_open(e, slice);
	}
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
