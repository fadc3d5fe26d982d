/* SPDX-License-Identifier: Apache-2.0 */
/*
 * structures.c - compile-time checks of the structures in the public headers.
 *
 * A byte that belongs to no field would be unset in a program of today and an option of a later version. The
 * fields of each structure must therefore add up to its size, without gaps between them or at the end. A new
 * field replaces a reserved one, or comes last and fills 8 bytes. tests/it/test_cplusplus.sh finds structures
 * that are missing here.
 */
#include <zerod.h>
#include <zerod_optimizer.h>
#include <zerod_read.h>

_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8, "libzerod is for machines of 64 bits");

/* Sizes of pointers also count. NOLINTBEGIN(bugprone-macro-parentheses,bugprone-sizeof-expression) */
#define OF(field) +sizeof(((T *)0)->field)
/* T begins with struct_size, and the other fields fill the rest. */
#define SOLID(fields)                                                                                        \
	_Static_assert(offsetof(T, struct_size) == 0 && sizeof(T) == (0 OF(struct_size) fields),             \
	               "a structure with a hole")

#define T struct zerod_wait_options
SOLID(OF(deadline_ms) OF(flags));
#undef T
#define T struct zerod_options
SOLID(OF(socket_path) OF(name) OF(deadline_ms) OF(strict) OF(poison) OF(reconnect_ms) OF(interrupted)
              OF(interrupted_context));
#undef T
#define T struct zerod_device_info
SOLID(OF(index) OF(host) OF(name) OF(arena_bytes) OF(allocated_bytes) OF(gathered_bytes) OF(peak_bytes));
#undef T
#define T struct zerod_group_options
SOLID(OF(job) OF(group) OF(world_size) OF(local_world_size) OF(rank) OF(device) OF(device_uuid) OF(unique_id)
              OF(collectives) OF(flags) OF(deadline_ms) OF(reserved));
#undef T
#define T struct zerod_group_info
SOLID(OF(committed_step) OF(torn) OF(reserved));
#undef T
#define T struct zerod_view
SOLID(OF(name) OF(offset_numel) OF(ndim) OF(reserved) OF(shape));
#undef T
#define T struct zerod_unit_options
SOLID(OF(name) OF(numel) OF(dtype) OF(nviews) OF(views) OF(slot) OF(flags) OF(deadline_ms) OF(reserved));
#undef T
#define T struct zerod_shard
SOLID(OF(data) OF(shard_numel) OF(true_numel) OF(offset_numel) OF(version) OF(padded_numel) OF(dtype)
              OF(flags));
#undef T
#define T struct zerod_publish_options
SOLID(OF(flags) OF(deadline_ms));
#undef T
#define T struct zerod_source
SOLID(OF(unit) OF(data));
#undef T
#define T struct zerod_gather_options
SOLID(OF(tag) OF(scope) OF(version) OF(uses) OF(flags) OF(deadline_ms) OF(reserved));
#undef T
#define T struct zerod_release_options
SOLID(OF(tag) OF(flags) OF(deadline_ms));
#undef T
#define T struct zerod_backward_options
SOLID(OF(stage) OF(boundary) OF(target_dtype) OF(deadline_ms) OF(flags) OF(reserved));
#undef T
#define T struct zerod_bucket_options
SOLID(OF(dtype) OF(nslots) OF(slot_bytes));
#undef T
#define T struct zerod_reserve_options
SOLID(OF(stream) OF(flags) OF(deadline_ms));
#undef T
#define T struct zerod_entry
SOLID(OF(id) OF(data) OF(padded_numel) OF(accumulates) OF(reserved));
#undef T
#define T struct zerod_reduce_options
SOLID(OF(op) OF(prescale) OF(flags) OF(deadline_ms) OF(nabsent) OF(reserved) OF(absent));
#undef T
#define T struct zerod_skip_options
SOLID(OF(flags) OF(deadline_ms));
#undef T
#define T struct zerod_backward_end_options
SOLID(OF(flags) OF(deadline_ms));
#undef T
#define T struct zerod_step_options
SOLID(OF(flags) OF(deadline_ms));
#undef T
#define T struct zerod_step_scalars
SOLID(OF(overflow) OF(norm_squared));
#undef T
#define T struct zerod_step_info
SOLID(OF(step) OF(norm_squared) OF(overflow) OF(abandoned) OF(abandoned_rank) OF(reserved));
#undef T
#define T struct zerod_target
SOLID(OF(data) OF(shard_numel) OF(true_numel) OF(dtype) OF(reserved));
#undef T
#define T struct zerod_alloc_options
SOLID(OF(job) OF(name) OF(bytes) OF(alignment) OF(device) OF(flags) OF(deadline_ms) OF(reserved));
#undef T
#define T struct zerod_optimizer_step
SOLID(OF(rule) OF(flags) OF(step) OF(lr) OF(weight_decay) OF(beta1) OF(beta2) OF(eps) OF(dampening) OF(scale)
              OF(overflow));
#undef T
#define T struct zerod_commit_source
SOLID(OF(job) OF(group) OF(uid) OF(deadline_ms) OF(flags) OF(pin_ms));
#undef T
#define T struct zerod_committed
SOLID(OF(group) OF(step));
#undef T
#define T struct zerod_unit_read_options
SOLID(OF(group) OF(step) OF(unit) OF(offset_bytes) OF(bytes) OF(into) OF(into_offset_bytes) OF(deadline_ms)
              OF(reserved) OF(rows) OF(stride_bytes));
#undef T
#define T struct zerod_unit_map_options
SOLID(OF(group) OF(step) OF(unit) OF(offset_bytes) OF(bytes) OF(device) OF(deadline_ms));
#undef T
#define T struct zerod_unit_info
SOLID(OF(numel) OF(dtype) OF(reserved));
#undef T
#define T struct zerod_optimizer_part
SOLID(OF(unit) OF(offset_numel) OF(numel) OF(low) OF(m) OF(v) OF(values) OF(terms));
#undef T
#define T struct zerod_terms
SOLID(OF(shard_numel) OF(true_numel) OF(dtype) OF(count) OF(prescale) OF(postscale) OF(each));
#undef T

/* NOLINTEND(bugprone-macro-parentheses,bugprone-sizeof-expression) */

/* These three are values, and never grow: two ids, and bytes that only the library reads. */
_Static_assert(sizeof(struct zerod_ticket) == 8 && sizeof(struct zerod_scope) == 8, "ids");
_Static_assert(sizeof(struct zerod_unique_id) == ZEROD_UNIQUE_ID_BYTES, "bytes");
