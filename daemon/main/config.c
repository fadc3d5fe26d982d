/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.c - settings by name, and the INI file that contains them.
 *
 * Each key is a line of the table below: the expected value for error texts, and the kind and place of its
 * value, or the function that parses and stores it. Reading stops at the first error, which is reported with
 * its line.
 */
#include "main/config.h"

#include <errno.h>
#include <grp.h>
#include <ini.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "core/history.h"
#include "executor/backend.h"
#include "main/config_sections.h"
#include "proto/limits.h"

#define DEFAULT_DRAIN_S 10
#define MAX_DRAIN_S     86400
#define MAX_IDLE_S      86400
/* PyTorch's default for NCCL: ranks may compile, or write a checkpoint, while others wait for them in a
 * collective. */
#define DEFAULT_COLLECTIVE_S 600
#define MAX_COLLECTIVE_S     86400
#define KEYS_TEXT            160
#define MAX_JOBS_PER_UID     1000000
#define DAY_S                86400u
#define TTL_EXPECTED         "a time such as 12h or 7d, at most 3650d"
#define MAX_TTL_S            (3650u * DAY_S)
#define DEFAULT_ID_TTL_S     3600u
#define MAX_ID_TTL_S         (30u * DAY_S)
#define GROUP_NAME_BYTES     256

/* ---- Parsing a value: returns 0, or -1 when it is not as `expected` describes -------------------------- */

int zd_config_read_number(const char *text, int base, unsigned long least, unsigned long most,
                          unsigned long *number)
{
	char *end;

	errno = 0;
	unsigned long value = strtoul(text, &end, base);
	if (text[0] < '0' || text[0] > '9' || *end || errno || value < least || value > most)
		return -1;
	*number = value;
	return 0;
}

static int read_u32(const char *text, unsigned long least, unsigned long most, uint32_t *number)
{
	unsigned long value;

	if (zd_config_read_number(text, 10, least, most, &value) != 0)
		return -1;
	*number = (uint32_t)value;
	return 0;
}

static int read_bytes(const char *text, uint64_t *bytes)
{
	uint64_t value;

	if (zd_bytes_parse(text, &value, NULL) != 0 || value > ZD_MAX_BYTES)
		return -1;
	*bytes = value;
	return 0;
}

int zd_config_read_text(const char *text, size_t least, size_t room, char *out)
{
	size_t bytes = strlen(text);

	if (bytes < least || bytes >= room)
		return -1;
	memcpy(out, text, bytes + 1);
	return 0;
}

static int set_socket(struct zd_config *config, const char *text)
{
	return zd_config_read_text(text, 1, sizeof(config->socket_path), config->socket_path);
}

static int set_socket_mode(struct zd_config *config, const char *text)
{
	unsigned long mode;

	if (zd_config_read_number(text, 8, 0, 0777, &mode) != 0)
		return -1;
	config->socket_mode = (mode_t)mode;
	return 0;
}

static int read_yes(const char *text, bool *yes)
{
	bool is_yes = strcmp(text, "yes") == 0;

	if (!is_yes && strcmp(text, "no") != 0)
		return -1;
	*yes = is_yes;
	return 0;
}

static int set_admin_group(struct zd_config *config, const char *text)
{
	struct group *group;

	if (!text[0]) {
		config->has_admin_group = false;
		return 0;
	}
	group = getgrnam(text); /* the static result is safe: one thread at a time reads a configuration */
	if (!group)
		return -1;
	config->has_admin_group = true;
	config->admin_group = group->gr_gid;
	return 0;
}

/* Names of groups, with commas or blanks between them. */
static int read_groups(const char *text, struct zd_creds_groups *groups)
{
	static const char between[] = " ,\t";
	struct zd_creds_groups found = {.count = 0};
	char name[GROUP_NAME_BYTES];

	for (text += strspn(text, between); *text; text += strspn(text, between)) {
		size_t bytes = strcspn(text, between);

		if (bytes >= sizeof(name) || found.count == ZD_CREDS_GROUPS)
			return -1;
		memcpy(name, text, bytes);
		name[bytes] = '\0';
		const struct group *group = getgrnam(name);
		if (!group)
			return -1;
		found.gids[found.count++] = group->gr_gid;
		text += bytes;
	}
	*groups = found;
	return 0;
}

