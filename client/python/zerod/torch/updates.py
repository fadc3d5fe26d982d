# SPDX-License-Identifier: Apache-2.0
"""Updates of a model's shards: by an optimizer's step, and by the program's writes outside of one.

The first write outside of a step begins an update of all units, in which every rank takes part. It is published before the next
read of whole weights.
"""
from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Container, Iterator, Optional, Sequence

import torch

import zerod
from zerod import structs as s

from .context import Context
from .durable import MOST_UNITS
from .environment import DTYPES
from .kept import Kept
from .unit import FlatUnit

PORTION_BYTES = 32 << 20  # of slices that are stepped or published at once, so that forwards can start meanwhile


class Updates:
    """The updates of one model. `updating`: by a step; `writing`: outside of one."""

    def __init__(self, context: Context, kept: Kept, release_kept: Callable[[], None]) -> None:
        self.context = context
        self.kept = kept
        self.release_kept = release_kept
        self.units: list[FlatUnit] = []
        self.trainable: list[FlatUnit] = []
        self.updating = False
        self.writing = False
        # The daemon's units whose update has begun before the step, because the optimizer runs in the backward, and those that
        # were published in it.
        self.begun: set[zerod.Unit] = set()
        self.published: set[FlatUnit] = set()

    def follow(self) -> None:
        """Called after units were added, frozen or unfrozen."""
        self.trainable = [unit for unit in self.units if unit.trainable]

    # ---- A step's ----

    def begin(self) -> None:
        """Begins the update of the slices of all units that can be stepped, except those that are already published."""
        if self.updating:
            return
        self.release_kept()
        self.kept.end()
        self._begin(self.trainable, but=self.begun)
        self.updating = True

    def _begin(self, units: Sequence[FlatUnit], but: "Container[zerod.Unit]" = ()) -> None:
        self.context.offload.wait()  # the last publish can still copy the values that are written now
        for stream, some in self._by_stream(units, but=but):
            self.context.client.complete(self.context.group.update_begin_ticket(some), stream)

    def end(self) -> None:
        if not self.updating:
            return
        self.updating = False
        ticket = self.context.durable is None  # a commit fails while a unit is being published
        self.publish([unit for unit in self.trainable if unit not in self.published], ticket=ticket)
        self.begun.clear()
        self.published.clear()

    def reopen(self, unit: FlatUnit) -> None:
        """The unit is written again in the step that has published it."""
        self.published.remove(unit)
        self._begin([unit])

    # ---- The program's writes ----

    def begin_writes(self) -> None:
        """Every rank calls it. Harmless when repeated.

        The barrier comes first: a rank that still reads the former weights would wait for the new ones, including its own.
        """
        if self.writing:
            return
        context = self.context
        self.release_kept()
        self.kept.end()
        context.offload.wait()
        context.group.barrier()
        for _, some in self._by_stream(self.units):
            context.group.update_begin(some)
        self.writing = True

    def end_writes(self) -> None:
        if not self.writing:
            return
        self.writing = False
        self.publish(self.units)

    @contextmanager
    def writes(self) -> Iterator[None]:
        self.begin_writes()
        try:
            yield
        finally:
            self.end_writes()

    def fill(self, unit: FlatUnit, parameters: "Sequence[torch.Tensor]") -> None:
        """Fills the unit of all ranks with the values of rank 0's parameters. Every rank calls it."""
        context = self.context
        self.release_kept()
        self.kept.end()
        context.offload.wait()
        for _, some in self._by_stream([unit], state=False):
            context.group.update_begin(some)
        unit.load(unit.whole_of(parameters) if context.rank == 0 else None)
        if context.replicas is not None:
            context.replicas.broadcast([unit.own])
        self.publish([unit], state=False)

    # ---- Publishing ----

    def publish(self, units: Sequence[FlatUnit], ticket: bool = False, early: bool = False, on_device: bool = False,
                state: bool = True) -> None:
        """Ends the units' update: the values of the optimizer's slices become the next version.

        early: in the backward, in which held blocks still have the former version. on_device: the GPU reads the masters in host
        memory and rounds them, after the work in torch's current stream. state: with a durable job's optimizer state.
        """
        context = self.context
        options: dict[str, Any] = {"flags": s.PublishFlags.FORCE} if early else {}
        plain: list[FlatUnit] = []
        by_dtype: dict[torch.dtype, list[FlatUnit]] = {}
        for unit in units:
            unit.next_version()
            if unit.halves is not None:
                unit.halves.close(writes=True)
            if unit.master is None or unit.placement.optimizer_on_host and not on_device or unit.source_dtype == torch.float64:
                plain.append(unit)
            else:
                by_dtype.setdefault(unit.source_dtype, []).append(unit)
        rounded = [unit for unit in plain if unit.master is not None or unit.placement.apart]
        if rounded or context.offload.optimizer:
            context.offload.write_shards(rounded, note=not early)
        filled = {unit.unit for some in by_dtype.values() for unit in some}
        for stream, written in self._by_stream(units, state, filled):
            context.group.publish(written, stream, ticket=ticket, **options)
        for dtype, masters in by_dtype.items():
            for part in portions(masters) if ticket else [masters]:
                context.group.publish_from([(unit.unit, unit.master.data_ptr()) for unit in part if unit.master is not None],
                                           DTYPES[dtype], context.stream(), ticket=ticket, **options)

    def _by_stream(self, units: Sequence[FlatUnit], state: bool = True,
                   but: "Container[zerod.Unit]" = ()) -> "Iterator[tuple[Optional[zerod.Stream], list[zerod.Unit]]]":
        """The daemon's units that torch's stream writes, with that stream, and those that the CPU writes, in portions for
        requests."""
        durable = self.context.durable
        places = [place for unit in units for place in unit.places()]
        places += durable.places() if durable is not None and state else []
        for stream, by_cpu in ((self.context.stream(), False), (None, True)):
            some = [unit for unit, is_by_cpu in places if is_by_cpu == by_cpu and unit not in but]
            for first in range(0, len(some), MOST_UNITS):
                yield stream, some[first:first + MOST_UNITS]


def portions(units: "list[FlatUnit]") -> "Iterator[list[FlatUnit]]":
    """The units in order, some together if they are small."""
    part: list[FlatUnit] = []
    for unit in units:
        part.append(unit)
        if sum(each.slice.nbytes for each in part) >= PORTION_BYTES:
            yield part
            part = []
    if part:
        yield part
