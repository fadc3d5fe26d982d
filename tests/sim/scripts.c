/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scripts.c - all scripts: the scenarios of tests/contract, which drives the same over the library and a
 * daemon.
 */
#include "script.h"

#include "base/mem.h"

static const struct zd_sim_script *const *const files[] = {
        zd_sim_scripts_pr8032,      zd_sim_scripts_pr8059,         zd_sim_scripts_pr8036,
        zd_sim_scripts_pr8080,      zd_sim_scripts_known_failures, zd_sim_scripts_bad_requests,
        zd_sim_scripts_versions,    zd_sim_scripts_sums,           zd_sim_scripts_room,
        zd_sim_scripts_many,        zd_sim_scripts_windows,        zd_sim_scripts_ahead,
        zd_sim_scripts_reduce_wait,
};

const struct zd_sim_script *zd_sim_script_at(uint32_t index)
{
	for (size_t f = 0; f < ZD_ARRAY_LEN(files); f++) {
		for (uint32_t i = 0; files[f][i]; i++) {
			if (index-- == 0)
				return files[f][i];
		}
	}
	return NULL;
}
