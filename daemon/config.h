/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - what the daemon is told: defaults, then the configuration file, then the command line.
 *
 * packaging/zerod.conf shows every key with its default.
 */
#ifndef ZD_DAEMON_CONFIG_H
#define ZD_DAEMON_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/un.h>

#include "base/log.h"

struct zd_err;
struct zd_backend_ops;

#define ZD_DEFAULT_CONFIG    "/etc/zerod/zerod.conf"
#define ZD_DEFAULT_DEVICES   1
#define ZD_DEFAULT_GPUS      "all"
#define ZD_CONFIG_GPUS_BYTES 2752 /* 64 UUIDs, and what stands between them */
#define ZD_CONFIG_PATH_BYTES 1024

struct zd_config {
	/* [daemon] */
	char socket_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	mode_t socket_mode;
	bool has_admin_group;
	gid_t admin_group;
	enum zd_log_level log_level;
	uint32_t drain_timeout_s;
	/* [devices]; of bytes, 0 is the backend's or the engine's default */
	const struct zd_backend_ops *backend; /* NULL: auto */
	uint32_t device_count;                /* host */
	char gpus[ZD_CONFIG_GPUS_BYTES];      /* cuda: "all", or UUIDs and indices */
	uint64_t arena_bytes, gather_budget_bytes, staging_bytes, segment_bytes;
	/* [collectives] */
	char nccl_path[ZD_CONFIG_PATH_BYTES]; /* "": where the dynamic linker looks */
	bool check_collectives;
	uint32_t collective_timeout_s; /* 0: none */
	/* [limits] */
	uint64_t uid_quota_bytes; /* 0: none */
	uint32_t max_sessions;
};

void zd_config_init(struct zd_config *config);

/* Takes the file's settings over; on failure nothing is changed. INVALID, with file, line, key, and what was
 * expected; NOT_FOUND or SYSTEM when it cannot be read. */
int zd_config_read(struct zd_config *config, const char *path, struct zd_err *err)
        __attribute__((warn_unused_result));

/* One setting, as text. INVALID says what was expected and what was found; a key that does not exist is one
 * of the user's mistakes too. */
int zd_config_set(struct zd_config *config, const char *section, const char *key, const char *value,
                  struct zd_err *err) __attribute__((warn_unused_result));

/* Do the settings go together. */
int zd_config_check(const struct zd_config *config, struct zd_err *err) __attribute__((warn_unused_result));

#endif
