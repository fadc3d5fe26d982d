/* SPDX-License-Identifier: Apache-2.0 */
/* backend.c - what all backends do alike. */
#include "backend/backend.h"

#include <stdio.h>

void zd_completion_fail(struct zd_completion *completion, int status, const char *error)
{
	completion->status = status;
	(void)snprintf(completion->error, sizeof(completion->error), "%.*s",
	               (int)sizeof(completion->error) - 1, error);
}
