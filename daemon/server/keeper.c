/* SPDX-License-Identifier: Apache-2.0 */
/* keeper.c - preserves durable jobs across restarts of the daemon. */
#include "server/keeper.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <uv.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "core/engine.h"
#include "server/bridge.h"
#include "server/creds.h"

#define REGISTRY     "registry"
#define STEP_OBJECTS 64u
#define OBJECT_BYTES 64u /* less than most objects' records */

struct zd_kept_segment {
	uint32_t id;
	bool dropped;               /* leaves the store with the next write */
	struct zd_command *destroy; /* for the backend, with the next write; NULL: none */
};

/* ---- Processes of the former daemon's sessions --------------------------------------------------------- */

struct zd_former {
	struct zd_keeper *keeper;
	uint64_t op, session;
	uid_t uid;
	pid_t pid;
	int pidfd; /* -1: its end cannot be watched */
	uv_poll_t poll;
	LIST_ENTRY(zd_former) link;
};

uint64_t zd_process_started(pid_t pid)
{
	char path[48], line[1024];
	uint64_t started = 0;
	FILE *file;

	/* This file has the fields of /proc/PID/stat, for which the kernel visits all threads. */
	(void)snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)pid, (int)pid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	/* proc(5): the second field, in parentheses, may hold anything; `starttime` is the 22nd. */
	const char *at = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
	for (unsigned field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	if (at)
		(void)sscanf(at, " %" SCNu64, &started);
	(void)fclose(file);
	return started;
}

static void complete(struct zd_keeper *keeper, uint64_t op)
{
	struct zd_completion completion = {.op = op};

	zd_bridge_complete(keeper->bridge, &completion);
}

static void on_poll_closed(uv_handle_t *handle)
{
	struct zd_former *former = handle->data;

	(void)close(former->pidfd);
	free(former);
}

static void former_end(struct zd_former *former)
{
	LIST_REMOVE(former, link);
	if (former->pidfd >= 0)
		uv_close((uv_handle_t *)&former->poll, on_poll_closed);
	else
		free(former);
}

static void on_process_ended(uv_poll_t *poll, int status, int events)
{
	struct zd_former *former = poll->data;

	(void)status;
	(void)events;
	complete(former->keeper, former->op);
	former_end(former);
}

/* Returns -1 if the process has ended: its number may be another's by now. */
static int open_process(pid_t pid, uint64_t started)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);

	if (pidfd >= 0 && zd_process_started(pid) == started)
		return pidfd;
	if (pidfd >= 0)
		(void)close(pidfd);
	return -1;
}

/* The memory must not be freed while the registry still names it. */
static bool defer_destroy(struct zd_keeper *keeper, const struct zd_command *command)
{
	for (size_t i = 0; i < keeper->nkept && keeper->has_dropped; i++) {
		struct zd_kept_segment *segment = &keeper->kept[i];

		if (segment->id != command->u.segment.segment || !segment->dropped)
			continue;
		segment->destroy = zd_calloc(1, sizeof(*command));
		*segment->destroy = *command;
		return true;
	}
	return false;
}

bool zd_keeper_submit(struct zd_keeper *keeper, const struct zd_command *command)
{
	struct zd_former *former;
	uint32_t uid, pid;
	uint64_t started;

	if (command->kind == ZD_CMD_SEGMENT_DESTROY)
		return defer_destroy(keeper, command);
	if (command->kind != ZD_CMD_WATCH || !command->u.watch.until_gone ||
	    !zd_engine_former(keeper->bridge->engine, command->u.watch.session, &uid, &pid, &started))
		return false;
	/* A process that the former daemon could not see (pid 0) can only report its end of use itself. */
	int pidfd = pid == 0 ? -1 : open_process((pid_t)pid, started);
	if (pid != 0 && pidfd < 0) {
		complete(keeper, command->op);
		return true;
	}
	former = zd_calloc(1, sizeof(*former));
	*former = (struct zd_former){.keeper = keeper,
	                             .op = command->op,
	                             .session = command->u.watch.session,
	                             .uid = (uid_t)uid,
	                             .pid = (pid_t)pid,
	                             .pidfd = pidfd};
	former->poll.data = former;
	LIST_INSERT_HEAD(&keeper->formers, former, link);
	if (pidfd >= 0 && uv_poll_init(keeper->bridge->wake.loop, &former->poll, pidfd) != 0) {
		(void)close(pidfd);
		former->pidfd = -1;
	}
	if (former->pidfd < 0 || uv_poll_start(&former->poll, UV_READABLE, on_process_ended) != 0)
		zd_log(ZD_LOG_ERROR,
		       "the daemon cannot watch the end of process %u: memory of its session remains "
		       "allocated",
		       pid);
	return true;
}

