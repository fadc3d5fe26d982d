# SPDX-License-Identifier: Apache-2.0
"""A block: a module whose units are gathered together.

Its life is the set of uses that it has in this process. With the first use its units are leased from the daemon, with
the last one the lease is given back, and the buffers go. A use that is asked for ahead has tickets instead.

    sharded --ask()--> asked --acquire(use)--> gathered --release(last use)--> sharded

A tensor of the program's may still stand over a buffer when the last use ends: a view of a weight that it keeps, or one
that autograd has saved without our hooks. Such a buffer is kept by a lease of its own until the tensor is gone.
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
    """Why a block is held: bits."""

    FORWARD = 1
    KEPT = 2  # by a forward for its backward: in stage 2, and in place
    BACKWARD = 4


_BACKWARD = Use.BACKWARD


class Block:
    """See the file's beginning. `depth`: forwards of the module that run."""

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
        self.raw = False  # tensors may have been saved without our hooks: only the boundary or the end releases
        self.node: Any = None  # the autograd node that last unpacked a weight of the block
        # Of a backward: forwards without a graph that are to run again, and graphs to come, by the task that built them.
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
        """Units were frozen or unfrozen."""
        self.trainable = [unit for unit in self.units if unit.trainable]

    def encloses(self, other: "Block") -> bool:
        return not self.name or other.name.startswith(self.name + ".")

    # ---- The lease ----

    def ask(self) -> None:
        """Asks for one use ahead: acquire() then waits for it."""
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
        """Adds a use, and asks for one of each block in `ahead`, in one packet."""
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
        except BaseException:  # the program can go on, as a rank can that receives Mismatch
            with suppress(zerod.ZerodError):  # of a daemon that has ended
                for unit in self.units[:held]:
                    unit.unit.release(stream)
                self._forget(self.units[waited:], tickets[waited:])
            raise
        context.counts.gathers += len(self.units)

    def release(self, use: int) -> None:
        """Ends one or several uses; the last one gives the lease back behind what is in torch's stream now. Harmless without the use."""
        if not self.uses & use:
            return
        self.uses &= ~use
        if self.uses:
            return
        stream = self.context.stream()
        array, count = (None, 0) if stream is None else (stream.array, 1)
        for unit in self.units:
            self.kept.keep(unit, views_alone=bool(use & _BACKWARD))  # a hook of torch's may hold a leaf now
            status = _release(unit.unit.handle, array, count, _DETACHED, None)
            if status:
                raise self.context.client.error(status)
        if self.pace is not None and self.nbytes:
            self.pace.released(self.nbytes)

    def forget_ahead(self) -> None:
        """Gives back a use that was asked for ahead and not needed."""
        tickets, self.tickets = self.tickets, None
        if tickets is None:
            return
        self._forget(self.units, tickets)

    def _forget(self, units: "list[FlatUnit]", tickets: list[int]) -> None:
        stream = self.context.stream()
        for unit, ticket in zip(units, tickets):
            try:
                self.context.client.wait(ticket, stream)
            except zerod.Mismatch:  # an update of other ranks, of which a gather that is needed says the same
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
        """ShardedWrite where the module's forward has written a weight."""
        for (_, _, leaf, sharded), version in zip(self.places, self.versions):
            if leaf._version != version:
                raise ShardedWrite(f"{sharded.part.name} was written in a forward, by an operation in place (clamp_(), max_norm of an "
                                   "embedding, ...): the write is lost. Write it between two steps, or make it a buffer")