static int set_log_level(struct zd_config *config, const char *text)
{
	for (enum zd_log_level level = ZD_LOG_ERROR; level <= ZD_LOG_DEBUG; level++) {
		if (strcmp(text, zd_log_level_name(level)) != 0)
			continue;
		config->log_level = level;
		return 0;
	}
	return -1;
}

static int set_keep_state(struct zd_config *config, const char *text)
{
	static const char *const names[] = {[ZD_KEEP_AUTO] = "auto",
	                                    [ZD_KEEP_NONE] = "none",
	                                    [ZD_KEEP_SYSTEMD] = "systemd",
	                                    [ZD_KEEP_HOLDER] = "holder"};

	for (size_t i = 0; i < ZD_ARRAY_LEN(names); i++) {
		if (strcmp(text, names[i]) != 0)
			continue;
		config->keep_state = (enum zd_keep_state)i;
		return 0;
	}
	return -1;
}

/* "auto" is resolved at the start. */
static int set_backend(struct zd_config *config, const char *text)
{
	if (strcmp(text, "auto") == 0)
		config->backend = NULL;
	else if (strcmp(text, zd_backend_host.name) == 0)
		config->backend = &zd_backend_host;
	else if (strcmp(text, zd_backend_cuda.name) == 0)
		config->backend = &zd_backend_cuda;
	else
		return -1;
	return 0;
}

