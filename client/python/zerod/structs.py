# SPDX-License-Identifier: Apache-2.0
"""The structures and constants of zerod.h, under the same names without prefix.

Only `Struct` uses `struct_size`: every structure sets its own when it is made. A structure accepts its fields as keyword
arguments, and sets the others to zero, which is the default of every option. Text is given as `str`. The caller must reference a
structure as long as a call uses it.
"""
from __future__ import annotations

import ctypes
import enum
from ctypes import POINTER, c_char, c_char_p, c_double, c_float, c_int, c_size_t, c_ubyte, c_uint32, c_uint64, c_void_p
from typing import Any

NO_DEADLINE = 0xFFFFFFFF
NO_SLOT = 0
NO_HOST = 0xFFFFFFFF
MAX_DIMS = 8
MAX_TICKETS = 1024
MAX_STREAMS = 256
MAX_AGREED = 1024
MAX_VIEWS = 256
UNIQUE_ID_BYTES = 4288


class Status(enum.IntEnum):
    """enum zerod_status."""

    OK = 0
    INVALID = -1
    NOT_FOUND = -3
    EXISTS = -4
    MISMATCH = -5
    STATE = -6
    NOT_HELD = -7
    STALE = -8
    STALE_VERSION = -9
    BUSY = -10
    SLOT_CONFLICT = -11
    POISONED = -12
    DUPLICATE = -13
    CAPACITY = -14
    PEER_LOST = -15
    ABORTED = -16
    DEADLINE = -17
    NO_MEMORY = -18
    QUOTA = -19
    LIMIT = -20
    PERMISSION = -21
    UNSUPPORTED = -22
    VERSION = -23
    PROTOCOL = -24
    CONNECT = -25
    DISCONNECTED = -26
    TORN = -27
    DEVICE = -28
    SHUTDOWN = -29
    SYSTEM = -30
    FORKED = -31
    RESTARTED = -32
    INTERRUPTED = -33


class DType(enum.IntEnum):
    """enum zerod_dtype. `itemsize` is bytes of one element, `code` and `bits` are DLPack's."""

    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT8_E4M3 = 4
    FLOAT8_E5M2 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    UINT8 = 10
    BOOL = 11

    @property
    def itemsize(self) -> int:
        return _ITEMSIZE[self]


_ITEMSIZE = dict(zip(DType, (4, 2, 2, 1, 1, 1, 2, 4, 8, 1, 1)))


class GroupFlags(enum.IntFlag):
    DURABLE = 1
    SHADOW = 2
    HYBRID = 4


class UnitFlags(enum.IntFlag):
    PERSISTENT = 1
    FROZEN = 2
    ALL_REDUCE = 4
    ON_HOST = 8
    COPIED = 16
    UNSAVED = 32


class WaitFlags(enum.IntFlag):
    LEASES = 1


class CommitFlags(enum.IntFlag):
    PIN = 1
    SAVED = 2


class GatherFlags(enum.IntFlag):
    PREFETCH = 1
    NO_SLOT = 2


class ReleaseFlags(enum.IntFlag):
    DETACHED = 1


class PublishFlags(enum.IntFlag):
    FORCE = 1


class ReserveFlags(enum.IntFlag):
    ZERO_HOLES = 1
    ACCUMULATE = 2


class ReduceFlags(enum.IntFlag):
    OVERWRITE = 1
    DETACHED = 2
    TERMS = 4


class SkipFlags(enum.IntFlag):
    DETACHED = 1


class BackwardFlags(enum.IntFlag):
    DETACHED = 1


class StepFlags(enum.IntFlag):
    SCALARS = 1


class BackwardEndFlags(enum.IntFlag):
    SKIP_REST = 1


class AllocFlags(enum.IntFlag):
    DURABLE = 1


class Collectives(enum.IntEnum):
    COPIES = 0
    NCCL = 1


class ReduceOp(enum.IntEnum):
    SUM = 0
    MEAN = 1


class AgreeOp(enum.IntEnum):
    SUM = 0
    MAX = 1
    MIN = 2


