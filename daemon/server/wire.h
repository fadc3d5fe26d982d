/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - reads the fields of packed messages, before protobuf-c unpacks them.
 *
 * A packet is split into its requests without being unpacked. A request is searched for properties that
 * protobuf-c does not report: more fields than the daemon unpacks, and strings with embedded NUL bytes. An
 * unpacked string is a C string: "a\0b" reads as "a", and two different names can look equal.
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

/* Finds the next field with this number, which must be length-delimited, in a packed message. Returns false
 * at the end. */
bool zd_wire_next(struct zd_wire *wire, uint32_t number, struct zd_wire *content);

/* Counts the fields of a message, up to `most` + 1, without fields of nested messages. Returns false if the
 * counted part is not a sequence of fields. */
bool zd_wire_count(struct zd_wire wire, unsigned most, unsigned *count);

#define ZD_WIRE_VALUES 8u /* of a packed field: unpacking these takes less time than another field */
/* Visits all fields of a Request, including those of nested messages. Returns false if they are more than
 * `most`, or if the request has two bodies. Each ZD_WIRE_VALUES values of a packed field count as one more
 * field. Otherwise sets *zero to the field of the first string with an embedded NUL byte, or NULL. Visits
 * only a part of an invalid message. */
bool zd_wire_search(struct zd_wire request, unsigned most, const ProtobufCFieldDescriptor **zero);

#endif
