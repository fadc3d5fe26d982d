# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libzerod, and declares its functions once.

The library is $ZEROD_LIBRARY, otherwise libzerod.so.0 in the package's folder, otherwise the one that the loader finds. `calls`
has every function of the headers under its name without prefix. If the loaded library does not have a function, the call of it
raises Unsupported. An older library therefore serves all functions that it has.

Two conventions of the C interface are used here: struct zerod_ticket and struct zerod_scope contain one uint64_t, and the
supported ABIs (x86-64, AArch64) pass them like one. Tickets and scopes are therefore plain ints.
"""
from __future__ import annotations

import ctypes
import os
import platform
import weakref
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, TypeVar

from . import errors, interrupts, structs as s

SONAME = "libzerod.so.0"
_TICKET = POINTER(c_uint64)
_STREAMS = POINTER(c_void_p)
_WAIT = POINTER(s.WaitOptions)

# name: (result, arguments)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "version": (c_uint32, []),
    "status_name": (c_char_p, [c_int]),
    "dtype_bytes": (c_size_t, [c_int]),
    "dtype_name": (c_char_p, [c_int]),
    "connect": (c_int, [POINTER(s.Options), POINTER(c_void_p)]),
    "close": (None, [c_void_p]),
    "last_error": (c_char_p, [c_void_p]),
    "session_reset": (c_int, [c_void_p, _WAIT]),
    "set_deadline": (c_int, [c_void_p, c_uint32]),
    "device_get": (c_int, [c_void_p, c_uint32, POINTER(s.DeviceInfo)]),
    "trim": (c_int, [c_void_p, c_uint32, c_uint64, _WAIT, POINTER(c_uint64)]),
    "cork": (None, [c_void_p]),
    "uncork": (c_int, [c_void_p]),
    "stream_synchronize": (c_int, [c_void_p]),
    "stream_destroy": (None, [c_void_p]),
    "host_stream_create": (c_int, [c_void_p, POINTER(c_void_p)]),
    "host_stream_launch": (c_int, [c_void_p, c_void_p, c_void_p]),
    "mapping_retain": (c_void_p, [c_void_p]),
    "mapping_release": (None, [c_void_p]),
    "dlpack_new": (c_void_p, [c_void_p, c_int32, c_int32, c_int32, POINTER(c_int64), c_uint8, c_uint8]),
    "dlpack_free": (None, [c_void_p]),
    "cuda_stream_wrap": (c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "unique_id": (c_int, [c_void_p, c_uint32, _WAIT, POINTER(s.UniqueId)]),
    "group_unique_id": (c_int, [c_void_p, POINTER(s.GroupOptions), _WAIT, POINTER(s.UniqueId)]),
    "group_join": (c_int, [c_void_p, POINTER(s.GroupOptions), POINTER(c_void_p)]),
    "group_get": (c_int, [c_void_p, POINTER(s.GroupInfo)]),
    "group_barrier": (c_int, [c_void_p, _WAIT, _TICKET]),
    "group_leave": (c_int, [c_void_p, _WAIT]),
    "group_agree": (c_int, [c_void_p, c_int, POINTER(c_double), c_uint32, _WAIT]),
    "unit_register": (c_int, [c_void_p, POINTER(s.UnitOptions), POINTER(c_void_p)]),
    "unit_unregister": (c_int, [c_void_p, _WAIT]),
    "shard_get": (c_int, [c_void_p, POINTER(s.Shard)]),
    "update_begin": (c_int, [_STREAMS, c_uint32, _WAIT, _TICKET]),
    "publish": (c_int, [_STREAMS, c_uint32, _STREAMS, c_uint32, POINTER(s.PublishOptions), _TICKET]),
    "publish_from": (c_int, [POINTER(s.Source), c_uint32, c_int, c_void_p, POINTER(s.PublishOptions), _TICKET]),
    "optimizer_update": (c_int, [POINTER(s.OptimizerPart), c_uint32, POINTER(s.OptimizerStep), c_void_p]),
    "optimizer_split": (c_int, [POINTER(s.OptimizerPart), c_uint32, c_void_p]),
    "optimizer_join": (c_int, [POINTER(s.OptimizerPart), c_uint32, c_void_p]),
    "unit_load": (c_int, [c_void_p, c_void_p, c_void_p, _WAIT, _TICKET]),
    "unit_place": (c_int, [c_void_p, c_uint32, _WAIT]),
    "commit_save": (c_int, [c_void_p, c_uint64, _WAIT, _TICKET]),
    "commit_wait": (c_int, [c_void_p, POINTER(s.CommitSource), c_uint64, POINTER(s.Committed)]),
    "commit_watch": (c_int, [c_void_p, POINTER(s.CommitSource), c_uint64, POINTER(c_void_p)]),
    "watch_fd": (c_int, [c_void_p]),
    "watch_take": (c_int, [c_void_p, POINTER(s.Committed)]),
    "watch_end": (None, [c_void_p]),
    "unit_read": (c_int, [c_void_p, POINTER(s.UnitReadOptions), POINTER(s.UnitInfo)]),
    "unit_map": (c_int, [c_void_p, POINTER(s.UnitMapOptions), POINTER(c_void_p), POINTER(c_void_p), POINTER(c_uint64)]),
    "unit_map_end": (c_int, [c_void_p]),
    "commit": (c_int, [c_void_p, c_uint64, _WAIT]),
    "unit_set_persistent": (c_int, [c_void_p, c_int]),
    "unit_set_slot": (c_int, [c_void_p, c_uint32]),
    "unit_set_frozen": (c_int, [c_void_p, c_int]),
    "unit_set_target": (c_int, [c_void_p, c_int]),
    "gather_begin": (c_int, [c_void_p, POINTER(s.GatherOptions), _TICKET]),
    "wait": (c_int, [c_void_p, c_uint64, c_void_p, POINTER(c_void_p)]),
    "wait_many": (c_int, [c_void_p, _TICKET, c_uint32, c_void_p, POINTER(c_void_p)]),
    "gather": (c_int, [c_void_p, POINTER(s.GatherOptions), c_void_p, POINTER(c_void_p)]),
    "release": (c_int, [c_void_p, _STREAMS, c_uint32, POINTER(s.ReleaseOptions), _TICKET]),
    "release_many": (c_int, [_STREAMS, c_uint32, _STREAMS, c_uint32, POINTER(s.ReleaseOptions), _TICKET]),
    "forward_begin": (c_int, [c_void_p, c_uint64, _STREAMS, c_uint32, POINTER(c_uint64)]),
    "forward_end": (c_int, [c_void_p, c_uint64, c_int, _STREAMS, c_uint32, _WAIT]),
    "claim_end": (c_int, [c_void_p, c_uint64, _STREAMS, c_uint32, _WAIT]),
    "scope_abandon": (c_int, [c_void_p, c_uint64, _STREAMS, c_uint32]),
    "context_begin": (c_int, [_STREAMS, c_uint32, _WAIT, POINTER(c_uint64)]),
    "context_end": (c_int, [c_void_p, c_uint64, _STREAMS, c_uint32, _WAIT]),
    "backward_begin": (c_int, [c_void_p, POINTER(s.BackwardOptions)]),
    "bucket_create": (c_int, [c_void_p, POINTER(s.BucketOptions), POINTER(c_void_p)]),
    "bucket_destroy": (c_int, [c_void_p]),
    "bucket_reserve": (c_int, [c_void_p, c_void_p, POINTER(s.ReserveOptions), POINTER(s.Entry)]),
    "bucket_submit": (c_int, [c_void_p, c_uint64, _STREAMS, c_uint32, POINTER(s.ReduceOptions), _TICKET]),
    "reduce": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, POINTER(s.ReduceOptions), _TICKET]),
    "reduce_skip": (c_int, [c_void_p, POINTER(s.SkipOptions), _TICKET]),
    "backward_end": (c_int, [c_void_p, POINTER(s.BackwardEndOptions), _TICKET]),
    "backward_abandon": (c_int, [c_void_p, _STREAMS, c_uint32, _WAIT]),
    "step_begin": (c_int, [c_void_p, POINTER(s.StepOptions), POINTER(s.StepInfo), _TICKET]),
    "step_get": (c_int, [c_void_p, _WAIT, POINTER(s.StepInfo)]),
    "step_norms_get": (c_int, [c_void_p, _STREAMS, c_uint32, _WAIT, POINTER(c_double)]),
    "step_scalars_get": (c_int, [c_void_p, POINTER(s.StepScalars)]),
    "reduce_wait": (c_int, [c_void_p, _WAIT, c_void_p, POINTER(s.Target)]),
    "reduce_terms": (c_int, [c_void_p, _WAIT, c_void_p, POINTER(s.Terms)]),
    "target_return": (c_int, [c_void_p]),
    "target_get": (c_int, [c_void_p, POINTER(s.Target)]),
    "step_end": (c_int, [c_void_p, _STREAMS, c_uint32, _WAIT]),
    "alloc": (c_int, [c_void_p, POINTER(s.AllocOptions), POINTER(c_void_p), POINTER(c_void_p)]),
    "free": (c_int, [c_void_p, _STREAMS, c_uint32]),
}


def _candidates() -> list[str]:
    named = os.environ.get("ZEROD_LIBRARY")
    if named:
        return [named]
    beside = Path(__file__).with_name(SONAME)
    return [str(beside)] * beside.exists() + [SONAME]


def _load() -> ctypes.CDLL:
    if platform.machine() not in ("x86_64", "aarch64"):
        raise ImportError(f"zerod supports x86-64 and AArch64, this machine is {platform.machine()}")
    failures = []
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as failure:
            failures.append(str(failure))
    raise ImportError("libzerod was not found: " + "; ".join(failures) + ". Set ZEROD_LIBRARY to its path")


C = TypeVar("C", bound="Closing")


class Closing:
    """A context manager: leaving it calls the method that `closes` names."""

    __slots__ = ()
    closes = "close"

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *_: object) -> None:
        getattr(self, self.closes)()


class Handle:
    """An object of the library. Its attribute `handle` exists until end(). A later use raises InvalidState.

    `owned` are objects that end with this one. They are referenced weakly.
    """

    __slots__ = ("__weakref__", "handle", "owned", "_ended")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.owned: "weakref.WeakSet[Handle]" = weakref.WeakSet()
        self._ended = ""

    @property
    def closed(self) -> bool:
        return bool(self._ended)

    def end(self, why: str) -> None:
        """Makes every later use raise InvalidState: "it cannot be used any more: <why>"."""
        if self.closed:
            return
        self._ended = why
        del self.handle
        for each in list(self.owned):
            each.end(why)

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for a missing attribute: an existing handle costs no extra time.
        if name == "handle":
            raise errors.error(s.Status.STATE, f"{self!r} cannot be used any more: {self._ended}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _missing(name: str) -> Callable[..., int]:
    def call(*_: object) -> int:
        raise errors.error(s.Status.UNSUPPORTED, f"this libzerod has no zerod_{name}()")

    return call


def _declare(library: ctypes.CDLL) -> SimpleNamespace:
    found = SimpleNamespace()
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, "zerod_" + name)
        except AttributeError:
            setattr(found, name, _missing(name))
            continue
        function.restype = result
        function.argtypes = arguments
        setattr(found, name, function)
    return found


calls = _declare(_load())


def last_error(client: int | None) -> str:
    """The text of this thread's last failure on the client. client None: of a call without a client."""
    return calls.last_error(client).decode(errors="replace")


def failed(status: int, client: int | None) -> BaseException:
    """The exception for a failed call on a client, to be raised. After an exception of a signal handler it is that one."""
    return interrupts.taken() or errors.error(status, last_error(client))
