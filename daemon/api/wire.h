/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - what unpacking a message loses: texts that end before they end.
 *
 * An unpacked string is a C string, so that "a\0b" looks like "a", and two names that differ look alike. What
 * is asked here of the packed bytes is whether such a text is among them.
 */
#ifndef ZD_API_WIRE_H
#define ZD_API_WIRE_H

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

/* Takes the next field with this number, which is length-delimited, out of a packed message; false at its
 * end. */
bool zd_wire_next(struct zd_wire *wire, uint32_t number, struct zd_wire *content);

/* The first text in a packed message, in those inside it too, that holds a zero byte: its field; NULL when
 * there is none. */
const ProtobufCFieldDescriptor *zd_wire_find_zero(struct zd_wire wire,
                                                  const ProtobufCMessageDescriptor *descriptor);

#endif
