# SPDX-License-Identifier: Apache-2.0
"""Blocks: modules whose units are gathered together.

A block's state is the set of its uses in this process. The first use leases its units from the daemon. The end of the last use
releases them, and the daemon frees the buffers. A prefetched use has tickets instead.

    sharded --ask()--> asked --acquire(use)--> gathered --release(last use)--> sharded

When the last use ends, the program can still have a tensor over a buffer: a view of a weight, or a tensor that autograd has saved
without our hooks. A separate lease then holds the buffer until the tensor is freed.
"""
from __future__ import annotations

from contextlib import suppress
from ctypes import c_uint64, c_void_p
from typing import Any, Optional

from torch import nn

import zerod
from zerod import structs as s
from zerod.library import calls

from .context import Context
from .kept import Kept
from .layout import BlockPlan
from .pace import Pace
from .sharded import ShardedWrite
from .unit import FlatUnit

_gather_begin, _wait, _release, _cork, _uncork = (calls.gather_begin, calls.wait, calls.release, calls.cork,
                                                  calls.uncork)
_DETACHED = s.ReleaseOptions(flags=s.ReleaseFlags.DETACHED)
_NO_SLOT = s.GatherOptions(flags=s.GatherFlags.NO_SLOT)


class Use:
    """Why a block is held, as bits."""

    FORWARD = 1
    KEPT = 2  # by a forward for its backward: in stage 2, and in place
    BACKWARD = 4


_BACKWARD = Use.BACKWARD