/* A number, or "GPU-12345678-1234-1234-1234-123456789abc". */
static bool is_gpu(const char *word, size_t bytes)
{
	static const char form[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";

	if (strspn(word, "0123456789") >= bytes)
		return true;
	if (bytes != sizeof(form) - 1)
		return false;
	for (size_t i = 0; i < bytes; i++)
		if (form[i] == 'x' ? !strchr("0123456789abcdef", word[i]) : word[i] != form[i])
			return false;
	return true;
}

/* The backend checks that the GPUs exist. */
static int set_gpus(struct zd_config *config, const char *text)
{
	static const char between[] = " ,\t";
	const char *word = text + strspn(text, between);
	size_t bytes = strlen(text);

	if (*word == '\0' || bytes >= sizeof(config->gpus))
		return -1;
	while (*word && strcmp(text, ZD_DEFAULT_GPUS) != 0) {
		size_t word_bytes = strcspn(word, between);

		if (!is_gpu(word, word_bytes))
			return -1;
		word += word_bytes;
		word += strspn(word, between);
	}
	memcpy(config->gpus, text, bytes + 1);
	return 0;
}

/* "90", "90s", "30m", "12h", "7d". */
static int read_time(const char *text, uint32_t least_s, uint32_t most_s, uint32_t *seconds)
{
	static const struct {
		char letter;
		uint32_t seconds;
	} units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', DAY_S}};
	size_t bytes = strlen(text);
	uint32_t number, unit_s = 1;
	char digits[16];

	if (bytes == 0 || bytes >= sizeof(digits))
		return -1;
	memcpy(digits, text, bytes + 1);
	for (size_t i = 0; i < ZD_ARRAY_LEN(units); i++) {
		if (bytes > 1 && text[bytes - 1] == units[i].letter) {
			unit_s = units[i].seconds;
			digits[bytes - 1] = '\0';
		}
	}
	if (read_u32(digits, least_s, most_s / unit_s, &number) != 0)
		return -1;
	*seconds = number * unit_s;
	return 0;
}

/* ---- Keys ---------------------------------------------------------------------------------------------- */

#define GROUPS_EXPECTED "names of at most 32 groups on this machine"
#define SIZE_EXPECTED   "a size such as 64G, at most 1024T"

/* The offset of the field, which must have the type that set_key() stores. */
#define AT(field, type)                                                                                      \
	(offsetof(struct zd_config, field) *                                                                 \
	 sizeof(char[__builtin_types_compatible_p(__typeof__(((struct zd_config *)0)->field), type) ? 1      \
	                                                                                            : -1]))
#define BYTES(field)               KEY_BYTES, AT(field, uint64_t), 0, 0, NULL
#define NUMBER(field, least, most) KEY_NUMBER, AT(field, uint32_t), least, most, NULL
#define TIME(field, least, most)   KEY_TIME, AT(field, uint32_t), least, most, NULL
#define YES(field)                 KEY_YES, AT(field, bool), 0, 0, NULL
#define PATH(field)                KEY_PATH, AT(field, char[ZD_CONFIG_PATH_BYTES]), 0, 0, NULL
#define GROUPS(field)              KEY_GROUPS, AT(field, struct zd_creds_groups), 0, 0, NULL
#define OTHER(set)                 KEY_OTHER, 0, 0, 0, set

static const struct key {
	const char *section, *name, *expected;
	enum { KEY_BYTES, KEY_NUMBER, KEY_TIME, KEY_YES, KEY_PATH, KEY_GROUPS, KEY_OTHER } kind;
	size_t at; /* of the value, in the configuration */
	uint32_t least, most;
	int (*set)(struct zd_config *config, const char *text); /* OTHER */
} keys[] = {
        {"daemon", "socket", "a path of 1 to 107 bytes", OTHER(set_socket)},
        {"daemon", "socket_mode", "permissions in octal such as 0660", OTHER(set_socket_mode)},
        {"daemon", "root_is_admin", "yes or no", YES(root_is_admin)},
        {"daemon", "admin_group", "the name of a group on this machine", OTHER(set_admin_group)},
        {"daemon", "allow_groups", GROUPS_EXPECTED, GROUPS(allow_groups)},
        {"daemon", "reader_groups", GROUPS_EXPECTED, GROUPS(reader_groups)},
        {"daemon", "log_level", "error, warning, notice, info or debug", OTHER(set_log_level)},
        {"daemon", "keep_state", "auto, none, systemd or holder", OTHER(set_keep_state)},
        {"daemon", "keep_state_ttl", TTL_EXPECTED, TIME(keep_state_ttl_s, 0, MAX_TTL_S)},
        {"daemon", "drain_timeout_s", "a number of seconds, at most 86400",
         NUMBER(drain_timeout_s, 0, MAX_DRAIN_S)},
        {"daemon", "exit_when_idle_s", "a number of seconds, at most 86400",
         NUMBER(exit_when_idle_s, 0, MAX_IDLE_S)},
        {"daemon", "events", "a number from 0 to 16777216", NUMBER(events, 0, ZD_MAX_EVENTS)},
        {"devices", "backend", "auto, host or cuda", OTHER(set_backend)},
        {"devices", "count", "a number from 1 to 64", NUMBER(device_count, 1, ZD_MAX_DEVICES)},
        {"devices", "gpus", "all, or a list of UUIDs or numbers such as 0,1", OTHER(set_gpus)},
        {"devices", "arena", SIZE_EXPECTED, BYTES(arena_bytes)},
        {"devices", "host_arena", SIZE_EXPECTED, BYTES(host_arena_bytes)},
        {"devices", "gather_budget", SIZE_EXPECTED, BYTES(gather_budget_bytes)},
        {"devices", "staging", SIZE_EXPECTED, BYTES(staging_bytes)},
        {"devices", "segment", SIZE_EXPECTED, BYTES(segment_bytes)},
        {"collectives", "nccl", "a path of at most 1023 bytes", PATH(nccl_path)},
        {"collectives", "check", "yes or no", YES(check_collectives)},
        {"collectives", "timeout_s", "a number of seconds, at most 86400",
         NUMBER(collective_timeout_s, 0, MAX_COLLECTIVE_S)},
        {"collectives", "key_file", "a path of at most 1023 bytes", PATH(key_path)},
        {"collectives", "id_ttl", "a time such as 30m or 1h, from 1s to 30d",
         TIME(id_ttl_s, 1, MAX_ID_TTL_S)},
        {"limits", "uid_quota", SIZE_EXPECTED, BYTES(uid_quota_bytes)},
        {"limits", "uid_unsent", SIZE_EXPECTED, BYTES(uid_unsent_bytes)},
        {"limits", "uid_metadata", SIZE_EXPECTED, BYTES(uid_metadata_bytes)},
        {"limits", "max_sessions", "a number from 1 to 1024", NUMBER(max_sessions, 1, ZD_MAX_SESSIONS)},
        {"limits", "max_sessions_per_uid", "a number from 0 to 1024",
         NUMBER(max_sessions_per_uid, 0, ZD_MAX_SESSIONS)},
        {"limits", "max_jobs_per_uid", "a number from 0 to 1000000",
         NUMBER(max_jobs_per_uid, 0, MAX_JOBS_PER_UID)},
        {"limits", "max_durable_segments_per_uid", "a number from 0 to 1000000",
         NUMBER(max_durable_segments_per_uid, 0, MAX_JOBS_PER_UID)},
        {"limits", "durable_ttl", TTL_EXPECTED, TIME(durable_ttl_s, 0, MAX_TTL_S)},
        {"limits", "durable_groups", GROUPS_EXPECTED, GROUPS(durable_groups)},
};

_Static_assert(sizeof(((struct zd_config *)0)->socket_path) == 108,
               "the text of the key socket names the limit");
_Static_assert(ZD_CONFIG_PATH_BYTES == 1024, "the texts of nccl and key_file name the limit");
_Static_assert(ZD_MAX_DEVICES == 64, "the text of the key count names the limit");
_Static_assert(ZD_MAX_SESSIONS == 1024, "the text of the key max_sessions names the limit");
_Static_assert(ZD_CREDS_GROUPS == 32, "the texts of lists of groups name the limit");
_Static_assert(ZD_MAX_EVENTS == 16777216, "the text of the key events names the limit");
_Static_assert(ZD_MAX_BYTES == 1024ull << 40, "the text of the sizes names the limit");

static int set_key(struct zd_config *config, const struct key *key, const char *text)
{
	void *at = (char *)config + key->at;

	switch (key->kind) {
	case KEY_BYTES:
		return read_bytes(text, at);
	case KEY_NUMBER:
		return read_u32(text, key->least, key->most, at);
	case KEY_TIME:
		return read_time(text, key->least, key->most, at);
	case KEY_YES:
		return read_yes(text, at);
	case KEY_PATH:
		return zd_config_read_text(text, 0, ZD_CONFIG_PATH_BYTES, at);
	case KEY_GROUPS:
		return read_groups(text, at);
	case KEY_OTHER:
		break;
	}
	return key->set(config, text);
}

static int refuse(const struct key *key, const char *value, struct zd_err *err)
{
	const char *mig = key->set == set_gpus ? strstr(value, "MIG-") : NULL;

	if (!mig)
		return zd_err_set(err, ZEROD_E_INVALID, "expected %s, found '%s'", key->expected, value);
	return zd_err_set(err, ZEROD_E_INVALID,
	                  "expected whole GPUs, found '%.*s': a MIG instance has no peer access to other "
	                  "GPUs",
	                  (int)strcspn(mig, " ,\t"), mig);
}

static int check_section(const char *section, struct zd_err *err)
{
	for (size_t i = 0; i < ZD_ARRAY_LEN(keys); i++)
		if (strcmp(keys[i].section, section) == 0)
			return 0;
	if (strcmp(section, ZD_GRANTS_SECTION) == 0 || zd_config_is_socket(section))
		return 0;
	return zd_err_set(
	        err, ZEROD_E_INVALID,
	        "unknown section, expected [daemon], [devices], [collectives], [limits], [grants] or "
	        "[socket NAME]");
}

static int unknown_key(const char *section, struct zd_err *err)
{
	char names[KEYS_TEXT] = "";
	size_t used = 0;
	int rc = check_section(section, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < ZD_ARRAY_LEN(keys); i++)
		if (strcmp(keys[i].section, section) == 0 && used < sizeof(names))
			used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "",
			                         keys[i].name);
	return zd_err_set(err, ZEROD_E_INVALID, "unknown key, expected one of %s", names);
}

