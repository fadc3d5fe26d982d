/* SPDX-License-Identifier: Apache-2.0 */
/* notices.h - log lines about jobs and lost ranks, for people and for programs that read the journal. */
#ifndef ZD_SERVER_NOTICES_H
#define ZD_SERVER_NOTICES_H

struct zd_api;
struct zd_notice;

/* The field MESSAGE_ID of these lines. They never change: docs/running.md documents them. */
#define ZD_MESSAGE_RANK_DIED "4cfa1a09266c48bdb0ca7aa3aa018621"
#define ZD_MESSAGE_JOB_BEGAN "1fef234d4cf448c4ab9086c0f6ade2be"
#define ZD_MESSAGE_JOB_ENDED "dd2f8ba053d847488903d0eb27f9c980"

void zd_notice_log(struct zd_api *api, const struct zd_notice *notice);

#endif
