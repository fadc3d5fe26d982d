/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_sections.c - sockets of tenants, and grants of devices.
 *
 * A grant is a line "user:alice = 0,1". The parser ends a key at the first '=' or ':', so that it is the key
 * `user` here, with the value "alice = 0,1".
 */
#include "main/config_sections.h"

#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "main/config.h"
#include "proto/limits.h"

#define SOCKET_SECTION   "socket "
#define MOST_ID          4294967294ul /* the last number is no id */
#define SUBJECT_BYTES    ZD_GRANT_CGROUP_BYTES
#define DEVICES_EXPECTED "all, none, or device numbers such as 0,1"

/* ---- Parsing a value: returns 0, or -1 ----------------------------------------------------------------- */

/* The static results of getpwnam() and getgrnam() are safe: one thread at a time reads a configuration. */
static int read_user(const char *text, uid_t *uid)
{
	const struct passwd *user = getpwnam(text);
	unsigned long number;

	if (!user && zd_config_read_number(text, 10, 0, MOST_ID, &number) != 0)
		return -1;
	*uid = user ? user->pw_uid : (uid_t)number;
	return 0;
}

static int read_group(const char *text, gid_t *gid)
{
	const struct group *group = getgrnam(text);
	unsigned long number;

	if (!group && zd_config_read_number(text, 10, 0, MOST_ID, &number) != 0)
		return -1;
	*gid = group ? group->gr_gid : (gid_t)number;
	return 0;
}

static int read_devices(const char *text, uint64_t *devices)
{
	static const char between[] = " ,\t";
	uint64_t found = 0;

	if (strcmp(text, "all") == 0 || strcmp(text, "none") == 0) {
		*devices = text[0] == 'a' ? ZD_ALL_DEVICES : 0;
		return 0;
	}
	for (text += strspn(text, between); *text; text += strspn(text, between)) {
		char *end;
		unsigned long device = strtoul(text, &end, 10);

		if (text[0] < '0' || text[0] > '9' || device >= ZD_MAX_DEVICES ||
		    (*end && !strchr(between, *end)))
			return -1;
		found |= UINT64_C(1) << device;
		text = end;
	}
	if (found == 0)
		return -1;
	*devices = found;
	return 0;
}

/* ---- Sockets ------------------------------------------------------------------------------------------- */

static int set_path(struct zd_config_socket *at, const char *text)
{
	return zd_config_read_text(text, 1, sizeof(at->path), at->path);
}

static int set_mode(struct zd_config_socket *at, const char *text)
{
	unsigned long mode;

	if (zd_config_read_number(text, 8, 0, 0777, &mode) != 0)
		return -1;
	at->mode = (mode_t)mode;
	return 0;
}

static int set_owner(struct zd_config_socket *at, const char *text)
{
	return read_user(text, &at->owner);
}

static int set_group(struct zd_config_socket *at, const char *text)
{
	return read_group(text, &at->group);
}

static int set_tenant(struct zd_config_socket *at, const char *text)
{
	if (read_user(text, &at->tenant_uid) != 0)
		return -1;
	at->has_tenant = true;
	return 0;
}

static int set_uid(struct zd_config_socket *at, const char *text)
{
	return text[0] >= '0' && text[0] <= '9' ? set_tenant(at, text) : -1;
}

static int set_devices(struct zd_config_socket *at, const char *text)
{
	if (read_devices(text, &at->devices) != 0)
		return -1;
	at->has_devices = true;
	return 0;
}

static const struct {
	const char *name;
	int (*set)(struct zd_config_socket *at, const char *text);
	const char *expected;
} socket_keys[] = {
        {"path", set_path, "a path of 1 to 107 bytes"},
        {"mode", set_mode, "permissions in octal such as 0660"},
        {"owner", set_owner, "the name or number of a user on this machine"},
        {"group", set_group, "the name or number of a group on this machine"},
        {"uid", set_uid, "the number of a user"},
        {"tenant", set_tenant, "the name of a user on this machine"},
        {"devices", set_devices, DEVICES_EXPECTED},
};

_Static_assert(sizeof(((struct zd_config_socket *)0)->path) == 108,
               "the text of the key path names the limit");

bool zd_config_is_socket(const char *section)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
	const char *name = section + strlen(SOCKET_SECTION);

	if (strncmp(section, SOCKET_SECTION, strlen(SOCKET_SECTION)) != 0)
		return false;
	size_t bytes = strlen(name);
	return bytes > 0 && bytes < ZD_CONFIG_SOCKET_NAME && strspn(name, letters) == bytes;
}

/* Finds or adds the section's socket. Returns NULL if there are too many. */
static struct zd_config_socket *get_socket(struct zd_config *config, const char *name)
{
	struct zd_config_socket *at = config->sockets;

