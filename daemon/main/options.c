/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - the command line. zd_options_load() checks values with the rules of the file. */
#include "main/options.h"

#include <argp.h>

#include "base/err.h"
#include "base/mem.h"
#include "main/config.h"

#define EXIT_USAGE 2

enum option_key {
	OPT_CONFIG = 'c',
	OPT_SOCKET = 's',
	OPT_BACKEND = 'b',
	OPT_DEVICES = 'd',
	OPT_GPUS = 'g',
	OPT_ARENA = 'a',
	OPT_FOREGROUND = 'f',
	OPT_CHECK_CONFIG = 256, /* this and the following have no short form */
	OPT_HOST_ARENA,
	OPT_NCCL,
	OPT_KEEP_STATE,
	OPT_EXIT_WHEN_IDLE,
	OPT_DISCARD_STATE,
	OPT_KEY_FILE,
};

static const struct argp_option argp_options[] = {
        {"config", OPT_CONFIG, "FILE", 0, "Configuration (default: " ZD_DEFAULT_CONFIG ", if it exists)", 0},
        {"check-config", OPT_CHECK_CONFIG, NULL, 0, "Check configuration and command line, then end", 0},
        {"socket", OPT_SOCKET, "PATH", 0, "Socket to listen on", 0},
        {"backend", OPT_BACKEND, "NAME", 0,
         "host (emulated devices), cuda (GPUs), or auto: GPUs if there are any", 0},
        {"devices", OPT_DEVICES, "N", 0, "Number of emulated devices", 0},
        {"gpus", OPT_GPUS, "LIST", 0, "Which GPUs, by UUID or number (default: all)", 0},
        {"arena", OPT_ARENA, "SIZE", 0, "Memory of each device, such as 64G", 0},
        {"host-arena", OPT_HOST_ARENA, "SIZE", 0, "Host memory for units on the host (default: none)", 0},
        {"nccl", OPT_NCCL, "FILE", 0, "NCCL's library, for groups that span daemons (default: libnccl.so.2)",
         0},
        {"keep-state", OPT_KEEP_STATE, "WHERE", 0,
         "Store of durable jobs across restarts: systemd, holder (a separate process), none, or auto", 0},
        {"exit-when-idle", OPT_EXIT_WHEN_IDLE, "SECONDS", 0,
         "End after this time without a session (default: never)", 0},
        {"discard-state", OPT_DISCARD_STATE, NULL, 0, "Start without the durable jobs of the former daemon",
         0},
        {"key-file", OPT_KEY_FILE, "FILE", 0,
         "Common key of the daemons of groups across nodes (default: none)", 0},
        {"foreground", OPT_FOREGROUND, NULL, 0, "Log to stderr, even if stderr is connected to the journal",
         0},
        {NULL, 0, NULL, 0, NULL, 0},
};

static const char doc[] =
        "Owns the memory of sharded training on this node, and gathers and reduces it for the training "
        "processes that connect to its socket."
        "\vThe command line overrides the file. The program always runs in the foreground. If a service "
        "manager has connected its stderr to the journal, it logs to the journal, otherwise to stderr.\n\n"
        "At SIGHUP the daemon reads the limits again. At SIGTERM and SIGINT it ends when the last session "
        "has ended, or after drain_timeout_s. At a second signal it ends at once.\n\n"
        "Exit status: 0 ended in order, 1 failure, 2 usage or configuration.";

/* Options that override a key of the file. */
static const struct {
	int option;
	const char *name, *section, *key;
} settings[ZD_OPTIONS_SETTINGS] = {
        {OPT_SOCKET, "--socket", "daemon", "socket"},
        {OPT_BACKEND, "--backend", "devices", "backend"},
        {OPT_DEVICES, "--devices", "devices", "count"},
        {OPT_GPUS, "--gpus", "devices", "gpus"},
        {OPT_ARENA, "--arena", "devices", "arena"},
        {OPT_HOST_ARENA, "--host-arena", "devices", "host_arena"},
        {OPT_NCCL, "--nccl", "collectives", "nccl"},
        {OPT_KEEP_STATE, "--keep-state", "daemon", "keep_state"},
        {OPT_EXIT_WHEN_IDLE, "--exit-when-idle", "daemon", "exit_when_idle_s"},
        {OPT_KEY_FILE, "--key-file", "collectives", "key_file"},
};

static error_t take_option(int key, char *text, struct argp_state *state)
{
	struct zd_options *options = state->input;

	switch (key) {
	case OPT_CONFIG:
		options->config_path = text;
		return 0;
	case OPT_CHECK_CONFIG:
		options->check_config = true;
		return 0;
	case OPT_DISCARD_STATE:
		options->discard_state = true;
		return 0;
	case OPT_FOREGROUND:
		options->foreground = true;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "unexpected argument '%s'", text);
		return 0;
	default:
		break;
	}
	for (size_t i = 0; i < ZD_ARRAY_LEN(settings); i++) {
		if (settings[i].option != key)
			continue;
		options->settings[i] = text;
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static void print_version(FILE *stream, struct argp_state *state)
{
	(void)state;
	(void)fprintf(stream, "zerod %s\n", ZEROD_VERSION_TEXT);
}

void zd_options_parse(int argc, char **argv, struct zd_options *options)
{
	static const struct argp argp = {.options = argp_options, .parser = take_option, .doc = doc};

	*options = (struct zd_options){.config_path = NULL};
	argp_program_version_hook = print_version;
	argp_err_exit_status = EXIT_USAGE;
	(void)argp_parse(&argp, argc, argv, 0, NULL, options);
}

/* A file named on the command line must exist; the default one may be missing. */
static int read_file(const struct zd_options *options, FILE *errors, struct zd_config *config,
                     struct zd_err *err)
{
	if (options->config_path)
		return zd_config_read(config, options->config_path, errors, err);
	int rc = zd_config_read(config, ZD_DEFAULT_CONFIG, errors, err);
	return rc == ZEROD_E_NOT_FOUND ? 0 : rc;
}

int zd_options_load(const struct zd_options *options, FILE *errors, struct zd_config *config,
                    struct zd_err *err)
{
	struct zd_config loaded;
	struct zd_err why;

	zd_config_init(&loaded);
	int rc = read_file(options, errors, &loaded, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < ZD_ARRAY_LEN(settings); i++) {
		if (!options->settings[i])
			continue;
		rc = zd_config_set(&loaded, settings[i].section, settings[i].key, options->settings[i], &why);
		if (rc)
			return zd_err_set(err, rc, "%s: %s", settings[i].name, why.text);
	}
	rc = zd_config_check(&loaded, err);
	if (!rc && loaded.key_path[0])
		rc = zd_id_key_read(loaded.key_path, &loaded.id_key, err);
	if (rc)
		return rc;
	*config = loaded;
	return 0;
}
