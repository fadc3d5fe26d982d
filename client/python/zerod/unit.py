# SPDX-License-Identifier: Apache-2.0
"""Units: gather, release, update, publish, load. And the bucket for gradients.

Frequent calls (gather_begin, gather, release, reserve, submit) accept structures of `zerod.structs` that the caller makes once
and reuses. None is the default. Tickets and addresses are ints.
"""
from __future__ import annotations

from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Iterator, Optional, Sequence

from . import structs as s
from .client import Stream, Streams, handle_array, stream_array, wait_options
from .library import Handle, calls, failed
from .memory import KDLCPU, Memory

if TYPE_CHECKING:
    from .group import Group

_gather_begin = calls.gather_begin
_gather = calls.gather
_release = calls.release
_reserve = calls.bucket_reserve
_submit = calls.bucket_submit
_skip = calls.reduce_skip
_DETACHED = s.ReleaseOptions(flags=s.ReleaseFlags.DETACHED)


class Unit(Handle):
    """This rank's handle of a unit, made by Group.register(). `views` is {name: (offset_numel, shape)}."""

    __slots__ = ("group", "_client", "name", "dtype", "numel", "padded_numel", "views")

    def __init__(self, group: "Group", handle: int, name: str, dtype: s.DType, numel: int,
                 views: dict[str, tuple[int, tuple[int, ...]]]) -> None:
        super().__init__(handle)
        self.group = group
        self._client = group.client.handle
        group.owned.add(self)
        self.name = name
        self.dtype = dtype
        self.numel = numel
        self.views = views
        self.padded_numel = self.shard().padded_numel

    # ---- Gather and release ----

    def gather_begin(self, options: Optional[s.GatherOptions] = None) -> int:
        """Requests the gathered buffer. Returns a ticket for Client.wait() at once."""
        ticket = c_uint64()
        status = _gather_begin(self.handle, options, ticket)
        if status:
            raise failed(status, self._client)
        return ticket.value

    def gather(self, stream: Optional[Stream] = None, options: Optional[s.GatherOptions] = None) -> int:
        """The address of padded_numel elements, valid until the release. The stream waits for the bytes."""
        data = c_void_p()
        status = _gather(self.handle, options, None if stream is None else stream.handle, data)
        if status:
            raise failed(status, self._client)
        return data.value or 0

    def release(self, streams: Streams = None, options: Optional[s.ReleaseOptions] = _DETACHED) -> None:
        """Releases one use. By default the call does not wait for the reply: the client's next call reports a failure.

        With options that are not DETACHED the call waits. NotHeld.
        """
        array, count = stream_array(streams)
        status = _release(self.handle, array, count, options, None)
        if status:
            raise failed(status, self._client)

    def gathered(self, stream: Optional[Stream] = None, tag: Optional[str] = None) -> "Gathered":
        """with unit.gathered() as buffer: the lease is held inside. buffer["view"] and buffer.memory() are its memory."""
        return Gathered(self, stream, tag)

    def memory(self, address: int) -> Memory:
        """The unit's numel elements at an address that gather() has returned."""
        return Memory(address, (self.numel,), self.dtype, self.group.client.dlpack_device)

    def view(self, address: int, name: str) -> Memory:
        """One view of the unit in the buffer at the address. KeyError."""
        offset, shape = self.views[name]
        return Memory(address + offset * self.dtype.itemsize, shape, self.dtype, self.group.client.dlpack_device)

    # ---- Shard, update, publish ----

    def shard(self) -> s.Shard:
        shard = s.Shard()
        self._check(calls.shard_get(self.handle, byref(shard)))
        return shard

    @property
    def on_host(self) -> bool:
        """Whether the shard is in host memory."""
        return bool(self.shard().flags & s.UnitFlags.ON_HOST)

    def place(self, on_host: bool, deadline_ms: int = 0) -> None:
        """Moves the shards of all ranks to host memory, or to their devices. Every rank calls it.

        Addresses that shard() and shard_memory() have returned before are no longer valid. InvalidState, Mismatch, OutOfMemory.
        """
        flags = s.UnitFlags.ON_HOST if on_host else 0
        self._check(calls.unit_place(self.handle, flags, wait_options(deadline_ms)))

    def shard_memory(self) -> Memory:
        """This rank's true_numel elements. They may be written only between update_begin() and publish()."""
        shard = self.shard()
        on_host = shard.flags & s.UnitFlags.ON_HOST
        device = (KDLCPU, 0) if on_host else self.group.client.dlpack_device
        return Memory(shard.data or 0, (shard.true_numel,), self.dtype, device)

    def update_begin(self, deadline_ms: int = 0) -> None:
        self.group.update_begin([self], deadline_ms)

    def publish(self, streams: Streams = None) -> None:
        self.group.publish([self], streams)

    def load(self, address: Optional[int], stream: Optional[Stream] = None, deadline_ms: int = 0) -> None:
        """zerod_unit_load(): every rank calls it. One rank gives the address of numel elements, all others None."""
        self._check(calls.unit_load(self.handle, address, None if stream is None else stream.handle,
                                    wait_options(deadline_ms), None))

    def load_begin(self, address: Optional[int], stream: Optional[Stream] = None) -> int:
        """load() that returns a ticket for Client.complete() at once."""
        ticket = c_uint64()
        self._check(calls.unit_load(self.handle, address, None if stream is None else stream.handle, None,
                                    byref(ticket)))
        return ticket.value

    # ---- Gradients ----

    def skip(self, options: Optional[s.SkipOptions] = None) -> None:
        """This rank has no gradient for the unit in this backward."""
        status = _skip(self.handle, options, None)
        if status:
            raise failed(status, self._client)

    def reduce_wait(self, stream: Optional[Stream] = None, deadline_ms: int = 0) -> s.Target:
        """The reduced slice before the step, after this rank's submit or skip of the unit.

        The stream (None: the caller) waits for the sum. LookupError: all ranks have skipped the unit.
        """
        target = s.Target()
        self._check(calls.reduce_wait(self.handle, wait_options(deadline_ms),
                                      None if stream is None else stream.handle, byref(target)))
        return target

    def reduce_terms(self, stream: Optional[Stream] = None, deadline_ms: int = 0) -> s.Terms:
        """The terms of the slice, if this rank has submitted its gradient with ReduceFlags.TERMS. The stream reads them.

        return_target() must follow in the same backward. InvalidState: submitted without that flag, or returned.
        """
        terms = s.Terms()
        self._check(calls.reduce_terms(self.handle, wait_options(deadline_ms), None if stream is None else stream.handle, byref(terms)))
        return terms

    def return_target(self) -> None:
        """Ends the loan of reduce_wait() or reduce_terms(), when the work of the streams that have waited has run."""
        self._check(calls.target_return(self.handle))

    def target(self) -> s.Target:
        """The reduced slice, between step_begin and step_end, or while it is lent by reduce_wait()."""
        target = s.Target()
        self._check(calls.target_get(self.handle, byref(target)))
        return target

    def target_memory(self) -> Memory:
        target = self.target()
        return Memory(target.data or 0, (target.true_numel,), s.DType(target.dtype), self.group.client.dlpack_device)

    # ---- Settings ----

    def set_persistent(self, persistent: bool) -> None:
        self._check(calls.unit_set_persistent(self.handle, int(persistent)))

    def set_slot(self, slot: int) -> None:
        self._check(calls.unit_set_slot(self.handle, slot))

    def set_frozen(self, frozen: bool) -> None:
        self._check(calls.unit_set_frozen(self.handle, int(frozen)))

    def set_target(self, target: bool) -> None:
        """False: sums have no place in the target, and return_target() frees their memory."""
        self._check(calls.unit_set_target(self.handle, int(target)))

    def unregister(self, deadline_ms: int = 0) -> None:
        """InvalidState while the unit is leased, updated or reduced."""
        self._check(calls.unit_unregister(self.handle, wait_options(deadline_ms)))
        self.end("the unit was unregistered")

    def _check(self, status: int) -> None:
        if status:
            raise failed(status, self._client)

    def __repr__(self) -> str:
        return f"Unit({self.name!r}, {self.dtype.name.lower()}, numel={self.numel})"


