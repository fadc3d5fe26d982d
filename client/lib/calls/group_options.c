/* SPDX-License-Identifier: Apache-2.0 */
/* group_options.c - the options of a group, for its join and for its unique id. */
#include "base/text.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/group.h"

#define DEFAULT_GROUP "world"

int zc_group_options(const struct zerod_group_options *given, struct zerod_group_options *options,
                     struct zd_err *err)
{
	int rc = zc_options(options, sizeof(*options), given, "zerod_group_options", err);

	if (rc)
		return rc;
	rc = zc_reserved(options->reserved, "zerod_group_options", err);
	if (!options->group)
		options->group = DEFAULT_GROUP;
	if (!rc)
		rc = zd_name_check(options->job, ZD_MAX_NAME_BYTES, "job", err);
	if (!rc)
		rc = zd_name_check(options->group, ZD_MAX_NAME_BYTES, "group", err);
	if (!rc)
		rc = zc_flags(options->flags, ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW | ZEROD_GROUP_HYBRID,
		              "zerod_group_options", err);
	if (rc)
		return rc;
	if ((options->flags & ZEROD_GROUP_SHADOW) && !(options->flags & ZEROD_GROUP_DURABLE))
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "group '%s': ZEROD_GROUP_SHADOW needs ZEROD_GROUP_DURABLE", options->group);
	if (options->world_size == 0 || options->world_size > ZD_MAX_WORLD)
		return zd_err_set(err, ZEROD_E_INVALID, "group '%s': world_size %u, expected 1 to %u",
		                  options->group, options->world_size, ZD_MAX_WORLD);
	if (options->rank >= options->world_size)
		return zd_err_set(err, ZEROD_E_INVALID, "group '%s': rank %u of %u", options->group,
		                  options->rank, options->world_size);
	return 0;
}
