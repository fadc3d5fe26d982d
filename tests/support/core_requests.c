/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_requests.c - requests to a driven engine in words, and a team of ranks that writes known bytes.
 */
#include "core/gather/unit.h"
#include "core_driver.h"

uint64_t core_join(struct core_driver *core, uint64_t session, const struct core_join *join)
{
	struct zd_args args = {.kind = ZD_REQ_GROUP_JOIN};
	args.u.group_join.job = (char *)(join->job ? join->job : "job");
	args.u.group_join.group = (char *)(join->group ? join->group : "world");
	args.u.group_join.world_size = join->world_size;
	args.u.group_join.rank = join->rank;
	args.u.group_join.device = join->device;
	args.u.group_join.durable = join->durable;
	args.u.group_join.shadow = join->shadow;
	args.u.group_join.local_world_size = join->local_world_size;
	args.u.group_join.hybrid = join->hybrid;
	args.u.group_join.collectives = join->exchange ? ZD__COLLECTIVES__NCCL : ZD__COLLECTIVES__COPIES;
	args.u.group_join.unique_ids.data = (uint8_t *)join->ids;
	args.u.group_join.unique_ids.len = join->ids_bytes;
	args.ids_left_s = 3600;
	return core_send(core, session, &args);
}

uint64_t core_register(struct core_driver *core, uint64_t session, uint64_t group,
                       const struct core_unit *unit)
{
	struct zd_args args = {.kind = ZD_REQ_UNIT_REGISTER};
	Zd__View views[ZD_MAX_VIEWS], *list[ZD_MAX_VIEWS];
	args.u.unit_register.group = group;
	args.u.unit_register.name = (char *)unit->name;
	args.u.unit_register.dtype = unit->dtype ? unit->dtype : ZEROD_FLOAT32;
	args.u.unit_register.numel = unit->numel;
	args.u.unit_register.n_views = unit->nviews;
	for (uint32_t i = 0; unit->views && i < unit->nviews; i++) {
		const struct core_view *view = &unit->views[i];
		views[i] = (Zd__View){.name = (char *)view->name,
		                      .offset_numel = view->offset_numel,
		                      .n_shape = view->ndim,
		                      .shape = (uint64_t *)view->shape};
		list[i] = &views[i];
	}
	args.u.unit_register.views = list;
	args.u.unit_register.slot = unit->slot;
	args.u.unit_register.persistent = unit->persistent;
	args.u.unit_register.frozen = unit->frozen;
	args.u.unit_register.all_reduce = unit->all_reduce;
	args.u.unit_register.on_host = unit->on_host;
	args.u.unit_register.copied = unit->copied;
	args.u.unit_register.unsaved = unit->unsaved;
	return core_send(core, session, &args);
}

uint64_t core_update(struct core_driver *core, uint64_t session, uint64_t unit)
{
	struct zd_args args = {.kind = ZD_REQ_UPDATE_BEGIN, .u.update_begin = {.n_units = 1, .units = &unit}};
	return core_send(core, session, &args);
}

uint64_t core_publish(struct core_driver *core, uint64_t session, uint64_t unit)
{
	struct zd_args args = {.kind = ZD_REQ_PUBLISH, .u.publish = {.n_units = 1, .units = &unit}};
	return core_send(core, session, &args);
}

uint64_t core_commit(struct core_driver *core, uint64_t session, uint64_t group, uint64_t step)
{
	struct zd_args args = {.kind = ZD_REQ_COMMIT, .u.commit = {.group = group, .step = step}};
	return core_send(core, session, &args);
}

uint64_t core_set_persistent(struct core_driver *core, uint64_t session, uint64_t unit, bool persistent)
{
	struct zd_args args = {.kind = ZD_REQ_SET_PERSISTENT,
	                       .u.set_persistent = {.unit = unit, .persistent = persistent}};
	return core_send(core, session, &args);
}