class Block:
    """See the file's first comment. `depth`: running forwards of the module."""

    def __init__(self, context: Context, plan: BlockPlan, index: int, kept: Kept) -> None:
        self.context = context
        self.kept = kept
        self.pace: Optional[Pace] = None
        self.index = index
        self.name = plan.name
        self.module = plan.module
        self.entries = [plan.module]  # modules whose forward is the block's
        self.parent = plan.parent
        self.single = plan.single
        self.has_blocks = False
        self.nbytes = 0  # that a release frees
        self.units: list[FlatUnit] = []
        self.trainable: list[FlatUnit] = []
        self.places: list[tuple[dict[str, Any], str, nn.Parameter, nn.Parameter]] = []
        self.versions: list[int] = []
        self.uses = 0
        self.tickets: Optional[list[int]] = None
        self.depth = 0
        self.pushed = False  # hooks of its own, for its forward
        self.raw = False  # tensors can have been saved without our hooks: only the boundary or the end releases
        self.node: Any = None  # the autograd node that last unpacked a weight of the block
        # For a backward: forwards without a graph that will run again, and graphs to come, by the task that built them.
        self.pending = 0
        self.graphs: dict[int, int] = {}
        self.next_forward: Optional[Block] = None
        self.next_backward: Optional[Block] = None

    def finish(self) -> None:
        """Called when all units are filled and the parameters are sharded."""
        self.follow()
        self.nbytes = sum(unit.shard.padded_numel * unit.dtype.itemsize for unit in self.units
                          if not unit.persistent and (self.context.world > 1 or unit.placement.shards_on_host))
        self.places = [(module._parameters, name, leaf, member.parameter) for unit in self.units
                       for member, leaf in zip(unit.members, unit.leaves) for module, name in member.owners]
        for unit in self.units:
            unit.own_references = unit.count_references()

    def follow(self) -> None:
        """Called after units were frozen or unfrozen."""
        self.trainable = [unit for unit in self.units if unit.trainable]

    def encloses(self, other: "Block") -> bool:
        return not self.name or other.name.startswith(self.name + ".")

    # ---- The lease ----

    def ask(self) -> None:
        """Prefetches one use: acquire() then waits for it."""
        if self.tickets is not None or self.uses:
            return
        tickets = []
        for unit in self.units:
            ticket = c_uint64()
            status = _gather_begin(unit.unit.handle, None, ticket)
            if status:
                raise self.context.client.error(status)
            tickets.append(ticket.value)
        self.tickets = tickets

    def acquire(self, use: int, ahead: "tuple[Block, ...]" = ()) -> None:
        """Adds a use, and prefetches one of each block in `ahead`, in one packet."""
        context = self.context
        if self.pace is not None:
            self.pace.keep()
        if self.tickets is None and not self.uses:
            context.counts.waited += len(self.units)
        _cork(context.client.handle)
        try:
            self.ask()
            for block in ahead:
                block.ask()
        finally:
            status = _uncork(context.client.handle)
        if status:
            raise context.client.error(status)
        if not self.uses:
            self._wait()
        self.uses |= use

    def _wait(self) -> None:
        context = self.context
        tickets, self.tickets = self.tickets, None
        assert tickets is not None
        stream = context.stream()
        handle = None if stream is None else stream.handle
        held = waited = 0
        try:
            for unit, ticket in zip(self.units, tickets):
                data = c_void_p()
                waited += 1
                status = _wait(context.client.handle, ticket, handle, data)
                if status == s.Status.SLOT_CONFLICT:  # more blocks are held at once than there are slots
                    data.value = unit.unit.gather(stream, _NO_SLOT)
                elif status == s.Status.NO_MEMORY:
                    context.environment.again(context.client.error(status))
                    data.value = unit.unit.gather(stream)
                elif status:
                    raise context.client.error(status)
                held += 1
                unit.place(data.value or 0)
        except BaseException:  # the program can continue, for example a rank that receives Mismatch
            with suppress(zerod.ZerodError):  # the daemon can have ended
                for unit in self.units[:held]:
                    unit.unit.release(stream)
                self._forget(self.units[waited:], tickets[waited:])
            raise
        context.counts.gathers += len(self.units)

    def release(self, use: int) -> None:
        """Ends one or several uses. The last one releases the lease after the work now in torch's stream. Harmless without it."""
        if not self.uses & use:
            return
        self.uses &= ~use
        if self.uses:
            return
        stream = self.context.stream()
        array, count = (None, 0) if stream is None else (stream.array, 1)
        for unit in self.units:
            self.kept.keep(unit, views_alone=bool(use & _BACKWARD))  # a hook of torch can hold a leaf now
            status = _release(unit.unit.handle, array, count, _DETACHED, None)
            if status:
                raise self.context.client.error(status)
        if self.pace is not None and self.nbytes:
            self.pace.released(self.nbytes)

    def forget_ahead(self) -> None:
        """Releases a prefetched use that was not needed."""
        tickets, self.tickets = self.tickets, None
        if tickets is None:
            return
        self._forget(self.units, tickets)

    def _forget(self, units: "list[FlatUnit]", tickets: list[int]) -> None:
        stream = self.context.stream()
        for unit, ticket in zip(units, tickets):
            try:
                self.context.client.wait(ticket, stream)
            except zerod.Mismatch:  # other ranks' updates: a gather that is needed reports them
                pass
            except zerod.InvalidState as error:
                if error.status != s.Status.SLOT_CONFLICT:
                    raise
            else:
                unit.unit.release(stream)

    # ---- The module's parameters ----

    def show_leaves(self) -> None:
        for parameters, name, leaf, sharded in self.places:
            if parameters.get(name) is not sharded and parameters.get(name) is not leaf:
                raise RuntimeError(f"{sharded.part.name} is not the parameter any more that shard() has sharded: it was assigned, "
                                   "replaced by functional_call(), or taken away. Write values by "
                                   "`with zerod.torch.full_parameters(model, write=True):`, or change the module before shard()")
            parameters[name] = leaf
        self.versions = [leaf._version for _, _, leaf, _ in self.places]

    def show_shards(self) -> None:
        for parameters, name, _, sharded in self.places:
            parameters[name] = sharded

    def check_unwritten(self) -> None:
        """ShardedWrite if the module's forward has written a weight."""
        for (_, _, leaf, sharded), version in zip(self.places, self.versions):
            if leaf._version != version:
                raise ShardedWrite(f"{sharded.part.name} was written in a forward, by an operation in place (clamp_(), max_norm of an "
                                   "embedding, ...): the write is lost. Write it between two steps, or make it a buffer")