	while (at < config->sockets + config->nsockets && strcmp(at->name, name) != 0)
		at++;
	if (at < config->sockets + config->nsockets)
		return at;
	if (config->nsockets == ZD_CONFIG_SOCKETS)
		return NULL;
	config->nsockets++;
	*at = (struct zd_config_socket){.mode = 0600, .owner = (uid_t)-1, .group = (gid_t)-1};
	(void)snprintf(at->name, sizeof(at->name), "%s", name);
	return at;
}

int zd_config_set_socket(struct zd_config *config, const char *section, const char *key, const char *value,
                         struct zd_err *err)
{
	struct zd_config_socket *at = get_socket(config, section + strlen(SOCKET_SECTION));

	if (!at)
		return zd_err_set(err, ZEROD_E_INVALID, "expected at most %u sections [socket NAME]",
		                  ZD_CONFIG_SOCKETS);
	for (size_t i = 0; i < ZD_ARRAY_LEN(socket_keys); i++) {
		if (strcmp(socket_keys[i].name, key) != 0)
			continue;
		if (socket_keys[i].set(at, value) == 0)
			return 0;
		return zd_err_set(err, ZEROD_E_INVALID, "expected %s, found '%s'", socket_keys[i].expected,
		                  value);
	}
	return zd_err_set(err, ZEROD_E_INVALID,
	                  "unknown key, expected one of path, mode, owner, group, uid, tenant, devices");
}

int zd_config_check_sockets(const struct zd_config *config, struct zd_err *err)
{
	for (unsigned i = 0; i < config->nsockets; i++) {
		const struct zd_config_socket *at = &config->sockets[i];
		bool twice = strcmp(at->path, config->socket_path) == 0;

		if (at->path[0] == '\0')
			return zd_err_set(err, ZEROD_E_INVALID,
			                  "[socket %s] path: expected a path, found none", at->name);
		for (unsigned k = 0; k < i; k++)
			twice |= strcmp(at->path, config->sockets[k].path) == 0;
		if (twice)
			return zd_err_set(err, ZEROD_E_INVALID,
			                  "[socket %s] path: expected a unique path, found the path of "
			                  "another socket, %s",
			                  at->name, at->path);
	}
	return 0;
}

/* ---- Grants -------------------------------------------------------------------------------------------- */

/* Splits "alice = 0,1". */
static int split(const char *text, char subject[SUBJECT_BYTES], const char **devices)
{
	static const char blanks[] = " \t";
	const char *equals = strrchr(text, '=');

	if (!equals)
		return -1;
	text += strspn(text, blanks);
	size_t bytes = (size_t)(equals - text);
	while (bytes > 0 && strchr(blanks, text[bytes - 1]))
		bytes--;
	if (equals < text || bytes == 0 || bytes >= SUBJECT_BYTES)
		return -1;
	memcpy(subject, text, bytes);
	subject[bytes] = '\0';
	*devices = equals + 1 + strspn(equals + 1, blanks);
	return 0;
}

static int read_cgroup(const char *text, char cgroup[ZD_GRANT_CGROUP_BYTES])
{
	if (text[0] != '/')
		return -1;
	(void)snprintf(cgroup, ZD_GRANT_CGROUP_BYTES, "%s", text);
	return 0;
}

static int read_subject(struct zd_grant *grant, const char *key, const char *subject)
{
	if (strcmp(key, "user") == 0) {
		grant->kind = ZD_GRANT_USER;
		return read_user(subject, &grant->uid);
	}
	if (strcmp(key, "group") == 0) {
		grant->kind = ZD_GRANT_GROUP;
		return read_group(subject, &grant->gid);
	}
	grant->kind = ZD_GRANT_CGROUP;
	return strcmp(key, "cgroup") == 0 ? read_cgroup(subject, grant->cgroup) : -1;
}

static int read_grant(struct zd_grant *grant, const char *key, const char *value)
{
	char subject[SUBJECT_BYTES] = "";
	const char *devices = value;

	grant->kind = ZD_GRANT_EVERYONE;
	if (strcmp(key, "everyone") != 0 &&
	    (split(value, subject, &devices) != 0 || read_subject(grant, key, subject) != 0))
		return -1;
	return read_devices(devices, &grant->devices);
}

int zd_config_add_grant(struct zd_config *config, const char *key, const char *value, struct zd_err *err)
{
	struct zd_grant grant = {.devices = 0};

	if (config->grants.count == ZD_MAX_GRANTS)
		return zd_err_set(err, ZEROD_E_INVALID, "expected at most %u grants", ZD_MAX_GRANTS);
	if (read_grant(&grant, key, value) != 0)
		return zd_err_set(
		        err, ZEROD_E_INVALID,
		        "expected everyone = DEVICES, user:NAME = DEVICES, group:NAME = DEVICES or "
		        "cgroup:/PATH = DEVICES, with names of this machine, and DEVICES " DEVICES_EXPECTED
		        ", found '%s'",
		        value);
	config->grants.all[config->grants.count++] = grant;
	return 0;
}