uint64_t core_gather_tag(struct core_driver *core, uint64_t session, uint64_t unit, const char *tag,
                         uint32_t uses)
{
	struct zd_args args = {.kind = ZD_REQ_GATHER,
	                       .u.gather = {.unit = unit, .tag = (char *)tag, .uses = uses}};
	return core_send(core, session, &args);
}

uint64_t core_gather(struct core_driver *core, uint64_t session, uint64_t unit)
{
	return core_gather_tag(core, session, unit, CORE_TAG, 1);
}

uint64_t core_gather_version(struct core_driver *core, uint64_t session, uint64_t unit, uint64_t version)
{
	struct zd_args args = {.kind = ZD_REQ_GATHER,
	                       .u.gather = {.unit = unit, .tag = (char *)CORE_TAG, .version = version}};
	return core_send(core, session, &args);
}

uint64_t core_prefetch(struct core_driver *core, uint64_t session, uint64_t unit)
{
	struct zd_args args = {.kind = ZD_REQ_GATHER,
	                       .u.gather = {.unit = unit, .tag = (char *)CORE_TAG, .prefetch = true}};
	return core_send(core, session, &args);
}

uint64_t core_release_tag(struct core_driver *core, uint64_t session, uint64_t unit, const char *tag,
                          const struct zd_fence *fences, uint32_t nfences)
{
	struct zd_args args = {.kind = ZD_REQ_RELEASE,
	                       .u.release = {.unit = unit, .tag = (char *)tag},
	                       .fences = {nfences, fences}};
	return core_send(core, session, &args);
}

uint64_t core_release(struct core_driver *core, uint64_t session, uint64_t unit)
{
	return core_release_tag(core, session, unit, CORE_TAG, NULL, 0);
}

uint64_t core_gather_in(struct core_driver *core, uint64_t session, uint64_t unit, uint64_t scope)
{
	struct zd_args args = {.kind = ZD_REQ_GATHER, .u.gather = {.unit = unit, .scope = scope}};
	return core_send(core, session, &args);
}

uint64_t core_forward_begin(struct core_driver *core, uint64_t session, uint64_t group, uint64_t parent,
                            const struct zd_fence *fences, uint32_t nfences)
{
	struct zd_args args = {.kind = ZD_REQ_FORWARD_BEGIN,
	                       .u.forward_begin = {.group = group, .parent = parent},
	                       .fences = {nfences, fences}};
	return core_send(core, session, &args);
}

uint64_t core_forward_end(struct core_driver *core, uint64_t session, uint64_t scope, bool grad)
{
	struct zd_args args = {.kind = ZD_REQ_FORWARD_END, .u.forward_end = {.scope = scope, .grad = grad}};
	return core_send(core, session, &args);
}

uint64_t core_scope_end(struct core_driver *core, uint64_t session, enum zd_request_kind kind, uint64_t scope,
                        const struct zd_fence *fences, uint32_t nfences)
{
	struct zd_args args = {.kind = kind, .u.forward_end = {.scope = scope}, .fences = {nfences, fences}};
	return core_send(core, session, &args);
}

uint64_t core_context_begin(struct core_driver *core, uint64_t session, const uint64_t *units,
                            uint32_t nunits)
{
	struct zd_args args = {.kind = ZD_REQ_CONTEXT_BEGIN,
	                       .u.context_begin = {.n_units = nunits, .units = (uint64_t *)units}};
	return core_send(core, session, &args);
}

uint64_t core_alloc(struct core_driver *core, uint64_t session, const char *job, uint32_t device,
                    uint64_t bytes)
{
	struct zd_args args = {
	        .kind = ZD_REQ_ALLOC,
	        .u.alloc = {.job = (char *)job, .name = (char *)"scratch", .device = device, .bytes = bytes}};
	return core_send(core, session, &args);
}

uint64_t core_simple(struct core_driver *core, uint64_t session, enum zd_request_kind kind, uint64_t id)
{
	struct zd_args args = {.kind = kind, .u.abort_group.group = id};
	return core_send(core, session, &args);
}

