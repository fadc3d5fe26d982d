/* SPDX-License-Identifier: Apache-2.0 */
/* backend.c - functions that all backends share. */
#include "executor/backend.h"

#include <stdlib.h>

#include "base/mem.h"

void zd_completion_fail(struct zd_completion *completion, int status, const char *error)
{
	completion->status = status;
	free(completion->error);
	completion->error = zd_strdup(error);
}

void zd_completion_deinit(struct zd_completion *completion)
{
	free(completion->error);
	free(completion->result.values);
}
