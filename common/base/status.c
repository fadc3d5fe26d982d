/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.c - the names of statuses and dtypes, and the dtypes' sizes.
 *
 * Part of the public interface (zerod.h), and used by every layer: it lives in base so that daemon and
 * library say the same words.
 */
#include <zerod.h>

#include "base/mem.h"

/* Indexed by the negated status. */
static const char *const status_names[] = {
        [0] = "OK",
        [-ZEROD_E_INVALID] = "INVALID",
        [-ZEROD_E_NOT_FOUND] = "NOT_FOUND",
        [-ZEROD_E_EXISTS] = "EXISTS",
        [-ZEROD_E_MISMATCH] = "MISMATCH",
        [-ZEROD_E_STATE] = "STATE",
        [-ZEROD_E_NOT_HELD] = "NOT_HELD",
        [-ZEROD_E_STALE] = "STALE",
        [-ZEROD_E_STALE_VERSION] = "STALE_VERSION",
        [-ZEROD_E_BUSY] = "BUSY",
        [-ZEROD_E_SLOT_CONFLICT] = "SLOT_CONFLICT",
        [-ZEROD_E_POISONED] = "POISONED",
        [-ZEROD_E_DUPLICATE] = "DUPLICATE",
        [-ZEROD_E_CAPACITY] = "CAPACITY",
        [-ZEROD_E_PEER_LOST] = "PEER_LOST",
        [-ZEROD_E_ABORTED] = "ABORTED",
        [-ZEROD_E_DEADLINE] = "DEADLINE",
        [-ZEROD_E_NO_MEMORY] = "NO_MEMORY",
        [-ZEROD_E_QUOTA] = "QUOTA",
        [-ZEROD_E_LIMIT] = "LIMIT",
        [-ZEROD_E_PERMISSION] = "PERMISSION",
        [-ZEROD_E_UNSUPPORTED] = "UNSUPPORTED",
        [-ZEROD_E_VERSION] = "VERSION",
        [-ZEROD_E_PROTOCOL] = "PROTOCOL",
        [-ZEROD_E_CONNECT] = "CONNECT",
        [-ZEROD_E_DISCONNECTED] = "DISCONNECTED",
        [-ZEROD_E_TORN] = "TORN",
        [-ZEROD_E_DEVICE] = "DEVICE",
        [-ZEROD_E_SHUTDOWN] = "SHUTDOWN",
        [-ZEROD_E_SYSTEM] = "SYSTEM",
        [-ZEROD_E_FORKED] = "FORKED",
        [-ZEROD_E_RESTARTED] = "RESTARTED",
        [-ZEROD_E_INTERRUPTED] = "INTERRUPTED",
};

static const struct {
	const char *name;
	size_t bytes;
} dtypes[] = {
        [ZEROD_FLOAT32] = {"float32", 4},
        [ZEROD_FLOAT16] = {"float16", 2},
        [ZEROD_BFLOAT16] = {"bfloat16", 2},
        [ZEROD_FLOAT8_E4M3] = {"float8_e4m3", 1},
        [ZEROD_FLOAT8_E5M2] = {"float8_e5m2", 1},
        [ZEROD_INT8] = {"int8", 1},
        [ZEROD_INT16] = {"int16", 2},
        [ZEROD_INT32] = {"int32", 4},
        [ZEROD_INT64] = {"int64", 8},
        [ZEROD_UINT8] = {"uint8", 1},
        [ZEROD_BOOL] = {"bool", 1},
};

const char *zerod_status_name(int status)
{
	if (status > 0 || status <= -(int)ZD_ARRAY_LEN(status_names))
		return "UNKNOWN";
	return status_names[-status] ? status_names[-status] : "UNKNOWN";
}

/* The value may have come from a peer: any integer is looked up safely. */
static size_t dtype_index(enum zerod_dtype dtype)
{
	size_t index = (size_t)dtype;

	return index < ZD_ARRAY_LEN(dtypes) ? index : 0;
}

size_t zerod_dtype_bytes(enum zerod_dtype dtype)
{
	return dtypes[dtype_index(dtype)].bytes;
}

const char *zerod_dtype_name(enum zerod_dtype dtype)
{
	const char *name = dtypes[dtype_index(dtype)].name;

	return name ? name : "unknown";
}