class Gathered:
    """A lease, as a context manager. `address` is valid inside."""

    def __init__(self, unit: Unit, stream: Optional[Stream], tag: Optional[str]) -> None:
        self.unit = unit
        self.stream = stream
        self.address = 0
        self._gather = s.GatherOptions(tag=tag)
        self._release = s.ReleaseOptions(tag=tag)

    def __enter__(self) -> "Gathered":
        self.address = self.unit.gather(self.stream, self._gather)
        return self

    def __exit__(self, *_: object) -> None:
        self.unit.release(self.stream, self._release)

    def memory(self) -> Memory:
        return self.unit.memory(self.address)

    def __getitem__(self, name: str) -> Memory:
        return self.unit.view(self.address, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.unit.views)


class Bucket(Handle):
    """This rank's gradient bucket. `dtype` is the gradients'."""

    __slots__ = ("group", "_client", "dtype")

    def __init__(self, group: "Group", handle: int, dtype: s.DType) -> None:
        super().__init__(handle)
        self.group = group
        self._client = group.client.handle
        group.owned.add(self)
        self.dtype = dtype

    def reserve(self, unit: Unit, entry: s.Entry, options: Optional[s.ReserveOptions] = None) -> int:
        """Fills in the caller's entry, and returns its address: room for the unit's padded_numel elements."""
        status = _reserve(self.handle, unit.handle, options, entry)
        if status:
            raise failed(status, self._client)
        return entry.data

    def submit(self, entry_id: int, streams: Streams = None, options: Optional[s.ReduceOptions] = None) -> None:
        """Submits the entry, when all work now in the streams, which wrote it, has run."""
        array, count = stream_array(streams)
        status = _submit(self.handle, entry_id, array, count, options, None)
        if status:
            raise failed(status, self._client)

    def memory(self, entry: s.Entry, unit: Unit) -> Memory:
        """The unit's numel elements in the entry."""
        return Memory(entry.data or 0, (unit.numel,), self.dtype, self.group.client.dlpack_device)

    def reduce(self, unit: Unit, address: int, stream: Stream, options: Optional[s.ReduceOptions] = None) -> None:
        """Reserves, copies numel elements from the address on the stream, and submits."""
        status = calls.reduce(self.handle, unit.handle, address, stream.handle, options, None)
        if status:
            raise failed(status, self._client)

    def destroy(self) -> None:
        """InvalidState while entries are not reduced yet."""
        self.group.client.check(calls.bucket_destroy(self.handle))
        self.end("the bucket was destroyed")

    def __repr__(self) -> str:
        return f"Bucket({self.dtype.name.lower()})"


def release_many(units: Sequence[Unit], streams: Streams = None, tag: Optional[str] = None) -> None:
    """Releases one use of each unit, with one fence per stream for all. Waits for the replies. NotHeld names the first unit."""
    if not units:
        return
    array, count = handle_array(units)
    options = s.ReleaseOptions(tag=tag)
    units[0].group.client.check(calls.release_many(array, count, *stream_array(streams), options, None))


def absent(indices: Sequence[int]) -> dict[str, Any]:
    """Returns the fields of ReduceOptions that name the views without a gradient."""
    from ctypes import c_uint32

    return {"nabsent": len(indices), "absent": (c_uint32 * len(indices))(*indices)}
