/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows_scope.c - the tables of scopes and of their leases against the model, and what each session may see of
 * all tables.
 */
#include <stdio.h>
#include <string.h>

#include "sim.h"

static const char *const state_names[] = {
        [ZD_SIM_SCOPE_OPEN] = "OPEN",
        [ZD_SIM_SCOPE_CLAIM] = "CLAIMED",
        [ZD_SIM_SCOPE_CONTEXT] = "OPEN",
};

static const char *const kind_names[] = {
        [ZD_SIM_SCOPE_OPEN] = "scope",
        [ZD_SIM_SCOPE_CLAIM] = "claim",
        [ZD_SIM_SCOPE_CONTEXT] = "context",
};

static void scope_tag(const struct zd_sim_scope *scope, char *tag, size_t nbytes)
{
	(void)snprintf(tag, nbytes, "@%s %llu", kind_names[scope->state], ZD_ID_NUMBER(scope->id));
}

enum zd_sim_holder zd_sim_scope_holder(const struct zd_sim_member *member, uint32_t unit, const char *tag)
{
	char name[ZD_MAX_TAG_BYTES + 1];
	bool pending = false;

	for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
		const struct zd_sim_scope *scope = &member->scopes[p];
		pending = pending || (scope->state == ZD_SIM_SCOPE_PENDING && scope->units & (1u << unit));
		if (scope->state < ZD_SIM_SCOPE_OPEN)
			continue;
		scope_tag(scope, name, sizeof(name));
		if (strcmp(name, tag) == 0)
			return member->handles[unit].leases[ZD_SIM_TAGS + p].uses ? ZD_SIM_HOLDER_KNOWN
			                                                          : ZD_SIM_HOLDER_NONE;
	}
	return pending && strncmp(tag, "@context ", 9) == 0 ? ZD_SIM_HOLDER_PENDING : ZD_SIM_HOLDER_NONE;
}

/* ---- The table of scopes ------------------------------------------------------------------------------- */

struct tally {
	struct zd_sim_world *world;
	uint32_t known, pending;
};

static bool same_scope(const Zd__ScopeRow *row, const struct zd_sim_member *member, uint32_t place)
{
	const struct zd_sim_scope *scope = &member->scopes[place];
	char name[ZD_MAX_TAG_BYTES + 1];
	uint32_t units = 0;

	scope_tag(scope, name, sizeof(name));
	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++)
		units += member->handles[u].leases[ZD_SIM_TAGS + place].uses > 0;
	return strcmp(row->tag, name) == 0 && strcmp(row->state, state_names[scope->state]) == 0 &&
	       row->parent == scope->parent && row->units == units &&
	       row->context == (scope->state == ZD_SIM_SCOPE_CONTEXT);
}

static bool scope_row(uint64_t id, const Zd__Row *listed, void *arg)
{
	const Zd__ScopeRow *row = listed->scope;
	struct tally *tally = arg;
	const struct zd_sim_session *session = zd_sim_session_find(tally->world, row->session);

	if (strcmp(row->state, "GATHERING") == 0) {
		tally->pending++;
		return true;
	}
	for (uint32_t g = 0; session && session->open && g < tally->world->config.ngroups; g++) {
		const struct zd_sim_member *member = &session->members[g];
		for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
			if (member->scopes[p].state < ZD_SIM_SCOPE_OPEN || member->scopes[p].id != id)
				continue;
			tally->known++;
			if (same_scope(row, member, p))
				return true;
		}
	}
	zd_sim_fail(tally->world, "scope %llu of session %llu is listed as %s, %s, with %u units",
	            (unsigned long long)id, (unsigned long long)row->session, row->tag, row->state,
	            row->units);
}

void zd_sim_scopes_check(struct zd_sim_world *world)
{
	struct tally tally = {.world = world};
	const Zd__List query = {.table = ZD__TABLE__SCOPES};
	struct zd_engine_totals totals;
	uint32_t known = 0, pending = 0;

	(void)zd_engine_list(world->engine, 0, &query, 0, scope_row, &tally);
	for (uint32_t i = 0; i < world->nsessions; i++) {
		for (uint32_t g = 0; world->sessions[i]->open && g < world->config.ngroups; g++) {
			for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
				enum zd_sim_scope_state state =
				        world->sessions[i]->members[g].scopes[p].state;
				known += state >= ZD_SIM_SCOPE_OPEN;
				pending += state == ZD_SIM_SCOPE_PENDING;
			}
		}
	}
	if (tally.known != known || tally.pending != pending)
		zd_sim_fail(world, "there are %u scopes and %u contexts to come, %u and %u are listed", known,
		            pending, tally.known, tally.pending);
	zd_engine_totals(world->engine, &totals);
	if (totals.fallback_gathers != world->fallbacks)
		zd_sim_fail(world, "forward scopes took %llu leases, %llu are counted",
		            (unsigned long long)world->fallbacks,
		            (unsigned long long)totals.fallback_gathers);
}

/* ---- What sessions see --------------------------------------------------------------------------------- */

struct sight {
	struct zd_sim_world *world;
	const struct zd_sim_session *asker;
	uint32_t count, stop_at;
	uint64_t last;
};

static bool count_row(uint64_t id, const Zd__Row *row, void *arg)
{
	struct sight *sight = arg;
	uint32_t uid = sight->world->config.actors[sight->asker->actor].uid;
	bool admin = sight->world->config.actors[sight->asker->actor].admin;

	if (id <= sight->last)
		zd_sim_fail(sight->world, "row %llu of table %d is listed behind %llu",
		            (unsigned long long)id, (int)row->row_case, (unsigned long long)sight->last);
	if (row->row_case == ZD__ROW__ROW_JOB && !admin && row->job->uid != uid)
		zd_sim_fail(sight->world, "uid %u is shown a job of uid %u", uid, row->job->uid);
	if (sight->count == sight->stop_at)
		return false;
	sight->last = id;
	sight->count++;
	return true;
}

/* Page by page there is what there is at once, of its own uid's jobs. */
void zd_sim_sight_check(struct zd_sim_world *world, const struct zd_sim_session *asker)
{
	for (Zd__Table table = ZD__TABLE__JOBS; table < ZD_NTABLES; table++) {
		Zd__List query = {.table = table};
		struct sight all = {.world = world, .asker = asker, .stop_at = UINT32_MAX};
		struct sight paged = {.world = world, .asker = asker};

		/* Any of them: its blocks are of objects in every state. */
		if (world->nsegments)
			query.segment = world->segments[asker->id % world->nsegments].id;
		(void)zd_engine_list(world->engine, asker->id, &query, 0, count_row, &all);
		do {
			paged.stop_at = paged.count + 2;
			query.cursor = zd_engine_list(world->engine, asker->id, &query, 0, count_row, &paged);
		} while (query.cursor);
		if (paged.count != all.count)
			zd_sim_fail(world, "table %d has %u rows for session %llu, by pages %u", (int)table,
			            all.count, (unsigned long long)asker->id, paged.count);
	}
}
