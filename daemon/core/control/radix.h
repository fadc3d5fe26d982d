/* SPDX-License-Identifier: Apache-2.0 */
/*
 * radix.h - sorts the objects of a journal. A journal can have 10^6 objects. Most of them are in order, and
 * their keys differ in few bits. The sort therefore takes the time of a few passes.
 */
#ifndef ZD_CORE_CONTROL_RADIX_H
#define ZD_CORE_CONTROL_RADIX_H

#include <stddef.h>

/* Sorts `count` items of `item_bytes`, a multiple of 8, by their number of `width` bytes (4 or 8) at
 * `offset`. The sort is stable: to sort by two keys, sort by the lesser key first. `scratch` has room for all
 * items. */
void zd_radix_sort(void *items, void *scratch, size_t count, size_t item_bytes, size_t offset, size_t width);

#endif
