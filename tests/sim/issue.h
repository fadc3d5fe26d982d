/* SPDX-License-Identifier: Apache-2.0 */
/* issue.h - an operation of the training on its way to become a request: what issue.c and issue_update.c
 * share. */
#ifndef ZD_SIM_ISSUE_H
#define ZD_SIM_ISSUE_H

#include "sim.h"

struct zd_sim_issue {
	struct zd_sim_world *world;
	struct zd_sim_session *session;
	const struct zd_sim_op *op;
	struct zd_sim_rng rng;
	const struct zd_sim_group_config *group;
	struct zd_sim_group *model;
	struct zd_sim_member *member;
	struct zd_sim_handle *handle;
	uint32_t rank;
	struct zd_sim_request request;
	struct zd_args args;
	struct zd_fence fences[ZD_SIM_STREAMS];
	uint32_t nfences;
	Zd__View views[2], *list[2];
	uint64_t shapes[2][2];
	uint64_t ids[ZD_SIM_UNITS];
};

/* issue.c */
bool zd_sim_issue_send(struct zd_sim_issue *issue);
struct zd_fence_list zd_sim_issue_fences(struct zd_sim_issue *issue);
/* A fence behind what the stream has to do now, for zd_sim_issue_fences(). */
void zd_sim_issue_signal_stream(struct zd_sim_issue *issue, uint32_t stream);
uint32_t zd_sim_issue_any_stream(struct zd_sim_issue *issue);
/* The group's id; noise knows it from another rank when its own join is not answered yet. */
uint64_t zd_sim_issue_group_id(const struct zd_sim_issue *issue);

/* issue_update.c: false: the operation makes no sense now */
bool zd_sim_issue_update_begin(struct zd_sim_issue *issue);
bool zd_sim_issue_publish(struct zd_sim_issue *issue);
bool zd_sim_issue_commit(struct zd_sim_issue *issue);
/* place.c */
bool zd_sim_issue_place(struct zd_sim_issue *issue);

#endif
