/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask.h - what the functions that make requests share. Each makes one kind of request, and returns false if
 * the model says that it is not valid now.
 */
#ifndef ZD_TESTS_FUZZ_ASK_H
#define ZD_TESTS_FUZZ_ASK_H

#include "tests/fuzz/model.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* The constants of a place, and of a unit of any of them. */
struct fuzz_place {
	const char *job, *groups[FUZZ_RANKS];
	uint32_t world_size;
	bool durable, shadow, nccl;
};
extern const struct fuzz_place fuzz_places[FUZZ_PLACES];

struct fuzz_unit_terms {
	const char *name;
	uint32_t dtype, slot;
	uint64_t numel;
	bool all_reduce;
};
extern const struct fuzz_unit_terms fuzz_units[FUZZ_UNITS];

/* The rank and the objects that a request is made for. */
struct step {
	struct fuzz_call *call;
	struct fuzz_picks *picks;
	struct fuzz_actor *actor;
	struct fuzz_member *m;
	struct fuzz_unit *u;
	unsigned rank, user;
};

#define ASK(KIND, field, ...)                                                                                \
	(s->call->request.body_case = ZD__REQUEST__BODY_##KIND,                                              \
	 s->call->body.field =                                                                               \
	         (__typeof__(s->call->body.field)){                                                          \
	                 .base = PROTOBUF_C_MESSAGE_INIT(&zd__##field##__descriptor), ##__VA_ARGS__},        \
	 true)
#define PICK(among) fuzz_pick(s->picks, among)

/* Most requests name no fence. */
#define WITH_FENCES(field) fuzz_add_fence(s, &s->call->body.field.n_fences, &s->call->body.field.fences)
bool fuzz_add_fence(struct step *s, size_t *count, Zd__Fence ***fences);

/* For what sessions do not survive. A foreign request has no effect, and is not rare. */
bool fuzz_rarely(struct step *s, uint32_t among);
/* The core treats the group as one that spans daemons: it has no barriers, agreements and loads. */
bool fuzz_spans(const struct step *s);
bool fuzz_has_units(const struct step *s, uint64_t version);
/* The rank neither holds nor writes the unit. */
bool fuzz_is_idle(const struct fuzz_unit *u);

bool fuzz_ask_barrier(struct step *s);
bool fuzz_ask_agree(struct step *s);
bool fuzz_ask_commit(struct step *s);
bool fuzz_ask_commit_save(struct step *s);
bool fuzz_ask_commit_wait(struct step *s);
bool fuzz_ask_unit_read(struct step *s);
bool fuzz_ask_unit_map(struct step *s);
bool fuzz_ask_leave(struct step *s);
bool fuzz_ask_unit_register(struct step *s);
bool fuzz_ask_set_persistent(struct step *s);
bool fuzz_ask_set_slot(struct step *s);
bool fuzz_ask_set_frozen(struct step *s);
bool fuzz_ask_unregister(struct step *s);
bool fuzz_ask_update_begin(struct step *s);
bool fuzz_ask_alloc_load(struct step *s);
bool fuzz_ask_load(struct step *s);
bool fuzz_ask_place(struct step *s);
bool fuzz_ask_publish(struct step *s);
bool fuzz_ask_release(struct step *s);
bool fuzz_ask_gather(struct step *s);
bool fuzz_ask_gather_in_scope(struct step *s);
bool fuzz_ask_claim_end(struct step *s);
bool fuzz_ask_scope_abandon(struct step *s);
bool fuzz_ask_forward_begin(struct step *s);
bool fuzz_ask_forward_end(struct step *s);
bool fuzz_ask_context_end(struct step *s);
bool fuzz_ask_context_begin(struct step *s);
bool fuzz_ask_bucket_create(struct step *s);
bool fuzz_ask_reserve(struct step *s);
bool fuzz_ask_skip(struct step *s);
bool fuzz_ask_submit(struct step *s);
bool fuzz_ask_reduce_wait(struct step *s);
bool fuzz_ask_target_return(struct step *s);
bool fuzz_ask_backward_abandon(struct step *s);
bool fuzz_ask_backward_end(struct step *s);
bool fuzz_ask_step_begin(struct step *s);
bool fuzz_ask_step_get(struct step *s);
bool fuzz_ask_step_end(struct step *s);
bool fuzz_ask_backward_begin(struct step *s);
bool fuzz_ask_bucket_destroy(struct step *s);
bool fuzz_ask_join(struct step *s);
bool fuzz_ask_alloc(struct step *s);
bool fuzz_ask_free_allocation(struct step *s);
bool fuzz_ask_list(struct step *s);
bool fuzz_ask_events(struct step *s);
bool fuzz_ask_status(struct step *s);
bool fuzz_ask_trim(struct step *s);
bool fuzz_ask_unique_ids(struct step *s);
bool fuzz_ask_reset(struct step *s);
bool fuzz_ask_kill_session(struct step *s);
bool fuzz_ask_abort_group(struct step *s);
bool fuzz_ask_end_job(struct step *s);
bool fuzz_ask_kill_job(struct step *s);
bool fuzz_ask_drain(struct step *s);

#endif
