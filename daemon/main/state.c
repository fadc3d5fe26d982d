/* SPDX-License-Identifier: Apache-2.0 */
/* state.c - the store for the state of durable jobs. */
#include "main/state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "main/activation.h"
#include "main/notify.h"

#define MANAGER_ROOM 16384u /* of the packaged unit */

static int put_at_manager(void *arg, const char *name, int fd, struct zd_err *err)
{
	struct zd_state *state = arg;

	if (zd_notify_store(state->notify, name, fd) < 0)
		return zd_err_errno(err, errno, "giving %s to the service manager", name);
	return 0;
}

static void remove_at_manager(void *arg, const char *name)
{
	struct zd_state *state = arg;

	zd_notify_remove(state->notify, name);
}

static int error_of_manager(void *arg)
{
	const struct zd_state *state = arg;

	return state->notify->error;
}

/* The room of the manager's store, by systemd's variable, which the packaged unit sets for older versions.
 * Beyond it the manager drops descriptors without an error. */
static uint32_t room_at_manager(void)
{
	const char *text = getenv("FDSTORE");
	unsigned long room = text ? strtoul(text, NULL, 10) : 0;

	if (room > 0 && room < UINT32_MAX)
		return (uint32_t)room;
	zd_log(ZD_LOG_WARNING,
	       "FDSTORE= in the environment is not a number: assuming FileDescriptorStoreMax=%u",
	       MANAGER_ROOM);
	return MANAGER_ROOM;
}

static void note(void *arg, enum zd_kept kept)
{
	zd_marker_write(arg, kept);
}

static void discard_found(struct zd_store *store)
{
	for (size_t i = 0; i < store->nfound; i++) {
		(void)close(store->found[i].fd);
		store->found[i].fd = -1;
		store->remove(store->arg, store->found[i].name);
	}
}

int zd_state_open(struct zd_state *state, const struct zd_config *config, bool discard,
                  const char *socket_path, struct zd_notify *notify, struct zd_store **store,
                  struct zd_err *err)
{
	enum zd_keep_state where = config->keep_state;
	int rc = 0;

	*state = (struct zd_state){.notify = notify, .holder = {.sock = -1}};
	*store = NULL;
	state->manager = (struct zd_store){
	        .arg = state, .put = put_at_manager, .remove = remove_at_manager, .error = error_of_manager};
	state->manager.nfound = zd_activation_take_stored(&state->manager.found);
	/* Passed descriptors must be restored, regardless of the environment. */
	if (where == ZD_KEEP_AUTO)
		where = getenv("FDSTORE") || state->manager.nfound > 0 ? ZD_KEEP_SYSTEMD : ZD_KEEP_NONE;
	if (where == ZD_KEEP_SYSTEMD) {
		state->manager.room = room_at_manager();
		*store = &state->manager;
	}
	if (where == ZD_KEEP_HOLDER)
		rc = zd_holder_open(&state->holder, socket_path, config->keep_state_ttl_s, err);
	if (where == ZD_KEEP_HOLDER && rc == 0)
		*store = &state->holder.store;
	if (!*store)
		return rc;
	zd_marker_init(&state->marker, socket_path, where == ZD_KEEP_HOLDER ? "holder" : "systemd");
	(*store)->note = note;
	(*store)->note_arg = &state->marker;
	(*store)->expected = zd_marker_read(&state->marker);
	if (discard || (*store)->expected == ZD_KEPT_LOST)
		discard_found(*store);
	if (discard) {
		(*store)->expected = ZD_KEPT_NOTHING;
		note(&state->marker, ZD_KEPT_NOTHING);
	}
	return 0;
}

void zd_state_close(struct zd_state *state)
{
	for (size_t i = 0; i < state->manager.nfound; i++) {
		if (state->manager.found[i].fd >= 0)
			(void)close(state->manager.found[i].fd);
	}
	free(state->manager.found);
	zd_holder_close(&state->holder);
}
