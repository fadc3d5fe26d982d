/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_config.c - any bytes as a configuration file: settings that are in their bounds, or an error that says
 * where. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/text.h"
#include "main/config.h"
#include "proto/limits.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes);

static void check_bounds(const struct zd_config *config)
{
	zd_assert(memchr(config->socket_path, '\0', sizeof(config->socket_path)) && config->socket_path[0]);
	zd_assert(config->socket_mode <= 0777);
	zd_assert(config->log_level >= ZD_LOG_ERROR && config->log_level <= ZD_LOG_DEBUG);
	zd_assert(config->device_count >= 1 && config->device_count <= ZD_MAX_DEVICES);
	zd_assert(config->max_sessions >= 1 && config->max_sessions <= ZD_MAX_SESSIONS);
	zd_assert(config->arena_bytes <= ZD_MAX_BYTES && config->gather_budget_bytes <= ZD_MAX_BYTES);
	zd_assert(config->staging_bytes <= ZD_MAX_BYTES && config->segment_bytes <= ZD_MAX_BYTES);
	zd_assert(config->uid_quota_bytes <= ZD_MAX_BYTES && config->uid_unsent_bytes <= ZD_MAX_BYTES);
	zd_assert(memchr(config->key_path, '\0', sizeof(config->key_path)) && config->id_ttl_s >= 1);
	zd_assert(config->uid_metadata_bytes <= ZD_MAX_BYTES);
	zd_assert(config->gpus[0] && memchr(config->gpus, 0, sizeof(config->gpus)));
}

/* An error names the file, and the line of it. */
static void check_error(const struct zd_err *err, const char *path)
{
	size_t length = strlen(path);

	zd_assert(err->status == ZEROD_E_INVALID);
	zd_assert(strncmp(err->text, path, length) == 0 && err->text[length] == ':');
	zd_assert(strtoul(err->text + length + 1, NULL, 10) > 0);
	zd_assert(zd_utf8_valid(err->text, strlen(err->text)));
}

static bool same(const struct zd_config *a, const struct zd_config *b)
{
	return strcmp(a->socket_path, b->socket_path) == 0 && a->socket_mode == b->socket_mode &&
	       a->has_admin_group == b->has_admin_group && a->admin_group == b->admin_group &&
	       a->log_level == b->log_level && a->drain_timeout_s == b->drain_timeout_s &&
	       a->backend == b->backend && a->device_count == b->device_count &&
	       strcmp(a->gpus, b->gpus) == 0 && a->arena_bytes == b->arena_bytes &&
	       a->gather_budget_bytes == b->gather_budget_bytes && a->staging_bytes == b->staging_bytes &&
	       a->segment_bytes == b->segment_bytes && a->uid_quota_bytes == b->uid_quota_bytes &&
	       a->uid_unsent_bytes == b->uid_unsent_bytes && a->uid_metadata_bytes == b->uid_metadata_bytes &&
	       a->max_sessions == b->max_sessions && a->max_sessions_per_uid == b->max_sessions_per_uid &&
	       a->max_jobs_per_uid == b->max_jobs_per_uid && a->durable_ttl_s == b->durable_ttl_s &&
	       a->keep_state_ttl_s == b->keep_state_ttl_s &&
	       a->max_durable_segments_per_uid == b->max_durable_segments_per_uid &&
	       a->durable_groups.count == b->durable_groups.count &&
	       a->reader_groups.count == b->reader_groups.count && a->root_is_admin == b->root_is_admin &&
	       a->allow_groups.count == b->allow_groups.count && strcmp(a->key_path, b->key_path) == 0 &&
	       a->id_ttl_s == b->id_ttl_s;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
	struct zd_config config, before;
	struct zd_err err = ZD_ERR_NONE;
	char path[32];
	int file = memfd_create("zerod.conf", MFD_CLOEXEC), rc;

	zd_assert(file >= 0 && fchmod(file, 0600) == 0 && write(file, bytes, nbytes) == (ssize_t)nbytes);
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	zd_config_init(&config);
	before = config;
	rc = zd_config_read(&config, path, NULL, &err);
	if (rc) {
		zd_assert(rc == err.status);
		check_error(&err, path);
		zd_assert(same(&config, &before));
	} else {
		check_bounds(&config);
		rc = zd_config_check(&config, &err);
		zd_assert(rc == 0 || (rc == ZEROD_E_INVALID &&
		                      (strstr(err.text, "[devices]") || strstr(err.text, "[socket "))));
	}
	(void)close(file);
	return 0;
}
