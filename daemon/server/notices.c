/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notices.c - logs the engine's reports of jobs and lost ranks.
 *
 * The engine knows that a session ended without a goodbye. The connection knows why. A process that died is a
 * warning with a MESSAGE_ID. A connection that the daemon ended for an error is a warning without one. The
 * end of the daemon itself is not a warning.
 */
#include "server/notices.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/err.h"
#include "base/log.h"
#include "base/text.h"
#include "server/api.h"
#include "server/loop.h"
#include "server/session.h"

struct fields {
	struct zd_log_field all[ZD_LOG_MAX_FIELDS];
	size_t count;
};

__attribute__((format(printf, 3, 4))) static void add(struct fields *fields, const char *key,
                                                      const char *format, ...)
{
	struct zd_log_field *field = &fields->all[fields->count++];
	va_list args;

	zd_assert(fields->count <= ZD_LOG_MAX_FIELDS);
	field->key = key;
	va_start(args, format);
	(void)vsnprintf(field->value, sizeof(field->value), format, args);
	va_end(args);
}

static void log_began(const struct zd_notice *notice)
{
	struct fields fields = {.count = 0};

	add(&fields, "MESSAGE_ID", "%s", ZD_MESSAGE_JOB_BEGAN);
	add(&fields, "ZEROD_JOB", "%s", notice->job);
	add(&fields, "ZEROD_UID", "%u", notice->uid);
	zd_log_with(ZD_LOG_INFO, fields.all, fields.count, "job '%s' (uid %u) started", notice->job,
	            notice->uid);
}

static void log_ended(const struct zd_notice *notice)
{
	uint64_t lasted_ns = zd_loop_now_ns() - notice->began_ns;
	struct fields fields = {.count = 0};
	char peak[ZD_BYTES_TEXT];

	add(&fields, "MESSAGE_ID", "%s", ZD_MESSAGE_JOB_ENDED);
	add(&fields, "ZEROD_JOB", "%s", notice->job);
	add(&fields, "ZEROD_UID", "%u", notice->uid);
	add(&fields, "ZEROD_DURATION_NS", "%" PRIu64, lasted_ns);
	add(&fields, "ZEROD_PEAK_BYTES", "%" PRIu64, notice->peak_bytes);
	zd_log_with(ZD_LOG_INFO, fields.all, fields.count, "job '%s' (uid %u) ended after %.1f s, peak %s",
	            notice->job, notice->uid, (double)lasted_ns / 1e9,
	            zd_bytes_text(notice->peak_bytes, peak));
}

static void log_lost(const struct zd_notice *notice, const struct zd_err *why)
{
	bool died = why->status == ZEROD_E_DISCONNECTED;
	struct fields fields = {.count = 0};
	char more[64] = "";

	if (died)
		add(&fields, "MESSAGE_ID", "%s", ZD_MESSAGE_RANK_DIED);
	add(&fields, "ZEROD_JOB", "%s", notice->job);
	add(&fields, "ZEROD_GROUP", "%s", notice->group);
	add(&fields, "ZEROD_RANK", "%u", notice->rank);
	add(&fields, "ZEROD_DEVICE", "%u", notice->device);
	add(&fields, "ZEROD_PID", "%u", notice->pid);
	add(&fields, "ZEROD_UID", "%u", notice->uid);
	add(&fields, "ZEROD_SESSION", "%llu", ZD_ID_NUMBER(notice->session));
	if (notice->more)
		(void)snprintf(more, sizeof(more), "; it was a rank of %u more groups", notice->more);
	zd_log_with(ZD_LOG_WARNING, fields.all, fields.count,
	            "job '%s', group '%s', rank %u, device %u, pid %u, uid %u: %s%s%s", notice->job,
	            notice->group, notice->rank, notice->device, notice->pid, notice->uid,
	            died ? "died without goodbye" : "its session was ended: ", died ? "" : why->text, more);
}

static void log_late(const struct zd_notice *notice)
{
	struct fields fields = {.count = 0};

	add(&fields, "ZEROD_DEVICE", "%u", notice->device);
	add(&fields, "ZEROD_PID", "%u", notice->pid);
	add(&fields, "ZEROD_UID", "%u", notice->uid);
	add(&fields, "ZEROD_SESSION", "%llu", ZD_ID_NUMBER(notice->session));
	zd_log_with(ZD_LOG_WARNING, fields.all, fields.count,
	            "session %llu (pid %u, uid %u) has not unmapped unused memory of device %u in time: "
	            "disconnected",
	            ZD_ID_NUMBER(notice->session), notice->pid, notice->uid, notice->device);
}

static void log_unpinned(const struct zd_notice *notice)
{
	struct fields fields = {.count = 0};

	add(&fields, "ZEROD_JOB", "%s", notice->job);
	add(&fields, "ZEROD_GROUP", "%s", notice->group);
	add(&fields, "ZEROD_PID", "%u", notice->pid);
	add(&fields, "ZEROD_SESSION", "%llu", ZD_ID_NUMBER(notice->session));
	zd_log_with(ZD_LOG_WARNING, fields.all, fields.count,
	            "job '%s', group '%s': session %llu (pid %u) has pinned step %llu until its deadline: "
	            "the pin is revoked",
	            notice->job, notice->group, ZD_ID_NUMBER(notice->session), notice->pid,
	            (unsigned long long)notice->step);
}

void zd_notice_log(struct zd_api *api, const struct zd_notice *notice)
{
	const struct zd_api_session *session;

	switch (notice->kind) {
	case ZD_NOTICE_JOB_BEGAN:
		log_began(notice);
		break;
	case ZD_NOTICE_JOB_ENDED:
		log_ended(notice);
		break;
	case ZD_NOTICE_UNMAP_LATE:
		log_late(notice);
		break;
	case ZD_NOTICE_PIN_LATE:
		log_unpinned(notice);
		break;
	case ZD_NOTICE_JOB_LOST:
		zd_keeper_job_lost(&api->bridge.keeper, notice);
		break;
	case ZD_NOTICE_RANK_LOST:
		session = zd_api_session_find(api, notice->session);
		if (session && session->why_ended && session->why_ended->status != ZEROD_E_SHUTDOWN)
			log_lost(notice, session->why_ended);
		break;
	}
}
