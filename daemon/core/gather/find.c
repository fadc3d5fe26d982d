/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find.c - finds units by id and by name, and a session's parts of them.
 */
#include <string.h>

#include "base/text.h"
#include "core/gather/unit.h"

struct zd_unit *zd_unit_find(const struct zd_engine *e, uint64_t id)
{
	struct zd_hash_node *node = zd_hash_first(&e->units, zd_hash_id(id));
	return node ? ZD_CONTAINER_OF(node, struct zd_unit, by_id) : NULL;
}

struct zd_unit *zd_unit_find_name(const struct zd_group *group, const char *name, bool is_former)
{
	struct zd_hash_node *node = zd_hash_first(&group->unit_names, zd_text_hash(name));
	for (; node; node = zd_hash_next(node)) {
		struct zd_unit *unit = ZD_CONTAINER_OF(node, struct zd_unit, by_name);
		if (unit->is_former == is_former && strcmp(unit->name, name) == 0)
			return unit;
	}
	return NULL;
}

int zd_part_find(struct zd_engine *e, struct zd_session *session, uint64_t id, struct zd_part **out,
                 struct zd_err *err)
{
	const struct zd_unit *unit = zd_unit_find(e, id);
	const struct zd_member *member = unit ? zd_member_of(e, session, unit->group) : NULL;
	if (!member || !zd_part_is_complete(&unit->parts[member->rank]))
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "this session has not registered unit %llu",
		                  ZD_ID_NUMBER(id));
	*out = &unit->parts[member->rank];
	return 0;
}

/* These loops do little except access memory, so that the processor handles many cache misses at once. */
void zd_parts_find(const struct zd_engine *e, const struct zd_session *session, const uint64_t *ids,
                   uint32_t count, struct zd_part **parts)
{
	struct zd_hash_node *nodes[ZD_HASH_MOST];
	const struct zd_member *member = TAILQ_FIRST(&session->members);
	zd_hash_first_of_ids(&e->units, ids, count, nodes);
	for (uint32_t i = 0; i < count; i++) {
		const struct zd_unit *unit = nodes[i] ? ZD_CONTAINER_OF(nodes[i], struct zd_unit, by_id)
		                                      : NULL;
		if (unit && (!member || member->group != unit->group))
			member = zd_member_of(e, session, unit->group);
		parts[i] = unit && member ? &unit->parts[member->rank] : NULL;
		for (size_t at = 0; at < sizeof(*parts[i]) && parts[i]; at += 64)
			__builtin_prefetch((const char *)parts[i] + at, 1);
	}
	for (uint32_t i = 0; i < count; i++) {
		if (parts[i] && !zd_part_is_complete(parts[i]))
			parts[i] = NULL;
	}
}

bool zd_engine_find_ahead(struct zd_engine *e, uint64_t id, const struct zd_args *args, uint32_t most)
{
	const struct zd_session *session = zd_session_find(e, id);
	struct zd_found *found = args->found;
	uint32_t nunits = args->u.publish.n_units;
	zd_assert(session);
	if (!found->parts)
		*found = (struct zd_found){.parts = zd_calloc(nunits, sizeof(struct zd_part *)),
		                           .serial = e->parts_serial};
	if (found->nparts >= nunits || found->serial != e->parts_serial)
		return true;
	uint32_t end = (uint32_t)zd_min_u64(nunits, (uint64_t)found->nparts + most), count;
	for (; found->nparts < end; found->nparts += count) {
		count = (uint32_t)zd_min_u64(end - found->nparts, ZD_HASH_MOST);
		zd_parts_find(e, session, &args->u.publish.units[found->nparts], count,
		              &found->parts[found->nparts]);
	}
	return false;
}
