# SPDX-License-Identifier: Apache-2.0
"""Counts and memory of a sharded model."""
from __future__ import annotations

from dataclasses import dataclass, field

from .footprint import UnitBytes, unit_bytes
from .model import Model


@dataclass
class Summary:
    """Counts since shard(); bytes are what the daemon holds on this rank's device now, peak since its start.

    `units` says where the weights, masters and gradients of each unit are, and how many bytes they have on this rank.
    """

    steps: int
    backwards: int
    abandoned: int
    gathers: int
    waited: int  # gathers whose bytes nobody had asked for ahead
    unplanned: int
    shard_bytes: int
    gathered_bytes: int
    allocated_bytes: int
    peak_bytes: int
    host_bytes: int = 0  # that the daemon holds in the host memory beside this device, for all of its ranks
    units: list[UnitBytes] = field(default_factory=list)

    @property
    def overlap(self) -> float:
        """The share of gathers that were asked for ahead, 0 to 1."""
        return 1 - self.waited / self.gathers if self.gathers else 0.0

    def __str__(self) -> str:
        mib = 1 / (1 << 20)
        return (f"{self.steps} steps, {self.backwards} backwards, {self.gathers} gathers ({self.overlap:.0%} ahead), "
                f"{self.unplanned} unplanned; shards {self.shard_bytes * mib:.1f} MiB, gathered "
                f"{self.gathered_bytes * mib:.1f} MiB, device {self.allocated_bytes * mib:.1f} MiB, at most "
                f"{self.peak_bytes * mib:.1f} MiB" + (f"; host {self.host_bytes * mib:.1f} MiB" if self.host_bytes else ""))


def summary(model: Model) -> Summary:
    info = model.client.device(model.device_index)
    shards = sum(unit.shard.shard_numel * unit.dtype.itemsize for unit in model.units)
    counts = model.counts
    host = 0 if model.offload.index is None else model.client.device(model.offload.index).allocated_bytes
    units = [unit_bytes(unit.block, unit, model.world, unit.placement) for unit in model.units]
    return Summary(counts.steps, counts.backwards, counts.abandoned, counts.gathers, counts.waited, counts.unplanned,
                   shards, info.gathered_bytes, info.allocated_bytes, info.peak_bytes, host, units)
