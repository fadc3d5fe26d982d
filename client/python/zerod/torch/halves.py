# SPDX-License-Identifier: Apache-2.0
"""Float32 masters of a unit in two halves. The upper half is the unit's bfloat16 shard, or the unit in host memory from which the
shard is copied. The other half has the lower 16 bits of each master.

While a program reads or writes masters as float32, `unit.master` has them, in memory of torch, and the parameters are views of
it. It is freed when the unit's update ends, or with the next step or forward. The parameters then wait for it again.
"""
from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch

import zerod
from zerod import structs as s

from .sharded import ShardedTensor, as_plain

if TYPE_CHECKING:
    from .unit import FlatUnit


class Halves:
    """The halves of one unit. They are the source of the parameters' values."""

    def __init__(self, unit: "FlatUnit") -> None:
        """Called inside an update, which publishes the shard, because the upper halves can differ from it by a rounding."""
        assert unit.master is not None
        self.unit = unit
        self.alone: Callable[[], AbstractContextManager[Any]] = nullcontext  # with an optimizer in another thread
        self.low = torch.empty(unit.shard.true_numel, dtype=torch.int16, device=unit.master.device)
        unit.halves = self
        whole = unit.master
        self.close(writes=True)
        unit.context.offload.release(whole)

    def part(self, values: Optional[torch.Tensor], first: int = 0, last: Optional[int] = None) -> s.OptimizerPart:
        """Elements of the unit's slice, with float32 `values` that start there."""
        last = self.low.numel() if last is None else last
        return s.OptimizerPart(unit=self.unit.written.handle, offset_numel=first, numel=last - first,
                               low=self.low.data_ptr() + 2 * first, values=None if values is None else values.data_ptr())

    def fill(self, tensor: ShardedTensor) -> None:
        self.expand()

    def expand(self) -> torch.Tensor:
        """The masters as float32."""
        unit = self.unit
        with self.alone():
            if unit.master is None:
                unit.master = torch.empty(unit.shard.true_numel, dtype=torch.float32, device=self.low.device)
                if unit.master.numel():
                    unit.context.group.optimizer_join([self.part(unit.master)], self._stream())
                with as_plain():
                    for index, values in enumerate(unit.own_parts()):
                        for each in self._over(index):
                            each.settle(values)
            return unit.master

    def close(self, writes: bool) -> None:
        """Ends the use of the masters as float32. writes: they can have been written, in an open update."""
        unit = self.unit
        if unit.master is None:
            return
        if writes and unit.master.numel():
            unit.context.group.optimizer_split([self.part(unit.master)], self._stream())
        unit.master = None
        with as_plain():
            for index in range(len(unit.members)):
                for each in self._over(index):
                    each.wait_for(self)

    def _stream(self) -> "Optional[zerod.Stream]":
        return self.unit.placement.own_stream(self.unit.context.environment)

    def _over(self, index: int) -> "list[ShardedTensor]":
        """The parameter, and tensors over its values that the program still has."""
        parameter: Any = self.unit.members[index].parameter
        return [parameter, *(each for each in (reference() for reference in parameter.aliases[1:]) if each is not None)]
