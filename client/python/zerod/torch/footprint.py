# SPDX-License-Identifier: Apache-2.0
"""The bytes of each unit on a rank's device and in host memory: of a sharded model, with its counts, or before it is sharded.

The bytes are those that the layout determines. Activations, the state of other optimizers than Adam, and gradients before their
sum are not counted.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

import torch

from .context import Counts
from .environment import dtype_of_sums
from .layout import ALIGN_BYTES, BlockPlan, UnitPlan
from .offload import Placement

if TYPE_CHECKING:
    from .model import Model
    from .unit import FlatUnit


_MIB = 1 / (1 << 20)


@dataclass(frozen=True)
class UnitBytes:
    """Bytes of one unit on a rank. `*_on_host` says in which memory. Gathered buffers are always on the device."""

    block: str
    name: str
    weights: int  # the shard
    weights_on_host: bool  # and the target
    masters: int  # in addition to the shard
    gradients: int  # as the optimizer reads them
    state: int  # of Adam: two values for each master
    optimizer_on_host: bool  # masters, gradients and state
    staging: int  # rounded masters, on the host, before their copy to the device
    target: int  # the sum, from a step's first backward to its end; 0 where it is `gradients`
    passing: int  # the sum, or its terms of other ranks, while the optimizer in the backward uses them
    gathered: int  # the whole unit, while its block is held

    @property
    def device(self) -> int:
        """Bytes on the device at a step's end, without gathered ones."""
        own = 0 if self.optimizer_on_host else self.masters + self.gradients + self.state
        return (0 if self.weights_on_host else self.weights + self.target) + own

    @property
    def host(self) -> int:
        own = self.masters + self.gradients + self.state + self.staging if self.optimizer_on_host else 0
        return (self.weights + self.target if self.weights_on_host else 0) + own

    def __str__(self) -> str:
        weights, own = ("host" if on_host else "device" for on_host in (self.weights_on_host, self.optimizer_on_host))
        return (f"{self.name}: weights {self.weights * _MIB:.1f} MiB on {weights}, masters {self.masters * _MIB:.1f} and "
                f"gradients {self.gradients * _MIB:.1f} on {own}" + (", optimizer in the backward" if self.passing else ""))


