/* SPDX-License-Identifier: Apache-2.0 */
/*
 * issue_update.c - what writes shards: update_begin, publish with the new content on its way, commit.
 *
 * New content has a number that the model notes for the next version; it is written by the CPU or by a stream
 * whose fence the publish carries. What an earlier, refused publish has queued stays in front, on the same
 * stream.
 */
#include "issue.h"

/* The units that the operation names and that `wanted` accepts. */
static uint32_t pick_units(struct zd_sim_issue *issue, bool (*wanted)(const struct zd_sim_handle *))
{
	uint32_t count = 0;

	for (uint32_t u = 0; u < issue->group->nunits; u++) {
		const struct zd_sim_handle *handle = &issue->member->handles[u];
		if ((issue->op->unit != ZD_SIM_ALL_UNITS && issue->op->unit != u) || !handle->id ||
		    !wanted(handle))
			continue;
		issue->ids[count++] = handle->id;
		issue->request.units |= (uint8_t)(1u << u);
	}
	issue->args.u.publish.n_units = count;
	issue->args.u.publish.units = issue->ids;
	return count;
}

static bool not_updating(const struct zd_sim_handle *handle)
{
	return !handle->updating;
}

static bool may_publish(const struct zd_sim_handle *handle)
{
	return handle->updating && !handle->publishing;
}

/* May the units be updated or published: not under leases of their shards; `copies`: under no lease at
 * all. */
static void note_holders(struct zd_sim_issue *issue, bool copies)
{
	const struct zd_sim_member *member = issue->member;

	issue->request.held = false;
	issue->request.unheld = true;
	for (uint32_t u = 0; u < issue->group->nunits; u++) {
		for (uint32_t h = 0; issue->request.units & (1u << u) && h < ZD_SIM_HOLDERS; h++) {
			const struct zd_sim_lease *lease = &member->handles[u].leases[h];
			if (lease->uses == 0)
				continue;
			issue->request.held |= copies || lease->at[ZD_SIM_OWN].segment;
			if (copies || !lease->at[ZD_SIM_LOW].segment || lease->at[ZD_SIM_OWN].segment)
				issue->request.unheld = false; /* a context's may be of either kind */
		}
	}
	for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
		if (member->scopes[p].state == ZD_SIM_SCOPE_PENDING &&
		    member->scopes[p].units & issue->request.units)
			issue->request.unheld = false;
	}
}

bool zd_sim_issue_update_begin(struct zd_sim_issue *issue)
{
	issue->args.kind = ZD_REQ_UPDATE_BEGIN;
	issue->args.u.update_begin.ahead = zd_sim_percent(&issue->rng, 50);
	if (pick_units(issue, not_updating) == 0)
		return false;
	issue->args.u.update_begin.await_leases = zd_sim_percent(&issue->rng, 25);
	note_holders(issue, false);
	if (issue->args.u.update_begin.await_leases) /* the request waits until the units are not held */
		issue->request.held = false;
	issue->request.unheld = issue->request.unheld || issue->args.u.update_begin.await_leases;
	return zd_sim_issue_send(issue);
}

/* The shard's new content. What an earlier, refused publish has queued stays in front, on the same stream. */
static void write_shard(struct zd_sim_issue *issue, uint32_t unit, bool now)
{
	struct zd_sim_shard *shard = &issue->model->shards[unit][issue->rank];
	struct zd_sim_handle *handle = &issue->member->handles[unit];
	uint64_t each = zerod_dtype_bytes(issue->group->units[unit].dtype);
	struct zd_location at = handle->shard;

	at.bytes = zd_sim_true_numel(issue->group, unit, issue->rank) * each;
	if (zd_sim_percent(&issue->rng, 90)) {
		shard->next_key = zd_sim_mix(zd_sim_next(&issue->rng), unit);
		if (now) {
			zd_sim_pattern_write(shard->next_key, zd_sim_memory(issue->world, &at, "shard"),
			                     at.bytes);
		} else {
			struct zd_sim_item *item = zd_sim_stream_append(issue->world, issue->session,
			                                                handle->writer, ZD_SIM_ITEM_WRITE);
			item->at = at;
			item->key = shard->next_key;
		}
	}
	shard->keys[(shard->version + 1) % ZD_SIM_VERSIONS] = shard->next_key;
}

bool zd_sim_issue_publish(struct zd_sim_issue *issue)
{
	bool now = zd_sim_percent(&issue->rng, 20), used[ZD_SIM_STREAMS] = {false};

	issue->args.kind = ZD_REQ_PUBLISH;
	if (pick_units(issue, may_publish) == 0)
		return false;
	for (uint32_t u = 0; u < issue->group->nunits; u++)
		now = now && (!(issue->request.units & (1u << u)) || !issue->member->handles[u].written);
	for (uint32_t u = 0; u < issue->group->nunits; u++) {
		struct zd_sim_handle *handle = &issue->member->handles[u];
		if (!(issue->request.units & (1u << u)))
			continue;
		if (!handle->written)
			handle->writer = (uint8_t)zd_sim_issue_any_stream(issue);
		handle->publishing = handle->written = true;
		write_shard(issue, u, now);
		used[handle->writer] = !now;
	}
	for (uint32_t s = 0; s < ZD_SIM_STREAMS; s++) {
		if (used[s])
			zd_sim_issue_signal_stream(issue, s);
	}
	issue->args.fences = zd_sim_issue_fences(issue);
	issue->args.u.publish.force = issue->op->noise && zd_sim_percent(&issue->rng, 50);
	note_holders(issue, !issue->args.u.publish.force);
	return zd_sim_issue_send(issue);
}

bool zd_sim_issue_commit(struct zd_sim_issue *issue)
{
	issue->args.kind = ZD_REQ_COMMIT;
	issue->args.u.commit.group = zd_sim_issue_group_id(issue);
	issue->args.u.commit.step = issue->request.version = issue->op->arg;
	return zd_sim_issue_group_id(issue) && zd_sim_issue_send(issue);
}
