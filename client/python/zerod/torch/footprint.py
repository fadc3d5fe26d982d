# SPDX-License-Identifier: Apache-2.0
"""How many bytes of each unit a rank has on its device and in host memory: of a sharded model, or before it is sharded.

Counted are the bytes that the layout decides. Activations, the optimizer's state of other optimizers than Adam, and
gradients on their way to the sum are not.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

import torch
from torch import nn

from . import offload as offloads
from .layout import ALIGN_BYTES, Policy, plan as blocks_of

_MIB = 1 / (1 << 20)


@dataclass(frozen=True)
class UnitBytes:
    """Bytes of one unit on a rank. `*_on_host` is where; gathered buffers are on the device always."""

    block: str
    name: str
    weights: int  # the shard
    weights_on_host: bool  # and the target
    masters: int
    gradients: int  # as the optimizer reads them
    state: int  # of Adam: two values for each master
    optimizer_on_host: bool  # masters, gradients and state
    staging: int  # masters that were rounded, on the host, on their way to the device
    target: int  # the sum, from a step's first backward to its end; 0 where it is `gradients`
    gathered: int  # the whole unit, while its block is held

    @property
    def device(self) -> int:
        """Bytes on the device at a step's end, gathered ones aside."""
        own = 0 if self.optimizer_on_host else self.masters + self.gradients + self.state
        return (0 if self.weights_on_host else self.weights + self.target) + own

    @property
    def host(self) -> int:
        own = self.masters + self.gradients + self.state + self.staging if self.optimizer_on_host else 0
        return (self.weights + self.target if self.weights_on_host else 0) + own

    def __str__(self) -> str:
        weights, own = ("host" if on_host else "device" for on_host in (self.weights_on_host, self.optimizer_on_host))
        return (f"{self.name}: weights {self.weights * _MIB:.1f} MiB on {weights}, masters {self.masters * _MIB:.1f} and "
                f"gradients {self.gradients * _MIB:.1f} on {own}")


def unit_bytes(block: str, name: str, dtype: torch.dtype, source_dtype: torch.dtype, trainable: bool, numel: int,
               world: int, offload: Optional[str]) -> UnitBytes:
    align = max(ALIGN_BYTES // dtype.itemsize, 1)
    shard = -(-(-(-numel // world)) // align) * align
    weights_on_host, optimizer_on_host = offload in ("params", "all"), offload is not None
    apart = optimizer_on_host and not weights_on_host
    casts = dtype != source_dtype
    own = shard * source_dtype.itemsize
    target = 4 * shard if trainable else 0
    copied = optimizer_on_host and (apart or source_dtype != torch.float32)
    in_place = world == 1 and not weights_on_host
    return UnitBytes(block, name, weights=shard * dtype.itemsize, weights_on_host=weights_on_host,
                     masters=own if casts or apart else 0, state=2 * own if trainable else 0,
                     gradients=(own if copied else target) if trainable else 0,
                     optimizer_on_host=optimizer_on_host,
                     staging=shard * dtype.itemsize if apart and casts else 0, target=target if copied else 0,
                     gathered=0 if in_place else world * shard * dtype.itemsize)


@dataclass(frozen=True)
class Plan:
    """The result of plan(). `gathered`: the most bytes of blocks that are held, or asked for ahead, at once."""

    world_size: int
    offload: Optional[str]
    gathered: int
    units: list[UnitBytes] = field(default_factory=list)

    @property
    def device(self) -> int:
        return sum(unit.device for unit in self.units) + self.gathered

    @property
    def host(self) -> int:
        """Of one rank: a node has as much for each of its ranks."""
        return sum(unit.host for unit in self.units)

    def __str__(self) -> str:
        state = sum(unit.state for unit in self.units)
        return "\n".join([*map(str, self.units),
                          f"each of {self.world_size} ranks: {self.device * _MIB:.1f} MiB on its device, of which "
                          f"{self.gathered * _MIB:.1f} gathered, and {self.host * _MIB:.1f} MiB in host memory; Adam's "
                          f"state, {state * _MIB:.1f} MiB, is counted, activations are not"])


def plan(module: nn.Module, world_size: int, policy: Policy, param_dtype: Optional[torch.dtype], prefetch: int,
         offload: Optional[str]) -> Plan:
    """See zerod.torch.plan()."""
    offloads.check(offload, stage=3, mesh=None)
    blocks = blocks_of(module, policy, param_dtype)
    units = [unit_bytes(block.name, unit.name, unit.dtype, unit.source_dtype, unit.trainable, unit.numel, world_size,
                        offload) for block in blocks for unit in block.units]
    whole = {block.name: sum(unit.gathered for unit in units if unit.block == block.name) for block in blocks}
    root = whole.pop("")  # is held while the others come and go
    return Plan(world_size, offload, root + sum(sorted(whole.values(), reverse=True)[:1 + prefetch]), units)