void core_do(struct core_driver *core, uint64_t session, enum zd_request_kind kind, uint64_t id)
{
	core_expect(core, core_simple(core, session, kind, id), 0);
}

uint64_t core_join_ok(struct core_driver *core, uint64_t session, const struct core_join *join)
{
	return core_expect(core, core_join(core, session, join), 0)->u.group_join.group;
}

uint64_t core_register_ok(struct core_driver *core, uint64_t session, uint64_t group,
                          const struct core_unit *unit)
{
	return core_expect(core, core_register(core, session, group, unit), 0)->u.unit_register.unit;
}

uint64_t core_alloc_ok(struct core_driver *core, uint64_t session, const char *job, uint32_t device,
                       uint64_t bytes)
{
	return core_expect(core, core_alloc(core, session, job, device, bytes), 0)->u.alloc.allocation;
}

uint64_t core_publish_after(struct core_driver *core, uint64_t session, uint64_t unit, struct zd_fence fence)
{
	struct zd_args args = {
	        .kind = ZD_REQ_PUBLISH, .u.publish = {.n_units = 1, .units = &unit}, .fences = {1, &fence}};
	return core_send(core, session, &args);
}

uint64_t core_free(struct core_driver *core, uint64_t session, uint64_t allocation,
                   const struct zd_fence *fence)
{
	struct zd_args args = {
	        .kind = ZD_REQ_FREE, .u.free = {.allocation = allocation}, .fences = {fence != NULL, fence}};
	return core_send(core, session, &args);
}

/* ---- Teams --------------------------------------------------------------------------------------------- */

void core_team_join(struct core_team *team, struct core_driver *core, const struct core_join *options)
{
	struct core_row device;
	uint64_t request[CORE_TEAM];
	uint32_t world_size = options->world_size, ndevices = core_rows(core, ZD__TABLE__DEVICES, &device, 1);
	assert_true(world_size <= CORE_TEAM);
	*team = (struct core_team){.core = core, .world_size = world_size, .nranks = world_size};
	for (uint32_t rank = 0; rank < world_size; rank++) {
		struct core_join join = *options;
		join.rank = rank;
		join.device = rank % ndevices;
		team->session[rank] = core_open(core, CORE_ALICE);
		request[rank] = core_join(core, team->session[rank], &join);
	}
	for (uint32_t rank = 0; rank < world_size; rank++)
		team->group = core_expect(core, request[rank], 0)->u.group_join.group;
}

void core_team_enter(struct core_team *team, struct core_driver *core, const uint64_t *sessions,
                     uint32_t nranks)
{
	uint64_t request[CORE_TEAM];
	*team = (struct core_team){.core = core, .world_size = nranks, .nranks = nranks};
	for (uint32_t rank = 0; rank < nranks; rank++) {
		team->session[rank] = sessions[rank];
		request[rank] = core_join(core, sessions[rank],
		                          &(struct core_join){.world_size = nranks, .rank = rank});
	}
	for (uint32_t rank = 0; rank < nranks; rank++)
		team->group = core_expect(core, request[rank], 0)->u.group_join.group;
}

struct core_team core_team_new(struct core_driver *core, const char *job, uint32_t world_size, bool durable)
{
	struct core_team team;
	core_team_join(&team, core,
	               &(struct core_join){.job = job, .world_size = world_size, .durable = durable});
	return team;
}

uint64_t core_team_register(struct core_team *team, const struct core_unit *unit)
{
	uint64_t id = 0;
	for (uint32_t rank = 0; rank < team->nranks; rank++) {
		uint64_t request = core_register(team->core, team->session[rank], team->group, unit);
		uint64_t seen = core_expect(team->core, request, 0)->u.unit_register.unit;
		assert_true(id == 0 || id == seen);
		id = seen;
	}
	return id;
}

uint64_t core_team_slot_unit(struct core_team *team, const char *name, uint64_t padded_bytes, uint32_t slot)
{
	struct core_unit unit = {.name = name, .numel = padded_bytes / 4, .slot = slot};
	uint64_t id = core_team_register(team, &unit);
	assert_true(padded_bytes % ((uint64_t)team->world_size * ZD_SHARD_ALIGN_BYTES) == 0);
	core_team_publish(team, id);
	return id;
}