int zd_config_set(struct zd_config *config, const char *section, const char *key, const char *value,
                  struct zd_err *err)
{
	for (size_t i = 0; i < ZD_ARRAY_LEN(keys); i++) {
		if (strcmp(keys[i].section, section) != 0 || strcmp(keys[i].name, key) != 0)
			continue;
		if (set_key(config, &keys[i], value) == 0)
			return 0;
		return refuse(&keys[i], value, err);
	}
	if (strcmp(section, ZD_GRANTS_SECTION) == 0)
		return zd_config_add_grant(config, key, value, err);
	if (zd_config_is_socket(section))
		return zd_config_set_socket(config, section, key, value, err);
	return unknown_key(section, err);
}

void zd_config_init(struct zd_config *config)
{
	*config = (struct zd_config){
	        .socket_path = ZD_DEFAULT_SOCKET,
	        .socket_mode = 0666,
	        .root_is_admin = true,
	        .log_level = ZD_LOG_INFO,
	        .drain_timeout_s = DEFAULT_DRAIN_S,
	        .keep_state_ttl_s = DAY_S,
	        .events = ZD_DEFAULT_EVENTS,
	        .device_count = ZD_DEFAULT_DEVICES,
	        .gpus = ZD_DEFAULT_GPUS,
	        .collective_timeout_s = DEFAULT_COLLECTIVE_S,
	        .id_ttl_s = DEFAULT_ID_TTL_S,
	        .uid_unsent_bytes = ZD_DEFAULT_UNSENT,
	        .uid_metadata_bytes = ZD_DEFAULT_METADATA,
	        .max_sessions = ZD_MAX_SESSIONS,
	        .max_sessions_per_uid = ZD_DEFAULT_MAX_SESSIONS_PER_UID,
	        .max_jobs_per_uid = ZD_DEFAULT_MAX_JOBS_PER_UID,
	        .max_durable_segments_per_uid = ZD_DEFAULT_DURABLE_SEGMENTS,
	};
}