void zd_keeper_process_done(struct zd_keeper *keeper, const struct zd_creds *creds, const uint64_t *sessions,
                            size_t nsessions)
{
	struct zd_former *former, *next;

	for (former = LIST_FIRST(&keeper->formers); former; former = next) {
		bool is_named = false;

		next = LIST_NEXT(former, link);
		for (size_t i = 0; i < nsessions; i++)
			is_named = is_named || sessions[i] == former->session;
		if (!is_named || former->uid != creds->uid || former->pid != creds->pid)
			continue;
		complete(keeper, former->op);
		former_end(former);
	}
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

static void segment_name(uint32_t segment, char name[ZD_STORE_NAME_BYTES])
{
	(void)snprintf(name, ZD_STORE_NAME_BYTES, "segment-%" PRIu32, segment);
}

static void remove_segment(struct zd_keeper *keeper, uint32_t segment)
{
	char name[ZD_STORE_NAME_BYTES];

	segment_name(segment, name);
	keeper->store->remove(keeper->store->arg, name);
}

static void remove_all(struct zd_keeper *keeper)
{
	keeper->store->remove(keeper->store->arg, REGISTRY);
	for (size_t i = 0; i < keeper->nkept; i++)
		remove_segment(keeper, keeper->kept[i].id);
}

/* Records for the next daemon which state it must find. */
static void note(struct zd_keeper *keeper)
{
	bool has = zd_engine_durable_jobs(keeper->bridge->engine) > 0;
	enum zd_kept kept = !has ? ZD_KEPT_NOTHING : keeper->store ? ZD_KEPT_JOBS : ZD_KEPT_LOST;

	if (!keeper->opened || !keeper->opened->note || kept == keeper->noted)
		return;
	keeper->noted = kept;
	keeper->opened->note(keeper->opened->note_arg, kept);
}

/* The daemon continues to serve, without commits. The content of the store would be incomplete, and is
 * removed if the store still can do so. */
static void give_up(struct zd_keeper *keeper, const struct zd_err *why)
{
	zd_registry_give_up(&keeper->registry, why->text);
	zd_engine_keep_ended(keeper->bridge->engine, why->text);
	remove_all(keeper);
	keeper->store = NULL;
	note(keeper);
	zd_log(ZD_LOG_ERROR, "durable jobs will not outlive this daemon: %s", why->text);
}

static void add_kept(struct zd_keeper *keeper, uint32_t segment)
{
	if (keeper->nkept == keeper->kept_room) {
		keeper->kept_room = keeper->kept_room ? 2 * keeper->kept_room : 16;
		keeper->kept = zd_realloc(keeper->kept, keeper->kept_room, sizeof(*keeper->kept));
	}
	keeper->kept[keeper->nkept++] = (struct zd_kept_segment){.id = segment};
}

static int put_segment(struct zd_keeper *keeper, uint32_t segment, struct zd_err *err)
{
	const struct zd_bridge *bridge = keeper->bridge;
	char name[ZD_STORE_NAME_BYTES];

	segment_name(segment, name);
	return keeper->store->put(keeper->store->arg, name, bridge->ops->segment_fd(bridge->backend, segment),
	                          err);
}

static int put_registry(struct zd_keeper *keeper, struct zd_err *err)
{
	return keeper->store->put(keeper->store->arg, REGISTRY, keeper->registry.fd, err);
}

/* Returns `why` if the store cannot be renewed. */
static int put_again(struct zd_keeper *keeper, struct zd_err *why)
{
	struct zd_err err;

	if (!keeper->store->renew || keeper->store->renew(keeper->store->arg, &err) != 0)
		return why->status;
	int rc = put_registry(keeper, why);
	for (size_t i = 0; i < keeper->nkept && rc == 0; i++) {
		if (!keeper->kept[i].dropped)
			rc = put_segment(keeper, keeper->kept[i].id, why);
	}
	if (rc == 0)
		zd_log(ZD_LOG_NOTICE, "another process holds durable state, all of it");
	return rc;
}

void zd_keeper_put_again(struct zd_keeper *keeper)
{
	struct zd_err why;

	if (!keeper->store)
		return;
	(void)zd_err_set(&why, ZEROD_E_DISCONNECTED, "what kept them has ended");
	if (put_again(keeper, &why) != 0)
		give_up(keeper, &why);
	note(keeper);
}

void zd_keeper_keep_segment(struct zd_keeper *keeper, uint32_t segment, bool kept)
{
	struct zd_err err;

	if (!keeper->store)
		return;
	for (size_t i = 0; i < keeper->nkept && !kept; i++) {
		if (keeper->kept[i].id == segment)
			keeper->kept[i].dropped = keeper->has_dropped = true;
	}
	if (!kept)
		return;
	add_kept(keeper, segment);
	if (put_segment(keeper, segment, &err) != 0 && put_again(keeper, &err) != 0)
		give_up(keeper, &err);
}

/* The registry does not have them any more. */
static void remove_dropped(struct zd_keeper *keeper)
{
	size_t left = 0;

	for (size_t i = 0; i < keeper->nkept; i++) {
		const struct zd_kept_segment *segment = &keeper->kept[i];

		if (!segment->dropped) {
			keeper->kept[left++] = *segment;
			continue;
		}
		if (keeper->store)
			remove_segment(keeper, segment->id);
		if (segment->destroy)
			zd_bridge_submit(keeper->bridge, segment->destroy);
		free(segment->destroy);
	}
	keeper->nkept = left;
	keeper->has_dropped = false;
}

/* Writes some of all records. The last step starts to use them. */
static int write_step(struct zd_keeper *keeper, uint32_t nobjects, struct zd_err *err)
{
	bool complete = zd_engine_journal_step(keeper->bridge->engine, nobjects);
	const uint8_t *bytes;
	size_t nbytes = zd_engine_journal_take(keeper->bridge->engine, &bytes);
	int rc = zd_registry_rewrite(&keeper->registry, bytes, nbytes, err);

	if (rc == 0 && complete)
		zd_registry_switch(&keeper->registry);
	return rc;
}

static void write_begin(struct zd_keeper *keeper)
{
	zd_engine_journal_begin(keeper->bridge->engine);
	zd_registry_begin(&keeper->registry);
}

static int write_all(struct zd_keeper *keeper, struct zd_err *err)
{
	int rc = 0;

	write_begin(keeper);
	while (rc == 0 && keeper->registry.rewriting)
		rc = write_step(keeper, STEP_OBJECTS, err);
	return rc;
}

/* While all records are rewritten, each event writes more of them than it appends. */
static int write_event(struct zd_keeper *keeper, const uint8_t *bytes, size_t nbytes, struct zd_err *err)
{
	struct zd_registry *registry = &keeper->registry;

	if (!zd_registry_has_room(registry, nbytes)) /* the records of the event are among all */
		return write_all(keeper, err);
	zd_registry_append(registry, bytes, nbytes);
	if (!registry->rewriting && zd_registry_is_full(registry))
		write_begin(keeper);
	if (!registry->rewriting)
		return 0;
	return write_step(keeper, STEP_OBJECTS + (uint32_t)(nbytes / OBJECT_BYTES), err);
}

/* Gives up if descriptors that were put have not reached the store. */
static void check_store(struct zd_keeper *keeper)
{
	int error = keeper->store->error ? keeper->store->error(keeper->store->arg) : 0;
	struct zd_err why;

	if (error == 0)
		return;
	(void)zd_err_errno(&why, error, "giving descriptors to the store");
	give_up(keeper, &why);
}

void zd_keeper_write(void *arg)
{
	struct zd_keeper *keeper = arg;
	const uint8_t *bytes;
	struct zd_err err;

	if (!keeper->bridge || !keeper->bridge->engine)
		return;
	size_t nbytes = zd_engine_journal_take(keeper->bridge->engine, &bytes);
	if (keeper->store)
		check_store(keeper);
	/* If the store is gone, the engine continues to record. */
	if (keeper->store && nbytes > 0 && write_event(keeper, bytes, nbytes, &err) != 0)
		give_up(keeper, &err);
	if (keeper->has_dropped)
		remove_dropped(keeper);
	note(keeper);
}

/* ---- Restoring ----------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct zd_stored *)a)->name, ((const struct zd_stored *)b)->name);
}

/* Returns a descriptor of the former daemon that was not taken, or NULL. */
static struct zd_stored *find_found(const struct zd_store *store, const char *name)
{
	struct zd_stored wanted, *found;

	(void)snprintf(wanted.name, sizeof(wanted.name), "%s", name);
	found = store->nfound > 0 ? bsearch(&wanted, store->found, store->nfound, sizeof(wanted), by_name)
	                          : NULL;
	return found && found->fd >= 0 ? found : NULL;
}

/* Returns the descriptor, which the caller then owns, or -1. */
static int take_found(const struct zd_store *store, const char *name)
{
	struct zd_stored *stored = find_found(store, name);
	int fd = stored ? stored->fd : -1;

	if (stored)
		stored->fd = -1;
	return fd;
}

int zd_keeper_restore_segment(struct zd_keeper *keeper, uint32_t device, uint32_t segment, uint64_t bytes,
                              struct zd_err *err)
{
	const struct zd_bridge *bridge = keeper->bridge;
	char name[ZD_STORE_NAME_BYTES];

	segment_name(segment, name);
	int fd = take_found(keeper->store, name);
	if (fd < 0)
		return zd_err_set(err, ZEROD_E_INVALID, "the store has no descriptor of segment %" PRIu32,
		                  segment);
	if (!bridge->ops->segment_import) {
		(void)close(fd);
		return zd_err_set(err, ZEROD_E_UNSUPPORTED, "backend %s restores no segments",
		                  bridge->ops->name);
	}
	add_kept(keeper, segment);
	return bridge->ops->segment_import(bridge->backend, device, segment, bytes, fd, err);
}

bool zd_keeper_has_segment(const struct zd_keeper *keeper, uint32_t segment)
{
	char name[ZD_STORE_NAME_BYTES];

	segment_name(segment, name);
	return find_found(keeper->store, name) != NULL;
}

void zd_keeper_job_lost(struct zd_keeper *keeper, const struct zd_notice *notice)
{
	zd_log(ZD_LOG_ERROR,
	       "durable state is lost: job '%s' (uid %u) is incomplete: the store has no descriptor of "
	       "segment %" PRIu32,
	       notice->job, notice->uid, notice->segment);
	(void)snprintf(keeper->lost, sizeof(keeper->lost), "incomplete jobs: %u, the last one '%s' (uid %u)",
	               ++keeper->nlost_jobs, notice->job, notice->uid);
}

/* The other descriptors belong to no restored object. */
static void drop_rest(struct zd_store *store)
{
	for (size_t i = 0; i < store->nfound; i++) {
		if (store->found[i].fd < 0)
			continue;
		(void)close(store->found[i].fd);
		store->found[i].fd = -1;
		store->remove(store->arg, store->found[i].name);
	}
}

/* The store should have had something. */
static void tell_lost(struct zd_keeper *keeper, const char *why)
{
	(void)snprintf(keeper->lost, sizeof(keeper->lost), "%s", why);
	zd_log(ZD_LOG_ERROR, "durable state is lost: %s", keeper->lost);
}

static void tell_without_registry(struct zd_keeper *keeper)
{
	const struct zd_store *store = keeper->store;
	size_t nsegments = 0;

	for (size_t i = 0; i < store->nfound; i++)
		nsegments += store->found[i].fd >= 0;
	if (store->expected == ZD_KEPT_JOBS)
		tell_lost(keeper, "the former daemon has stored durable jobs, and all of them are lost");
	else if (store->expected == ZD_KEPT_LOST)
		tell_lost(keeper, "the former daemon could not store its durable jobs any more");
	else if (nsegments > 0)
		tell_lost(keeper,
		          "the store has segments of durable jobs, and no registry that describes them");
}

/* If two segments have one name, the job's segment is unknown. */
static int check_names(const struct zd_store *store, struct zd_err *err)
{
	for (size_t i = 1; i < store->nfound; i++) {
		if (by_name(&store->found[i - 1], &store->found[i]) == 0)
			return zd_err_set(err, ZEROD_E_INVALID, "the store has two descriptors of %s",
			                  store->found[i].name);
	}
	return 0;
}

/* Opens the registry of the former daemon. *found is false if the store has none, or none to restore from. */
static int open_former(struct zd_keeper *keeper, bool *found, struct zd_err *err)
{
	int fd = take_found(keeper->store, REGISTRY), rc;

	*found = fd >= 0;
	if (fd < 0) {
		tell_without_registry(keeper);
		return 0;
	}
	if (check_names(keeper->store, err) != 0) {
		(void)close(fd);
		return err->status;
	}
	rc = zd_registry_open(&keeper->registry, fd, err);
	if (rc != ZEROD_E_ABORTED)
		return rc;
	*found = false;
	(void)zd_err_set(err, rc, "the former daemon could not store its durable jobs any more: %s",
	                 err->text);
	tell_lost(keeper, err->text);
	keeper->store->remove(keeper->store->arg, REGISTRY);
	return 0;
}

static int restore(struct zd_keeper *keeper, struct zd_err *err)
{
	struct zd_registry_records records;
	int rc = zd_registry_read(&keeper->registry, &records, err);

	if (rc)
		return rc;
	rc = zd_engine_restore(keeper->bridge->engine, records.bytes, records.nbytes, err);
	zd_registry_records_free(&records);
	if (rc)
		return rc;
	zd_log(ZD_LOG_NOTICE, "restored durable jobs of the former daemon: %u",
	       zd_engine_durable_jobs(keeper->bridge->engine));
	return 0;
}

/* A registry in the store always has records. One without records is damaged. */
static int begin(struct zd_keeper *keeper, struct zd_err *err)
{
	int rc = zd_registry_new(&keeper->registry, err);

	if (rc == 0)
		rc = write_all(keeper, err);
	return rc ? rc : put_registry(keeper, err);
}

static int open_store(struct zd_keeper *keeper, struct zd_err *err)
{
	struct zd_err why;
	bool found;
	int rc = open_former(keeper, &found, &why);

	if (rc == 0 && !found)
		return begin(keeper, err);
	if (rc == 0)
		rc = restore(keeper, &why);
	if (rc == 0)
		return write_all(keeper, err);
	keeper->store = NULL; /* the store retains its content, although this engine has no durable job */
	return zd_err_set(err, ZEROD_E_STATE,
	                  "the state of the former daemon cannot be restored: %s (zerod --discard-state "
	                  "starts without it)",
	                  why.text);
}

int zd_keeper_open(struct zd_keeper *keeper, struct zd_bridge *bridge, struct zd_store *store,
                   struct zd_err *err)
{
	*keeper = (struct zd_keeper){.bridge = bridge, .store = store, .registry = {.fd = -1}};
	LIST_INIT(&keeper->formers);
	if (!store)
		return 0;
	(void)zd_bridge_tick(bridge);
	if (store->nfound > 1)
		qsort(store->found, store->nfound, sizeof(store->found[0]), by_name);
	if (store->room > 0)
		zd_engine_set_kept_room(bridge->engine, store->room - 1); /* the registry */
	int rc = open_store(keeper, err);
	if (rc)
		return rc;
	drop_rest(store);
	keeper->opened = store;
	keeper->noted = store->expected;
	note(keeper);
	return 0;
}

void zd_keeper_close(struct zd_keeper *keeper)
{
	struct zd_former *former, *next;

	for (former = LIST_FIRST(&keeper->formers); former; former = next) {
		next = LIST_NEXT(former, link);
		former_end(former);
	}
	if (keeper->opened)
		note(keeper);
	if (keeper->store && keeper->registry.fd >= 0 && zd_engine_durable_jobs(keeper->bridge->engine) == 0)
		remove_all(keeper);
	keeper->store = keeper->opened = NULL;
	zd_registry_close(&keeper->registry);
	for (size_t i = 0; i < keeper->nkept; i++)
		free(keeper->kept[i].destroy);
	free(keeper->kept);
	keeper->kept = NULL;
	keeper->nkept = keeper->kept_room = 0;
}