uint64_t core_team_unit(struct core_team *team, const char *name, uint64_t padded_bytes)
{
	return core_team_slot_unit(team, name, padded_bytes, ZEROD_NO_SLOT);
}

uint8_t core_pattern(uint32_t rank, uint64_t version)
{
	return (uint8_t)((uint64_t)rank * 16 + version);
}

/* The rank's shard, found as a second registration finds it. */
static const struct zd_reply *find_shard(struct core_team *team, uint64_t unit, uint32_t rank)
{
	struct core_row row;
	core_row(team->core, ZD__TABLE__UNITS, unit, &row);
	assert_int_equal(row.row->unit->views, 1);
	struct core_unit again = {
	        .name = row.name,
	        .dtype = row.row->unit->dtype,
	        .numel = row.row->unit->numel,
	        .slot = row.row->unit->slot,
	        .frozen = row.row->unit->frozen,
	        .all_reduce = row.row->unit->all_reduce,
	        .on_host = row.row->unit->on_host,
	        .copied = zd_unit_find(core_engine(team->core), unit)->copied,
	        .unsaved = zd_unit_find(core_engine(team->core), unit)->unsaved,
	};
	return core_expect(team->core, core_register(team->core, team->session[rank], team->group, &again),
	                   0);
}

void core_team_write(struct core_team *team, uint64_t unit, uint32_t rank)
{
	const struct zd_reply *reply = find_shard(team, unit, rank);
	memset(core_bytes(team->core, reply->place),
	       core_pattern(team->first_rank + rank, reply->u.unit_register.version + 1), reply->place.bytes);
}

void core_team_publish_rank(struct core_team *team, uint64_t unit, uint32_t rank)
{
	core_expect(team->core, core_update(team->core, team->session[rank], unit), 0);
	core_team_write(team, unit, rank);
	core_expect(team->core, core_publish(team->core, team->session[rank], unit), 0);
}

void core_team_publish(struct core_team *team, uint64_t unit)
{
	for (uint32_t rank = 0; rank < team->nranks; rank++)
		core_team_publish_rank(team, unit, rank);
}

/* Where the slice of a gathered buffer is that has `nshards` of them, also in place. */
static struct zd_location slice_of(const struct zd_reply *gather, uint32_t index, uint32_t nshards)
{
	const struct zd_frames *frames = &gather->frames;
	struct zd_location slice = gather->place;
	uint64_t bytes = slice.bytes / nshards;
	assert_int_equal(gather->kind, ZD_REQ_GATHER);
	assert_true(index < nshards && (slice.segment == 0) == (frames->own.segment != 0));
	if (frames->own.segment != 0) {
		bytes = frames->own.bytes;
		assert_int_equal(frames->low.bytes + bytes + frames->high.bytes, nshards * bytes);
		assert_int_equal(frames->low.bytes % bytes, 0);
		uint32_t own = (uint32_t)(frames->low.bytes / bytes);
		slice = index < own ? frames->low : index == own ? frames->own : frames->high;
		index = index < own ? index : index == own ? 0 : index - own - 1;
	}
	slice.offset += index * bytes;
	slice.bytes = bytes;
	return slice;
}

void core_team_check(struct core_team *team, const struct zd_reply *gather, uint64_t version)
{
	assert_true(gather->u.gather.version == version);
	for (uint32_t rank = 0; rank < team->world_size; rank++) {
		struct zd_location slice = slice_of(gather, rank, team->world_size);
		const uint8_t *data = core_bytes(team->core, slice);
		for (uint64_t i = 0; i < slice.bytes; i++) {
			if (data[i] != core_pattern(rank, version))
				fail_msg("byte %llu is %#x, not that of rank %u, version %llu",
				         (unsigned long long)i, data[i], rank, (unsigned long long)version);
		}
	}
}