static int check_part(const char *key, uint64_t bytes, uint64_t arena_bytes, struct zd_err *err)
{
	char part[ZD_BYTES_TEXT], arena[ZD_BYTES_TEXT];

	if (arena_bytes == 0 || bytes <= arena_bytes)
		return 0;
	return zd_err_set(err, ZEROD_E_INVALID, "[devices] %s: expected at most the arena's %s, found %s",
	                  key, zd_bytes_text(arena_bytes, arena), zd_bytes_text(bytes, part));
}

int zd_config_check(const struct zd_config *config, struct zd_err *err)
{
	int rc = check_part("gather_budget", config->gather_budget_bytes, config->arena_bytes, err);

	if (rc == 0)
		rc = check_part("staging", config->staging_bytes, config->arena_bytes, err);
	if (rc == 0)
		rc = zd_config_check_sockets(config, err);
	return rc;
}

/* ---- The file ------------------------------------------------------------------------------------------ */

#define LINE_BYTES      8192u
#define MOST_ERRORS     20u /* the rest of the file is not read */
#define BYTE_ORDER_MARK "\xef\xbb\xbf"

struct file {
	FILE *stream;
	const char *path;
	char text[LINE_BYTES]; /* the line being read */
	const char *value;     /* in `text`, if the line is too long for the parser; otherwise NULL */
	int line;              /* its number, from 1 */
	int failure;           /* errno of a failed read; 0: none */
	bool ended;            /* the rest of the file is not read */
	bool skips_keys;       /* until the next section, as the present one has an error */
	struct zd_config config;
	FILE *errors; /* NULL: the caller needs only the first one */
	unsigned nerrors;
	struct zd_err first;
};

