# SPDX-License-Identifier: Apache-2.0
"""Updates of a model's shards: by an optimizer's step, and by writes of the program's outside of one.

The first write outside of a step begins an update of all units, in which every rank takes part; it is published before
anything reads whole weights again.
"""
from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Sequence

import torch

import zerod
from zerod import structs as s

from .context import Context
from .environment import DTYPES
from .kept import Kept
from .unit import FlatUnit

PORTION_BYTES = 32 << 20  # of slices that are stepped or published at once, so that forwards can begin meanwhile


class Updates:
    """Of one model. `updating`: by a step; `writing`: outside of one."""

    def __init__(self, context: Context, kept: Kept, release_kept: Callable[[], None]) -> None:
        self.context = context
        self.kept = kept
        self.release_kept = release_kept
        self.units: list[FlatUnit] = []
        self.trainable: list[FlatUnit] = []
        self.updating = False
        self.writing = False
        # Units whose update has begun, and has ended, before the step's end; begun ones where the optimizer runs in the backward.
        self.begun: set[FlatUnit] = set()
        self.published: set[FlatUnit] = set()

    def follow(self) -> None:
        """Units were added, frozen or unfrozen."""
        self.trainable = [unit for unit in self.units if unit.trainable]

    # ---- A step's ----

    def begin(self) -> None:
        """Has the slices of all units that may be stepped, but those that are published already."""
        if self.updating:
            return
        context = self.context
        self.release_kept()
        self.kept.end()
        for stream, some in self._by_stream([unit for unit in self.trainable if unit not in self.begun]):
            context.client.complete(context.group.update_begin_ticket([unit.unit for unit in some]), stream)
        if context.durable is not None:
            context.durable.begin_update(self.trainable)
        self.updating = True

    def end(self) -> None:
        if not self.updating:
            return
        self.updating = False
        durable = self.context.durable
        self.publish([unit for unit in self.trainable if unit not in self.published], ticket=durable is None)
        self.begun.clear()
        self.published.clear()
        if durable is not None:
            durable.publish(self.trainable)

    def reopen(self, unit: FlatUnit) -> None:
        """The unit is written again in the step that has published it."""
        self.published.remove(unit)
        stream = None if unit.placement.shards_on_host else self.context.stream()
        self.context.client.complete(self.context.group.update_begin_ticket([unit.unit]), stream)

    # ---- The program's writes ----

    def begin_writes(self) -> None:
        """Every rank calls it. Harmless when repeated.

        The barrier comes first: a rank that still reads the former weights would wait for the new ones, also its own.
        """
        if self.writing:
            return
        context = self.context
        self.release_kept()
        self.kept.end()
        context.offload.wait()
        context.group.barrier()
        context.group.update_begin([unit.unit for unit in self.units])
        if context.durable is not None:
            context.durable.begin_update(self.units)
        self.writing = True

    def end_writes(self) -> None:
        if not self.writing:
            return
        self.writing = False
        self.publish(self.units)
        if self.context.durable is not None:
            self.context.durable.publish(self.units)

    @contextmanager
    def writes(self) -> Iterator[None]:
        self.begin_writes()
        try:
            yield
        finally:
            self.end_writes()

    def fill(self, unit: FlatUnit, parameters: "Sequence[torch.Tensor]") -> None:
        """Gives the unit of all ranks what rank 0's parameters hold. Every rank calls it."""
        context = self.context
        self.release_kept()
        self.kept.end()
        context.offload.wait()
        context.group.update_begin([each for each in (unit.unit, unit.master_unit) if each is not None])
        unit.load(unit.whole_of(parameters) if context.rank == 0 else None)
        if context.replicas is not None:
            context.replicas.broadcast([unit.own])
        self.publish([unit])
        if unit.master_unit is not None:
            context.group.publish([unit.master_unit], unit.placement.own_stream(context.environment))

    # ---- Publishing ----

    def publish(self, units: Sequence[FlatUnit], ticket: bool = False, early: bool = False, on_device: bool = False) -> None:
        """Ends the units' update: what the optimizer's slices hold becomes the next version.

        early: in the backward, where blocks that are still held keep the former version.
        on_device: the GPU reads the masters in host memory and rounds them, behind torch's current stream.
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
        rounded = [unit for unit in plain if unit.master is not None]
        if rounded or context.offload.optimizer:
            context.offload.write_shards(rounded, note=not early)
        for stream, some in self._by_stream(plain):
            context.group.publish([unit.unit for unit in some], stream, ticket=ticket, **options)
        for dtype, masters in by_dtype.items():
            for part in portions(masters) if ticket else [masters]:
                context.group.publish_from([(unit.unit, unit.master.data_ptr()) for unit in part if unit.master is not None],
                                           DTYPES[dtype], context.stream(), ticket=ticket, **options)

    def _by_stream(self, units: Sequence[FlatUnit]) -> "list[tuple[Optional[zerod.Stream], list[FlatUnit]]]":
        """The units whose shards torch's stream writes, with that stream, and those whose shards the CPU writes."""
        found = [(self.context.stream(), [unit for unit in units if not unit.placement.shards_on_host]),
                 (None, [unit for unit in units if unit.placement.shards_on_host])]
        return [(stream, some) for stream, some in found if some]


def portions(units: "list[FlatUnit]") -> "Iterator[list[FlatUnit]]":
    """The units in their order, some together if they are small."""
    part: list[FlatUnit] = []
    for unit in units:
        part.append(unit)
        if sum(each.slice.nbytes for each in part) >= PORTION_BYTES:
            yield part
            part = []
    if part:
        yield part