class Struct(ctypes.Structure):
    """A structure that starts with `struct_size`. TypeError for an unknown field."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(ctypes.sizeof(self))
        known = self._names()
        for name, value in fields.items():
            if name not in known:
                raise TypeError(f"{type(self).__name__} has no field {name!r}; it has {', '.join(known)}")
            setattr(self, name, value.encode() if isinstance(value, str) else value)

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        return tuple(field[0] for field in cls._fields_[1:] if field[0] != "reserved")

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names())
        return f"{type(self).__name__}({fields})"


class Options(Struct):
    _fields_ = [("struct_size", c_size_t), ("socket_path", c_char_p), ("name", c_char_p),
                ("deadline_ms", c_uint32), ("strict", c_int), ("poison", c_int),
                ("reconnect_ms", c_uint32), ("interrupted", c_void_p), ("interrupted_context", c_void_p)]


class WaitOptions(Struct):
    _fields_ = [("struct_size", c_size_t), ("deadline_ms", c_uint32), ("flags", c_uint32)]


class DeviceInfo(Struct):
    """Bytes of one device. `name` is bytes: "host0", the GPU's UUID, or "memory0" for host memory.

    `host` is the number of its host memory, or NO_HOST. For host memory it is its own number.
    """

    _fields_ = [("struct_size", c_size_t), ("index", c_uint32), ("host", c_uint32), ("name", c_char * 64),
                ("arena_bytes", c_uint64), ("allocated_bytes", c_uint64), ("gathered_bytes", c_uint64),
                ("peak_bytes", c_uint64)]


class UniqueId(ctypes.Structure):
    """Sent as bytes between ranks: `bytes(id)` and `UniqueId.from_buffer_copy(data)`."""

    _fields_ = [("bytes", c_ubyte * UNIQUE_ID_BYTES)]


class GroupOptions(Struct):
    _fields_ = [("struct_size", c_size_t), ("job", c_char_p), ("group", c_char_p), ("world_size", c_uint32),
                ("local_world_size", c_uint32), ("rank", c_uint32), ("device", c_uint32),
                ("device_uuid", c_char_p), ("unique_id", ctypes.POINTER(UniqueId)), ("collectives", c_int),
                ("flags", c_uint32), ("deadline_ms", c_uint32), ("reserved", c_uint32)]


class GroupInfo(Struct):
    _fields_ = [("struct_size", c_size_t), ("committed_step", c_uint64), ("torn", c_int), ("reserved", c_uint32)]


class View(Struct):
    """A tensor inside a unit: `offset_numel` elements from its start. Made by `view()`."""

    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("offset_numel", c_uint64), ("ndim", c_uint32),
                ("reserved", c_uint32), ("shape", c_uint64 * MAX_DIMS)]


class UnitOptions(Struct):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("numel", c_uint64), ("dtype", c_int),
                ("nviews", c_uint32), ("views", ctypes.POINTER(View)), ("slot", c_uint32), ("flags", c_uint32),
                ("deadline_ms", c_uint32), ("reserved", c_uint32)]


class Shard(Struct):
    """This rank's part of a unit: `shard_numel` elements at `data`, of which `true_numel` are not padding.

    `flags` is UnitFlags.ON_HOST if they are in host memory.
    """

    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("shard_numel", c_uint64), ("true_numel", c_uint64),
                ("offset_numel", c_uint64), ("version", c_uint64), ("padded_numel", c_uint64), ("dtype", c_int),
                ("flags", c_uint32)]


class PublishOptions(Struct):
    _fields_ = [("struct_size", c_size_t), ("flags", c_uint32), ("deadline_ms", c_uint32)]


class Source(Struct):
    _fields_ = [("struct_size", c_size_t), ("unit", c_void_p), ("data", c_void_p)]


MOST_PARTS = 1024  # of an optimizer's call


class Rule(enum.IntEnum):
    ADAMW = 1
    ADAM = 2
    SGD = 3


class OptimizerFlags(enum.IntFlag):
    MAXIMIZE = 1
    NESTEROV = 2


class OptimizerStep(Struct):
    """One step of one parameter group. `step` is 1 for the first. `beta1` is SGD's momentum."""

    _fields_ = [("struct_size", c_size_t), ("rule", c_uint32), ("flags", c_uint32), ("step", c_uint64), ("lr", c_double),
                ("weight_decay", c_double), ("beta1", c_double), ("beta2", c_double), ("eps", c_double),
                ("dampening", c_double), ("scale", c_void_p), ("overflow", c_void_p)]


MOST_TERMS = 64


class Terms(Struct):
    """The terms of a sum: `count` arrays of `shard_numel` elements of `dtype`."""

    _fields_ = [("struct_size", c_size_t), ("shard_numel", c_uint64), ("true_numel", c_uint64), ("dtype", c_int), ("count", c_uint32),
                ("prescale", c_float), ("postscale", c_float), ("each", c_void_p * MOST_TERMS)]


class OptimizerPart(Struct):
    """A range of this rank's shard, and the addresses of its elements' other values. `terms`, in place of `values`, are those of
    the whole shard."""

    _fields_ = [("struct_size", c_size_t), ("unit", c_void_p), ("offset_numel", c_uint64), ("numel", c_uint64),
                ("low", c_void_p), ("m", c_void_p), ("v", c_void_p), ("values", c_void_p), ("terms", POINTER(Terms))]


class GatherOptions(Struct):
    """`scope` is the number that `Group.forward_begin()` or `Group.context()` has returned."""

    _fields_ = [("struct_size", c_size_t), ("tag", c_char_p), ("scope", c_uint64), ("version", c_uint64),
                ("uses", c_uint32), ("flags", c_uint32), ("deadline_ms", c_uint32), ("reserved", c_uint32)]


