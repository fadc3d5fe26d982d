# SPDX-License-Identifier: Apache-2.0
"""A group: this client's membership as one rank. Units, updates, backwards, steps, agreements."""
from __future__ import annotations

import ctypes
from ctypes import byref, c_double, c_uint64, c_void_p
from contextlib import contextmanager
from typing import Any, Iterator, Optional, Sequence

from . import structs as s
from .client import Client, Stream, Streams, handle_array, stream_array, wait_options
from .library import Closing, Handle, calls
from .unit import Bucket, Unit


class Group(Closing, Handle):
    """One rank of a group, made by Client.join(). A context manager: leaving it leaves the group."""

    closes = "leave"

    def __init__(self, client: Client, handle: int, rank: int, world_size: int, job: str, name: str) -> None:
        super().__init__(handle)
        self.client = client
        self.rank = rank
        self.world_size = world_size
        self.job, self.name = job, name
        client.owned.add(self)

    def leave(self, deadline_ms: int = 0) -> None:
        """Frees this rank's memory in the group. Its units and buckets become invalid. After Deadline: call it again."""
        if self.closed:
            return
        status = calls.group_leave(self.handle, wait_options(deadline_ms))
        if status not in (s.Status.DEADLINE, s.Status.INTERRUPTED, s.Status.INVALID, s.Status.FORKED):
            self.end("the group was left")  # also after an error
        self.client.check(status)

    def __repr__(self) -> str:
        return f"Group(rank {self.rank} of {self.world_size})"

    def info(self) -> s.GroupInfo:
        info = s.GroupInfo()
        self.client.check(calls.group_get(self.handle, byref(info)))
        return info

    def barrier(self, deadline_ms: int = 0) -> None:
        """Waits until every rank has called it as often as this rank. Deadline names a missing rank."""
        self.client.check(calls.group_barrier(self.handle, wait_options(deadline_ms), None))

    def barrier_begin(self) -> int:
        """barrier() that returns a ticket for Client.complete() at once."""
        return self._ticketed(calls.group_barrier, None)

    def agree(self, op: s.AgreeOp, values: Sequence[float], deadline_ms: int = 0) -> list[float]:
        """At most MAX_AGREED values. Each is replaced by the sum, maximum or minimum of the values of all ranks."""
        array = (c_double * len(values))(*values)
        self.client.check(calls.group_agree(self.handle, op, array, len(values), wait_options(deadline_ms)))
        return list(array)

    # ---- Units ----

    def register(self, name: str, dtype: s.DType, numel: Optional[int] = None,
                 views: Optional[Sequence[s.View]] = None, slot: int = s.NO_SLOT, flags: int = 0,
                 deadline_ms: int = 0) -> Unit:
        """Registers this rank's part of a unit of numel elements. All ranks register the same unit.

        Without numel the unit ends with its last view. Mismatch names both ranks and both descriptions.
        """
        named = {v.name.decode(): (v.offset_numel, tuple(v.shape[: v.ndim])) for v in views or ()}
        if numel is None:
            ends = [offset + _product(shape) for offset, shape in named.values()]
            if not ends:
                raise ValueError(f"unit {name!r} has neither numel nor views")
            numel = max(ends)
        options = s.UnitOptions(name=name, dtype=dtype, numel=numel, slot=slot, flags=flags, deadline_ms=deadline_ms)
        if views:
            options.nviews, options.views = len(views), (s.View * len(views))(*views)
        handle = c_void_p()
        self.client.check(calls.unit_register(self.handle, byref(options), byref(handle)))
        return Unit(self, handle.value or 0, name, s.DType(dtype), numel, named or {name: (0, (numel,))})

    # ---- Updates ----

    def update_begin(self, units: Sequence[Unit], deadline_ms: int = 0, flags: int = 0) -> None:
        """The shards of the units may be written until publish(). flags: of structs.WaitFlags."""
        self.client.check(calls.update_begin(*handle_array(units), wait_options(deadline_ms, flags), None))

    def update_begin_ticket(self, units: Sequence[Unit]) -> int:
        """update_begin() with a ticket: the shards may be written after Client.complete(ticket, stream)."""
        ticket = c_uint64()
        self.client.check(calls.update_begin(*handle_array(units), None, byref(ticket)))
        return ticket.value

    def publish(self, units: Sequence[Unit], streams: Streams = None, ticket: bool = False, **options: Any) -> int:
        """Ends the update when the work now in the streams has run. Options: see PublishOptions.

        With ticket=True the call does not wait, and returns a ticket that need not be completed. Otherwise it returns 0.
        """
        made = c_uint64()
        asked = s.PublishOptions(**options) if options else None
        self.client.check(calls.publish(*handle_array(units), *stream_array(streams), asked,
                                        byref(made) if ticket else None))
        return made.value

    def publish_from(self, sources: Sequence[tuple[Unit, int]], source_dtype: s.DType,
                     stream: Optional[Stream] = None, ticket: bool = False, **options: Any) -> int:
        """Fills shards from (unit, address of true_numel elements of source_dtype), then publishes them like publish()."""
        array = (s.Source * len(sources))()
        for made, (unit, address) in zip(array, sources):
            made.struct_size = ctypes.sizeof(s.Source)
            made.unit, made.data = unit.handle, address
        issued = c_uint64()
        asked = s.PublishOptions(**options) if options else None
        self.client.check(calls.publish_from(array, len(sources), source_dtype,
                                             None if stream is None else stream.handle, asked,
                                             byref(issued) if ticket else None))
        return issued.value

    def optimizer_update(self, parts: Sequence[s.OptimizerPart], step: s.OptimizerStep, stream: Optional[Stream] = None) -> None:
        """Updates masters and state of up to MOST_PARTS parts by one step, when the work now in the stream has run."""
        array = self._parts(parts)
        self.client.check(calls.optimizer_update(array, len(array), step, None if stream is None else stream.handle))

    def optimizer_split(self, parts: Sequence[s.OptimizerPart], stream: Optional[Stream] = None) -> None:
        """Writes the float32 masters in the parts' values to the shards and lower halves."""
        array = self._parts(parts)
        self.client.check(calls.optimizer_split(array, len(array), None if stream is None else stream.handle))

    def optimizer_join(self, parts: Sequence[s.OptimizerPart], stream: Optional[Stream] = None) -> None:
        """Reads the masters into the parts' values, float32."""
        array = self._parts(parts)
        self.client.check(calls.optimizer_join(array, len(array), None if stream is None else stream.handle))

    def _parts(self, parts: Sequence[s.OptimizerPart]) -> Any:
        _ = self.handle  # InvalidState if the rank has left the group, and with it the parts' units
        array = (s.OptimizerPart * len(parts))(*parts)
        for made in array:
            made.struct_size = ctypes.sizeof(s.OptimizerPart)
        return array

    @contextmanager
    def updating(self, units: Sequence[Unit], streams: Streams = None) -> Iterator[None]:
        """with group.updating(units): write the shards. The units are published unless an exception was raised."""
        self.update_begin(units)
        yield
        self.publish(units, streams)

    def commit(self, step: int, deadline_ms: int = 0) -> None:
        self.client.check(calls.commit(self.handle, step, wait_options(deadline_ms)))

    def commit_save(self, step: int, deadline_ms: int = 0) -> None:
        """Copies the last commit, `step`, into host memory for readers. 0: drops the copy. NotHeld, OutOfMemory, Busy."""
        self.client.check(calls.commit_save(self.handle, step, wait_options(deadline_ms), None))

    def commit_save_begin(self, step: int, deadline_ms: int = 0) -> int:
        """commit_save() that returns a ticket for Client.complete() at once."""
        return self._ticketed(calls.commit_save, step, wait_options(deadline_ms))

    # ---- Scopes ----

    def forward_begin(self, parent: int = 0, streams: Streams = None) -> int:
        """Begins a forward scope. Returns a number for GatherOptions(scope=...). Client.forward_end() ends the scope."""
        scope = c_uint64()
        self.client.check(calls.forward_begin(self.handle, parent, *stream_array(streams), byref(scope)))
        return scope.value

    def context_begin(self, units: Sequence[Unit], deadline_ms: int = 0) -> int:
        """Gathers all units or none. They are held until Client.context_end()."""
        context = c_uint64()
        self.client.check(calls.context_begin(*handle_array(units), wait_options(deadline_ms), byref(context)))
        return context.value

    @contextmanager
    def context(self, units: Sequence[Unit], streams: Streams = None) -> Iterator[list[int]]:
        """with group.context(units) as addresses: all units are held inside."""
        scope = self.context_begin(units)
        try:
            options = s.GatherOptions(scope=scope)
            stream = streams if isinstance(streams, Stream) else None
            yield [unit.gather(stream, options) for unit in units]
        finally:
            self.client.context_end(scope, streams)

    # ---- Gradients and steps ----

    def bucket(self, dtype: s.DType, slot_bytes: int = 0, nslots: int = 0) -> Bucket:
        handle = c_void_p()
        options = s.BucketOptions(dtype=dtype, slot_bytes=slot_bytes, nslots=nslots)
        self.client.check(calls.bucket_create(self.handle, byref(options), byref(handle)))
        return Bucket(self, handle.value or 0, s.DType(dtype))

    def backward_begin(self, options: Optional[s.BackwardOptions] = None) -> None:
        self.client.check(calls.backward_begin(self.handle, options))

    def backward_end(self, options: Optional[s.BackwardEndOptions] = None) -> None:
        """Waits until this rank's slices are summed."""
        self.client.check(calls.backward_end(self.handle, options, None))

    def backward_end_begin(self, options: Optional[s.BackwardEndOptions] = None) -> int:
        """backward_end() that returns a ticket for Client.complete() at once."""
        return self._ticketed(calls.backward_end, options)

    def backward_abandon(self, streams: Streams = None, deadline_ms: int = 0) -> None:
        """Gives up all backwards since the last step, for all ranks."""
        self.client.check(calls.backward_abandon(self.handle, *stream_array(streams), wait_options(deadline_ms)))

    def step_begin(self, deadline_ms: int = 0) -> s.StepInfo:
        """Waits until every rank has called it, and returns the result on which they agree."""
        info = s.StepInfo()
        options = s.StepOptions(deadline_ms=deadline_ms)
        self.client.check(calls.step_begin(self.handle, options, byref(info), None))
        return info

    def step_begin_ticket(self, options: Optional[s.StepOptions] = None) -> int:
        """step_begin() with a ticket: Client.complete(ticket, stream), then targets, and step_get()."""
        return self._ticketed(calls.step_begin, options, None)

    def step_get(self, deadline_ms: int = 0) -> s.StepInfo:
        """The result of the last step. Blocks until it is known."""
        info = s.StepInfo()
        self.client.check(calls.step_get(self.handle, wait_options(deadline_ms), byref(info)))
        return info

    def step_norms(self, units: Sequence[Unit], deadline_ms: int = 0) -> list[float]:
        """The squared norm of each unit's gradient in the last step, across all ranks."""
        norms = (c_double * len(units))()
        self.client.check(calls.step_norms_get(self.handle, *handle_array(units), wait_options(deadline_ms), norms))
        return list(norms)

    def step_scalars(self) -> s.StepScalars:
        """The addresses of a step's result that was begun with StepFlags.SCALARS, for kernels."""
        scalars = s.StepScalars()
        self.client.check(calls.step_scalars_get(self.handle, byref(scalars)))
        return scalars

    def step_end(self, streams: Streams = None, deadline_ms: int = 0) -> None:
        self.client.check(calls.step_end(self.handle, *stream_array(streams), wait_options(deadline_ms)))

    def _ticketed(self, call: Any, *arguments: Any) -> int:
        ticket = c_uint64()
        self.client.check(call(self.handle, *arguments, byref(ticket)))
        return ticket.value


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product