static void add_error(struct file *file, const struct zd_err *err)
{
	file->nerrors++;
	file->ended |= file->nerrors == MOST_ERRORS;
	if (file->nerrors == 1)
		file->first = *err;
	if (!file->errors || file->nerrors == 1)
		return;
	if (file->nerrors == 2)
		(void)fprintf(file->errors, "%s\n", file->first.text);
	(void)fprintf(file->errors, "%s\n", err->text);
}

static void add_malformed(struct file *file, int line)
{
	struct zd_err err;

	(void)zd_err_set(&err, ZEROD_E_INVALID, "%s:%d: expected 'key = value' or '[section]'", file->path,
	                 line);
	add_error(file, &err);
}

static bool is_blank_or_comment(const char *rest)
{
	rest += strspn(rest, " \t\r\n");
	return *rest == '\0' || *rest == ';' || *rest == '#';
}

/* Returns the next line without its indentation, because the parser treats an indented line as a
 * continuation. NULL at the end, or after an error. */
static char *next_text(struct file *file)
{
	char *text;
	struct zd_err err;

	if (!fgets(file->text, sizeof(file->text), file->stream)) {
		file->failure = ferror(file->stream) ? errno : 0;
		return NULL;
	}
	file->line++;
	size_t bytes = strlen(file->text);
	if (bytes == 0 || (file->text[bytes - 1] != '\n' && !feof(file->stream))) {
		(void)zd_err_set(&err, ZEROD_E_INVALID,
		                 "%s:%d: expected text of at most %u bytes, without bytes of 0", file->path,
		                 file->line, LINE_BYTES - 2);
		add_error(file, &err);
		return NULL;
	}
	text = file->text;
	if (file->line == 1 && strncmp(text, BYTE_ORDER_MARK, strlen(BYTE_ORDER_MARK)) == 0)
		text += strlen(BYTE_ORDER_MARK);
	return text + strspn(text, " \t");
}

/* Removes a comment after the value, and the blanks around the value. */
static const char *trim(char *value)
{
	static const char blanks[] = " \t\r\n";
	char *end = value + strlen(value);

	for (char *at = value; (at = strchr(at, ';')); at++) {
		if (at > value && strchr(blanks, at[-1])) {
			end = at;
			break;
		}
	}
	while (end > value && strchr(blanks, end[-1]))
		end--;
	*end = '\0';
	return value + strspn(value, blanks);
}

/* The parser accepts lines of about 200 bytes. For a longer line it receives only the key, and take_key()
 * uses the value from `file`. The parser reports only its first malformed line. It therefore never receives a
 * malformed line. */
static void write_line(struct file *file, char *text, char *line, size_t room_bytes)
{
	bool is_section = text[0] == '[', fits = strlen(text) < room_bytes, is_malformed;
	size_t key_bytes = strcspn(text, "=:");

	(void)snprintf(line, room_bytes, "\n");
	if (is_blank_or_comment(text))
		return;
	is_malformed = is_section
	                       ? !strchr(text, ']') || !fits
	                       : text[key_bytes] == '\0' || (!fits && key_bytes + sizeof("=\n") > room_bytes);
	if (is_malformed) {
		add_malformed(file, file->line);
		file->skips_keys |= is_section;
	} else if (fits) {
		(void)snprintf(line, room_bytes, "%s", text);
	} else {
		file->value = trim(text + key_bytes + 1);
		(void)snprintf(line, room_bytes, "%.*s=\n", (int)key_bytes, text);
	}
}

