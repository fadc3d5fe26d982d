/* SPDX-License-Identifier: Apache-2.0 */
/*
 * terms.c - ranks that take the terms of a sum in its place.
 *
 * A rank asks for them right behind its submission. Work on a stream then returns them, with a fence behind
 * the work that compares them. Until that fence no command may write there (owner.c).
 */
#include "sim.h"

bool zd_sim_wants_terms(const struct zd_sim_world *world, const struct zd_sim_session *session,
                        const struct zd_sim_op *op)
{
	const struct zd_sim_unit_config *unit = &world->config.groups[op->group].units[op->unit];
	uint64_t index = (uint64_t)(op - world->program.ops);

	return unit->terms && session->members[op->group].handles[op->unit].untargeted && !op->noise &&
	       !zd_sim_on_host(world, op->group, op->unit) && session->members[op->group].in_backward &&
	       !zd_sim_has_sum(world, session, op->group, op->unit) &&
	       zd_sim_mix(world->config.seed, index) % 4 > 0;
}

void zd_sim_ask_terms(struct zd_sim_world *world, struct zd_sim_session *session, const struct zd_sim_op *op)
{
	struct zd_sim_handle *handle = &session->members[op->group].handles[op->unit];
	struct zd_sim_request request = {.op = (uint32_t)(op - world->program.ops),
	                                 .group = op->group,
	                                 .unit = op->unit,
	                                 .terms = true};
	struct zd_args args = {.kind = ZD_REQ_REDUCE_WAIT};

	args.u.reduce_wait.unit = handle->id;
	args.u.reduce_wait.terms = true;
	handle->lending++;
	zd_sim_send(world, session, &request, &args);
}

static struct zd_sim_item *append(struct zd_sim_world *world, struct zd_sim_session *session,
                                  const struct zd_sim_request *request, enum zd_sim_item_kind kind)
{
	uint32_t stream = zd_sim_loan_stream(world, request->group, request->unit);
	struct zd_sim_item *item = zd_sim_stream_append(world, session, stream, kind);

	session->members[request->group].handles[request->unit].accessors |= (uint8_t)(1u << stream);
	item->group = request->group;
	item->unit = request->unit;
	item->value = request->op;
	item->begin = session->members[request->group].backwards - 1;
	return item;
}

/* The own term is in the entry. */
static void check_places(struct zd_sim_world *world, struct zd_sim_session *session,
                         const struct zd_sim_request *request, const struct zd_reply *reply)
{
	const struct zd_sim_group_config *config = &world->config.groups[request->group];
	const struct zd_sim_plan *plan = &config->plan;
	const struct zd_location *entry = &session->members[request->group].handles[request->unit].entry.at;
	const Zd__ReduceWaitReply *terms = &reply->u.reduce_wait;
	enum zerod_dtype dtype = zd_sim_gradient_dtype(config, request->unit);
	uint64_t bytes = zd_sim_shard_numel(config, request->unit) * zerod_dtype_bytes(dtype);
	uint32_t rank = zd_sim_rank(&world->config, session->actor, request->group);

	if (terms->target_dtype != (uint32_t)dtype || terms->own >= terms->nterms ||
	    terms->prescale != (plan->prescale == 0 ? 1 : plan->prescale) ||
	    terms->postscale != (plan->op == ZEROD_MEAN ? 1 / (float)config->world : 1) ||
	    reply->places[0].segment != entry->segment || reply->places[0].bytes != bytes ||
	    reply->places[0].offset != entry->offset + rank * bytes ||
	    reply->places[1].bytes != (terms->nterms - 1) * bytes)
		zd_sim_fail(world, "the terms of %s/%s, %u of dtype %u, are not where and what they must be",
		            config->name, config->units[request->unit].name, terms->nterms,
		            terms->target_dtype);
}

void zd_sim_reply_terms(struct zd_sim_world *world, struct zd_sim_session *session,
                        const struct zd_sim_request *request, const struct zd_reply *reply)
{
	struct zd_sim_handle *handle = &session->members[request->group].handles[request->unit];

	check_places(world, session, request, reply);
	handle->lent = true;
	handle->lent_at = reply->places[0];
	handle->lent_from = (struct zd_fence){0};
	handle->lent_end = session->members[request->group].backwards;
	(void)append(world, session, request, ZD_SIM_ITEM_RETURN);
	for (uint32_t i = 0; i < 1 + (reply->u.reduce_wait.nterms > 1); i++) {
		struct zd_sim_item *item = append(world, session, request, ZD_SIM_ITEM_TERMS);
		zd_sim_target_memory_check(world, session, &reply->places[i], ZD_TARGET_ON_DEVICE);
		zd_sim_location_seen(world, session, &reply->places[i]);
		zd_sim_residue_check(world, &reply->places[i]);
		item->at = reply->places[i];
		item->key = i;
		item->end = reply->u.reduce_wait.nterms - 1; /* of other ranks */
	}
}

/* Unless they were returned already, in front of a step or at the end of a window. */
void zd_sim_terms_return(struct zd_sim_world *world, struct zd_sim_session *session,
                         const struct zd_sim_item *item)
{
	const struct zd_sim_handle *handle = &session->members[item->group].handles[item->unit];
	const struct zd_sim_request request = {
	        .op = (uint32_t)item->value, .group = item->group, .unit = item->unit};

	if (session->open && handle->terms && handle->lent && handle->lent_end == item->begin + 1)
		zd_sim_loans_end(world, session, &request, item->unit);
}

/* The own term, or those of all other ranks in their order. */
void zd_sim_terms_run(struct zd_sim_world *world, const struct zd_sim_session *session,
                      const struct zd_sim_item *item)
{
	const struct zd_sim_group_config *config = &world->config.groups[item->group];
	const struct zd_sim_gradient *gradients =
	        world->groups[item->group].gradients[item->begin % ZD_SIM_BACKWARDS][item->unit];
	enum zerod_dtype dtype = zd_sim_gradient_dtype(config, item->unit);
	uint32_t rank = zd_sim_rank(&world->config, session->actor, item->group);
	uint64_t shard = zd_sim_shard_numel(config, item->unit), at = 0;
	const uint8_t *bytes = zd_sim_memory(world, &item->at, "terms");

	if (!session->open || world->groups[item->group].tainted)
		return;
	for (uint32_t r = 0; r < config->world; r++) {
		if (!gradients[r].present || (r == rank) != (item->key == 0))
			continue;
		for (uint64_t i = rank * shard; i < (rank + 1) * shard; i++, at++) {
			float want = i < config->units[item->unit].numel
			                     ? zd_sim_gradient_value(gradients[r].key, gradients[r].inf_at, i)
			                     : 0;
			float found = zd_sim_float_load(dtype, bytes, at);
			if (found != want)
				zd_sim_fail(world, "%s/%s: rank %u has %g as element %llu of rank %u, not %g",
				            config->name, config->units[item->unit].name, rank, (double)found,
				            (unsigned long long)i, r, (double)want);
		}
	}
	if (at != shard * (item->key ? item->end : 1))
		zd_sim_fail(world, "%s/%s: rank %u has terms of %llu other ranks", config->name,
		            config->units[item->unit].name, rank, (unsigned long long)item->end);
	world->stats.terms_checked++;
}
