/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - detects strings with embedded NUL bytes in packed messages.
 *
 * An unpacked string is a C string, so "a\0b" reads as "a", and two different names can look equal. These
 * functions search the packed bytes for such strings.
 */
#ifndef ZD_SERVER_WIRE_H
#define ZD_SERVER_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

struct zd_wire {
	const uint8_t *at, *end;
};

static inline struct zd_wire zd_wire_of(const uint8_t *bytes, size_t nbytes)
{
	return (struct zd_wire){bytes, bytes + nbytes};
}

/* Finds the next field with this number, which must be length-delimited, in a packed message; false at the
 * end. */
bool zd_wire_next(struct zd_wire *wire, uint32_t number, struct zd_wire *content);

/* Returns the field of the first string with an embedded NUL byte, nested messages included; NULL if there is
 * none. */
const ProtobufCFieldDescriptor *zd_wire_find_zero(struct zd_wire wire,
                                                  const ProtobufCMessageDescriptor *descriptor);

#endif