class ReleaseOptions(Struct):
    _fields_ = [("struct_size", c_size_t), ("tag", c_char_p), ("flags", c_uint32), ("deadline_ms", c_uint32)]


class BackwardOptions(Struct):
    _fields_ = [("struct_size", c_size_t), ("stage", c_uint32), ("boundary", c_int), ("target_dtype", c_int),
                ("deadline_ms", c_uint32), ("flags", c_uint32), ("reserved", c_uint32)]


class BucketOptions(Struct):
    _fields_ = [("struct_size", c_size_t), ("dtype", c_int), ("nslots", c_uint32), ("slot_bytes", c_uint64)]


class ReserveOptions(Struct):
    """`stream` is a Stream's `handle`."""

    _fields_ = [("struct_size", c_size_t), ("stream", c_void_p), ("flags", c_uint32), ("deadline_ms", c_uint32)]


class Entry(Struct):
    """Room for a gradient: `padded_numel` elements of the bucket's dtype at `data`."""

    _fields_ = [("struct_size", c_size_t), ("id", c_uint64), ("data", c_void_p), ("padded_numel", c_uint64),
                ("accumulates", c_int), ("reserved", c_uint32)]


class ReduceOptions(Struct):
    _fields_ = [("struct_size", c_size_t), ("op", c_int), ("prescale", c_float), ("flags", c_uint32),
                ("deadline_ms", c_uint32), ("nabsent", c_uint32), ("reserved", c_uint32),
                ("absent", ctypes.POINTER(c_uint32))]


class SkipOptions(Struct):
    _fields_ = [("struct_size", c_size_t), ("flags", c_uint32), ("deadline_ms", c_uint32)]


class BackwardEndOptions(Struct):
    _fields_ = [("struct_size", c_size_t), ("flags", c_uint32), ("deadline_ms", c_uint32)]


class StepOptions(Struct):
    _fields_ = [("struct_size", c_size_t), ("flags", c_uint32), ("deadline_ms", c_uint32)]


class StepScalars(Struct):
    """Addresses of two float32 on the device: 1 after an overflow, otherwise 0; and the squared norm."""

    _fields_ = [("struct_size", c_size_t), ("overflow", c_void_p), ("norm_squared", c_void_p)]


class StepInfo(Struct):
    """A step's result, equal on all ranks. `abandoned_rank` is valid if `abandoned` is 1."""

    _fields_ = [("struct_size", c_size_t), ("step", c_uint64), ("norm_squared", c_double), ("overflow", c_int),
                ("abandoned", c_int), ("abandoned_rank", c_uint32), ("reserved", c_uint32)]


class Target(Struct):
    """This rank's reduced slice: `shard_numel` elements of `dtype` at `data`, of which `true_numel` are not padding."""

    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("shard_numel", c_uint64), ("true_numel", c_uint64),
                ("dtype", c_int), ("reserved", c_uint32)]


class AllocOptions(Struct):
    _fields_ = [("struct_size", c_size_t), ("job", c_char_p), ("name", c_char_p), ("bytes", c_uint64),
                ("alignment", c_uint64), ("device", c_uint32), ("flags", c_uint32), ("deadline_ms", c_uint32),
                ("reserved", c_uint32)]


class CommitSource(Struct):
    _fields_ = [("struct_size", c_size_t), ("job", c_char_p), ("group", c_char_p), ("uid", c_uint32), ("deadline_ms", c_uint32),
                ("flags", c_uint32), ("pin_ms", c_uint32)]


class Committed(Struct):
    _fields_ = [("struct_size", c_size_t), ("group", c_uint64), ("step", c_uint64)]


class UnitReadOptions(Struct):
    _fields_ = [("struct_size", c_size_t), ("group", c_uint64), ("step", c_uint64), ("unit", c_char_p), ("offset_bytes", c_uint64),
                ("bytes", c_uint64), ("into", c_void_p), ("into_offset_bytes", c_uint64), ("deadline_ms", c_uint32),
                ("reserved", c_uint32), ("rows", c_uint64), ("stride_bytes", c_uint64)]


class UnitMapOptions(Struct):
    _fields_ = [("struct_size", c_size_t), ("group", c_uint64), ("step", c_uint64), ("unit", c_char_p), ("offset_bytes", c_uint64),
                ("bytes", c_uint64), ("device", c_uint32), ("deadline_ms", c_uint32)]


class UnitInfo(Struct):
    _fields_ = [("struct_size", c_size_t), ("numel", c_uint64), ("dtype", c_int), ("reserved", c_uint32)]


def view(name: str, offset_numel: int, shape: tuple[int, ...]) -> View:
    """A view of a unit for `Group.register()`: `shape` in elements, row-major. ValueError beyond MAX_DIMS."""
    if len(shape) > MAX_DIMS:
        raise ValueError(f"view {name!r} has {len(shape)} dimensions, at most {MAX_DIMS} are possible")
    made = View(name=name, offset_numel=offset_numel, ndim=len(shape))
    made.shape[: len(shape)] = shape
    return made
