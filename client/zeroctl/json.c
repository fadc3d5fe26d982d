// SPDX-License-Identifier: Apache-2.0
/*
 * json.c - the output of --json.
 */
#include "ctl.h"

#include <stdlib.h>

int zd_ctl_print_json_text(FILE *out, json_t *object, size_t flags)
{
	zd_ctl_show_ids(object);
	char *text = json_dumps(object, flags);
	if (!text)
		return zd_ctl_fail(ZEROD_E_SYSTEM, "out of memory");
	zd_ctl_print_shown(out, text);
	fputc('\n', out);
	free(text);
	return 0;
}

int zd_ctl_print_json(FILE *out, const char *verb, json_t *rows)
{
	json_t *object = json_pack("{s:i,s:s,s:o}", "schema", ZD_CTL_SCHEMA, "verb", verb, "rows", rows);
	if (!object)
		return zd_ctl_fail(ZEROD_E_SYSTEM, "out of memory");
	int status = zd_ctl_print_json_text(out, object, JSON_INDENT(2));
	json_decref(object);
	return status;
}
