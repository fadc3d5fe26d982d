/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - options of public calls as expressions, valid until the end of the enclosing block. */
#ifndef ZD_TESTS_OPTIONS_H
#define ZD_TESTS_OPTIONS_H

#include <zerod.h>
#include <zerod_cuda.h>
#include <zerod_host.h>

#define OPTIONS_OF(type, ...) (&(struct type){.struct_size = sizeof(struct type), __VA_ARGS__})
/* A structure that is to be filled. */
#define SIZED(out) ((out)->struct_size = sizeof(*(out)), (out))
/* Of a release. */
#define TAGGED(name) OPTIONS_OF(zerod_release_options, .tag = (name))
/* Of a publish: its flags. */
#define PUBLISH(bits) OPTIONS_OF(zerod_publish_options, .flags = (bits))
/* How long to wait. */
#define WITHIN_MS(ms) OPTIONS_OF(zerod_wait_options, .deadline_ms = (ms))

#endif
