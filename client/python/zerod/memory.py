# SPDX-License-Identifier: Apache-2.0
"""Arrays over memory of the daemon: numpy on emulated devices, DLPack on all devices.

These functions hold no lease. An array is valid only as long as its memory: a gathered buffer until its release, a target until
step_end, an entry until its submit. Arrays preserve the mapping of memory that the CPU can access. A later use then reads
undefined bytes, but does not end the process. Tensors of a GPU's memory do not preserve it.
"""
from __future__ import annotations

import ctypes
import sys
from collections import deque
from ctypes import c_char_p, c_int, c_int64, c_void_p, py_object
from typing import TYPE_CHECKING, Any

from . import errors
from .library import calls
from .structs import DType, Status

if TYPE_CHECKING:
    import numpy

KDLCPU = 1
KDLCUDA = 2

# DLPack's type codes: int 0, uint 1, float 2, bfloat 4, bool 6, float8_e4m3fn 10, float8_e5m2 12.
_DLPACK = {
    DType.FLOAT32: (2, 32),
    DType.FLOAT16: (2, 16),
    DType.BFLOAT16: (4, 16),
    DType.FLOAT8_E4M3: (10, 8),
    DType.FLOAT8_E5M2: (12, 8),
    DType.INT8: (0, 8),
    DType.INT16: (0, 16),
    DType.INT32: (0, 32),
    DType.INT64: (0, 64),
    DType.UINT8: (1, 8),
    DType.BOOL: (6, 8),
}

# numpy has no bfloat16 and no float8. Their bits are unsigned integers.
_NUMPY = {
    DType.FLOAT32: "float32",
    DType.FLOAT16: "float16",
    DType.BFLOAT16: "uint16",
    DType.FLOAT8_E4M3: "uint8",
    DType.FLOAT8_E5M2: "uint8",
    DType.INT8: "int8",
    DType.INT16: "int16",
    DType.INT32: "int32",
    DType.INT64: "int64",
    DType.UINT8: "uint8",
    DType.BOOL: "bool",
}


_UNMAPPED = "no host memory of a daemon is mapped at {:#x}: it was freed"


class _Mapping:
    """The daemon's host memory at the address remains mapped while this object is referenced."""

    __slots__ = ("_mapping", "_release")

    def __init__(self, address: int) -> None:
        self._release = calls.mapping_release
        self._mapping = calls.mapping_retain(address)
        if self._mapping is None:
            raise errors.error(Status.STALE, _UNMAPPED.format(address))

    def __del__(self) -> None:
        self._release(self._mapping)


_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype, _capsule_new.argtypes = py_object, [c_void_p, c_char_p, c_void_p]
_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.restype, _capsule_is_valid.argtypes = c_int, [py_object, c_char_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, [py_object, c_char_p]
# Capsules that a consumer can still take. A destructor would be a function of Python. It would run, as the deleter of a tensor, while
# an exception is raised: Python then loses the exception, or ends with a segmentation fault.
_offered: "deque[Any]" = deque()


def _count_own() -> int:
    """How many references Python counts to an object that only a local variable has: 2, from Python 3.14 on 1."""
    capsule = object()
    return sys.getrefcount(capsule)


_OWN = _count_own()


def _free_dropped() -> None:
    """Frees the tensors of capsules that were dropped. A consumer renames a capsule that it has taken."""
    for _ in range(len(_offered)):
        try:
            capsule = _offered.popleft()
        except IndexError:  # another thread has it
            return
        if sys.getrefcount(capsule) > _OWN:
            _offered.append(capsule)
        elif _capsule_is_valid(capsule, b"dltensor"):
            calls.dlpack_free(_capsule_pointer(capsule, b"dltensor"))


def capsule(address: int, shape: tuple[int, ...], dtype: DType, device: tuple[int, int] = (KDLCPU, 0)) -> Any:
    """A DLPack capsule, row-major, over `shape` elements of dtype at the address. It owns no memory, but host memory remains
    mapped. The next call frees the tensors of capsules that were dropped before a consumer took them.

    device is DLPack's (type, id): (KDLCPU, 0), or (KDLCUDA, n) with n as this process's number of the GPU. NotHeld: freed host
    memory.
    """
    _free_dropped()
    tensor = calls.dlpack_new(address, *device, len(shape), (c_int64 * len(shape))(*shape), *_DLPACK[dtype])
    if tensor is None:
        raise errors.error(Status.STALE, _UNMAPPED.format(address))
    made = _capsule_new(tensor, b"dltensor", None)
    _offered.append(made)
    return made


def array(address: int, shape: tuple[int, ...], dtype: DType) -> "numpy.ndarray":
    """A numpy array over memory that the CPU can access, of emulated devices. bfloat16 and float8 as bits. NotHeld."""
    import numpy

    kind = numpy.dtype(_NUMPY[dtype])
    count = 1
    for extent in shape:
        count *= extent
    if count == 0:
        return numpy.empty(shape, kind)
    mapping = _Mapping(address)
    raw = (ctypes.c_uint8 * (count * kind.itemsize)).from_address(address)
    raw.mapping = mapping  # the array's base refers to `raw`
    return numpy.frombuffer(raw, kind).reshape(shape)


class Memory:
    """`shape` elements of dtype at an address, for numpy() and for from_dlpack() of any framework."""

    __slots__ = ("address", "shape", "dtype", "device")

    def __init__(self, address: int, shape: tuple[int, ...], dtype: DType, device: tuple[int, int]) -> None:
        self.address = address
        self.shape = shape
        self.dtype = dtype
        self.device = device

    def numpy(self) -> "numpy.ndarray":
        """See array(). TypeError for memory of a GPU."""
        if self.device[0] != KDLCPU:
            raise TypeError("memory of a GPU has no numpy array; use DLPack")
        return array(self.address, self.shape, self.dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **_: Any) -> Any:
        """The consumer's stream must already wait for the memory, by wait()."""
        return capsule(self.address, self.shape, self.dtype, self.device)

    def __repr__(self) -> str:
        return f"Memory({self.address:#x}, {self.shape}, {self.dtype.name.lower()})"
