/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - the daemon's settings: defaults, then the configuration file, then the command line.
 *
 * packaging/zerod.conf shows every key with its default.
 */
#ifndef ZD_MAIN_CONFIG_H
#define ZD_MAIN_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/un.h>

#include "base/log.h"
#include "server/creds.h"
#include "server/id_key.h"
#include "server/grants.h"

struct zd_backend_ops;

#define ZD_DEFAULT_CONFIG  "/etc/zerod/zerod.conf"
#define ZD_DEFAULT_DEVICES 1
#define ZD_DEFAULT_GPUS    "all"
#define ZD_DEFAULT_EVENTS  65536u
#define ZD_DEFAULT_UNSENT  (64ull << 20)
/* A job of 64 ranks with 10,000 units of 10 views takes 190 MiB: see docs/design/memory.md. */
#define ZD_DEFAULT_METADATA (256ull << 20)
/* 32 trainers of 8 ranks; ZD_MAX_SESSIONS leaves others three times as many. */
#define ZD_DEFAULT_MAX_SESSIONS_PER_UID 256
#define ZD_DEFAULT_MAX_JOBS_PER_UID     128
#define ZD_DEFAULT_DURABLE_SEGMENTS     4096 /* a quarter of the packaged unit's store */
#define ZD_CONFIG_GPUS_BYTES            2752 /* 64 UUIDs with separators */
#define ZD_CONFIG_PATH_BYTES            1024

/* Where durable jobs are stored across restarts of the daemon. AUTO: at the service manager, if it has a
 * descriptor store for this service. */
enum zd_keep_state { ZD_KEEP_AUTO, ZD_KEEP_NONE, ZD_KEEP_SYSTEMD, ZD_KEEP_HOLDER };
#define ZD_CONFIG_SOCKETS     32u
#define ZD_CONFIG_SOCKET_NAME 33 /* with the terminating zero */

/* [socket NAME] */
struct zd_config_socket {
	char name[ZD_CONFIG_SOCKET_NAME];
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	mode_t mode;
	uid_t owner; /* (uid_t)-1: the daemon's */
	gid_t group; /* (gid_t)-1: the daemon's */
	bool has_tenant;
	uid_t tenant_uid;
	bool has_devices;
	uint64_t devices; /* a bit for each */
};

struct zd_config {
	/* [daemon] */
	char socket_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	mode_t socket_mode;
	bool root_is_admin, has_admin_group;
	gid_t admin_group;
	struct zd_creds_groups allow_groups; /* none: all users */
	enum zd_log_level log_level;
	uint32_t drain_timeout_s;
	uint32_t exit_when_idle_s; /* 0: it does not */
	enum zd_keep_state keep_state;
	uint32_t keep_state_ttl_s; /* 0: for ever */
	uint32_t events;           /* stored events; 0: none */
	/* [devices]; for bytes, 0 is the default of the backend or the engine */
	const struct zd_backend_ops *backend; /* NULL: auto */
	uint32_t device_count;                /* host */
	char gpus[ZD_CONFIG_GPUS_BYTES];      /* cuda: "all", or UUIDs and indices */
	uint64_t arena_bytes, gather_budget_bytes, staging_bytes, segment_bytes;
	uint64_t host_arena_bytes; /* of each host memory; 0: no host memory */
	/* [collectives] */
	char nccl_path[ZD_CONFIG_PATH_BYTES]; /* "": as the dynamic linker finds it */
	bool check_collectives;
	uint32_t collective_timeout_s;       /* 0: none */
	char key_path[ZD_CONFIG_PATH_BYTES]; /* "": a key of this daemon alone */
	struct zd_id_key id_key;             /* read from there by zd_options_load() */
	uint32_t id_ttl_s;
	/* [limits] */
	uint64_t uid_quota_bytes;    /* 0: none */
	uint64_t uid_unsent_bytes;   /* 0: no limit */
	uint64_t uid_metadata_bytes; /* 0: no limit */
	uint32_t max_sessions;
	uint32_t max_sessions_per_uid, max_jobs_per_uid; /* 0: none */
	uint32_t max_durable_segments_per_uid;           /* 0: none */
	uint32_t durable_ttl_s;                          /* 0: for ever */
	struct zd_creds_groups durable_groups;           /* none: all users */
	struct zd_creds_groups reader_groups;
	unsigned nsockets;
	struct zd_config_socket sockets[ZD_CONFIG_SOCKETS];
	struct zd_grants grants;
};

void zd_config_init(struct zd_config *config);

/* Applies the file's settings. On failure it changes no setting. INVALID, with file, line, key and the
 * expected value. If the file has several errors, each is printed to `errors` and `err` has their number. If
 * `errors` is NULL, `err` has the first one. PERMISSION if users other than root and the daemon's can write
 * the file; NOT_FOUND or SYSTEM if it cannot be read. */
int zd_config_read(struct zd_config *config, const char *path, FILE *errors, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Applies one setting. INVALID, with the expected and the found value; also for a key that does not exist. */
int zd_config_set(struct zd_config *config, const char *section, const char *key, const char *value,
                  struct zd_err *err) __attribute__((warn_unused_result));

/* Returns 0, or -1 if the text is no number from `least` to `most`. */
int zd_config_read_number(const char *text, int base, unsigned long least, unsigned long most,
                          unsigned long *number);
/* Copies a text of at least `least` bytes and fewer than `room`. Otherwise returns -1. */
int zd_config_read_text(const char *text, size_t least, size_t room, char *out);

/* Checks settings against each other. */
int zd_config_check(const struct zd_config *config, struct zd_err *err) __attribute__((warn_unused_result));

#endif
