/* SPDX-License-Identifier: Apache-2.0 */
/* update.h - updates and publishes of several units. */
#ifndef ZD_CLIENT_UPDATE_H
#define ZD_CLIENT_UPDATE_H

#include "client/lib/base/fence.h"
#include "client/lib/base/handles.h"

/* Units of one client, by the daemon's ids. */
struct zc_unit_list {
	struct zerod_client *client;
	size_t count;
	uint64_t ids[ZD_MAX_UNITS_PER_REQUEST];
};

/* Enters the client of the first unit, and fails if another unit is not this client's. */
int zc_units_take(zerod_unit *const *units, uint32_t count, struct zc_unit_list *list, struct zd_err **err)
        __attribute__((warn_unused_result));
/* As zc_units_take(), for calls that fail while the session is POISONED. */
int zc_update_take(zerod_unit *const *units, uint32_t count, struct zc_unit_list *list, struct zd_err **err)
        __attribute__((warn_unused_result));
/* Reads and checks the caller's options. */
int zc_publish_options(struct zerod_publish_options *options, const struct zerod_publish_options *given,
                       struct zd_err *err) __attribute__((warn_unused_result));
/* Adds the fences, on the client's page, that complete the unit's publish. Returns false if the unit is not
 * being published, or the fences are unknown. With the lock. */
bool zc_publish_writers(const struct zc_unit *unit, struct zc_fence_merge *writers);
/* Publishes the units of the list, after the streams. With a ticket, does not wait for the answer. */
int zc_publish(struct zc_unit_list *list, zerod_unit *const *units, zerod_stream *const *streams,
               uint32_t nstreams, const struct zerod_publish_options *options, zerod_ticket *ticket,
               struct zd_err *err) __attribute__((warn_unused_result));
/* Waits until the units' publishes are answered, or DEADLINE. Until then the daemon accepts no update, move
 * or commit of them. Without the lock. */
int zc_publishes_await(struct zerod_client *client, zerod_unit *const *units, uint32_t count,
                       uint64_t deadline_ns, struct zd_err *err) __attribute__((warn_unused_result));
/* Called with the lock when the session was reset. In a group with shadows, units under update may have been
 * restored to the last commit. */
void zc_updates_reset(struct zerod_client *client);

#endif