/* The parser reports neither sections without keys nor text after a section. */
static void check_section_line(struct file *file, char *line, char *end)
{
	struct zd_err what, err;

	*end = '\0';
	file->skips_keys = true;
	if (check_section(line + 1, &what) != 0) {
		(void)zd_err_set(&err, ZEROD_E_INVALID, "%s:%d: [%s]: %s", file->path, file->line, line + 1,
		                 what.text);
		add_error(file, &err);
	} else if (!is_blank_or_comment(end + 1)) {
		(void)zd_err_set(&err, ZEROD_E_INVALID, "%s:%d: [%s]: expected only a comment after it",
		                 file->path, file->line, line + 1);
		add_error(file, &err);
	} else {
		file->skips_keys = false;
	}
	*end = ']';
}

/* Returns one line for the parser; NULL at the end. */
static char *read_line(char *line, int room_bytes, void *arg)
{
	struct file *file = arg;
	char *text = file->ended ? NULL : next_text(file);

	file->value = NULL;
	if (!text)
		return NULL;
	write_line(file, text, line, (size_t)room_bytes);
	char *end = line[0] == '[' ? strchr(line, ']') : NULL;
	if (end)
		check_section_line(file, line, end);
	return line;
}

/* The parser's callback. Returns 1: the parser is to continue. */
static int take_key(void *arg, const char *section, const char *key, const char *value)
{
	struct file *file = arg;
	struct zd_err what, err;

	if (file->skips_keys)
		return 1;
	if (!section[0])
		(void)zd_err_set(&err, ZEROD_E_INVALID,
		                 "%s:%d: %s: expected a section such as [daemon] before it", file->path,
		                 file->line, key);
	else if (zd_config_set(&file->config, section, key, file->value ? file->value : value, &what) != 0)
		(void)zd_err_set(&err, ZEROD_E_INVALID, "%s:%d: [%s] %s: %s", file->path, file->line, section,
		                 key, what.text);
	else
		return 1;
	add_error(file, &err);
	return 1;
}

/* A user who may write the file could become an administrator. */
static int check_owner(const struct file *file, struct zd_err *err)
{
	struct stat found;

	if (fstat(fileno(file->stream), &found) < 0)
		return zd_err_errno(err, errno, "%s: reading its owner", file->path);
	if (!S_ISREG(found.st_mode))
		return 0; /* the shell's <(...), or a device: no file that others have prepared */
	if (found.st_uid != 0 && found.st_uid != geteuid())
		return zd_err_set(err, ZEROD_E_PERMISSION,
		                  "%s: expected a file of root or of the daemon's user, uid %u, found one of "
		                  "uid %u",
		                  file->path, (unsigned)geteuid(), (unsigned)found.st_uid);
	if (found.st_mode & 022)
		return zd_err_set(err, ZEROD_E_PERMISSION,
		                  "%s: expected a file that only its owner can write, found mode %04o",
		                  file->path, (unsigned)found.st_mode & 07777);
	return 0;
}

int zd_config_read(struct zd_config *config, const char *path, FILE *errors, struct zd_err *err)
{
	struct file file = {.path = path, .config = *config, .errors = errors};
	int line, rc;

	file.stream = fopen(path, "re");
	if (!file.stream && errno == ENOENT)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "%s: no such file", path);
	if (!file.stream)
		return zd_err_errno(err, errno, "%s: opening the file", path);
	rc = check_owner(&file, err);
	if (rc) {
		(void)fclose(file.stream);
		return rc;
	}
	line = ini_parse_stream(read_line, &file, take_key, &file);
	(void)fclose(file.stream);
	if (file.failure)
		return zd_err_errno(err, file.failure, "%s: reading it", path);
	if (line > 0) /* one that the parser alone finds malformed: "key ; = value" */
		add_malformed(&file, line);
	if (file.nerrors > 1 && errors)
		return zd_err_set(err, ZEROD_E_INVALID, "%s: %u errors%s", path, file.nerrors,
		                  file.ended ? ", and the rest was not read" : "");
	if (file.nerrors > 1)
		return zd_err_set(err, ZEROD_E_INVALID, "%s (%u errors in all)", file.first.text,
		                  file.nerrors);
	if (file.nerrors == 1)
		return zd_err_set(err, ZEROD_E_INVALID, "%s", file.first.text);
	*config = file.config;
	return 0;
}
