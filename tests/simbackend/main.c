/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - zerod as it is, on a backend that does whatever a backend may do.
 *
 * Memory, sessions and fences are the host backend's; its executors are those of run.c, and fences that have
 * passed are sometimes denied, as they may be. ZEROD_SIM_SEED decides; a run is repeated by its seed as far
 * as the order of the clients' requests is. For tests/contract, with ZEROD_TEST_BACKEND=sim.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/log.h"
#include "executor/backend.h"
#include "main/config.h"
#include "main/log.h"
#include "main/options.h"
#include "main/service.h"
#include "server/loop.h"
#include "tests/simbackend/temper.h"

static struct zd_backend_ops ops;
static struct zd_temper_backend temper;
static struct zd_sim_rng loop_rng; /* the loop's thread only */

static uint64_t read_or_deny(const struct zd_backend *backend, uint64_t session, uint32_t timeline)
{
	if (zd_sim_percent(&loop_rng, temper.deny_percent))
		return 0;
	return zd_backend_host.timeline_read(backend, session, timeline);
}

static bool parse_seed(uint64_t *seed)
{
	const char *text = getenv("ZEROD_SIM_SEED");
	char *end;

	*seed = 1;
	if (!text)
		return true;
	errno = 0;
	*seed = strtoull(text, &end, 10);
	return errno == 0 && end != text && *end == '\0';
}

static void make_backend(uint64_t seed)
{
	zd_temper_set_seed(seed);
	zd_temper_loop_rng(&loop_rng);
	zd_temper_draw_backend(&temper);
	ops = zd_backend_host;
	ops.name = "sim";
	ops.sessions_linger = temper.sessions_linger;
	ops.strict_by_segment = temper.strict_by_segment;
	ops.timeline_read = read_or_deny;
	zd_log(ZD_LOG_NOTICE, "seed %" PRIu64 ": sessions: %s, strict: by %s, fences denied: %" PRIu32 " %%",
	       seed, temper.sessions_linger ? "linger" : "do not linger",
	       temper.strict_by_segment ? "segment" : "page", temper.deny_percent);
}

int main(int argc, char **argv)
{
	uint64_t started_ns = zd_loop_now_ns(), seed;
	struct zd_options options;
	struct zd_config config;
	struct zd_err err;

	zd_options_parse(argc, argv, &options);
	if (zd_options_load(&options, NULL, &config, &err) != 0) {
		(void)fprintf(stderr, "zerod-sim: %s\n", err.text);
		return ZD_EXIT_CONFIG;
	}
	if (!parse_seed(&seed)) {
		(void)fprintf(stderr, "zerod-sim: expected a number, found ZEROD_SIM_SEED=%s\n",
		              getenv("ZEROD_SIM_SEED"));
		return ZD_EXIT_CONFIG;
	}
	zd_log_open(options.foreground);
	zd_log_set_level(config.log_level);
	make_backend(seed);
	config.backend = &ops;
	return zd_service_run(&options, &config, started_ns);
}
