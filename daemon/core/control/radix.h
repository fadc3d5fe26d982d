/* SPDX-License-Identifier: Apache-2.0 */
/*
 * radix.h - sorts the objects of a journal. There may be 10^6, most of them in order, and their keys differ
 * in few bits: so the time is that of a few passes.
 */
#ifndef ZD_CORE_CONTROL_RADIX_H
#define ZD_CORE_CONTROL_RADIX_H

#include <stddef.h>

/* Sorts `count` items of `item_bytes`, a multiple of 8, by the number that each has at `offset`, of `width`
 * bytes: 4 or 8. Items with the same number stay in their order, so a sort by the lesser key comes before
 * that by the greater one. `scratch` has room for all items. */
void zd_radix_sort(void *items, void *scratch, size_t count, size_t item_bytes, size_t offset, size_t width);

#endif
