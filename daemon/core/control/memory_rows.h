/* SPDX-License-Identifier: Apache-2.0 */
/* memory_rows.h - rows of segments and blocks: the content of a device's arena, and the objects that it
 * belongs to. */
#ifndef ZD_CORE_CONTROL_MEMORY_ROWS_H
#define ZD_CORE_CONTROL_MEMORY_ROWS_H

#include "core/memory/pool.h"

/* Each fills in the row, with texts in `text`, which is empty. */
void zd_segment_row(const struct zd_segment *segment, Zd__SegmentRow *row, char text[ZD_WAIT_TEXT]);
void zd_block_row(const struct zd_segment *segment, const struct zd_block *block, Zd__BlockRow *row,
                  char text[ZD_WAIT_TEXT]);

#endif