def unit_bytes(block: str, unit: "FlatUnit | UnitPlan", world: int, placement: Placement, halves: bool = False,
               in_backward: bool = False) -> UnitBytes:
    """The bytes of the unit in this placement. halves: of masters; in_backward: an optimizer on the device."""
    dtype, trainable = unit.dtype, unit.trainable
    align = max(ALIGN_BYTES // dtype.itemsize, 1)
    shard = -(-(-(-unit.numel // world)) // align) * align
    casts = dtype != unit.source_dtype
    own = shard * unit.source_dtype.itemsize
    masters = 2 * shard if casts and halves else own if casts or placement.apart else 0
    sum_bytes = shard * dtype_of_sums(dtype).itemsize
    target = sum_bytes if trainable and not in_backward else 0
    copied = placement.optimizer_on_host and (placement.apart or unit.source_dtype != dtype_of_sums(dtype))
    terms = (world - 1) * shard * getattr(unit, "gradient_dtype", dtype).itemsize
    passing = terms if casts and halves and world > 1 else max(sum_bytes, 0 if casts else terms)
    in_place = world == 1 and not placement.shards_on_host
    return UnitBytes(block, unit.name, weights=shard * dtype.itemsize, weights_on_host=placement.shards_on_host,
                     masters=masters, state=2 * own if trainable else 0,
                     gradients=(own if copied else target) if trainable else 0,
                     optimizer_on_host=placement.optimizer_on_host,
                     staging=shard * dtype.itemsize if placement.apart and casts else 0, target=target if copied else 0,
                     passing=passing if trainable and in_backward else 0,
                     gathered=0 if in_place else world * shard * dtype.itemsize)


@dataclass(frozen=True)
class Plan:
    """The result of plan(). `gathered`: the most bytes of blocks that are held, or prefetched, at once."""

    world_size: int
    offload: Optional[str]
    gathered: int
    units: list[UnitBytes] = field(default_factory=list)
    device_budget: int = 0
    budget_used: int = 0  # by the units that remain on the device

    @property
    def device(self) -> int:
        """Includes the largest `passing`."""
        return sum(unit.device for unit in self.units) + self.gathered + max((unit.passing for unit in self.units), default=0)

    @property
    def host(self) -> int:
        """Bytes of one rank. A node needs them for each of its ranks."""
        return sum(unit.host for unit in self.units)

    def __str__(self) -> str:
        state = sum(unit.state for unit in self.units)
        stay = sum(not unit.optimizer_on_host for unit in self.units)
        budget = [f"{stay} of {len(self.units)} units stay on the device, by {self.budget_used * _MIB:.1f} MiB of a budget of "
                  f"{self.device_budget * _MIB:.1f} MiB"] if self.device_budget else []
        return "\n".join([*map(str, self.units), *budget,
                          f"each of {self.world_size} ranks: {self.device * _MIB:.1f} MiB on its device, of which "
                          f"{self.gathered * _MIB:.1f} gathered, and {self.host * _MIB:.1f} MiB in host memory; Adam's "
                          f"state, {state * _MIB:.1f} MiB, is counted, activations are not"])


def plan(blocks: list[BlockPlan], world_size: int, prefetch: int, offload: Optional[str], device_budget: int,
         budget_used: int, halves: bool, in_backward: bool) -> Plan:
    """The plan of blocks whose units are placed. See zerod.torch.plan()."""
    units = [unit_bytes(block.name, unit, world_size, unit.placement, halves, in_backward) for block in blocks for unit in block.units]
    whole = {block.name: sum(unit.gathered for unit in units if unit.block == block.name) for block in blocks}
    root = whole.pop("")  # held while the others are gathered and released
    return Plan(world_size, offload, root + sum(sorted(whole.values(), reverse=True)[:1 + prefetch]), units, device_budget,
                budget_used)


@dataclass
class Summary(Counts):
    """Counts since shard(). Bytes are what the daemon now holds on this rank's device. The peak is since the daemon's start.

    `units` describes where the weights, masters and gradients of each unit are, and how many bytes they have on this rank.
    """

    shard_bytes: int = 0
    gathered_bytes: int = 0
    allocated_bytes: int = 0
    peak_bytes: int = 0
    host_bytes: int = 0  # that the daemon holds in the host memory of this device, for all of its ranks
    units: list[UnitBytes] = field(default_factory=list)

    @property
    def overlap(self) -> float:
        """The share of gathers that were prefetched, 0 to 1."""
        return 1 - self.waited / self.gathers if self.gathers else 0.0

    def __str__(self) -> str:
        return (f"{self.steps} steps, {self.backwards} backwards, {self.gathers} gathers ({self.overlap:.0%} ahead), "
                f"{self.unplanned} unplanned; shards {self.shard_bytes * _MIB:.1f} MiB, gathered "
                f"{self.gathered_bytes * _MIB:.1f} MiB, device {self.allocated_bytes * _MIB:.1f} MiB, at most "
                f"{self.peak_bytes * _MIB:.1f} MiB" + (f"; host {self.host_bytes * _MIB:.1f} MiB" if self.host_bytes else ""))


def summary(model: Model) -> Summary:
    info = model.client.device(model.device_index)
    shards = sum(unit.shard.shard_numel * unit.dtype.itemsize for unit in model.units)
    host = 0 if model.offload.index is None else model.client.device(model.offload.index).allocated_bytes
    units = [unit_bytes(unit.block, unit, model.world, unit.placement, unit.halves is not None, not unit.placed)
             for unit in model.units]
    return Summary(**vars(model.counts), shard_bytes=shards, gathered_bytes=info.gathered_bytes,
                   allocated_bytes=info.allocated_bytes, peak_bytes=info.peak_bytes, host_bytes=host, units=units)
